"""`sweeplab laws shape`: what depth and width are worth, with the parameters fixed and with each other fixed."""

from __future__ import annotations

from typing import Any

from sweeplab.cli.laws.source import Columns, Count, Source, points_from
from sweeplab.cli.options import AsJson, Lab


def shape(
    source: Source, columns: Columns = None, count: Count = None, lab: Lab = None, as_json: AsJson = False
) -> None:
    """Tell what depth and width buy at equal parameters.

    Shapes that none beats are listed. A file needs columns n_layer and n_embd beside those of --columns.

    \b
    $ sweeplab laws shape small
    $ sweeplab laws shape runs.csv --columns params=N,loss=loss --json
    """
    from sweeplab.analysis.compute_optimal.shape import shape_of
    from sweeplab.cli.tables import print_json

    found = shape_of(points_from(source, columns, lab, count)).as_dict()
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    from sweeplab.cli.tables import cell_text, console, print_rows

    out = console()

    def say(text: str) -> None:
        out.print(text, markup=False, soft_wrap=True)

    say(f"{found['n_points']} points of {found['n_shapes']} shapes")
    say("; ".join(f"{name}: {what}" for name, what in found["conventions"].items()))
    rows = [
        {
            "quantity": name,
            "value": entry["value"],
            "low": cell_text(entry["low"]),
            "high": cell_text(entry["high"]),
            "verdict": entry["verdict"],
            "meaning": entry["meaning"],
        }
        for name, entry in found["numbers"].items()
    ]
    out.print()
    print_rows(rows, text=("quantity", "verdict", "meaning"))
    out.print()
    say("shapes that none beats with as many tokens and fewer or as many parameters:")
    keys = ("n_layer", "n_embd", "aspect_ratio", "params", "tokens", "loss")
    print_rows([{key: each[key] for key in keys} for each in found["frontier"]], text=())
    out.print()
    reasons: dict[str, list[str]] = {}
    for name, entry in found["numbers"].items():
        if entry["verdict"] != "identified":
            reasons.setdefault(f"{entry['verdict']}: {entry['why']}", []).append(name)
    for why, names in reasons.items():
        say(f"{', '.join(names)}: {why}")
    say(found["says"])
