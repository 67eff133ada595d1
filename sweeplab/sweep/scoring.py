"""The long evaluation, on the whole validation split: of the trials that a finished study chooses, from checkpoints.

While trials train, all are judged by sampled evaluations on the same targets. Once all have ended, the chosen trial of
each cell and those that cannot be told from it are evaluated on the whole split. Which they are follows from the
trials' values alone, not from who trained them; a run without a checkpoint is not evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from sweeplab.data.objectives import wholly
from sweeplab.lab.listing import StudyTrials, Trial

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.spec import StudySpec


def score_chosen(spec: StudySpec, folder: StudyFolder, dataset: Dataset) -> None:
    """Write the losses on the whole split into the ends of the chosen trials' runs that lack them."""
    from sweeplab.runs.inspecting import scored
    from sweeplab.tracking.loading import load_checkpoint

    for trial in _chosen(StudyTrials(folder)):
        for run in trial.runs:
            end, checkpoint = run.read_end(), run.checkpoint()
            if end is None or checkpoint is None or end.whole_val_loss is not None:
                continue
            loaded = load_checkpoint(checkpoint)
            loss = scored(loaded, dataset, whole=True, spec=spec)["val_loss"]
            bits = dataset.bits_per_byte(loss, wholly(loaded.values))
            if spec.objective.at == "best":
                end = replace(end, best_whole_val_loss=loss, best_whole_bits_per_byte=bits)
            else:
                end = replace(end, final_whole_val_loss=loss, final_whole_bits_per_byte=bits)
            run.rewrite_end(end)


def _chosen(trials: StudyTrials) -> Iterator[Trial]:
    for cell in trials.best_of_cells():
        choice = trials.choice(cell)
        if choice is None:
            continue
        for _, number in [choice.place, *choice.rivals]:
            yield trials.find(cell, number)
