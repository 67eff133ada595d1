"""`sweeplab model attention`: what a trained run attends to, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.options import AsJson, Lab, Prompt, Run


def attention(
    run: Run,
    prompt: Prompt,
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="Only this layer, from 0.", show_default=False)
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="Only this head, from 0.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The page.  [default: reports/attention.html in the lab]", show_default=False
        ),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Draw what each head of a run attends to.

    A page by itself, with a field a head and a panel a layer, its numbers below each. An
    encoder-decoder finds a target for the prompt first; its cross-attention is drawn too.

    \b
    $ sweeplab model attention small --prompt "The print function" --layer 0
    """
    from sweeplab.cli.tables import print_json
    from sweeplab.records.folders import lab_folder
    from sweeplab.report.models import write_attention
    from sweeplab.runs.attending import attention_maps
    from sweeplab.runs.opening import open_run

    opened = open_run(run, lab_folder(lab))
    maps = attention_maps(opened, prompt, layer, head)
    file = output or lab_folder(lab) / "reports" / "attention.html"
    write_attention(opened.run_id, prompt, maps, file)
    if as_json:
        told = [{**vars(each), "heads": list(each.heads), "weights": each.weights.tolist()} for each in maps]
        print_json({"output": str(file), "run": opened.run_id, "maps": told})
    else:
        typer.echo(f"{file} written")
