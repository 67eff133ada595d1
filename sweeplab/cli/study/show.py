"""`sweeplab study list`, `show`, `best`, `publish`, `diff` and `export`: the lab's studies and their results."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeplab.cli.options import (
    AsJson,
    Force,
    Lab,
    MaybeStudyName,
    OneCell,
    ShownCell,
    StudyName,
    argument,
    flag,
    named_study,
    option,
    studies,
)
from sweeplab.cli.printing import Answer, cell_text, console, print_answer, print_rows, say
from sweeplab.cli.study.manage import write_study
from sweeplab.formatting import bytes_in_words, duration, several, written, yaml_text
from sweeplab.lab import showing
from sweeplab.lab.findings import Finding, find_limits
from sweeplab.lab.listing import (
    find_best,
    find_metric,
    find_study,
    read_trials,
    study_names,
    tracking_uri_of,
)
from sweeplab.lab.orders import Order
from sweeplab.laws.evidence import Evidence
from sweeplab.records.folders import StudyFolder, WorkerPlace, lab_folder
from sweeplab.records.runs import MEASURED_ON
from sweeplab.study.problems import reaches_in_words, shown

if TYPE_CHECKING:
    from sweeplab.analysis.confirmation import CellConfirmed, Interval

All = Annotated[bool, flag("Show everything, also hyperparameters at their defaults.", "--all")]
PLOT_WIDTH, PLOT_HEIGHT = 60, 10
PLOT_MARGIN = 12  # for the losses beside it
# Where a trial's hyperparameters come from, in the order of the table: chosen by a person or the sampler first.
ORIGINS = ("enqueued", "searched", "derived", "cells", "grid", "fixed", "default")
# A braille character is two dots wide and four high; these are the bits of its dots, by column and row.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800
# What `diff` prints where two studies do not differ.
SAME = {
    "file": "the same study file",
    "data": "the same data",
    "code": "the same code",
    "results": "no results yet",
}
Curve = Sequence[tuple[float, float]]


def list_studies(lab: Lab = None) -> Answer:
    """List the studies of the lab.

    \b
    $ sweeplab study list
    $ sweeplab study list --json
    """
    place = lab_folder(lab)
    rows = [showing.study_row(StudyFolder(place, name)) for name in study_names(place)]
    return rows, _print_studies if rows else f"no studies in {place}"


def _print_studies(studies: list[dict[str, Any]]) -> None:
    rows = [
        {
            "name": row["name"],
            "state": row["state"],
            "trials": f"{row['done']}/{row['planned']}" if row["planned"] else str(row["done"]),
            "failed": row["states"].get("failed"),
            "best value": row["best_value"],
            "last trial": (row["last"] or "")[:16] or None,
            "size": bytes_in_words(row["size_bytes"]),
        }
        for row in studies
    ]
    print_rows(rows, text=("name", "state", "last trial"))


def show(
    name: MaybeStudyName = None,
    trial: Annotated[int | None, option("N", "Show this trial.")] = None,
    cell: ShownCell = None,
    everything: All = False,
    lab: Lab = None,
) -> Answer:
    """Show how far a study is, or one trial in full.

    For a study: one row per cell, and its best run. For a trial: its searched values, its curve, why it
    ended, its checkpoints, where its time went, and its hyperparameters, each with its origin.

    \b
    $ sweeplab study show small
    $ sweeplab study show small --trial 3 --cell n_layer=1,n_embd=32
    """
    folder = named_study(name, lab)
    if trial is not None:
        return showing.show_trial(folder, trial, cell), lambda found: _print_trial(found, everything)
    return showing.show_study(folder, cell), lambda found: _print_shown(folder, found)


def _print_shown(folder: StudyFolder, found: dict[str, Any]) -> None:
    waits = f": {folder.command('study resume')} runs trials that wait" if found["state"] == "waiting" else ""
    say(f"{folder.name}: {found['state']}{waits}")
    print_study(found)


def print_study(found: dict[str, Any]) -> None:
    """Print what `show_study` returned: one row per cell, the best run, and the failures."""
    rows = [
        {
            **{name: value for name, value in cell.items() if name not in ("baseline", "n_trials")},
            "n_params": f"{cell['n_params']:,}" if cell["n_params"] else None,
            "trials": f"{cell['trials']}/{cell['n_trials']}" if cell["n_trials"] else cell["trials"],
        }
        for cell in found["cells"]
    ]
    if rows:
        print_rows(rows, text=("cell",))
    for order in found["orders"]:
        say(Order(**order).in_words())
    for source, count in sum(map(Counter, found["warm_start"].values()), Counter[str]()).items():
        say(
            f"warm start: {several(count, 'trial')} of {source}, which the sampler knows and the budget does not count"
        )
    for words in showing.baselines_in_words(found["baselines"]):
        say(words)
    for words in filter(None, (reaches_in_words(found["reaches"]), found["mirror"])):
        say(words)
    if words := showing.places_in_words([WorkerPlace(**each) for each in found["workers"]]):
        say(words)
    for finding in found["findings"]:
        say(f"to change: {Finding(**finding).in_words()}", "yellow")
    if best := found["best"]:
        searched = ", ".join(f"{name}={cell_text(value)}" for name, value in best["sampled"].items())
        say(f"best: {measured_value(found['metric'], best['value'])}, by {best['key']}  {searched}")
        say(Evidence(**best["evidence"]).in_words())
    if found["disagreement"]:
        say(f"disagree: {found['disagreement']}", "yellow")
    for failure in found["failures"]:
        say(f"failed: {failure['key']}: {failure['error']}", "red")


def measured_value(metric: str, value: float) -> str:
    """Write a trial's value with its metric, and for a loss what it was measured on."""
    where = f" {MEASURED_ON[metric]}" if metric in MEASURED_ON else ""
    return f"{metric} {value:.4f}{where}"


def print_confirmed(name: str, found: Sequence[CellConfirmed], unit: str) -> None:
    """Print the winner of each cell with its test loss, the loss found by the search, and how the cells differ."""
    rows = [
        {
            "cell": each.cell,
            "trial": each.trial,
            "candidates": each.n_raced,
            "search, validation": each.searched,
            "fresh seeds, validation": each.validation if each.test else None,
            "fresh seeds, test": interval_text(each.test),
            "test minus search": None if each.optimism is None else f"{each.optimism:+.4f}",
            "from the best": interval_text(each.apart, "+"),
            "verdict": each.evidence.verdict if each.evidence else None,
        }
        for each in found
    ]
    print_rows(rows, text=("cell", "verdict"))
    say(
        f"losses in {unit}: validation {MEASURED_ON['whole_val_loss']}, test {MEASURED_ON['test_loss']}; 90% intervals"
    )
    say(
        f"`study best` and `show` give the search's loss {MEASURED_ON['val_loss']}, by which trials were chosen"
    )
    if reference := next((each.cell for each in found if each.test and not each.apart), None):
        say(f"differences are from {reference}, the best cell of the search")
    for each in found:
        if each.test is None:
            say(f"{each.cell}: trial {each.trial} diverged on a fresh seed: it has no test loss", "yellow")
    if stands := next((each.evidence for each in found if each.evidence), None):
        say(f"{name}: {stands.basis}")


def interval_text(interval: Interval | None, sign: str = "") -> str | None:
    """Write a mean with its interval."""
    if interval is None:
        return None
    ends = "" if math.isnan(interval.low) else f" ({interval.low:{sign}.4f} to {interval.high:{sign}.4f})"
    return f"{interval.value:{sign}.4f}{ends}"


def _print_trial(found: dict[str, Any], everything: bool) -> None:
    value = "" if found["value"] is None else f", {measured_value(found['metric'], found['value'])}"
    again = "" if found["retries"] is None else f"; retries trial {found['retries']}"
    say(f"{found['study']}: trial {found['trial']} in cell {found['cell']}: {found['state']}{value}{again}")
    rows = sorted(found["hyperparameters"], key=lambda row: ORIGINS.index(row["from"].partition(",")[0]))
    if chosen := {row["name"]: row["value"] for row in rows if row["from"] in ("enqueued", "searched")}:
        say(_in_short(chosen))
    sizes = found["facts"]
    say(f"{several(sizes['n_params'], 'parameter')}, {several(sizes['train_tokens'], 'training token')}")
    curves = [
        [(p["iteration"], p["val_loss"]) for p in run["curve"] if p["val_loss"] is not None]
        for run in found["runs"]
    ]
    if lines := plot(curves, min(PLOT_WIDTH, console().width - PLOT_MARGIN), PLOT_HEIGHT):
        say("\nval_loss over iterations")
        say("\n".join(lines))
    for run in found["runs"]:
        reason = f": {run['stop_reason']}" if run["stop_reason"] else f" at iteration {run['iteration']}"
        times = [
            f"{name} {duration(seconds) if seconds >= 10 else f'{seconds:.2f}s'}"
            for name, seconds in run["seconds"].items()
            if seconds is not None
        ]
        say(f"\nseed {run['seed']}: {run['state']}{reason}")
        if (loss := run["whole_val_loss"]) is not None:
            say(f"  val_loss {loss:.4f} {MEASURED_ON['whole_val_loss']}")
        say(f"  time: {', '.join(times)}")
        say(f"  checkpoint: {run['checkpoint'] or 'none'}")
        if run["series"]:
            place = f"{found['study']}/{found['cell']}/{found['trial']}-{run['seed']}@ITERATION"
            say(f"  series of checkpoints, {place}: {', '.join(map(str, run['series']))}")
        say(f"  folder: {run['folder']}")
    if found["error"]:
        say(f"\n{found['error'].rstrip()}")
    own = [row for row in rows if everything or not row["from"].startswith("default")]
    say()
    print_rows([row | {"value": _one_value(row["value"])} for row in own], text=("name", "value", "from"))
    if len(own) < len(rows):
        say(f"{len(rows) - len(own)} more at their defaults: --all")


def _one_value(value: Any) -> str:
    return yaml_text(value) if isinstance(value, bool | None) else cell_text(value)


def _in_short(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {written(value)}" for name, value in values.items())


def best(
    name: MaybeStudyName = None,
    cell: OneCell = None,
    trial: Annotated[int | None, option("N", "Show this trial instead.")] = None,
    as_yaml: Annotated[bool, flag("Print the study file that trains it again.", "--yaml")] = False,
    output: Annotated[Path | None, option("FILE", "Write the study file that trains it again.")] = None,
    force: Force = False,
    everything: All = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Show the best configuration of a study.

    It prints the value, the searched hyperparameters, the checkpoint, commands that use it, and what limited it:
    the end of a range, a budget too short, n-grams that are better, a patience without effect. With --yaml or
    --output it writes a study file of this one trial, in which everything a run depends on is fixed: on a CPU
    it reproduces the loss bit for bit.

    \b
    $ sweeplab study best small
    $ sweeplab study best small --cell n_layer=1,n_embd=32 --output best.yaml
    """
    from sweeplab.lab.reuse import rerun_text

    folder = named_study(name, lab)
    trials = read_trials(folder)
    found = find_best(folder, cell, trial, trials)
    if output:
        write_study(output, rerun_text(found), force, "run")
    elif as_yaml:
        typer.echo(rerun_text(found), nl=False)
    else:
        evidence = showing.evidence_of_best(found, cell, trials) if trial is None else None
        checkpoint = found.runs[0].checkpoint()
        whole = [end.whole_val_loss for end in found.ends if end.whole_val_loss is not None]
        plain = {
            **found.as_dict(),
            "evidence": asdict(evidence) if evidence else None,
            "metric": find_metric(found.study),
            "whole_val_loss": fmean(whole) if whole else None,
            "findings": find_limits(folder, trials, found.cell) if trial is None else [],
            "checkpoint": str(checkpoint) if checkpoint else None,
            "commands": showing.how_to_use(found, cell, trial),
        }
        print_answer((plain, lambda _: _print_best(plain, evidence, everything)), as_json)


def _print_best(best: Mapping[str, Any], evidence: Evidence | None, everything: bool) -> None:
    value = "no value" if best["value"] is None else measured_value(best["metric"], best["value"])
    seeds = f"seed{'s' if len(best['seeds']) > 1 else ''} {', '.join(map(str, best['seeds']))}"
    how = evidence.selection.partition(" of the ")[0] if evidence else best["outcome"]
    checkpoint, commands = best["checkpoint"], best["commands"]
    say(f"{value}  trial {best['trial']} in {best['cell']}, {seeds}: {how}")
    if (whole := best["whole_val_loss"]) is not None:
        say(f"  val_loss    {whole:.4f} {MEASURED_ON['whole_val_loss']}")
    say(f"  searched    {_in_short(best['sampled']) or 'nothing'}")
    say(f"  checkpoint  {_near(checkpoint) if checkpoint else 'none: track: {checkpoints: best} keeps one'}")
    use = "classify" if " classify " in commands["generate"] else "generate"
    say(f"  {use:<12}{commands['generate'] if checkpoint else '–'}   open  {commands['open']}")
    say(f"  rerun       {commands['rerun']}")
    for finding in best["findings"]:
        say(f"  to change   {finding.in_words()}", "yellow")
    if not everything:
        return
    if evidence:
        say(evidence.in_words())
    for name, each in best["values"].items():
        say(f"  {name}: {shown(each)}", None if name in best["sampled"] else "dim")


def _near(path: str) -> Path:
    """Return a path as a user would type it in the working folder."""
    here = Path.cwd()
    return Path(path).relative_to(here) if Path(path).is_relative_to(here) else Path(path)


def diff(
    a: Annotated[str, argument("A", "Name of a study.", autocompletion=studies)],
    b: Annotated[str, argument("B", "Name of another study.", autocompletion=studies)],
    lab: Lab = None,
) -> Answer:
    """Show how two studies differ, from their files to their results.

    It compares the meaning of the files, not their layout; then the data's digests, the code's versions,
    and the best value of every cell.

    \b
    $ sweeplab study diff small longer
    """
    return showing.differ(find_study(lab, a), find_study(lab, b)), _print_differences


def _print_differences(found: dict[str, Any]) -> None:
    def text(value: Any) -> str:
        return cell_text(None) if value is None else value if isinstance(value, str) else shown(value)

    def row(kind: str, each: dict[str, Any]) -> dict[str, Any]:
        place, one, other = each["place"], each["a"], each["b"]
        if kind != "results":
            return {"place": place, found["a"]: text(one), found["b"]: text(other)}
        change = f"{each['change']:+.4f}" if each["change"] is not None else None
        return {"cell": place, found["a"]: one, found["b"]: other, "change": change}

    for index, (kind, same) in enumerate(SAME.items()):
        if index:
            say()
        if not (rows := found[kind]):
            say(f"{kind}: {same}")
            continue
        say(kind, "bold")
        if kind == "results" and found["measure"] != "value":
            say("in bits per byte, because the tokens differ")
        print_rows([row(kind, each) for each in rows], text=("place", found["a"], found["b"]))


def publish(
    name: StudyName,
    cell: OneCell = None,
    as_name: Annotated[
        str | None, option("MODEL", "Name in the registry.  [default: the study's]", "--as")
    ] = None,
    lab: Lab = None,
) -> Answer:
    """Register the best trial's model in MLflow.

    MLflow's model registry gets a version with the alias `best`. It takes texts, and returns their continuations,
    labels or scores. The same model is registered only once.

    \b
    $ sweeplab study publish small
    $ sweeplab study publish small --cell n_layer=1,n_embd=32 --as tiny
    """
    from sweeplab.lab.describing import publish as register

    found = register(find_study(lab, name), cell, as_name)
    begun = "registered" if found.is_new else "is registered already"
    return asdict(found), lambda _: say(
        f"{found.name} version {found.version} {begun}, alias best, in {found.place}\n"
        f'mlflow.set_tracking_uri("{found.place}")\n'
        f'mlflow.pyfunc.load_model("{found.uri}").predict({found.example})'
    )


def export(
    name: StudyName,
    output: Annotated[
        Path | None, option("FILE", "The .csv or .parquet file to write, instead of standard output.")
    ] = None,
    lab: Lab = None,
) -> Answer:
    """Write a table of a study's runs.

    One row per run: cell, trial, seed, state, metrics, hyperparameters. Without --output it prints CSV.

    \b
    $ sweeplab study export small > small.csv
    $ sweeplab study export small --output small.parquet
    """
    from sweeplab.analysis.table import export as write
    from sweeplab.analysis.table import runs_table

    folder = find_study(lab, name)
    frame = runs_table(folder.lab, folder.name, tracking_uri_of(folder))
    if output is None:
        rows = json.loads(frame.to_json(orient="records"))  # missing values as null
        return rows, lambda _: print(frame.to_csv(index=False), end="")
    write(frame, output)
    return {"output": str(output), "rows": len(frame)}, f"{several(len(frame), 'run')} written to {output}"


def plot(curves: Sequence[Curve], width: int, height: int) -> list[str]:
    """Draw curves in braille: return lines, `width` characters wide without the labels, or none without points."""
    curves = [[point for point in curve if all(map(math.isfinite, point))] for curve in curves]
    points = [point for curve in curves for point in curve]
    if not points:
        return []
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*points, strict=True))
    if left == right:  # iterations start at 0: a single one is drawn where it lies after them
        left, right = min(left, 0), max(right, 1)
    if low == high:
        low, high = low - (room := abs(low) / 20 or 0.5), high + room
    n_columns, n_rows = 2 * width - 1, 4 * height - 1
    cells = [[0] * width for _ in range(height)]
    for curve in curves:
        dots = [
            (round((x - left) / (right - left) * n_columns), round((high - y) / (high - low) * n_rows))
            for x, y in curve
        ]
        for (x, y), (end_x, end_y) in zip(dots, dots[1:] or dots, strict=False):
            steps = max(abs(end_x - x), abs(end_y - y), 1)
            for step in range(steps + 1):  # a straight line
                column, row = round(x + (end_x - x) * step / steps), round(y + (end_y - y) * step / steps)
                cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    labels = [cell_text(high), *[""] * (height - 2), cell_text(low)]
    margin = max(map(len, labels))
    lines = [
        f"{label:>{margin}} ┤{''.join(chr(_BRAILLE + bits) for bits in row)}"
        for label, row in zip(labels, cells, strict=True)
    ]
    below = f"{cell_text(left)}{cell_text(right):>{max(1, width - len(cell_text(left)))}}"
    return [*lines, f"{'':{margin}} └{'─' * width}", f"{'':{margin}}  {below}"]
