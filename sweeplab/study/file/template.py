"""Write study files: a template, a first study of a user's data, any study's file, and the schema for editors."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import duration, several, yaml_text
from sweeplab.hyperparameters import AUTO, TABLE, Hyperparameter, defaults
from sweeplab.study.file.entries import takes_share
from sweeplab.study.options import ALIASES, PRUNERS, SAMPLERS, AlgorithmRow
from sweeplab.study.problems import LENGTHS, SECTIONS, shown
from sweeplab.study.spec import StudySpec, preset_names
from sweeplab.study.values import (
    ENTRY,
    EVALUATED,
    SUGGESTED,
    Choices,
    Derived,
    Range,
    is_searched,
)

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset

Schema = dict[str, Any]
_BOUNDS = {
    "low": "minimum",
    "high": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
}
_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}

SEARCHED = ("learning_rate", "weight_decay", "dropout", "warmup_iters")
# If n_embd is searched, heads keep this width.
HEAD_DIM = 32


def study_text(
    name: str,
    search: Sequence[str] | None = None,
    values: Mapping[str, Any] = {},
    ranges: Mapping[str, Any] = {},
    grid: Mapping[str, Sequence[Any]] = {},
    data: Mapping[str, Any] | None = None,
    comments: Iterable[str] = (),
) -> str:
    """Return the text of a commented study file; it has one cell, unless `grid` gives more.

    Without `data` it reads a corpus that is shipped. It has every hyperparameter; `values` replace the table's
    defaults. The names in `search` are tuned in their `ranges`, or in the table's suggested ones; None tunes the names
    in `ranges`, or the usual ones. The first trial has the values that the searched hyperparameters would have without
    a search, if these are in range. `comments` stand at the top.

    Raises:
        BadInput: a name to search has no range.
    """
    if search is None:
        search = [*ranges] or SEARCHED
    tuned = {
        name: ranges.get(name, TABLE[name].suggested) for name in search if name not in grid
    }
    for searched, entry in tuned.items():
        if entry is None:
            searchable = ", ".join(
                row.name for row in TABLE.values() if row.suggested is not None
            )
            raise BadInput(Problem(f"no range is suggested for {searched!r}", searchable))
    effective = {**defaults(), **values}
    if "n_head" not in {*values, *tuned, *grid}:
        effective["n_head"] = math.gcd(effective["n_embd"], effective["n_head"])
        if "n_embd" in {*tuned, *grid}:
            tuned["n_head"] = {"expr": f"max(1, n_embd // {HEAD_DIM})"}
    if "warmup_iters" not in values and effective["warmup_iters"] >= effective["max_iters"]:
        effective["warmup_iters"] = effective["max_iters"] // 10
    kept = {*TABLE} - {"seed", *grid}
    # Keep only the one that sets the length of training.
    lengths = [name for name in LENGTHS if name in {*tuned, *grid}]
    lengths += [name for name in LENGTHS if effective[name] is not None]
    kept -= {name for name in LENGTHS if name != lengths[0] and effective[name] is not None}
    tuned = {name: tuned[name] for name in TABLE if name in kept and name in tuned}
    fixed = {name: effective[name] for name in TABLE if name in kept and name not in tuned}
    document = {
        "name": name,
        "data": data or {"corpus": "python-docs", "tokenizer": "char"},
        "fixed": fixed,
        "grid": grid,
        "search": tuned,
        "first_trial": _first_trial(tuned, effective),
        "budget": {"trials_per_cell": 20},
        "sampler": "auto",
        "pruner": {"type": "asha", "factor": 3},
        "seeds": [effective["seed"]],
        "engine": {"type": "local", "workers": "auto"},
    }
    head = "Check with `sweeplab plan`, train with `sweeplab run`; `sweeplab hyperparameters` lists them all."
    return study_file(document, [*comments, head], explained=True)


def _first_trial(tuned: Mapping[str, Any], effective: Mapping[str, Any]) -> dict[str, Any]:
    first = {}
    for name, written in tuned.items():
        entry = ENTRY.validate_python(written, context=TABLE[name])
        if isinstance(entry, Range | Choices):
            with suppress(ValueError):  # out of range, or null or auto
                entry.stored(effective[name])
                first[name] = effective[name]
    return first


def section_of(place: str, folder: Path, **keys: Any) -> dict[str, Any]:
    """Return the section `data` of a study file in a folder, for a file, folder, glob, or files of tokens."""
    from sweeplab.data.source import SUFFIXES

    path = Path(place)
    in_folder = (path / f"train{suffix}" for suffix in SUFFIXES)
    are_tokens = path.suffix in SUFFIXES or any(file.is_file() for file in in_folder)
    written = os.path.relpath(path.expanduser().absolute(), folder.absolute())
    more = {name: value for name, value in keys.items() if value}
    return {"tokens" if are_tokens else "path": written, **more}


# The FLOPs of all runs of a first study, some minutes on two cores, and the seconds after which it ends anyway.
FIRST_FLOPS, MOST_SECONDS, TRIALS = 8e12, 300, 6
# Widths of three models, for training splits of at least so many tokens.
WIDTHS = {5_000_000: (64, 128, 256), 300_000: (32, 64, 128), 0: (16, 32, 64)}
# The fewest and most steps of a run, and how often it sees its text at most.
FEWEST_STEPS, MOST_STEPS, MOST_EPOCHS = 100, 5000, 20
BLOCK, LONGEST_PAIR, BATCH = 64, 256, 16
_FIRST_VALUES = {
    "positions": "rotary", "batch_size": BATCH, "n_layer": 2, "n_head": 4, "warmup_iters": "5%", "dropout": 0.0,
    "dtype": "float32", "eval_interval": "10%", "eval_tokens": 10_240,
}  # fmt: skip
_FIRST_RANGES = {
    "learning_rate": {"min": 1e-3, "max": 3e-2, "log": True},
    "weight_decay": {"min": 1e-3, "max": 0.3, "log": True},
}


def first_study(name: str, place: str, file: Path) -> tuple[str, StudySpec, list[str]]:
    """Return the text of a study file for the data at a place, the study, and what is said of it.

    Raises:
        BadInput: the data cannot be read.
    """
    from sweeplab.study.file.reading import read_study
    from sweeplab.study.inputs import study_dataset
    from sweeplab.study.space import spaces_of
    from sweeplab.train.run import train_flops

    section = section_of(place, file.parent)
    spec = read_study(file, text=study_file({"name": name, "data": section}))
    dataset = study_dataset(spec)
    section |= {"corpus": spec.data.corpus, "tokenizer": spec.data.tokenizer}
    n_tokens = len(dataset.train)
    widths = next(widths for least, widths in WIDTHS.items() if n_tokens >= least)

    def text_of(steps: int, *comments: str) -> str:
        document = {
            "name": name,
            "data": section,
            "fixed": {**_FIRST_VALUES, "block_size": _block(dataset), "max_iters": steps},
            "grid": {"n_embd": [*widths]},
            "search": _FIRST_RANGES,
            "budget": {"trials_per_cell": TRIALS, "time": MOST_SECONDS},
            "sampler": "joint",
            "pruner": {"type": "asha", "factor": 3},
        }
        return study_file(document, comments)

    spec = read_study(file, text=text_of(FEWEST_STEPS))
    spaces, _ = spaces_of(spec, dataset.sizes)
    a_step = TRIALS * sum(train_flops(space.typical, 1) for space in spaces)
    n_rows = dataset.sizes.train_pairs or n_tokens / spaces[0].typical.block_size
    most = min(FIRST_FLOPS / a_step, MOST_STEPS, MOST_EPOCHS * n_rows / BATCH)
    steps = int(max(FEWEST_STEPS, most))
    read = f"{spec.data.corpus} by {spec.data.tokenizer}: {several(n_tokens, 'training token')}"
    cost = (
        f"{several(len(widths), 'size')}, {several(TRIALS, 'trial')} of each, {several(steps, 'step')} a run: "
        f"at most {steps * a_step:.1g} FLOPs; ends after {duration(MOST_SECONDS)} at the latest"
    )
    words = [read, *dataset.notes, cost]
    return text_of(steps, *words), spec, words


def _block(dataset: Dataset) -> int:
    """Return a block_size that holds nine of ten pairs; of a text the usual one, or what its splits hold."""
    from sweeplab.data.batches import Pairs

    if not isinstance(dataset.train, Pairs):
        return min(BLOCK, len(dataset.val) - 1, len(dataset.test) - 1)
    lengths = sorted(dataset.train.lengths.sum(axis=1))
    return int(min(LONGEST_PAIR, lengths[len(lengths) * 9 // 10] + 3))


def study_file(
    written: Mapping[str, Any], comments: Iterable[str] = (), explained: bool = False
) -> str:
    """Return the text of a study file from a study's `as_written`, with comments at the top.

    If it is `explained`, every key and hyperparameter has its meaning beside it.
    """
    text = "".join(f"# {comment}\n" for comment in comments)
    for name, field in StudySpec.model_fields.items():
        value = written.get(name)
        if isinstance(value, dict) and name not in SECTIONS:  # in these, null is a value
            value = {key: each for key, each in value.items() if each is not None}
        if value in (None, [], {}):
            continue
        meaning = ""
        if explained:
            meaning = (
                f"  # {field.description or str(field.annotation.__doc__).partition('.')[0]}"
            )
        if isinstance(value, dict) and name in SECTIONS:
            text += f"\n{name}:{meaning}\n{_rows(value, explained)}"
        else:
            text += f"{name}: {yaml_text(value)}{meaning}\n"
    return text


def _rows(values: Mapping[str, Any], explained: bool) -> str:
    lines = {name: f"  {name}: {yaml_text(value)}" for name, value in values.items()}
    if not explained:
        return "".join(f"{line}\n" for line in lines.values())
    width = max(map(len, lines.values()))
    return "".join(
        f"{line:<{width}}  # {_meaning(TABLE[name])}\n" for name, line in lines.items()
    )


def _meaning(row: Hyperparameter) -> str:
    unit = f" ({row.unit})"
    if not row.unit or row.unit in row.meaning.lower():
        unit = ""
    return f"{row.meaning}{unit}; {row.allowed}"


# ------------------------------------------------------------------ the JSON Schema for editors


def study_schema() -> Schema:
    """Return the JSON Schema of a study file; names, types, choices and meanings come from the table."""
    from sweeplab.data.corpora import CORPORA
    from sweeplab.data.tokenizers import TOKENIZERS
    from sweeplab.train.run import METRICS

    schema = StudySpec.model_json_schema()
    sections, parts = schema["properties"], schema["$defs"]
    data = parts["DataSpec"]
    del data["required"]  # of files they are guessed
    data["properties"]["corpus"]["enum"] = [*CORPORA]
    file = {"type": "string", "pattern": "[.](json|model)$"}
    data["properties"]["tokenizer"]["anyOf"] = [{"enum": [*TOKENIZERS]}, file]
    parts["ObjectiveSpec"]["properties"]["metric"]["enum"] = list(METRICS)
    rows = [row for row in TABLE.values() if row.name != "seed"]
    differing = [row for row in rows if row.name not in EVALUATED]
    searched = [row for row in rows if is_searched(row)]
    sections["preset"] = {"enum": [*preset_names()]}
    sections["fixed"] |= _of_rows(rows, _value)
    sections["grid"] |= _of_rows(differing, _values)
    sections["search"] |= _of_rows(searched, _search)
    sections["first_trial"] |= _of_rows(searched, _value)
    sections["cells"]["items"] = _of_rows(differing, _value)
    sections["plugins"]["items"] = {"anyOf": [{"type": "string"}, sections["plugins"]["items"]]}
    sections["sampler"] = _algorithms(SAMPLERS)
    sections["pruner"] = _algorithms(PRUNERS)
    return {
        # The dialect that YAML support in editors handles best.
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A sweeplab study",
        **schema,
    }


def _of_rows(rows: list[Hyperparameter], write: Callable[[Hyperparameter], Schema]) -> Schema:
    written = {}
    for row in rows:
        text = f"{_meaning(row)}; default {shown(row.default)}"
        written[row.name] = {"description": text, **write(row)}
    return {"type": "object", "properties": written, "additionalProperties": False}


def _value(row: Hyperparameter) -> Schema:
    value: Schema = {"type": _TYPES.get(row.kind, "number")}
    for bound, key in _BOUNDS.items():
        if getattr(row, bound) is not None:
            value[key] = getattr(row, bound)
    if row.choices:
        value = {"enum": list(row.choices)}
    if row.kind == "floats":
        count = len(row.sample)
        value = {"type": "array", "items": value, "minItems": count, "maxItems": count}
    forms = [value]
    if takes_share(row):
        forms.append({"type": "string", "pattern": r"^[\d.]+ *%"})
    if row.automatic:
        forms.append({"const": AUTO})
    if row.optional:
        forms.append({"type": "null"})
    return {"anyOf": forms}


def _values(row: Hyperparameter) -> Schema:
    return {"type": "array", "items": _value(row), "minItems": 1, "uniqueItems": True}


def _search(row: Hyperparameter) -> Schema:
    entries: list[type[Any]] = [Derived, Choices]
    if row.kind in ("int", "float"):
        entries.append(Range)
    forms = [_values(row), *(TypeAdapter(entry).json_schema() for entry in entries)]
    if row.suggested is not None:
        forms.append({"const": SUGGESTED})
    return {"anyOf": forms}


def _algorithms(rows: Mapping[str, AlgorithmRow]) -> Schema:
    forms: list[Schema] = [{"enum": [*rows]}]
    for name, row in rows.items():
        form = row.options.model_json_schema(by_alias=False)
        options = form.get("properties", {})
        for optunas, ours in ALIASES.items():
            if optunas in options:
                options[ours] = options[optunas]
        options["type"] = {"const": name}
        required = list(form.get("required", ()))
        if name != AUTO:
            required.append("type")
        forms.append(
            {**form, "description": row.meaning, "properties": options, "required": required}
        )
    return {"anyOf": forms}
