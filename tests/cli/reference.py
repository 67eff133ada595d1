"""The table of commands in sweeplab/cli/README.md, from their own help: `python tests/cli/reference.py` writes it."""

import re
from pathlib import Path

from typer.main import get_command

import sweeplab.cli

README = Path(sweeplab.cli.__file__).parent / "README.md"
BEGIN, END = (
    "<!-- commands: written by tests/cli/reference.py -->\n",
    "<!-- end of commands -->\n",
)


def leaves(command, names=("sweeplab",)):
    """Yield every command that does something, with the words that call it."""
    if hasattr(command, "commands"):
        for name in command.list_commands(None):
            if not command.commands[name].hidden:
                yield from leaves(command.commands[name], (*names, name))
    else:
        yield names, command


def reference():
    """Return the table: a command with its arguments, its sentence, its options."""
    rows = ["| command | what it does | options |", "|---|---|---|"]
    for names, command in leaves(get_command(sweeplab.cli.app)):
        arguments = [
            _argument(each) for each in command.params if each.param_type_name == "argument"
        ]
        options = [
            f"`{_option(each)}`" for each in command.params if each.param_type_name == "option"
        ]
        sentence = command.help.partition("\n")[0]
        rows.append(
            f"| `{' '.join([*names, *arguments])}` | {sentence} | {' '.join(options)} |"
        )
    return "\n".join(rows) + "\n"


def _argument(argument):
    return _plain(argument.metavar or argument.name.upper())


def _option(option):
    name = max(option.opts, key=len)
    return name if option.is_flag else f"{name} {_plain(option.metavar or option.name.upper())}"


def _plain(text):
    return text.replace("|", "\\|")  # in a table a bar ends the cell, even in code


def parts(text):
    """Return what stands in the README before the table, the table, and what stands after it."""
    found = re.fullmatch(f"(.*{re.escape(BEGIN)})(.*)({re.escape(END)}.*)", text, re.DOTALL)
    assert found, "the README has no place for the table of commands"
    return found[1], found[2], found[3]


if __name__ == "__main__":
    before, _, after = parts(README.read_text("utf-8"))
    README.write_text(before + reference() + after, "utf-8")
