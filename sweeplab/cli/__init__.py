"""The command line: one file a noun; parse, call, print."""

from __future__ import annotations

import sys

from sweeplab.cli import laws, model, report, study, trial
from sweeplab.cli.app import command_group
from sweeplab.cli.doctor import doctor
from sweeplab.cli.evaluate import evaluate
from sweeplab.cli.generate import generate
from sweeplab.cli.hf import export_hf, import_hf
from sweeplab.cli.hyperparameters import hyperparameters
from sweeplab.cli.schema import schema
from sweeplab.cli.ui import ui
from sweeplab.errors import BadInput
from sweeplab.tracking.tracker import TrackingUnavailable

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130

app = command_group("Hyperparameter sweeps and experiment tracking for small transformers.")
app.add_typer(study.app, name="study")
app.add_typer(trial.app, name="trial")
app.add_typer(report.app, name="report")
app.add_typer(laws.app, name="laws")
app.add_typer(model.app, name="model")
app.command("export-hf")(export_hf)
app.command("import-hf")(import_hf)
app.command()(hyperparameters)
app.command()(generate)
app.command()(evaluate)
app.command()(schema)
app.command()(ui)
app.command()(doctor)


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
    except BrokenPipeError:  # whoever read our output has gone: `sweeplab … | head`
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
