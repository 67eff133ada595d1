"""Print how far the law of the first study may be believed: `python tests/benchmarks/first_study.py [REPEATS]`.

Each repeat runs studies/small.yaml with seeds of its own, and then what README shows: `laws fit`, `laws predict` of a
size twice as large with its forecast sealed, a run of that size, and `laws verify`. Labs are kept in --lab, where a
benchmark that was stopped goes on. Seconds are those of the first study's command; CPU seconds are of its processes.

--times N trains N times as many seeds in every cell: what a longer study comes to. --anew forecasts again, from labs
that are kept, what was sealed and run before: with later code, and without training.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

from benchmarks.setting import print_table, setting

STUDY = Path(__file__).parents[2] / "studies" / "small.yaml"
HEADINGS = [
    "seed",
    "seconds",
    "CPU",
    "exponent",
    "verdict",
    "form",
    "forecast",
    "width",
    "loss",
    "held",
    "rate inside",
]


def sweeplab(*arguments: str | Path, lab: Path) -> dict[str, Any]:
    """Return what a command answers as JSON."""
    command = [sys.executable, "-P", "-m", "sweeplab", *map(str, arguments), "--lab", str(lab), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return dict(json.loads(done.stdout))


def trained(file: Path, lab: Path, *options: str) -> None:
    """Run a study to its end."""
    command = [sys.executable, "-P", "-m", "sweeplab", "study", "run", str(file), "--lab", str(lab), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def first_command(seed: int, folder: Path, times: int = 1) -> dict[str, float]:
    """Run the first study with its seeds moved; return the seconds it takes."""
    lab, cost = folder / f"lab{seed}", folder / f"cost{seed}.json"
    if not cost.exists():
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        trained(STUDY, lab, *seeds(seed, times))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        cost.write_text(json.dumps({"seconds": time.monotonic() - began, "cpu": cpu}))
    return dict(json.loads(cost.read_text()))


def repeat(seed: int, at: str, folder: Path, anew: bool = False) -> dict[str, Any]:
    """Return what one repeat comes to."""
    lab = folder / f"lab{seed}"
    law = sweeplab("laws", "fit", "small", lab=lab)
    larger = folder / f"larger{seed}.yaml"
    if not larger.exists():
        sweeplab("laws", "predict", "small", "--at", at, "--write", larger, "--seal", lab=lab)
        trained(larger, lab)
    (scored,) = sweeplab("laws", "verify", lab=lab)["forecasts"]
    names = [name for name in law["parameters"] if name.startswith(("alpha", "exponent"))]
    predicted, is_held = scored["forecast"]["predicted"], scored["held"]
    if anew:
        predicted = sweeplab("laws", "predict", "small", "--at", at, lab=lab)["sizes"][0]["loss"]
        is_held = predicted["low"] <= scored["loss"] <= predicted["high"]
    tuned = law["hyperparameters"]
    rates = [cell["best"]["learning_rate"]["value"] for cell in tuned["cells"]]
    low, high = written("search")["learning_rate"]["min"], written("search")["learning_rate"]["max"]
    return {
        **first_command(seed, folder),
        **{"seed": seed, "exponent": law["parameters"][names[0]], "form": law["misfit"]["status"]},
        **{"low": predicted["low"], "high": predicted["high"]},
        **{"outcome": scored["loss"], "held": is_held},
        "inside": all(1.05 * low < rate < high / 1.05 for rate in rates),
    }


def written(section: str) -> Any:
    """Return a section of the first study's file."""
    from sweeplab.study.file.reading import read_study

    return read_study(STUDY).as_written()[section]


def seeds(seed: int, times: int) -> tuple[str, ...]:
    """Return the options that shift the study's seeds, and train more of them."""
    shifted = [
        {**entry, "seed": entry["seed"] + shift} if isinstance(entry, dict) else entry + shift
        for shift in range(10 * seed, 10 * seed + 1000 * times, 1000)
        for entry in written("seeds")
    ]
    return ("-o", f"seeds={json.dumps(shifted)}")


def main(repeats: int, first: int, at: str, folder: Path, times: int, anew: bool) -> None:
    """Print a row for each repeat, and how many of them hold what the first study is to show."""
    print(setting())
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(first, first + repeats):
        first_command(seed, folder, times)
    found = [repeat(seed, at, folder, anew) for seed in range(first, first + repeats)]
    rows, halves, held = (
        [],
        [],
        dict.fromkeys(
            ("exponent within 0.12", "no misfit", "forecast held", "width within 2%", "rates inside"), 0
        ),
    )
    for one in found:
        number = one["exponent"]
        half = math.inf if number["low"] is None else (number["high"] - number["low"]) / 2
        width = math.log(one["high"] / one["low"]) / 2
        halves.append((half, width, one["seconds"] / 60))
        marks = (half <= 0.12, one["form"] != "flagged", one["held"], width <= 0.02, one["inside"])
        held = {name: count + bool(mark) for (name, count), mark in zip(held.items(), marks, strict=True)}
        rows.append(
            [
                *(str(one["seed"]), f"{one['seconds']:.0f}", f"{one['cpu']:.0f}"),
                f"{number['low']:.3f} to {number['high']:.3f}",
                *(number["verdict"], one["form"], f"{one['low']:.4f} to {one['high']:.4f}", f"{width:.2%}"),
                *(f"{one['outcome']:.4f}", str(one["held"]), str(one["inside"])),
            ]
        )
    print_table(HEADINGS, rows)
    print("; ".join(f"{name}: {count} of {repeats}" for name, count in held.items()))
    exponent, loss, minutes = map(median, zip(*halves, strict=True))
    print(f"medians of half widths: exponent {exponent:.3f}, loss {loss:.2%}; of minutes: {minutes:.1f}")


if __name__ == "__main__":
    os.environ["SWEEPLAB_LAB"] = ""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repeats", type=int, nargs="?", default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--at", default="n_layer=2,n_embd=96", help="the size twice as large")
    parser.add_argument("--lab", type=Path, default=Path("first-study-labs"))
    parser.add_argument("--times", type=int, default=1, help="as many times the seeds")
    parser.add_argument("--anew", action="store_true", help="forecast again what was run before")
    asked = parser.parse_args()
    main(asked.repeats, asked.first, asked.at, asked.lab.absolute(), asked.times, asked.anew)
