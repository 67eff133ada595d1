"""Train what `study transfer` predicts at held-out sizes of several studies, and score the sealed predictions.

Run: python tests/benchmarks/transfers.py FOLDER [--write]. Each study has a layer of n_embd 8 to 32 by max_iters 100,
250 and 640, with eight random learning rates in each cell. n_embd 56, 64 and 72 are held out at each length, predicted
and sealed, and trained at the predicted rate, at that of the largest tuned cell, and at a quarter to four times the
predicted one. A second call continues from FOLDER; `--write` writes data/transfers.csv, whose table is printed without
FOLDER. A ladder's best rate is that of a parabola in its log through the lowest loss and its neighbors.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])  # not this folder

import numpy as np
from benchmarks.sealed import sweeplab
from benchmarks.setting import print_table, setting

STUDY = """\
name: {name}
data: {{corpus: {corpus}, tokenizer: char}}
fixed: {{{fixed}, n_head: 1, qk_norm: true, block_size: 32, batch_size: 16, dropout: 0.0, warmup_iters: 20%,
  scheduler_type: linear, eval_interval: 100%, eval_tokens: 32768, device: cpu, dtype: float32}}
grid: {{max_iters: [100, 250, 640], n_embd: [8, 12, 16, 24, 32, {held_out}]}}
search: {{learning_rate: {{{rates}, log: true}}}}
budget: {{trials_per_cell: 8}}
sampler: random
pruner: none
seeds: [{seed}]
engine: {{workers: 1, threads: 1}}
track: {{checkpoints: none}}
"""
_ADAMW, _MUON = "min: 1e-3, max: 0.1", "min: 5e-3, max: 0.3"
STUDIES = {
    "adamw": ("python-docs", "n_layer: 1", _ADAMW, 0),
    "muon": ("python-docs", "n_layer: 1, optimizer: muon", _MUON, 1),
    "adamw-again": ("python-docs", "n_layer: 1", _ADAMW, 2),
    "muon-again": ("python-docs", "n_layer: 1, optimizer: muon", _MUON, 3),
}
HELD_OUT = (56, 64, 72)
TABLE = Path(__file__).parent / "data" / "transfers.csv"


def rows_at(name: str, folder: Path, width: int) -> list[dict[str, Any]]:
    """Run a study, which is tuned once for all widths, and return a row for each length of a held-out width."""
    corpus, fixed, rates, seed = STUDIES[name]
    file = folder / f"{name}-{width}.yaml"
    file.write_text(
        STUDY.format(name=name, corpus=corpus, fixed=fixed, rates=rates, seed=seed, held_out=width)
    )
    answer = json.loads(sweeplab("study", "transfer", file, "--json", "--quiet", "--lab", folder / name))
    rows = []
    for size in answer["sizes"]:
        rate, loss = size["prediction"]["values"]["learning_rate"], size["prediction"]["loss"]
        losses = {rung["learning_rate"]: rung["loss"] for rung in size["losses"]}
        rows.append(
            {
                "study": name,
                "seed": seed,
                "n_embd": width,
                **size["prediction"]["at"],
                "sealed": size["sealed"] or "",
            }
            | {"rate": size["predicted"], "rate_low": rate["low"], "rate_high": rate["high"]}
            | {"verdict": rate["verdict"], "best_rate": parabola(losses), "copied": size["copied"]}
            | {f"loss_{key}": loss[key] for key in ("value", "low", "high")}
            | {
                "loss": losses[size["predicted"]],
                "cost": size["cost"],
                "cost_of_copying": size["cost_of_copying"],
            }
            | {"ladder": " ".join(f"{key:.4g}:{value}" for key, value in losses.items())}
        )
    return rows


def parabola(losses: dict[float, float | None]) -> float | None:
    """Return the learning rate of the lowest point of a parabola; None at the end of a ladder."""
    rates = [rate for rate in sorted(losses) if losses[rate] is not None]
    at = min(range(len(rates)), key=lambda k: losses[rates[k]])
    if not 0 < at < len(rates) - 1:
        return None
    x, y = np.log(rates[at - 1 : at + 2]), [losses[rate] for rate in rates[at - 1 : at + 2]]
    square, slope, _ = np.polyfit(x, y, 2)
    return float(np.exp(-slope / (2 * square)))


def table(rows: list[dict[str, Any]]) -> None:
    """Print a row for each study, and one for all."""
    kinds = dict.fromkeys(row["study"] for row in rows)
    shown = []
    for name in (*kinds, "all"):
        some = [row for row in rows if name in (row["study"], "all")]
        costs, copies = (
            [float(row[key]) for row in some if row[key] not in ("", None)]
            for key in ("cost", "cost_of_copying")
        )
        loss = [
            float(row["loss_low"]) <= float(row["loss"]) <= float(row["loss_high"])
            for row in some
            if row["loss_low"]
        ]
        rate = [
            float(row["rate_low"]) <= float(row["best_rate"]) <= float(row["rate_high"])
            for row in some
            if row["rate_low"] and row["best_rate"]
        ]
        held = [f"{sum(each)} of {len(each)}" for each in (loss, rate)]
        shares = [f"{share:.2%}" for share in (np.mean(costs), max(costs), np.mean(copies))]
        shown.append([name, str(len(some)), *held, *shares])
    print_table(
        ["study", "sizes", "loss held", "best rate held", "mean regret", "largest", "mean of copying"], shown
    )


def main(folder: Path | None, write: bool) -> None:
    """Run all studies in FOLDER, or read the table of the last time, and print it."""
    print(setting(), end="\n\n")
    if folder is None:
        with TABLE.open() as lines:
            return table([*csv.DictReader(lines)])
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    with ThreadPoolExecutor() as pool:  # a thread a study: its widths are tuned once
        for some in pool.map(
            lambda name: [row for width in HELD_OUT for row in rows_at(name, folder, width)], STUDIES
        ):
            rows += some
    if write:
        with TABLE.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, [*rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return table(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    main(chosen.folder, chosen.write)
