"""`sweeplab transfer`: what to train a larger size with, the loss to expect, and what it is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from sweeplab import load_study
from sweeplab.cli import options
from sweeplab.cli.options import option
from sweeplab.cli.printing import cell_text, interval, print_answer, print_rows, say, say_start


def transfer(
    file: options.MaybeStudyFile = None,
    override: options.Overrides = None,
    name: options.Name = None,
    ladder: Annotated[
        float,
        option(
            "FACTOR",
            "Train learning rates up to FACTOR below and above the predicted one, in steps of 2.",
            min=1,
            max=1000,
        ),
    ] = 4.0,
    hold_out: Annotated[
        str, option("NAME", "Hold out the largest value of this size.  [default: the size that spans most]")
    ] = "",
    allow_plugins: options.AllowPlugins = False,
    quiet: options.Quiet = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Tune small sizes, predict the largest, and train it.

    The largest value of a size in the grid is held out and the other sizes are tuned. The values and the
    loss at each held-out size are predicted and sealed; it is trained with the predicted learning rate,
    with the best one of the largest tuned size, and with a ladder around the predicted one. Ctrl-C saves
    the runs; the same command continues them.

    \b
    $ sweeplab transfer studies/small.yaml
    $ sweeplab transfer small --ladder 8 -o parametrization=mup --name mup
    $ sweeplab transfer studies/small.yaml --hold-out n_layer --name deeper
    """
    file = options.named_file(file, lab)
    study = load_study(
        file,
        lab=lab,
        name=name,
        overrides=options.overrides(override, None, None),
        allow_plugins=allow_plugins,
    )
    say_start(f"reading the data of {file}", quiet)
    from sweeplab.cli.study.view import followed

    again = shlex.join(["sweeplab", *sys.argv[1:]])
    done = followed(lambda run: study.transfer(ladder, run, hold_out), again, as_json, quiet)
    answer = {"study": study.spec.name, "sizes": [size.as_dict() for size in done]}
    print_answer((answer, _print_transferred), as_json)


def _print_transferred(answer: Mapping[str, Any]) -> None:
    for size in answer["sizes"]:
        predicted, loss = size["prediction"]["values"]["learning_rate"], size["prediction"]["loss"]
        say(f"{size['large']}, {size['parametrization']} parametrization", "bold")
        rows = []
        for rung in size["losses"]:
            rate, marks = rung["learning_rate"], list[str]()
            if rate == size["predicted"]:
                marks.append("predicted")
            if rate == size["copied"]:
                marks.append(f"copied from {size['copied_from']}")
            row = {"learning_rate": cell_text(rate), "loss": cell_text(rung["loss"])}
            rows.append(row | {"above the best": _share(rung["cost"]), "": ", ".join(marks)})
        print_rows(rows, text=("",))
        ends = f" ({interval(predicted)})" if predicted["low"] is not None else ""
        say(
            f"predicted learning rate {cell_text(size['predicted'])}{ends}, {predicted['verdict']}: costs "
            f"{_share(size['cost'])} of the loss against the best of the ladder; copying {size['copied_from']} costs "
            f"{_share(size['cost_of_copying'])}"
        )
        if size["best_is_at_end"] and len(size["losses"]) > 2:
            say("the best lies at an end of the ladder: --ladder with a larger FACTOR", "yellow")
        if size["held"] is None:
            say(f"loss: {loss['why']}")
        else:
            seen = "holds" if size["held"] else "does not hold"
            value = f"{cell_text(loss['value'])} ({interval(loss)})"
            say(f"loss of a run: {value}, {loss['verdict']}; the interval {seen} the loss seen")
        say(f"sealed: {size['sealed']}" if size["sealed"] else f"not sealed: {size['why_not']}")
        say()


def _share(cost: float | None) -> str:
    if cost is None:
        return "diverged"
    return f"{cost:.2%}"
