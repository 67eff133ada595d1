"""`sweeplab laws predict` and `transfer`: what to train a larger size with, the loss to expect, and what it is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

from sweeplab import load_study
from sweeplab.analysis.ledger import FILE_NAME
from sweeplab.cli import options
from sweeplab.cli.laws import Count, Where, read_source
from sweeplab.cli.options import flag, option
from sweeplab.cli.printing import (
    Answer,
    cell_text,
    interval,
    print_answer,
    print_rows,
    say,
    say_start,
    with_interval,
)
from sweeplab.cli.study.manage import new_file
from sweeplab.errors import BadInput
from sweeplab.formatting import bytes_in_words, duration
from sweeplab.lab.listing import find_study
from sweeplab.records.folders import StudyFolder, lab_folder


def predict(
    name: options.StudyName,
    at: Annotated[str, option("NAME=VALUE,…", "The size, with every hyperparameter of the grid.")],
    write: Annotated[Path | None, option("FILE", "Write the study file that trains it.")] = None,
    seal: Annotated[bool, flag("Seal the loss in the lab's ledger, for `laws verify`.", "--seal")] = False,
    force: options.Force = False,
    count: Count = None,
    where: Where = None,
    lab: options.Lab = None,
) -> Answer:
    """Predict the best values and the loss of a size.

    The size was not tried. Searched values follow their laws over the study's sizes, as in `laws hyperparameters`;
    a value without a law is that of the nearest cell. The loss is that of `laws fit`, with a run's 90% interval,
    and with what the values are expected to cost: --at may name searched values, too, such as a learning rate.

    \b
    $ sweeplab laws predict small --at n_layer=2,n_embd=64
    $ sweeplab laws predict small --at n_layer=2,n_embd=64 --write large.yaml
    """
    from sweeplab.analysis import sealing
    from sweeplab.analysis.predicting import predict_size
    from sweeplab.lab.identity import check_same_study
    from sweeplab.study.file.template import study_file
    from sweeplab.sweep.planning import look_ahead

    folder = find_study(lab, name)
    points, counting, read = read_source(name, None, count, lab, where)
    assert read  # a study's name is no file
    predicted = predict_size(folder, read, points, [f"--at {part}" for part in at.split(",")], counting)
    spec, plan = predicted.spec, predicted.plan
    if seal or write:
        check_same_study(spec, StudyFolder(folder.lab, spec.name), plan.data)
    # A study of this name may have trained it already, or something else: what a new one takes is asked for.
    unused = spec.model_copy(update={"name": f"{spec.name}-{token_hex(4)}"})
    ahead, (cell, *_) = look_ahead(unused, plan, folder.lab), plan.cells
    cost = {"flops": cell.train_flops, "memory_bytes": cell.memory_bytes, "seconds": ahead.seconds}
    answer = {"study": folder.name, **predicted.as_dict(), "cost": cost, "timed_by": ahead.timed_by}
    answer["conventions"] = dict(points.conventions)
    if seal:
        if predicted.is_row:
            raise BadInput(
                f"--seal: --at {at} is a size of {folder.name}, and a forecast is of one that was not trained"
            )
        if predicted.law is None:
            raise BadInput(f"there is no loss to seal: {predicted.why_none}")
        origin = sealing.PointSource((folder.name,), False, counting)
        path = lab_folder(lab) / FILE_NAME
        entries = sealing.seal(path, origin, predicted.law, folder.lab, [predicted.target]).entries
        answer |= {"ledger": str(path), "sealed": entries[-1].sha256}
    if write:
        comment = f"What `laws predict {folder.name} --at {at}` says."
        new_file(write, study_file(spec.as_written(), [comment]), force)
        answer["study_file"] = str(write)
    return answer, _print_prediction


def _print_prediction(answer: Mapping[str, Any]) -> None:
    away = ", ".join(f"{size} by a factor of {factor:.3g}" for size, factor in answer["beyond"].items())
    place = f", beyond the sizes of {answer['study']}: {away}" if away else ""
    if answer["is_row"]:
        place = f", one of the sizes of {answer['study']}"
    say(f"{answer['name']} {answer['cell'].removeprefix('all ')}{place}", "bold")
    say("; ".join(f"{name}: {answer['conventions'][name]}" for name in ("params", "loss")))
    rows = [
        {"": name}
        | {column: cell_text(entry[column]) for column in ("value", "low", "high")}
        | {"verdict": entry["verdict"], "why": entry["why"]}
        for name, entry in answer["values"].items()
    ]
    print_rows(rows, text=("", "verdict", "why"))
    loss, cost, with_them = answer["loss"], answer["cost"], ", well tuned"
    if answer["regret"] is not None:
        say(f"\nexpected to cost {answer['regret']:.3%} of the loss against the best values of this size")
        with_them = " with these values"
    if loss["low"] is None:
        say(f"loss: {loss['why']}")
    else:
        say(
            f"loss of a run{with_them}: {with_interval(loss)}, {loss['verdict']}, by {loss['law']}: {loss['why']}"
        )
    size = bytes_in_words(cost["memory_bytes"])
    takes = "" if cost["seconds"] is None else f", about {duration(cost['seconds'])} here"
    say(f"{cost['flops']:.3g} FLOPs, {size}{takes}")
    if "sealed" in answer:
        say(f"sealed in {answer['ledger']}: {answer['sealed']}")
    if "study_file" in answer:
        say(f"wrote {answer['study_file']}\nnext: sweeplab run {answer['study_file']}")


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
    mup: Annotated[
        bool, flag("Do the same again under muP, beside the standard parametrization.", "--mup")
    ] = False,
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
    $ sweeplab transfer studies/small.yaml --mup --ladder 8
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
    done = followed(lambda run: study.transfer(ladder, mup, run, hold_out), again, as_json, quiet)
    answer = {"study": study.spec.name, "sizes": [size.as_dict() for size in done]}
    print_answer((answer, _print_transferred), as_json)


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
        ends = f" ({interval(predicted)})" if predicted["low"] is not None else ""
        say(
            f"predicted learning rate {cell_text(size['predicted'])}{ends}, {predicted['verdict']}: costs "
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
            seen = "holds" if size["held"] else "does not hold"
            say(f"loss of a run: {with_interval(loss)}, {loss['verdict']}; the interval {seen} the loss seen")
        say(f"sealed: {size['sealed']}" if size["sealed"] else f"not sealed: {size['why_not']}")
        say()
    rows = [
        {
            "size": size["large"],
            "parametrization": size["parametrization"],
            "loss as predicted": cell_text(losses[size["predicted"]]),
            "best loss": cell_text(losses.get(size["best"])),
            "prediction costs": _share(size["cost"]),
            "copying costs": _share(size["cost_of_copying"]),
        }
        for size in answer["sizes"]
        for losses in [{rung["learning_rate"]: rung["loss"] for rung in size["losses"]}]
    ]
    if len(rows) > 1:
        print_rows(rows, text=("size", "parametrization"))


def _share(cost: float | None) -> str:
    if cost is None:
        return "diverged"
    return f"{cost:.2%}"
