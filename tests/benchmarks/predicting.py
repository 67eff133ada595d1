"""Measure how often the intervals of `laws predict` hold at a size that was not tried, in planted studies.

Run: python tests/benchmarks/predicting.py [studies] [part of the worlds' names]. Each world is a study of 18 cells,
n_embd 16 to 96 by max_iters 150 to 1,000, with six random trials each (tests/analysis/planted_transfer.py). Predicted
is n_embd 192 at 2,000.
Columns: the share of 90% intervals that hold the best learning rate, the loss of a run with the predicted values, and
that of one with a named learning rate, twice the best; the share of right activations; of learning rates that are
identified; the mean excess of the values over the best.
"""

import os
import sys
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process a core
sys.path[0] = str(Path(__file__).parents[1])  # not this folder

import numpy as np
from analysis.planted_transfer import World, predicted
from benchmarks.setting import print_table, setting

WORLDS = {
    "power law": World(),
    "power law, noise 1%": World(noise=0.01),
    "power law, noise 2%": World(noise=0.02),
    "power law, 4 trials a cell": World(trials=4),
    "none": World("none"),
    "mild kink": World("mild kink"),
    "kink": World("kink"),
    "choices that flip": World(flips=True),
    "learning rates end below the best": World("edge"),
}


def one_study(name: str, seed: int) -> dict[str, float | None]:
    """Return what was held in one study; None where nothing was predicted."""
    with TemporaryDirectory() as lab:
        found = predicted(WORLDS[name], zlib.crc32(f"{name}/{seed}".encode()), Path(lab))
        named = predicted(WORLDS[name], zlib.crc32(f"{name}/{seed}".encode()), Path(lab), off=2.0)
    rate, loss = found.prediction.values["learning_rate"], found.prediction.loss
    world = WORLDS[name]
    held = {"rate": None, "loss": None, "choice": None, "named": None}
    if rate.low is not None and rate.high is not None:
        held["rate"] = np.log(rate.low) <= found.best <= np.log(rate.high)
    if loss is not None and np.isfinite([loss.low, loss.high]).all():
        held["loss"] = np.log(loss.low) <= found.log_loss <= np.log(loss.high)
    if (loss := named.prediction.loss) is not None:
        held["named"] = np.log(loss.low) <= named.log_loss <= np.log(loss.high)
    if world.flips:
        held["choice"] = found.prediction.values["activation"].value == world.best_activation(192)
    return held | {"identified": rate.verdict == "identified", "excess": found.excess}


def main(n_studies: int, only: str) -> None:
    """Print the shares in each world that `only` is a part of."""
    print(f"{setting()}; {n_studies} studies a world\n")
    columns, rows = ("rate", "loss", "named", "choice", "identified"), []
    with ProcessPoolExecutor() as pool:
        jobs = {
            name: [pool.submit(one_study, name, seed) for seed in range(n_studies)]
            for name in WORLDS
            if only in name
        }
        for name, of_world in jobs.items():
            results = [job.result() for job in of_world]
            row = [name]
            for column in columns:
                known = [result[column] for result in results if result[column] is not None]
                row.append(f"{np.mean(known):.0%} of {len(known)}" if known else "–")
            rows.append([*row, f"{np.mean([result['excess'] for result in results]):.3%}"])
            print(rows[-1], file=sys.stderr, flush=True)
    held = ("rate held", "loss held", "loss held at twice the best rate")
    print_table(["world", *held, "choice right", "identified", "excess"], rows)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["20"])[0]), "".join(sys.argv[2:3]))
