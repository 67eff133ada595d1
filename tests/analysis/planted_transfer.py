"""Planted studies whose best learning rate is known at every size, tried and not: what `laws predict` is to find."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from analysis.planted_study import planted_run
from analysis.typed_runs import typed_runs

from sweeplab.analysis.predicting import Prediction, predict_size
from sweeplab.analysis.studies import Studies
from sweeplab.analysis.trials import rankings, with_expected
from sweeplab.lab.studies import write_study
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.reading import read_plain
from sweeplab.sweep.planning import make_plan

WIDTHS, LENGTHS = (16, 24, 32, 48, 64, 96), (150, 400, 1000)
LARGE = {"n_embd": 192, "max_iters": 2000}
NAME = "planted"
STUDY = {
    "name": NAME,
    "data": {"corpus": "python-docs", "tokenizer": "char"},
    "fixed": {
        "n_layer": 1,
        "n_head": 2,
        "block_size": 16,
        "batch_size": 4,
        "dtype": "float32",
        "device": "cpu",
    },
    "grid": {"n_embd": list(WIDTHS), "max_iters": list(LENGTHS)},
    "search": {"learning_rate": {"min": 1e-5, "max": 1, "log": True}},
}
VALLEY = 0.04  # the excess of log loss at a factor e from the best learning rate
WORSE = 0.02  # that of the worse activation


@dataclass(frozen=True)
class World:
    """How a study is made: `kind` is law, none, kink, mild kink or edge, where all learning rates lie below the best.

    At a kink, a width of 48, the best learning rate falls no more, or half as fast.

    The best activation is relu, and with `flips` gelu above a width of 40.
    """

    kind: str = "law"
    flips: bool = False
    trials: int = 6
    noise: float = 0.002
    scatter: float = 0.05

    def best(self, width, length):
        """Return the log of the best learning rate on the law."""
        if self.kind == "none":
            return float(np.log(3e-3))
        wide = np.log(width / 32)
        turn = {"kink": 1.0, "mild kink": 0.5}.get(self.kind, 0.0)
        wide -= turn * max(np.log(width / 48), 0)
        return float(np.log(3e-3) - 0.7 * wide - 0.2 * np.log(length / 400))

    def best_activation(self, width):
        """Return the best activation at a width."""
        return "gelu" if self.flips and width > 40 else "relu"

    def log_loss(self, run, away):
        """Return the expected log loss of a run whose learning rate lies `away` from the best, in logs."""
        worse = WORSE * (run["activation"] != self.best_activation(run["n_embd"]))
        return float(np.log(run["best_val_loss"]) + VALLEY * away**2 + worse)


@dataclass(frozen=True)
class Planted:
    """What was predicted, the true log of the best learning rate, and the log loss of a run with the values."""

    prediction: Prediction
    best: float
    log_loss: float
    excess: float


def predicted(world, seed, lab):
    """Make a study of the world, and predict the large size."""
    draws = np.random.default_rng(seed)
    search = STUDY["search"] | ({"activation": ["relu", "gelu"]} if world.flips else {})
    spec = read_plain(STUDY | {"search": search})
    folder = StudyFolder(lab, NAME)
    if not folder.canonical_file.exists():
        folder.path.mkdir(parents=True, exist_ok=True)
        write_study(spec, folder, make_plan(spec, lab)[0].data)
    rows = []
    for width in WIDTHS:
        for length in LENGTHS:
            best = world.best(width, length) + world.scatter * draws.standard_normal()
            for trial in range(world.trials):
                away = draws.uniform(-1.6, 1.6)
                if world.kind == "edge":
                    away = draws.uniform(-2.4, -0.4)
                values = _values(
                    width, length, best + away, str(draws.choice(["relu", "gelu"]))
                )
                if not world.flips:
                    values["activation"] = "relu"
                run = planted_run(values, ("n_embd", "max_iters"), trial)
                loss = np.exp(world.log_loss(run, away) + world.noise * draws.standard_normal())
                measured = dict.fromkeys(
                    ("best_val_loss", "final_val_loss", "value"), float(loss)
                )
                rows.append(
                    run
                    | measured
                    | {"study": NAME, "seed": 0, "run_id": f"{width}/{length}/{trial}"}
                )
    frame = pd.DataFrame(rows)
    frame["betas"] = frame["betas"].map(str)
    studies = Studies(typed_runs(frame), {NAME: spec}, {NAME: folder.read(folder.data_file)})
    ranked = rankings(studies.runs, studies.designs)
    studies = replace(studies, runs=with_expected(studies.runs, ranked), ranked=ranked)
    counting = studies.settled()
    points = studies.points(counting)
    sizes = [f"--at {name}={value}" for name, value in LARGE.items()]
    found = predict_size(folder, studies, points, sizes, counting)
    true = world.best(*LARGE.values()) + world.scatter * draws.standard_normal()
    chosen = found.spec.fixed | {name: value.value for name, value in found.values.items()}
    away = float(np.log(chosen["learning_rate"])) - true
    values = _values(*LARGE.values(), true + away, chosen.get("activation", "relu"))
    run = planted_run(values, ("n_embd", "max_iters"), 0)
    expected = world.log_loss(run, away)
    noisy = expected + world.noise * draws.standard_normal()
    return Planted(found, true, noisy, expected - float(np.log(run["best_val_loss"])))


def _values(width, length, log_rate, activation):
    own = {"n_embd": width, "max_iters": length, "learning_rate": float(np.exp(log_rate))}
    return STUDY["fixed"] | own | {"activation": activation}
