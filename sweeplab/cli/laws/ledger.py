"""`sweeplab laws ledger`: all forecasts there are, and how well they were calibrated."""

from __future__ import annotations

from sweeplab.cli.laws.place import Ledger, ledger_file
from sweeplab.cli.options import AsJson, Lab


def ledger(ledger: Ledger = None, lab: Lab = None, as_json: AsJson = False) -> None:
    """List the sealed forecasts, and how often their intervals held.

    A row a forecast, with what came of it; then coverage by level over all that are scored.

    \b
    $ sweeplab laws ledger
    $ sweeplab laws ledger --json
    """
    from sweeplab.analysis.ledger.chain import read_chain
    from sweeplab.analysis.ledger.outcomes import outcomes
    from sweeplab.cli.laws.show_ledger import print_ledger, scores_as_dict
    from sweeplab.cli.tables import print_json
    from sweeplab.records.folders import lab_folder

    chain = read_chain(ledger_file(ledger, lab))
    found = outcomes(chain.entries, lab_folder(lab))
    if as_json:
        print_json(scores_as_dict(chain, found))
    else:
        print_ledger(chain, found)
