"""Commands that follow a study from another process than the one that runs it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sweeplab.cli.options import AsJson, Lab, StudyName


def watch(name: StudyName, lab: Lab = None) -> None:
    """Show a running study as `study run` does, until it ends.

    Ctrl-C leaves the study running. Its exit code is that of the study's run.

    \b
    $ sweeplab study watch small
    """
    from sweeplab.cli.live import watch_with_view
    from sweeplab.lab.listing import find_study

    raise typer.Exit(watch_with_view(find_study(lab, name)))


def logs(
    name: StudyName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the study ends.")] = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Print what happened to a study, and what its workers wrote.

    Trials that began and ended, what was asked of the study, and the workers' own words.

    \b
    $ sweeplab study logs small --follow
    """
    import json
    import time

    from sweeplab.lab.listing import find_study
    from sweeplab.sweep.control.logs import log_lines

    def say(line: dict[str, Any]) -> None:
        if as_json:
            typer.echo(json.dumps(line))
            return
        at = line["time"]
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else " " * 19
        typer.echo(f"{clock}  {line['source']}: {line['text']}")

    try:
        for line in log_lines(find_study(lab, name), follow):
            say(line)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
