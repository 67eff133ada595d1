"""A study's data: what it trains on, what is recorded of them, and whether they suit its hyperparameters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sweeplab.data.baselines import find_baseline
from sweeplab.data.corpora import CORPORA
from sweeplab.data.dataset import Dataset, WrongVocabulary, prepare
from sweeplab.data.objectives import SETTINGS
from sweeplab.data.objectives.pairs import share_cut
from sweeplab.data.splits import Pairs
from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.study.starting import read_start

N_DRAWS = 64  # until one meets the study's rules

if TYPE_CHECKING:
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.space import Space
    from sweeplab.study.spec import StudySpec


def study_dataset(spec: StudySpec) -> Dataset:
    """Return a study's data, from the cache if it has them; cut by the tokenizer of the run that it starts from.

    Raises:
        BadInput: as `prepare` and `read_start` do.
    """
    data, start = spec.data, read_start(spec)
    given = start.tokenizer if start else None
    return prepare(data.corpus, data.tokenizer, spec.data_path, vocab_size=data.vocab_size, given=given)


def placed_dataset(spec: StudySpec) -> Dataset:
    """Return a study's data.

    Raises:
        BadInput: there are none; points at the line of the study that names them.
    """
    try:
        return study_dataset(spec)
    except BadInput as error:
        name = "path" if spec.data.path else "corpus"
        with spec.blaming(("data", "vocab_size" if isinstance(error, WrongVocabulary) else name)):
            raise


def recorded_dataset(folder: StudyFolder, spec: StudySpec) -> Dataset:
    """Return a study's data as they were when it was run.

    Raises:
        BadInput: they have changed since.
    """
    dataset = study_dataset(spec)
    known = json.loads(folder.data_file.read_text(encoding="utf-8"))
    if dataset.token_digest != known["token_digest"]:
        raise BadInput(f"the text of study {folder.name} has changed since it was trained on")
    return dataset


def describe_data(spec: StudySpec, dataset: Dataset) -> dict[str, Any]:
    """Return what a study records of its data, and of the weights that its runs start from."""
    start = read_start(spec)
    return {
        **({"init_digest": start.digest} if start else {}),
        "corpus": spec.data.corpus,
        "tokenizer": spec.data.tokenizer,
        "vocab_size": dataset.tokenizer.vocab_size,
        "train_tokens": len(dataset.train),
        "val_tokens": len(dataset.val),
        "val_targets": dataset.val_targets,
        "val_bytes": dataset.val_bytes,
        "text_digest": dataset.text_digest,
        "token_digest": dataset.token_digest,
    }


def write_baselines(folder: StudyFolder, spaces: Iterable[Space], dataset: Dataset) -> None:
    """Keep the n-gram baseline of each cell, for a typical trial of it, beside the study's results."""
    found = {}
    for space in spaces:
        valid = (each for each in space.draws(N_DRAWS) if space.broken(each) is None)
        if (typical := next(valid, None)) and (baseline := find_baseline(dataset, typical)):
            found[space.cell.key] = asdict(baseline)
    write_whole(folder.baselines_file, json.dumps(found, indent=1).encode())


def distinct(probes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return one of the effective hyperparameters each that decide how data are cut."""
    return list({tuple(values[name] for name in SETTINGS): values for values in probes}.values())


def cut_warning(spec: StudySpec, dataset: Dataset, values: Mapping[str, Any]) -> str | None:
    """Return how many pairs lose the end of their source to block_size; None where none does.

    Raises:
        BadInput: some do of a corpus whose targets follow from whole sources only.
    """
    if not isinstance(dataset.train, Pairs) or not (share := share_cut(dataset.train, values)):
        return None
    # What room a source has is the family's: a decoder has it beside the target.
    said = f"block_size {values['block_size']} of family {values['family']} cuts the source of {share:.0%} of the pairs"
    if CORPORA[spec.data.corpus].needs_whole:
        raise BadInput(f"{said}, and their targets follow from the whole of it")
    return said
