"""Warm starts: finished trials of other studies or tables, added to a study's cells before the first trial of each.

A trial fits if the study would train it identically: a cell has the same values, the searched values are inside their
ranges, and everything else that affects the loss is equal. Hyperparameters that a table lacks are assumed to agree.

A fitting trial becomes a marked Optuna trial, which the sampler models like the study's own. It counts towards no
budget and is never the study's best. Pruners do not see its curve and count it only in `n_startup_trials`: in the
storage a completed trial has no curve, and a pruned one only its last value, by which TPE ranks it.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.files import read_bytes, write_whole
from sweeplab.hyperparameters import TABLE, Hyperparameter
from sweeplab.lab.listing import find_study, read_spec
from sweeplab.lab.storage import WARM_START
from sweeplab.records.folders import DataDescription, StudyFolder, some_of
from sweeplab.records.runs import RunFolder, RunState
from sweeplab.study.problems import shown
from sweeplab.study.search import Scalar
from sweeplab.study.space import Space
from sweeplab.study.spec import TABLE_SUFFIX, ObjectiveSpec, StudySpec
from sweeplab.train.devices import settle_devices

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from sweeplab.sweep.trials.store import Store

# Outcomes of trials that a sampler can learn from.
LEARNABLE = {state for state in RunState if state.counts_towards_budget}
# Hyperparameters that do not affect the loss.
_IDLE = frozenset(
    row.name
    for row in TABLE.values()
    if row.category in ("logging", "generation") or row.name in ("seed", "device", "compile")
)
_CLOSE = 1e-9  # relative tolerance between equal numbers, written with 10 digits or more


@dataclass(frozen=True)
class FinishedTrial:
    """A trial of another study, or a line of a table; `iteration` is its last iteration, if known."""

    place: str
    values: Mapping[str, Any]
    outcome: str
    value: float | None
    iteration: int | None = None


@dataclass(frozen=True)
class WarmStartSource:
    """A study, or a table at its absolute path: its fitting trials, and the reasons and places of the others.

    Each fitting trial is an Optuna trial with the index of its cell.
    """

    name: str
    fitting: list[tuple[int, FrozenTrial]]
    refused: list[str]


def read_warm_starts(
    spec: StudySpec, folder: StudyFolder, spaces: Sequence[Space], data: DataDescription
) -> list[WarmStartSource]:
    """Read a study's warm-start sources; a source that was added before and is missing now is left out.

    `data` describes the study's own corpus.

    Raises:
        BadInput: a source cannot be read, is of other data, or has no fitting trial; with the trials and reasons.
    """
    recorded = folder.read_if_written(folder.warm_start_file)
    known = {name for counts in recorded.values() for name in counts}
    sources: list[WarmStartSource] = []
    problems: list[Problem] = []
    for index, name in enumerate(spec.warm_starts):
        if name.endswith(TABLE_SUFFIX):
            trials = _table_trials(Path(name), spec.objective)
        else:
            trials = _study_trials(spec, folder.lab, name, data)
        try:
            sources.append(_fitted(name, trials, spaces))
        except BadInput as error:
            if not (isinstance(error, _Missing) and name in known):
                place = ("warm_start", index)
                problems += [spec.problem(place, x.what, x.allowed, x.nearest) for x in error.problems]
    if problems:
        raise BadInput(*problems)
    return sources


class _Missing(BadInput):
    """A source does not exist."""


def _fitted(name: str, trials: Iterable[FinishedTrial], spaces: Sequence[Space]) -> WarmStartSource:
    fitting, refused, reasons = [], defaultdict[str, list[str]](list), list[str]()
    for trial in trials:
        try:
            space, parameters = _fit(trial, spaces)
        except ValueError as error:
            refused[str(error)].append(trial.place)
        else:
            fitting.append((space.cell.index, _optuna_trial(name, trial, space, parameters)))
    for reason, places in refused.items():
        which = places[0] if len(places) == 1 else f"{len(places)} ({some_of(places)})"
        reasons.append(f"{which}: {reason}")
    if not fitting:
        raise BadInput(f"no trial of {name} fits: {'; '.join(reasons) or 'it has none'}")
    return WarmStartSource(name, fitting, reasons)


def _fit(trial: FinishedTrial, spaces: Sequence[Space]) -> tuple[Space, dict[str, Scalar]]:
    """Return the space of the cell that a trial fits, and the trial's parameters as Optuna stores them.

    Raises:
        ValueError: it fits no cell; the message is the same for all trials with the same reason.
    """
    if trial.outcome not in LEARNABLE:
        raise ValueError(f"not finished (state {trial.outcome})")
    if RunState(trial.outcome).has_value and (trial.value is None or not math.isfinite(trial.value)):
        raise ValueError("no finite value")
    grid = [name for name in spaces[0].cell.values if all(name in each.cell.values for each in spaces)]
    missing = [name for name in grid if name not in trial.values]
    if missing:
        raise ValueError(f"lacks {missing[0]}, which is in the grid")
    agreeing = [
        space
        for space in spaces
        if all(
            name in trial.values and _same(trial.values[name], at) for name, at in space.cell.values.items()
        )
    ]
    if not agreeing:
        raise ValueError(f"no cell has {', '.join(f'{name}={shown(trial.values[name])}' for name in grid)}")
    # A cell without changes agrees with all trials.
    space = max(agreeing, key=lambda space: len(space.cell.values))
    parameters, ours = space.fitted(trial.values)
    settled = settle_devices(ours)
    for name, value in settled.applicable().items():
        if name in trial.values and name not in _IDLE and not _same(trial.values[name], value):
            raise ValueError(f"{name} is {shown(trial.values[name])} there and {shown(value)} here")
    rule = space.broken(ours)
    if rule:
        raise ValueError(f"breaks {rule.text}")
    return space, parameters


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other)):
        return math.isclose(one, other, rel_tol=_CLOSE)
    return bool(one == other)


def _study_trials(spec: StudySpec, lab: Path, name: str, data: DataDescription) -> Iterator[FinishedTrial]:
    if name == spec.name:
        raise BadInput("a study cannot start from itself")
    try:
        folder = find_study(lab, name)
    except BadInput as error:
        raise _Missing(*error.problems) from error
    theirs = read_spec(folder)
    if theirs.objective != spec.objective:
        how = [f"{each.objective.label}, {each.objective.at}" for each in (theirs, spec)]
        raise BadInput(f"study {name} values trials by {how[0]}, this study by {how[1]}")
    described = folder.data
    if described.token_digest != data.token_digest:
        raise BadInput(f"study {name} was trained on other tokens: its losses cannot be compared")
    if described.init_digest != data.init_digest:
        raise BadInput(f"study {name} started from other weights: its losses cannot be compared")
    first: dict[str, RunFolder] = {}
    for run in folder.runs():
        first.setdefault(f"{run.cell}/{run.trial}", run)
    for place, run in first.items():
        values, end = run.read_start().values.as_dict(), run.read_end()
        if end:
            yield FinishedTrial(place, values, end.ending.outcome, end.value, end.iteration)
        else:
            yield FinishedTrial(place, values, folder.unfinished, None)


def _table_trials(file: Path, objective: ObjectiveSpec) -> Iterator[FinishedTrial]:
    """Yield the rows of a table: one that `export` writes, or any with columns named like hyperparameters.

    If it has one row per run, the first row of each trial.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_bytes(file).decode("utf-8-sig"), newline=""))
        known = list(reader.fieldnames or ())
        rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise _Missing(f"no such file: {file}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", error)
        raise BadInput(f"{file} cannot be read as a table: {reason}") from error
    columns = ["value"]  # the first that exists gives a trial's value
    if objective.metric == "val_loss":
        columns += ["val_loss", f"{objective.at}_val_loss"]
    column = next((name for name in columns if name in known), None)
    if column is None:
        raise BadInput(Problem(f"{file} has no column with the values of its trials", " | ".join(columns)))
    seen = set()
    for line, row in rows:
        trial = tuple(row.get(name) for name in ("study", "cell", "trial"))
        if trial in seen:
            continue
        if any(part is not None for part in trial):
            seen.add(trial)
        values = {}
        for name, text in row.items():
            if name in TABLE and text is not None and (text or TABLE[name].optional):
                values[name] = _read(TABLE[name], text)
        iteration = _number(row.get("iterations"))
        ended = int(iteration) if iteration is not None and math.isfinite(iteration) else None
        state = row.get("state") or "complete"
        yield FinishedTrial(f"line {line}", values, state, _number(row[column]), ended)


def _read(row: Hyperparameter, text: str) -> Any:
    """Convert a table's text to its hyperparameter's type; return it as text if it is not of that type."""
    value: Any = text or None
    with suppress(ValueError, SyntaxError):  # as Python writes values: True, None, (0.9, 0.95)
        value = ast.literal_eval(text)
    with suppress(ValueError, TypeError, OverflowError):
        value = row.check(value)
    return value  # one that is not of its type fits no cell, and is shown as it is


def _number(text: str | None) -> float | None:
    with suppress(ValueError):
        return float(text or "")
    return None


def add_warm_starts(store: Store, sources: Sequence[WarmStartSource], folder: StudyFolder) -> None:
    """Add the fitting trials to cells that have no trials of their own; trials added before are not added again."""
    recorded: dict[str, dict[str, int]] = {}  # by cell, how many trials of each source it has
    with store.storage.transaction():
        for cell in store.cells:
            study = store.study(cell)
            there = study.get_trials(deepcopy=False)
            if all(WARM_START in trial.user_attrs for trial in there):  # else the cell has started
                known = {_content(trial) for trial in there}
                for source in sources:
                    for index, trial in source.fitting:
                        if index == cell.index and _content(trial) not in known:
                            known.add(_content(trial))
                            study.add_trial(trial)
            added = [trial.user_attrs.get(WARM_START) for trial in study.get_trials(deepcopy=False)]
            counts = Counter(mark["from"] for mark in added if mark)
            if counts:
                recorded[cell.key] = dict(counts)
    # For commands that show the study without its storage.
    if recorded or folder.warm_start_file.exists():
        write_whole(folder.warm_start_file, json.dumps(recorded, indent=1).encode())


def _optuna_trial(
    source: str, trial: FinishedTrial, space: Space, parameters: Mapping[str, Scalar]
) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial  # slow to import

    distributions, outcome = space.distributions(), RunState(trial.outcome)
    state, value, last = TrialState.PRUNED, None, dict[int, float]()
    at, loss = trial.iteration, trial.value
    if outcome.has_value:
        state, value = TrialState.COMPLETE, loss
    # Samplers prefer pruned trials with a later last step: a diverged one gets no step.
    elif outcome == RunState.PRUNED and at is not None and loss is not None and math.isfinite(loss):
        last = {at: loss}
    return create_trial(
        state=state,
        value=value,
        params=dict(parameters),
        distributions={name: distributions[name] for name in parameters},
        user_attrs={WARM_START: {"from": source, "place": trial.place}, "outcome": str(trial.outcome)},
        intermediate_values=last,
    )


def _content(trial: FrozenTrial) -> str:
    parameters, reported = sorted(trial.params.items()), sorted(trial.intermediate_values.items())
    return json.dumps([parameters, trial.state.name, trial.values, reported])
