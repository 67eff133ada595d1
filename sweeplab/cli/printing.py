"""How commands print: lines, tables, and JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sweeplab.formatting import json_ready, several

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sweeplab.lab.moving import Done
    from sweeplab.study.plan import Plan

# What a command found, and how a person is told: a text, or what prints it. A command that returns one has --json.
Answer = tuple[Any, str | Callable[[Any], None]]
WIDE = 240
# How far a column of text is broken before numbers make room.
TEXT_WIDTH = 20


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print what a command found: as JSON for a program, or for a person."""
    found, told = answer
    if as_json:
        print_json(found)
    elif isinstance(told, str):
        print(told)
    else:
        told(found)


def answer_of(done: Done) -> Answer:
    """Say what a command did and how to undo it."""
    trials = [{"cell": cell, "trial": number} for cell, number in done.trials]
    told = "\n".join([done.what, *(f"undo: {command}" for command in done.undo)])
    return {"done": done.what, "undo": done.undo, "trials": trials}, told


def print_json(content: Any) -> None:
    """Print one JSON document: objects by their `as_dict`; a number that JSON does not have, such as NaN, is null."""
    print(json.dumps(json_ready(content), indent=1))


def console() -> Console:
    """Return a console on standard output; a pipe has no width, so no line is broken there."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield what shows on standard error, where that is a terminal, what a command is doing."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


def say(text: str = "", style: str | None = None) -> None:
    """Print text as it is: without markup, and with long lines unbroken."""
    console().print(text, style=style, markup=False, soft_wrap=True)


def say_warnings(warnings: Sequence[str]) -> None:
    """Print warnings, one per line."""
    for warning in warnings:
        say(f"warning: {warning}", "yellow")


def print_rows(
    rows: Sequence[Mapping[str, Any]], text: Sequence[str], keys: Sequence[str] | None = None
) -> None:
    """Print all keys of rows, or those given, all right-aligned but those of `text`.

    Columns of nothing but zeros and dashes are left out. Where a terminal is too narrow headings are broken, then cut,
    and then the table is printed in parts, each with the first column; no value of a column of numbers ever is.
    """
    known = keys or dict.fromkeys(key for row in rows for key in row)
    shown = [key for key in known if any(row.get(key) not in (0, None) for row in rows)]
    if not shown:
        return
    screen = console()
    cells = {key: max(len(cell_text(row.get(key))) for row in rows) for key in shown}
    # A column of text may be broken, but for the first.
    cells |= {key: min(cells[key], TEXT_WIDTH) for key in shown[1:] if key in text}
    words = {key: max([cells[key], *map(len, key.replace("_", " ").split())]) for key in shown}
    whole = {key: max(cells[key], len(key)) for key in shown}
    fitting = whole if _width(whole) <= screen.width else words
    while _width(fitting) > screen.width and fitting != cells:
        longest = max(fitting, key=lambda key: fitting[key] - cells[key])
        fitting = fitting | {longest: fitting[longest] - 1}
    parts: list[dict[str, int]] = [{}]
    for key, width in fitting.items():
        if parts[-1] and _width(parts[-1] | {key: width}) > screen.width:
            parts.append({shown[0]: fitting[shown[0]]})
        parts[-1][key] = width
    for part in parts:
        screen.print(_table(rows, text, part, shown[0], fitting is not whole))


def _width(columns: Mapping[str, int]) -> int:
    return sum(columns.values()) + 2 * (len(columns) - 1)


def _table(
    rows: Sequence[Mapping[str, Any]],
    text: Sequence[str],
    columns: Mapping[str, int],
    first: str,
    fixed: bool,
) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for key, width in columns.items():
        is_text = key in text and key != first
        table.add_column(
            key.replace("_", " "),
            justify="left" if key in text else "right",
            no_wrap=key == first,
            width=width if fixed and not is_text else None,
        )
    for row in rows:
        table.add_row(*(cell_text(row.get(key)) for key in columns))
    return table


def cell_text(value: Any) -> str:
    """Write one value as a table shows it: a dash for nothing, floats short."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def workers_in_words(plan: Plan) -> str:
    """Say how many workers a study gets, what each has, and where they run."""
    workers = plan.workers
    each = several(workers[0].threads, "thread") + (" each" if len(workers) > 1 else "")
    gpus = sorted({worker.gpu for worker in workers if worker.gpu is not None})
    where = f"GPU {', '.join(map(str, gpus))}" if gpus else plan.device
    return f"{several(len(workers), 'worker')} ({each}) on {where}, {plan.dtype}"
