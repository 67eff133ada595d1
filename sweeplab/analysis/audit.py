"""What may make the exponents of a study wrong, as one table of checks: one that is added is a row of it.

- What is counted, the embeddings in N and the head in C: both are a large part of a small model and a small part of a
  large one, so they bend what should be a power law (Pearce and Song 2024, Reconciling Kaplan and Chinchilla scaling
  laws; Porian et al. 2024, Resolving discrepancies in compute-optimal scaling of language models).
- The learning rate over a run: one that is measured while its rate is high has a higher loss than one that was planned
  to end there (Hoffmann et al. 2022, section 3 and figure A1); a warm-up of one length for all is a large part of the
  shortest.
- The tuning: whether each size tried several values of a hyperparameter, and where its best lies.
- The ends: runs that stopped early or were pruned, and seeds that show the noise.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.assessment import Estimate, assess, find_law
from sweeplab.analysis.columns import Array, numbers
from sweeplab.analysis.conventions import STUDY_COLUMNS, Conventions
from sweeplab.analysis.fit.fitting import fit
from sweeplab.analysis.points import Points, points_of_trials, select_trials, study_points
from sweeplab.analysis.trials import COUNTED, POINT, Selection, StudyDesign, with_models
from sweeplab.errors import BadInput
from sweeplab.formatting import counts, listed, several
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.study.search import Choices, Range, SearchSpec
from sweeplab.train.schedule import SCHEDULES, learning_rate

if TYPE_CHECKING:
    import pandas as pd

FOUND: Final = "found"
CLEAR: Final = "clear"
UNKNOWN: Final = "cannot be told"
_LAWS = ("chinchilla", "power-n", "power-d")  # the first that the points allow
_SHOWN = ("value", "low", "high", "verdict", "why")
LARGE = 0.1  # a part of N or C from which on it shows in an exponent
LONGEST_WARM_UP = 0.1  # of a run
HIGHEST_END = 0.2  # of the peak; Hoffmann et al. end at 0.1
LEAST_FREEDOM = 4  # a standard deviation from 4 degrees of freedom is known to a third
EDGE = 0.05  # of a range, at either end
_READ = ("learning_rate", "warmup_iters", "lr_decay", "min_lr", "scheduler_type", "max_iters", "iterations")


@dataclass(frozen=True)
class Effect:
    """What the exponents were and become when something is changed; `why` says why there are none."""

    change: str
    n_points: int = 0
    before: Mapping[str, Estimate] = field(default_factory=dict)
    after: Mapping[str, Estimate] = field(default_factory=dict)
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values: each exponent before and after, and whether the two differ by more than noise.

        An exponent that is not identified has no value.
        """
        both = {name: (old, self.after[name]) for name, old in self.before.items() if name in self.after}
        exponents = {
            name: {"before": _shown(old), "after": _shown(new), "differs": _differs(old, new)}
            for name, (old, new) in both.items()
        }
        return {"change": self.change, "n_points": self.n_points, "exponents": exponents, "why": self.why}


@dataclass(frozen=True)
class Finding:
    """What a check has found, in a sentence, with the points that it touches and what it does to the exponents."""

    state: str
    sentence: str
    points: tuple[str, ...] = ()
    effects: tuple[Effect, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return vars(self) | {"effects": [effect.as_dict() for effect in self.effects]}


@dataclass(frozen=True)
class Evidence:
    """The runs of a study, those that became points, and the means to fit these in another way.

    `designs` says by study what is searched in a cell; empty where nobody knows.
    """

    runs: pd.DataFrame
    chosen: Selection
    points: Points
    conventions: Conventions
    designs: Mapping[str, StudyDesign]
    recount: Callable[[Conventions], Points]

    @cached_property
    def used(self) -> pd.DataFrame:
        """Return the runs of the points, one row per run; `point` names it."""
        runs = self.chosen.runs
        return runs[runs["point"].isin(self.points.names)]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return one row per point, by its name: its first seed's settings, the mean of its seeds' numbers."""
        return self.chosen.table.set_index("point").loc[list(self.points.names)]

    def numbers(self, name: str) -> Array:
        """Return a number of each point, [n], true as 1, NaN where there is none."""
        return numbers(self.table, name)

    def names(self, touched: Sequence[bool] | NDArray[np.bool_]) -> tuple[str, ...]:
        """Return the names of the points that are touched, [n]."""
        return tuple(name for name, here in zip(self.points.names, touched, strict=True) if here)

    def found(self, sentence: str, names: tuple[str, ...]) -> Finding:
        """Return what is wrong at some points, and what the exponents are without these."""
        keep = np.array([name not in names for name in self.points.names])
        change = f"without {(~keep).sum()} of {len(keep)} points"
        if keep.any():
            effect = self._effect(change, lambda: self.points.only(keep))
        else:
            effect = Effect(change, why="every point is touched: there is no fit without them")
        return Finding(FOUND, sentence, names, (effect,))

    def counting(self, words: str, **choices: str) -> tuple[Effect, ...]:
        """Return what the exponents are under other conventions; `words` say which."""
        return (self._effect(words, lambda: self.recount(replace(self.conventions, **choices))),)

    @cached_property
    def base(self) -> tuple[str, dict[str, Estimate], str]:
        """Return the law whose exponents are looked at, these, and why there are none of either."""
        why = []
        for name in _LAWS:
            try:
                fit(self.points, find_law(name))
            except BadInput as error:
                why.append(str(error.problems[0]))
            else:
                return name, _exponents(self.points, name), ""
        return "", {}, why[-1]

    def _effect(self, change: str, other: Callable[[], Points]) -> Effect:
        law, before, why = self.base
        if not law:
            return Effect(change, why=why)
        try:
            points = other()
            return Effect(change, points.n, before, _exponents(points, law))
        except BadInput as error:
            return Effect(change, why=str(error.problems[0]))


def gather(
    runs: pd.DataFrame,
    designs: Mapping[str, StudyDesign] | None = None,
    conventions: Conventions | None = None,
) -> Evidence:
    """Return what the checks look at, of runs as `runs_table` gives them.

    Raises:
        BadInput: no run has ended, or the runs are refused.
    """
    settled = conventions or Conventions()
    chosen, columns, said = select_trials(runs, None, settled)
    return Evidence(
        runs=with_models(runs),
        chosen=chosen,
        points=points_of_trials(chosen, columns, said),
        conventions=settled,
        designs=designs or {},
        recount=lambda how: study_points(runs, None, how),
    )


def share(value: float) -> str:
    """Write a share as a person reads it: 12%, 0.4%."""
    return f"{value:.0%}" if value >= 0.1 else f"{100 * value:.2g}%"


def ends(values: Array) -> str:
    """Write the smallest and the largest of some shares, once where they read alike."""
    return " to ".join(dict.fromkeys((share(float(values.min())), share(float(values.max())))))


def _exponents(points: Points, law: str) -> dict[str, Estimate]:
    estimates = assess(points, find_law(law)).estimates
    return {each.quantity.name: each for each in estimates if each.quantity.kind == "exponent"}


def _shown(estimate: Estimate) -> dict[str, Any]:
    said = estimate.as_dict()
    return {name: said[name] for name in _SHOWN}


def _differs(before: Estimate, after: Estimate) -> bool | None:
    """Say whether each value is outside of the other's interval; None where one of the two is no value.

    Of the other's too: fewer points move a number by more than the interval of all points says.
    """
    if not (before.identified and after.identified):
        return None
    pairs = ((before.interval, after.interval.value), (after.interval, before.interval.value))
    return not any(ends.low <= value <= ends.high for ends, value in pairs)


# ------------------------------------------------------------------ the checks


def embeddings_in_n(evidence: Evidence) -> Finding:
    """Find points whose N is to a large part embeddings."""
    counted = {"total": "n_params", "active": "n_params_active"}.get(evidence.conventions.chosen("params"))
    if counted is None:
        return Finding(CLEAR, "N leaves the embeddings out")
    embeddings = evidence.numbers("n_params") - evidence.numbers("n_params_non_embedding")
    part = embeddings / evidence.numbers(counted)
    if np.isnan(part).any():
        return Finding(UNKNOWN, "the runs do not say how many of their parameters are embeddings")
    names, said = evidence.names(part > LARGE), f"embeddings are {ends(part)} of N"
    if not names:
        return Finding(CLEAR, said)
    said += f", and over {share(LARGE)} of it in {len(names)} of {len(part)} points"
    effects = evidence.counting("with N without the embeddings", params="non-embedding")
    return Finding(FOUND, said, names, effects)


def head_left_out(evidence: Evidence) -> Finding:
    """Find points whose C leaves a head out that takes a large part of it."""
    per_token = evidence.numbers("train_flops") / evidence.numbers("train_tokens")
    part = 6 * evidence.numbers("vocab_size") * evidence.numbers("n_embd") / per_token
    if np.isnan(part).any():
        return Finding(UNKNOWN, "the runs do not say how wide their head is")
    chosen = evidence.conventions.chosen
    tied = evidence.numbers("tie_weights") == 1
    left_out = tied & (chosen("params") == "non-embedding") & (chosen("flops") == "6nd")
    names = evidence.names(left_out & (part > LARGE))
    if not names:
        how = "left out of C, but small" if left_out.any() else "in C"
        return Finding(CLEAR, f"the head's products, {ends(part)} of all, are {how}")
    said = f"C is 6 N D with an N that leaves out the head, whose products are {ends(part)} of all"
    effects = evidence.counting("with N, and so C, with the head", params="with-head")
    return Finding(FOUND, said, names, effects)


def warm_up(evidence: Evidence) -> Finding:
    """Find points whose warm-up is a large part of the run."""
    part = evidence.numbers("warmup_iters") / evidence.numbers("max_iters")
    if np.isnan(part).any():
        return Finding(UNKNOWN, "the runs do not say how long their warm-up is")
    names, said = evidence.names(part > LONGEST_WARM_UP), f"the warm-up is {ends(part)} of a run"
    if not names:
        return Finding(CLEAR, said)
    said += f", and over {share(LONGEST_WARM_UP)} of it in {len(names)} of {len(part)} points"
    return evidence.found(f"{said}: the shortest are held back most", names)


def decay(evidence: Evidence) -> Finding:
    """Find points of runs that end before their learning rate has come down."""
    runs = evidence.used
    read = [*_READ]
    if "scheduler_type" in runs and runs["scheduler_type"].eq("wsd").any():
        read.append("decay_share")
    if any(name not in runs or runs[name].isna().any() for name in read):
        return Finding(UNKNOWN, "the runs do not say how their learning rate goes down")
    why: dict[str, str] = {}
    unknown: set[str] = set()
    rows: list[dict[str, Any]] = runs[["point", *read]].to_dict("records")  # type: ignore[assignment]
    for row in rows:
        values, iterations = Hyperparameters.of(row), int(row["iterations"])
        if values.lr_decay and values.scheduler_type == "plateau":
            unknown.add(row["point"])
        elif learning_rate(values, iterations) > HIGHEST_END * values.learning_rate:
            why.setdefault(row["point"], _why(values, iterations))
    if unknown and not why:
        said = "plateau halves the rate when the loss asks for it: where it ends is not recorded"
        return Finding(UNKNOWN, said, tuple(unknown))
    if not why:
        return Finding(CLEAR, f"every rate has come down to {share(HIGHEST_END)} of its peak or less")
    reasons = counts(dict(Counter(why.values()).most_common()))
    names = tuple(name for name in evidence.points.names if name in why)
    over = f"{len(names)} of {evidence.points.n} points end with over {share(HIGHEST_END)} of the peak rate"
    return evidence.found(f"{over}: {reasons}", names)


def _why(values: Hyperparameters, iterations: int) -> str:
    if not values.lr_decay or not SCHEDULES[values.scheduler_type].ends_low:
        return "with a rate that never comes down"
    if iterations < values.max_iters:
        return f"stopped before the {values.scheduler_type}'s end"
    return "with a min_lr near the peak"


def cut_short(evidence: Evidence) -> Finding:
    """Find points of runs that stopped early, and points that a pruned trial was already better than."""
    stopped = set(evidence.used.loc[evidence.used["state"].astype(str) == "stopped", "point"])
    better = _beaten_by_pruned(evidence)
    names = tuple(name for name in evidence.points.names if name in stopped | better)
    pruned = evidence.points.dropped.get("pruned before the end", 0)
    if not names:
        return Finding(CLEAR, f"every point ran to its end; {pruned} pruned runs are left out")
    said = []
    if stopped:
        early = f"{len(stopped)} of {evidence.points.n} points come of runs that stopped early"
        said.append(f"{early}: they were not trained on the tokens that their schedule was made for")
    if better:
        beaten = f"{len(better)} have a loss that a pruned trial of theirs was already below"
        said.append(f"{beaten}: the pruner was too hasty")
    return evidence.found("; ".join(said), names)


def _beaten_by_pruned(evidence: Evidence) -> set[str]:
    """Return the points that have a higher loss than a trial of the same model and length when it was pruned."""
    loss = STUDY_COLUMNS["loss"]
    pruned = evidence.runs[evidence.runs["state"].astype(str) == "pruned"]
    trials = pruned.groupby([*POINT, "cell", "trial"], sort=False)[loss].mean().reset_index()
    lowest = {key: float(value) for key, value in trials.groupby(POINT, sort=False)[loss].min().items()}
    own = evidence.used.groupby("point")[loss].mean()
    keys = zip(evidence.points.names, evidence.table[POINT].itertuples(index=False), strict=True)
    return {name for name, key in keys if lowest.get(tuple(key), np.inf) < own[name]}


def seeds(evidence: Evidence) -> Finding:
    """Find too few seeds to tell noise from a law that is wrong."""
    points, chosen = evidence.points, evidence.chosen
    alone = evidence.names(points.weights < 2)
    if chosen.freedom == 0:
        why = "what a law leaves may be noise or its own fault, and nobody can tell"
        return Finding(FOUND, f"no point has a second seed: {why}", alone)
    sizes = len(np.unique(points.columns["params"][points.weights > 1]))
    spread = f"one seed differs by {share(chosen.spread)} of the loss from the next"
    said = f"{spread}, seen at {points.n - len(alone)} points"
    if chosen.freedom < LEAST_FREEDOM:
        few = f"{chosen.freedom} degrees of freedom are too few, {LEAST_FREEDOM} are needed"
        return Finding(FOUND, f"{said}: {few}", alone)
    if sizes < 2 <= points.n:
        return Finding(FOUND, f"{said} of one size: whether others are as noisy cannot be seen", alone)
    return Finding(CLEAR, f"{said} of {sizes} sizes")


@dataclass(frozen=True)
class Tuned:
    """A hyperparameter that has a best value at each size; `across` is what its values are compared within."""

    name: str
    because: str
    across: tuple[str, ...] = tuple(POINT)

    def is_tuned(self, evidence: Evidence) -> Finding:
        """Find points whose size has tried only one value."""
        if self.name not in evidence.runs or evidence.runs[self.name].isna().all():
            return Finding(UNKNOWN, f"the runs do not say their {self.name}")
        tried = self._tried(evidence)
        alone = [len(values) < 2 for values in tried]
        names = evidence.names(alone)
        if not names:
            return Finding(CLEAR, f"every size tried {min(map(len, tried))} values or more of {self.name}")
        values = sorted({each for values in tried for each in values}, key=_parts)
        if len(values) == 1:
            said = f"{self.name} is {_said(values[0])} in every run: {self.because}"
        elif all(alone):
            said = f"{self.name} goes from {_said(values[0])} to {_said(values[-1])}, and no size tried two"
        else:
            said = f"{self.name} has one value in {len(names)} of {evidence.points.n} points: {self.because}"
        return evidence.found(said, names)

    def is_inside(self, evidence: Evidence) -> Finding:
        """Find points whose best value lies at the end of what was tried."""
        if self.name not in evidence.runs or evidence.runs[self.name].isna().all():
            return Finding(UNKNOWN, f"the runs do not say their {self.name}")
        sides = []
        for values, (_, best) in zip(self._tried(evidence), evidence.table.iterrows(), strict=True):
            design = evidence.designs.get(str(best["study"]))
            spec = design.search.get(self.name) if design else None
            sides.append(_side(best[self.name], spec, values))
        judged = [side for side in sides if side is not None]
        if not judged:
            return Finding(UNKNOWN, f"no size tried three values of {self.name}: there is no inside to be in")
        names = evidence.names([bool(side) for side in sides])
        of_all = f"{several(len(judged), 'point')} with a range"
        if not names:
            return Finding(CLEAR, f"the best {self.name} lies inside of its range in {of_all}")
        where = listed([f"{n} at the {end}" for end in ("low", "high") if (n := judged.count(end))])
        said = f"the best {self.name} lies at an end of its range in {len(names)} of {of_all}"
        return evidence.found(f"{said}, {where}: a better one may lie beyond", names)

    def _tried(self, evidence: Evidence) -> list[set[Any]]:
        """Return the values that each point was chosen among, [n]."""
        runs = evidence.runs[evidence.runs["state"].astype(str).isin(COUNTED)]
        by = list(self.across)
        groups = {key: set(group[self.name].dropna()) for key, group in runs.groupby(by, sort=False)}
        return [groups.get(tuple(key), set()) for key in evidence.table[by].itertuples(index=False)]


TUNED = {
    "learning-rate": Tuned("learning_rate", "larger models mostly want a lower one"),
    "batch-size": Tuned("batch_size", "longer trainings mostly want a larger one", ("study", "model")),
    "betas": Tuned("betas", "small batches mostly want a longer memory"),
}


def _side(best: Any, spec: SearchSpec | None, tried: set[Any]) -> str | None:
    """Return low or high where the best value is at an end, "" where it is inside, None where that is not known."""
    if isinstance(spec, Range):
        scale = np.log if spec.log else np.asarray
        low, high, at = (float(scale(float(each))) for each in (spec.min, spec.max, best))
        place = (at - low) / (high - low)
        return "low" if place <= EDGE else "high" if place >= 1 - EDGE else ""
    values = spec.values if isinstance(spec, Choices) else tuple(tried)
    columns = zip(*map(_parts, values), strict=True)
    sides = [_side_among(part, column) for part, column in zip(_parts(best), columns, strict=True)]
    known = [side for side in sides if side is not None]
    return next((side for side in known if side), "") if known else None


def _side_among(best: float, values: Sequence[float]) -> str | None:
    distinct = sorted(set(values))
    if len(distinct) < 3:
        return None
    return "low" if best <= distinct[0] else "high" if best >= distinct[-1] else ""


def _parts(value: Any) -> tuple[float, ...]:
    """Return the numbers of a value: betas are two, and stand in a table as text."""
    read = ast.literal_eval(value) if isinstance(value, str) else value
    return tuple(map(float, read)) if isinstance(read, tuple | list) else (float(read),)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


@dataclass(frozen=True)
class Check:
    """One question to a study, and the function that answers it."""

    name: str
    question: str
    look: Callable[[Evidence], Finding]


CHECKS: tuple[Check, ...] = (
    Check("embeddings", "Are embeddings a large part of N?", embeddings_in_n),
    Check("head", "Does C leave the head's FLOPs out?", head_left_out),
    Check("warm-up", "Is the warm-up too long for the shortest runs?", warm_up),
    Check("decay", "Does the learning rate come down at the run's end?", decay),
    *(Check(name, f"Is {each.name} tuned at each size?", each.is_tuned) for name, each in TUNED.items()),
    *(
        Check(f"{name}-edge", f"Is the best {each.name} inside of its range?", each.is_inside)
        for name, each in TUNED.items()
    ),
    Check(
        "cut-short",
        "Are runs in the fit that stopped early, or left out that were pruned too soon?",
        cut_short,
    ),
    Check("seeds", "Do seeds show the noise?", seeds),
)


def audit(evidence: Evidence) -> dict[str, Any]:
    """Return what every check says, as plain values; `law` is the one whose exponents stand in the effects."""
    return {
        "law": evidence.base[0] or None,
        "n_points": evidence.points.n,
        "conventions": evidence.points.conventions,
        "dropped": evidence.points.dropped,
        "findings": [
            {"name": check.name, "question": check.question, **check.look(evidence).as_dict()}
            for check in CHECKS
        ],
    }
