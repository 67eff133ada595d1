"""What has been asked of a study: a row an order, in a table of our own beside the leases.

An order is added and never changed. What holds now follows from all of them, one after the other, so whoever reads
the new ones once in a while knows what to do, and what was asked when stands there to be read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import Column, Engine, Float, Integer, MetaData, String, Table, Text, func, insert, select
from sqlalchemy.exc import IntegrityError

from sweeplab.lab.database import READS, open_database

# What the supervisor and the workers are to do: `over` says that the budget of time is used up, `closing` that the
# supervisor is about to end.
Wanted = Literal["run", "pause", "stop", "over", "closing", "ended"]

_metadata = MetaData()
_ORDERS = Table(
    "sweeplab_order",
    _metadata,
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("given", Float, nullable=False),
    Column("kind", String(50), nullable=False),
    Column("value", Text, nullable=False),
)


@dataclass(frozen=True)
class Order:
    """One row: when it was given (seconds since 1970), its kind, and what belongs to it, as plain values."""

    revision: int
    given: float
    kind: str
    value: Any


@dataclass(frozen=True)
class Standing:
    """What holds after all orders up to `revision`.

    `budget` is None while the study file's holds. `start` has what the supervisor said when it started, and `status`
    how it ended. `stopped` are trials to end, as cell and number.
    """

    revision: int = 0
    wanted: Wanted = "run"
    budget: Mapping[str, Any] | None = None
    stopped: frozenset[tuple[str, int]] = frozenset()
    start: Mapping[str, Any] = field(default_factory=dict)
    status: str | None = None

    def after(self, order: Order) -> Standing:
        """Return what holds after one more order; one of a kind that changes nothing is news all the same."""
        value = order.value
        changed: dict[str, Any] = {"revision": order.revision}
        match order.kind:
            case "start":
                changed |= {"wanted": "run", "budget": None, "status": None}
                changed |= {"start": {**value, "given": order.given}}
            case "ended":
                changed |= {"wanted": "ended", "status": value}
            case "wanted" | "budget":
                changed |= {order.kind: value}
            case "stop trial":
                changed |= {"stopped": self.stopped | {(value["cell"], value["trial"])}}
        return replace(self, **changed)


class Orders:
    """The orders of one study; `now` is what held when they were last read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = engine.execution_options(**READS)
        self.now = Standing()

    @classmethod
    def open(cls, url: str, read: bool = True) -> Orders:
        """Open the orders of the study whose storage is at `url`, read up to now or not at all."""
        orders = cls(open_database(url))
        if read:
            orders.read()
        return orders

    def create_table(self) -> None:
        """Create the table where it is missing."""
        _metadata.create_all(self._engine)

    def read(self) -> list[Order]:
        """Return the orders that are new since the last time, and take them in."""
        query = select(_ORDERS).where(_ORDERS.c.revision > self.now.revision).order_by(_ORDERS.c.revision)
        with self._reading.connect() as connection:
            rows = connection.execute(query).all()
        orders = [Order(row.revision, row.given, row.kind, json.loads(row.value)) for row in rows]
        for order in orders:
            self.now = self.now.after(order)
        return orders

    def add(self, kind: str, value: Any = None, after: int | None = None) -> bool:
        """Give an order; with `after`, only if none has been given since that revision. Say whether it was given."""
        for last in self._last_revisions(after):
            row = {"revision": last + 1, "given": time.time(), "kind": kind, "value": json.dumps(value)}
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert(_ORDERS).values(**row))
            except IntegrityError:  # another process was faster
                continue
            return True
        return False

    def _last_revisions(self, after: int | None) -> Iterator[int]:
        if after is not None:
            yield after
            return
        while True:
            with self._reading.connect() as connection:
                yield connection.execute(select(func.max(_ORDERS.c.revision))).scalar() or 0
