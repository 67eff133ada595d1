"""Search real trainings with `joint` and with TPE: how far the chosen learning rates lie above each cell's best.

Run: python tests/benchmarks/search_trained.py FOLDER [repeats]. Six cells (n_embd 8, 16, 32 by max_iters 100, 250; one
layer, AdamW) and one of them alone are searched by studies that differ in the seed, and each cell's choice is the one
that the program shows. A reference study trains 13 learning rates with three seeds in each cell, and is written to
data/sweep_tiny.csv. A cell's loss is a cubic in the log of the rate, fitted to the reference within 8% of the lowest,
and elsewhere the line between neighbors. Studies stay in FOLDER, and a second call continues from there.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])  # not this folder

import numpy as np
from benchmarks.sealed import sweeplab
from benchmarks.setting import print_table, setting

from sweeplab.analysis.studies import read_studies
from sweeplab.analysis.trials import trials_table

STUDY = """\
name: {name}
data: {{corpus: python-docs, tokenizer: char}}
fixed: {{n_layer: 1, n_head: 1, qk_norm: true, block_size: 32, batch_size: 16, dropout: 0.0, warmup_iters: 20%,
  scheduler_type: linear, eval_interval: 100%, eval_tokens: 32_768, device: cpu, dtype: float32}}
grid: {{n_embd: {widths}, max_iters: {lengths}}}
search: {{learning_rate: {rates}}}
budget: {{trials_per_cell: {trials}}}
sampler: {sampler}
pruner: none
seeds: {seeds}
engine: {{workers: 1, threads: 1}}
track: {{checkpoints: none}}
"""
CELLS, ONE = ([8, 16, 32], [100, 250]), ([16], [250])
RANGE = "{min: 1e-3, max: 0.1, log: true}"
RATES = [float(f"{rate:.4g}") for rate in np.geomspace(1e-3, 0.1, 13)]
SEARCHES = {
    ("six cells", "joint", 4): CELLS,
    ("six cells", "tpe", 16): CELLS,
    ("six cells", "tpe", 4): CELLS,
    ("one cell", "tpe", 8): ONE,
    ("one cell", "joint", 8): ONE,
}
TABLE = Path(__file__).parent / "data" / "sweep_tiny.csv"
COLUMNS = ("n_embd", "max_iters", "learning_rate", "seed", "best_val_loss")


def trained(folder: Path, name: str, cells: Any, **settings: Any) -> Any:
    """Run a study, or continue it, and return its runs."""
    file = folder / f"{name}.yaml"
    file.write_text(STUDY.format(name=name, widths=cells[0], lengths=cells[1], **settings))
    sweeplab("study", "run", file, "--quiet", "--lab", folder / "lab")
    return read_studies(folder / "lab", [name]).runs


class Reference:
    """The loss of each cell by learning rate."""

    def __init__(self, rows: list[dict[str, str]]) -> None:
        self.cells: dict[tuple[int, int], Any] = {}
        for size in {(int(row["n_embd"]), int(row["max_iters"])) for row in rows}:
            some = [row for row in rows if (int(row["n_embd"]), int(row["max_iters"])) == size]
            losses = [
                np.mean([float(row["best_val_loss"]) for row in some if float(row["learning_rate"]) == rate])
                for rate in RATES
            ]
            self.cells[size] = np.log(losses)

    def loss(self, size: tuple[int, int], rates: Any) -> Any:
        """Return the log loss at learning rates."""
        x, y = np.log(RATES), self.cells[size]
        near = y < y.min() + 0.08
        fit, asked = np.polyfit(x[near] - x.mean(), y[near], 3), np.log(rates)
        inside = (asked >= x[near].min()) & (asked <= x[near].max())
        return np.where(inside, np.polyval(fit, asked - x.mean()), np.interp(asked, x, y))

    def excess(self, size: tuple[int, int], rate: float) -> float:
        """Return the share by which the loss at a learning rate is above the lowest."""
        lowest = self.loss(size, np.geomspace(RATES[0], RATES[-1], 500)).min()
        return float(np.expm1(self.loss(size, np.array([rate]))[0] - lowest))


def main(folder: Path, repeats: int) -> None:
    """Print the excess of each search."""
    print(setting(), end="\n\n")
    folder.mkdir(parents=True, exist_ok=True)
    runs = trained(
        folder, "reference", CELLS, rates=RATES, trials=len(RATES), sampler="grid", seeds=[0, 1, 2]
    )
    with TABLE.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(runs[[*COLUMNS]].sort_values([*COLUMNS]).round(6).to_numpy().tolist())
    with TABLE.open() as lines:
        reference = Reference([*csv.DictReader(lines)])
    rows = []
    for (what, sampler, trials), cells in SEARCHES.items():
        excess = []
        for seed in range(100, 100 + repeats):
            name = f"{what.replace(' ', '-')}-{sampler}-{trials}-{seed}"
            settings = {"rates": RANGE, "trials": trials, "sampler": sampler, "seeds": [seed]}
            table = trials_table(trained(folder, name, cells, **settings))
            best = table[table["best"]].to_dict("records")
            excess.append(
                [
                    reference.excess((int(row["n_embd"]), int(row["max_iters"])), float(row["learning_rate"]))
                    for row in best
                ]
            )
            print(what, sampler, trials, seed, np.round(excess[-1], 4), file=sys.stderr, flush=True)
        means = np.mean(excess, axis=1)
        each = " ".join(f"{mean:.2%}" for mean in means)
        rows.append([what, sampler, str(trials), f"{means.mean():.2%}", f"{np.max(excess):.2%}", each])
    print_table(["search", "sampler", "trials a cell", "mean excess", "worst cell", "by seed"], rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
