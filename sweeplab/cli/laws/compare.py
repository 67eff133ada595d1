"""`sweeplab laws compare` and `audit`: what speaks against a law, in its form or in the runs it is fitted to."""

from __future__ import annotations

from typing import Annotated, Any

from sweeplab.cli.completion import studies as study_names
from sweeplab.cli.laws.source import Columns, Count, Source, counting_of, names_in, points_from, studies_from
from sweeplab.cli.options import AsJson, Lab, argument, option
from sweeplab.cli.printing import cell_text, print_found, print_rows, say

_MOST_NAMED = 8


def compare(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    laws: Annotated[
        str | None, option("LAW,…", "Laws, the first as the reference.  [default: all that suit the table]")
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Compare laws by their forecasts of larger runs.

    Each law is fitted below several compute cuts and predicts above them. A form is flagged where its
    residuals follow a pattern; patterns that the design could not have shown are named.

    \b
    $ sweeplab laws compare runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws compare small --laws chinchilla,joint --json
    """
    from sweeplab.analysis.fit.assessment import find_law
    from sweeplab.analysis.misfit.comparison import compare as compare_laws

    forms = [find_law(name) for name in dict.fromkeys(names_in(laws))] if laws else None
    print_found(
        compare_laws(points_from(source, columns, lab, count), forms).as_dict(), as_json, _print_comparison
    )


def _print_comparison(found: dict[str, Any]) -> None:
    cuts = found["cuts"]
    where = ", ".join(f"{each['at']:.3g} ({each['rows_above']} above)" for each in cuts["cuts"])
    say(f"{found['n_points']} rows; cuts in {cuts['by']}: {where or 'none'}\n")
    print_rows([_law_row(each) for each in found["laws"]], text=("law", "form"))
    say()
    for sentence in found["sentences"]:
        say(sentence)
    for name, why in found["left_out"].items():
        say(f"{name} is left out: {why}", "yellow")


def _law_row(law: dict[str, Any]) -> dict[str, Any]:
    test, lead = law["backtest"], law["lead"] or {}
    return {
        "law": law["law"],
        "back-test error": _percent(test.get("error")),
        "bias": _percent(test.get("bias"), "+.2"),
        "coverage of 90%": _percent(test.get("coverage"), ".0"),
        "lead": _percent(lead.get("value"), "+.2"),
        "by chance": _percent(lead.get("chance"), ".1"),
        "in sample": _percent(law["in_sample"]),
        "form": law["misfit"]["status"],
    }


def _percent(share: float | None, form: str = ".2") -> str | None:
    return None if share is None else f"{share:{form}%}"


def audit(
    study: Annotated[str, argument("STUDY", "A study, or several: small,other.", autocompletion=study_names)],
    count: Count = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Find what in a study moves its exponents.

    How N and C are counted, warm-up and decay, tuning, early ends and seeds: each finding names the
    points that it touches, and the exponents without them or counted otherwise.

    \b
    $ sweeplab laws audit small
    $ sweeplab laws audit small --count params=non-embedding,flops=6nd --json
    """
    from sweeplab.analysis.audit import audit as audit_runs
    from sweeplab.analysis.audit import gather

    studies = studies_from(study, lab)
    conventions = studies.settled(counting_of(None, count).conventions)
    evidence = gather(studies.runs, studies.designs, conventions, studies.bytes_per_token(conventions))
    print_found(audit_runs(evidence), as_json, _print_audit)


def _print_audit(found: dict[str, Any]) -> None:
    say(f"{found['n_points']} points; exponents of {found['law'] or 'no law: the points allow none'}")
    for each in found["findings"]:
        style = "yellow" if each["state"] == "found" else None
        say(f"\n{each['name']}: {each['state']}: {each['sentence']}", style)
        if each["points"]:
            say(f"  points: {_points(each['points'], found['n_points'])}")
        for effect in each["effects"]:
            if effect["why"]:
                say(f"  {effect['change']}: no exponents: {effect['why']}")
            for name, both in effect["exponents"].items():
                mark = ", outside of its interval" if both["differs"] else ""
                change = f"{_exponent(both['before'])} becomes {_exponent(both['after'])}{mark}"
                say(f"  {effect['change']}: {name} {change}")


def _points(names: list[str], n_points: int) -> str:
    if len(names) == n_points:
        return f"all {n_points}" if n_points > 1 else names[0]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _exponent(each: dict[str, Any]) -> str:
    if each["value"] is None:
        return str(each["verdict"])
    return f"{cell_text(each['value'])} ({cell_text(each['low'])} to {cell_text(each['high'])})"
