"""The points of studies, counted by conventions: what a law is fitted to where the table is a study's runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.analysis.table import COLUMNS, validate
from sweeplab.analysis.trials import Selection, select
from sweeplab.data.objectives import MOST_WHOLE
from sweeplab.data.task import loss_unit
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.laws.columns import Array, named_column, numbers, rows_where
from sweeplab.laws.compute_optimal.envelope import FEWEST_POINTS, Curve, Curves
from sweeplab.laws.conventions import CHOICES, Conventions
from sweeplab.laws.points import Points, points_of, points_of_frame
from sweeplab.laws.reading import read_frame
from sweeplab.records.runs import MEASURED_ON, RunState

if TYPE_CHECKING:
    import pandas as pd

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


def study_points(
    runs: pd.DataFrame,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
) -> Points:
    """Return the points of the runs of one study or several: the best trial of each model and token count.

    A point is the mean of its k seeds and has weight k: all points are assumed to have the same variance of one seed,
    so the variance of the mean is a kth of it. Runs that did not end are left out, and counted. `columns` replace
    those of the conventions.

    Raises:
        BadInput: no run has ended, or the errors of `points_of`.
    """
    return points_of_trials(*select_trials(runs, columns, conventions))


def select_trials(
    runs: pd.DataFrame,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
) -> tuple[Selection, dict[str, str], dict[str, str]]:
    """Return the trials that are points, the columns of their roles, and the descriptions of these.

    Raises:
        BadInput: no run has ended, a column is missing, or a convention cannot be followed.
    """
    asked = dict(columns or {})
    table, said = counted(runs, conventions or Conventions())
    mapped = {role: role for role in ("params", "tokens", "flops", "loss") if role in table} | asked
    loss = named_column(mapped["loss"], list(map(str, table)))
    if loss[2]:
        raise BadInput(Problem(f"the study has {loss[2]}", "", nearest(loss[0], map(str, runs))))
    return select(table, loss[0]), mapped, {role: words for role, words in said.items() if role not in asked}


def points_of_trials(chosen: Selection, columns: Mapping[str, str], said: Mapping[str, str]) -> Points:
    """Return the points of the selected trials.

    Raises:
        BadInput: the errors of `points_of`.
    """
    names = chosen.table["point"].tolist()
    points = points_of(chosen.table, columns, "the study", chosen.weights, names, is_counted=True)
    notes = {"rows": "the best trial of each model and token count, the mean of its seeds"}
    if chosen.freedom:
        notes["weights"] = "the number of seeds: a mean of k has 1/k of the variance of one"
        notes["seeds"] = (
            f"the standard deviation of one is {chosen.spread:.2%} of the loss, pooled over "
            f"{int((chosen.weights > 1).sum())} points with several: no law can fit closer"
        )
    return replace(
        points,
        dropped=dict(chosen.dropped + Counter(points.dropped)),
        conventions=points.conventions | dict(said) | notes,
        seed_spread=chosen.spread if chosen.freedom else None,
        tried=tuple(chosen.tried[name] for name in points.names),
    )


def unit_of(runs: pd.DataFrame) -> str:
    """Return the unit of the runs' losses, which is their objective's: `nats/label`."""
    return loss_unit(runs["objective"].dropna().unique() if "objective" in runs else ())


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


def curves_of_study(
    runs: pd.DataFrame, curves: pd.DataFrame, conventions: Conventions | None = None
) -> Curves:
    """Return the validation curve of each trial that is a point of a study, the mean of its seeds, in nats.

    FLOPs are proportional to iterations; the evaluation before the first iteration is left out.

    Raises:
        BadInput: no run has ended.
    """
    if runs["study"].nunique() > 1:
        return Curves((), "unknown", "no curves: they are compared within one study only; name one")
    chosen = replace(conventions or Conventions(), loss="nats")
    kept = select_trials(runs, None, chosen)[0].runs
    total = kept["flops"] if "flops" in kept else 6 * kept["params"] * kept["tokens"]
    kept = kept.assign(flops_an_iteration=total / kept["iterations"], cell=kept["cell"].astype(str))
    key = ["cell", "trial", "seed"]
    rows = curves[(curves["metric"] == "val_loss") & (curves["iteration"] > 0) & (curves["value"] > 0)]
    rows = rows.assign(cell=rows["cell"].astype(str))
    points = rows.merge(kept[[*key, "point", "params", "flops_an_iteration"]], on=key)
    points["flops"] = points["flops_an_iteration"] * points["iteration"]
    means = points.groupby(["point", "iteration"], sort=True)[["params", "flops", "value"]].mean()
    found = []
    for name, one in means.groupby(level="point", sort=False):
        n, flops, loss = (one[column].to_numpy(float) for column in ("params", "flops", "value"))
        if len(one) >= FEWEST_POINTS:
            found.append(Curve(str(name), float(n[0]), np.log(flops), np.log(loss)))
    decays = bool(kept["lr_decay"].astype("boolean").fillna(True).any())
    none = "" if found else f"no curves: no run was evaluated {FEWEST_POINTS} times"
    return Curves(tuple(found), "decays" if decays else "constant", none)


def file_points(
    path: Path,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
    where: str = "",
) -> Points:
    """Return the points of a file; one that `study export` wrote holds runs of studies, unless `columns` are named.

    Raises:
        BadInput: the errors of `points_of_frame` and of `study_points`.
    """
    return table_points(read_frame(path), str(path), columns, conventions, where)


def table_points(
    frame: pd.DataFrame,
    source: str,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
    where: str = "",
) -> Points:
    """Return the points of a table like `file_points` of the file `source`.

    Raises:
        BadInput: the errors of `points_of_frame` and of `study_points`.
    """
    if columns or not COLUMNS.keys() <= set(map(str, frame)):
        return points_of_frame(frame, source, columns, conventions, where)
    kept = rows_where(frame, where, source) if where else frame
    points = study_points(validate(kept), {}, conventions)
    return points.left_out(f"not where {where}", len(frame) - len(kept))
