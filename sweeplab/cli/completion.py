"""What the shell is offered at the Tab key besides commands, options and files: studies and presets."""

from __future__ import annotations

from pathlib import Path

import typer


def studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the lab's studies whose names begin so."""
    from sweeplab.lab.listing import study_names
    from sweeplab.records.folders import lab_folder

    return [name for name in study_names(lab_folder(ctx.params.get("lab"))) if name.startswith(incomplete)]


def tables_and_studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the tables' files, folders and studies whose names begin so; of studies, the last after a comma."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    names = [f"{each}/" if each.is_dir() else str(each) for each in found]
    files = [
        name for name in names if name.startswith(incomplete) and name.endswith((".csv", ".parquet", "/"))
    ]
    before, comma, last = incomplete.rpartition(",")
    return [*files, *(f"{before}{comma}{name}" for name in studies(ctx, last))]


def presets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the presets whose names begin so."""
    from sweeplab.study.spec import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]
