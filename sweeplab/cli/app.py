"""How every group of commands is made."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class Commands(TyperGroup):
    """A group that reads no options of its own where a command's name comes first.

    Typer imports pydantic to read an option that was not given, which takes longer than all else of `--help`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the group's options, or leave everything to the command."""
        if args and args[0] in self.commands:
            self.params, self.add_help_option = [], False
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands' names, those of groups first."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: not isinstance(self.commands[name], TyperGroup))


def command_group(help: str) -> typer.Typer:
    """Return a group of commands without any in it.

    Its help is plain text: Rich's would take as long again, and breaks long lines into boxes.
    """
    return typer.Typer(
        cls=Commands, help=help, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )
