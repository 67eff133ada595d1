"""`sweeplab study transfer`: tune small, predict large, and train that to see what the prediction cost."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from sweeplab import load_study
from sweeplab.cli.options import (
    AllowPlugins,
    AsJson,
    Lab,
    MaybeStudyFile,
    Name,
    Overrides,
    Quiet,
    flag,
    named_file,
    option,
    overrides,
)
from sweeplab.cli.printing import Answer, cell_text, print_answer, print_rows, say, say_start

if TYPE_CHECKING:
    from sweeplab.analysis.transferring import Transferred


def transfer(
    file: MaybeStudyFile = None,
    override: Overrides = None,
    name: Name = None,
    ladder: Annotated[
        float,
        option(
            "FACTOR",
            "Train learning rates up to FACTOR below and above the predicted one, in steps of 2.",
            min=1,
            max=1000,
        ),
    ] = 4.0,
    mup: Annotated[
        bool, flag("Do the same again under muP, beside the standard parametrization.", "--mup")
    ] = False,
    allow_plugins: AllowPlugins = False,
    quiet: Quiet = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Tune small sizes, predict the largest, and train it.

    The largest value of a size in the grid is held out and the other sizes are tuned. The values and the
    loss at each held-out size are predicted and sealed; it is trained with the predicted learning rate,
    with the best one of the largest tuned size, and with a ladder around the predicted one. Ctrl-C saves
    the runs; the same command continues them.

    \b
    $ sweeplab study transfer studies/small.yaml
    $ sweeplab study transfer studies/small.yaml --mup --ladder 8
    """
    file = named_file(file, lab)
    study = load_study(
        file, lab=lab, name=name, overrides=overrides(override, None, None), allow_plugins=allow_plugins
    )
    say_start(f"reading the data of {file}", quiet)
    from sweeplab.cli.study.view import followed

    again = shlex.join(["sweeplab", *sys.argv[1:]])
    done = followed(lambda run: study.transfer(ladder, mup, run), again, as_json, quiet)
    print_answer(_answer(study.spec.name, done), as_json)


def _answer(name: str, done: list[Transferred]) -> Answer:
    return {"study": name, "sizes": [size.as_dict() for size in done]}, _print_transferred


def _print_transferred(answer: Mapping[str, Any]) -> None:
    for size in answer["sizes"]:
        predicted, loss = size["prediction"]["values"]["learning_rate"], size["prediction"]["loss"]
        say(f"{size['large']}, {size['parametrization']} parametrization", "bold")
        marks = {size["predicted"]: "predicted", size["copied"]: f"copied from {size['copied_from']}"}
        if size["predicted"] == size["copied"]:
            marks[size["predicted"]] = f"predicted, as copied from {size['copied_from']}"
        rows = [
            {
                "learning_rate": cell_text(rung["learning_rate"]),
                "loss": cell_text(rung["loss"]),
                "above the best": _share(rung["cost"]),
                "": marks.get(rung["learning_rate"], ""),
            }
            for rung in size["losses"]
        ]
        print_rows(rows, text=("",))
        interval = f" ({cell_text(predicted['low'])} to {cell_text(predicted['high'])})" * (
            predicted["low"] is not None
        )
        say(
            f"predicted learning rate {cell_text(size['predicted'])}{interval}, {predicted['verdict']}: costs "
            f"{_share(size['cost'])} of the loss against the best of the ladder; copying {size['copied_from']} costs "
            f"{_share(size['cost_of_copying'])}"
        )
        if size["best_is_at_end"] and len(size["losses"]) > 2:
            say(
                "the best lies at an end of the ladder, so both may cost more: --ladder with a larger FACTOR tells",
                "yellow",
            )
        if size["held"] is None:
            say(f"loss: {loss['why']}")
        else:
            seen = "holds the loss seen" if size["held"] else "does not hold the loss seen"
            ends = f"{cell_text(loss['low'])} to {cell_text(loss['high'])}"
            say(f"loss of a run: {cell_text(loss['value'])} ({ends}), {loss['verdict']}; the interval {seen}")
        say(f"sealed: {size['sealed']}" if size["sealed"] else f"not sealed: {size['why_not']}")
        say()
    if len(answer["sizes"]) > 1:
        print_rows([_side_by_side(size) for size in answer["sizes"]], text=("size", "parametrization"))


def _side_by_side(size: Mapping[str, Any]) -> dict[str, Any]:
    losses = {rung["learning_rate"]: rung["loss"] for rung in size["losses"]}
    return {
        "size": size["large"],
        "parametrization": size["parametrization"],
        "loss as predicted": cell_text(losses[size["predicted"]]),
        "best loss": cell_text(losses.get(size["best"])),
        "prediction costs": _share(size["cost"]),
        "copying costs": _share(size["cost_of_copying"]),
    }


def _share(cost: float | None) -> str:
    if cost is None:
        return "diverged"
    return f"{cost:.2%}"
