"""`sweeplab model`: what a model is made of, and what happens inside of it."""

from __future__ import annotations

from sweeplab.cli.app import command_group
from sweeplab.cli.model.attention import attention
from sweeplab.cli.model.coordinates import coordinates
from sweeplab.cli.model.next import next_
from sweeplab.cli.model.params import params
from sweeplab.cli.model.trace import trace

app = command_group("Look inside of models.")


@app.callback()
def _model() -> None:
    """Look inside of models."""


app.command()(params)
app.command()(trace)
app.command()(attention)
app.command()(coordinates)
app.command("next")(next_)
