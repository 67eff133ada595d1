"""`sweeplab study`: write, preview, run, steer and show studies."""

from __future__ import annotations

from collections.abc import Callable

from sweeplab.cli.options import command_group
from sweeplab.cli.study.control import enqueue, extend, pause, resume, retry, stop
from sweeplab.cli.study.manage import clone, init, rename, rm
from sweeplab.cli.study.plan import plan
from sweeplab.cli.study.results import best, diff, export
from sweeplab.cli.study.run import logs, run, watch, work
from sweeplab.cli.study.show import list_studies, show

app = command_group("Write, preview, run and look at studies.")

# In the order in which help shows them: before a run, during it, its results, keeping order in the lab.
COMMANDS: tuple[Callable[..., None], ...] = (
    *(init, plan, run, watch, logs, stop, pause, resume, extend, enqueue, retry, work),
    *(show, best, export, diff, clone, list_studies, rename, rm),
)
for each in COMMANDS:
    app.command("list" if each is list_studies else None)(each)
