"""`sweeplab laws audit`: what keeps a law's numbers from being identified, and the cheapest cure of each cause."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeplab.cli.laws.source import Columns, Count, Source, Tuned, Where, counting_of, is_file, studies_from
from sweeplab.cli.options import Lab
from sweeplab.cli.printing import Answer, cell_text, print_rows, say
from sweeplab.formatting import listed, several, several_named

_MOST_NAMED = 8
_TEXT = ("cause", "cure")


def audit(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    tuned: Tuned = None,
    lab: Lab = None,
) -> Answer:
    """Find what keeps a law's numbers from being identified.

    It splits the residual into seeds, shape, tuning, tokens and epochs, and the form's bend, each with its
    cheapest cure. Of a study it also checks settings that shift the exponents.

    \b
    $ sweeplab laws audit small
    $ sweeplab laws audit runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws audit small --count params=non-embedding,flops=6nd --json
    """
    from sweeplab.analysis.audit import audit as audit_study
    from sweeplab.analysis.audit import audit_file, gather

    counting = counting_of(columns, count, where, tuned)
    if is_file(source):
        return audit_file(Path(source), counting), _print_audit
    studied = studies_from(source, lab).only(counting.where)
    settled = studied.settled(counting.conventions)
    evidence = gather(studied.runs, studied.designs, settled, counting.tuned)
    return audit_study(evidence, studied), _print_audit


def _print_audit(audited: dict[str, Any]) -> None:
    say(f"{several(audited['n_points'], 'point')}; {audited['law'] or 'no law'}")
    say(audited["sentence"], "bold")
    if audited["causes"]:
        say()
        print_rows([_row(cause) for cause in audited["causes"]], text=_TEXT)
        say()
    for cause in audited["causes"]:
        if cause["cure"] and cause["cure"]["command"]:
            say(f"{cause['name']}: {cause['cure']['command']}")
    for cause in audited["causes"]:
        if cause["why"]:
            say(f"{cause['name']} cannot be split: {cause['why']}")
    _print_settings(audited)


def _row(cause: Mapping[str, Any]) -> dict[str, Any]:
    from sweeplab.analysis.causes import time_of

    cure, shares = cause["cure"], {name: cause[name] for name in ("share", "low", "high")}
    row = {"cause": cause["name"], **{name: _percent(each) for name, each in shares.items()}}
    row |= {"of the loss": _percent(cause["size"], 2) if cause["share"] is not None else None}
    if cure is None:
        return row | {"": None, "cure": None, "takes": None, "half width then": None}
    then = cell_text(cure["half_width"])
    return row | {"": cause["state"], "cure": cure["words"], "takes": time_of(cure), "half width then": then}


def _percent(share: float | None, digits: int = 0) -> str | None:
    if share is None:
        return None
    return f"{share:.{digits}%}"


def _print_settings(audited: dict[str, Any]) -> None:
    clear = [each["name"] for each in audited["findings"] if each["state"] == "clear"]
    for finding in audited["findings"]:
        if finding["name"] in clear:
            continue
        style = {"found": "yellow"}.get(finding["state"])
        where = ""
        if finding["points"]:
            where = f" ({_points(finding['points'], audited['n_points'])})"
        say(f"\n{finding['name']}: {finding['state']}: {finding['sentence']}{where}", style)
        for effect in finding["effects"]:
            for name, both in effect["exponents"].items():
                mark = ", outside of its interval" if both["differs"] else ""
                change = f"{_exponent(both['before'])} becomes {_exponent(both['after'])}{mark}"
                say(f"  {effect['change']}: {name} {change}")
    if clear:
        say(f"\nsettings that are clear: {listed(clear)}")


def _points(names: list[str], n_points: int) -> str:
    if len(names) == n_points:
        if n_points > 1:
            return "all points"
        return names[0]
    return several_named(names, _MOST_NAMED)


def _exponent(exponent: dict[str, Any]) -> str:
    if exponent["value"] is None:
        return str(exponent["verdict"])
    return f"{cell_text(exponent['value'])} ({cell_text(exponent['low'])} to {cell_text(exponent['high'])})"
