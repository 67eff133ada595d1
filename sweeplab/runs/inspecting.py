"""Inspect a trained run: its attention over a text, and its losses on its study's validation split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sweeplab.data.batches import Batch, generator_key
from sweeplab.data.objectives import check_fits, make_objective, objective_of, wholly
from sweeplab.data.objectives.base import check_room
from sweeplab.errors import BadInput
from sweeplab.lab.listing import find_study, read_spec, study_names
from sweeplab.model.generation import Sampling
from sweeplab.model.tracing import attention_weights, trace_batch
from sweeplab.runs import open_run
from sweeplab.runs.generating import Writer, fills_holes, named
from sweeplab.study.inputs import recorded_dataset, start_weights
from sweeplab.train.evaluating import Evaluator, LossInputs, values_at_start

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset, Scored
    from sweeplab.study.spec import StudySpec
    from sweeplab.tracking.models import LoadedRun

# White space, which a label would not show.
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


@dataclass(frozen=True)
class AttentionMap:
    """One layer's attention weights [heads, queries, keys], and the tokens of the queries and keys.

    `place` is encoder, decoder or cross (from decoder to encoder).
    """

    place: str
    layer: int
    queries: Sequence[str]
    keys: Sequence[str]
    weights: Any

    @property
    def title(self) -> str:
        """Return the layer's name for a heading."""
        name = "Cross-attention" if self.place == "cross" else self.place.capitalize()
        return f"{name}, layer {self.layer}"


def read_prompt(run: LoadedRun, text: str) -> Batch:
    """Return a prompt as the run reads it; for a run that maps a source to a target, with its greedy target.

    Raises:
        BadInput: the run cannot read the prompt.
    """
    writer = Writer(run, text, Sampling(temperature=0.0), max_new_tokens=run.values.block_size)
    prompt = writer.prompt
    check_room(prompt.start, run.values)
    tokens = [*prompt.start]
    if prompt.source is not None or (
        objective_of(run.values).learns != "text" and not fills_holes(run)
    ):
        tokens += writer.tokens()
    inputs = np.array([tokens[: run.values.block_size]])
    return Batch(inputs, inputs, None if prompt.source is None else np.array([prompt.source]))


def attention_maps(run: LoadedRun, text: str) -> list[AttentionMap]:
    """Return the attention of each layer over a prompt.

    For a run that maps a source to a target, the prompt is followed by the target that it generates greedily.

    Raises:
        BadInput: the run cannot read the prompt.
    """
    shape = run.model.shape
    batch = read_prompt(run, text)
    weights = attention_weights(shape, run.model.weights, batch)
    words = {"": _words(run, batch.inputs[0].tolist()), "encoder.": list[str]()}
    if batch.source is not None:
        words["encoder."] = _words(run, batch.source[0].tolist())
    maps = []
    for side in shape.of_family.sides:
        queries = words[side.prefix]
        for index in range(shape.layers(side)):
            name = f"{side.prefix}blocks.{index}"
            parts = (("attention", side.name, queries), ("cross", "cross", words["encoder."]))
            for part, where, keys in parts:
                if f"{name}.{part}" in weights:
                    maps.append(
                        AttentionMap(where, index, queries, keys, weights[f"{name}.{part}"])
                    )
    return maps


def traced_prompt(run: LoadedRun, text: str, n_values: int) -> list[dict[str, Any]]:
    """Return the steps of a run's forward pass over a prompt at its last position.

    Raises:
        BadInput: the run cannot read the prompt.
    """
    batch = read_prompt(run, text)
    return trace_batch(
        run.model.shape, run.model.weights, batch, batch.inputs.shape[1] - 1, n_values
    )


def _words(run: LoadedRun, tokens: Sequence[int]) -> list[str]:
    return [named(run, token).translate(_VISIBLE) for token in tokens]


def evaluated(
    text: str, lab: Path, study: str | None = None, allow_plugins: bool = False
) -> dict[str, Any]:
    """Evaluate a run on a validation split: return its measures, as plain values.

    The data are those of `study`, by default of the study in the run's name.

    Raises:
        BadInput: there is no such run or study, or the run cannot read the study's data.
    """
    run = open_run(text, lab, allow_plugins=allow_plugins)
    if study is None:
        study = text.partition("/")[0]
        if study not in study_names(lab):
            what = f"run {text} is of no study in this lab: name one with --study, for its data"
            raise BadInput(what)
    folder = find_study(lab, study)
    spec = read_spec(folder, allow_plugins=allow_plugins)
    dataset = recorded_dataset(folder, spec)
    if dataset.tokenizer.to_json() != run.tokenizer.to_json():
        raise BadInput(f"run {text} and study {study} have different tokenizers")
    kind = objective_of(run.values)
    if kind.learns != dataset.kind:
        raise BadInput(
            f"run {text} was trained on {kind.learns}, but study {study} has {dataset.kind}"
        )
    return {
        "run": run.run_id,
        "study": study,
        "block_size": run.values.block_size,
        "unit": kind.unit,
        "measures": scored(run, dataset, spec=spec),
    }


def scored(
    run: LoadedRun,
    dataset: Dataset,
    split: Scored = "val",
    whole: bool = False,
    spec: StudySpec | None = None,
) -> dict[str, float]:
    """Return a run's measures on a split: on the part that its own evaluations read, or on the `whole` split.

    The loss is `val_loss` or `test_loss`. Nothing else in sweeplab reads the test split: looking at it often would
    amount to choosing by it.

    Raises:
        BadInput: the split is too short, or the run's objective reads the start, which its study (`spec`) has not.
    """
    name = "validation" if split == "val" else split
    check_fits({name: getattr(dataset, split)}, run.values)
    model, values = run.model, wholly(run.values) if whole else run.values
    evaluation = Evaluator(
        model.transformer,
        model.transformer.losses,
        make_objective(getattr(dataset, split), values, run.own_special),
        values.evaluated_tokens,
    )
    objective, at_start = evaluation.objective, None
    if objective.reads_start:
        start = start_weights(spec)(values) if spec else None
        if start is None:
            what = f"a run of objective {objective.name} is compared with its study's start weights"
            raise BadInput(f"{what}, and it has none")
        row = model.transformer.layout.row_of(start, generator_key(values.seed, "init"))
        at_start = values_at_start(model.transformer, row, objective)[None]
    columns = [torch.tensor([getattr(values, name)]) for name in objective.hyperparameters]
    with torch.no_grad():
        of_runs = evaluation(model.stacked, LossInputs(columns, at_start))
    measures = {name: runs[0] for name, runs in of_runs.items()}
    loss = measures.pop("val_loss")
    measures = {f"{split}_loss": loss, **measures}
    bits = dataset.bits_per_byte(loss, values, split)
    if bits is not None:
        measures |= {"perplexity": math.exp(min(loss, 700.0)), "bits_per_byte": bits}
    return measures
