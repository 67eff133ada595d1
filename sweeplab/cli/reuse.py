"""`sweeplab study clone`, `diff` and `best`: what one study is to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.completion import studies
from sweeplab.cli.files import Force, file_of, write_file
from sweeplab.cli.options import AsJson, Lab, Overrides, StudyName

Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Where to write the study file.", show_default=False)
]


def clone(
    name: StudyName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the new study.", show_default=False)],
    override: Overrides = None,
    output: Output = None,
    force: Force = False,
    lab: Lab = None,
) -> None:
    """Write a study's file anew, under another name.

    It is the file as you wrote it, comments too, with what -o laid over it then and does now.

    \b
    $ sweeplab study clone small longer -o max_iters=1000
    """
    from sweeplab.lab.cloning import clone_text
    from sweeplab.lab.listing import find_study

    text = clone_text(find_study(lab, name), new, override or ())
    file = file_of(new, output)
    write_file(file, text, force)
    typer.echo(f"wrote {file}")
    typer.echo(f"next: sweeplab study plan {file}")


def diff(
    a: Annotated[
        str, typer.Argument(metavar="A", help="Name of a study.", show_default=False, autocompletion=studies)
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="Name of another.", show_default=False, autocompletion=studies)
    ],
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Show how two studies differ, from their files to their results.

    Files are compared as they were understood, so that the way of writing does not matter; then
    the data's digests, the code's versions, and the best value of every cell.

    \b
    $ sweeplab study diff small longer
    """
    from sweeplab.cli.show_best import print_differences
    from sweeplab.cli.tables import print_json
    from sweeplab.lab.differences import differ
    from sweeplab.lab.listing import find_study

    found = differ(find_study(lab, a), find_study(lab, b))
    if as_json:
        print_json(found)
    else:
        print_differences(found)


def best(
    name: StudyName,
    cell: Annotated[
        str | None, typer.Option(metavar="CELL", help="Only in this cell.", show_default=False)
    ] = None,
    trial: Annotated[
        int | None, typer.Option(metavar="N", help="This trial instead.", show_default=False)
    ] = None,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the study file that trains it again.")
    ] = False,
    output: Output = None,
    force: Force = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Show the best configuration of a study.

    With --yaml, or --output, it is a study file of one trial: all that a run rests on is fixed in
    it, and on a CPU it comes to the same loss again, to the last bit.

    \b
    $ sweeplab study best small
    $ sweeplab study best small --cell n_layer=1,n_embd=32 --output best.yaml
    """
    from sweeplab.cli.show_best import print_best
    from sweeplab.cli.tables import print_json
    from sweeplab.lab.best import find_best, rerun_text
    from sweeplab.lab.listing import find_study

    folder = find_study(lab, name)
    found = find_best(folder, cell, trial)
    if output:
        write_file(output, rerun_text(folder, found), force)
        typer.echo(f"wrote {output}")
        typer.echo(f"next: sweeplab study run {output}")
    elif as_yaml:
        typer.echo(rerun_text(folder, found), nl=False)
    elif as_json:
        print_json(found.as_dict())
    else:
        print_best(found)
