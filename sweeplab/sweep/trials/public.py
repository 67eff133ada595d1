"""Open the trials of a database: by Optuna's tables where this program knows them, else by Optuna's public storage.

Its public storage commits each call, so a lock keeps the processes of a study in turn instead of a transaction. A
process that dies between two calls leaves what the next claim mends: a running trial without a lease. Trials that have
ended cannot be reopened.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import optuna
import sqlalchemy as sql
from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

from sweeplab.errors import BadInput
from sweeplab.lab import storage
from sweeplab.lab.tables import why_public
from sweeplab.permissions import has_pickles, signed, without_unsigned
from sweeplab.sweep.trials.cells import TAKE_TURN, CachedTrials, forwards

if TYPE_CHECKING:
    from sweeplab.sweep.trials.storage import TrialStorage

    SharedStorage: TypeAlias = "TrialStorage | PublicStorage"


class _Statements:
    """Runs each statement as a transaction of its own."""

    def __init__(self, engine: sql.Engine) -> None:
        self._engine = engine

    def execute(self, statement: sql.Executable, parameters: Any = None) -> Any:
        """Run a statement and return its whole result."""
        with self._engine.begin() as connection:
            result = connection.execute(statement, parameters)
            if result.returns_rows:
                return result.freeze()()
            return result


@forwards
class PublicStorage(BaseStorage):
    """The calls of `TrialStorage` by Optuna's own storage."""

    can_reopen = False

    def __init__(self, url: str) -> None:
        self.engine = storage.open_database(url)
        self.inner = RDBStorage(url, engine_kwargs=storage.engine_arguments(url))
        storage.serialize(self.inner.engine)
        sql.event.listen(self.inner.engine, "before_cursor_execute", self._note_writing)
        self._thread = threading.RLock()
        self._is_in_turn = False
        self._studies: dict[int, optuna.Study] = {}
        self._cells: dict[int, CachedTrials] = {}
        self._read: set[int] = set()  # studies whose cached trials are as the database has them

    def _note_writing(
        self, _connection: object, _cursor: object, statement: str, *_: object
    ) -> None:
        if not statement.startswith(("SELECT", "BEGIN")):
            self._read.clear()

    @contextmanager
    def transaction(self, in_turn: bool = True, reads: bool = True) -> Iterator[Any]:
        """Keep other processes from changing trials while the block runs.

        Raises:
            BadInput: this process may only read the database.
        """
        if storage.is_read_only(self.engine):
            raise BadInput(storage.READ_ONLY)
        with self._thread:
            if self._is_in_turn:
                yield _Statements(self.engine)
                return
            with self._turn(), self.reading() as statements:
                yield statements

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self.engine.dialect.name == "sqlite":
            with FileLock(f"{self.engine.url.database}.turn", timeout=storage.BUSY_SECONDS):
                yield
            return
        with self.engine.begin() as connection:
            connection.execute(TAKE_TURN)
            yield

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Read trials as the database has them now, in the block."""
        with self._thread:
            is_outer, self._is_in_turn = not self._is_in_turn, True
            if is_outer:
                self._read.clear()
            try:
                yield _Statements(self.engine)
            except StorageInternalError as error:  # how Optuna reports a lost database
                raise error.__cause__ or error from None
            finally:
                self._is_in_turn = not is_outer

    def cell(self, study_id: int) -> CachedTrials:
        """Return a study's trials; outside of `reading` and `transaction` as of the last reading."""
        cell = self._cells.setdefault(study_id, CachedTrials())
        if self._is_in_turn and study_id not in self._read:
            self._update(study_id, cell)
            self._read.add(study_id)
        return cell

    def _update(self, study_id: int, cell: CachedTrials) -> None:
        for trial in self.get_all_trials(study_id, deepcopy=False):
            is_new = trial.number == len(cell.trials)
            if is_new:
                cell.trials.append(trial)
                cell.ids.append(
                    self.get_trial_id_from_study_id_trial_number(study_id, trial.number)
                )
            known = cell.trials[trial.number]
            trial_id = cell.ids[trial.number]
            if known.state.is_finished() and not is_new:
                continue
            cell.trials[trial.number] = trial
            cell.file(trial_id, trial)

    def refresh(self, trial_ids: Sequence[int]) -> None:
        """Read unended trials again."""
        self._read.clear()

    def refresh_system_attrs(self, study_ids: Container[int]) -> None:
        """Read the system attributes of unended trials again."""
        self._read.clear()

    def read_again(self, trial_ids: Iterable[int]) -> None:
        """Read ended trials again that may have been reopened by a process with the private way."""
        self._cells.clear()
        self._studies.clear()
        self._read.clear()

    def reopen(self, trial_id: int, anew: bool = False) -> bool:
        """Refuse to set an ended trial to running."""
        raise BadInput("Optuna's public storage cannot reopen a trial that has ended")

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return a study's trials by number; Optuna itself reads ended ones once."""
        if study_id not in self._studies:
            self._studies[study_id] = optuna.Study(
                self.get_study_name_from_id(study_id), self.inner
            )
        trials = self._studies[study_id].get_trials(deepcopy, states)
        return [self._checked(study_id, trial) for trial in trials]

    def _checked(self, study_id: int, trial: FrozenTrial) -> FrozenTrial:
        if not has_pickles(trial.system_attrs):
            return trial
        trial_id = self.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        checked = copy.copy(trial)
        checked.system_attrs = without_unsigned(trial_id, trial.system_attrs)
        return checked

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a copy of a trial."""
        trial = self.inner.get_trial(trial_id)
        trial.system_attrs = without_unsigned(trial_id, trial.system_attrs)
        return trial

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set a system attribute; one that Optuna will unpickle is signed."""
        for name, attribute in signed(trial_id, key, value).items():
            self.inner.set_trial_system_attr(trial_id, name, attribute)


def open_storage(url: str) -> SharedStorage:
    """Open the trials of a database, whose tables are created if there are none."""
    if why_public():
        return PublicStorage(url)  # type: ignore[abstract]
    from sweeplab.sweep.trials.storage import TrialStorage

    return TrialStorage(url)  # type: ignore[abstract]
