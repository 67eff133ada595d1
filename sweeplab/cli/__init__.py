"""The command line: a folder per noun; each command parses, calls and prints."""

from __future__ import annotations

import sys

from sweeplab.cli import laws, model, report, study
from sweeplab.cli.doctor import doctor
from sweeplab.cli.hyperparameters import hyperparameters, schema
from sweeplab.cli.options import command_group
from sweeplab.cli.report import ui
from sweeplab.cli.runs import evaluate, export_hf, generate, import_hf
from sweeplab.cli.study.control import trial_app
from sweeplab.errors import BadInput
from sweeplab.tracking.tracker import TrackingUnavailable

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130

app = command_group("Hyperparameter sweeps and experiment tracking for small transformers.")
app.add_typer(study.app, name="study")
app.add_typer(trial_app, name="trial")
app.add_typer(report.app, name="report")
app.add_typer(laws.app, name="laws")
app.add_typer(model.app, name="model")
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
