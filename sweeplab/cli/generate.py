"""`sweeplab generate`: text from a trained run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeplab.cli.options import AsJson, Lab, Prompt, Run
from sweeplab.errors import BadInput, Problem

if TYPE_CHECKING:
    from sweeplab.runs.generating import Writer


def generate(
    run: Run,
    prompt: Prompt,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T", help="Flatten (above 1) or sharpen.  [default: the run's own]", show_default=False
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="Draw from the K best tokens.  [default: the run's own]", show_default=False
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Draw from the best tokens of this total probability.  [default: the run's own]",
            show_default=False,
        ),
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the best token each time.")] = False,
    beams: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Search for the likeliest text by N beams.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="SEED",
            min=0,
            max=2**63 - 1,
            help="What is drawn follows from it.  [default: 0]",
            show_default=False,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Find at most N tokens.  [default: the run's own]", show_default=False
        ),
    ] = None,
    contrast: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Take what the run knows better than this one, a smaller one of the same tokens.",
            show_default=False,
        ),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write text by a trained run, as its tokens come.

    A decoder goes on from the prompt until --max-new-tokens are found: running text has no end. An encoder
    fills each [MASK] with a token, the surest first; one trained on spans fills it with several. A model of
    pairs writes the target of the prompt, and ends it.

    \b
    $ sweeplab generate small --prompt "import " --greedy
    $ sweeplab generate small --prompt "def " --contrast small/n_layer=1,n_embd=32
    $ sweeplab generate masked --prompt "The [MASK] sat"
    """
    from sweeplab.records.folders import lab_folder
    from sweeplab.runs.generating import Writer, chosen
    from sweeplab.runs.opening import open_run

    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    drawing = [
        name for name, each in {**drawn, "seed": seed, "greedy": greedy or None}.items() if each is not None
    ]
    if beams is not None and drawing:
        option = drawing[0].replace("_", "-")
        raise BadInput(Problem(f"--{option} beside --beams, which draw nothing", "one of them"))
    given = {**drawn, "max_new_tokens": max_new_tokens}
    chosen({}, given)  # what is out of range is said before anything is loaded
    place = lab_folder(lab)
    opened = open_run(run, place)
    amateur = open_run(contrast, place) if contrast is not None else None
    writer = Writer(opened, prompt, *chosen(opened.values, given, greedy), seed=seed or 0, amateur=amateur)
    if as_json:
        from sweeplab.cli.tables import print_json

        print_json(_found(writer, beams))
    elif beams is not None:
        print(writer.beams(beams)[0]["text"])
    else:
        for piece in writer.words(writer.tokens()):
            print(piece, end="", flush=True)
        print(flush=True)


def _found(writer: Writer, beams: int | None) -> dict[str, Any]:
    """Return what was found as plain values: a text, or one for each beam."""
    said: dict[str, Any] = {"run": writer.run.run_id, "prompt": writer.text}
    if beams is not None:
        return {**said, "beams": writer.beams(beams)}
    tokens = list(writer.tokens())
    return {**said, "seed": writer.seed, "tokens": tokens, "text": "".join(writer.words(tokens))}
