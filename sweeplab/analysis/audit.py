"""What keeps a law's numbers from being identified: its residual by causes, and settings that bend its exponents.

The causes are those of `causes.py`. Settings are checked one by one; a new check is a row of CHECKS:

- Counting, the embeddings in N and the head in C: both are a large part of a small model and a small part of a
  large one, so they bend a power law (Pearce and Song 2024, Reconciling Kaplan and Chinchilla scaling
  laws; Porian et al. 2024, Resolving discrepancies in compute-optimal scaling of language models).
- The learning rate schedule: a run measured while its learning rate is high has a higher loss than one that was
  planned to end there (Hoffmann et al. 2022, section 3 and figure A1); a warm-up of one length for all runs is a large
  part of the shortest.
- Hyperparameters whose best value follows the size, of which no size tried two.
- Runs that stopped early or were pruned, or whose loss rose again.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.cures import add_commands, file_causes, study_causes
from sweeplab.analysis.studies import (
    STUDY_COLUMNS,
    Counting,
    Studies,
    joined,
    points_of_trials,
    select_trials,
    settled_of,
    study_points,
    with_tuning,
)
from sweeplab.analysis.table import COLUMNS, validate
from sweeplab.analysis.trials import COUNTED, POINT, Selection, StudyDesign, with_models
from sweeplab.errors import BadInput
from sweeplab.formatting import counts, several
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.laws.assessment import Estimate, assess, find_law
from sweeplab.laws.choosing import along_family, law_of_counts
from sweeplab.laws.columns import Array, Conventions, numbers, rows_where
from sweeplab.laws.points import Points
from sweeplab.laws.reading import read_frame
from sweeplab.train.schedule import SCHEDULES, learning_rate

if TYPE_CHECKING:
    import pandas as pd


FOUND: Final = "found"
CLEAR: Final = "clear"
UNKNOWN: Final = "undecided"
_LAWS = ("chinchilla", "power-n", "power-d")  # where the points do not allow their own law


@dataclass(frozen=True)
class Effect:
    """The exponents before and after a change; `why` says why there are none."""

    change: str
    n_points: int = 0
    before: Mapping[str, Estimate] = field(default_factory=dict)
    after: Mapping[str, Estimate] = field(default_factory=dict)
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values: each exponent before and after, and whether the two differ by more than noise.

        The value of an exponent that is not identified is null.
        """
        both = {name: (old, self.after[name]) for name, old in self.before.items() if name in self.after}
        exponents = {
            name: {"before": _shown(old), "after": _shown(new), "differs": _differs(old, new)}
            for name, (old, new) in both.items()
        }
        return {"change": self.change, "n_points": self.n_points, "exponents": exponents, "why": self.why}


@dataclass(frozen=True)
class Answer:
    """The result of a check: a sentence, the points affected, and the effects on the exponents."""

    state: str
    sentence: str
    points: tuple[str, ...] = ()
    effects: tuple[Effect, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return vars(self) | {"effects": [effect.as_dict() for effect in self.effects]}


@dataclass(frozen=True)
class AuditTable:
    """The runs of a study, its points, and a function that counts them by other conventions.

    `designs` has the grid and search space of each study; empty if they are not recorded.
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
        """Return a column's number for each point, [n]; true is 1, missing is NaN."""
        return numbers(self.table, name)

    def names(self, touched: Sequence[bool] | NDArray[np.bool_]) -> tuple[str, ...]:
        """Return the names of the points marked in `touched`, [n]."""
        return tuple(name for name, here in zip(self.points.names, touched, strict=True) if here)

    def found(self, sentence: str, names: tuple[str, ...]) -> Answer:
        """Return a finding about some points, with the exponents without these points."""
        keep = np.array([name not in names for name in self.points.names])
        change = f"without {(~keep).sum()} of {several(len(keep), 'point')}"
        effect = Effect(change, why="every point is affected: there is no fit without them")
        if keep.any():
            effect = self._effect(change, lambda: self.points.only(keep))
        return Answer(FOUND, sentence, names, (effect,))

    def counting(self, words: str, **choices: str) -> tuple[Effect, ...]:
        """Return the exponents under other conventions, which `words` describe."""
        return (self._effect(words, lambda: self.recount(replace(self.conventions, **choices))),)

    @cached_property
    def base(self) -> tuple[str, dict[str, Estimate], str]:
        """Return the law whose exponents are compared, its exponents, and why there are none."""
        why = []
        for name in dict.fromkeys((law_of_counts(self.points).name, *_LAWS)):
            try:
                return name, _exponents(self.points, name), ""
            except BadInput as error:
                why.append(str(error.problems[0]))
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
    tuned: str = "",
) -> AuditTable:
    """Return the checks' input for runs as `runs_table` returns them: the points are those that a law is fitted to."""
    settled = conventions or Conventions()
    chosen, columns, meanings = select_trials(runs, None, settled)
    design = joined(designs.values()) if designs else None
    points = with_tuning(points_of_trials(chosen, columns, meanings), runs, settled, design).tuned_as(tuned)
    return AuditTable(
        runs=with_models(runs),
        chosen=chosen,
        points=along_family(points),
        conventions=settled,
        designs=designs or {},
        recount=lambda how: study_points(runs, None, how, design).tuned_as(tuned),
    )


def share(value: float) -> str:
    """Format a share: 12%, 0.4%."""
    if value >= 0.1:
        return f"{value:.0%}"
    return f"{100 * value:.2g}%"


def ends(values: Array) -> str:
    """Format the range of some shares, as one number if both ends read the same."""
    return " to ".join(dict.fromkeys((share(float(values.min())), share(float(values.max())))))


def _exponents(points: Points, law: str) -> dict[str, Estimate]:
    estimates = assess(points, find_law(law), others=()).estimates
    return {each.quantity.name: each for each in estimates if each.quantity.kind == "exponent"}


def _shown(estimate: Estimate) -> dict[str, Any]:
    entry = estimate.as_dict()
    return {name: entry[name] for name in ("value", "low", "high", "verdict", "why")}


def _differs(before: Estimate, after: Estimate) -> bool | None:
    """Whether each value is outside of the other's interval; None if one of them has no value.

    Both intervals count, because fewer points move a number by more than the interval of all points allows.
    """
    if not (before.identified and after.identified):
        return None
    pairs = ((before.interval, after.interval.value), (after.interval, before.interval.value))
    return not any(ends.low <= value <= ends.high for ends, value in pairs)


def _check_told(measured: Array, what: str) -> None:
    if np.isnan(measured).any():
        raise BadInput(f"the runs do not say {what}")


LARGE = 0.1  # a share of N or C above which it affects an exponent
LONGEST_WARM_UP = 0.1  # of a run
HIGHEST_END = 0.2  # of the peak; Hoffmann et al. end at 0.1
HIGHEST_RISE = 0.005  # of the loss, from its best evaluation to its last
UNLIKE = 2  # the ratio of the most to the fewest trials that points were chosen from
_READ = ("learning_rate", "warmup_iters", "lr_decay", "min_lr", "scheduler_type", "max_iters", "iterations")


def _embeddings_in_n(evidence: AuditTable) -> Answer:
    counted = {"total": "n_params", "active": "n_params_active"}.get(evidence.conventions.chosen("params"))
    if counted is None:
        return Answer(CLEAR, "N leaves the embeddings out")
    embeddings = evidence.numbers("n_params") - evidence.numbers("n_params_non_embedding")
    part = embeddings / evidence.numbers(counted)
    _check_told(part, "how many of their parameters are embeddings")
    names, sentence = evidence.names(part > LARGE), f"embeddings are {ends(part)} of N"
    if not names:
        return Answer(CLEAR, sentence)
    sentence += f"; over {share(LARGE)} in {len(names)} of {several(len(part), 'point')}"
    effects = evidence.counting("with N counted without the embeddings", params="non-embedding")
    return Answer(FOUND, sentence, names, effects)


def _head_left_out(evidence: AuditTable) -> Answer:
    per_token = evidence.numbers("train_flops") / evidence.numbers("train_tokens")
    part = 6 * evidence.numbers("vocab_size") * evidence.numbers("n_embd") / per_token
    _check_told(part, "how wide their head is")
    chosen = evidence.conventions.chosen
    tied = evidence.numbers("tie_weights") == 1
    left_out = tied & (chosen("params") == "non-embedding") & (chosen("flops") == "6nd")
    names = evidence.names(left_out & (part > LARGE))
    if not names:
        how = "left out of C, but small" if left_out.any() else "in C"
        return Answer(CLEAR, f"the head's products, {ends(part)} of all FLOPs, are {how}")
    sentence = f"C is 6 N D with an N that leaves out the head, whose products are {ends(part)} of all FLOPs"
    effects = evidence.counting("with the head counted in N, and so in C", params="with-head")
    return Answer(FOUND, sentence, names, effects)


def _warm_up(evidence: AuditTable) -> Answer:
    part = evidence.numbers("warmup_iters") / evidence.numbers("max_iters")
    _check_told(part, "how long their warm-up is")
    names, sentence = evidence.names(part > LONGEST_WARM_UP), f"the warm-up is {ends(part)} of a run"
    if not names:
        return Answer(CLEAR, sentence)
    sentence += f"; over {share(LONGEST_WARM_UP)} in {len(names)} of {several(len(part), 'point')}"
    return evidence.found(f"{sentence}: the shortest runs lose most by it", names)


def _decay(evidence: AuditTable) -> Answer:
    runs = evidence.used
    read = [*_READ]
    if "scheduler_type" in runs and runs["scheduler_type"].eq("wsd").any():
        read.append("decay_share")
    if any(name not in runs or runs[name].isna().any() for name in read):
        return Answer(UNKNOWN, "the runs do not say how their learning rate decays")
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
        sentence = "plateau halves the learning rate when the loss stalls: the last rate is not recorded"
        return Answer(UNKNOWN, sentence, tuple(unknown))
    if not why:
        return Answer(CLEAR, f"every learning rate ends at {share(HIGHEST_END)} of its peak or less")
    reasons = counts(dict(Counter(why.values()).most_common()))
    names = tuple(name for name in evidence.points.names if name in why)
    over = f"{len(names)} of {several(evidence.points.n, 'point')} end with over {share(HIGHEST_END)} of the peak rate"
    return evidence.found(f"{over}: {reasons}", names)


def _why(values: Hyperparameters, iterations: int) -> str:
    if not values.lr_decay or not SCHEDULES[values.scheduler_type].ends_low:
        return "with a learning rate that never decays"
    if iterations < values.max_iters:
        return f"stopped before the {values.scheduler_type}'s end"
    return "with a min_lr near the peak"


def _cut_short(evidence: AuditTable) -> Answer:
    stopped = set(evidence.used.loc[evidence.used["state"].astype(str) == "stopped", "point"])
    better = _beaten_by_pruned(evidence)
    names = tuple(name for name in evidence.points.names if name in stopped | better)
    pruned = evidence.points.dropped.get("pruned before the end", 0)
    if not names:
        return Answer(CLEAR, f"every point ran to its end; left out: {several(pruned, 'pruned run')}")
    parts = []
    if stopped:
        early = f"{len(stopped)} of {several(evidence.points.n, 'point')} come from runs that stopped early"
        parts.append(f"{early}: they were trained on fewer tokens than their schedule was planned for")
    if better:
        beaten = f"{len(better)} have a higher loss than one of their pruned trials already had"
        parts.append(f"{beaten}: the pruner was too aggressive")
    return evidence.found("; ".join(parts), names)


def _best_before_end(evidence: AuditTable) -> Answer:
    if evidence.conventions.at == "final":
        return Answer(CLEAR, "the loss of a point is that of its last evaluation")
    rise = evidence.numbers("final_val_loss") / evidence.numbers("best_val_loss") - 1.0
    _check_told(rise, "their last loss beside their best")
    names = evidence.names(rise > HIGHEST_RISE)
    sentence = "the loss of a point is that of its best evaluation; its last one is"
    if not names:
        return Answer(CLEAR, f"{sentence} at most {share(float(rise.max()))} higher")
    most = share(float(rise.max()))
    sentence += (
        f" over {share(HIGHEST_RISE)} higher in {len(names)} of {several(len(rise), 'point')}, up to {most}"
    )
    return evidence.found(f"{sentence}: they reached their best loss on fewer tokens than D", names)


def _chosen_among(evidence: AuditTable) -> Answer:
    runs = evidence.runs[evidence.runs["state"].astype(str).isin(COUNTED)]
    groups = runs.drop_duplicates([*POINT, "cell", "trial"]).groupby(POINT, sort=False).size()
    among = np.array([groups.get(tuple(key), 0) for key in evidence.table[POINT].itertuples(index=False)])
    fewest, most = int(among.min()), int(among.max())
    if UNLIKE * fewest > most:
        trials = several(most, "trial")
        if fewest < most:
            trials = f"{fewest} to {trials}"
        return Answer(CLEAR, f"every point is the best of {trials}")
    names = evidence.names(UNLIKE * among <= most)
    sentence = f"points are the best of {fewest} to {several(most, 'trial')}: the best of more is lower by luck alone"
    return evidence.found(sentence, names)


def _beaten_by_pruned(evidence: AuditTable) -> set[str]:
    """The points that have a higher loss than a trial of the same model and length when it was pruned."""
    loss = STUDY_COLUMNS["loss"]
    pruned = evidence.runs[evidence.runs["state"].astype(str) == "pruned"]
    trials = pruned.groupby([*POINT, "cell", "trial"], sort=False)[loss].mean().reset_index()
    lowest = {key: float(value) for key, value in trials.groupby(POINT, sort=False)[loss].min().items()}
    losses = evidence.used.groupby("point")[loss].mean()
    keys = zip(evidence.points.names, evidence.table[POINT].itertuples(index=False), strict=True)
    return {name for name, key in keys if lowest.get(tuple(key), np.inf) < losses[name]}


@dataclass(frozen=True)
class Tuned:
    """A hyperparameter with a best value at each size; its values are compared within groups of `across`."""

    name: str
    because: str
    across: tuple[str, ...] = tuple(POINT)

    def is_tuned(self, evidence: AuditTable) -> Answer:
        """Find points whose size tried only one value."""
        if self.name not in evidence.runs or evidence.runs[self.name].isna().all():
            raise BadInput(f"the runs do not say their {self.name}")
        tried = self._tried(evidence)
        alone = [len(values) < 2 for values in tried]
        names = evidence.names(alone)
        if not names:
            fewest = several(min(map(len, tried)), "value")
            return Answer(CLEAR, f"every size tried {fewest} or more of {self.name}")
        values = sorted({each for values in tried for each in values}, key=_parts)
        if len(values) == 1:
            sentence = f"{self.name} is {_written(values[0])} in every run: {self.because}"
        elif all(alone):
            span = f"{_written(values[0])} to {_written(values[-1])}"
            sentence = f"{self.name} goes from {span}, but no size tried two values"
        else:
            where = f"{len(names)} of {several(evidence.points.n, 'point')}"
            sentence = f"{self.name} has one value in {where}: {self.because}"
        return evidence.found(sentence, names)

    def _tried(self, evidence: AuditTable) -> list[set[Any]]:
        """The values that each point was chosen from, [n]."""
        runs = evidence.runs[evidence.runs["state"].astype(str).isin(COUNTED)]
        by = list(self.across)
        groups = {key: set(group[self.name].dropna()) for key, group in runs.groupby(by, sort=False)}
        return [groups.get(tuple(key), set()) for key in evidence.table[by].itertuples(index=False)]


TUNED = {
    "learning-rate": Tuned("learning_rate", "larger models usually need a lower one"),
    "batch-size": Tuned("batch_size", "longer runs usually need a larger one", ("study", "model")),
    "betas": Tuned("betas", "small batches usually need a longer average"),
}


def _parts(value: Any) -> tuple[float, ...]:
    """The numbers of a value: betas are two, written as text in a table."""
    if isinstance(value, str):
        value = ast.literal_eval(value)
    return tuple(map(float, np.atleast_1d(value)))


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.4g}"


@dataclass(frozen=True)
class AuditCheck:
    """One question about a study, and the function that answers it."""

    name: str
    question: str
    find: Callable[[AuditTable], Answer]

    def look(self, evidence: AuditTable) -> Answer:
        """Return the answer; it cannot be told if the runs lack what it needs."""
        try:
            return self.find(evidence)
        except BadInput as lacking:
            return Answer(UNKNOWN, str(lacking.problems[0]))


CHECKS: tuple[AuditCheck, ...] = (
    AuditCheck("embeddings", "Are embeddings a large part of N?", _embeddings_in_n),
    AuditCheck("head", "Does C leave out the head's FLOPs?", _head_left_out),
    AuditCheck("warm-up", "Is the warm-up too long for the shortest runs?", _warm_up),
    AuditCheck("decay", "Does the learning rate decay by the end of the run?", _decay),
    *(AuditCheck(name, f"Is {each.name} tuned at each size?", each.is_tuned) for name, each in TUNED.items()),
    AuditCheck(
        "cut-short",
        "Does the fit have runs that stopped early, or lack runs that were pruned too soon?",
        _cut_short,
    ),
    AuditCheck("best-before-end", "Does each run have its best loss at its end?", _best_before_end),
    AuditCheck("chosen-among", "Is each point the best of equally many trials?", _chosen_among),
)


def audit(
    evidence: AuditTable, studies: Studies | None = None, asked: Counting | None = None
) -> dict[str, Any]:
    """Return the causes in the residual of a study's law and the finding of every check, as plain values.

    `law` is the one whose exponents the effects of findings show. Without `studies` cures have no command; `asked` is
    how the user counts, which commands repeat.
    """
    points, designs = evidence.points, evidence.designs
    causes = study_causes(
        points, evidence.runs, evidence.table, evidence.conventions, designs, studies, asked
    )
    findings = [
        {"name": check.name, "question": check.question} | check.look(evidence).as_dict() for check in CHECKS
    ]
    about = {"conventions": points.conventions, "dropped": points.dropped}
    return about | causes | {"findings": findings}


def audit_file(path: Path, counting: Counting) -> dict[str, Any]:
    """Return the same of a table's file; its settings are checked if it holds the runs of studies."""
    frame = read_frame(path)
    if counting.columns or not COLUMNS.keys() <= set(map(str, frame)):
        return file_causes(path, counting) | {"findings": []}
    runs = validate(rows_where(frame, counting.where, str(path)))
    audited = audit(gather(runs, None, settled_of(runs, counting.conventions), counting.tuned))
    add_commands(audited, str(path), counting)
    return audited
