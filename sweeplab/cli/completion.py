"""What the shell is offered at the Tab key besides commands, options and files: the lab's studies."""

from __future__ import annotations

import typer


def studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the lab's studies whose names begin so."""
    from sweeplab.study.folder import lab_folder
    from sweeplab.study.listing import study_names

    return [name for name in study_names(lab_folder(ctx.params.get("lab"))) if name.startswith(incomplete)]


def tables_and_studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the tables' files, folders and studies whose names begin so; of studies, the last after a comma."""
    from glob import escape, glob

    files = [
        name for name in sorted(glob(f"{escape(incomplete)}*")) if name.endswith((".csv", ".parquet", "/"))
    ]
    before, comma, last = incomplete.rpartition(",")
    return [*files, *(f"{before}{comma}{name}" for name in studies(ctx, last))]
