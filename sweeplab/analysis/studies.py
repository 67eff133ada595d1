"""The runs of one study or several as one table, and the points of laws in it, counted by conventions."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.analysis.table import curves_table, points_table, runs_table
from sweeplab.analysis.trials import (
    StudyDesign,
    finite,
    grid_of,
    rankings,
    searched_of,
    select,
    with_expected,
)
from sweeplab.data import loss_unit
from sweeplab.data.objectives import MOST_WHOLE
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import listed, several
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import find_study, read_spec
from sweeplab.laws.columns import (
    CHOICES,
    COUNTS,
    PLAIN,
    Counting,
    named_column,
    read_columns,
    rows_where,
)
from sweeplab.laws.hyperparameters.excess import record_of
from sweeplab.laws.hyperparameters.runs import SearchedRuns, runs_of_frame
from sweeplab.laws.points import EACH, SHARED, UNKNOWN, Points, points_of
from sweeplab.laws.sentences import Facts
from sweeplab.records.runs import MEASURED_ON, WHOLE_LOSSES, RunState
from sweeplab.study.choice import Ranking

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.study.space import Space
    from sweeplab.study.spec import StudySpec


PARAMS = {
    "total": "n_params",
    "active": "n_params_active",
    "non-embedding": "n_params_non_embedding",
}
# Settings whose best values follow the size of the model or the length of the run.
FOLLOW_SIZE = ("learning_rate", "batch_size", "warmup_iters")
_LOSSES = {"best": "best_val_loss", "final": "final_val_loss"}


def study_points(
    runs: pd.DataFrame, counting: Counting = PLAIN, design: StudyDesign | None = None
) -> Points:
    """Return the points of the runs of one study or several: the best trial of each model and token count.

    A point is the mean of k runs (`select`) and has weight k: all points are assumed to have the same variance of one
    run, so the variance of the mean is a kth of it. Runs that did not end are left out, and counted. Named columns
    replace those of the conventions. The points say how they were tuned: what was searched at each size, what is one
    for all.

    Raises:
        BadInput: no run has ended, a column is missing, or a convention cannot be followed.
    """
    asked = counting.roles
    counts, meanings = counted(runs, counting)
    mapped = {role: role for role in (*COUNTS, "loss")} | asked
    loss, _, wrong = named_column(mapped["loss"], list(map(str, counts)))
    if wrong:
        raise BadInput(Problem(f"the study has {wrong}", "", nearest(loss, map(str, runs))))
    chosen = select(counts, loss)
    points = points_of(
        chosen.table, mapped, "the study", chosen.weights, chosen.table["point"].tolist()
    )
    notes = {role: words for role, words in meanings.items() if role not in asked}
    notes["rows"] = (
        "the best trial of each model and token count: the mean of its seeds, or of all trials there, less what the "
        "values of each cost where that is known"
    )
    if words := unlike_precision(chosen.runs):
        notes["precision"] = words
    tuned, tuned_why = _tuned(runs, design)
    points = replace(
        points,
        dropped=dict(chosen.dropped + Counter(points.dropped)),
        conventions={**points.conventions, **notes},
        seed_spread=chosen.spread,
        tuned=tuned,
        tuned_why=tuned_why,
        record=record_of(lambda: tuned_runs(runs, "the study", counting, design)),
    )
    return points.tuned_as(counting.tuned)


def _tuned(runs: pd.DataFrame, design: StudyDesign | None) -> tuple[str, str]:
    """Return how the points of runs were tuned, and why that is said."""
    known = [name for name in FOLLOW_SIZE if name in runs and runs[name].notna().all()]
    fixed = [name for name in known if runs[name].astype(str).nunique() == 1]
    tuned, words = UNKNOWN, "no size tried two learning rates"
    if "learning_rate" in (*searched_of(runs, design), *grid_of(runs, design)):
        tuned, words = EACH, "as its trials say"
    elif "learning_rate" in fixed and set(runs.get("parametrization", ())) != {"mup"}:
        tuned = SHARED
    if fixed:
        verb = "are" if len(fixed) > 1 else "is"
        words += f"; {listed(fixed)} {verb} one for all sizes, and the best follow the size"
    return tuned, words


def unlike_precision(runs: pd.DataFrame) -> str:
    """Say in which precisions runs were trained; an empty text if in one."""
    numbers = Counter[str](runs["dtype"].dropna()) if "dtype" in runs else Counter[str]()
    if len(numbers) < 2:
        return ""
    words = [f"{several(count, 'run')} in {dtype}" for dtype, count in sorted(numbers.items())]
    return f"unlike, which changes losses too: {', '.join(words)}"


def unit_of(runs: pd.DataFrame) -> str:
    """Return the unit of the runs' losses, which is their objective's: `nats/label`."""
    return loss_unit(runs["objective"].dropna().unique() if "objective" in runs else ())


def counted(runs: pd.DataFrame, counting: Counting) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return a study's runs with the columns params, tokens, flops and loss, and their meanings.

    Raises:
        BadInput: bits per byte are asked for but the bytes per token are not known.
    """
    how = counting.conventions
    at, params = how.chosen("at"), how.chosen("params")
    if how.chosen("rows") != "best":
        raise BadInput(
            Problem(f"--count rows={how.rows} is for the rows of a file", "rows=best")
        )
    runs, column = whole_losses(runs, at)
    loss, unit, measured = finite(runs, column), unit_of(runs).replace("/", " per "), ""
    if how.chosen("loss") != "nats":
        if "best_bits_per_byte" not in runs:
            raise BadInput(
                "bits per byte need the bytes per token, which the runs do not record"
            )
        bits = finite(runs, "best_bits_per_byte") / finite(runs, _LOSSES["best"])
        # The whole split has more or fewer bytes per token than the targets.
        if column != _LOSSES[at]:
            of_whole = finite(runs, column.replace("val_loss", "bits_per_byte")) / finite(
                runs, column
            )
            bits = of_whole.groupby(runs["cell"]).transform("mean").fillna(bits)
        loss = loss * bits
        unit = CHOICES["loss"]["bits-per-byte"]
    if column != _LOSSES[at]:
        measured = f", its weights {MEASURED_ON['whole_val_loss']} (or {MOST_WHOLE:,} targets of a larger one)"
    made = {
        "params": finite(runs, PARAMS[params]),
        "tokens": finite(runs, "train_tokens"),
        "flops": finite(runs, "train_flops"),
        "loss": loss,
    }
    meanings = {
        "params": CHOICES["params"][params],
        "tokens": "read in training, with source and repeated tokens",
        "flops": "matrix products and attention, the head's too",
        "loss": f"{unit}, {CHOICES['at'][at]}{measured}",
    }
    return runs.assign(**made), meanings


def tuned_runs(
    runs: pd.DataFrame,
    source: str,
    counting: Counting = PLAIN,
    design: StudyDesign | None = None,
) -> SearchedRuns:
    """Return the runs of studies that ended, with the values that their files search; a row per seed.

    Raises:
        BadInput: no run has ended with a loss, or one of the errors of `runs_of_frame`.
    """
    ended = runs[[RunState(state).has_value for state in runs["state"]]]
    if ended.empty:
        raise BadInput(f"no run of {source} has ended with a loss")
    table, _ = counted(ended, counting)
    roles = {role: role for role in ("params", "tokens", "loss")}
    counting = replace(counting, columns={**roles, **counting.columns}, where="")
    return runs_of_frame(table, source, counting, searched_of(ended, design))


def whole_losses(runs: pd.DataFrame, at: str = "best") -> tuple[pd.DataFrame, str]:
    """Return the runs, and the column of the loss that laws are fitted to: on the whole validation split where known.

    Only trials that can be the best of their cell are evaluated on it. The targets of the other evaluations are the
    same for all runs, but how much harder they are than the whole split depends on the size: by 1 to 2% of the loss
    from the smallest to the largest model of a first study. So the difference of the means of a cell's evaluated runs
    is added to the loss of its other runs (the difference estimator of survey sampling). If any run that ended stays
    without an estimate, the others' are not taken: a law would attribute the difference to the models.
    """
    name, column = WHOLE_LOSSES[at], _LOSSES[at]
    cells = [runs[key] for key in ("study", "cell") if key in runs]
    if name not in runs or "state" not in runs or not cells:
        return runs, column
    sampled, whole = finite(runs, column), finite(runs, name)
    ended = np.array([RunState(state).has_value for state in runs["state"]])
    differences = (whole - sampled).where(ended).groupby(cells).transform("mean")
    losses = whole.fillna((sampled + differences).where(ended))
    needed = losses[ended & sampled.notna()]
    if needed.empty or needed.isna().any():
        return runs, column
    return runs.assign(**{name: losses}), name


@dataclass(frozen=True)
class Studies:
    """The runs of the studies, one row per run, and each study's spec, data and baselines (by cell) by name.

    `ranked` is the order of the trials by study.
    """

    runs: pd.DataFrame
    specs: Mapping[str, StudySpec]
    data: Mapping[str, Facts]
    baselines: Mapping[str, Mapping[str, Facts]] = field(default_factory=dict)
    ranked: Mapping[str, Ranking] = field(default_factory=dict)
    _points: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def designs(self) -> dict[str, StudyDesign]:
        """Return each study's grid and search space."""
        return {name: StudyDesign.of(spec) for name, spec in self.specs.items()}

    @property
    def design(self) -> StudyDesign:
        """Return the union of the studies' grids and search spaces."""
        designs = self.designs.values()
        grid = dict.fromkeys(name for design in designs for name in design.grid)
        return StudyDesign(
            tuple(grid), dict(ChainMap(*(dict(design.search) for design in designs)))
        )

    def points(self, counting: Counting = PLAIN) -> Points:
        """Return the points of all studies, counted so."""
        return study_points(self.runs, self.settled(counting), self.design)

    def only(self, where: str) -> Studies:
        """Return the studies with the runs in which an expression holds; all of them if it is empty."""
        return replace(self, runs=rows_where(self.runs, where, " and ".join(self.specs)))

    def settled(self, counting: Counting = PLAIN) -> Counting:
        """Return the counting, completed by what the studies choose: best or final, and the parameters they count.

        Where all of them set their tokens by `tokens_per_param`, params are those that it counts.

        Raises:
            BadInput: the studies choose differently, or were trained on different text or tokens.
        """
        self._check_comparable(counting.conventions.loss, "--count loss=bits-per-byte can")
        chosen, default = counting.conventions, TABLE["params_counted"].default
        written = [{**spec.grid, **spec.fixed} for spec in self.specs.values()]
        has_tokens = all(run.get("tokens_per_param") for run in written)
        counted = {str(run.get("params_counted", default)) for run in written}
        if not chosen.params and has_tokens and counted == {"non_embedding"}:
            chosen = replace(chosen, params="non-embedding")
        at, *others = {spec.objective.at for spec in self.specs.values()}
        if others and not chosen.at:
            allowed = "--count at=best or at=final"
            raise BadInput(Problem("the studies value a run by different evaluations", allowed))
        return replace(counting, conventions=replace(chosen, at=chosen.at or at))

    def curves(self, lab: Path, metric: str) -> pd.DataFrame:
        """Return the curves of a metric; for several studies with a column `study`. Records are read once."""
        import pandas as pd

        for name in self.specs.keys() - self._points.keys():
            self._points[name] = points_table(lab, name)
        tables = [curves_table(lab, name, [metric], self._points[name]) for name in self.specs]
        if len(tables) == 1:
            return tables[0]
        named = zip(self.specs, tables, strict=True)
        return pd.concat([table.assign(study=name) for name, table in named], ignore_index=True)

    def check_comparable(self) -> None:
        """Raise unless the studies' losses may be compared.

        Raises:
            BadInput: they were trained on different text, or on other tokens of it, or value trials by other metrics
                or evaluations.
        """
        self._check_comparable("", "`diff` compares them in bits per byte")
        objectives = {name: spec.objective for name, spec in self.specs.items()}
        if len({(objective.label, objective.at) for objective in objectives.values()}) > 1:
            ways = [
                f"{name} by {objective.label} ({objective.at})"
                for name, objective in objectives.items()
            ]
            raise BadInput(f"the studies value their trials differently: {', '.join(ways)}")

    def _check_comparable(self, unit: str, otherwise: str) -> None:
        """Refuse losses on different text; on one text, tokens may differ if the loss is per byte."""
        digest = "text_digest" if unit == "bits-per-byte" else "token_digest"
        first, *others = self.data
        for name in others:
            here, there = self.data[name], self.data[first]
            if here[digest] == there[digest]:
                continue
            what, hint = "text", ""
            if here["text_digest"] == there["text_digest"]:
                what = "tokens"
                if "best_bits_per_byte" in self.runs:
                    hint = f"; of one text, {otherwise}"
            differ = f"studies {first} and {name} were trained on different {what}"
            raise BadInput(f"{differ}: losses in {unit_of(self.runs)} cannot be compared{hint}")


def read_studies(lab: Path | None, names: Sequence[str]) -> Studies:
    """Return the studies of these names, each once.

    Raises:
        BadInput: there is no such study, or a record is damaged.
    """
    import pandas as pd

    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise BadInput(f"study {repeated[0]!r} is named twice")
    folders = {name: find_study(lab, name) for name in names}
    specs = {name: read_spec(folder) for name, folder in folders.items()}
    tables = [runs_table(folder.lab, name) for name, folder in folders.items()]
    runs = pd.concat(tables, ignore_index=True)
    data = {name: folder.read(folder.data_file) for name, folder in folders.items()}
    baselines = {name: folder.baselines for name, folder in folders.items()}
    read = Studies(runs, specs, data, baselines)
    ranked = rankings(runs, read.designs)
    return replace(read, runs=with_expected(runs, ranked), ranked=ranked)


_DRAWS = 32  # from a cell's search space, to see whether its size depends on what is searched


def run_to_come(space: Space) -> dict[str, Any] | None:
    """Return a cell's hyperparameters and facts; None if its size is known only once a trial is sampled."""
    from sweeplab.study.rules import facts

    drawn = [each for each in space.draws(_DRAWS) if space.broken(each) is None]
    known = [facts(each) for each in drawn]
    if not known or any(each != known[0] for each in known):
        return None
    return drawn[0].as_dict() | known[0]._asdict()


def sizes_of(runs: Sequence[Facts], counting: Counting) -> list[dict[str, float]]:
    """Return N, D and C of runs from their hyperparameters and facts, counted like a study's points."""
    import pandas as pd

    if not runs:
        return []
    frame = pd.DataFrame(list(runs)).assign(best_val_loss=math.nan, final_val_loss=math.nan)
    table, _ = counted(
        frame, replace(counting, conventions=replace(counting.conventions, loss=""))
    )
    named = {role: counting.columns.get(role, role) for role in COUNTS}
    columns = {
        role: column.values
        for role, column in read_columns(table, named, "a run to come").items()
    }
    return [{role: float(columns[role][at]) for role in COUNTS} for at in range(len(runs))]
