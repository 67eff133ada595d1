"""The one file that knows Optuna's tables, private parts of it: statements over them, for SQLite and PostgreSQL.

`unlike` compares the tables with those that are known here; where they differ, and where a statement over them fails,
Optuna's public calls are used instead. Counts are plain text, as a list of studies is shown without Optuna.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

from sweeplab.processes import switched_off

# The columns that the statements know of the tables that they write. In all but the first they are a row's id, what
# it belongs to and its name there, by which it is unique, and its content: a number and a text, or a text alone.
TRIALS = "trial_id number study_id state datetime_start datetime_complete"
CONTENT = {
    "param": "param_id trial_id param_name param_value distribution_json",
    "value": "trial_value_id trial_id objective value value_type",
    "report": "trial_intermediate_value_id trial_id step intermediate_value intermediate_value_type",
    "user": "trial_user_attribute_id trial_id key value_json",
    "system": "trial_system_attribute_id trial_id key value_json",
    "study": "study_system_attribute_id study_id key value_json",
}
TABLES = {
    "param": "trial_params",
    "value": "trial_values",
    "report": "trial_intermediate_values",
    "user": "trial_user_attributes",
    "system": "trial_system_attributes",
    "study": "study_system_attributes",
}


def counts(void: tuple[str, ...]) -> str:
    """Return the query that counts trials by study, state and outcome, without those with one of these attributes."""
    return f"""
SELECT study_name, state, outcome.value_json, COUNT(*), MAX(COALESCE(datetime_complete, datetime_start))
FROM trials
JOIN studies USING (study_id)
LEFT JOIN trial_user_attributes AS outcome ON outcome.trial_id = trials.trial_id AND outcome.key = 'outcome'
WHERE trials.trial_id NOT IN (SELECT trial_id FROM trial_user_attributes WHERE key IN {void})
GROUP BY study_name, state, outcome.value_json
"""


def why_public() -> str:
    """Return why Optuna's public storage is used; empty where its tables are read and written."""
    return switched_off() or unlike()


@cache
def unlike() -> str:
    """Return how Optuna's tables differ from those that are known here; empty where they do not."""
    try:
        known = Statements("sqlite")
    except (ImportError, AttributeError, KeyError) as error:
        return f"Optuna has other tables: {type(error).__name__}: {error}"
    columns = {
        known.trials: TRIALS,
        **{table: CONTENT[kind] for kind, table in known.content.items()},
    }
    names = [
        table.name
        for table, names in columns.items()
        if {*table.columns.keys()} != {*names.split()}
    ]
    return f"Optuna has other columns in: {', '.join(names)}" if names else ""


@cache
def statements(dialect: str) -> Statements:
    """Return the statements for a dialect of SQL, built once."""
    return Statements(dialect)


def listed(ids: Iterable[int]) -> str:
    """Return ids as one parameter of a statement: with one each, a thousand take longer to compile than to run."""
    return json.dumps([*ids])


class Statements:
    """The statements by which trials are read and written in bulk, with the tables that they are over."""

    def __init__(self, dialect: str) -> None:
        import sqlalchemy as sql
        from optuna.storages._rdb import models
        from optuna.trial import TrialState

        self._dialect = dialect
        tables = models.BaseModel.metadata.tables
        self.trials, self.studies = tables["trials"], tables["studies"]
        self.directions, self.version = tables["study_directions"], tables["version_info"]
        self.content = {kind: tables[name] for kind, name in TABLES.items()}
        self.stored_value = models.TrialValueModel.value_to_stored_repr
        self.stored_report = (
            models.TrialIntermediateValueModel.intermediate_value_to_stored_repr
        )
        trial_id = self.trials.c.trial_id
        of_id: sql.BindParameter[int] = sql.bindparam("id")
        # New trials, and those that are no longer running or waiting. Without an order, for which SQLite would read
        # all trials.
        self.changes = sql.select(*(self.trials.c[name] for name in TRIALS.split())).where(
            sql.or_(
                trial_id > sql.bindparam("last"),
                *(
                    self._among(trial_id, state.name) & (self.trials.c.state != state)
                    for state in (TrialState.RUNNING, TrialState.WAITING)
                ),
            )
        )
        system = self.content["system"]
        self.system_of = sql.select(system).where(self._among(system.c.trial_id, "ids"))
        self.new = sql.insert(self.trials).returning(trial_id)
        times = ("state", "datetime_start", "datetime_complete")
        self.set_state = sql.update(self.trials).where(trial_id == of_id)
        self.set_state = self.set_state.values({name: sql.bindparam(name) for name in times})
        # What a reopened trial loses: its values and the attributes of its end; restored from its records, all of it.
        forgets = {
            kind: sql.delete(table).where(table.c.trial_id == of_id)
            for kind, table in self.content.items()
            if kind != "study"
        }
        ends = ("outcome", "train_flops", "wall_seconds")
        self.forget_ending = [
            forgets["value"],
            forgets["user"].where(self.content["user"].c.key.in_(ends)),
        ]
        self.forget_content = [*forgets.values()]
        self.contents = sql.union_all(*map(self._rows_of, forgets))

    def _among(self, column: Any, name: str) -> Any:
        """Return whether a column is one of the ids of a parameter (`listed`), by an index."""
        import sqlalchemy as sql

        ids = sql.bindparam(name, type_=sql.Text)
        if self._dialect == "sqlite":
            return column.in_(sql.select(sql.func.json_each(ids).table_valued("value").c.value))
        # PostgreSQL writes an array in braces.
        array = sql.func.translate(ids, "[]", "{}")
        return column == sql.func.any(sql.cast(array, sql.ARRAY(sql.Integer)))

    def _rows_of(self, kind: str) -> Any:
        """Select the rows of some trials from a table, in columns common to all tables."""
        import sqlalchemy as sql

        table = self.content[kind]
        rank, trial_id, key, *number, text = (table.c[name] for name in CONTENT[kind].split())
        return sql.select(
            sql.literal(kind).label("kind"),
            trial_id,
            rank.label("rank"),
            sql.cast(key, sql.Text).label("key"),
            (number[0] if number else sql.cast(sql.null(), sql.Float)).label("number"),
            sql.cast(text, sql.Text).label("text"),
        ).where(self._among(trial_id, "ids"))

    @cache  # noqa: B019 - there is one of these for a dialect
    def upsert(self, kind: str) -> Any:
        """Return the statement that inserts rows into a table and overwrites those of the same key."""
        import sqlalchemy as sql

        of, key, *content = names = CONTENT[kind].split()[1:]
        # Import only one: PostgreSQL's takes as long as SQLAlchemy's core.
        insert = import_module(f"sqlalchemy.dialects.{self._dialect}").insert(
            self.content[kind]
        )
        insert = insert.values({name: sql.bindparam(name) for name in names})
        overwritten = {name: insert.excluded[name] for name in content}
        return insert.on_conflict_do_update(index_elements=(of, key), set_=overwritten)
