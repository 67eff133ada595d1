"""Counting conventions: which parameters are N, which operations C, the unit of the loss, and its evaluation.

Exponents depend on them, so each choice is made in one place and recorded with the points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.analysis.columns import Array, numbers, pairs_of
from sweeplab.data.objectives import MOST_WHOLE
from sweeplab.data.task import loss_unit
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.records.runs import MEASURED_ON, RunState

if TYPE_CHECKING:
    import pandas as pd

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
# The default columns of a study's table for the roles of a law.
STUDY_COLUMNS = {
    "params": "n_params",
    "tokens": "train_tokens",
    "loss": "best_val_loss",
    "flops": "train_flops",
}
# An untied head is already among the parameters without embeddings.
_PARAMS = {
    "total": "n_params",
    "active": "n_params_active",
    "non-embedding": "n_params_non_embedding",
    "with-head": "n_params_non_embedding",
}
_HEAD = ("vocab_size", "n_embd", "tie_weights")
_LOSSES = {"best": STUDY_COLUMNS["loss"], "final": "final_val_loss"}
# The loss of the same weights on the whole validation split: preferred if all runs that ended have it.
_WHOLE = {"best": "best_whole_", "final": "final_whole_"}


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


def unit_of(runs: pd.DataFrame) -> str:
    """Return the unit of the runs' losses, which is their objective's: `nats/label`."""
    return loss_unit(runs["objective"].dropna().unique() if "objective" in runs else ())


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


def counted(runs: pd.DataFrame, conventions: Conventions) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return a study's runs with the columns params, tokens, flops (unless it is 6ND) and loss, and their meanings.

    Raises:
        BadInput: bits per byte are asked for but the bytes per token are not known; a column is missing.
    """
    at, params = conventions.chosen("at"), conventions.chosen("params")
    if conventions.chosen("rows") != "best":
        raise BadInput(Problem(f"--count rows={conventions.rows} is for the rows of a file", "rows=best"))
    head = _HEAD if params == "with-head" else ()
    needed = [_LOSSES[at], _PARAMS[params], *head, "train_tokens", "train_flops"]
    if missing := [name for name in needed if name not in runs]:
        raise BadInput(*(Problem(f"the runs have no column {name!r}") for name in missing))
    loss, whole = numbers(runs, _LOSSES[at]), _whole_losses(runs, at)
    said = {name: CHOICES[name][conventions.chosen(name)] for name in CHOICES if name != "rows"}
    if conventions.chosen("loss") == "nats":
        said["loss"] = unit_of(runs).replace("/", " per ")
    else:
        if "best_bits_per_byte" not in runs:
            raise BadInput("bits per byte need the bytes per token, which the runs do not record")
        loss = loss * numbers(runs, "best_bits_per_byte") / numbers(runs, _LOSSES["best"])
        whole = numbers(runs, f"{_WHOLE[at]}bits_per_byte") if whole is not None else None
    n = numbers(runs, _PARAMS[params])
    if head:
        n = n + np.prod([numbers(runs, name) for name in head], axis=0)
    made = {"params": n, "tokens": numbers(runs, "train_tokens"), "loss": loss if whole is None else whole}
    if conventions.chosen("flops") == "counted":
        made["flops"] = numbers(runs, "train_flops")
    said["loss"] = f"{said['loss']}, {said.pop('at')}"
    if whole is not None:
        said["loss"] += (
            f", its weights {MEASURED_ON['whole_val_loss']} (or {MOST_WHOLE:,} targets of a larger one)"
        )
    return runs.assign(**made), said | {"tokens": "read in training, with source and repeated tokens"}


def _whole_losses(runs: pd.DataFrame, at: str) -> Array | None:
    """Return the runs' losses on the whole validation split; None unless all that ended with a loss have one.

    A law fitted to both kinds would attribute their difference, about a percent, to the models.
    """
    name = f"{_WHOLE[at]}val_loss"
    if name not in runs or "state" not in runs:
        return None
    found = numbers(runs, name)
    ended = np.array([RunState(state).has_value for state in runs["state"]])
    needed = ended & np.isfinite(numbers(runs, _LOSSES[at]))
    return found if needed.any() and np.isfinite(found[needed]).all() else None
