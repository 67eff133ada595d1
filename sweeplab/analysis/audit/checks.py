"""Checks of what is counted: the embeddings in N, the head in C.

Both are a large part of a small model and a small part of a large one, so they bend what should be a power law
(Pearce and Song 2024, Reconciling Kaplan and Chinchilla scaling laws; Porian et al. 2024, Resolving discrepancies
in compute-optimal scaling of language models).

Checks of the learning rate over a run: its warm-up, and whether it has come down at the run's end.

A run that is measured while its rate is high has a higher loss than one that was planned to end there (Hoffmann
et al. 2022, section 3 and figure A1); a warm-up of one length for all is a large part of the shortest.

Checks of the tuning: whether each size tried several values of a hyperparameter, and where its best lies.

Checks of the ends: runs that stopped early or were pruned, and seeds that show the noise.

The checks as one table: one that is added is a row of it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.analysis.audit.evidence import CLEAR, FOUND, UNKNOWN, Evidence, Finding, ends, share
from sweeplab.analysis.conventions import STUDY_COLUMNS
from sweeplab.analysis.trials import COUNTED
from sweeplab.study.spec import Choices, Range
from sweeplab.train.schedule import SCHEDULES, learning_rate

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.study.spec import SearchSpec


LARGE = 0.1  # a part of N or C from which on it shows in an exponent


def embeddings_in_n(evidence: Evidence) -> Finding:
    """Find points whose N is to a large part embeddings."""
    counted = {"total": "n_params", "active": "n_params_active"}.get(evidence.conventions.chosen("params"))
    if counted is None:
        return Finding(CLEAR, "N leaves the embeddings out")
    embeddings = evidence.numbers("n_params") - evidence.numbers("n_params_non_embedding")
    part = embeddings / evidence.numbers(counted)
    if np.isnan(part).any():
        return Finding(UNKNOWN, "the runs do not say how many of their parameters are embeddings")
    names = evidence.names(part > LARGE)
    if not names:
        return Finding(CLEAR, f"embeddings are {ends(part, share)} of N")
    return Finding(
        FOUND,
        f"embeddings are {ends(part, share)} of N, and over {share(LARGE)} of it in {len(names)} of {len(part)} points",
        names,
        evidence.counting("with N without the embeddings", params="non-embedding"),
    )


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
        return Finding(CLEAR, f"the head's products, {ends(part, share)} of all, are {how}")
    return Finding(
        FOUND,
        f"C is 6 N D with an N that leaves out the head, whose products are {ends(part, share)} of all",
        names,
        evidence.counting("with N, and so C, with the head", params="with-head"),
    )


LONGEST_WARM_UP = 0.1  # of a run
HIGHEST_END = 0.2  # of the peak; Hoffmann et al. end at 0.1
_READ = ("learning_rate", "warmup_iters", "lr_decay", "min_lr", "scheduler_type", "max_iters", "iterations")


def warm_up(evidence: Evidence) -> Finding:
    """Find points whose warm-up is a large part of the run."""
    part = evidence.numbers("warmup_iters") / evidence.numbers("max_iters")
    if np.isnan(part).any():
        return Finding(UNKNOWN, "the runs do not say how long their warm-up is")
    names = evidence.names(part > LONGEST_WARM_UP)
    if not names:
        return Finding(CLEAR, f"the warm-up is {ends(part, share)} of a run")
    return Finding(
        FOUND,
        f"the warm-up is {ends(part, share)} of a run, and over {share(LONGEST_WARM_UP)} of it in "
        f"{len(names)} of {len(part)} points: the shortest are held back most",
        names,
        evidence.without(names),
    )


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
        if row["lr_decay"] and row["scheduler_type"] == "plateau":
            unknown.add(row["point"])
        elif learning_rate(row, int(row["iterations"])) > HIGHEST_END * row["learning_rate"]:
            why.setdefault(row["point"], _why(row))
    if not why:
        if unknown:
            return Finding(
                UNKNOWN,
                "plateau halves the rate when the loss asks for it: where it ends is not recorded",
                tuple(unknown),
            )
        return Finding(CLEAR, f"every rate has come down to {share(HIGHEST_END)} of its peak or less")
    reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(why.values()).most_common())
    names = tuple(name for name in evidence.points.names if name in why)
    return Finding(
        FOUND,
        f"{len(names)} of {evidence.points.n} points end with over {share(HIGHEST_END)} of the peak rate: {reasons}",
        names,
        evidence.without(names),
    )


def _why(row: dict[str, Any]) -> str:
    if not row["lr_decay"] or not SCHEDULES[row["scheduler_type"]].ends_low:
        return "with a rate that never comes down"
    if row["iterations"] < row["max_iters"]:
        return f"stopped before the {row['scheduler_type']}'s end"
    return "with a min_lr near the peak"


EDGE = 0.05  # of a range, at either end


@dataclass(frozen=True)
class Tuned:
    """A hyperparameter that has a best value at each size; `across` is what its values are compared within."""

    name: str
    because: str
    across: tuple[str, ...] = ("study", "model", "planned_tokens")

    def is_tuned(self, evidence: Evidence) -> Finding:
        """Find points whose size has tried only one value."""
        if self.name not in evidence.runs or evidence.runs[self.name].isna().all():
            return Finding(UNKNOWN, f"the runs do not say their {self.name}")
        tried = self._tried(evidence)
        alone = [len(values) < 2 for values in tried]
        names = evidence.names(alone)
        if not names:
            return Finding(CLEAR, f"every size tried {min(map(len, tried))} values or more of {self.name}")
        values = sorted({each for values in tried for each in values}, key=_order)
        if len(values) == 1:
            said = f"{self.name} is {_said(values[0])} in every run: {self.because}"
        elif all(alone):
            said = f"{self.name} goes from {_said(values[0])} to {_said(values[-1])}, and no size tried two"
        else:
            said = f"{self.name} has one value in {len(names)} of {evidence.points.n} points: {self.because}"
        return Finding(FOUND, said, names, evidence.without(names))

    def is_inside(self, evidence: Evidence) -> Finding:
        """Find points whose best value lies at the end of what was tried."""
        if self.name not in evidence.runs or evidence.runs[self.name].isna().all():
            return Finding(UNKNOWN, f"the runs do not say their {self.name}")
        sides = []
        for values, (_, best) in zip(self._tried(evidence), evidence.table.iterrows(), strict=True):
            spec = evidence.search.get(str(best["study"]), {}).get(self.name)
            sides.append(_side(best[self.name], spec, values))
        judged = [side for side in sides if side is not None]
        if not judged:
            return Finding(UNKNOWN, f"no size tried three values of {self.name}: there is no inside to be in")
        names = evidence.names([bool(side) for side in sides])
        if not names:
            return Finding(CLEAR, f"the best {self.name} lies inside of its range in {_all(judged)}")
        low, high = judged.count("low"), judged.count("high")
        where = " and ".join(
            f"{count} at the {end}" for count, end in ((low, "low"), (high, "high")) if count
        )
        return Finding(
            FOUND,
            f"the best {self.name} lies at an end of its range in {len(names)} of {_all(judged)}, {where}: "
            "a better one may lie beyond",
            names,
            evidence.without(names),
        )

    def _tried(self, evidence: Evidence) -> list[set[Any]]:
        """Return the values that each point was chosen among, [n]."""
        runs = evidence.runs[evidence.runs["state"].astype(str).isin(COUNTED)]
        by = list(self.across)
        groups = {key: set(group[self.name].dropna()) for key, group in runs.groupby(by, sort=False)}
        keys: pd.DataFrame = evidence.table[by]
        return [groups.get(tuple(key), set()) for key in keys.itertuples(index=False)]


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
    sides = [
        _side_among(part, column)
        for part, column in zip(_parts(best), zip(*map(_parts, values), strict=True), strict=True)
    ]
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


def _order(value: Any) -> tuple[float, ...]:
    return _parts(value)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _all(judged: Sequence[str]) -> str:
    return f"{len(judged)} point{'s' if len(judged) > 1 else ''} with a range"


# A standard deviation from 4 degrees of freedom is known to a third.
LEAST_FREEDOM = 4


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
        said.append(
            f"{len(stopped)} of {evidence.points.n} points come of runs that stopped early: "
            "they were not trained on the tokens that their schedule was made for"
        )
    if better:
        said.append(
            f"{len(better)} have a loss that a pruned trial of theirs was already below: the pruner was too hasty"
        )
    return Finding(FOUND, "; ".join(said), names, evidence.without(names))


def seeds(evidence: Evidence) -> Finding:
    """Find too few seeds to tell noise from a law that is wrong."""
    points, chosen = evidence.points, evidence.chosen
    alone = evidence.names(points.weights < 2)
    several = points.n - len(alone)
    if chosen.freedom == 0:
        return Finding(
            FOUND,
            "no point has a second seed: what a law leaves may be noise or its own fault, and nobody can tell",
            alone,
        )
    sizes = len(np.unique(points.columns["params"][points.weights > 1]))
    said = f"one seed differs by {share(chosen.spread)} of the loss from the next, seen at {several} points"
    if chosen.freedom < LEAST_FREEDOM:
        return Finding(
            FOUND,
            f"{said}: {chosen.freedom} degrees of freedom are too few, {LEAST_FREEDOM} are needed",
            alone,
        )
    if sizes < 2 <= points.n:
        return Finding(FOUND, f"{said} of one size: whether others are as noisy cannot be seen", alone)
    return Finding(CLEAR, f"{said} of {sizes} sizes")


def _beaten_by_pruned(evidence: Evidence) -> set[str]:
    """Return the points that have a higher loss than a trial of the same model and length when it was pruned."""
    loss, by = STUDY_COLUMNS["loss"], ["study", "model", "planned_tokens"]
    pruned = evidence.runs[evidence.runs["state"].astype(str) == "pruned"]
    trials = pruned.groupby([*by, "cell", "trial"], sort=False)[loss].mean().reset_index()
    lowest = {key: float(value) for key, value in trials.groupby(by, sort=False)[loss].min().items()}
    own = evidence.used.groupby("point")[loss].mean()
    keys = evidence.table[by].itertuples(index=False)
    return {
        name
        for name, key in zip(evidence.points.names, keys, strict=True)
        if lowest.get(tuple(key), np.inf) < own[name]
    }


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


@dataclass(frozen=True)
class Audit:
    """What every check said of a study; `law` is the one whose exponents stand in the effects."""

    law: str
    evidence: Evidence
    findings: tuple[tuple[Check, Finding], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        points = self.evidence.points
        return {
            "law": self.law or None,
            "n_points": points.n,
            "conventions": points.conventions,
            "dropped": points.dropped,
            "findings": [
                {"name": check.name, "question": check.question, **finding.as_dict()}
                for check, finding in self.findings
            ],
        }


def audit(evidence: Evidence) -> Audit:
    """Return what every check says."""
    findings = tuple((check, check.look(evidence)) for check in CHECKS)
    return Audit(evidence.law, evidence, findings)
