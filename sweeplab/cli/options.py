"""Groups of commands, and the arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sweeplab.cli.completion import presets, studies
from sweeplab.errors import BadInput, Problem

if TYPE_CHECKING:
    from sweeplab.records.folders import StudyFolder

Lab = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of studies, checkpoints and tracking.  [default: SWEEPLAB_LAB, else lab]",
    ),
]
StudyName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the study.", autocompletion=studies)]
InCell = Annotated[
    str | None,
    typer.Option("--cell", metavar="CELL", help="The trial's cell, where several cells have its number."),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A study's NAME (its best run), NAME/CELL, NAME/CELL/TRIAL-SEED, an MLflow run id, or a folder "
        "with a checkpoint.",
        autocompletion=studies,
    ),
]
Prompt = Annotated[
    str, typer.Option(metavar="TEXT", help="Text that the model reads; [MASK] marks a token to fill in.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the study, instead of the file's.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--override",
        metavar="NAME=VALUE",
        help="Set a hyperparameter, or a part such as budget.time=10m. Repeatable.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Take the values of a published model: gpt2, bert-base, t5-small, …",
        autocompletion=presets,
    ),
]
AllowPlugins = Annotated[
    bool, typer.Option("--allow-plugins", help="Import the Python files that the study names.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class Commands(TyperGroup):
    """A group that reads no options of its own where a command's name comes first.

    Typer imports pydantic to read an option that was not given, which takes longer than all else of `--help`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the group's options, or leave everything to the command."""
        if args and args[0] in self.commands:
            self.params, self.add_help_option = [], False
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands' names, groups first."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: not isinstance(self.commands[name], TyperGroup))


def command_group(help: str) -> typer.Typer:
    """Return a group without commands.

    Its help is plain text: Rich's help takes as long again to print, and breaks long lines into boxes.
    """
    return typer.Typer(
        cls=Commands, help=help, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def study_folder(lab: Path | None, name: str) -> StudyFolder:
    """Return a study's folder; what finds it is imported here, for `--help` to be fast.

    Raises:
        BadInput: there is no such study; offers the nearest name.
    """
    from sweeplab.lab.listing import find_study

    return find_study(lab, name)


def whole_numbers(option: str, text: str, allowed: str, largest: int | None = None) -> list[int]:
    """Return the whole numbers above 0 of an option's text such as 1,2,4, sorted and without repeats.

    Raises:
        BadInput: the text is no such list, or a number exceeds `largest`; says what is `allowed`.
    """
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdecimal() and int(part) > 0 for part in parts):
        found = sorted({int(part) for part in parts})
        if largest is None or found[-1] <= largest:
            return found
    raise BadInput(Problem(f"{option} {text}", allowed))
