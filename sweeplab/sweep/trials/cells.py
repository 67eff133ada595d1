"""The trials of a cell as a process knows them, and the point (the searched values) of its next one.

Counts are updated as trials end, never recomputed from all.

A sampler that models trials draws its first ones at random. A cell of a scaling study has few trials, for which evenly
spread points work better: these replace the random ones. A joint search spreads the first points of all cells together
instead. No point is trained twice.

Optuna's TPE sampler models the newest and the best trials of a cell instead of all. For each new trial it sorts the
trials of its study and reads their parameters: a third of a second of CPU time at 20,000 trials. Its good trials are at
most the best 25 of them, which a bounded history keeps; of the many others the newest ones suffice.
"""

from __future__ import annotations

import abc
import bisect
import copy
import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import optuna
import sqlalchemy as sql
from optuna.pruners import NopPruner
from optuna.samplers import PartialFixedSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeplab.data.batches import generator_key
from sweeplab.lab.storage import PROMOTED, REPEATS, VOID
from sweeplab.records.runs import RunState
from sweeplab.study.joint import JointModel
from sweeplab.study.options import JOINT, Sampler
from sweeplab.study.plan import make_sampler, settled_sampler
from sweeplab.study.space import Cell, Space
from sweeplab.study.spec import StudySpec

Storage = TypeVar("Storage", bound=type[BaseStorage])

# One lock per schema of a PostgreSQL database: each study has its own schema.
TAKE_TURN = sql.text("SELECT pg_advisory_xact_lock(hashtext('sweeplab ' || current_schema()))")
# How many of the newest and of the best ended trials of a cell TPE models.
NEWEST, BEST = 1_000, 1_000
# After MOST_REPEATS repeated points in a row a new point is drawn at random, in at most MOST_LOOKED_AT attempts.
MOST_REPEATS = 3
MOST_LOOKED_AT = 2_000
# The seeds of a trial that repeats the values of another are higher by a multiple of this.
SEEDS_APART = 1_000


@dataclass
class CachedTrials:
    """The trials of one Optuna study by number, and their ids.

    `unended` are those that have not ended, by id, and `ended` the others in the order of their ends.
    """

    trials: list[FrozenTrial] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    unended: dict[int, FrozenTrial] = field(default_factory=dict)
    ended: list[FrozenTrial] = field(default_factory=list)

    def file(self, trial_id: int, trial: FrozenTrial) -> None:
        """Move a trial to the unended or the ended ones, by its state."""
        if trial.state.is_finished():
            self.unended.pop(trial_id, None)
            self.ended.append(trial)
        else:
            self.unended[trial_id] = trial


def forwards(storage: Storage) -> Storage:
    """Let a storage forward the calls that it does not define to its attribute `inner`.

    The calls are those that the installed Optuna demands, so that a later version may add some.
    """

    def forwarded(name: str) -> Callable[..., Any]:
        return lambda self, *args, **arguments: getattr(self.inner, name)(*args, **arguments)

    for name in storage.__abstractmethods__:
        setattr(storage, name, forwarded(name))
    abc.update_abstractmethods(storage)
    return storage


def is_own(trial: FrozenTrial) -> bool:
    """Return whether a trial is the study's own: not infeasible, repeated, withdrawn or from a warm start."""
    return not any(each in trial.user_attrs for each in VOID)


def _hash(parameters: Mapping[str, Any]) -> int:
    return hash(frozenset(parameters.items()))


@dataclass
class CellTally:
    """The sums over a cell's trials; `modelled` counts the trials that a sampler learns from, warm starts included.

    `pruned` are the trials that may be promoted, and `n_promoted` counts the promoted trials that have ended.
    """

    trials: CachedTrials
    counted: int = 0
    failed: int = 0
    modelled: int = 0
    train_flops: float = 0.0
    pruned: list[FrozenTrial] = field(default_factory=list)
    n_promoted: int = 0
    # By hash of the parameters, the first trial.
    _points: dict[int, int] = field(default_factory=dict)
    # Numbers of those modelled.
    _newest: deque[int] = field(default_factory=lambda: deque(maxlen=NEWEST))
    _best: list[tuple[float, int]] = field(default_factory=list)  # values and numbers
    _n_seen: int = 0

    def update(self) -> None:
        """Count the trials that have ended since the last time."""
        new = self.trials.ended[self._n_seen :]
        self._n_seen += len(new)
        for trial in new:
            is_modelled = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
            self.modelled += is_modelled
            if is_modelled:
                self._newest.append(trial.number)
            if trial.state == TrialState.COMPLETE and trial.value is not None:
                bisect.insort(self._best, (trial.value, trial.number))
                del self._best[BEST:]
            if not is_own(trial):
                continue
            self.train_flops += trial.user_attrs.get("train_flops", 0)
            if not is_modelled:
                self.failed += 1
                continue
            self.counted += 1
            if PROMOTED in trial.user_attrs:
                self.n_promoted += 1
            if trial.user_attrs.get("outcome") == RunState.PRUNED:
                self.pruned.append(trial)
            point = _hash(trial.params)
            self._points[point] = min(trial.number, self._points.get(point, trial.number))

    def history(self) -> list[FrozenTrial]:
        """Return the newest and the best of the trials that a sampler models, and the unended ones, by number."""
        self.update()
        unended = {trial.number for trial in self.trials.unended.values()}
        numbers = unended.union(self._newest, (number for _, number in self._best))
        return [self.trials.trials[number] for number in sorted(numbers)]

    def ended(self) -> list[FrozenTrial]:
        """Return the trials that have ended, in any state."""
        return self.trials.ended

    def running(self) -> list[FrozenTrial]:
        """Return the trials that have started and not ended."""
        return [
            trial for trial in self.trials.unended.values() if trial.state == TrialState.RUNNING
        ]

    def waiting(self) -> list[FrozenTrial]:
        """Return the enqueued trials that have not started."""
        return [
            trial for trial in self.trials.unended.values() if trial.state == TrialState.WAITING
        ]

    def twin(self, parameters: Mapping[str, Any], number: int) -> int | None:
        """Return the number of the first trial before this one with the same parameters that has not failed."""
        ended = self._points.get(_hash(parameters))
        others = self.running()
        if ended is not None:
            others.append(self.trials.trials[ended])
        twins = [
            other.number
            for other in others
            if other.number < number and other.params == parameters
        ]
        return min(twins, default=None)

    def best_pruned(self, n: int) -> list[FrozenTrial]:
        """Return the best `n` pruned trials, the best first: by furthest last step, then by lowest value."""

        def rank(trial: FrozenTrial) -> tuple[int, float, int]:
            value = math.inf if trial.value is None else trial.value
            return -(trial.last_step or 0), value, trial.number

        return heapq.nsmallest(n, self.pruned, key=rank)


@forwards
class _Window(BaseStorage):
    """A storage of which only a cell's history is seen."""

    def __init__(self, inner: BaseStorage, tally: CellTally) -> None:
        self.inner = inner
        self._tally = tally

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = self._tally.history()
        if states is not None:
            trials = [trial for trial in trials if trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials


def with_history(study: optuna.Study, storage: BaseStorage, tally: CellTally) -> optuna.Study:
    """Return a study whose sampler sees the history of a cell instead of all of its trials."""
    window: Any = _Window(storage, tally)  # type: ignore[abstract]
    return optuna.Study(study.study_name, window, study.sampler, NopPruner())


class Asker:
    """Start the trials of a study's cells; `tally` returns the sums over the trials of the cell of an index."""

    def __init__(
        self,
        spec: StudySpec,
        spaces: Sequence[Space],
        storage: BaseStorage,
        tally: Callable[[int], CellTally],
    ) -> None:
        self._spec = spec
        self._spaces = spaces
        self._storage = storage
        self._tally = tally
        self._sampler = settled_sampler(spec)
        self._joint = (
            JointModel(spaces, tally, spec.first_seed) if self._sampler.type == JOINT else None
        )

    def ask(
        self, study: optuna.Study, cell: Cell, n_startup: int, is_last: bool
    ) -> optuna.Trial | None:
        """Start the next trial of a cell: an enqueued one, else a new one; None if no new point is found.

        The first `n_startup` points are spread evenly, but the very first is the study's `first_trial`. The last trial
        of a joint search takes the point of lowest expected loss.
        """
        space = self._spaces[cell.index]
        tally = self._tally(cell.index)
        number = len(tally.trials.trials)
        waiting = min(tally.waiting(), key=lambda trial: trial.number, default=None)
        proposed: Mapping[str, Any] = {}
        if waiting:  # a person enqueued it
            if self._joint is not None:
                fixed = waiting.system_attrs["fixed_params"]
                proposed = self._joint.propose(cell.index, waiting.number, fixed)
            self._storage.set_trial_state_values(
                tally.trials.ids[waiting.number], TrialState.RUNNING
            )
            return self.trial(study, cell, waiting.number, n_startup, proposed)
        point = template = None
        last = tally.trials.trials[-MOST_REPEATS:]
        n_modelled = tally.modelled
        if self._joint is not None:  # two of any cells
            n_modelled = (
                sum(self._tally(index).modelled for index in range(len(self._spaces))) - 1
            )
        if len(last) == MOST_REPEATS and all(REPEATS in trial.user_attrs for trial in last):
            draw = random.Random(
                generator_key(self._spec.first_seed, f"{space.cell.key}/{number}")
            )
            for _ in range(MOST_LOOKED_AT):
                drawn = space.point([draw.random() for _ in space.parameters])
                if tally.twin(drawn, number) is None and not space.broken(
                    space.values_of(drawn)
                ):
                    point = drawn
                    break
            else:
                return None
        elif space.parameters and (
            tally.modelled + len(tally.running()) < n_startup
            or (n_startup and n_modelled <= 0)
            or (number == 0 and self._spec.first_trial)
        ):
            point = self._startup_point(space, number)
        elif self._joint is not None:
            proposed = self._joint.propose(cell.index, number, {}, is_last)
        if point:
            template = create_trial(
                state=TrialState.RUNNING, system_attrs={"fixed_params": point}
            )
        self._storage.create_new_trial(
            self._storage.get_study_id_from_name(study.study_name), template
        )
        return self.trial(study, cell, number, n_startup, proposed)

    def trial(
        self,
        study: optuna.Study,
        cell: Cell,
        number: int,
        n_startup: int,
        proposed: Mapping[str, Any] | None = None,
    ) -> optuna.Trial:
        """Return a trial that has started, with a sampler whose draws do not depend on a process' history.

        What is `proposed` is taken in place of draws.
        """
        space = self._spaces[cell.index]
        sampler = self._sampler
        tally = self._tally(cell.index)
        trial_id = tally.trials.ids[number]
        seed = generator_key(self._spec.first_seed, f"{space.cell.key}/{number}") % 2**31
        # The startup points are chosen here: the sampler models every trial from the first on.
        if n_startup:
            options = sampler.options | {"n_startup_trials": min(1, n_startup)}
            sampler = Sampler(type=sampler.type, options=options)
        study.sampler = make_sampler(sampler, seed, space, self._cell_seed(space))
        if proposed:
            study.sampler = PartialFixedSampler({**proposed}, study.sampler)
        if isinstance(study.sampler, TPESampler):
            study = with_history(study, self._storage, tally)
        return optuna.Trial(study, trial_id)

    def _cell_seed(self, space: Space) -> int:
        return generator_key(self._spec.first_seed, space.cell.key) % 2**31

    def _startup_point(self, space: Space, number: int) -> dict[str, Any]:
        first: dict[str, Any] = {}
        for name, value in self._spec.first_trial.items() if number == 0 else ():
            # This cell does not search it, or the value is outside of its range.
            with suppress(ValueError):
                first |= space.stored(name, value)
        if self._joint is not None:
            return self._joint.first(space.cell.index, number, first)
        from torch.quasirandom import SobolEngine

        engine = SobolEngine(len(space.parameters), scramble=True, seed=self._cell_seed(space))  # type: ignore[no-untyped-call]
        point = engine.fast_forward(number).draw(1)[0]  # type: ignore[no-untyped-call]
        return space.point(point.tolist(), first)
