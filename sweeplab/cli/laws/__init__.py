"""`sweeplab laws`: scaling laws of a table or a study, with how far they may be believed."""

from __future__ import annotations

from sweeplab.cli.app import command_group
from sweeplab.cli.laws.audit import audit
from sweeplab.cli.laws.compare import compare
from sweeplab.cli.laws.fit import fit
from sweeplab.cli.laws.forecast import forecast
from sweeplab.cli.laws.isoflop import isoflop
from sweeplab.cli.laws.ledger import ledger
from sweeplab.cli.laws.next import next_
from sweeplab.cli.laws.shape import shape
from sweeplab.cli.laws.verify import verify

app = command_group("Fit scaling laws, each number with a verdict.")


@app.callback()
def _laws() -> None:
    """Fit scaling laws, each number with a verdict."""


app.command()(fit)
app.command()(compare)
app.command()(audit)
app.command()(isoflop)
app.command()(shape)
app.command()(forecast)
app.command()(verify)
app.command()(ledger)
app.command("next")(next_)
