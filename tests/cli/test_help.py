"""Every command explains itself, and quickly: its help imports nothing heavy."""

import json
import re
import shlex
import sys

import pytest
from cli.reference import README, parts, reference
from terminal import said
from typer.main import get_command

from sweeplab.cli import app

HEAVY = {"torch", "numpy", "optuna", "mlflow", "pandas", "plotly", "pydantic", "rich", "ruamel"}
# Asks each command for its help in one process, and says what of these was imported by then.
PROGRAM = f"""
import contextlib, io, json, sys
from sweeplab.cli import main
for names in json.loads(sys.argv[1]):
    sys.argv = ["sweeplab", *names, "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
print(*sorted({HEAVY!r} & set(sys.modules)))
"""


ALL = get_command(app)
MOST_COMMANDS, MOST_OPTIONS, FIRST_PAGE = 40, 230, 12


def commands(command=ALL, names=()):
    yield names
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*names, name))


def named(names):
    command = ALL
    for name in names:
        command = command.commands[name]
    return command


def test_help_imports_nothing_heavy():
    program = [sys.executable, "-c", PROGRAM, json.dumps(list(commands()))]
    assert said(program) == "\n"


def test_there_are_no_more_commands_and_options_than_one_can_know(capsys):
    last = [named(names) for names in commands() if not hasattr(named(names), "commands")]
    options = [
        each for command in last for each in command.params if each.param_type_name == "option"
    ]
    assert len(last) <= MOST_COMMANDS and len(options) <= MOST_OPTIONS
    with pytest.raises(SystemExit):
        ALL(["--help"], prog_name="sweeplab", terminal_width=80)
    page = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0]
    assert len(page.splitlines()) == FIRST_PAGE


def test_every_option_says_what_it_does():
    parameters = [
        (names, parameter) for names in commands() for parameter in named(names).params
    ]
    assert not [
        (names, each.name) for names, each in parameters if not (each.help or "")[:1].isupper()
    ]


@pytest.mark.parametrize(
    "wrong", [("--no-such-option",), ("x",) * 9], ids=["option", "arguments"]
)
def test_a_wrong_command_line_is_one_line(wrong, cli):
    answers = {}
    for names in commands():
        arguments = wrong
        if wrong[0] == "x" and any(parameter.nargs < 0 for parameter in named(names).params):
            arguments = ("--lab",)  # any number of arguments is right
        said = cli(*names, *arguments)
        if (said.code, said.out, said.err.count("\n")) != (2, "", 1) or not said.err.startswith(
            "error: "
        ):
            answers[names] = said
    assert not answers


def examples(names):
    return re.findall(r"^\s*\$ sweeplab (.*)$", named(names).help or "", re.MULTILINE)


def test_every_command_has_an_example():
    last = [names for names in commands() if not hasattr(named(names), "commands")]
    own = {
        names: [line for line in examples(names) if line.startswith(" ".join(names))]
        for names in last
    }
    assert not [names for names, lines in own.items() if not lines]


def test_the_readme_has_the_commands_as_their_help_tells_of_them():
    found = parts(README.read_text("utf-8"))[1]
    assert found == reference(), "python tests/cli/reference.py writes it anew"


def test_examples_are_commands_that_there_are():
    for example in (line for names in commands() for line in examples(names)):
        command, arguments = ALL, shlex.split(example.partition(" > ")[0])
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("example", arguments).close()
