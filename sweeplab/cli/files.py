"""Study files that commands write for a person."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.errors import BadInput, Problem

Force = Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")]


def file_of(name: str, output: Path | None) -> Path:
    """Return where the file of a study is to be: as asked, else in `studies/` here, if there is one."""
    return output or Path("studies" if Path("studies").is_dir() else ".", f"{name}.yaml")


def write_file(file: Path, text: str, force: bool) -> None:
    """Write a new file.

    Raises:
        BadInput: it is there already, or cannot be written.
    """
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise BadInput(Problem("the file is there already", "--force to replace it", file=file)) from error
    except OSError as error:
        raise BadInput(Problem(error.strerror or str(error), file=file)) from error
