"""The trials of a study in Optuna's storage, and the calls by which workers share them.

`claim` (ask and lease), `report`, `finish`, `renew`. Optuna's storage decides a trial's state; a lease beside it says
which process may change it. A trial that runs under nobody's lease belongs to the next claim.

A sampler that models trials draws its first ones at random. A cell of a scaling study has few: evenly spread points,
and first the best of the nearest finished cell, serve it better, so these are enqueued in their place. The other trials
wait until these have ended: a stack as wide as the cell would ask for all of them before there is anything to model. No
point is trained twice.
"""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from sweeplab.data.generators import generator_key
from sweeplab.lab.listing import read_spec
from sweeplab.lab.storage import REPEATS, VOID, engine_arguments, serialize
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState
from sweeplab.study.algorithms import make_pruner, make_sampler, n_startup_trials, settled_pruner
from sweeplab.study.rules import facts
from sweeplab.study.space import Cell, Space, cells
from sweeplab.study.spec import Sampler, StudySpec
from sweeplab.sweep.trials.commands import Commands
from sweeplab.sweep.trials.leases import TABLES, Leases, is_dead

optuna.logging.set_verbosity(optuna.logging.WARNING)

OPTUNA_STATES = {
    RunState.COMPLETE: TrialState.COMPLETE,
    RunState.STOPPED: TrialState.COMPLETE,
    RunState.PRUNED: TrialState.PRUNED,
    RunState.DIVERGED: TrialState.PRUNED,
    RunState.FAILED: TrialState.FAIL,
}
MOST_DRAWS = 100
# A sampler that repeats itself so many times is given a point that is new, of so many that are looked at.
MOST_REPEATS = 3
MOST_LOOKED_AT = 2_000
# A trial that never came to its first checkpoint is given up after so many workers died with it.
MOST_ATTEMPTS = 10
# A cell gets no more trials from a worker that saw so many of them fail.
MOST_FAILURES = 3
# Trials whose values no other trial of the cell gets.
TRIED = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)


class LeaseLost(Exception):  # noqa: N818 - a state of the world, not a failure
    """Say that a trial belongs to another worker by now; nothing of it may be written."""


class CellCounts:
    """How far one cell is; `waiting` trials have been given their values, and `failed` not been tried again."""

    def __init__(self, cell: Cell, trials: Sequence[FrozenTrial]) -> None:
        states, best = Counter(trial.state for trial in trials), best_trial(trials)
        self.cell = cell
        self.counted = states[TrialState.COMPLETE] + states[TrialState.PRUNED]
        self.running, self.waiting = states[TrialState.RUNNING], states[TrialState.WAITING]
        self.failed = len(failed_trials(trials))
        self.best = best.value if best else None


def failed_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that have failed and are not tried again by another one."""
    retried = {trial.user_attrs.get("retries") for trial in trials}
    return [trial for trial in trials if trial.state == TrialState.FAIL and trial.number not in retried]


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Return the trial of the lowest value, the first of several; None where none has a value."""
    valued = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.value is not None]
    return min(valued, key=lambda trial: (trial.value, trial.number), default=None)


@dataclass
class Claim:
    """A trial held by this worker; `attempt` counts the workers that held it, this one included.

    `reported` has the iterations that Optuna knows a value of: they are not reported twice. `asked` says what a
    person asked for: the values that were `enqueued`, or which trial it `retries`.
    """

    cell: Cell
    number: int
    trial_id: int
    sampled: dict[str, Any]
    attempt: int
    trial: optuna.Trial = field(repr=False)
    reported: set[int]
    asked: dict[str, Any]


def open_storage(url: str) -> RDBStorage:
    """Open Optuna's storage so that several processes may write to it."""
    storage = RDBStorage(url, engine_kwargs=engine_arguments(url))
    serialize(storage.engine)
    return storage


class Store:
    """One study's trials: one Optuna study per cell, all in one storage."""

    def __init__(self, spec: StudySpec, cells: Sequence[Cell], vocab_size: int, url: str) -> None:
        self.spec = spec
        self.cells = list(cells)
        self.spaces = [Space(spec, cell, vocab_size) for cell in cells]
        self.storage = open_storage(url)
        self.leases = Leases(self.storage.engine)
        self.commands = Commands(self.storage.engine)
        self.budget = spec.budget
        # There was nothing to claim, and will be when trials of the cells have ended.
        self.awaits_results = False
        self._studies: dict[int, optuna.Study] = {}
        self._finished: set[int] = set()  # cells that will never have room again
        self._failed_before: dict[int, int] = {}  # failures that earlier workers of a cell left
        self._notices: list[str] = []
        self._asked: set[str] = set()  # cells in which a person's trials may still wait
        # Each cell's trials, while a claim holds the lock.
        self._seen: dict[int, list[FrozenTrial]] | None = None

    @classmethod
    def create(cls, spec: StudySpec, cells: Sequence[Cell], vocab_size: int, url: str) -> Store:
        """Create what is missing of the storage, and open it; before any worker starts."""
        if url.startswith("sqlite"):
            Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        store = cls(spec, cells, vocab_size, url)
        TABLES.create_all(store.storage.engine)
        known = set(optuna.get_all_study_names(store.storage))
        for cell in cells:
            if (name := f"{spec.name}/{cell.key}") not in known:
                store.storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], name)
        return store

    def study(self, cell: Cell) -> optuna.Study:
        """Return a cell's Optuna study."""
        if cell.index not in self._studies:
            values = self.spaces[cell.index].typical
            pruner = make_pruner(settled_pruner(self.spec.pruner, values.eval_interval, values.max_iters))
            name = f"{self.spec.name}/{cell.key}"
            found = optuna.load_study(study_name=name, storage=self.storage, pruner=pruner)
            self._studies[cell.index] = found
        return self._studies[cell.index]

    def trials(self, cell: Cell) -> list[FrozenTrial]:
        """Return a cell's own trials, those left out that broke a constraint or were withdrawn."""
        return [trial for trial in self._all(cell) if not any(each in trial.user_attrs for each in VOID)]

    def _all(self, cell: Cell) -> list[FrozenTrial]:
        """Return all of a cell's trials; a claim reads them once, and again when it has written some itself."""
        if self._seen is not None and cell.index in self._seen:
            return self._seen[cell.index]
        found = self.study(cell).get_trials(deepcopy=False)
        if self._seen is not None:
            self._seen[cell.index] = found
        return found

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        """Hold the lock, under which no other worker starts or ends a trial."""
        with self.leases.lock():
            self._seen = {}
            try:
                yield
            finally:
                self._seen = None

    def poll_commands(self) -> bool:
        """Read what has been asked of the study since the last time; say whether that was anything."""
        if not (news := self.commands.read()):
            return False
        for command in news:
            if command.kind in ("enqueue", "retry"):
                self._asked |= {cell for cell, _ in command.value["trials"]}
        self.budget = self.commands.state.budget or self.spec.budget
        self._finished.clear()
        self._failed_before.clear()
        return True

    def claim(self, fits: Callable[[Cell], bool] = lambda cell: True) -> Claim | None:
        """Take up a trial that nobody holds, or ask for a new one in a cell with room; None when there is none.

        `fits` narrows the choice of cells. Cells come in their order, those that nobody works on first.
        """
        self.awaits_results = False
        with self._claiming():
            self.poll_commands()
            if self.commands.state.phase != "run" or self._is_asked_for_elsewhere(fits):
                return None
            leases = self.leases.all()
            counts = []
            for cell in self.cells:
                if cell.index in self._finished or not fits(cell):
                    continue
                if found := self._abandoned(cell, leases):
                    return found
                counts.append(self._count(cell))
                if self._is_full(counts[-1]):
                    self._finished.add(cell.index)
            return self._ask_where_there_is_room(counts)

    def _is_asked_for_elsewhere(self, fits: Callable[[Cell], bool]) -> bool:
        """Say whether a person's trial waits in a cell that does not fit: this worker's stack has to end first."""
        asked = [cell for cell in self.cells if cell.key in self._asked]
        waiting = [cell for cell in asked if self._count(cell).waiting]
        self._asked = {cell.key for cell in waiting}
        return not all(map(fits, waiting))

    def _ask_where_there_is_room(self, counts: list[CellCounts]) -> Claim | None:
        limit, is_spent = self.budget.trials_per_cell, self._is_spent()

        def has_room(each: CellCounts) -> bool:
            failed_before = self._failed_before.setdefault(each.cell.index, each.failed)
            if each.waiting:  # a person asked for it: it is tried first, and whatever the budget says
                return True
            is_full = each.counted + each.running >= self.limit(each.cell)
            if is_spent or is_full or each.failed - failed_before >= MOST_FAILURES:
                return False
            n_ended, n_running = self._n_tried(each.cell)
            if awaits := n_ended < self._n_startup <= n_ended + n_running:
                self.awaits_results = True
            return not awaits

        def place(each: CellCounts) -> tuple[bool, int, int, int]:
            return not each.waiting, each.running, each.counted if limit is None else 0, each.cell.index

        for each in sorted(filter(has_room, counts), key=place):
            if claim := self._ask(each.cell):
                return claim
            self._finished.add(each.cell.index)
            self._notices.append(f"cell {each.cell.key}: no sample that meets the constraints is new")
        return None

    def limit(self, cell: Cell) -> float:
        """Return how many trials a cell may have: those of the budget, and no more than it has points."""
        given = (self.budget.trials_per_cell, self.spaces[cell.index].n_points)
        return min((each for each in given if each is not None), default=math.inf)

    @property
    def _n_startup(self) -> int:
        return n_startup_trials(self.spec.sampler, self.budget.trials_per_cell)

    def _n_tried(self, cell: Cell) -> tuple[int, int]:
        """Return how many trials of a cell have ended and run, those known from elsewhere included."""
        states = Counter(trial.state for trial in self._all(cell))
        return states[TrialState.COMPLETE] + states[TrialState.PRUNED], states[TrialState.RUNNING]

    def take_notices(self) -> list[str]:
        """Return what the user should know of, once."""
        notices, self._notices = self._notices, []
        return notices

    def _is_spent(self) -> bool:
        """Say whether the trials so far, and those that run, take up the budget of FLOPs."""
        if self.budget.flops is None:
            return False
        trials = [trial for cell in self.cells for trial in self.trials(cell)]
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        spent = sum(trial.user_attrs.get("train_flops", 0) for trial in trials)
        planned = sum(trial.user_attrs.get("planned_flops", 0) for trial in running)
        return bool(spent + planned >= self.budget.flops)

    def _abandoned(self, cell: Cell, leases: Mapping[int, Any]) -> Claim | None:
        """Take up a trial of a cell that runs under nobody's lease."""
        for frozen in self._all(cell):
            lease = leases.get(frozen._trial_id)
            if frozen.state != TrialState.RUNNING or (lease and not is_dead(lease.owner, lease.expires)):
                continue
            attempt = lease.attempt + 1 if lease else 1
            self.leases.take(frozen._trial_id, attempt)
            with warnings.catch_warnings(action="ignore"):
                trial = optuna.Trial(self._study_with_sampler(cell, frozen.number), frozen._trial_id)
            if claim := self._claimed(cell, trial, attempt, set(frozen.intermediate_values)):
                return claim
            self.leases.drop(frozen._trial_id)
        return None

    def _ask(self, cell: Cell) -> Claim | None:
        """Ask for a new trial; None where nothing new is found that meets the cell's constraints."""
        space = self.spaces[cell.index]
        for left in reversed(range(MOST_DRAWS)):
            known = self._all(cell)
            # One may be waiting already: a worker died between giving a point and asking for it.
            waiting = [each.number for each in known if each.state == TrialState.WAITING]
            study = self._study_with_sampler(cell, min(waiting, default=len(known)))
            if not waiting and len(known) >= MOST_REPEATS and all(map(_repeats, known[-MOST_REPEATS:])):
                if (point := self._new_point(space, known)) is None:
                    return None
                study.enqueue_trial(point)
            elif not waiting and (point := self._startup_point(space, len(known))):
                study.enqueue_trial(point)
            with warnings.catch_warnings(action="ignore"):
                trial = study.ask()
            self._written(cell)
            if claim := self._claimed(cell, trial):
                self.leases.take(trial._trial_id, 1)
                return claim
            # The values that a person left to the sampler are drawn again.
            if left and (asked := _asked(trial)):
                given = self.storage.get_trial_system_attrs(trial._trial_id)["fixed_params"]
                study.enqueue_trial(given, asked)
                self._written(cell)
        return None

    def _written(self, cell: Cell) -> None:
        if self._seen is not None:
            self._seen.pop(cell.index, None)

    def _claimed(
        self, cell: Cell, trial: optuna.Trial, attempt: int = 1, reported: Set[int] = frozenset()
    ) -> Claim | None:
        """Return a trial that meets the constraints and is new as a claim; end another, so that it never counts.

        What a person asks for need not be new.
        """
        space = self.spaces[cell.index]
        with warnings.catch_warnings(action="ignore"):
            sampled = space.suggest(trial)
        values = space.resolve(sampled, self.spec.first_seed)
        asked, params = _asked(trial), trial.params
        twins = [other.number for other in self._tried(cell) if other.params == params]
        void: dict[str, Any] = {"infeasible": True} if space.broken(values) else {}
        if not asked and min(twins, default=trial.number) < trial.number:
            void[REPEATS] = min(twins)
        if void:
            for name, value in void.items():
                trial.set_user_attr(name, value)
            self.study(cell).tell(trial, state=TrialState.FAIL)
            self._written(cell)
            return None
        trial.set_user_attr("planned_flops", float(facts(values).train_flops * len(space.seeds)))
        return Claim(cell, trial.number, trial._trial_id, sampled, attempt, trial, set(reported), asked)

    def _tried(self, cell: Cell) -> list[FrozenTrial]:
        return [trial for trial in self.trials(cell) if trial.state in TRIED]

    def _new_point(self, space: Space, known: Sequence[FrozenTrial]) -> dict[str, Any] | None:
        """Return parameters that meet the constraints and no trial of the cell has; None where none are found."""
        tried = [trial.params for trial in self._tried(space.cell)]
        draw = random.Random(generator_key(self.spec.first_seed, f"{space.cell.key}/{len(known)}"))
        for _ in range(MOST_LOOKED_AT):
            point, values = space.point([draw.random() for _ in space.parameters])
            if point not in tried and not space.broken(values):
                return point
        return None

    def _startup_point(self, space: Space, number: int) -> dict[str, Any] | None:
        """Return the parameters of a trial that comes before the sampler has anything to model; else None."""
        names = space.distributions()
        if sum(self._n_tried(space.cell)) >= self._n_startup or not names:
            return None
        if number == 0 and (best := self._best_of_nearest_finished(space.cell)):
            return {name: value for name, value in best.params.items() if name in names}
        from torch.quasirandom import SobolEngine

        seed = generator_key(self.spec.first_seed, space.cell.key) % 2**31
        engine = SobolEngine(len(names), scramble=True, seed=seed)  # type: ignore[no-untyped-call]
        point = engine.fast_forward(number).draw(1)[0]  # type: ignore[no-untyped-call]
        return space.quasi_random([float(each) for each in point])

    def _best_of_nearest_finished(self, cell: Cell) -> FrozenTrial | None:
        for other in sorted(self.cells, key=lambda each: _distance(cell, each)):
            is_finished = other.index in self._finished or self._is_full(self._count(other))
            if is_finished and (best := best_trial(self.trials(other))):
                return best
        return None

    def _study_with_sampler(self, cell: Cell, number: int) -> optuna.Study:
        """Give the study a sampler seeded for this one trial: what it draws depends on no process' history."""
        study = self.study(cell)
        seed = generator_key(self.spec.first_seed, f"{cell.key}/{number}") % 2**31
        cell_seed = generator_key(self.spec.first_seed, cell.key) % 2**31
        sampler = self.spec.sampler
        if n_startup := self._n_startup:  # they are given to it: it models what there is
            options = sampler.options | {"n_startup_trials": min(1, n_startup)}
            sampler = Sampler(type=sampler.type, options=options)
        study.sampler = make_sampler(sampler, seed, self.spaces[cell.index], cell_seed)
        return study

    def report(self, claim: Claim, iteration: int, value: float) -> bool:
        """Report a trial's value at an iteration and say whether it should be pruned."""
        if math.isfinite(value) and iteration not in claim.reported:
            claim.trial.report(value, iteration)
            claim.reported.add(iteration)
        if iteration < max(claim.reported, default=0):
            return False  # repeating what a killed worker did: its last report has been judged
        # Asking reads every trial of the cell: not where the answer is known.
        return self.spec.pruner.type != "none" and claim.trial.should_prune()

    def finish(
        self, claim: Claim, outcome: RunState, value: float | None, totals: Mapping[str, float]
    ) -> None:
        """Tell Optuna how a trial ended, and what it took in all.

        Raises:
            LeaseLost: another worker holds the trial by now.
        """
        with self.leases.lock():
            self.check_lease(claim)
            for name, attribute in {"outcome": str(outcome), **totals}.items():
                self.storage.set_trial_user_attr(claim.trial_id, name, attribute)
            if outcome == RunState.DIVERGED:
                # Of trials that were cut short samplers prefer those that came further: not one that is lost.
                with warnings.catch_warnings(action="ignore"):  # told by a worker that died of it
                    claim.trial.set_constraint("diverged", 1.0)
            state = OPTUNA_STATES[outcome]
            told = value if state == TrialState.COMPLETE else None
            self.study(claim.cell).tell(claim.number, told, state=state)
            self.leases.drop(claim.trial_id)

    def check_lease(self, claim: Claim) -> None:
        """Make sure that this worker still holds a trial.

        Raises:
            LeaseLost: another worker holds it by now.
        """
        lease = self.leases.all().get(claim.trial_id)
        if lease is None or lease.owner != self.leases.owner:
            raise LeaseLost(f"trial {claim.number} of cell {claim.cell.key}")

    def renew(self) -> set[int]:
        """Extend this worker's leases and return the ids of the trials it still holds."""
        return self.leases.renew()

    def requeue(self, claim: Claim) -> None:
        """Requeue a trial that has not ended, for the next claim to take up."""
        self.leases.requeue(claim.trial_id, claim.attempt)

    def _count(self, cell: Cell) -> CellCounts:
        return CellCounts(cell, self.trials(cell))

    def counts(self) -> list[CellCounts]:
        """Return how far each cell is."""
        return [self._count(cell) for cell in self.cells]

    def _is_full(self, counts: CellCounts) -> bool:
        return counts.counted >= self.limit(counts.cell) and not counts.running and not counts.waiting

    def has_room(self) -> bool:
        """Say whether there is a trial that runs or waits, or room for one in the budget of trials."""
        return not all(map(self._is_full, self.counts()))

    def n_running(self) -> int:
        """Return how many trials have started and not ended."""
        return sum(each.running for each in self.counts())

    def n_held(self) -> int:
        """Return how many trials some process, here or elsewhere, holds."""
        return sum(not is_dead(lease.owner, lease.expires) for lease in self.leases.all().values())


def open_store(folder: StudyFolder, allow_plugins: bool = False) -> Store:
    """Open the storage of a study as it stands in its folder, with its commands up to now."""
    spec = read_spec(folder, allow_plugins)
    vocab_size = folder.data.vocab_size
    store = Store(spec, cells(spec, vocab_size)[0], vocab_size, folder.storage_url)
    store.poll_commands()
    return store


def _asked(trial: FrozenTrial | optuna.Trial) -> dict[str, Any]:
    return {name: value for name, value in trial.user_attrs.items() if name in ("enqueued", "retries")}


def _repeats(trial: FrozenTrial) -> bool:
    return REPEATS in trial.user_attrs


def _distance(one: Cell, other: Cell) -> float:
    """Return how far two cells are apart: doublings of a number, 1 for another name, or for what one alone changes."""

    def apart(a: Any, b: Any) -> float:
        both_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) and x > 0 for x in (a, b))
        return abs(math.log2(a / b)) if both_numbers else float(a != b)

    alone = one.values.keys() ^ other.values.keys()
    both = one.values.keys() & other.values.keys()
    return len(alone) + sum(apart(one.values[name], other.values[name]) for name in both)
