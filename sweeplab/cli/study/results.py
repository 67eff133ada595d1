"""`sweeplab study best`, `diff` and `export`: what came of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sweeplab.cli.options import AsJson, Force, Lab, OneCell, StudyName, argument, flag, option, studies
from sweeplab.cli.printing import Answer, cell_text, print_answer, print_rows, say
from sweeplab.cli.study.manage import write_study
from sweeplab.lab.best import Trial, find_best
from sweeplab.lab.listing import find_study, tracking_uri_of
from sweeplab.lab.showing import differ
from sweeplab.study.problems import shown

SAME = {
    "file": "the same study file",
    "data": "the same data",
    "code": "the same code",
    "results": "no results yet",
}


def best(
    name: StudyName,
    cell: OneCell = None,
    trial: Annotated[int | None, option("N", "This trial instead.")] = None,
    as_yaml: Annotated[bool, flag("Print the study file that trains it again.", "--yaml")] = False,
    output: Annotated[Path | None, option("FILE", "Write the study file that trains it again.")] = None,
    force: Force = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Show the best configuration of a study.

    With --yaml or --output it is a study file of one trial: everything a run depends on is fixed in
    it, and on a CPU it reproduces the loss bit for bit.

    \b
    $ sweeplab study best small
    $ sweeplab study best small --cell n_layer=1,n_embd=32 --output best.yaml
    """
    from sweeplab.lab.reuse import rerun_text

    found = find_best(find_study(lab, name), cell, trial)
    if output:
        write_study(output, rerun_text(found), force, "run")
    elif as_yaml:
        typer.echo(rerun_text(found), nl=False)
    else:
        print_answer((found, _print_best), as_json)


def _print_best(trial: Trial) -> None:
    value = f"{trial.value:.6f}" if trial.value is not None else "no value"
    seeds = f"seed{'s' if len(trial.seeds) > 1 else ''} {', '.join(map(str, trial.seeds))}"
    say(f"{value}  {trial.state}  trial {trial.number} in cell {trial.cell}, {seeds}")
    for name, each in trial.start.sampled.items():
        say(f"  {name}: {shown(each)}")
    rest = {name: shown(each) for name, each in trial.values.items() if name not in trial.start.sampled}
    say(f"with {', '.join(f'{name} {text}' for name, text in rest.items())}", "dim")


def diff(
    a: Annotated[str, argument("A", "Name of a study.", autocompletion=studies)],
    b: Annotated[str, argument("B", "Name of another study.", autocompletion=studies)],
    lab: Lab = None,
) -> Answer:
    """Show how two studies differ, from their files to their results.

    Files are compared by their meaning, however they are written; then the data's digests, the
    code's versions, and the best value of every cell.

    \b
    $ sweeplab study diff small longer
    """
    return differ(find_study(lab, a), find_study(lab, b)), _print_differences


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
            say("in bits per byte, for the tokens differ")
        print_rows([row(kind, each) for each in rows], text=("place", found["a"], found["b"]))


def export(
    name: StudyName,
    output: Annotated[Path, option("FILE", "The .csv or .parquet file to write.")],
    lab: Lab = None,
) -> Answer:
    """Write a table of a study's runs.

    One row per run: cell, trial, seed, state, metrics, hyperparameters.

    \b
    $ sweeplab study export small --output small.csv
    """
    from sweeplab.analysis.table import export as write
    from sweeplab.analysis.table import runs_table

    folder = find_study(lab, name)
    frame = runs_table(folder.lab, folder.name, tracking_uri_of(folder))
    write(frame, output)
    return {"output": str(output), "rows": len(frame)}, f"{len(frame)} runs written to {output}"
