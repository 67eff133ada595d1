"""`sweeplab study`: write, preview, run, list, show and export studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sweeplab.cli.init import init
from sweeplab.cli.options import AsJson, Lab, Name, Overrides

app = typer.Typer(help="Write, preview, run and look at studies.", no_args_is_help=True)
app.command()(init)

File = Annotated[Path, typer.Argument(help="The study file.", show_default=False)]
StudyName = Annotated[str, typer.Argument(help="Name of the study.", show_default=False)]


@app.command()
def plan(
    file: File, override: Overrides = None, name: Name = None, lab: Lab = None, as_json: AsJson = False
) -> None:
    """Show what a study would do, without training: cells, sizes, costs, search space, workers."""
    import json

    from sweeplab import load_study
    from sweeplab.cli.show_plan import print_plan

    found = load_study(file, lab=lab, name=name, overrides=override or ()).plan()
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=1))
    else:
        print_plan(found)


@app.command()
def run(
    file: File,
    override: Overrides = None,
    name: Name = None,
    lab: Lab = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a study to the end of its budget, or go on with it where it was left."""
    if dry_run:
        plan(file, override, name, lab, as_json)
        return
    from sweeplab.cli.live import run_with_view

    raise typer.Exit(run_with_view(file, override or [], name, lab, as_json))


@app.command(name="list")
def list_studies(lab: Lab = None, as_json: AsJson = False) -> None:
    """List the studies of the lab."""
    import json

    from sweeplab.cli.tables import print_rows
    from sweeplab.study.folder import lab_folder
    from sweeplab.study.listing import study_rows

    rows = study_rows(lab_folder(lab))
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    elif rows:
        print_rows(rows)
    else:
        typer.echo(f"no studies in {lab_folder(lab)}")


@app.command()
def show(name: StudyName, lab: Lab = None, as_json: AsJson = False) -> None:
    """Show how far a study is: a row a cell, and its best run."""
    import json

    from sweeplab.cli.tables import print_rows
    from sweeplab.study.listing import find_study, show_study

    shown = show_study(find_study(lab, name))
    if as_json:
        typer.echo(json.dumps(shown, indent=1))
        return
    print_rows(shown["cells"])
    if best := shown["best"]:
        searched = ", ".join(f"{key}={_short(value)}" for key, value in best["sampled"].items())
        typer.echo(f"\nbest: {best['key']}  val_loss {best['value']:.4f}  {searched}")


@app.command()
def export(
    name: StudyName,
    output: Annotated[Path, typer.Option("--output", help="A .csv or .parquet file.", show_default=False)],
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write a table with a row a run: cell, trial, seed, state, hyperparameters, metrics."""
    import json

    from sweeplab.analysis.table import export as write
    from sweeplab.analysis.table import runs_table
    from sweeplab.study.listing import find_study, tracking_uri_of

    folder = find_study(lab, name)
    frame = runs_table(folder.lab, folder.name, tracking_uri_of(folder))
    write(frame, output)
    said: dict[str, Any] = {"output": str(output), "rows": len(frame)}
    typer.echo(json.dumps(said) if as_json else f"{len(frame)} runs written to {output}")


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
