"""The arguments and options that several commands share, and their completion in the shell."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from sweeplab.errors import BadInput, Problem
from sweeplab.lab.listing import (
    file_of,
    files_here,
    find_study,
    latest_study,
    name_in,
    study_names,
)
from sweeplab.records.folders import StudyFolder, lab_folder

MOST_NAMED = 12  # studies listed where the command names none


def studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the lab's studies whose names start with `incomplete`."""
    return [
        name
        for name in study_names(lab_folder(ctx.params.get("lab")))
        if name.startswith(incomplete)
    ]


def study_files(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of studies and the paths of study files that start with `incomplete`."""
    known = {*studies(ctx, incomplete), *(each.stem for each in files_here())}
    paths = [
        each
        for each in Path().glob(f"{incomplete}*")
        if each.suffix == ".yaml" or each.is_dir()
    ]
    offered = [
        *sorted(each for each in known if each.startswith(incomplete)),
        *sorted(map(str, paths)),
    ]
    # Those that a shell and a command take as they are written: anybody may have named a file.
    return [each for each in offered if shlex.quote(each) == each and not each.startswith("-")]


def option(metavar: str, help: str, *names: str, **settings: Any) -> Any:
    """Return an option, named like its parameter where no names are given."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def flag(help: str, *names: str) -> Any:
    """Return an option that takes no value."""
    return typer.Option(*names, help=help)


def argument(metavar: str, help: str, **settings: Any) -> Any:
    """Return an argument."""
    return typer.Argument(metavar=metavar, help=help, **settings)


Lab = Annotated[
    Path | None,
    option("FOLDER", "Folder of studies and tracking.  [default: SWEEPLAB_LAB, else lab]"),
]
_STUDY = {"autocompletion": studies, "parser": name_in}
StudyName = Annotated[str, argument("NAME", "Name of the study, or its file.", **_STUDY)]
MaybeStudyName = Annotated[
    str | None,
    argument(
        "[NAME]", "Name of the study, or its file.  [default: the latest study]", **_STUDY
    ),
]
_FILE = argument(
    "FILE", "The study file, or the study's name.", autocompletion=study_files, parser=file_of
)
StudyFile = Annotated[Path, _FILE]
MaybeStudyFile = Annotated[Path | None, _FILE]
StudyOrTrial = Annotated[
    str,
    argument("NAME", "Name of the study, or its file; NAME/CELL/TRIAL is one trial.", **_STUDY),
]
NewName = Annotated[str, argument("NEW", "The new name.")]
Name = Annotated[str | None, option("NAME", "Name of the study, instead of the file's.")]
OneCell = Annotated[str | None, option("CELL", "Only this cell.")]
ShownCell = Annotated[
    str | None, option("CELL", "Only this cell; of several trials, the one in it.", "--cell")
]
Run = Annotated[
    str,
    argument(
        "RUN",
        "A study's NAME (its best run) or file, NAME/CELL, NAME/CELL/TRIAL-SEED, an MLflow run id, or a folder "
        "with a checkpoint.",
        **_STUDY,
    ),
]
Prompt = Annotated[
    str, option("TEXT", "Text that the model reads; [MASK] marks a token to fill in.")
]
Overrides = Annotated[
    list[str] | None,
    option(
        "NAME=VALUE",
        "Set a hyperparameter, or another key such as budget.time=10m. Repeatable.",
        *("-o", "--override"),
    ),
]
Grid = Annotated[
    list[str] | None,
    option(
        "NAME=A,B,…",
        "Make one cell per combination of these values. Repeatable.",
        "--grid",
    ),
]
Search = Annotated[
    list[str] | None,
    option(
        "NAME=LOW..HIGH",
        "Tune over LOW..HIGH, A,B,… or (NAME alone) its range. Repeatable.",
        "--search",
    ),
]
Preset = Annotated[
    str | None,
    option("NAME", "Values of a published model: gpt2, bert-base, t5-small, …"),
]
AllowPlugins = Annotated[
    bool, flag("Allow the study's plugins, which are code, once.", "--allow-plugins")
]
Force = Annotated[bool, flag("Overwrite what exists already.", "--force")]
Quiet = Annotated[bool, flag("Print errors only.", "--quiet", "-q")]
Yes = Annotated[bool, flag("Do not ask for confirmation.", "--yes", "-y")]
AsJson = Annotated[bool, flag("Print JSON for programs.", "--json")]


def study_or_trial(text: str, lab: Path | None) -> tuple[StudyFolder, str | None, int | None]:
    """Return the study that a text names and, if it is NAME/CELL/TRIAL or NAME/TRIAL, the trial's cell and number.

    Raises:
        BadInput: there is no such study, or the text ends with no number of a trial.
    """
    name, *place = text.split("/")
    folder = find_study(lab, name)
    if not place:
        return folder, None, None
    number = place.pop()
    if not number.isdecimal():
        raise BadInput(
            Problem(f"{text}: {number!r} is no trial", f"{name}/CELL/TRIAL, TRIAL a number")
        )
    return folder, "/".join(place) or None, int(number)


def named_study(name: str | None, lab: Path | None) -> StudyFolder:
    """Return the study that the user named, or the latest one, which is said on standard error."""
    if name is not None:
        return find_study(lab, name)
    folder = latest_study(lab)
    typer.echo(f"{folder.name} (the latest study)", err=True)
    return folder


def named_file(file: Path | None, lab: Path | None) -> Path:
    """Return the study file that the user named, or refuse with the known ones and how to create one."""
    if file is not None and file.is_dir():
        raise BadInput(
            f"{file}: this is a folder; `sweeplab init NAME --data {file}` writes a study of its texts"
        )
    if file is not None and file.is_file() and file.suffix not in ("", ".yaml", ".yml"):
        raise BadInput(
            f"{file}: this is a text; `sweeplab init NAME --data {file}` writes a study of it"
        )
    if file is not None:
        return file
    known = sorted({*map(str, files_here()), *study_names(lab_folder(lab))})
    begin = "a new one: `sweeplab init NAME`, then `sweeplab run NAME`"
    allowed = "; ".join(filter(None, [" | ".join(known[:MOST_NAMED]), begin]))
    raise BadInput(Problem("no study is named", allowed))


def overrides(
    override: list[str] | None,
    grid: list[str] | None,
    search: list[str] | None,
    engine: str | None = None,
) -> list[str]:
    """Return all changes that a command line makes to a study file, as overrides."""
    changes = ([f"--engine {engine}"] if engine else []) + [*(override or ())]
    changes += [f"--grid {word}" for word in grid or ()]
    return changes + [f"--search {word}" for word in search or ()]
