"""What is to be run next, as a person reads it."""

from __future__ import annotations

from typing import Any

from sweeplab.cli.tables import cell_text, console, print_rows


def print_next(said: dict[str, Any]) -> None:
    """Print what `NextRuns.as_dict` returned: a row a run, then what they do to the interval."""
    out = console()

    def say(text: str, style: str | None = None) -> None:
        out.print(text, style=style, markup=False, soft_wrap=True)

    say(f"{said['quantity']}: {said['meaning']}")
    say(f"{said['n_runs']} runs for {said['spent_flops']:.3g} of {said['budget_flops']:.3g} FLOPs")
    rows = [
        {
            **(
                {"cell": ",".join(f"{name}={value}" for name, value in run["cell"].items())}
                if "cell" in run
                else {}
            ),
            "params": f"{run['params']:.3g}",
            "tokens": f"{run['tokens']:.3g}",
            "tokens_per_param": f"{run['tokens_per_param']:.3g}",
            "times": run["times"] if said["n_runs"] > len(said["runs"]) else None,
            "FLOPs": f"{run['flops']:.3g}",
            "of the budget": f"{run['share_of_budget']:.1%}",
            "of the information": f"{run['share_of_information']:.1%}",
        }
        for run in said["runs"]
    ]
    out.print()
    print_rows(rows, text=("cell",))
    out.print()
    width = said["width"]
    for name, words in (
        ("now", "as the table is"),
        ("after", "with these runs"),
        ("grid_of_equal_cost", "with a grid of equal cost"),
    ):
        say(f"{said['level']:.0%} interval {words}: {_ends(width[name], width['is_factor'])}")
    if (flops := said["grid_flops_for_the_same"]) is not None:
        say(
            f"a grid would take {flops:.3g} FLOPs for the same, {flops / said['spent_flops']:.2g} times as many"
        )
    for warning in said["warnings"]:
        say(f"warning: {warning}", "yellow")
    if "study_file" in said:
        say(f"written to {said['study_file']}; sweeplab study run {said['study_file']} trains them")


def _ends(width: dict[str, float | None], is_factor: bool) -> str:
    if width["at_fit"] is None:
        return "too wide for any number"
    sign = "a factor " if is_factor else "±"
    ends = [cell_text(width[name]) for name in ("low", "high")]
    return f"{sign}{cell_text(width['at_fit'])} ({' to '.join(ends)} over the fits that the table allows)"
