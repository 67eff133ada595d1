"""The five lines that every place shows first of a study: its state, best trial, law, what limits it, what to do next.

The best trial is the one chosen by the expected value (`study/choice.py`); the smallest loss seen stands in tables of
all trials only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, DamagedFile
from sweeplab.formatting import duration, rounded, several, written
from sweeplab.hyperparameters import AUTO, TABLE
from sweeplab.lab.findings import Finding, find_limits
from sweeplab.lab.listing import (
    StudyState,
    StudyTrials,
    cell_limits,
    find_metric,
    read_budget,
    study_state,
)
from sweeplab.lab.storage import count_trials
from sweeplab.records.folders import StudyFolder
from sweeplab.records.kept import read_confirmed
from sweeplab.records.runs import WHOLE_LOSSES, RunFolder, RunState
from sweeplab.study.choice import LEVEL_90
from sweeplab.study.problems import LENGTHS

if TYPE_CHECKING:
    from sweeplab.laws.assessment import Assessment, Forecast

WIDTH = 80  # columns of a terminal
FEWEST_SIZES = 3  # two points lie on every power law
AHEAD = 2.0  # a law's forecast is for this many times the largest size
CLOSE = 0.03  # a forecast is of use within this share of the loss


@dataclass(frozen=True)
class BestTrial:
    """The best trial of a study: its number and cell, its values of what varies, and its loss.

    `loss` is the `metric`, with a minus where the study maximizes it, as the mean over seeds. `half_width` is half the
    90% interval of a new seed's loss, by the spread of seeds that the choice of the trial uses; None where no trial has
    two seeds. `path` is the folder of its first run.
    """

    trial: int
    cell: str
    values: Mapping[str, Any]
    metric: str
    loss: float
    half_width: float | None
    path: Path

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return what holds 90% of the losses of a new seed."""
        if self.half_width is None:
            return None
        return self.loss - self.half_width, self.loss + self.half_width

    @property
    def run_id(self) -> str:
        """Return the id of its first run in MLflow; empty if it was not sent there."""
        return RunFolder(self.path).tracked_id

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, fit for JSON."""
        return {
            **vars(self),
            "interval": self.interval,
            "path": str(self.path),
            "run_id": self.run_id,
        }


@dataclass(frozen=True)
class Ahead:
    """A law's forecast at `AHEAD` times the largest size: the loss with its 90% interval, and the sizes fitted.

    `metric` is the column of the runs' losses that it is fitted to.
    """

    what: str
    loss: float
    low: float
    high: float
    smallest: float
    largest: float
    metric: str = "best_val_loss"


@dataclass(frozen=True)
class StudyFacts:
    """What the headline says of a study, as values.

    `total` is None where only time or FLOPs end the study. `cut` names the budget that ended it before all trials.
    `sizes` counts the different sizes of its cells, `begun` those with a trial that has a value, `done` those for which
    no trial waits. `why_no_law` says why `ahead` is None. `lowest_rate` is the lowest learning rate tried.
    """

    name: str
    state: StudyState
    counted: int
    total: int | None = None
    runs: int = 0
    training: int = 0
    enqueued: int = 0
    left: str = ""
    cut: str = ""
    seconds: float = 0.0
    best: BestTrial | None = None
    lowest_rate: float | None = None
    sizes: int = 1
    begun: int = 0
    done: int = 0
    ahead: Ahead | None = None
    why_no_law: str = ""
    findings: Sequence[Finding] = ()
    length: Mapping[str, int] = field(default_factory=dict)
    is_confirmed: bool = False
    lab: Sequence[str] = ()

    @property
    def is_over(self) -> bool:
        """Return whether the study has ended by itself."""
        return self.state.is_over

    def command(self, *words: str) -> str:
        """Return a command about the study."""
        first, *more = words
        return " ".join(["sweeplab", first, self.name, *more, *self.lab])


@dataclass(frozen=True)
class Headline:
    """The lines of a study, as texts; `check` and `next` may be empty."""

    study: str
    state: str
    best: str
    law: str
    check: str
    next: str

    @property
    def lines(self) -> list[str]:
        """Return the lines as a terminal of `WIDTH` columns shows them; a command is never cut."""
        texts = [
            (self.study, self.state),
            ("best", self.best),
            ("law", self.law),
            ("check", self.check),
        ]
        margin = max(6, len(self.study) + 1)
        lines = [_cut(f"{name:<{margin}} {text}") for name, text in texts if text]
        if self.next:
            lines.append(f"{'next':<{margin}} {self.next}")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def as_dict(self) -> dict[str, str]:
        """Return the texts by their names."""
        return asdict(self)


def headline(facts: StudyFacts) -> Headline:
    """Put a study into its five lines."""
    best = law = "none"
    if facts.best:
        best = _best(facts.best, facts.is_over and facts.state is not StudyState.STOPPED)
        law = _law(facts)
    elif facts.state is not StudyState.DIVERGED:
        best = "none yet"
        law = "not yet"
    return Headline(facts.name, _state(facts), best, law, _check(facts), _next(facts))


def _state(facts: StudyFacts) -> str:
    counts = several(facts.counted, "trial")
    if facts.total is not None:
        counts = f"{facts.counted} of {several(facts.total, 'trial')}"
    if facts.state is StudyState.DIVERGED:
        lowest = ""
        if facts.lowest_rate is not None:
            lowest = f"; lowest learning_rate tried {facts.lowest_rate:.3g}"
        return f"finished: {counts}, all diverged{lowest}"
    if facts.state is StudyState.STOPPED:
        missing = ""
        if facts.total is not None and facts.total > facts.counted:
            missing = f", {facts.total - facts.counted} unfinished"
        return f"stopped at its {facts.cut}: {counts}{missing}"
    if facts.is_over:
        runs = f" ({several(facts.runs, 'run')})" if facts.runs != facts.counted else ""
        return f"finished: {counts}{runs}"
    text = f"{facts.state}: {counts}"
    if facts.training:
        waiting = ""
        if facts.total is not None:
            waiting = f", {max(0, facts.total - facts.counted - facts.training)} waiting"
        text += f" ({facts.training} training{waiting})"
    if facts.enqueued:
        text += f", {facts.enqueued} enqueued"
    if facts.left:
        text += f", {facts.left} left"
    return text


def _best(best: BestTrial, is_over: bool) -> str:
    number, seed = f"{best.loss:#.3g}", "(one seed)"
    if best.half_width:
        digits = max(0, 1 - math.floor(math.log10(best.half_width)))
        number, seed = f"{best.loss:.{digits}f}", f"+-{best.half_width:.{digits}f} (seed)"
    values = " ".join(f"{name}={_short(value)}" for name, value in best.values.items())
    text = f"{best.metric} {number} {seed}   {values}".rstrip()
    if is_over:
        return text
    return f"so far {text}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return written(value)


def _law(facts: StudyFacts) -> str:
    ahead = facts.ahead
    if ahead:
        digits = max(1, -math.floor(math.log10(max(ahead.high - ahead.low, 1e-9) / 4)))
        loss, low, high = (
            f"{value:.{digits}f}" for value in (ahead.loss, ahead.low, ahead.high)
        )
        text = f"at {AHEAD:g}x {ahead.what}: {loss} ({low} to {high})"
        if ahead.metric in WHOLE_LOSSES.values():
            return f"{text} on the whole split"
        return f"{text}; {written(ahead.smallest)} to {written(ahead.largest)} fitted"
    if facts.sizes == 1:
        return "none: one size; three or more are needed"
    if facts.begun < FEWEST_SIZES:
        sizes = several(facts.begun, "size")
        return f"not yet: {sizes} with finished trials; three or more are needed"
    if not facts.is_over and facts.total is None:
        return f"not yet: {several(facts.begun, 'size')} with finished trials so far"
    if not facts.is_over:
        return f"not yet: {facts.done} of {several(facts.sizes, 'size')} done"
    return f"none: {facts.why_no_law}"


def _check(facts: StudyFacts) -> str:
    if not facts.is_over:
        return ""
    above = _finding(facts, "above n-grams")
    if above:
        return f"worse than n-grams ({above.limit:.2f}): train longer"
    edge = _finding(facts, "end of range")
    if edge:
        end = "lower" if edge.end == "min" else "upper"
        where = (
            f" in {len(edge.cells)} of {several(facts.sizes, 'size')}"
            if facts.sizes > 1
            else ""
        )
        return f"best {edge.name} is at the {end} end of its range{where}"
    return ""


def _next(facts: StudyFacts) -> str:
    match facts.state:
        case StudyState.FAILED:
            return facts.command("watch", "--log")
        case StudyState.RUNNING | StudyState.QUEUED | StudyState.STOPPING | StudyState.ENDING:
            return facts.command("watch")
    if facts.is_over:
        return _next_of_ended(facts)
    return facts.command("resume")


def _next_of_ended(facts: StudyFacts) -> str:
    """Return the first command that applies to a study whose budget is used up."""
    again = ("--name", f"{facts.name}-2")
    if facts.state is StudyState.STOPPED and facts.total is not None:
        times = facts.total / max(facts.counted, facts.total / 2)
        minutes = math.ceil(facts.seconds * times / 60)
        return facts.command("extend", "--time", f"{minutes}m")
    if facts.state is StudyState.DIVERGED:
        return facts.command(
            "run", *again, "--search", f"learning_rate{_lower(facts.lowest_rate)}"
        )
    above, edge = _finding(facts, "above n-grams"), _finding(facts, "end of range")
    if above and facts.length:
        lengths = [f"-o {name}={2 * value}" for name, value in facts.length.items()]
        return facts.command("run", *again, *lengths)
    if edge:
        return facts.command("extend", "--widen", edge.name)
    if facts.ahead and facts.ahead.high - facts.ahead.low > 2 * CLOSE * facts.ahead.loss:
        return facts.command("extend", "--next")
    if facts.is_confirmed:
        return ""
    return facts.command("confirm")


def _lower(tried: float | None) -> str:
    """Return a range of learning rates below all that diverged, within the suggested one where that is below them."""
    usual = TABLE["learning_rate"].suggested
    assert isinstance(usual, Mapping)
    low, high = float(usual["min"]), float(usual["max"])
    if tried is not None and tried <= high:
        low, high = tried / 100, tried
    return f"={rounded(low)}..{rounded(high)}"


def _finding(facts: StudyFacts, kind: str) -> Finding | None:
    return next((finding for finding in facts.findings if finding.kind == kind), None)


def _cut(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    return f"{line[: WIDTH - 2].rpartition(' ')[0].rstrip()} …"


def read_headline(folder: StudyFolder, left: str = "") -> Headline:
    """Read a study's headline; `left` is the time that it still takes, in words.

    Raises:
        BadInput: the study's storage or one of its files cannot be read.
    """
    return headline(with_law(read_facts(folder, left), lambda: _assessment(folder)))


def _assessment(folder: StudyFolder) -> tuple[Assessment, str]:
    from sweeplab.analysis.studies import read_studies, whole_losses
    from sweeplab.laws.assessment import assess, law_for

    studies = read_studies(folder.lab, [folder.name])
    points = studies.points()
    at = studies.specs[folder.name].objective.at
    return assess(points, law_for(points, AUTO)), whole_losses(studies.runs, at)[1]


def with_law(facts: StudyFacts, assess: Callable[[], tuple[Assessment, str]]) -> StudyFacts:
    """Add to the facts of a study what its law forecasts, or why there is no forecast, once the study is over.

    `assess` returns the law and the column of the runs' losses that it is fitted to.
    """
    if not (facts.is_over and facts.best and facts.begun >= FEWEST_SIZES):
        return facts
    try:
        assessment, metric = assess()
        forecast = forecast_at(assessment, AHEAD)
    except BadInput as refused:
        return replace(facts, why_no_law=refused.problems[0].what)
    scaled = _scaled(assessment)
    what = " and ".join(name for name in ("params", "tokens", "flops") if name in scaled)
    fitted = assessment.points.columns[assessment.law.columns[0]]
    ends = float(fitted.min()), float(fitted.max())
    return replace(
        facts, ahead=Ahead(what, forecast.loss, forecast.low, forecast.high, *ends, metric)
    )


def forecast_at(assessment: Assessment, times: float) -> Forecast:
    """Forecast the loss at a multiple of the largest of all sizes that vary in a law's table.

    Raises:
        BadInput: the law gives no forecast there.
    """
    from sweeplab.laws.assessment import predict

    columns, scaled = assessment.points.columns, _scaled(assessment)
    at = {name: float(columns[name].max()) for name in {*assessment.law.columns, *scaled}}
    return predict(assessment, at | {name: times * at[name] for name in scaled})


def _scaled(assessment: Assessment) -> list[str]:
    """List the sizes that are larger in a forecast: of a law of params the tokens too, where they vary."""
    varied = assessment.points.varied
    names = [name for name in assessment.law.columns if name in varied]
    if "params" in names and "tokens" in varied and "tokens" not in names:
        names.append("tokens")
    return names


def list_rows(folders: Sequence[StudyFolder]) -> list[dict[str, Any]]:
    """Return a row per study: its state, counts and best value, and the command to give next.

    `last` is when its last trial ended or started, in this machine's time, and `age` the seconds since.
    """
    rows = []
    for folder in folders:
        cells = count_trials(folder).values()
        last, age = max((each.last for each in cells), default=""), None
        if last:
            age = max(0.0, (datetime.now() - datetime.fromisoformat(last)).total_seconds())
        row: dict[str, Any] = {
            "name": folder.name,
            "state": StudyState.INTERRUPTED,
            "done": sum(each.counted for each in cells),
            "planned": None,
            "goal": None,
            "last": last or None,
            "age": age,
            "states": dict(sum((each.states for each in cells), Counter[str]())),
            "best_value": None,
            "folder": str(folder.path),
            "next": folder.command("doctor"),
        }
        with suppress(DamagedFile):  # `show` and `doctor` say what is wrong
            facts, metric = read_facts(folder), find_metric(folder)
            row |= {
                "state": facts.state,
                "planned": facts.total,
                "best_value": facts.best and facts.best.loss,
            }
            row["goal"] = (
                f"{'highest' if metric.startswith('-') else 'lowest'} {metric.removeprefix('-')}"
            )
            row["next"] = headline(facts).next
        rows.append(row)
    return rows


def read_facts(folder: StudyFolder, left: str = "") -> StudyFacts:
    """Read what the headline says of a study, but for its law.

    Raises:
        BadInput: the study's storage or one of its files cannot be read.
    """
    plan, budget = folder.read(folder.plan_file), read_budget(folder)
    ranked, limits, counts = StudyTrials(folder), cell_limits(folder), count_trials(folder)
    ended = [trial for trial in ranked.all if trial.ending]
    counted = sum(each.counted for each in counts.values())
    total = None
    if budget["trials_per_cell"] is not None:
        total = sum(limit or 0 for limit in limits.values())
    size_of = {cell["cell"]: (cell["n_params"], cell["train_tokens"]) for cell in plan["cells"]}
    begun = {
        size_of[trial.cell] for trial in ended if trial.has_value and trial.cell in size_of
    }
    # A size waits for trials while one of its cells does; where no number of trials ends a study, always.
    waiting = {
        size
        for cell, size in size_of.items()
        if cell not in counts
        or counts[cell].counted < (limits[cell] or math.inf)
        or counts[cell].states["enqueued"] > 0
    }
    best, length = read_best(ranked), {}
    if best:
        values = ranked.ranked()[0].start.values
        name = next(name for name in LENGTHS if getattr(values, name))
        length = {name: getattr(values, name)}
    return StudyFacts(
        name=folder.name,
        state=study_state(folder),
        counted=counted,
        total=total,
        runs=sum(len(trial.runs) for trial in ended),
        training=sum(trial.state is RunState.RUNNING for trial in ranked.all),
        left=left,
        cut=_cut_by(budget, folder.elapsed_seconds),
        enqueued=sum(each.states["enqueued"] for each in counts.values()),
        seconds=folder.elapsed_seconds,
        best=best,
        lowest_rate=min((trial.start.values.learning_rate for trial in ended), default=None),
        sizes=len({*size_of.values()}),
        begun=len(begun),
        done=len({*size_of.values()} - waiting),
        findings=find_limits(ranked),
        length=length,
        is_confirmed=bool(read_confirmed(folder)),
        lab=folder.command("").split()[2:],
    )


def read_best(ranked: StudyTrials) -> BestTrial | None:
    """Read a study's best trial; None before one has been trained to its end."""
    if not ranked.ranked():
        return None
    chosen, metric = ranked.find(), find_metric(ranked.folder)
    assert chosen.value is not None
    choice, half_width = ranked.choice(), None
    has_seeds = any(trial.has_value and len(trial.ends) > 1 for trial in ranked.all)
    if choice and choice.expected and has_seeds:
        half_width = LEVEL_90 * choice.expected.spread * abs(chosen.value)
    sizes = {name: getattr(chosen.start.values, name) for name in chosen.start.grid}
    values = sizes | dict(chosen.start.sampled)
    path = chosen.runs[0].path
    return BestTrial(chosen.number, chosen.cell, values, metric, chosen.value, half_width, path)


def _cut_by(budget: Mapping[str, Any], seconds: float) -> str:
    """Name the budget of time or FLOPs that may have ended a study before all of its trials; empty if none."""
    if budget["time"] is not None and seconds >= budget["time"]:
        return f"time budget of {duration(budget['time'])}"
    if budget.get("flops") is not None:
        return f"FLOPs budget of {budget['flops']:.3g}"
    return ""
