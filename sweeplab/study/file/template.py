"""Write study files: a template with every hyperparameter, a first study of a user's data, and any study's file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.data.task import loss_unit
from sweeplab.errors import BadInput, Problem
from sweeplab.files import check_is_path
from sweeplab.formatting import duration, range_in_words, several, yaml_text
from sweeplab.hyperparameters import CATEGORIES, MINIMAL, TABLE, defaults
from sweeplab.study.problems import LENGTHS
from sweeplab.study.search import ENTRY, SUGGESTED, Choices, Range, is_searched

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset
    from sweeplab.study.spec import StudySpec

SEARCHED = ("learning_rate", "weight_decay", "dropout", "warmup_iters")
# If n_embd is searched, heads keep this width.
HEAD_DIM = 32
# The keys in the order of a study file.
PARTS = (
    *("name", "plugins", "data", "fixed", "grid", "cells", "search", "constraints"),
    *("first_trial", "objective", "budget", "sampler", "pruner", "seeds", "engine", "track"),
    *("warm_start", "init_from"),
)
_WIDTH = 100


def study_text(
    name: str,
    minimal: bool = False,
    search: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
    ranges: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    data: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a commented study file; it has one cell, unless `grid` gives more.

    Without `data` it reads a corpus that is shipped. It has every hyperparameter, or with `minimal` the eight that
    matter most and those of `values` and `search`. `values` replace the table's defaults. The names in `search` are
    tuned in their `ranges`, or in the table's suggested ones; None tunes the names in `ranges`, or the usual ones.
    The first trial has the values that the searched hyperparameters would have without a search, if these are in
    range.

    Raises:
        BadInput: a name to search has no range.
    """
    from sweeplab.data.corpora import CORPORA
    from sweeplab.data.tokenizers import TOKENIZERS
    from sweeplab.study.options import PRUNERS, SAMPLERS

    known, ranges, grid = dict(values or {}), dict(ranges or {}), grid or {}
    if search is None:
        search = [name for name in ranges if is_searched(TABLE[name])]
        search = search or [name for name in SEARCHED if not minimal or name in MINIMAL]
    search = [name for name in search if name not in grid]
    without = [name for name in search if name not in ranges and TABLE[name].suggested is None]
    if without:
        searchable = ", ".join(row.name for row in TABLE.values() if row.suggested is not None)
        raise BadInput(Problem(f"no range is suggested for {without[0]!r}", searchable))
    effective = defaults() | known
    n_embd, n_head = effective["n_embd"], effective["n_head"]
    if "n_head" not in {*known, *search, *grid} and n_embd % n_head:
        effective["n_head"] = max(each for each in range(1, n_head) if n_embd % each == 0)
    if "warmup_iters" not in known and effective["warmup_iters"] >= effective["max_iters"]:
        effective["warmup_iters"] = effective["max_iters"] // 10
    if "n_embd" in {*search, *grid} and not {"n_head"} & {*search, *grid, *known}:
        ranges["n_head"] = {"expr": f"n_embd // {HEAD_DIM}"}
        search.append("n_head")
    kept = {*TABLE} - {"seed", *grid}
    if minimal:
        changed = {name for name, value in effective.items() if value != TABLE[name].default}
        kept &= {*MINIMAL, *known, *search, *changed}
    # Keep only the one that sets the length of training.
    lengths = [name for name in LENGTHS if name in {*search, *grid}]
    lengths += [name for name in LENGTHS[1:] if effective[name] is not None]
    if lengths:
        kept -= {*LENGTHS} - {lengths[0]}
    tuned = {name: ranges.get(name, SUGGESTED) for name in TABLE if name in kept and name in search}
    fixed = {name: effective[name] for name in TABLE if name in kept and name not in tuned}
    unit = loss_unit([effective["objective"]])
    read = f"data: {yaml_text(data)}"
    if data is None:
        read = f"""\
data:
  corpus: python-docs  # {" | ".join(CORPORA)}; text and pairs need a path
  tokenizer: char  # {" | ".join(TOKENIZERS)}"""
    cells = "# grid: {n_layer: [1, 2, 4]}  # every combination is a cell; remove n_layer from fixed\n"
    if grid:
        lines = [(f"{name}: {yaml_text(list(held))}", _meaning(name)) for name, held in grid.items()]
        cells = f"grid:  # every combination is a cell with its own trials\n{_aligned(lines)}"
    searched, first = _searched(tuned, known, effective)
    return f"""\
# Check with `sweeplab plan`, train with `sweeplab run`; `sweeplab hyperparameters` lists them all.
name: {yaml_text(name)}

{read}
{_fixed(fixed)}{searched}
{cells}# cells: [{{}}, {{norm: rmsnorm}}, {{positions: rotary}}]  # or: each cell changes these values of fixed

{first}\
objective: {{metric: val_loss, goal: minimize}}  # {unit}; value of the best evaluation, with at: final of the last
budget: {{trials_per_cell: 20}}  # a total: running again adds nothing; also possible: time: 30m, flops: 1e15
sampler: auto  # {" | ".join(SAMPLERS)}
pruner: {{type: asha, min_iters: {effective["eval_interval"]}, factor: 3}}  # {" | ".join(PRUNERS)}
seeds: {yaml_text([effective["seed"]])}  # a trial is trained once per seed; its value is the mean
engine: {{type: local, workers: auto}}  # worker processes; auto: one per GPU, or one per core
track: {{checkpoints: best}}  # best | last | all | none
"""


def section_of(place: str, folder: Path, **keys: Any) -> dict[str, Any]:
    """Return the section `data` of a study file in a folder, for a file, folder, glob, or files of tokens."""
    from sweeplab.data.source import SUFFIXES

    check_is_path(place)
    path = Path(place)
    in_folder = (path / f"train{suffix}" for suffix in SUFFIXES)
    are_tokens = path.suffix in SUFFIXES or any(file.is_file() for file in in_folder)
    written = os.path.relpath(path.expanduser().absolute(), folder.absolute())
    more = {name: value for name, value in keys.items() if value}
    return {"tokens" if are_tokens else "path": written, **more}


# The FLOPs of all runs of a first study, some minutes on two cores, and the seconds after which it ends anyway.
FIRST_FLOPS, MOST_SECONDS, TRIALS = 8e12, 300, 6
# Widths of three models, for training splits of at least so many tokens; narrower ones where steps take long.
WIDTHS = {5_000_000: (64, 128, 256), 300_000: (32, 64, 128), 0: (16, 32, 64)}
# The fewest and most steps of a run, and how often it sees its text at most.
FEWEST_STEPS, MOST_STEPS, MOST_EPOCHS = 100, 5000, 20
BLOCK, LONGEST_PAIR, BATCH = 64, 256, 16


def first_study(name: str, place: str, file: Path) -> tuple[str, StudySpec, list[str]]:
    """Return the text of a study file for the data at a place, the study, and what is said of it.

    Raises:
        BadInput: the data cannot be read, or are too short for the smallest block_size.
    """
    from sweeplab.study.file.reading import read_text
    from sweeplab.study.inputs import placed_dataset
    from sweeplab.study.space import cells, spaces_of
    from sweeplab.train.run import train_flops

    section = section_of(place, file.parent)
    dataset = placed_dataset(read_text(study_file({"name": name, "data": section}), file))
    n_tokens = len(dataset.train)
    for widths in (widths for least, widths in WIDTHS.items() if n_tokens >= least):
        spec = read_text(study_file(_first_document(name, section, dataset, widths, FEWEST_STEPS)), file)
        spaces = spaces_of(spec, cells(spec, dataset.sizes)[0], dataset.sizes)
        a_step = TRIALS * sum(train_flops(space.typical, 1) for space in spaces)
        n_rows = dataset.sizes.train_pairs or n_tokens / spaces[0].typical.block_size
        most = min(FIRST_FLOPS / a_step, MOST_STEPS, MOST_EPOCHS * n_rows / BATCH)
        if most > FEWEST_STEPS:
            break
    steps = int(float(f"{max(FEWEST_STEPS, most):.2g}"))
    data = {**section, "corpus": spec.data.corpus, "tokenizer": spec.data.tokenizer}
    words = [
        f"{spec.data.corpus} by {spec.data.tokenizer}: {several(n_tokens, 'training token')}",
        f"{several(len(widths), 'size')}, {several(TRIALS, 'trial')} of each, {several(steps, 'step')} a run: "
        f"at most {steps * a_step:.1g} FLOPs; ends after {duration(MOST_SECONDS)} at the latest",
    ]
    text = study_file(_first_document(name, data, dataset, widths, steps), ["; ".join(words)])
    return text, read_text(text, file), [words[0], *dataset.notes, words[1]]


def _first_document(
    name: str, section: Mapping[str, Any], dataset: Dataset, widths: Sequence[int], steps: int
) -> dict[str, Any]:
    every = max(1, steps // 10)
    objective = {"objective": "classification"} if dataset.kind == "labels" else {}
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
    """Return a block_size that holds nine of ten pairs, or fits into the shortest split of a text."""
    import numpy as np

    from sweeplab.data.batches import Pairs

    if isinstance(dataset.train, Pairs):
        longest = float(np.quantile(dataset.train.lengths.sum(axis=1), 0.9))
        return int(min(LONGEST_PAIR, 2 ** math.ceil(math.log2(longest + 3))))
    shortest = min(len(dataset.train), len(dataset.val), len(dataset.test))
    if shortest < 3:
        raise BadInput(Problem(f"a split has only {several(shortest, 'token')}", "a longer text"))
    return int(min(BLOCK, 2 ** math.floor(math.log2(shortest - 1))))


def study_file(written: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """Return the text of a study file from a study's `as_written`, with comments at the top."""
    lines = [f"# {comment}\n" for comment in comments]
    return "".join([*lines, *(_part(name, written.get(name)) for name in PARTS)])


def _fixed(values: Mapping[str, Any]) -> str:
    text = "\nfixed:\n"
    for category, title in CATEGORIES.items():
        members = {name: value for name, value in values.items() if TABLE[name].category == category}
        if members:
            lines = [(f"{name}: {yaml_text(value)}", _meaning(name)) for name, value in members.items()]
            text += f"  # {title}\n{_aligned(lines)}"
    return text


def _searched(
    tuned: Mapping[str, Any], known: Mapping[str, Any], effective: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the section `search`, and the first trial: the values without a search, where they are in range."""
    lines, first = [], {}
    for name, written in tuned.items():
        words = range_in_words(TABLE[name].suggested if written == SUGGESTED else written)
        if name in known:
            words += f" (given: {yaml_text(known[name])})"
        lines.append((f"{name}: {yaml_text(written)}", f"{words}; {_meaning(name)}"))
        entry = ENTRY.validate_python(written, context=TABLE[name])
        if isinstance(entry, Range | Choices):
            with suppress(ValueError, TypeError):  # out of range, or null or auto
                entry.stored(effective[name])
                first[name] = effective[name]
    section, trial = "", ""
    if lines:
        section = f"\nsearch:\n{_aligned(lines)}"
    if first:
        trial = f"first_trial: {yaml_text(first)}  # of each cell; the sampler chooses the rest\n"
    return section, trial


def _meaning(name: str) -> str:
    row = TABLE[name]
    text = row.meaning + (f" ({row.unit})" if row.unit and row.unit not in row.meaning.lower() else "")
    text += f": {' | '.join(row.choices)}" if len(row.choices) > 1 else ""
    return text + ("; auto: the best for this machine" if row.category == "precision" else "")


def _aligned(lines: Sequence[tuple[str, str]]) -> str:
    width = max((len(text) for text, _ in lines), default=0)
    return "".join(f"  {text:<{width}}  # {comment}\n" for text, comment in lines)


def _part(name: str, value: Any) -> str:
    """Write one part of a study file, on one line if it is short; return "" for an empty part."""
    if isinstance(value, dict) and name not in ("fixed", "grid", "search"):  # in these, null is a value
        value = {key: each for key, each in value.items() if each is not None}
    if value in (None, [], {}):
        return ""
    line = f"{name}: {yaml_text(value)}\n"
    if len(line) <= _WIDTH:
        return line
    if isinstance(value, dict):
        return f"{name}:\n" + "".join(f"  {key}: {yaml_text(each)}\n" for key, each in value.items())
    return f"{name}:\n" + "".join(f"  - {yaml_text(each)}\n" for each in value)
