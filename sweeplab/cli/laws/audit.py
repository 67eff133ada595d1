"""`sweeplab laws audit`: what in a study's counting and training moves its exponents."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sweeplab.cli.completion import studies
from sweeplab.cli.laws.source import Count, studies_from
from sweeplab.cli.options import AsJson, Lab

_MOST_NAMED = 8


def audit(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A study, or several: small,other.",
            show_default=False,
            autocompletion=studies,
        ),
    ],
    count: Count = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Find what in a study moves its exponents.

    What is counted as N and C, warm-up and decay, tuning, early ends and seeds: each finding names the points that it
    touches and what the exponents are without them, or counted otherwise.

    \b
    $ sweeplab laws audit small
    $ sweeplab laws audit small --count params=non-embedding,flops=6nd --json
    """
    from sweeplab.analysis.audit.checks import audit as look
    from sweeplab.analysis.audit.evidence import gather
    from sweeplab.analysis.conventions import parse_conventions
    from sweeplab.cli.tables import print_json

    studies = studies_from(study, lab)
    conventions = studies.settled(parse_conventions(count) if count else None)
    bytes_per_token = studies.bytes_per_token(conventions)
    found = look(gather(studies.runs, studies.designs, conventions, bytes_per_token)).as_dict()
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    from sweeplab.cli.tables import console

    out = console()

    def say(text: str, style: str | None = None) -> None:
        out.print(text, style=style, markup=False, soft_wrap=True)

    say(f"{found['n_points']} points; exponents of {found['law'] or 'no law: the points allow none'}")
    for each in found["findings"]:
        out.print()
        style = "yellow" if each["state"] == "found" else None
        say(f"{each['name']}: {each['state']}: {each['sentence']}", style)
        if each["points"]:
            say(f"  points: {_points(each['points'], found['n_points'])}")
        for effect in each["effects"]:
            for line in _effect(effect):
                say(f"  {line}")


def _points(names: list[str], n_points: int) -> str:
    if len(names) == n_points:
        return f"all {n_points}" if n_points > 1 else names[0]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _effect(effect: dict[str, Any]) -> list[str]:
    from sweeplab.cli.tables import cell_text

    if effect["why"]:
        return [f"{effect['change']}: no exponents: {effect['why']}"]
    lines = []
    for name, both in effect["exponents"].items():
        before, after = (
            f"{cell_text(each['value'])} ({cell_text(each['low'])} to {cell_text(each['high'])})"
            if each["value"] is not None
            else each["verdict"]
            for each in (both["before"], both["after"])
        )
        mark = ", outside of its interval" if both["differs"] else ""
        lines.append(f"{effect['change']}: {name} {before} becomes {after}{mark}")
    return lines
