"""`sweeplab model next`: the most probable next tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from sweeplab.cli.options import AsJson, Lab, Prompt, Run


def next_(
    run: Run,
    prompt: Prompt,
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, help="Show so many.")] = 10,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Rank the most probable tokens after a prompt.

    Of an encoder those in each [MASK] of the prompt, of a model of spans those that begin the first
    [MASK], and of one of pairs the first of the target. The probabilities are the model's own, at a temperature of 1.

    \b
    $ sweeplab model next small --prompt "import "
    $ sweeplab model next masked --prompt "The [MASK] sat" --most 3 --json
    """
    from sweeplab.cli.tables import print_json, print_rows
    from sweeplab.records.folders import lab_folder
    from sweeplab.runs.generating import Writer, chosen
    from sweeplab.runs.opening import open_run

    opened = open_run(run, lab_folder(lab))
    ranked = Writer(opened, prompt, *chosen(opened.values, {})).ranked(most)
    if as_json:
        said = {"run": opened.run_id, "prompt": prompt}
        print_json({**said, "places": ranked} if len(ranked) > 1 else {**said, "tokens": ranked[0]})
        return
    rows = [
        {
            "[MASK]": hole if len(ranked) > 1 else None,
            "rank": rank,
            "token": repr(row["token"]),
            "probability": f"{row['probability']:.4f}",
            "id": str(row["id"]),
        }
        for hole, place in enumerate(ranked, start=1)
        for rank, row in enumerate(place, start=1)
    ]
    print_rows(rows, text=("token",))
