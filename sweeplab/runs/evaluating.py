"""A trained run on its study's validation split: what an evaluation finds, by position, and at other lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.data.objectives import check_fits, objective_of
from sweeplab.errors import BadInput
from sweeplab.lab.listing import find_study, read_spec, study_names
from sweeplab.runs.opening import open_run
from sweeplab.study.inputs import recorded_dataset

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset
    from sweeplab.tracking.loading import LoadedRun


def evaluated(text: str, lab: Path, times: Sequence[int], study: str | None = None) -> dict[str, Any]:
    """Return as plain values what an evaluation of a run finds, and its loss on sequences of `times` block_size.

    `study` is whose data are read; without it those of the study that the run is named by. A length that cannot be
    is among `left_out`, with the reason.

    Raises:
        BadInput: there is no such run, or no such study; its data are not what the run reads.
    """
    run = open_run(text, lab)
    own = text.partition("/")[0]
    if study is None and own not in study_names(lab):
        raise BadInput(f"run {text} does not say whose data it reads: --study NAME does")
    study = study or own
    folder = find_study(lab, study)
    dataset = recorded_dataset(folder, read_spec(folder))
    if dataset.tokenizer.to_json() != run.tokenizer.to_json():
        raise BadInput(f"run {text} reads other tokens than study {study}")
    if (of_pairs := objective_of(run.values).of_pairs) != dataset.of_pairs:
        learned, has = ("pairs", "one text") if of_pairs else ("one text", "pairs")
        raise BadInput(f"run {text} has learned from {learned}, and study {study} has {has}")
    check_fits({"validation": dataset.val}, run.values)
    lengths, left_out = _lengths(run, dataset, times)
    return {
        "run": run.run_id,
        "study": study,
        "block_size": run.values.block_size,
        "measures": _measures(run, dataset),
        "length_extrapolation": lengths,
        "left_out": left_out,
    }


def _measures(run: LoadedRun, dataset: Dataset) -> dict[str, float]:
    import torch

    from sweeplab.data.objectives import make_objective
    from sweeplab.train.evaluating import Evaluation

    model, values = run.model, run.values
    evaluation = Evaluation(
        model.transformer,
        model.transformer.losses,
        make_objective(dataset.val, values, run.own_special),
        None if values.eval_full else values.eval_iters,
    )
    with torch.no_grad():
        found = {name: each[0] for name, each in evaluation(model.stacked).items()}
    return {
        **found,
        "perplexity": math.exp(min(found["val_loss"], 700.0)),
        "bits_per_byte": dataset.bits_per_byte(found["val_loss"], values),
    }


def _lengths(
    run: LoadedRun, dataset: Dataset, times: Sequence[int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the losses at each length that can be, and why each of the others cannot."""
    from sweeplab.train.evaluating import losses_at, why_not_longer

    found, left_out = [], []
    bounded = why_not_longer(run.values)
    for each in times:
        try:
            if each > 1 and bounded:
                raise ValueError(bounded)
            at = losses_at(
                run.model.transformer, run.model.stacked, dataset.val, run.values, each, run.own_special
            )
        except ValueError as error:
            left_out.append({"times": each, "why": str(error)})
            continue
        found.append(
            {
                "times": each,
                "length": len(at.by_position),
                "targets": int(at.counts.sum()),
                "val_loss": at.loss,
                "bits_per_byte": dataset.bits_per_byte(at.loss, run.values),
                "by_position": at.by_position.tolist(),
            }
        )
    return found, left_out
