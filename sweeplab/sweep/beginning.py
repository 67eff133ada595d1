"""What is read of the data that a user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweeplab.data.corpora import CORPORA
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.tokenizers import TOKENIZERS, IdsTokenizer
from sweeplab.study.file.reading import read_plain, read_study
from sweeplab.study.file.template import section_of
from sweeplab.study.inputs import data_source, describe_data, overlap_warnings, placed_dataset
from sweeplab.study.spec import StudySpec

# Tokens of texts up to so many characters are counted by every tokenizer of these, of longer ones by the chosen one.
COUNTED, MOST_COUNTED_CHARACTERS = ("char", "byte", "bpe"), 2 * 10**7
N_SAMPLES, SAMPLE_TOKENS = 3, 64


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
