"""`sweeplab study`: write, preview, run, list, show and export studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.app import command_group
from sweeplab.cli.follow import logs, watch
from sweeplab.cli.init import init
from sweeplab.cli.move import rename, rm
from sweeplab.cli.options import AllowPlugins, AsJson, InCell, Lab, Name, Overrides, Quiet, StudyName
from sweeplab.cli.reuse import best, clone, diff
from sweeplab.cli.steer import enqueue, extend, pause, resume, retry, stop
from sweeplab.cli.work import work

app = command_group("Write, preview, run and look at studies.")
File = Annotated[Path, typer.Argument(metavar="FILE", help="The study file.", show_default=False)]


def plan(
    file: File,
    override: Overrides = None,
    name: Name = None,
    allow_plugins: AllowPlugins = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study would do, without training.

    Its cells with sizes and costs, what is searched as Optuna sees it, and what would run where.

    \b
    $ sweeplab study plan studies/small.yaml
    """
    from sweeplab import load_study
    from sweeplab.cli.show_plan import print_plan
    from sweeplab.cli.tables import print_json

    found = load_study(file, lab=lab, name=name, overrides=override or (), allow_plugins=allow_plugins).plan()
    if as_json:
        print_json(found.as_dict())
    else:
        print_plan(found)


def run(
    file: File,
    override: Overrides = None,
    name: Name = None,
    allow_plugins: AllowPlugins = False,
    lab: Lab = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a study to the end of its budget, or go on with it.

    Ctrl-C puts the runs away; the same command goes on with them. When all is done, it adds nothing.

    \b
    $ sweeplab study run studies/small.yaml
    $ sweeplab study run studies/small.yaml --name quick -o max_iters=100
    """
    if dry_run:
        plan(file, override, name, allow_plugins, lab, as_json)
        return
    from sweeplab import load_study
    from sweeplab.cli.live import run_with_view

    study = load_study(file, lab=lab, name=name, overrides=override or (), allow_plugins=allow_plugins)
    raise typer.Exit(run_with_view(study, as_json, quiet))


def list_studies(lab: Lab = None, as_json: AsJson = False) -> None:
    """List the studies of the lab.

    \b
    $ sweeplab study list
    $ sweeplab study list --json
    """
    from sweeplab.cli.tables import print_json, print_rows
    from sweeplab.lab.listing import states_in_words, study_rows
    from sweeplab.records.folders import lab_folder

    rows = study_rows(lab_folder(lab))
    if as_json:
        print_json(rows)
    elif rows:
        shown = ("name", "trials", "best_value")
        print_rows(
            [{key: row[key] for key in shown} | {"states": states_in_words(row["states"])} for row in rows],
            text=("name", "states"),
        )
    else:
        typer.echo(f"no studies in {lab_folder(lab)}")


def show(
    name: StudyName,
    trial: Annotated[
        int | None, typer.Option(metavar="N", help="Tell all of this trial.", show_default=False)
    ] = None,
    cell: InCell = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Show how far a study is, or all of one trial.

    Of a study: a row a cell, and its best run. Of a trial: its hyperparameters and where each came
    from, its curve, why it ended, its checkpoints, and where its time went.

    \b
    $ sweeplab study show small
    $ sweeplab study show small --trial 3 --cell n_layer=1,n_embd=32
    """
    from sweeplab.cli.show_study import print_study
    from sweeplab.cli.tables import print_json
    from sweeplab.lab.listing import find_study, show_study

    folder = find_study(lab, name)
    if trial is not None:
        from sweeplab.cli.show_trial import print_trial
        from sweeplab.lab.inspecting import show_trial

        shown, printed = show_trial(folder, trial, cell), print_trial
    else:
        shown, printed = show_study(folder), print_study
    if as_json:
        print_json(shown)
    else:
        printed(shown)


def export(
    name: StudyName,
    output: Annotated[
        Path,
        typer.Option(
            "--output", metavar="FILE", help="The .csv or .parquet file to write.", show_default=False
        ),
    ],
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write a table of a study's runs.

    A row a run: cell, trial, seed, state, metrics, hyperparameters.

    \b
    $ sweeplab study export small --output small.csv
    """
    from sweeplab.analysis.table import export as write
    from sweeplab.analysis.table import runs_table
    from sweeplab.cli.tables import print_json
    from sweeplab.lab.listing import find_study, tracking_uri_of

    folder = find_study(lab, name)
    frame = runs_table(folder.lab, folder.name, tracking_uri_of(folder))
    write(frame, output)
    if as_json:
        print_json({"output": str(output), "rows": len(frame)})
    else:
        typer.echo(f"{len(frame)} runs written to {output}")


# In the order in which help shows them: before a run, during it, its results, keeping house.
COMMANDS: tuple[Callable[..., None], ...] = (
    *(init, plan, run, watch, logs, stop, pause, resume, extend, enqueue, retry, work),
    *(show, best, export, diff, clone, list_studies, rename, rm),
)
for each in COMMANDS:
    app.command("list" if each is list_studies else None)(each)
