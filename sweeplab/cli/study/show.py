"""`sweeplab list`, `show`, `best`, `diff`, `note`, `publish` and `export`: studies and their results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeplab.cli import options
from sweeplab.cli.options import argument, flag, option
from sweeplab.cli.printing import (
    Answer,
    answer_of,
    cell_text,
    print_answer,
    print_rows,
    say,
    say_prose,
)
from sweeplab.cli.study.manage import write_study
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import duration, out_of, several, written, yaml_text
from sweeplab.lab import showing
from sweeplab.lab.findings import Finding, find_limits
from sweeplab.lab.listing import StudyTrials, find_metric, find_study, study_names
from sweeplab.records.folders import StudyFolder, lab_folder
from sweeplab.records.runs import MEASURED_ON
from sweeplab.study.problems import shown

if TYPE_CHECKING:
    from sweeplab.analysis.differences import CellConfirmed, SeedMean

# Where a trial's hyperparameters come from, in the order of the table: chosen by a person or the sampler first.
ORIGINS = ("enqueued", "searched", "derived", "grid", "fixed", "default")
LOSSES_SHOWN = 8
NO_CHECKPOINT = "none: track: {checkpoints: best} keeps one"


def list_studies(lab: options.Lab = None) -> Answer:
    """List the studies of the lab.

    Each with its state, its best value and what to do next; `show` says more of one.

    \b
    $ sweeplab list
    $ sweeplab list --json
    """
    from sweeplab.report.headline import list_rows

    place = lab_folder(lab)
    folders = [StudyFolder(place, name) for name in study_names(place)]
    studies = list_rows(folders)
    if not studies:
        return studies, f"no studies in {place}"
    return studies, _print_list


def _print_list(studies: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        {
            **study,
            "trials": out_of(study["done"], study["planned"]),
            "enqueued": study["states"].get("enqueued"),
            "failed": study["states"].get("failed"),
            "best": study["best_value"],
            "age": study["age"] and duration(study["age"]),
        }
        for study in studies
    ]
    keys = ("name", "state", "trials", "enqueued", "failed", "goal", "best", "age", "next")
    print_rows(rows, text=("name", "state", "goal", "next"), keys=keys)


def show(
    name: options.MaybeStudyName = None,
    trial: Annotated[int | None, option("N", "Show this trial.")] = None,
    cell: options.ShownCell = None,
    trials: Annotated[
        bool, flag("List trials instead of cells, the best first.", "--trials")
    ] = False,
    sort: Annotated[
        str | None, option("NAME", "With --trials: by this column, the lowest first.")
    ] = None,
    top: Annotated[int, option("N", "With --trials: at most so many.", min=1)] = 10,
    lab: options.Lab = None,
) -> Answer:
    """Show how far a study is, its best trials, or one trial.

    For a study: one row per cell. For a trial: its searched values, its curve, why it ended, its checkpoints, and
    its hyperparameters, each with its origin.

    \b
    $ sweeplab show small
    $ sweeplab show small --trials --sort learning_rate --top 5
    $ sweeplab show small --trial 3 --cell n_layer=1,n_embd=32
    """
    folder = options.named_study(name, lab)
    if trial is not None:
        return showing.show_trial(folder, trial, cell), _print_trial
    if trials or sort:
        rows = showing.trial_rows(StudyTrials(folder), cell, sort)[:top]
        return rows, lambda rows: print_rows(rows, text=("cell", "state"))
    from sweeplab.report.headline import read_headline

    study = showing.show_study(folder, cell)
    first = read_headline(folder)

    def print_shown(study: dict[str, Any]) -> None:
        say(str(first))
        if places := showing.places_in_words(study["workers"]):
            say(places)
        say()
        print_study(study)

    return study | {"headline": first.as_dict()}, print_shown


def print_study(study: dict[str, Any]) -> None:
    """Print what `show_study` returned: one row per cell, what limited the best trials, and the failures."""
    rows = []
    for cell in study["cells"]:
        row = {name: value for name, value in cell.items() if name != "n_trials"}
        row["n_params"] = cell["n_params"] and f"{cell['n_params']:,}"
        row["trials"] = out_of(cell["trials"], cell["n_trials"])
        rows.append(row)
    print_rows(rows, text=("cell",))
    for place, text in study["notes"].items():
        say_prose(f"note{f' of {place}' if place else ''}: {text}")
    if study["removed"]:
        removed = ", ".join(study["removed"])
        say(
            f"removed from this version: {removed}; these runs are shown from their records",
            "yellow",
        )
    for finding in study["findings"]:
        say_prose(f"to change: {finding.in_words()}", "yellow")
    print_failures(study)


def print_failures(study: dict[str, Any]) -> None:
    """Print the error of each failed run."""
    for failure in study["failures"]:
        say(f"failed: {failure['key']}: {failure['error']}", "red")


def _measured_value(metric: str, value: float) -> str:
    return f"{metric} {value:.4f} {MEASURED_ON.get(metric, '')}".rstrip()


def print_confirmed(name: str, cells: Sequence[CellConfirmed], unit: str) -> None:
    """Print the winner of each cell with its test loss, the loss found by the search, and how the cells differ."""
    rows = []
    for cell in cells:
        row = {"cell": cell.cell, "trial": cell.trial, "search": cell.searched}
        if cell.test:
            row |= {
                "fresh seeds": cell.validation,
                "test": _interval_text(cell.test),
                "from the best": _interval_text(cell.apart, "+"),
                "verdict": cell.evidence and cell.evidence.verdict,
            }
        else:
            row["verdict"] = "diverged on a fresh seed"
        rows.append(row)
    print_rows(rows, text=("cell", "verdict"))
    say(
        f"losses in {unit} {MEASURED_ON['whole_val_loss']}, those of the test {MEASURED_ON['test_loss']}; "
        "90% intervals"
    )
    tested = [cell.evidence.basis for cell in cells if cell.evidence]
    if tested:
        say(f"{name}: {tested[0]}")


def _interval_text(interval: SeedMean | None, sign: str = "") -> str | None:
    if interval is None:
        return None
    value = f"{interval.value:{sign}.4f}"
    if math.isnan(interval.low):
        return value
    return f"{value} ({interval.low:{sign}.4f} to {interval.high:{sign}.4f})"


def _print_trial(trial: dict[str, Any]) -> None:
    place = f"{trial['study']}/{trial['cell']}/{trial['trial']}"
    heading = f"{place}: {trial['state']}"
    if trial["value"] is not None:
        heading += f", {_measured_value(trial['metric'], trial['value'])}"
    say(heading)
    for run in trial["runs"]:
        _print_run(run)
    if trial["error"]:
        say(f"\n{trial['error'].rstrip()}")
    rows = sorted(trial["hyperparameters"], key=lambda row: ORIGINS.index(row["from"]))
    shown = [row for row in rows if row["from"] != "default"]
    for row in shown:
        if isinstance(row["value"], bool | None):
            row["value"] = yaml_text(row["value"])
    print_rows(shown, text=("name", "value", "from"))
    if len(shown) < len(rows):
        say(f"{len(rows) - len(shown)} more at their defaults: --json has them")


def _print_run(run: dict[str, Any]) -> None:
    reason = run["stop_reason"] or f"iteration {run['iteration']}"
    say(f"\nseed {run['seed']}: {run['state']}: {reason}")
    curve = [point for point in run["curve"] if point["val_loss"] is not None]
    some = curve[:: math.ceil(len(curve) / LOSSES_SHOWN) or 1]
    losses = [f"{point['val_loss']:.4g} at {point['iteration']}" for point in some]
    if losses:
        say(f"  val_loss over iterations: {', '.join(losses)}")
    if run["whole_val_loss"] is not None:
        say(f"  val_loss {run['whole_val_loss']:.4f} {MEASURED_ON['whole_val_loss']}")
    say(f"  checkpoint: {run['checkpoint'] or 'none'}")
    say(f"  folder: {run['folder']}")


def best(
    name: options.MaybeStudyName = None,
    cell: options.OneCell = None,
    trial: Annotated[int | None, option("N", "Show this trial instead.")] = None,
    as_yaml: Annotated[
        bool, flag("Print the study file that trains it again.", "--yaml")
    ] = False,
    output: Annotated[
        Path | None, option("FILE", "Write the study file that trains it again.")
    ] = None,
    force: options.Force = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the best configuration of a study.

    It is chosen by the value that a surrogate of all trials expects, as the lowest of many values is low by luck; of
    few trials the lowest counts. It prints both values, the searched hyperparameters, the checkpoint, commands that
    use it, which trials cannot be distinguished from it, and what limited it: the end of a range, or n-grams that are
    better. With --yaml or --output it writes a study file of this one trial, in which everything a run depends on is
    fixed: on a CPU it reproduces the loss bit for bit.

    \b
    $ sweeplab best small
    $ sweeplab best small --cell n_layer=1,n_embd=32 --output best.yaml
    """
    from sweeplab.lab.studies import rerun_text

    folder = options.named_study(name, lab)
    trials = StudyTrials(folder)
    cell = trials.cell_named(cell)
    chosen = trials.find(cell, trial)
    if output:
        write_study(output, rerun_text(chosen), force, "run")
        return
    if as_yaml:
        typer.echo(rerun_text(chosen), nl=False)
        return
    choice, findings, sentences = None, list[Finding](), list[str]()
    if trial is None:
        findings = find_limits(trials, chosen.cell)
        choice = trials.choice(cell)
        if choice:
            sentences = choice.in_words(folder.command("confirm"))
    whole = [end.whole_val_loss for end in chosen.ends if end.whole_val_loss is not None]
    checkpoint = chosen.runs[0].checkpoint()
    of_cell = cell if trial is None else chosen.cell
    objective = chosen.start.values.objective
    commands = showing.commands_about(chosen.study, objective, of_cell, trial, chosen.seeds[0])
    plain = {
        **chosen.as_dict(),
        "choice": choice,
        "metric": find_metric(chosen.study),
        "whole_val_loss": fmean(whole) if whole else None,
        "findings": findings,
        "checkpoint": checkpoint and str(checkpoint),
        "commands": commands,
    }
    print_answer((plain, lambda _: _print_best(plain, sentences)), as_json)


def _print_best(best: Mapping[str, Any], choice: Sequence[str]) -> None:
    value = "no value"
    if best["value"] is not None:
        value = _measured_value(best["metric"], best["value"])
    seeds = "seeds" if len(best["seeds"]) > 1 else "seed"
    numbers = ", ".join(map(str, best["seeds"]))
    say(
        f"{value}  trial {best['trial']} in {best['cell']}, {seeds} {numbers}: {best['outcome']}"
    )
    if best["whole_val_loss"] is not None:
        say(f"  val_loss    {best['whole_val_loss']:.4f} {MEASURED_ON['whole_val_loss']}")
    for clause in choice:
        say_prose(f"  choice      {clause}")
    searched = [f"{name} {written(value)}" for name, value in best["sampled"].items()]
    say(f"  searched    {', '.join(searched) or 'nothing'}")
    say(f"  checkpoint  {best['checkpoint'] or NO_CHECKPOINT}")
    if best["checkpoint"]:
        say(f"  use         {best['commands']['generate']}")
    say(f"  open        {best['commands']['open']}")
    say(f"  rerun       {best['commands']['rerun']}")
    for finding in best["findings"]:
        say_prose(f"  to change   {finding.in_words()}", "yellow")


def diff(
    names: Annotated[
        list[str],
        argument(
            "A B",
            "Names of two studies, or NAME/CELL/TRIAL of trials.",
            autocompletion=options.studies,
        ),
    ],
    page: Annotated[
        bool, flag("Write a page with their sweeps side by side, of two or more.", "--page")
    ] = False,
    dashboard: Annotated[
        Path | None, option("FILE", "An edited copy of dashboards/compare.yaml.")
    ] = None,
    lab: options.Lab = None,
) -> Answer:
    """Show how two studies or trials differ.

    Of studies it compares the meaning of the files, not their layout; then the data's digests, the code's versions,
    and the best value of every cell. The page shows whether their best losses differ by more than noise: over the
    cells that they share, and over their seeds.

    \b
    $ sweeplab diff small longer
    $ sweeplab diff small/n_layer=1,n_embd=32/0 small/n_layer=1,n_embd=32/3
    $ sweeplab diff small longer wider --page
    """
    if len(names) < 2 or (len(names) > 2 and not page):
        raise BadInput(
            Problem(f"{several(len(names), 'name')}", "two; with --page two or more")
        )
    if page:
        from sweeplab.api import write_report

        folders = [find_study(lab, name) for name in names]
        written = str(write_report("compare", folders[0].lab, names, None, dashboard))
        return {"report": written}, written
    (a, cell_of_a, trial_a), (b, cell_of_b, trial_b) = (
        options.study_or_trial(name, lab) for name in names
    )
    if trial_a is None and trial_b is None:
        return showing.differ(a, b), _print_differences
    if trial_a is None or trial_b is None:
        raise BadInput(Problem("a study and a trial", "two studies, or two trials"))
    one, other = (
        StudyTrials(a).find(cell_of_a, trial_a),
        StudyTrials(b).find(cell_of_b, trial_b),
    )
    return showing.differ_in_trials(one, other), lambda rows: print_rows(
        rows, text=("name", "a", "b")
    )


def note(
    name: options.StudyName,
    text: Annotated[
        str, argument("TEXT", "The note, in place of an earlier one; an empty text removes it.")
    ],
    trial: Annotated[
        str | None, option("CELL/N", "The trial that it is about, instead of the study.")
    ] = None,
    lab: options.Lab = None,
) -> Answer:
    """Keep a note of a study, or of one of its trials.

    `show` prints it, pages show it, and MLflow has it with the run.

    \b
    $ sweeplab note small "the first study"
    $ sweeplab note small --trial n_layer=1,n_embd=32/3 "look at its curve"
    """
    from sweeplab.lab.studies import keep_note

    if trial is None:
        return answer_of(keep_note(find_study(lab, name), text))
    folder, cell, number = options.study_or_trial(f"{name}/{trial}", lab)
    assert number is not None
    of = StudyTrials(folder).find(cell, number)
    return answer_of(keep_note(folder, text, trial=(of.cell, number)))


def _print_differences(differences: dict[str, Any]) -> None:
    a, b = differences["a"], differences["b"]
    for kind in ("file", "data", "code", "results"):
        if not differences[kind]:
            say(f"{kind}: no differences")
            continue
        say(kind, "bold")
        rows = []
        for change in differences[kind]:
            row = {
                "place": change["place"],
                a: _difference_text(change["a"]),
                b: _difference_text(change["b"]),
            }
            if change.get("change") is not None:
                row["change"] = f"{change['change']:+.4f}"
            rows.append(row)
        print_rows(rows, text=("place", a, b))


def _difference_text(value: Any) -> str:
    if isinstance(value, str | float | None):
        return cell_text(value)
    return shown(value)


def publish(
    name: options.StudyName,
    cell: options.OneCell = None,
    lab: options.Lab = None,
) -> Answer:
    """Register the best trial's model in MLflow.

    MLflow's model registry gets a version with the alias `best`. It takes texts, and returns their continuations,
    labels or scores. The same model is registered only once.

    \b
    $ sweeplab publish small
    $ sweeplab publish small --cell n_layer=1,n_embd=32
    """
    from sweeplab.lab.studies import publish as register

    model = register(find_study(lab, name), cell)
    begun = "registered" if model.is_new else "is registered already"
    return asdict(model), lambda _: say(
        f"{model.name} version {model.version} {begun}, alias best, in {model.place}\n"
        f'mlflow.set_tracking_uri("{model.place}")\n'
        f'mlflow.pyfunc.load_model("{model.uri}").predict({model.example})'
    )


def export(
    name: options.StudyName,
    output: Annotated[
        Path | None,
        option("FILE", "The .csv or .parquet file to write, instead of standard output."),
    ] = None,
    lab: options.Lab = None,
) -> Answer:
    """Write a table of a study's runs.

    One row per run: cell, trial, seed, state, metrics, hyperparameters. Without --output it prints CSV.

    \b
    $ sweeplab export small > small.csv
    $ sweeplab export small --output small.parquet
    """
    from sweeplab.analysis.table import export as write
    from sweeplab.analysis.table import runs_table

    folder = find_study(lab, name)
    frame = runs_table(folder.lab, folder.name)
    if output is None:
        rows = json.loads(frame.to_json(orient="records"))  # missing values as null
        return rows, lambda _: print(frame.to_csv(index=False), end="")
    write(frame, output)
    return {
        "output": str(output),
        "rows": len(frame),
    }, f"{several(len(frame), 'run')} written to {output}"
