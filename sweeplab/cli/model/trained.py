"""`sweeplab model attention` and `next`: what a trained run attends to, and predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.options import AsJson, Lab, Prompt, Run, option
from sweeplab.cli.printing import print_json, print_rows


def attention(
    run: Run,
    prompt: Prompt,
    layer: Annotated[int | None, option("N", "Only this layer, from 0.")] = None,
    head: Annotated[int | None, option("N", "Only this head, from 0.")] = None,
    output: Annotated[Path | None, option("FILE", "The page.  [default: LAB/reports/attention.html]")] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Draw what each head of a run attends to.

    A page of its own, with one matrix per head, one panel per layer, and their numbers below. An
    encoder-decoder first generates a target for the prompt; its cross-attention is drawn too.

    \b
    $ sweeplab model attention small --prompt "The print function" --layer 0
    """
    from sweeplab.records.folders import lab_folder
    from sweeplab.report.models import write_attention
    from sweeplab.runs.inspecting import attention_maps
    from sweeplab.runs.opening import open_run

    opened = open_run(run, lab_folder(lab))
    maps = attention_maps(opened, prompt, layer, head)
    file = output or lab_folder(lab) / "reports" / "attention.html"
    write_attention(opened.run_id, prompt, maps, file)
    if as_json:
        plain = [{**vars(each), "heads": list(each.heads), "weights": each.weights.tolist()} for each in maps]
        print_json({"output": str(file), "run": opened.run_id, "maps": plain})
    else:
        typer.echo(f"{file} written")


def next_tokens(
    run: Run,
    prompt: Prompt,
    most: Annotated[int, option("N", "Number of tokens to show.", min=1)] = 10,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Rank the most probable tokens after a prompt.

    For an encoder, those in each [MASK] of the prompt; for a model of spans, those that start the
    first [MASK]; for a model of pairs, the first of the target. Probabilities are at temperature 1.

    \b
    $ sweeplab model next small --prompt "import "
    $ sweeplab model next masked --prompt "The [MASK] sat" --most 3 --json
    """
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
            "[MASK]": mask if len(ranked) > 1 else None,
            "rank": rank,
            "token": repr(row["token"]),
            "probability": f"{row['probability']:.4f}",
            "id": str(row["id"]),
        }
        for mask, place in enumerate(ranked, start=1)
        for rank, row in enumerate(place, start=1)
    ]
    print_rows(rows, text=("token",))
