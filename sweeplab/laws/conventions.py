"""Counting conventions: which parameters are N, which operations C, the unit of the loss, and its evaluation.

Exponents depend on them, so each choice is made in one place and recorded with the points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.laws.columns import pairs_of

if TYPE_CHECKING:
    pass

# The choices with their meaning; the first is the default. `rows` is for files: a study's point is its best trial.
CHOICES: dict[str, dict[str, str]] = {
    "params": {
        "total": "all parameters, tied ones once",
        "active": "parameters active for a token: all but the experts it is not routed to",
        "non-embedding": "parameters without the embeddings and without a head tied to them",
        "with-head": "parameters without the embeddings, with the head's matrix, tied or not",
    },
    "flops": {"counted": "matrix products and attention, the head's too", "6nd": "6ND"},
    "loss": {"nats": "nats per token", "bits-per-byte": "bits per byte"},
    "at": {"best": "the lowest evaluation of a run", "final": "the last evaluation of a run"},
    "rows": {"best": "the best row of each point", "mean": "the mean of its rows", "all": "every row"},
}


@dataclass(frozen=True)
class Conventions:
    """One choice of each of CHOICES; empty means the default."""

    params: str = ""
    flops: str = ""
    loss: str = ""
    at: str = ""
    rows: str = ""

    def chosen(self, name: str) -> str:
        """Return a choice, or its default."""
        return str(getattr(self, name)) or next(iter(CHOICES[name]))


def parse_conventions(text: str) -> Conventions:
    """Return the conventions of "params=non-embedding,flops=6nd,…".

    Raises:
        BadInput: an unknown convention or choice, or a convention named twice.
    """
    found: dict[str, str] = {}
    problems = []
    for _, name, choice in pairs_of(text):
        choices = CHOICES.get(name, {})
        if not choices:
            problems.append(Problem(f"--count has no {name!r}", ", ".join(CHOICES), nearest(name, CHOICES)))
        elif name in found:
            problems.append(Problem(f"--count names {name!r} twice"))
        elif choice not in choices:
            problems.append(Problem(f"--count {name}={choice}", ", ".join(choices), nearest(choice, choices)))
        found[name] = choice
    if problems:
        raise BadInput(*problems)
    return Conventions(**found)


def check_of_a_file(conventions: Conventions, source: str, columns: Mapping[str, str]) -> None:
    """Refuse conventions that a file's columns cannot be converted to: they count as their author did.

    A unit of the loss is not refused; it is taken as the unit of the column.

    Raises:
        BadInput: one line per convention that only a study's runs can follow.
    """
    problems = [
        f"{source}: --count {name}={choice} needs a study's runs; in a file, "
        f"--columns {role}=COLUMN names the column that counts so"
        for name, role, choice in (("params", "params", conventions.params), ("at", "loss", conventions.at))
        if choice
    ]
    if conventions.flops == "counted" and "flops" not in columns:
        problems.append(f"{source}: --count flops=counted needs a column; --columns flops=COLUMN names it")
    if problems:
        raise BadInput(*problems)
