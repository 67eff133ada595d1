"""`sweeplab model`: what a model is made of, and what it computes."""

from __future__ import annotations

from sweeplab.cli.model.architecture import coordinates, params, trace
from sweeplab.cli.model.trained import attention, next_
from sweeplab.cli.options import command_group

app = command_group("Look inside models.")
for each in (params, trace, attention, coordinates):
    app.command()(each)
app.command("next")(next_)
