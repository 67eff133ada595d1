"""`sweeplab schema`: what an editor completes study files from."""

from __future__ import annotations

import typer


def schema() -> None:
    """Print the JSON Schema of study files."""
    import json

    from sweeplab.study.schema import study_schema

    typer.echo(json.dumps(study_schema(), indent=2))
