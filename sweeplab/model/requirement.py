"""What a choice of parts has to meet, with the reason: said when a study is planned (no torch)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeplab.model.shape import ModelShape


@dataclass(frozen=True)
class Requirement:
    """A condition on a model's shape: its reason, what it rests on, the one to blame first, and itself."""

    text: str
    names: tuple[str, ...]
    holds: Callable[[ModelShape], bool]


def requirement(text: str, names: str, holds: Callable[[ModelShape], bool]) -> Requirement:
    """Return a requirement; `names` are separated by spaces."""
    return Requirement(text, tuple(names.split()), holds)
