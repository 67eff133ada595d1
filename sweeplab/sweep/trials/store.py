"""The trials of a study in Optuna's storage, and the calls by which workers share them.

`claim` (ask and lease), `report` and `finish` are one short transaction each, and fail for a worker whose lease another
one has taken over. Optuna's storage holds a trial's state; a lease beside it says which process may change it. The next
claim takes a running trial without a valid lease.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, NamedTuple

import optuna
import sqlalchemy as sql
from optuna.trial import FrozenTrial, TrialState

from sweeplab.data import Sizes
from sweeplab.lab.listing import read_spec
from sweeplab.lab.storage import PROMOTED, REPEATS, SEED_OFFSET
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState
from sweeplab.study.options import BATCH, JOINT, build
from sweeplab.study.plan import n_startup_trials, promotes, settled_pruner, settled_sampler
from sweeplab.study.rules import facts
from sweeplab.study.space import Cell, spaces_of
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.trials import sharing
from sweeplab.sweep.trials.cells import Asker, CellTally, is_own
from sweeplab.sweep.trials.public import open_storage
from sweeplab.sweep.trials.sharing import Availability, Claim, Command, Lease, Report, Verdicts

OPTUNA_STATES = {
    RunState.COMPLETE: TrialState.COMPLETE,
    RunState.STOPPED: TrialState.COMPLETE,
    RunState.PRUNED: TrialState.PRUNED,
    RunState.DIVERGED: TrialState.PRUNED,
    RunState.FAILED: TrialState.FAIL,
}
# The attribute of a trial with the values that a person gave.
ENQUEUED = "enqueued"
MOST_DRAWS = 100
# A trial without a first snapshot is given up after this many workers died while they held it.
MOST_ATTEMPTS = 10
# After this many failed trials of a cell a worker starts no more there.
MOST_FAILURES = 3


class _Room(NamedTuple):
    """A cell that may have another trial; the lowest of several has it first.

    The next trial of one that `has_to_wait` follows from trials that run. If it is not `is_new` a person has enqueued
    it, which comes first, whatever the budget.
    """

    has_to_wait: bool
    is_new: bool
    n_running: int
    before: float
    cell_index: int


class Store:
    """One study's trials: one Optuna study per cell, all in one storage."""

    def __init__(
        self, spec: StudySpec, sizes: Sizes, url: str, wait: Availability | None = None
    ) -> None:
        self.spec = spec
        self.spaces, _ = spaces_of(spec, sizes)
        self.cells = [space.cell for space in self.spaces]
        self.availability = wait or Availability(spec.name)
        self.storage = self.availability.retry(lambda: open_storage(url))
        self.leases = sharing.Leases(self.storage.engine)
        self.commands = sharing.Commands(self.storage.engine, self.availability)
        self._reopened: set[int] = set()  # trials that this process has not read again yet
        self.asker = Asker(
            spec, self.spaces, self.storage, lambda index: self.tally(self.cells[index])
        )
        self._held: set[int] = set()  # trials that this worker holds
        self._unsent: list[Report] = []  # reports kept while the database does not answer
        self.budget = spec.budget
        self.n_workers = 1  # as planned
        # There was nothing to claim, but there will be once running trials have ended.
        self.awaits_results = False
        self._studies: dict[int, optuna.Study] = {}
        self._tallies: dict[int, CellTally] = {}
        self._exhausted: set[int] = set()  # cells in which no new point was found
        # Failed trials of each cell when this worker first saw it.
        self._failed_before: dict[int, int] = {}
        self.notices: list[str] = []  # messages for the user that nobody has taken yet

    @classmethod
    def create(cls, spec: StudySpec, sizes: Sizes, url: str) -> Store:
        """Create the missing parts of the storage, and open it; call this before any worker starts."""
        store = cls(spec, sizes, url)
        sharing.TABLES.create_all(store.storage.engine)
        known = set(optuna.get_all_study_names(store.storage))
        for name in (f"{spec.name}/{cell.key}" for cell in store.cells):
            if name not in known:
                store.storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], name)
        return store

    def study(self, cell: Cell) -> optuna.Study:
        """Return a cell's Optuna study."""
        if cell.index not in self._studies:
            values = self.spaces[cell.index].typical
            pruner = build(
                settled_pruner(self.spec.pruner, values.eval_interval, values.max_iters)
            )
            name = f"{self.spec.name}/{cell.key}"
            self._studies[cell.index] = optuna.Study(name, self.storage, pruner=pruner)
        return self._studies[cell.index]

    @cached_property
    def _study_ids(self) -> list[int]:
        return [
            self.storage.get_study_id_from_name(f"{self.spec.name}/{cell.key}")
            for cell in self.cells
        ]

    def study_id(self, cell: Cell) -> int:
        """Return the id of a cell's Optuna study."""
        return self._study_ids[cell.index]

    def trial_id(self, cell: Cell, number: int) -> int:
        """Return the id of a trial, as far as the storage has read them."""
        return self.storage.cell(self.study_id(cell)).ids[number]

    def seeds(self, cell: Cell, trial: optuna.Trial | FrozenTrial) -> list[int]:
        """Return the seeds that a trial is trained with."""
        return [
            seed + trial.user_attrs.get(SEED_OFFSET, 0)
            for seed in self.spaces[cell.index].seeds
        ]

    def trials(self, cell: Cell) -> list[FrozenTrial]:
        """Return a cell's own trials, without those that violate a constraint, repeat another or were withdrawn."""
        return [trial for trial in self.study(cell).get_trials(deepcopy=False) if is_own(trial)]

    def tally(self, cell: Cell) -> CellTally:
        """Return the sums over a cell's trials, as far as the storage has read them."""
        trials = self.storage.cell(self.study_id(cell))
        tally = self._tallies.get(cell.index)
        # The storage has dropped its cached trials.
        if tally is None or tally.trials is not trials:
            tally = self._tallies[cell.index] = CellTally(trials)
        tally.update()
        return tally

    def poll_commands(self) -> list[Command]:
        """Read and apply the commands that are new since the last time; none while the database does not answer."""
        try:
            news = self.commands.read_once()
        except sharing.FAILURES as error:
            self.availability.note_failure(error)
            return []
        for command in news:
            if command.kind == "reopen":
                self._reopened.add(command.value["trial_id"])
            else:  # a person's; workers reopen trials too
                self._failed_before.clear()
        if news:
            self.budget = self.commands.state.budget or self.spec.budget
            self._exhausted.clear()
        return news

    def claim_many(
        self,
        n_trials: float,
        fits: Callable[[Cell], bool] = lambda cell: True,
        asks: bool = True,
    ) -> list[Claim]:
        """Claim up to `n_trials` trials: running ones that nobody holds, then new ones in cells with room.

        `fits` narrows the choice of cells. Cells with the fewest running trials come first, else in their order. Unless
        it `asks` there are no new ones, and the study's phase does not matter.
        """
        claims = self.availability.retry(lambda: self._claim(n_trials, fits, asks))
        self._held |= {claim.trial_id for claim in claims}
        return claims

    def renew(self) -> set[int]:
        """Extend the leases of the trials that this worker holds, from any thread; return those that it still holds.

        Leases of a claim whose answer from the database was lost expire: this worker does not know of them.
        """
        held = self._held.copy()
        return held and self.leases.renew(held)

    def _claim(self, n_trials: float, fits: Callable[[Cell], bool], asks: bool) -> list[Claim]:
        self.awaits_results = False
        claims: list[Claim] = []
        with self.storage.transaction() as connection:
            self.poll_commands()
            self._read_reopened()
            fitting = [cell for cell in self.cells if fits(cell)]
            # Where an enqueued trial waits in a cell that does not fit, this worker's stack has to end first.
            elsewhere = any(self.tally(cell).waiting() for cell in self.cells if not fits(cell))
            if asks and (self.commands.state.phase != "run" or elsewhere):
                return []
            leases = self.leases.all(connection)
            # This worker's own trials count as held, even if it has lost their leases: its next report finds out.
            held = self._held.union(each for each in leases if not leases[each].is_dead)
            for cell in fitting:
                running = sorted(self.tally(cell).running(), key=lambda trial: trial.number)
                for frozen in running:
                    is_held = self.trial_id(cell, frozen.number) in held
                    if len(claims) < n_trials and not is_held:
                        claims += self._take_over(connection, cell, frozen, leases)
            if not asks:
                return claims
            asked: list[int] = []
            most = min(n_trials, len(claims) + max(1, self.share_left()))
            while len(claims) < most and (claim := self._ask_where_there_is_room(fitting)):
                claims.append(claim)
                asked.append(claim.trial_id)
            if asked:
                self.leases.take(connection, asked)
            while len(claims) < n_trials and (best := self._next_to_promote(fitting)):
                if self.promote(connection, *best):
                    claims += self._take_over(connection, *best, {})
        return claims

    def _take_over(
        self,
        connection: sql.Connection,
        cell: Cell,
        frozen: FrozenTrial,
        leases: Mapping[int, Lease],
    ) -> list[Claim]:
        """Claim a trial that runs without a valid lease; return no claim if another worker was faster."""
        trial_id = self.trial_id(cell, frozen.number)
        attempt = self.leases.take_over(connection, trial_id, leases.get(trial_id))
        if attempt is None:
            return []
        self.storage.refresh([trial_id])
        reported = set(self.storage.get_trial(trial_id).intermediate_values)
        with warnings.catch_warnings(action="ignore"):
            trial = self.asker.trial(self.study(cell), cell, frozen.number, self._n_startup)
            claim = self._claimed(cell, trial, attempt, reported)
        if claim is None:
            self.leases.drop(connection, trial_id, attempt)
        return [claim] if claim else []

    @property
    def _may_promote(self) -> bool:
        has_more = self.budget.time is not None or self.budget.flops is not None
        can_promote = promotes(self.spec.pruner) and self.storage.can_reopen
        return can_promote and has_more and not self._is_spent()

    def _next_to_promote(self, fitting: Sequence[Cell]) -> tuple[Cell, FrozenTrial] | None:
        if not self._may_promote:
            return None
        if any(map(self._room, self.cells)) or not all(
            PROMOTED in trial.user_attrs for trial in self._running()
        ):
            self.awaits_results = True
            return None
        pruned = [cell for cell in fitting if self.tally(cell).pruned]
        if not pruned:
            return None
        cell = min(
            pruned,
            key=lambda each: self.tally(each).n_promoted + len(self.tally(each).running()),
        )
        (best,) = self.tally(cell).best_pruned(1)
        # Not one that this worker still trains, unaware that it lost the lease and others have pruned the trial.
        return None if self.trial_id(cell, best.number) in self._held else (cell, best)

    def _running(self) -> list[FrozenTrial]:
        return [trial for cell in self.cells for trial in self.tally(cell).running()]

    def _ask_where_there_is_room(self, fitting: Sequence[Cell]) -> Claim | None:
        """Ask for a trial in the cell with the fewest running ones; where a person has enqueued one, there first."""
        is_spent = self._is_spent()
        while True:
            rooms = [
                room
                for room in map(self._room, fitting)
                if room and not (is_spent and room.is_new)
            ]
            self.awaits_results = any(room.has_to_wait for room in rooms)
            if all(room.has_to_wait for room in rooms):
                return None
            cell = self.cells[min(rooms).cell_index]
            claim = self._ask(cell)
            if claim:
                return claim
            self._exhausted.add(cell.index)
            self.notices.append(
                f"cell {cell.key}: found no new point that meets the constraints"
            )

    def _room(self, cell: Cell) -> _Room | None:
        """Return how a cell may have another trial; None if it may not."""
        tally = self.tally(cell)
        budget = self.budget
        if cell.index in self._exhausted:
            return None
        n_running = len(tally.running())
        # Where trials_per_cell ends a cell, cells fill one after the other, the longest first, else all of them alike.
        before = 0.0
        if budget.trials_per_cell is None:
            before = tally.counted
        elif budget.time is None and budget.flops is None:
            before = -self._flops[cell.index]
        if tally.waiting():
            return _Room(False, False, n_running, before, cell.index)
        failed_before = self._failed_before.setdefault(cell.index, tally.failed)
        n_left = self._n_left(cell)
        if n_left <= 0 or tally.failed - failed_before >= MOST_FAILURES:
            return None
        sampler = settled_sampler(self.spec)
        is_joint = sampler.type == JOINT
        # The last trial of a joint search follows from all others.
        has_to_wait = is_joint and n_left <= 1 and n_running > 0
        if BATCH in sampler.options:
            n_together = len(self._running()) if is_joint else n_running
            has_to_wait = has_to_wait or n_together >= sampler.options[BATCH]
        return _Room(has_to_wait, True, n_running, before, cell.index)

    @cached_property
    def _flops(self) -> list[float]:
        """Return the FLOPs of a trial of each cell."""
        return [
            float(facts(space.typical).train_flops) * len(space.seeds) for space in self.spaces
        ]

    def share_left(self) -> float:
        """Return how many trials each of the planned workers may still start, as of the last claim."""
        return sum(max(0, self._n_left(cell)) for cell in self.cells) / self.n_workers

    def _n_left(self, cell: Cell) -> float:
        """Return how many new trials a cell has room for by the budget and its points; negative if it has more."""
        tally = self.tally(cell)
        n_points = self.spaces[cell.index].n_points or math.inf
        limit = min(self.budget.trials_per_cell or math.inf, n_points)
        return limit - tally.counted - len(tally.running())

    @property
    def _n_startup(self) -> int:
        return n_startup_trials(self.spec, self.budget.trials_per_cell)

    def _is_spent(self) -> bool:
        if self.budget.flops is None:
            return False
        spent = sum(self.tally(cell).train_flops for cell in self.cells)
        planned = sum(trial.user_attrs.get("planned_flops", 0) for trial in self._running())
        return bool(spent + planned >= self.budget.flops)

    def _ask(self, cell: Cell) -> Claim | None:
        study = self.study(cell)
        is_last = self._n_left(cell) == 1
        for left in reversed(range(MOST_DRAWS)):
            with warnings.catch_warnings(action="ignore"):
                trial = self.asker.ask(study, cell, self._n_startup, is_last)
                claim = self._claimed(cell, trial) if trial else None
            if claim or trial is None:
                return claim
            # Draw again what it leaves to the sampler.
            if left and ENQUEUED in trial.user_attrs:
                trial_id = self.trial_id(cell, trial.number)
                asked = {ENQUEUED: trial.user_attrs[ENQUEUED]}
                study.enqueue_trial(
                    self.storage.get_trial_system_attrs(trial_id)["fixed_params"], asked
                )
        return None

    def _claimed(
        self,
        cell: Cell,
        trial: optuna.Trial,
        attempt: int = 1,
        reported: Set[int] = frozenset(),
    ) -> Claim | None:
        """Return a claim of the trial if it meets the constraints and is new; else fail it, so that it never counts.

        Trials that a person asked for need not be new.
        """
        space = self.spaces[cell.index]
        sampled = space.suggest(trial)
        values = space.resolve(sampled, self.spec.first_seed)
        enqueued = trial.user_attrs.get(ENQUEUED)
        twin = self.tally(cell).twin(trial.params, trial.number)
        void: dict[str, Any] = {"infeasible": True} if space.broken(values) else {}
        if enqueued is None and SEED_OFFSET not in trial.user_attrs and twin is not None:
            void[REPEATS] = twin
        if void:
            for name, value in void.items():
                trial.set_user_attr(name, value)
            self.study(cell).tell(trial, state=TrialState.FAIL)
            return None
        seeds = self.seeds(cell, trial)
        trial.set_user_attr("planned_flops", float(facts(values).train_flops * len(seeds)))
        return Claim(
            cell,
            trial.number,
            self.trial_id(cell, trial.number),
            sampled,
            values,
            attempt,
            trial,
            {*reported},
            enqueued,
            trial.user_attrs.get(PROMOTED),
            seeds,
        )

    def report_many(self, reports: Collection[Report]) -> Verdicts:
        """Report values of trials at iterations; return the trials to be pruned, and those whose lease is lost.

        While the database does not answer no trial is pruned; missed reports are sent with the next ones.

        Raises:
            StorageUnavailable: the database has not answered for too long.
        """
        if not reports:
            return Verdicts(set(), set())
        self._unsent += reports
        try:
            verdicts = self._report(self._unsent)
        except sharing.FAILURES as error:
            self.availability.note_failure(error)
            return Verdicts(set(), set())
        self.availability.note_answer()
        self._unsent = []
        self._held -= verdicts.lost
        return verdicts

    def _report(self, reports: Sequence[Report]) -> Verdicts:
        attempts = {report.claim.trial_id: report.claim.attempt for report in reports}
        prunes = self.spec.pruner.type != "none"
        new: list[Report] = []
        try:
            with self.storage.transaction(in_turn=False, reads=prunes) as connection:
                held = self.leases.held(connection, attempts)
                if prunes:
                    self.storage.refresh_system_attrs(
                        {self.study_id(each.claim.cell) for each in reports}
                    )
                behind = set()
                for claim, iteration, value in reports:
                    if claim.trial_id not in held:
                        continue
                    if math.isfinite(value) and iteration not in claim.reported:
                        self.storage.set_trial_intermediate_value(
                            claim.trial_id, iteration, value
                        )
                        claim.reported.add(iteration)
                        new.append(Report(claim, iteration, value))
                    # A report before the last one repeats a killed worker's, which was judged then.
                    is_last = iteration >= max(claim.reported, default=0)
                    if prunes and is_last:
                        study = self.study(claim.cell)
                        trial = self.storage.get_trial(claim.trial_id)
                        # A promoted trial is judged only so that others can be compared with it.
                        if study.pruner.prune(study, trial) and claim.promoted is None:
                            behind.add(claim.trial_id)
        except BaseException:
            for claim, iteration, _ in new:  # nothing was written
                claim.reported.discard(iteration)
            raise
        return Verdicts(behind, attempts.keys() - held)

    def finish(
        self, claim: Claim, outcome: RunState, value: float | None, totals: Mapping[str, float]
    ) -> None:
        """Tell Optuna how a trial ended, with its `totals` (FLOPs and seconds).

        Raises:
            LeaseLost: another worker holds the trial by now.
            StorageUnavailable: the database has not answered for too long.
        """
        attributes = {"outcome": str(outcome), **totals}
        try:
            self.availability.retry(lambda: self._tell(claim, outcome, value, attributes))
        finally:
            self._held.discard(claim.trial_id)

    def _tell(
        self,
        claim: Claim,
        outcome: RunState,
        value: float | None,
        attributes: Mapping[str, Any],
    ) -> None:
        if self._unsent:  # they may be this trial's
            self._report(self._unsent)
            self._unsent = []
        with self.storage.transaction() as connection:
            if not self.leases.drop(connection, claim.trial_id, claim.attempt):
                frozen = self.storage.get_trial(claim.trial_id)
                if (
                    frozen.state.is_finished()
                    and attributes.items() <= frozen.user_attrs.items()
                ):
                    return  # an earlier attempt succeeded, but its answer was lost
                raise sharing.LeaseLost(f"trial {claim.number} of cell {claim.cell.key}")
            for name, attribute in attributes.items():
                self.storage.set_trial_user_attr(claim.trial_id, name, attribute)
            if outcome == RunState.DIVERGED:
                # Samplers prefer pruned trials with a later last step: mark a diverged one as infeasible instead.
                # A worker that died here may have set it already.
                with warnings.catch_warnings(action="ignore"):
                    claim.trial.set_constraint("diverged", 1.0)
            state = OPTUNA_STATES[outcome]
            values = value if state == TrialState.COMPLETE else None
            self.study(claim.cell).tell(claim.number, values, state=state)

    def requeue(self, claims: Iterable[Claim]) -> None:
        """Give back the leases of trials that have not ended, so that the next claims can take them."""
        held = list(claims)
        self._held -= {claim.trial_id for claim in held}

        def give_back() -> None:
            with self.storage.transaction(in_turn=False) as connection:
                for claim in held:
                    self.leases.give_back(connection, claim.trial_id, claim.attempt)

        self.availability.retry(give_back)

    # ------------------------------------------------------------------ reopen

    def _read_reopened(self) -> None:
        if self._reopened:
            self.storage.read_again(self._reopened)
            self._reopened.clear()

    def reopen(
        self, connection: sql.Connection, cell: Cell, trial: FrozenTrial, anew: bool = False
    ) -> bool:
        """Set an ended trial to running, without a lease; return False if another process was faster.

        With `anew` its parameters, reports and attributes are removed. Optuna cannot reopen an ended trial, and
        processes read an ended trial only once. So the same transaction adds a row to the study's commands, and a
        process that reads the row reads the trial again. It stays one trial: a new one with the same values would be
        counted, modeled and compared at rungs twice.
        """
        trial_id = self.trial_id(cell, trial.number)
        if not self.storage.reopen(trial_id, anew):
            return False
        place = {"cell": cell.key, "trial": trial.number, "trial_id": trial_id, "anew": anew}
        self.commands.add_in(connection, "reopen", place)
        return True

    def promote(self, connection: sql.Connection, cell: Cell, pruned: FrozenTrial) -> bool:
        """Let a pruned trial continue to its end; return False if another process was faster."""
        if not self.reopen(connection, cell, pruned):
            return False
        trial_id = self.trial_id(cell, pruned.number)
        self.storage.set_trial_user_attr(trial_id, PROMOTED, pruned.last_step or 0)
        return True

    # ------------------------------------------------------------------ count

    def tallies(self) -> list[CellTally]:
        """Return the sums over the trials of each cell, as the storage has them now."""

        def read() -> list[CellTally]:
            with self.storage.reading():
                self._read_reopened()
                return [self.tally(cell) for cell in self.cells]

        return self.availability.retry(read)

    def has_room(self) -> bool:
        """Return whether a trial runs or waits, the budget has room for a new one, or one can be promoted."""
        tallies = self.tallies()
        has_unended = any(tally.trials.unended for tally in tallies)
        if has_unended or any(self._n_left(cell) > 0 for cell in self.cells):
            return True
        return self._may_promote and any(tally.pruned for tally in tallies)

    def n_running(self) -> int:
        """Return how many trials have started and not ended."""
        return sum(len(tally.running()) for tally in self.tallies())

    def n_held(self) -> int:
        """Return how many trials are held by some process, here or elsewhere."""

        def read() -> int:
            with self.storage.reading() as connection:
                leases = self.leases.all(connection).values()
                return sum(not lease.is_dead for lease in leases)

        return self.availability.retry(read)


def open_store(
    folder: StudyFolder, allow_plugins: bool = False, wait: Availability | None = None
) -> Store:
    """Open the storage of a study from its folder, with all commands so far applied."""
    spec = read_spec(folder, allow_plugins)
    store = Store(spec, folder.data.sizes, folder.storage_url, wait)
    store.poll_commands()
    return store
