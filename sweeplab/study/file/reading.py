"""Read a study file into a typed study in three steps: parse its text, resolve what it names elsewhere, check it.

Pydantic checks each value, in `spec` and `values`; here is checked what depends on several.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.hyperparameters import TABLE
from sweeplab.study.file.parse import file_text, parse
from sweeplab.study.file.resolve import FindRun, no_run, resolve
from sweeplab.study.problems import LENGTHS, SECTIONS, Location, Problems, shown
from sweeplab.study.space import spaces_of
from sweeplab.study.spec import MOST_CELLS, NOWHERE, StudySpec
from sweeplab.study.values import EVALUATED, Choices, Range, is_searched

# No study finishes a grid with more points.
LARGEST_GRID = 100_000


def read_study(
    path: Path,
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
    find_run: FindRun = no_run,
    text: str | None = None,
) -> StudySpec:
    """Read a study file, apply `name=value` overrides to it, and check it.

    An override names a hyperparameter, which is then fixed, or a place, such as `budget.time`; or it is an option of
    the command line as `lay_all_over` has it. No two may set the same thing to different values. The study's plugins
    are imported only with `allow_plugins`. `find_run` returns the checkpoint of a run whose name `init_from` gives.
    `text` is that of the file, which then need not exist.

    Raises:
        BadInput: lists everything that is wrong, each with its file, line and column, or its override.
    """
    problems = Problems(path, file_text(path) if text is None else text)
    document = parse(problems.text, problems)
    if document is None:
        problems.refuse()
    resolve(document, problems, overrides, allow_plugins, find_run)
    return study_from(document, problems)


def said_name(path: Path) -> str:
    """Return the study's name in a study file.

    Raises:
        BadInput: the file cannot be read, or has no name.
    """
    problems = Problems(path)
    document = parse(file_text(path), problems)
    name = document.get("name") if isinstance(document, dict) else None
    if not isinstance(name, str):
        raise BadInput(
            *(problems.found or [Problem("the file gives no study name", file=path)])
        )
    return name


def read_plain(
    document: Mapping[str, Any],
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
    find_run: FindRun = no_run,
) -> StudySpec:
    """Read a study from plain values instead of a file, as `read_study` does."""
    # As in a file: tuples are lists, paths texts.
    plain = json.loads(json.dumps(document, default=_plain))
    problems = Problems()
    resolve(plain, problems, overrides, allow_plugins, find_run)
    return study_from(plain, problems)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # of NumPy
        return value.tolist()
    return str(value)


# ------------------------------------------------------------------ the check


def study_from(document: Any, problems: Problems) -> StudySpec:
    """Return the typed study that a document of plain values describes.

    Raises:
        BadInput: lists everything that is wrong, each at its place, including the problems found before.
    """
    if not isinstance(document, Mapping):
        problems.add((), "a study is a mapping of keys to values, such as `name: small`")
        raise BadInput(*problems.found)
    before, wrong = len(problems.found), set[Any]()
    # Of these nothing is the same as an empty one.
    may_be_empty = {*SECTIONS, "cells", "constraints"}
    document = {
        key: value
        for key, value in document.items()
        if value is not None or key not in may_be_empty
    }
    _check_places(document, problems)
    are_placed = len(problems.found) == before
    try:
        spec = StudySpec.model_validate(document)
    except ValidationError as error:
        problems.retell(error, (), _places())
        # The rest is checked too, so that all problems are reported at once.
        wrong = {each["loc"][0] for each in error.errors(include_url=False)}
        sound = {"name": "study", "data": {"corpus": "python-docs", "tokenizer": "char"}}
        sound |= {key: value for key, value in document.items() if key not in wrong}
        spec = StudySpec.model_validate(sound)
    spec._read_from = problems
    if are_placed and not wrong & {*may_be_empty, "data"}:
        _check_hyperparameters(spec, problems)
    if not wrong & {"search", "first_trial"}:
        _check_first_trial(spec, problems)
    problems.refuse()
    return spec


@cache
def _places() -> list[str]:
    places = [f"fixed.{name}" for name in TABLE if name != "seed"]
    for key, field in StudySpec.model_fields.items():
        for model in (field.annotation, *get_args(field.annotation)):
            if isinstance(model, type) and issubclass(model, BaseModel):
                places += [f"{key}.{name}" for name in model.model_fields]
    return places


def _check_places(document: Mapping[str, Any], problems: Problems) -> None:
    """Check that every hyperparameter stands once, in a section that may have it."""
    held: list[tuple[Location, Any]] = [
        ((section,), document.get(section)) for section in SECTIONS
    ]
    changes = document.get("cells")
    if isinstance(changes, list):
        held += [(("cells", index), each) for index, each in enumerate(changes)]
    seen: dict[str, str] = {}
    for place, values in held:
        for name in values if isinstance(values, Mapping) else ():
            path, section, row = (*place, name), str(place[0]), TABLE.get(name)
            first = seen.setdefault(name, section)
            if first != section and (first, section) != ("fixed", "cells"):
                problems.conflict((first, name), path)
            elif name == "seed":
                problems.add(path, "seed is set by the key seeds, such as `seeds: [0, 1]`")
            elif name in EVALUATED and section != "fixed":
                what = (
                    f"{name} must be the same in the whole study, so that losses are comparable"
                )
                problems.add(path, what, "under fixed")
            elif section == "search" and row is not None and not is_searched(row):
                what = f"{name} cannot be searched: it depends on the machine"
                problems.add(path, what, "under fixed or grid")


def _check_hyperparameters(spec: StudySpec, problems: Problems) -> None:
    before, whole = len(problems.found), [{**spec.fixed, **cell} for cell in spec.cells]
    lengths = [
        name
        for name in LENGTHS
        if spec.place(name) != NOWHERE and spec.fixed.get(name, 0) is not None
    ]
    if len(lengths) > 1:
        problems.conflict(*map(spec.place, lengths[:2]))
    for index, cell in enumerate(whole):
        first = whole.index(cell)
        if first < index:
            problems.add(("cells", index), f"cells[{index}] is the same as cells[{first}]")
    if len(problems.found) == before:
        _check_space(spec, problems)


def _check_first_trial(spec: StudySpec, problems: Problems) -> None:
    for name, value in [*spec.first_trial.items()]:
        entry = spec.search.get(name)
        if not isinstance(entry, Range | Choices):
            del spec.first_trial[name]
            continue
        try:
            entry.stored(value)
        except ValueError as error:
            what = f"first_trial.{name} is {shown(value)}, which the search does not contain"
            problems.add(("first_trial", name), what, str(error))


def _check_space(spec: StudySpec, problems: Problems) -> None:
    if spec.n_points > MOST_CELLS:
        problems.add(
            ("grid",),
            f"the grid has {several(spec.n_points, 'cell')}",
            f"at most {MOST_CELLS:,}",
        )
        return
    try:
        spaces, _ = spaces_of(spec, None)
    except BadInput as error:
        problems.found += error.problems
        return
    n_points = spaces[0].n_points
    if spec.sampler.type == "grid" and (n_points is None or n_points > LARGEST_GRID):
        what = "the grid sampler needs every parameter in every trial, with a step or as a list"
        problems.add(("sampler",), what, f"at most {LARGEST_GRID:,} points, or another sampler")
