"""`sweeplab init`, `rename` and `rm`: new study files, and studies moved in their lab."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli import options
from sweeplab.cli.options import argument, option
from sweeplab.cli.printing import Answer, answer_of, say_start
from sweeplab.errors import BadInput, Problem
from sweeplab.files import write_new, write_whole
from sweeplab.formatting import counts
from sweeplab.lab.listing import find_study
from sweeplab.records.folders import lab_folder


def init(
    name: Annotated[str, argument("NAME", "Name of the study and of its file.")],
    search: options.Search = None,
    grid: options.Grid = None,
    table: Annotated[
        Path | None,
        option("FILE.md", "Take values and ranges from the tables of a Markdown file."),
    ] = None,
    preset: options.Preset = None,
    data: Annotated[
        str | None,
        option(
            "FILE",
            "Choose all for data of your own: a file, a folder, tokens; five minutes at most.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "Where to write it.  [default: NAME.yaml, in the folder studies if there is one]",
        ),
    ] = None,
    force: options.Force = False,
) -> None:
    """Write a commented study file.

    With --data it has three sizes that suit the data, or with --table too the values of the table: `sweeplab data
    FILE` shows how the data are read.

    \b
    $ sweeplab init mine --data notes.txt
    $ sweeplab init mine --search lr=1e-4..1e-2 --grid n_layer=1,2,4
    $ sweeplab init mine --preset nanogpt-char
    """
    from sweeplab.study.file.entries import MarkdownTables, read_tables
    from sweeplab.study.file.reading import read_study
    from sweeplab.study.file.resolve import preset as preset_of
    from sweeplab.study.file.resolve import read_options
    from sweeplab.study.file.template import first_study, section_of, study_text
    from sweeplab.study.values import SUGGESTED

    name = name.removesuffix(".yaml")  # a study is called by its file, too
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise BadInput(
            Problem(f"{name!r} cannot be a study's name", "letters, digits and . _ - inside")
        )
    file = output or Path("studies" if Path("studies").is_dir() else ".", f"{name}.yaml")
    if data is not None:
        from sweeplab.sweep.planning import allow_files
    if data is not None and not table:
        if search or grid or preset:
            raise BadInput(
                Problem("--data chooses all values", "--table, --output and --force beside it")
            )
        if file.exists() and not force:
            raise BadInput(
                Problem("the file exists already", "--force to overwrite it", file=file)
            )
        say_start(f"reading {data}")
        text, spec, words = first_study(name, data, file)
        allow_files(spec, lab_folder(None))  # the user has named them
        write_study(file, text, force, "run")
        typer.echo("\n".join(words))
        return
    section = section_of(data, file.parent) if data is not None else None
    asked = [f"--grid {each}" for each in grid or ()] + [
        f"--search {each}" for each in search or ()
    ]
    values, entries = preset_of(preset).values if preset else {}, read_options(asked)

    tables = read_tables(table) if table else MarkdownTables()
    ranges = tables.ranges | {
        name: entry for name, entry in entries["search"].items() if entry != SUGGESTED
    }
    searched = None if search is None else [*entries["search"]]
    known, notices = (
        {**values, **tables.values},
        [f"{table}: {each}" for each in tables.notices],
    )
    text = study_text(name, searched, known, ranges, entries["grid"], section, comments=notices)
    if data is not None:
        allow_files(read_study(file, text=text), lab_folder(None))
    write_study(file, text, force, "plan")
    for notice in notices:
        typer.echo(notice, err=True)


def rename(
    name: options.StudyName,
    new: options.NewName,
    yes: options.Yes = False,
    lab: options.Lab = None,
) -> Answer:
    """Rename a study in the lab and in MLflow.

    Forecasts sealed for it keep the old name, and no longer find it.

    \b
    $ sweeplab rename small first-try
    """
    from sweeplab.lab.studies import rename_study

    folder = find_study(lab, name)
    _confirm(f"rename {name} to {new}?", yes)
    return answer_of(rename_study(folder, new))


def rm(name: options.StudyName, yes: options.Yes = False, lab: options.Lab = None) -> Answer:
    """Move a study to the lab's trash.

    MLflow marks its experiment as deleted. Nothing is lost until you empty both.

    \b
    $ sweeplab rm small
    """
    from sweeplab.lab.studies import remove_study

    folder = find_study(lab, name)
    _confirm(f"move {name} (runs: {counts(folder.states()) or 'none'}) to the trash?", yes)
    return answer_of(remove_study(folder))


def write_study(file: Path, text: str, force: bool, next_command: str) -> None:
    """Write a new study file, as `new_file` does, and print which command comes next."""
    new_file(file, text, force)
    typer.echo(f"wrote {file}\nnext: sweeplab {next_command} {file}")


def new_file(file: Path, text: str, force: bool) -> None:
    """Write a new file; one that exists already is refused, unless by `force`."""
    try:
        if force:
            write_whole(file, text.encode())
        elif not write_new(file, text.encode()):
            raise BadInput(
                Problem("the file exists already", "--force to overwrite it", file=file)
            )
    except OSError as error:
        raise BadInput(Problem(error.strerror or str(error), file=file)) from error


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"{question} --yes confirms it where no terminal can ask")
    if not typer.confirm(question, err=True):
        raise BadInput("nothing is changed")
