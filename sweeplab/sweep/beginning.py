"""Data that a user names: what is read of them, and a first study of them, which this machine trains in minutes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sweeplab.data.batches import Pairs
from sweeplab.data.corpora import CORPORA
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.readers.source import NAMES, SUFFIXES
from sweeplab.data.tokenizers import TOKENIZERS, IdsTokenizer
from sweeplab.errors import BadInput, Problem
from sweeplab.files import check_is_path
from sweeplab.formatting import duration, several
from sweeplab.study.file.reading import read_plain, read_study, read_text
from sweeplab.study.file.template import study_file
from sweeplab.study.inputs import data_source, describe_data, overlap_warnings, placed_dataset
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.planning import allow_files, look_ahead, make_plan

# Tokens of texts up to so many characters are counted by every tokenizer of these, of longer ones by the chosen one.
COUNTED, MOST_COUNTED_CHARACTERS = ("char", "byte", "bpe"), 2 * 10**7
N_SAMPLES, SAMPLE_TOKENS = 3, 64


def section_of(place: str, folder: Path, **keys: Any) -> dict[str, Any]:
    """Return the section `data` of a study file in a folder, for a file, folder, glob, or files of tokens."""
    check_is_path(place)
    path = Path(place)
    in_folder = (path / f"{name}{suffix}" for name in NAMES["train"] for suffix in SUFFIXES)
    are_tokens = path.suffix in SUFFIXES or any(file.is_file() for file in in_folder)
    written = os.path.relpath(path.expanduser().absolute(), folder.absolute())
    more = {name: value for name, value in keys.items() if value}
    return {"tokens" if are_tokens else "path": written, **more}


def spec_of(place: str, **keys: Any) -> StudySpec:
    """Return a study of the data at a place, or of a study file's data.

    Raises:
        BadInput: a key is not valid.
    """
    if Path(place).suffix in (".yaml", ".yml") and "corpus" not in keys:
        return read_study(Path(place))
    return read_plain({"name": "data", "data": section_of(place, Path.cwd(), **keys)})


def look_at(spec: StudySpec) -> dict[str, Any]:
    """Read a study's data, and return what was read: sizes, splits, tokens by tokenizer, samples, warnings.

    Raises:
        BadInput: they cannot be read.
    """
    dataset = placed_dataset(spec)
    described = describe_data(spec, dataset)
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    return {
        **described.as_dict(),
        "kind": dataset.kind,
        "n_documents": dataset.n_documents,
        "n_characters": dataset.n_characters,
        "splits": {name: len(split) for name, split in splits.items()},
        "tokenizers": _counted(spec, dataset),
        "samples": [_sample(dataset, number) for number in range(N_SAMPLES)],
        "warnings": overlap_warnings(described),
    }


def _counted(spec: StudySpec, dataset: Dataset) -> list[dict[str, Any]]:
    by_name = {spec.data.tokenizer: dataset}
    is_short = 0 < dataset.n_characters <= MOST_COUNTED_CHARACTERS
    for name in COUNTED if is_short and not isinstance(dataset.tokenizer, IdsTokenizer) else ():
        if name not in by_name and name in TOKENIZERS and spec.data.corpus in CORPORA:
            by_name[name] = prepare(spec.data.corpus, name, data_source(spec))
    return [
        {"tokenizer": name, "vocabulary": held.tokenizer.vocab_size, "tokens": n_tokens,
         "characters_per_token": held.n_characters / n_tokens or None}
        for name, held in by_name.items()
        for n_tokens in [len(held.train) + len(held.val) + len(held.test)]
    ]  # fmt: skip


def _sample(dataset: Dataset, number: int) -> str:
    train, decode = dataset.train, dataset.tokenizer.decode
    if isinstance(train, type(dataset.val)) and dataset.kind == "text":
        at = number * len(train) // N_SAMPLES
        return decode(train[at : at + SAMPLE_TOKENS])  # type: ignore[index]
    assert not hasattr(train, "dtype")
    pair = number * train.n_pairs // N_SAMPLES
    start, end = train.starts[pair, 0], train.ends[2 * pair]
    source, target = train.tokens[start:end], train.tokens[end : train.ends[2 * pair + 1]]
    if dataset.labels:
        return f"{decode(source[:SAMPLE_TOKENS])} → {dataset.labels[int(target[0])]}"
    return f"{decode(source[:SAMPLE_TOKENS])} → {decode(target[:SAMPLE_TOKENS])}"


# The seconds that the study is to take, by its plan, and those after which it ends; trials of each cell.
MEANT_SECONDS, MOST_SECONDS, TRIALS = 270.0, 300, 6
# Widths of three models, for training splits of at least so many tokens; narrower ones where steps take long.
WIDTHS = {0: (16, 32, 64), 300_000: (32, 64, 128), 5_000_000: (64, 128, 256)}
# The steps of a run: those of the first estimate, the fewest and most of a study, and how often it sees its text.
TRIED_STEPS, FEWEST_STEPS, MOST_STEPS, MOST_EPOCHS = 400, 100, 5000, 20
BLOCK, LONGEST_PAIR, BATCH = 64, 256, 16


def first_study(name: str, place: str, file: Path, lab: Path) -> tuple[str, list[str]]:
    """Return the text of a study file for the data at a place, and what is said of it.

    The data outside of the file's folder are allowed from now on: the user names them.

    Raises:
        BadInput: the data cannot be read, or are too short for the smallest block_size.
    """
    section = section_of(place, file.parent)
    spec = _read(file, {"name": name, "data": section})
    dataset = placed_dataset(spec)
    section = {**section, "corpus": spec.data.corpus, "tokenizer": spec.data.tokenizer}
    ladder = [widths for least, widths in WIDTHS.items() if len(dataset.train) >= least][::-1]
    for widths in ladder:
        document, steps = _document(name, section, dataset, widths), TRIED_STEPS
        for _ in range(2):  # the second estimate has evaluations, pruning and a start like the study's own
            spec = _read(file, document)
            ahead = look_ahead(spec, make_plan(spec, lab)[0], lab)
            steps = _steps(dataset, document["fixed"], steps * MEANT_SECONDS / max(ahead.seconds, 1.0))
            document = _document(name, section, dataset, widths, steps)
        if steps > FEWEST_STEPS:
            break
    spec = _read(file, document)
    ahead = look_ahead(spec, make_plan(spec, lab)[0], lab)
    allow_files(spec, lab)
    cells = several(len(widths), "size")
    takes = (
        f"{cells}, {several(TRIALS, 'trial')} of each, {several(steps, 'step')} a run: takes {ahead.left.in_words}, "
        f"by {ahead.timed_by}; ends after {duration(MOST_SECONDS)} at the latest"
    )
    words = f"{section['corpus']} by {section['tokenizer']}: {several(len(dataset.train), 'training token')}"
    return study_file(document, [f"{words}; {takes}"]), [words, *dataset.notes, takes]


def _read(file: Path, document: dict[str, Any]) -> StudySpec:
    return read_text(study_file(document), file)


def _steps(dataset: Dataset, fixed: dict[str, Any], steps: float) -> int:
    a_row = fixed["block_size"] if dataset.sizes.train_pairs is None else 1
    size = dataset.sizes.train_pairs or len(dataset.train)
    most = MOST_EPOCHS * size / (fixed["batch_size"] * a_row)
    steps = max(FEWEST_STEPS, min(steps, MOST_STEPS, most))
    scale = 10 ** (math.floor(math.log10(steps)) - 1)
    return int(steps // scale * scale)


def _document(
    name: str, section: dict[str, Any], dataset: Dataset, widths: Sequence[int], steps: int = TRIED_STEPS
) -> dict[str, Any]:
    every = max(1, steps // 10)
    objective = {"labels": {"objective": "classification"}}.get(dataset.kind, {})
    return {
        "name": name,
        "data": section,
        "fixed": {
            **objective, "positions": "rotary", "block_size": _block(dataset), "batch_size": BATCH, "n_layer": 2,
            "n_head": 4, "max_iters": steps, "warmup_iters": max(1, steps // 20), "dropout": 0.0, "dtype": "float32",
            "eval_interval": every, "eval_tokens": 10_240,
        },
        "grid": {"n_embd": [*widths]},
        "search": {
            "learning_rate": {"min": 1e-3, "max": 3e-2, "log": True},
            "weight_decay": {"min": 1e-3, "max": 0.3, "log": True},
        },
        "budget": {"trials_per_cell": TRIALS, "time": MOST_SECONDS},
        "sampler": "joint",
        "pruner": {"type": "asha", "min_iters": 3 * every, "factor": 3},
    }  # fmt: skip


def _block(dataset: Dataset) -> int:
    if isinstance(dataset.train, Pairs):
        longest = float(np.quantile(dataset.train.lengths.sum(axis=1), 0.9))
        return int(min(LONGEST_PAIR, 2 ** math.ceil(math.log2(longest + 3))))
    shortest = min(len(dataset.train), len(dataset.val), len(dataset.test))
    if shortest < 3:
        raise BadInput(Problem(f"a split has only {several(shortest, 'token')}", "a longer text"))
    return int(min(BLOCK, 2 ** math.floor(math.log2(shortest - 1))))
