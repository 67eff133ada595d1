"""`sweeplab schema`: what an editor completes study files from."""

from __future__ import annotations

import typer


def schema() -> None:
    """Print the JSON Schema of study files.

    Editors complete from it; the shipped studies name it as their own.

    \b
    $ sweeplab schema > studies/.schema.json
    """
    import json

    from sweeplab.study.file.schema import study_schema

    typer.echo(json.dumps(study_schema(), indent=2))
