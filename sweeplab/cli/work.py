"""`sweeplab study work`: one more worker on a study that runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sweeplab.cli.options import AllowPlugins, Lab, Quiet, StudyName


def work(
    name: StudyName,
    force: Annotated[
        bool, typer.Option("--force", help="Work with other code or data than the others, too.")
    ] = False,
    allow_plugins: AllowPlugins = False,
    quiet: Quiet = False,
    lab: Lab = None,
) -> None:
    """Start one more worker on a running study, in the foreground.

    It trains on this machine until the study's run ends; Ctrl-C puts its runs away. The lab is the
    study's own: whoever runs the study brings what this worker writes there to tracking.

    \b
    $ sweeplab study work small
    """
    from sweeplab.cli.live import Interrupts, write_line
    from sweeplab.lab.listing import find_study, read_spec
    from sweeplab.sweep.control.joining import work_along

    folder = find_study(lab, name)
    metric = read_spec(folder).objective.metric

    def hear(event: dict[str, Any]) -> None:
        if quiet:
            return
        if event["event"] == "ready":
            write_line(f"{name}: one more worker is at work")
        elif event["event"] in ("claimed", "ended", "requeued"):
            said = {"claimed": "begun", "requeued": "put away"}.get(event["event"], event.get("outcome"))
            value = event.get("value")
            loss = f"  {metric} {value:.4f}" if value is not None else ""
            write_line(f"{event['cell']} trial {event['trial']}  {said}{loss}")

    with Interrupts(lambda text: None if quiet else write_line(text)) as interrupts:
        losses = work_along(folder, force, hear, lambda: interrupts.count, allow_plugins)
    for loss in losses:
        write_line(f"error: {loss}")
    raise typer.Exit(1 if losses else 130 if interrupts.count else 0)
