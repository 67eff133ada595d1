"""`sweeplab model trace`: one token through a whole model."""

from __future__ import annotations

from typing import Annotated

import typer

from sweeplab.cli.options import AsJson, Lab, Overrides, Preset
from sweeplab.errors import BadInput, Problem


def trace(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A trained run: STUDY, STUDY/CELL/TRIAL-SEED, an MLflow run id, or a folder.",
            show_default=False,
        ),
    ] = None,
    preset: Preset = None,
    override: Overrides = None,
    token: Annotated[int, typer.Option(metavar="ID", help="The token's number.")] = 0,
    position: Annotated[int, typer.Option(metavar="N", help="Its place in the text, from 0.")] = 0,
    source_length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Tokens that an encoder reads.  [default: 10]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Draws the other tokens, and weights where no run has them."),
    ] = 0,
    values: Annotated[int, typer.Option(metavar="N", help="Numbers to show of each step.", min=1)] = 5,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Follow one token through a model, step by step.

    At each step the shape of its value and the first numbers of the token's row, in float64 by the
    NumPy reference. Without a run the weights are random ones.

    \b
    $ sweeplab model trace --preset transformer-base --token 42 --source-length 10
    $ sweeplab model trace small --token 42 --position 3 --json
    """
    from sweeplab.cli.tables import print_json
    from sweeplab.runs.models import model_of, opened, started

    if run and (preset or override):
        raise BadInput(Problem("a run and a model without one", "RUN, or --preset and -o"))
    name, shape, weights = opened(run, lab) if run else started(model_of(preset, override or ()), seed)
    from sweeplab.model.tracing import trace_token

    steps = trace_token(shape, weights, token, position, source_length, seed, values)
    if as_json:
        told = {"model": name, "token": token, "position": position, "seed": seed}
        print_json({**told, "steps": [step._asdict() for step in steps]})
        return
    from sweeplab.cli.tables import console, print_rows

    of = "its weights" if run else f"random weights, seed {seed}"
    console().print(f"{name}: token {token} at position {position}, {of}\n", markup=False, soft_wrap=True)
    rows = [
        {
            "step": step.name,
            "shape": " x ".join(map(str, step.shape)),
            "values": " ".join(f"{each:9.4f}" for each in step.values),
        }
        for step in steps
    ]
    print_rows(rows, text=("step", "values"))
