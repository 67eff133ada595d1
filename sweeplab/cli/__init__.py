"""The command line: every command by its group; each parses, calls and prints."""

from __future__ import annotations

import copy
import errno
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sweeplab.cli import runs
from sweeplab.cli.laws.fit import fit
from sweeplab.cli.laws.forecasts import forecast, ledger, next_runs, verify
from sweeplab.cli.laws.hyperparameters import hyperparameter_laws
from sweeplab.cli.mcp import mcp
from sweeplab.cli.model import coordinates, data, hyperparameters, params, schema, trace
from sweeplab.cli.options import AsJson
from sweeplab.cli.printing import FULL, open_streams, outlive_readers, print_answer
from sweeplab.cli.report import compare_studies, dashboard, scaling, sweep, ui
from sweeplab.cli.storage import backup_storage, start_storage, stop_storage, storage_status
from sweeplab.cli.study import control
from sweeplab.cli.study.control import doctor
from sweeplab.cli.study.manage import init, rename, rm
from sweeplab.cli.study.run import bench, confirm, logs, plan, run, watch
from sweeplab.cli.study.show import best, diff, export, list_studies, publish, show
from sweeplab.cli.study.transfer import predict as predict_size
from sweeplab.cli.study.transfer import transfer
from sweeplab.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    BadInput,
    Problem,
    TrackingUnavailable,
    nearest,
    synonym,
)
from sweeplab.files import labs_in_use
from sweeplab.version import VERSION

# A wrong option, a missing argument, one too many: the base of the only such error that Typer exports.
UsageError: Any = typer.BadParameter.__base__
# The groups with their help and commands, in the order in which help shows them.
GROUPS: dict[str, tuple[str, tuple[Callable[..., Any], ...]]] = {
    "study": (
        "Write, preview, run and look at studies.",
        # Before a run, during it, then its results and the order in the lab.
        (
            *(init, plan, bench, run, watch, logs),
            *(control.stop, control.pause, control.resume, control.extend, control.enqueue),
            *(confirm, show, best, predict_size, transfer, publish, export),
            *(diff, list_studies, rename, rm, control.repair),
        ),
    ),
    "trial": ("Control one trial of a study.", (control.stop_trial, control.resume_trial)),
    "storage": (
        "Run a PostgreSQL server for the studies of a lab.",
        (start_storage, stop_storage, storage_status, backup_storage),
    ),
    "report": ("Write reports of studies.", (scaling, sweep, compare_studies)),
    "laws": (
        "Fit scaling laws, each number with a verdict.",
        (fit, hyperparameter_laws, forecast, verify, ledger, next_runs),
    ),
    "model": ("Look inside models.", (params, trace, runs.attention, coordinates, runs.next_tokens)),
}
ALONE = (
    *(data, runs.export_hf, runs.import_hf, hyperparameters, runs.generate, runs.predict, runs.evaluate),
    *(schema, ui, dashboard, mcp, doctor),
)
# Commands whose functions have longer names, because the short name is taken by Python or another function.
NAMES: dict[Callable[..., Any], str] = {
    list_studies: "list",
    control.stop_trial: "stop",
    control.resume_trial: "resume",
    compare_studies: "compare",
    predict_size: "predict",
    hyperparameter_laws: "hyperparameters",
    next_runs: "next",
    runs.next_tokens: "next",
    start_storage: "start",
    stop_storage: "stop",
    storage_status: "status",
    backup_storage: "backup",
}


# Commands that went, with the one that answers their question.
MOVED = dict.fromkeys(("audit", "compare", "isoflop", "shape"), "sweeplab laws fit")  # of `laws`
DAILY = ("study run", "study list", "study show", "study best", "report scaling", "ui")


class CommandGroup(TyperGroup):
    """A group that skips its own options when a command's name comes first.

    To read an option that was not given Typer imports pydantic, which takes longer than the rest of `--help`.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command of the group; at the top level also one of `study`, whose commands are used daily."""
        study = getattr(self.commands.get("study"), "commands", {})
        return self.commands.get(cmd_name) or study.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is meant, or fail with the nearest one."""
        word = args[0]
        if word.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, word):
            return super().resolve_command(ctx, args)
        known = {name: f"{ctx.command_path} {name}" for name in self.commands}
        if "fit" in self.commands:
            known |= MOVED
        for group, (_, commands) in GROUPS.items():
            for command in commands:
                name = NAMES.get(command, command.__name__)
                known.setdefault(name, f"sweeplab {group} {name}")
        # Of this group or of `study` before others: `status` means show, not storage status.
        here = [name for name, path in known.items() if name in self.commands or "sweeplab study" in path]
        meant = synonym(word, here) or nearest(word, known)
        raise BadInput(Problem(f"{ctx.command_path} has no command {word!r}", nearest=known.get(meant, "")))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the commands that complete `incomplete`; at the top level also those of `study`."""
        items = super().shell_complete(ctx, incomplete)
        study = self.commands.get("study")
        if study and incomplete.isalpha():
            items += study.shell_complete(type(ctx)(study, parent=ctx, info_name="study"), incomplete)
        return items

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the group's options, or leave everything to the command; without any, print the help."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(EXIT_BAD_INPUT)
        bare = copy.copy(self)
        if args and self.get_command(ctx, args[0]):
            bare.params, bare.add_help_option = [], False
        return super(CommandGroup, bare).parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, at the top level the daily ones first."""
        if "study" in self.commands:
            sentences = [(path, _command(self, path).get_short_help_str(60)) for path in DAILY]
            with formatter.section("Daily"):
                formatter.write_dl(sentences)
        super().format_commands(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands' names, groups first."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: not isinstance(self.commands[name], TyperGroup))


def _command(group: Any, path: str) -> Any:
    return functools.reduce(lambda command, name: command.commands[name], path.split(), group)


def group_of(help: str, commands: tuple[Callable[..., Any], ...]) -> typer.Typer:
    """Return a group of commands, which remains a group even with one command.

    Its help is plain text: Rich's help takes twice as long to print, and wraps long lines in boxes.
    """
    group = typer.Typer(cls=CommandGroup, help=help, rich_markup_mode=None, pretty_exceptions_enable=False)
    group.callback()(lambda: None)
    for command in commands:
        wrapped = {"Answer": printed}.get(command.__annotations__["return"], lambda plain: plain)(command)
        group.command(NAMES.get(command))(wrapped)
    return group


def printed(command: Callable[..., Any]) -> Callable[..., None]:
    """Return a command that prints its answer, as JSON with the option `--json`."""

    @functools.wraps(command)
    def run(as_json: bool, **arguments: Any) -> None:
        print_answer(command(**arguments), as_json)

    signature = inspect.signature(command, eval_str=True)
    json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), json])  # type: ignore[attr-defined]
    return run


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sweeplab {VERSION}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Read the options of `sweeplab` itself."""


HELP = """Hyperparameter sweeps and experiment tracking for small transformers.

The word `study` can be left out: `sweeplab run small` means `sweeplab study run small`.
"""
app = group_of(HELP, ALONE)
app.callback(help=HELP)(_options)
for name, (words, commands) in GROUPS.items():
    app.add_typer(group_of(words, commands), name=name)


@functools.cache
def _whole() -> Callable[..., None]:
    """Build the tree of commands once per process: building it takes as long as most commands take to run."""
    return get_command(app)


def _ended() -> int | None:
    try:
        code = _whole()(prog_name="sweeplab", standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        from sweeplab.files import folder_gone, full_disk

        message = full_disk(error, labs_in_use()) or folder_gone(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return EXIT_FAILED
    return code


def main() -> None:
    """Run the command line: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    open_streams()
    errors: list[Any] = []
    try:
        code = _ended()
    except UsageError as error:
        line, code = " ".join(error.format_message().split()).removesuffix("."), EXIT_BAD_INPUT
        errors = [line + f"; {error.ctx.command_path} --help explains it" if error.ctx else line]
    except BadInput as error:
        errors, code = error.lines, EXIT_BAD_INPUT
    except typer.Abort:  # the input has ended where a question was asked
        code = EXIT_FAILED
    except TrackingUnavailable as error:
        errors, code = [f"tracking does not answer: {error}"], EXIT_FAILED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the output is gone: `sweeplab … | head`
        outlive_readers()
        code = EXIT_FAILED
    except OSError as error:
        if error.errno in FULL:
            outlive_readers()
            errors, code = [f"{error.filename or 'a disk'}: {error.strerror}"], EXIT_FAILED
        elif error.filename is None:
            raise
        else:  # a file that is not what it should be is a mistake of the user, wherever it is noticed
            is_long = error.errno == errno.ENAMETOOLONG
            name = f"{str(error.filename)[:60]}…" if is_long else error.filename
            errors, code = [f"{name}: {error.strerror}"], EXIT_BAD_INPUT
    for line in errors:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(code)
