"""The command line: every command by its group; each parses, calls and prints."""

from __future__ import annotations

import copy
import errno
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from sweeplab.cli import data, models, report
from sweeplab.cli.lab import backup_storage, doctor, start_storage, stop_storage
from sweeplab.cli.laws.fit import fit, next_runs
from sweeplab.cli.laws.predicting import predict as predict_size
from sweeplab.cli.laws.predicting import verify
from sweeplab.cli.mcp import mcp
from sweeplab.cli.options import AsJson
from sweeplab.cli.printing import FULL, open_streams, outlive_readers, print_answer
from sweeplab.cli.study import manage, run, show
from sweeplab.cli.study.plan import plan
from sweeplab.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    BadInput,
    Problem,
    TrackingUnavailable,
    nearest,
)
from sweeplab.files import labs_in_use
from sweeplab.version import VERSION

Command = Callable[..., Any]
# A wrong option, a missing argument, one too many: the base of the only such error that Typer exports.
UsageError: Any = typer.BadParameter.__base__
# The commands by the words that call them, in the order of the reference.
COMMANDS: dict[str, Command] = {
    "init": manage.init,
    "plan": plan,
    "run": run.run,
    "watch": run.watch,
    "stop": run.stop,
    "pause": run.pause,
    "resume": run.resume,
    "extend": run.extend,
    "enqueue": run.enqueue,
    "confirm": run.confirm,
    "list": show.list_studies,
    "show": show.show,
    "best": show.best,
    "diff": show.diff,
    "note": show.note,
    "export": show.export,
    "publish": show.publish,
    "transfer": run.transfer,
    "rename": manage.rename,
    "rm": manage.rm,
    "report": report.report,
    "ui": report.ui,
    "dashboard": report.dashboard,
    "doctor": doctor,
    "generate": models.generate,
    "predict": models.predict,
    "evaluate": models.evaluate,
    "trace": models.trace,
    "export-hf": models.export_hf,
    "import-hf": models.import_hf,
    "data": data.data,
    "hyperparameters": data.hyperparameters,
    "mcp": mcp,
    "laws fit": fit,
    "laws predict": predict_size,
    "laws next": next_runs,
    "laws verify": verify,
    "storage start": start_storage,
    "storage stop": stop_storage,
    "storage backup": backup_storage,
}
GROUPS = {
    "laws": "Fit scaling laws, each number with a verdict.",
    "storage": "Run a PostgreSQL server for the studies of a lab.",
}
# What the first page of the help shows.
FIRST = [
    "init",
    "plan",
    "run",
    "watch",
    "list",
    "show",
    "best",
    "extend",
    "report",
    "ui",
    "generate",
    "doctor",
]
# Commands that went, or have another name now, with the one that answers their question.
MOVED = {
    "bench": "sweeplab plan FILE --bench",
    "logs": "sweeplab watch NAME --log",
    "repair": "sweeplab doctor NAME --repair",
    "schema": "sweeplab hyperparameters --schema",
    "study predict": "sweeplab laws predict",
    "trial": "sweeplab stop STUDY/CELL/TRIAL",
    "trial resume": "sweeplab resume STUDY/CELL/TRIAL",
    "storage status": "sweeplab doctor",
    "report compare": "sweeplab diff A B --page FILE",
    "model": "sweeplab trace RUN",
    "model params": "sweeplab plan FILE --layers",
    "model coordinates": "sweeplab plan FILE --coordinates",
    "laws forecast": "sweeplab laws predict SOURCE --seal",
    "laws ledger": "sweeplab laws verify",
    "laws hyperparameters": "sweeplab laws fit SOURCE",
    **dict.fromkeys(
        ("laws audit", "laws compare", "laws isoflop", "laws shape"), "sweeplab laws fit SOURCE"
    ),
}


class OwnCommand(TyperCommand):
    """A command that refuses a value that is given twice; by itself the last one would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments and options."""
        counts = Counter(word.partition("=")[0] for word in args)
        for option in self.params:
            if not getattr(option, "multiple", True) and counts[option.opts[0]] > 1:
                raise BadInput(f"{option.opts[0]} is given twice")
        return super().parse_args(ctx, args)


class CommandGroup(TyperGroup):
    """A group that skips its own options when a command's name comes first.

    To read an option that was not given Typer imports pydantic, which takes longer than the rest of `--help`.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is meant, or fail with the nearest one."""
        word = args[0]
        if word.startswith("-") or ctx.resilient_parsing or word in self.commands:
            return super().resolve_command(ctx, args)
        here = {name: f"{ctx.command_path} {name}" for name in self.commands}
        known = {
            path.rpartition(" ")[2]: f"sweeplab {path}" for path in reversed(COMMANDS)
        } | here
        meant = nearest(word, known)
        raise BadInput(
            Problem(f"{ctx.command_path} has no command {word!r}", nearest=known.get(meant, ""))
        )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the group's options, or leave everything to the command; without any, print the help."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(EXIT_BAD_INPUT)
        bare = copy.copy(self)
        if args and args[0] in self.commands:
            bare.params, bare.add_help_option = [], False
        return super(CommandGroup, bare).parse_args(ctx, args)


class Program(CommandGroup):
    """`sweeplab` itself: it also takes the word `study` before a command, and knows where commands went."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a command that went, with the one to use now."""
        words = " ".join(args[:2])
        moved = MOVED.get(words)
        if args[:1] == ["study"]:
            args = args[1:]
        moved = moved or MOVED.get("".join(args[:1]))
        if moved and not ctx.resilient_parsing:
            raise BadInput(f"sweeplab {words} is now: {moved}")
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands that one begins with, and the names of the others."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(60)) for name in FIRST]
            )
        others = [path for path in COMMANDS if path not in FIRST]
        formatter.write_paragraph()
        formatter.write_text(f"Also: {', '.join(others)}; each explains itself by --help.")


def group_of(help: str, kind: type[CommandGroup], options: Command) -> typer.Typer:
    """Return a group of commands.

    Its help is plain text: Rich's help takes twice as long to print, and wraps long lines in boxes.
    """
    group = typer.Typer(
        cls=kind, help=help, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    group.callback(help=help)(options)
    return group


def printed(command: Command) -> Callable[..., None]:
    """Return a command that prints its answer, as JSON with the option `--json`."""

    @functools.wraps(command)
    def run(as_json: bool, **arguments: Any) -> None:
        print_answer(command(**arguments), as_json)

    signature = inspect.signature(command, eval_str=True)
    json = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
    )
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), json])  # type: ignore[attr-defined]
    return run


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sweeplab {VERSION}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Read the options of `sweeplab` itself."""


app = group_of(
    "Hyperparameter sweeps and experiment tracking for small transformers.", Program, _options
)
groups = {name: group_of(words, CommandGroup, lambda: None) for name, words in GROUPS.items()}
for path, command in COMMANDS.items():
    group, _, name = path.rpartition(" ")
    if command.__annotations__["return"] == "Answer":
        command = printed(command)
    groups.get(group, app).command(name, cls=OwnCommand)(command)
for name, inner in groups.items():
    app.add_typer(inner, name=name)


@functools.cache
def _whole() -> Callable[..., None]:
    """Build the tree of commands once per process: building it takes as long as most commands take to run."""
    return get_command(app)


def _ended() -> int | None:
    try:
        Path.cwd()
    except FileNotFoundError:
        print(
            "error: the folder in which this command was started no longer exists",
            file=sys.stderr,
        )
        return EXIT_FAILED
    try:
        code = _whole()(prog_name="sweeplab", standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        from sweeplab.files import full_disk

        message = full_disk(error, labs_in_use())
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
        words = error.format_message().replace("Value error, ", "").split()
        line, code = " ".join(words).removesuffix("."), EXIT_BAD_INPUT
        errors = [
            line + f"; {error.ctx.command_path} --help explains it" if error.ctx else line
        ]
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
        # A file that is not what it should be is a mistake of the user, wherever it is noticed.
        else:
            is_long = error.errno == errno.ENAMETOOLONG
            name = f"{str(error.filename)[:60]}…" if is_long else error.filename
            errors, code = [f"{name}: {error.strerror}"], EXIT_BAD_INPUT
    for line in errors:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(code)
