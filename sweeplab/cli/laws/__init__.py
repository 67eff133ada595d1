"""`sweeplab laws`: scaling laws of a table or of studies, with a verdict on each number."""

from __future__ import annotations

from sweeplab.cli.laws.compare import audit, compare
from sweeplab.cli.laws.fit import fit, isoflop, shape
from sweeplab.cli.laws.ledger import forecast, ledger, verify
from sweeplab.cli.laws.next import next_
from sweeplab.cli.options import command_group

app = command_group("Fit scaling laws, each number with a verdict.")
for each in (fit, compare, audit, isoflop, shape, forecast, verify, ledger):
    app.command()(each)
app.command("next")(next_)
