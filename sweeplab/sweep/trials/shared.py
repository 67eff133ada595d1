"""What the storages of trials share: the trials of a cell as a process knows them, taking turns, forwarded calls."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sql
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

Storage = TypeVar("Storage", bound=type[BaseStorage])

# One lock per schema of a PostgreSQL database: each study has its own schema.
TAKE_TURN = sql.text("SELECT pg_advisory_xact_lock(hashtext('sweeplab ' || current_schema()))")


@dataclass
class CachedTrials:
    """The trials of one Optuna study by number, and their ids.

    `unended` are those that have not ended, by id, and `ended` the others in the order of their ends. `version` grows
    when a trial starts or ends.
    """

    trials: list[FrozenTrial] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    unended: dict[int, FrozenTrial] = field(default_factory=dict)
    ended: list[FrozenTrial] = field(default_factory=list)
    version: int = 0


def forwards(storage: Storage) -> Storage:
    """Let a storage forward the calls that it does not define to its attribute `inner`.

    The calls are those that the installed Optuna demands, so that a later version may add some.
    """
    for name in storage.__abstractmethods__:
        setattr(storage, name, _forwarded(name))
    abc.update_abstractmethods(storage)
    return storage


def _forwarded(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **arguments: Any) -> Any:
        return getattr(self.inner, name)(*args, **arguments)

    return call
