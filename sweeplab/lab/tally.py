"""How many trials a study has in each state, straight from its storage: a lab of many studies is listed in no time.

Optuna's own reading loads every trial whole; what a list shows are a few sums.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field

from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder

# What marks a trial in Optuna's storage that came from elsewhere; its value there says where it is from.
WARM_START = "warm_start"
# Trials of Optuna's that are none of the study's own: known from elsewhere, or left over of what came to nothing.
VOID = ("infeasible", "withdrawn", WARM_START)

_QUERY = f"""
SELECT study_name, state, outcome.value_json, COUNT(*), MIN(value)
FROM trials
JOIN studies USING (study_id)
LEFT JOIN trial_values USING (trial_id)
LEFT JOIN trial_user_attributes AS outcome ON outcome.trial_id = trials.trial_id AND outcome.key = 'outcome'
WHERE trials.trial_id NOT IN (SELECT trial_id FROM trial_user_attributes WHERE key IN {VOID})
GROUP BY study_name, state, outcome.value_json
"""


@dataclass
class Tally:
    """Trials by outcome, or `enqueued`, or the state of what has not ended, and the lowest value of any."""

    states: Counter[str] = field(default_factory=Counter)
    best: float | None = None


def tallies(folder: StudyFolder) -> dict[str, Tally]:
    """Return the tally of every cell that has a trial.

    Raises:
        BadInput: the storage cannot be read.
    """
    unended = {"RUNNING": str(folder.unfinished), "WAITING": "enqueued"}
    found: dict[str, Tally] = {}
    for name, state, outcome, count, value in _rows(folder):
        tally = found.setdefault(name.partition("/")[2], Tally())
        tally.states[json.loads(outcome) if outcome else unended[state]] += count
        if value is not None and (tally.best is None or value < tally.best):
            tally.best = value
    return found


def _rows(folder: StudyFolder) -> list[tuple[str, str, str | None, int, float | None]]:
    if folder.storage_file.exists():
        return _rows_elsewhere(folder)
    database = f"{folder.database.absolute().as_uri()}?mode=ro"  # a missing file is not to be made here
    try:
        with closing(sqlite3.connect(database, uri=True)) as connection:
            return connection.execute(_QUERY).fetchall()
    except sqlite3.Error as error:
        raise BadInput(f"{folder.database}: {error}; {folder.command('doctor')} says more") from error


def _rows_elsewhere(folder: StudyFolder) -> list[tuple[str, str, str | None, int, float | None]]:
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    from sweeplab.lab.database import open_database

    try:
        engine = open_database(folder.storage_url)
        with engine.connect() as connection:
            rows = [(*row,) for row in connection.execute(text(_QUERY))]
        engine.dispose()
    except SQLAlchemyError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise BadInput(f"the storage of study {folder.name} does not answer: {reason}") from error
    return rows
