"""SQL statements that read and write Optuna's tables in bulk, for SQLite and PostgreSQL, each built once.

The tables are private parts of Optuna, which `public.py` compares with those that are known here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

import sqlalchemy as sql
from optuna.storages._rdb import models
from optuna.trial import TrialState
from sqlalchemy.ext.compiler import compiles

TRIALS = models.TrialModel.__table__
PARAMS = models.TrialParamModel.__table__
VALUES = models.TrialValueModel.__table__
REPORTS = models.TrialIntermediateValueModel.__table__
USER = models.TrialUserAttributeModel.__table__
SYSTEM = models.TrialSystemAttributeModel.__table__
STUDIES = models.StudyModel.__table__
DIRECTIONS = models.StudyDirectionModel.__table__
STUDY_SYSTEM = models.StudySystemAttributeModel.__table__
# The columns that these statements know of the tables that they write. In all but the first they are a row's id, what
# it belongs to and its name there, by which it is unique, and its content: a number and a text, or a text alone.
COLUMNS = {
    TRIALS: "trial_id number study_id state datetime_start datetime_complete",
    PARAMS: "param_id trial_id param_name param_value distribution_json",
    VALUES: "trial_value_id trial_id objective value value_type",
    REPORTS: "trial_intermediate_value_id trial_id step intermediate_value intermediate_value_type",
    USER: "trial_user_attribute_id trial_id key value_json",
    SYSTEM: "trial_system_attribute_id trial_id key value_json",
    STUDY_SYSTEM: "study_system_attribute_id study_id key value_json",
}

VERSION = models.VersionInfoModel.__table__
stored_value = models.TrialValueModel.value_to_stored_repr
stored_report = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr

# The tables with rows per trial.
PARTS = {"param": PARAMS, "value": VALUES, "report": REPORTS, "user": USER, "system": SYSTEM}
# Larger than any id.
NO_ID = 2**31 - 1


class among(sql.sql.expression.FunctionElement[Any]):  # noqa: N801 - a function of SQL
    """Whether a column is one of many ids, passed as one parameter (`listed`).

    A statement with a parameter or a literal for each of a thousand ids takes longer to compile than to run. The
    expression has no type: on SQLite SQLAlchemy compares a Boolean with 1, which prevents the use of an index.
    """

    inherit_cache = True


@compiles(among, "sqlite")
def _among_of_sqlite(element: among, compiler: Any, **_: Any) -> str:
    column, ids = map(compiler.process, element.clauses)
    return f"{column} IN (SELECT value FROM json_each({ids}))"


@compiles(among, "postgresql")
def _among_of_postgresql(element: among, compiler: Any, **_: Any) -> str:
    column, ids = map(compiler.process, element.clauses)
    return f"{column} = ANY(ARRAY(SELECT jsonb_array_elements_text(CAST({ids} AS jsonb))::integer))"


def listed(ids: Iterable[int]) -> str:
    """Return ids as the parameter of `among`."""
    return json.dumps([*ids])


# New trials, and those that are no longer running or waiting. Without an order, for which SQLite would read all trials.
CHANGES = sql.select(*(TRIALS.c[name] for name in COLUMNS[TRIALS].split())).where(
    sql.or_(
        TRIALS.c.trial_id > sql.bindparam("last"),
        *(
            among(TRIALS.c.trial_id, sql.bindparam(state.name, type_=sql.Text)) & (TRIALS.c.state != state)
            for state in (TrialState.RUNNING, TrialState.WAITING)
        ),
    )
)
IDS = sql.bindparam("ids", type_=sql.Text)
SYSTEM_OF = sql.select(SYSTEM).where(among(SYSTEM.c.trial_id, IDS))
NEW = sql.insert(TRIALS).returning(TRIALS.c.trial_id)
# What a reopened trial loses: its values and the attributes of its end.
ENDING = ("outcome", "train_flops", "wall_seconds")
FORGET_ENDING = (
    sql.delete(VALUES).where(VALUES.c.trial_id == sql.bindparam("id")),
    sql.delete(USER).where(USER.c.trial_id == sql.bindparam("id"), USER.c.key.in_(ENDING)),
)
# What it also loses if it is restored from its records.
FORGET_CONTENT = tuple(
    sql.delete(table).where(table.c.trial_id == sql.bindparam("id"))
    for table in (PARAMS, REPORTS, USER, SYSTEM)
)
SET_STATE = (
    sql.update(TRIALS)
    .where(TRIALS.c.trial_id == sql.bindparam("id"))
    .values({name: sql.bindparam(name) for name in ("state", "datetime_start", "datetime_complete")})
)


def _rows_of(kind: str) -> sql.Select[Any]:
    """Select the rows of some trials from a table, in columns common to all tables."""
    table = PARTS[kind]
    rank, _, key, *number, text = (table.c[name] for name in COLUMNS[table].split())
    return sql.select(
        sql.literal(kind).label("kind"),
        table.c.trial_id,
        rank.label("rank"),
        sql.cast(key, sql.Text).label("key"),
        (number[0] if number else sql.cast(sql.null(), sql.Float)).label("number"),
        sql.cast(text, sql.Text).label("text"),
    ).where(sql.or_(among(table.c.trial_id, IDS), table.c.trial_id >= sql.bindparam("first")))


@cache
def upsert(table: sql.Table, dialect: str) -> Any:
    """Return the statement that inserts rows into a table and overwrites existing ones."""
    of, key, *content = names = COLUMNS[table].split()[1:]
    # Import only one: PostgreSQL's takes as long as SQLAlchemy's core.
    insert = import_module(f"sqlalchemy.dialects.{dialect}").insert(table)
    insert = insert.values({name: sql.bindparam(name) for name in names})
    overwritten = {name: insert.excluded[name] for name in content}
    return insert.on_conflict_do_update(index_elements=(of, key), set_=overwritten)


CONTENTS = sql.union_all(*map(_rows_of, PARTS))
