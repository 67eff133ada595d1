"""The command line: every command by its group; each parses, calls and prints."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sweeplab.cli.doctor import doctor
from sweeplab.cli.hyperparameters import hyperparameters, schema
from sweeplab.cli.laws.compare import audit, compare
from sweeplab.cli.laws.fit import fit, isoflop, shape
from sweeplab.cli.laws.ledger import forecast, ledger, verify
from sweeplab.cli.laws.next import next_runs
from sweeplab.cli.model.architecture import coordinates, params, trace
from sweeplab.cli.model.trained import attention, next_tokens
from sweeplab.cli.options import command_group
from sweeplab.cli.report import compare_studies, scaling, sweep, ui
from sweeplab.cli.runs import evaluate, export_hf, generate, import_hf
from sweeplab.cli.study.control import enqueue, extend, pause, resume, retry, stop, stop_trial
from sweeplab.cli.study.manage import clone, init, rename, rm
from sweeplab.cli.study.plan import plan
from sweeplab.cli.study.results import best, diff, export
from sweeplab.cli.study.run import logs, run, watch, work
from sweeplab.cli.study.show import list_studies, show
from sweeplab.errors import BadInput, TrackingUnavailable

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
# The groups with their help and commands, in the order in which help shows them.
GROUPS: dict[str, tuple[str, tuple[Callable[..., None], ...]]] = {
    "study": (
        "Write, preview, run and look at studies.",
        # Before a run, during it, its results, order in the lab.
        (
            *(init, plan, run, watch, logs, stop, pause, resume, extend, enqueue, retry, work),
            *(show, best, export, diff, clone, list_studies, rename, rm),
        ),
    ),
    "trial": ("Control one trial of a study.", (stop_trial,)),
    "report": ("Write reports of studies.", (scaling, sweep, compare_studies)),
    "laws": (
        "Fit scaling laws, each number with a verdict.",
        (fit, compare, audit, isoflop, shape, forecast, verify, ledger, next_runs),
    ),
    "model": ("Look inside models.", (params, trace, attention, coordinates, next_tokens)),
}
# Commands whose functions have longer names, because another function or a word of Python has theirs.
NAMES = {
    list_studies: "list",
    stop_trial: "stop",
    compare_studies: "compare",
    next_runs: "next",
    next_tokens: "next",
}

app = command_group("Hyperparameter sweeps and experiment tracking for small transformers.")
for name, (words, commands) in GROUPS.items():
    group = command_group(words)
    for each in commands:
        group.command(NAMES.get(each))(each)
    app.add_typer(group, name=name)
for each in (export_hf, import_hf, hyperparameters, generate, evaluate, schema, ui, doctor):
    app.command()(each)


def main() -> None:
    """Run the command line: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        app(prog_name="sweeplab")
    except BadInput as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except TrackingUnavailable as error:
        print(f"error: tracking does not answer: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of the output is gone: `sweeplab … | head`
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
