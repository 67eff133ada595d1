"""`sweeplab study predict`: what to train a larger size with, and the loss to expect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from sweeplab.cli.laws.source import Count, Where, read_source
from sweeplab.cli.options import Force, Lab, StudyName, flag, option
from sweeplab.cli.printing import Answer, cell_text, print_rows, say
from sweeplab.cli.study.manage import new_file
from sweeplab.formatting import bytes_in_words, duration, yaml_text


def predict(
    name: StudyName,
    at: Annotated[str, option("NAME=VALUE,…", "The size, with every hyperparameter of the grid.")],
    write: Annotated[Path | None, option("FILE", "Write the study file that trains it.")] = None,
    seal: Annotated[bool, flag("Seal the loss in the lab's ledger, for `laws verify`.", "--seal")] = False,
    force: Force = False,
    count: Count = None,
    where: Where = None,
    lab: Lab = None,
) -> Answer:
    """Predict the best values and the loss of a size.

    The size was not tried. Searched values follow their laws over the study's sizes, as in `laws hyperparameters`;
    a value without a law is that of the nearest cell. The loss is that of `laws fit`, with a run's 90% interval.

    \b
    $ sweeplab study predict small --at n_layer=2,n_embd=64
    $ sweeplab study predict small --at n_layer=2,n_embd=64 --write large.yaml
    """
    from sweeplab.analysis import sealing
    from sweeplab.analysis.ledger import FILE_NAME
    from sweeplab.analysis.predicting import predict_size
    from sweeplab.errors import BadInput
    from sweeplab.lab.listing import find_study
    from sweeplab.records.folders import lab_folder
    from sweeplab.study.file.template import study_file
    from sweeplab.sweep.planning import look_ahead, make_plan

    folder = find_study(lab, name)
    points, counting, read = read_source(name, None, count, lab, where)
    assert read  # a study's name is no file
    predicted = predict_size(folder, read, points, [f"--at {part}" for part in at.split(",")], counting)
    plan, *_ = make_plan(predicted.spec, folder.lab)
    ahead, (cell, *_) = look_ahead(predicted.spec, plan, folder.lab), plan.cells
    cost = {"flops": cell.train_flops, "memory_bytes": cell.memory_bytes, "seconds": ahead.seconds}
    answer = {"study": folder.name, **predicted.as_dict(), "cost": cost, "timed_by": ahead.timed_by}
    if seal:
        if predicted.law is None:
            raise BadInput(f"there is no loss to seal: {predicted.why_none}")
        origin = sealing.Source((folder.name,), False, counting)
        path = lab_folder(lab) / FILE_NAME
        entries = sealing.seal(path, origin, predicted.law, folder.lab, [predicted.target]).entries
        answer |= {"ledger": str(path), "sealed": entries[-1].sha256}
    if write:
        comment = f"What `study predict {folder.name} --at {at}` says."
        new_file(write, study_file(predicted.spec.as_written(), [comment]), force)
        answer["study_file"] = str(write)
    return answer, _print_prediction


def _print_prediction(answer: Mapping[str, Any]) -> None:
    away = ", ".join(f"{factor:.3g} times outside of {size}" for size, factor in answer["beyond"].items())
    say(f"{answer['cell']}" + (f": {away}" if away else ""), "bold")
    rows = [
        {
            "": name,
            "value": yaml_text(entry["value"]),
            "low": cell_text(entry["low"]),
            "high": cell_text(entry["high"]),
            "verdict": entry["verdict"],
            "why": entry["why"],
        }
        for name, entry in answer["values"].items()
    ]
    print_rows(rows, text=("", "verdict", "why"))
    if answer["regret"] is not None:
        say(
            f"\nexpected to cost {answer['regret']:.3%} of the loss, because these values are not known exactly"
        )
    loss, cost = answer["loss"], answer["cost"]
    if loss["low"] is None:
        say(f"loss: {loss['why']}")
    else:
        ends = f"{cell_text(loss['low'])} to {cell_text(loss['high'])}"
        say(
            f"loss of a run: {cell_text(loss['value'])} ({ends}), {loss['verdict']}, by {loss['law']}: {loss['why']}"
        )
    size = bytes_in_words(cost["memory_bytes"])
    say(f"{cost['flops']:.3g} FLOPs, {size}, about {duration(cost['seconds'])} here")
    if "sealed" in answer:
        say(f"sealed in {answer['ledger']}: {answer['sealed']}")
    if "study_file" in answer:
        say(f"wrote {answer['study_file']}\nnext: sweeplab study run {answer['study_file']}")
