"""`sweeplab study` and `sweeplab trial`: write, preview, run, control and show studies."""
