"""What is said about a law, as a person reads it."""

from __future__ import annotations

from typing import Any

from sweeplab.cli.tables import cell_text, console, print_rows


def print_assessment(found: dict[str, Any]) -> None:
    """Print what `Assessment.as_dict` returned: a row a number, then why some are none, then the warnings."""
    out = console()

    def say(text: str, style: str | None = None) -> None:
        out.print(text, style=style, markup=False, soft_wrap=True)

    how = found["fit"]
    say(f"{found['law']}: {found['formula']}  ({found['source']})")
    say(
        f"{found['n_points']} rows, delta {cell_text(found['delta'])}, residuals of {found['sigma']:.2%}; "
        f"{how['starts_at_the_optimum']} of {how['starts']} starts reached the optimum"
    )
    if dropped := found["dropped"]:
        say("left out: " + ", ".join(f"{count} {reason}" for reason, count in dropped.items()))
    say("; ".join(f"{name}: {what}" for name, what in found["conventions"].items()))
    entries = found["parameters"] | found["derived"]
    rows = [
        {
            "quantity": name,
            "value": entry["value"],
            "low": cell_text(entry["low"]),
            "high": cell_text(entry["high"]),
            **({"bootstrap": _ends(entry["bootstrap"])} if "bootstrap" in entry else {}),
            "verdict": entry["verdict"],
            "meaning": entry["meaning"],
        }
        for name, entry in entries.items()
    ]
    out.print()
    print_rows(rows, text=("quantity", "verdict", "meaning"))
    out.print()
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, entry in entries.items():
        if entry["verdict"] != "identified":
            reasons.setdefault((entry["verdict"], entry["why"]), []).append(name)
    for (verdict, why), names in reasons.items():
        say(f"{', '.join(names)}: {verdict}: {why}")
    for warning in found["warnings"]:
        say(f"warning: {warning}", "yellow")


def _ends(ends: list[float]) -> str:
    return " to ".join(map(cell_text, ends))
