"""An Optuna storage that writes Optuna's own tables in bulk and keeps the trials in memory.

Optuna's RDBStorage needs a transaction for every attribute, value and parameter, and caches 22 KB per trial. Here
samplers and pruners read and write the cached trials, and their changes are written when the transaction ends. When a
transaction begins, new trials and unended ones are read. The tables are Optuna's, so its dashboard and every other
program that opens a storage can read them. The same statements run on SQLite and PostgreSQL.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import optuna
import sqlalchemy as sql
from optuna import distributions
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from sweeplab.errors import BadInput
from sweeplab.lab.storage import READ_ONLY, READS, engine_arguments, is_read_only, open_database
from sweeplab.lab.tables import CONTENT, listed, statements
from sweeplab.permissions import signed, without_unsigned
from sweeplab.sweep.trials.cells import TAKE_TURN, CachedTrials, forwards

optuna.logging.set_verbosity(optuna.logging.WARNING)

# Shared by all trials without system attributes: most have none.
_NOTHING: dict[str, Any] = {}
_CONTENTS = ("params", "distributions", "user_attrs", "system_attrs", "intermediate_values")
_TIMES = ("datetime_start", "datetime_complete")
_SPECIAL = {"INF_POS": float("inf"), "INF_NEG": float("-inf"), "NAN": float("nan")}


@forwards
class TrialStorage(BaseStorage):
    """The trials of one database.

    All calls inside `transaction` form one database transaction; outside of it each call is one. Studies are created
    and described by Optuna's own storage, not inside a transaction.
    """

    can_reopen = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = open_database(url)
        self._sql = statements(self.engine.dialect.name)
        if not self._is_of_this_optuna():
            try:
                _ = self.inner  # creates the tables, or refuses those of another Optuna version
            except StorageInternalError as error:  # how Optuna reports a lost database
                raise error.__cause__ or error from None
        self._reading = self.engine.execution_options(**READS)
        self._thread = threading.RLock()
        self._connection: sql.Connection | None = None
        self._distributions: dict[str, BaseDistribution] = {}
        self._sets: dict[tuple[str, ...], dict[str, BaseDistribution]] = {}
        self._study_ids: dict[str, int] = {}
        self._directions: dict[int, list[StudyDirection]] = {}
        self._forget()

    @cached_property
    def inner(self) -> RDBStorage:
        """Return Optuna's own storage; opening it takes longer than the rest of a command."""
        rdb = RDBStorage(self.url, engine_kwargs=engine_arguments(self.url))
        rdb.remove_session()
        rdb.engine.dispose()
        rdb.engine = self.engine
        rdb.scoped_session.configure(bind=self.engine)
        return rdb

    def _is_of_this_optuna(self) -> bool:
        made_by = sql.select(self._sql.version.c.library_version)
        try:
            with self.engine.execution_options(**READS).connect() as connection:
                return connection.scalar(made_by) == optuna.__version__
        except SQLAlchemyError:  # no tables, or an error that Optuna will report
            return False

    def _forget(self) -> None:
        """Drop the cached trials; the next transaction reads them again."""
        self._cells: dict[int, CachedTrials] = {}
        self._by_id: dict[int, tuple[int, FrozenTrial]] = {}
        self._last = 0
        self._writes: dict[str, dict[tuple[int, str | int], dict[str, Any]]] = {}
        self._changed: dict[int, FrozenTrial] = {}

    # ------------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self, in_turn: bool = True, reads: bool = True) -> Iterator[sql.Connection]:
        """Run the block as one database transaction; a nested one is part of the outer one.

        Transactions with `in_turn` exclude each other, so leases and states stay as they were read. Every transaction
        that starts or ends a trial needs it. On SQLite all writing transactions exclude each other. Without `reads`
        the cached trials are not updated, unless there are none yet.

        Raises:
            BadInput: this process may only read the database.
        """
        if is_read_only(self.engine):
            raise BadInput(READ_ONLY)
        with self._thread:
            if self._connection is not None:
                yield self._connection
                return
            try:
                with self.engine.begin() as self._connection:
                    if in_turn and self.engine.dialect.name == "postgresql":
                        self._read_changes()  # most of it, before the lock is held
                        self._connection.execute(TAKE_TURN)
                    if reads or not self._by_id:
                        self._read_changes()
                    yield self._connection
                    self._write()
            except BaseException:
                if self._connection is not None:
                    self._forget()
                raise
            finally:
                self._connection = None

    @contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """Update the cached trials once for all reads in the block."""
        with self._thread:
            if self._connection is not None:
                yield self._connection
                return
            try:
                with self._reading.connect() as self._connection:
                    self._read_changes()
                    yield self._connection
            finally:
                self._connection = None

    def _read_changes(self) -> None:
        """Read new trials, and those that were unended at the last reading."""
        ids: dict[str, list[int]] = {TrialState.RUNNING.name: [], TrialState.WAITING.name: []}
        for cell in self._cells.values():
            for trial_id, trial in cell.unended.items():
                ids[trial.state.name].append(trial_id)
        unended = {state: listed(of_state) for state, of_state in ids.items()}
        try:
            rows = self._run(self._sql.changes, last=self._last, **unended)
            changed = sorted(rows, key=lambda row: row.trial_id)
            if not changed:
                return
            contents = self._contents([row.trial_id for row in changed])
            for row in changed:
                cell = self._cells.setdefault(row.study_id, CachedTrials())
                if row.trial_id in self._by_id:
                    trial = self._own(row.trial_id)
                else:
                    trial = _empty_trial(row.trial_id, row.number, row.state)
                    self._by_id[row.trial_id] = (row.study_id, trial)
                    cell.trials.append(trial)
                    cell.ids.append(row.trial_id)
                trial.state = row.state
                for name in _TIMES:
                    time = getattr(row, name)
                    setattr(
                        trial,
                        name,
                        time and time.replace(tzinfo=UTC).astimezone().replace(tzinfo=None),
                    )
                self._fill(row.trial_id, trial, contents.get(row.trial_id, []))
                cell.file(row.trial_id, trial)
        except BaseException:
            self._forget()
            raise
        self._last = max(self._last, changed[-1].trial_id)

    def refresh(self, trial_ids: Sequence[int]) -> None:
        """Read unended trials again, which other processes may have changed; inside a transaction."""
        self._write()  # so that the transaction's own changes are read, too
        contents = self._contents(trial_ids)
        for trial_id in trial_ids:
            self._fill(trial_id, self._own(trial_id), contents.get(trial_id, []))

    def reopen(self, trial_id: int, anew: bool = False) -> bool:
        """Set an ended trial to running, inside a transaction; return False if another process was faster.

        With `anew` its parameters, reports and attributes are removed. Optuna has no such transition: a process that
        has read the trial as ended never reads it again, unless it calls `read_again`.
        """
        state = self._run(
            sql.select(self._sql.trials.c.state).where(self._sql.trials.c.trial_id == trial_id)
        )
        if (
            self._found(trial_id)[1].state.is_finished()
            and not state.scalar_one().is_finished()
        ):
            self.read_again([trial_id])
            return False
        self._forget_ends([trial_id])
        for statement in self._sql.forget_content if anew else self._sql.forget_ending:
            self._run(statement, id=trial_id)
        self.refresh([trial_id])
        trial = self._own(trial_id)
        trial.state = TrialState.RUNNING
        trial.datetime_complete = None
        self._changed[trial_id] = trial
        return True

    def read_again(self, trial_ids: Iterable[int]) -> None:
        """Read ended trials again that may have been reopened."""
        with self.reading():
            self._forget_ends(trial_ids)
            self._read_changes()

    def _forget_ends(self, trial_ids: Iterable[int]) -> None:
        for trial_id in trial_ids:
            if trial_id not in self._by_id or not self._by_id[trial_id][1].state.is_finished():
                continue
            study_id, trial = self._by_id[trial_id]
            known = self._cells[study_id]
            ended = [other for other in known.ended if other is not trial]
            # A new object, so that tallies of ended trials are counted again from the first one.
            self._cells[study_id] = CachedTrials(known.trials, known.ids, known.unended, ended)
            copied = self._own(trial_id)
            copied.state = TrialState.WAITING  # differs from any state that is read
            self._cells[study_id].file(trial_id, copied)

    def refresh_system_attrs(self, study_ids: Container[int]) -> None:
        """Read the system attributes of these studies' unended trials again, where halving keeps its rungs."""
        ids = [
            each
            for study, cell in self._cells.items()
            if study in study_ids
            for each in cell.unended
        ]
        attributes: dict[int, dict[str, Any]] = {trial_id: {} for trial_id in ids}
        for row in self._run(self._sql.system_of, ids=listed(ids)) if ids else ():
            attributes[row.trial_id][row.key] = json.loads(row.value_json)
        for trial_id, values in attributes.items():
            self._own(trial_id).system_attrs = without_unsigned(trial_id, values)

    def _contents(self, ids: Sequence[int]) -> dict[int, list[Any]]:
        contents: dict[int, list[Any]] = {}
        for row in self._run(self._sql.contents, ids=listed(ids)).all():
            contents.setdefault(row.trial_id, []).append(row)
        return contents

    def _fill(self, trial_id: int, trial: FrozenTrial, contents: list[Any]) -> None:
        parts: dict[str, list[Any]] = {}
        for row in sorted(contents, key=lambda row: row.rank):
            parts.setdefault(row.kind, []).append(row)
        params = parts.get("param", ())
        texts = tuple(row.text for row in params)
        names = tuple(sys.intern(row.key) for row in params)  # one string for all trials
        for text in texts:
            if text not in self._distributions:
                self._distributions[text] = json_to_distribution(text)
        known = [self._distributions[text] for text in texts]
        # One dictionary for all trials with the same parameters: else it would be most of a trial's memory.
        trial.distributions = self._sets.setdefault(
            names + texts, dict(zip(names, known, strict=True))
        )
        trial.params = {
            name: distribution.to_external_repr(row.number)
            for name, row, distribution in zip(names, params, known, strict=True)
        }
        trial.user_attrs = {
            sys.intern(row.key): json.loads(row.text) for row in parts.get("user", ())
        }
        system = {row.key: json.loads(row.text) for row in parts.get("system", ())}
        trial.system_attrs = without_unsigned(trial_id, system) or _NOTHING
        reports = parts.get("report", ())
        trial.intermediate_values = {
            int(row.key): _SPECIAL.get(row.text, row.number) for row in reports
        }
        values = sorted(parts.get("value", ()), key=lambda row: int(row.key))
        trial.values = [_SPECIAL.get(row.text, row.number) for row in values] or None

    def _own(self, trial_id: int) -> FrozenTrial:
        """Replace a cached trial by a copy and return the copy, which may be changed: callers may hold the old one."""
        study_id, trial = self._by_id[trial_id]
        cell = self._cells[study_id]
        copied = copy.copy(trial)
        cell.trials[copied.number] = cell.unended[trial_id] = copied
        self._by_id[trial_id] = (study_id, copied)
        return copied

    def _run(self, statement: sql.Executable, **values: Any) -> sql.CursorResult[Any]:
        assert self._connection is not None
        return self._connection.execute(statement, values)

    def _add(self, kind: str, of: int, key: str | int, *content: Any) -> None:
        """Write a row when the transaction ends, in place of that of the same key."""
        row = dict(zip(CONTENT[kind].split()[1:], (of, key, *content), strict=True))
        self._writes.setdefault(kind, {})[of, key] = row

    def _write(self) -> None:
        assert self._connection is not None
        for kind, rows in self._writes.items():
            self._connection.execute(self._sql.upsert(kind), [*rows.values()])
        self._writes = {}
        if self._changed:
            changes = [
                {"id": trial_id, **_row_of(trial)} for trial_id, trial in self._changed.items()
            ]
            self._connection.execute(self._sql.set_state, changes)
            self._changed = {}

    # ------------------------------------------------------------------ trials

    def cell(self, study_id: int) -> CachedTrials:
        """Return a study's trials as of the last reading."""
        return self._cells.setdefault(study_id, CachedTrials())

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Add a running trial, or a copy of the template, and return its id."""
        with self.transaction():
            self._check_study(study_id)
            cell = self.cell(study_id)
            number = len(cell.trials)
            template = template_trial
            if template is None:
                template = _empty_trial(0, number, TrialState.RUNNING)
                template.datetime_start = datetime.now()
            row = {"number": number, "study_id": study_id, **_row_of(template)}
            trial_id: int = self._run(self._sql.new, **row).scalar_one()
            self._last = max(self._last, trial_id)
            trial = _empty_trial(trial_id, number, template.state)
            for name in (*_CONTENTS, *_TIMES, "values"):
                setattr(trial, name, copy.deepcopy(getattr(template, name)))
            self._by_id[trial_id] = (study_id, trial)
            cell.trials.append(trial)
            cell.ids.append(trial_id)
            cell.file(trial_id, trial)
            for objective, value in enumerate(trial.values or ()):
                self._add("value", trial_id, objective, *self._sql.stored_value(value))
            for name, value in trial.params.items():
                distribution = trial.distributions[name]
                stored = (
                    distribution.to_internal_repr(value),
                    distribution_to_json(distribution),
                )
                self._add("param", trial_id, name, *stored)
            for table, attributes in (
                ("user", trial.user_attrs),
                ("system", trial.system_attrs),
            ):
                for key, attribute in attributes.items():
                    self._add(table, trial_id, key, json.dumps(attribute))
            for step, value in trial.intermediate_values.items():
                self._add("report", trial_id, step, *self._sql.stored_report(value))
            return trial_id

    @contextmanager
    def _changing(self, trial_id: int) -> Iterator[tuple[int, FrozenTrial]]:
        with self.transaction():
            study_id, trial = self._found(trial_id)
            self.check_trial_is_updatable(trial_id, trial.state)
            yield study_id, self._own(trial_id)

    def _found(self, trial_id: int) -> tuple[int, FrozenTrial]:
        if trial_id not in self._by_id:
            raise KeyError(f"there is no trial of id {trial_id}")
        return self._by_id[trial_id]

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        """Set a parameter's value in Optuna's internal representation."""
        with self._changing(trial_id) as (study_id, trial):
            for other in reversed(self.cell(study_id).trials):
                if param_name in other.distributions:
                    distributions.check_distribution_compatibility(
                        other.distributions[param_name], distribution
                    )
                    break
            value = distribution.to_external_repr(param_value_internal)
            trial.params = {**trial.params, param_name: value}
            trial.distributions = {**trial.distributions, param_name: distribution}
            stored = (param_value_internal, distribution_to_json(distribution))
            self._add("param", trial_id, param_name, *stored)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Set a trial's state and values; return False if it is to be started and is not waiting."""
        with self._changing(trial_id) as (study_id, trial):
            if values is not None:
                trial.values = list(values)
                for objective, value in enumerate(values):
                    self._add("value", trial_id, objective, *self._sql.stored_value(value))
            if state == TrialState.RUNNING and trial.state != TrialState.WAITING:
                return False
            trial.state = state
            if state == TrialState.RUNNING:
                trial.datetime_start = datetime.now()
            if state.is_finished():
                trial.datetime_complete = datetime.now()
            self._changed[trial_id] = trial
            self.cell(study_id).file(trial_id, trial)
            return True

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        """Set the value that a trial reports at a step."""
        with self._changing(trial_id) as (_, trial):
            trial.intermediate_values = {**trial.intermediate_values, step: intermediate_value}
            self._add("report", trial_id, step, *self._sql.stored_report(intermediate_value))

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set a user attribute."""
        with self._changing(trial_id) as (_, trial):
            trial.user_attrs = {**trial.user_attrs, key: value}
            self._add("user", trial_id, key, json.dumps(value))

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set a system attribute; one that Optuna will unpickle is signed."""
        attributes = signed(trial_id, key, value)
        with self._changing(trial_id) as (_, trial):
            trial.system_attrs = {**trial.system_attrs, **attributes}
            for name, attribute in attributes.items():
                self._add("system", trial_id, name, json.dumps(attribute))

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a copy of a trial."""
        with self.reading():
            trial = copy.copy(self._found(trial_id)[1])
        for name in _CONTENTS:
            setattr(trial, name, dict(getattr(trial, name)))
        return trial

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return a study's trials by number; without `deepcopy` the cached ones, which must not be changed."""
        with self.reading():
            self._check_study(study_id)
            cell = self.cell(study_id)
            trials = cell.trials.copy()
            if states is not None:
                trials = [trial for trial in trials if trial.state in states]
            return copy.deepcopy(trials) if deepcopy else trials

    # ------------------------------------------------------------------ studies

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Set a study's system attribute."""
        with self.transaction():
            self._check_study(study_id)
            self._add("study", study_id, key, json.dumps(value))

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return a study's system attributes."""
        with self.reading():
            self._check_study(study_id)
            table = self._sql.content["study"]
            rows = self._run(sql.select(table).where(table.c.study_id == study_id))
            texts = {row.key: row.value_json for row in rows}
            written = self._writes.get("study", {}).items()
            texts |= {key: row["value_json"] for (of, key), row in written if of == study_id}
        return {key: json.loads(text) for key, text in texts.items()}

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return a study's id."""
        for _ in range(2):
            if study_name in self._study_ids:
                return self._study_ids[study_name]
            self._read_studies()
        raise KeyError(f"there is no study {study_name!r}")

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return a study's directions."""
        self._check_study(study_id)
        return self._directions[study_id]

    def _check_study(self, study_id: int) -> None:
        if study_id not in self._directions:
            self._read_studies()
        if study_id not in self._directions:
            raise KeyError(f"there is no study of id {study_id}")

    def _read_studies(self) -> None:
        studies = self._sql.studies.c
        directions = self._sql.directions
        with self.reading():
            names = self._run(sql.select(studies.study_name, studies.study_id)).all()
            rows = self._run(sql.select(directions).order_by(directions.c.objective)).all()
        self._study_ids = {row.study_name: row.study_id for row in names}
        self._directions = {row.study_id: [] for row in names}
        for row in rows:
            self._directions[row.study_id].append(row.direction)


def _row_of(trial: FrozenTrial) -> dict[str, Any]:
    row: dict[str, Any] = {"state": trial.state}
    for name in _TIMES:
        time = getattr(trial, name)
        row[name] = time and time.astimezone(UTC).replace(tzinfo=None)
    return row


def _empty_trial(trial_id: int, number: int, state: TrialState) -> FrozenTrial:
    empty: dict[str, Any] = {name: {} for name in _CONTENTS} | dict.fromkeys(_TIMES)
    return FrozenTrial(number=number, state=state, value=None, trial_id=trial_id, **empty)
