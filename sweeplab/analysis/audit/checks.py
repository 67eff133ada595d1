"""Checks for what may bias the exponents of a study, as one table: a new check is a row of it.

- Counting, the embeddings in N and the head in C: both are a large part of a small model and a small part of a
  large one, so they bend a power law (Pearce and Song 2024, Reconciling Kaplan and Chinchilla scaling
  laws; Porian et al. 2024, Resolving discrepancies in compute-optimal scaling of language models).
- The learning rate schedule: a run measured while its learning rate is high has a higher loss than one that was
  planned to end there (Hoffmann et al. 2022, section 3 and figure A1); a warm-up of one length for all runs is a large
  part of the shortest.
- Tuning: whether each size tried several values of a hyperparameter, and where its best value lies.
- The end of training: runs that stopped early or were pruned, whose loss rose again, or that read their text many
  times (Muennighoff et al. 2023, Scaling data-constrained language models), and seeds that show the noise.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeplab.analysis.audit.evidence import CLEAR, FOUND, UNKNOWN, AuditTable, Finding, ends, share
from sweeplab.analysis.points import STUDY_COLUMNS
from sweeplab.analysis.trials import COUNTED, POINT
from sweeplab.formatting import counts, listed, several
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.study.search import Choices, Range, SearchSpec
from sweeplab.train.schedule import SCHEDULES, learning_rate

LARGE = 0.1  # a share of N or C above which it affects an exponent
LONGEST_WARM_UP = 0.1  # of a run
HIGHEST_END = 0.2  # of the peak; Hoffmann et al. end at 0.1
MOST_EPOCHS = 4  # up to which repeated data are nearly as good as new: Muennighoff et al. 2023, figure 5
HIGHEST_RISE = 0.005  # of the loss, from its best evaluation to its last
UNLIKE = 2  # the ratio of the most to the fewest trials that points were chosen from
LEAST_FREEDOM = 4  # a standard deviation from 4 degrees of freedom is known to a third
EDGE = 0.05  # of a range, at either end
_READ = ("learning_rate", "warmup_iters", "lr_decay", "min_lr", "scheduler_type", "max_iters", "iterations")


def embeddings_in_n(evidence: AuditTable) -> Finding:
    """Find points with a large share of embeddings in N."""
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
    said += f"; over {share(LARGE)} in {len(names)} of {len(part)} points"
    effects = evidence.counting("with N counted without the embeddings", params="non-embedding")
    return Finding(FOUND, said, names, effects)


def head_left_out(evidence: AuditTable) -> Finding:
    """Find points whose C leaves out a head with a large share of the FLOPs."""
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
        return Finding(CLEAR, f"the head's products, {ends(part)} of all FLOPs, are {how}")
    said = f"C is 6 N D with an N that leaves out the head, whose products are {ends(part)} of all FLOPs"
    effects = evidence.counting("with the head counted in N, and so in C", params="with-head")
    return Finding(FOUND, said, names, effects)


def warm_up(evidence: AuditTable) -> Finding:
    """Find points with a warm-up that is a large part of the run."""
    part = evidence.numbers("warmup_iters") / evidence.numbers("max_iters")
    if np.isnan(part).any():
        return Finding(UNKNOWN, "the runs do not say how long their warm-up is")
    names, said = evidence.names(part > LONGEST_WARM_UP), f"the warm-up is {ends(part)} of a run"
    if not names:
        return Finding(CLEAR, said)
    said += f"; over {share(LONGEST_WARM_UP)} in {len(names)} of {len(part)} points"
    return evidence.found(f"{said}: the shortest runs lose most by it", names)


def decay(evidence: AuditTable) -> Finding:
    """Find points of runs that end before their learning rate has decayed."""
    runs = evidence.used
    read = [*_READ]
    if "scheduler_type" in runs and runs["scheduler_type"].eq("wsd").any():
        read.append("decay_share")
    if any(name not in runs or runs[name].isna().any() for name in read):
        return Finding(UNKNOWN, "the runs do not say how their learning rate decays")
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
        said = "plateau halves the learning rate when the loss stalls: the last rate is not recorded"
        return Finding(UNKNOWN, said, tuple(unknown))
    if not why:
        return Finding(CLEAR, f"every learning rate ends at {share(HIGHEST_END)} of its peak or less")
    reasons = counts(dict(Counter(why.values()).most_common()))
    names = tuple(name for name in evidence.points.names if name in why)
    over = f"{len(names)} of {evidence.points.n} points end with over {share(HIGHEST_END)} of the peak rate"
    return evidence.found(f"{over}: {reasons}", names)


def _why(values: Hyperparameters, iterations: int) -> str:
    if not values.lr_decay or not SCHEDULES[values.scheduler_type].ends_low:
        return "with a learning rate that never decays"
    if iterations < values.max_iters:
        return f"stopped before the {values.scheduler_type}'s end"
    return "with a min_lr near the peak"


def cut_short(evidence: AuditTable) -> Finding:
    """Find points of runs that stopped early, and points with a pruned trial that was already better."""
    stopped = set(evidence.used.loc[evidence.used["state"].astype(str) == "stopped", "point"])
    better = _beaten_by_pruned(evidence)
    names = tuple(name for name in evidence.points.names if name in stopped | better)
    pruned = evidence.points.dropped.get("pruned before the end", 0)
    if not names:
        return Finding(CLEAR, f"every point ran to its end; {pruned} pruned runs are left out")
    said = []
    if stopped:
        early = f"{len(stopped)} of {evidence.points.n} points come from runs that stopped early"
        said.append(f"{early}: they were trained on fewer tokens than their schedule was planned for")
    if better:
        beaten = f"{len(better)} have a higher loss than one of their pruned trials already had"
        said.append(f"{beaten}: the pruner was too aggressive")
    return evidence.found("; ".join(said), names)


def best_before_end(evidence: AuditTable) -> Finding:
    """Find points whose best loss is from before the end of training: it took fewer tokens than D."""
    if evidence.conventions.at == "final":
        return Finding(CLEAR, "the loss of a point is that of its last evaluation")
    rise = evidence.numbers("final_val_loss") / evidence.numbers("best_val_loss") - 1.0
    if np.isnan(rise).any():
        return Finding(UNKNOWN, "the runs do not say their last loss beside their best")
    names = evidence.names(rise > HIGHEST_RISE)
    said = "the loss of a point is that of its best evaluation; its last one is"
    if not names:
        return Finding(CLEAR, f"{said} at most {share(float(rise.max()))} higher")
    most = share(float(rise.max()))
    said += f" over {share(HIGHEST_RISE)} higher in {len(names)} of {len(rise)} points, up to {most}"
    return evidence.found(f"{said}: they reached their best loss on fewer tokens than D", names)


def epochs(evidence: AuditTable) -> Finding:
    """Find points whose runs read their training text many times."""
    available = {name: design.train_tokens for name, design in evidence.designs.items()}
    tokens = evidence.table["study"].astype(str).map(available).to_numpy(float, na_value=np.nan)
    passes = evidence.numbers("train_tokens") / tokens
    if np.isnan(passes).any():
        return Finding(UNKNOWN, "the runs do not say how many tokens their text has")
    names, most = evidence.names(passes > MOST_EPOCHS), f"{float(passes.max()):.2g}"
    if not names:
        return Finding(CLEAR, f"runs read their text {most} times at most")
    said = (
        f"{len(names)} of {len(passes)} points read their text over {MOST_EPOCHS} times, up to {most} times"
    )
    return evidence.found(f"{said}: repeated tokens are worth less than the new ones that D counts", names)


def chosen_among(evidence: AuditTable) -> Finding:
    """Find points that are the best of far fewer trials than others: the best of more is lower by luck."""
    runs = evidence.runs[evidence.runs["state"].astype(str).isin(COUNTED)]
    groups = runs.drop_duplicates([*POINT, "cell", "trial"]).groupby(POINT, sort=False).size()
    among = np.array([groups.get(tuple(key), 0) for key in evidence.table[POINT].itertuples(index=False)])
    fewest, most = int(among.min()), int(among.max())
    if UNLIKE * fewest > most:
        of = several(most, "trial") if fewest == most else f"{fewest} to {most} trials"
        return Finding(CLEAR, f"every point is the best of {of}")
    names = evidence.names(UNLIKE * among <= most)
    said = f"points are the best of {fewest} to {most} trials: the best of more is lower by luck alone"
    return evidence.found(said, names)


def _beaten_by_pruned(evidence: AuditTable) -> set[str]:
    """Return the points that have a higher loss than a trial of the same model and length when it was pruned."""
    loss = STUDY_COLUMNS["loss"]
    pruned = evidence.runs[evidence.runs["state"].astype(str) == "pruned"]
    trials = pruned.groupby([*POINT, "cell", "trial"], sort=False)[loss].mean().reset_index()
    lowest = {key: float(value) for key, value in trials.groupby(POINT, sort=False)[loss].min().items()}
    own = evidence.used.groupby("point")[loss].mean()
    keys = zip(evidence.points.names, evidence.table[POINT].itertuples(index=False), strict=True)
    return {name for name, key in keys if lowest.get(tuple(key), np.inf) < own[name]}


def seeds(evidence: AuditTable) -> Finding:
    """Find too few seeds to separate noise from misfit."""
    points, chosen = evidence.points, evidence.chosen
    alone = evidence.names(points.weights < 2)
    if chosen.freedom == 0:
        why = "noise and misfit cannot be separated in the residuals of a law"
        return Finding(FOUND, f"no point has a second seed: {why}", alone)
    sizes = len(np.unique(points.columns["params"][points.weights > 1]))
    spread = f"the standard deviation of one seed is {share(chosen.spread)} of the loss"
    said = f"{spread}, seen at {points.n - len(alone)} points"
    if chosen.freedom < LEAST_FREEDOM:
        few = f"{chosen.freedom} degrees of freedom are too few, {LEAST_FREEDOM} are needed"
        return Finding(FOUND, f"{said}: {few}", alone)
    if sizes < 2 <= points.n:
        return Finding(FOUND, f"{said} of one size: the noise of other sizes is unknown", alone)
    return Finding(CLEAR, f"{said} of {sizes} sizes")


@dataclass(frozen=True)
class Tuned:
    """A hyperparameter with a best value at each size; its values are compared within groups of `across`."""

    name: str
    because: str
    across: tuple[str, ...] = tuple(POINT)

    def is_tuned(self, evidence: AuditTable) -> Finding:
        """Find points whose size tried only one value."""
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
            said = f"{self.name} goes from {_said(values[0])} to {_said(values[-1])}, but no size tried two values"
        else:
            said = f"{self.name} has one value in {len(names)} of {evidence.points.n} points: {self.because}"
        return evidence.found(said, names)

    def is_inside(self, evidence: AuditTable) -> Finding:
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
            return Finding(UNKNOWN, f"no size tried three values of {self.name}, so none can be inside")
        names = evidence.names([bool(side) for side in sides])
        of_all = f"{several(len(judged), 'point')} with a range"
        if not names:
            return Finding(CLEAR, f"the best {self.name} lies inside of its range in {of_all}")
        where = listed([f"{n} at the {end}" for end in ("low", "high") if (n := judged.count(end))])
        said = f"the best {self.name} lies at an end of its range in {len(names)} of {of_all}"
        return evidence.found(f"{said}, {where}: a better one may lie beyond", names)

    def _tried(self, evidence: AuditTable) -> list[set[Any]]:
        """Return the values that each point was chosen from, [n]."""
        runs = evidence.runs[evidence.runs["state"].astype(str).isin(COUNTED)]
        by = list(self.across)
        groups = {key: set(group[self.name].dropna()) for key, group in runs.groupby(by, sort=False)}
        return [groups.get(tuple(key), set()) for key in evidence.table[by].itertuples(index=False)]


TUNED = {
    "learning-rate": Tuned("learning_rate", "larger models usually need a lower one"),
    "batch-size": Tuned("batch_size", "longer runs usually need a larger one", ("study", "model")),
    "betas": Tuned("betas", "small batches usually need a longer average"),
}


def _side(best: Any, spec: SearchSpec | None, tried: set[Any]) -> str | None:
    """Return low or high if the best value is at an end, "" if it is inside, None if that is not known."""
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
    """Return the numbers of a value: betas are two, written as text in a table."""
    read = ast.literal_eval(value) if isinstance(value, str) else value
    return tuple(map(float, read)) if isinstance(read, tuple | list) else (float(read),)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


@dataclass(frozen=True)
class Check:
    """One question about a study, and the function that answers it."""

    name: str
    question: str
    look: Callable[[AuditTable], Finding]


CHECKS: tuple[Check, ...] = (
    Check("embeddings", "Are embeddings a large part of N?", embeddings_in_n),
    Check("head", "Does C leave out the head's FLOPs?", head_left_out),
    Check("warm-up", "Is the warm-up too long for the shortest runs?", warm_up),
    Check("decay", "Does the learning rate decay by the end of the run?", decay),
    *(Check(name, f"Is {each.name} tuned at each size?", each.is_tuned) for name, each in TUNED.items()),
    *(
        Check(f"{name}-edge", f"Is the best {each.name} inside of its range?", each.is_inside)
        for name, each in TUNED.items()
    ),
    Check(
        "cut-short",
        "Does the fit have runs that stopped early, or lack runs that were pruned too soon?",
        cut_short,
    ),
    Check("best-before-end", "Does each run have its best loss at its end?", best_before_end),
    Check("epochs", "Do runs read new text until their end?", epochs),
    Check("chosen-among", "Is each point the best of equally many trials?", chosen_among),
    Check("seeds", "Do seeds show the noise?", seeds),
)


def audit(evidence: AuditTable) -> dict[str, Any]:
    """Return the finding of every check as plain values; `law` is the one whose exponents the effects show."""
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
