"""The arguments and options that several commands share, and their completion in the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sweeplab.errors import BadInput, Problem
from sweeplab.lab.listing import file_of, name_in, study_names
from sweeplab.records.folders import lab_folder

MOST_NAMED = 12  # studies listed where the command names none


def studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the lab's studies whose names start with `incomplete`."""
    return [name for name in study_names(lab_folder(ctx.params.get("lab"))) if name.startswith(incomplete)]


def study_files(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of studies and the paths of study files that start with `incomplete`."""
    known = {*studies(ctx, incomplete), *(each.stem for each in Path("studies").glob("*.yaml"))}
    files = [each for each in Path().glob(f"{incomplete}*") if each.suffix == ".yaml" or each.is_dir()]
    return [*sorted(each for each in known if each.startswith(incomplete)), *sorted(map(str, files))]


def presets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the presets whose names start with `incomplete`."""
    from sweeplab.study.spec import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


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
    Path | None, option("FOLDER", "Folder of studies and tracking.  [default: SWEEPLAB_LAB, else lab]")
]
_STUDY = {"autocompletion": studies, "parser": name_in}
StudyName = Annotated[str, argument("NAME", "Name of the study, or its file.", **_STUDY)]
MaybeStudyName = Annotated[str | None, argument("[NAME]", "Name of a study, or its file.", **_STUDY)]
_FILE = argument("FILE", "The study file, or the study's name.", autocompletion=study_files, parser=file_of)
StudyFile = Annotated[Path, _FILE]
MaybeStudyFile = Annotated[Path | None, _FILE]
NewName = Annotated[str, argument("NEW", "The new name.")]
Name = Annotated[str | None, option("NAME", "Name of the study, instead of the file's.")]
InCell = Annotated[str | None, option("CELL", "The trial's cell, if several have its number.", "--cell")]
OneCell = Annotated[str | None, option("CELL", "Only this cell.")]
Run = Annotated[
    str,
    argument(
        "RUN",
        "A study's NAME (its best run) or file, NAME/CELL, NAME/CELL/TRIAL-SEED, an MLflow run id, or a folder "
        "with a checkpoint.",
        **_STUDY,
    ),
]
Prompt = Annotated[str, option("TEXT", "Text that the model reads; [MASK] marks a token to fill in.")]
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
    option("NAME=A,B,…", "Make one cell per combination of these values. Repeatable.", "--grid"),
]
Search = Annotated[
    list[str] | None,
    option("NAME=LOW..HIGH", "Tune over LOW..HIGH, A,B,… or (NAME alone) its range. Repeatable.", "--search"),
]
Preset = Annotated[
    str | None,
    option("NAME", "Values of a published model: gpt2, bert-base, t5-small, …", autocompletion=presets),
]
AllowPlugins = Annotated[bool, flag("Import the study's plugins, its Python files.", "--allow-plugins")]
Force = Annotated[bool, flag("Overwrite what exists already.", "--force")]
Quiet = Annotated[bool, flag("Print errors only.", "--quiet", "-q")]
Yes = Annotated[bool, flag("Do not ask for confirmation.", "--yes", "-y")]
AsJson = Annotated[bool, flag("Print JSON for programs.", "--json")]


def named_file(file: Path | None, lab: Path | None) -> Path:
    """Return the study file that the user named.

    Raises:
        BadInput: the user named none; lists the known ones and how to create one.
    """
    if file is not None:
        return file
    known = sorted({*map(str, Path("studies").glob("*.yaml")), *study_names(lab_folder(lab))})
    begin = "a new one: `sweeplab study init NAME`, then `sweeplab run NAME`"
    allowed = "; ".join(filter(None, [" | ".join(known[:MOST_NAMED]), begin]))
    raise BadInput(Problem("no study is named", allowed))


def overrides(
    given: list[str] | None, grid: list[str] | None, search: list[str] | None, engine: str | None = None
) -> list[str]:
    """Return all changes that a command line makes to a study file, as overrides."""
    # The engine comes first: it removes the keys of other engines, and overrides may set its own.
    engines = [f"--engine {engine}"] if engine else []
    sections = {"--grid": grid, "--search": search}
    return [
        *engines,
        *(given or ()),
        *(f"{name} {word}" for name in sections for word in sections[name] or ()),
    ]


def whole_numbers(option: str, text: str, allowed: str, largest: int | None = None) -> list[int]:
    """Parse an option such as 1,2,4: return its whole numbers above 0, sorted and without repeats.

    Raises:
        BadInput: the text is not such a list, or a number exceeds `largest`; says what is `allowed`.
    """
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdecimal() and int(part) > 0 for part in parts):
        found = sorted({int(part) for part in parts})
        if largest is None or found[-1] <= largest:
            return found
    raise BadInput(Problem(f"{option} {text}", allowed))
