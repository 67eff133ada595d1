"""The Python API of studies: what its commands do, as methods."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, DamagedFile
from sweeplab.formatting import yaml_text
from sweeplab.lab.events import Callbacks, Event, OnEvaluation, OnTrialEnd, TrialEnded
from sweeplab.lab.studies import check_same_study
from sweeplab.records.folders import StudyFolder
from sweeplab.study.plan import Plan
from sweeplab.study.space import LONGEST_KEY
from sweeplab.sweep.planning import check_reach, make_plan
from sweeplab.sweep.progress import StudyProgress, ended_in_words

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.analysis.predicting import Prediction
    from sweeplab.lab.studies import Done
    from sweeplab.report.data import ReportData
    from sweeplab.report.headline import BestTrial, Headline
    from sweeplab.report.style import Figure
    from sweeplab.study.spec import StudySpec


# The first columns of a table: a run's name and how it ended.
_FIRST = ("cell", "trial", "seed", "state", "value")


class Results:
    """The results of a study so far, also while another process runs it.

    All methods raise BadInput if the study has not been run.
    """

    folder: StudyFolder

    def trials(self) -> pd.DataFrame:
        """Return a row per run: cell, trial, seed, state, value, the varied hyperparameters, then everything else."""
        from sweeplab.analysis.table import runs_table

        frame = runs_table(self.folder.lab, self.folder.name)
        study = self.folder.read(self.folder.canonical_file)
        changed = (name for cell in study.get("cells", ()) for name in cell)
        varied = [
            name
            for name in (*study["grid"], *changed, *study["search"])
            if name in frame and len({*map(str, frame[name])}) > 1
        ]
        return frame[[*dict.fromkeys([*_FIRST, *varied, *frame])]]

    def trials_dataframe(self) -> pd.DataFrame:
        """Return `trials`, by the name that it has in Optuna."""
        return self.trials()

    @property
    def best(self) -> BestTrial | None:
        """Return the best trial, which is that of the lowest expected value; None before one has ended."""
        from sweeplab.analysis.table import check_run
        from sweeplab.lab.listing import StudyTrials
        from sweeplab.report.headline import read_best

        check_run(self.folder)
        return read_best(StudyTrials(self.folder))

    @property
    def best_params(self) -> dict[str, Any]:
        """Return what the best trial has of all that varies in the study; empty before a trial has ended."""
        best = self.best
        return {} if best is None else dict(best.values)

    @property
    def best_value(self) -> float | None:
        """Return the best trial's value, the mean over its seeds; None before a trial has ended."""
        best = self.best
        return None if best is None else best.loss

    def plot(self, panel: str = "learning_curves", **options: Any) -> Figure:
        """Return a panel of a report as a figure, such as learning_curves, optimization_history, slice or edf.

        dashboards/README.md has all panels and their `options`, such as `x="n_layer"` for the panel loss.

        Raises:
            BadInput: there is no such panel or option, or the panel has nothing to draw yet.
        """
        from sweeplab.analysis.table import check_run
        from sweeplab.report.panels.base import make_panel, panel_spec

        asked = panel_spec(panel, options)
        check_run(self.folder)
        drawn = make_panel(asked, report_data(self.folder.lab, [self.folder.name]))
        figure = drawn.figure()
        if figure is None:
            raise BadInput(drawn.missing or f"{panel} is a table: trials() has it")
        return figure

    def curves(self, metrics: Sequence[str] = ("train_loss", "val_loss")) -> pd.DataFrame:
        """Return all curves: one row per point, with cell, trial, seed, iteration, train_tokens, metric, value.

        Other metrics are learning_rate, grad_norm and tokens_per_second.
        """
        from sweeplab.analysis.table import curves_table

        return curves_table(self.folder.lab, self.folder.name, metrics)

    def show(self) -> Headline:
        """Return what comes first of the study: its state, best trial, law, what limits it, and what to do next.

        Raises:
            BadInput: the study's storage or one of its files cannot be read.
        """
        from sweeplab.report.headline import read_headline

        return read_headline(self.folder)

    def _repr_html_(self) -> str:
        text = f"{self.folder.name}: not run yet"
        if self.folder.canonical_file.exists():
            text = str(self.show())
        return f"<pre>{escape(text)}</pre>"


@dataclass(frozen=True)
class StudyResult(Results):
    """A study after `run`; `status` is complete, interrupted or failed."""

    folder: StudyFolder
    status: str
    errors: list[str]
    report: Path | None


class Study(Results):
    """A study whose file was read and checked: run it, continue it, or look at its results."""

    def __init__(self, spec: StudySpec, lab: Path) -> None:
        self.spec, self.lab = spec, lab
        self.folder = StudyFolder(lab, spec.name)

    def __repr__(self) -> str:
        how = "not run yet"
        if self.folder.has_started:
            how = self.show().state
        return f"<study {self.folder.name} in {self.lab}: {how}>"

    def plan(self) -> Plan:
        """Return what running the study would do.

        Raises:
            BadInput: the study could not start.
        """
        plan = make_plan(self.spec, self.lab)[0]
        try:
            check_same_study(self.spec, self.folder, plan.data)
            check_reach(self.spec, self.lab)
        except BadInput as error:
            return replace(plan, warnings=[*plan.warnings, f"cannot be run: {error}"])
        return plan

    def run(
        self,
        listen: Callable[[Event, StudyProgress], None] | None = None,
        interrupts: Callable[[], int] = lambda: 0,
        *,
        progress: bool = True,
        sampler: Any = None,
        pruner: Any = None,
        on_evaluation: OnEvaluation | None = None,
        on_trial_end: OnTrialEnd | None = None,
        on_end: Callable[[StudyFolder, str], object] = lambda folder, status: None,
    ) -> StudyResult:
        """Run the study to the end of its budget, or continue it; write its report unless it is interrupted.

        Errors on the way are in the result's `errors`. So are exceptions of the callbacks, which change nothing else.
        Callbacks run in this process, between two polls of the workers: a slow one delays no training.

        `sampler` and `pruner` are as in a study file, or Optuna's: a class, an object, or a functools.partial of a
        class with its arguments. They are recorded by class and arguments, from which every worker makes its own; a
        seed among them is not used, because each trial has its own.

        `listen` gets the workers' events and a `Tick` several times a second; without it a line is printed for each
        trial that ends, and nothing with `progress=False`. `interrupts` returns how often the user has asked to stop.
        `on_end` gets the folder and the status once all trials have ended, before the report is written.

        Raises:
            BadInput: the study cannot start, or one of its records is damaged.
        """
        from sweeplab.study.plan import with_algorithms
        from sweeplab.sweep.supervisor import run_study  # SQLAlchemy with it: slow to import

        self.spec = with_algorithms(self.spec, sampler, pruner)

        if listen is None and progress:
            listen = _print_trial
        callbacks = Callbacks(on_evaluation, on_trial_end)

        def hear(event: Event, progress: StudyProgress) -> None:
            if listen:
                listen(event, progress)
            callbacks.hear(event)

        ending = run_study(self.spec, self.lab, hear, interrupts)
        on_end(ending.folder, ending.status)
        errors, status, report = list(ending.errors), ending.status, None
        if not interrupts() and any(ending.folder.runs()):
            try:
                report = write_report(ending.folder.main_page, self.lab, [ending.folder.name])
            except DamagedFile:  # a record of the study itself, which every command needs
                raise
            except (BadInput, OSError) as error:
                errors.append(f"no report: {error}")
        if errors and status == "complete":
            status = "failed"
        return StudyResult(ending.folder, status, [*errors, *callbacks.errors], report)

    def report(self, page: str = "scaling", single_file: bool = False) -> Path:
        """Write a page of the study, scaling or sweep, as `sweeplab report` does, and return its file."""
        return write_report(page, self.lab, [self.folder.name], single_file=single_file)

    def extend(
        self,
        trials_per_cell: int | None = None,
        time: str | None = None,
        widen: str | None = None,
        by_law: bool = False,
    ) -> Done:
        """Give the study more trials, time, range or sizes; `run` trains them.

        Budgets are totals, and may change while the study runs; `time` is a text such as 30m, or none. `widen` names a
        hyperparameter whose range grows where its best values lie at an end. `by_law` adds the sizes and seeds that
        tell most about the study's law for half the FLOPs spent.

        Raises:
            BadInput: nothing is given, a value is not a budget, the range cannot be widened, or no law can be fitted.
        """
        from sweeplab.analysis.next_study import grow_by_law
        from sweeplab.lab.listing import read_spec
        from sweeplab.sweep import steering

        if by_law:
            done = grow_by_law(self.folder)
        else:
            done = steering.extend(self.folder, trials_per_cell, time, widen)
        now = read_spec(self.folder)
        parts = {name: getattr(now, name) for name in ("budget", "search", "grid", "cells")}
        self.spec = self.spec.model_copy(update=parts)
        return done

    def pause(self) -> Done:
        """Pause the study at its workers' next evaluation; the process that runs it waits for `resume`.

        Raises:
            BadInput: nobody runs the study, or it is paused.
        """
        from sweeplab.sweep import steering

        return steering.pause(self.folder)

    def resume(self) -> StudyResult | Done:
        """Continue the study if it is paused, else run it to the end of its budget.

        Raises:
            BadInput: it is running and not paused, or cannot start.
        """
        from sweeplab.sweep import steering

        return steering.resume(self.folder) or self.run()

    def predict(self, **size: Any) -> Prediction:
        """Predict the best values and the loss of a size that was not tried: predict(n_layer=2, n_embd=96).

        Raises:
            BadInput: a hyperparameter of the grid is missing, or the study allows no such size.
        """
        from sweeplab.analysis.predicting import predict_size
        from sweeplab.analysis.studies import read_studies
        from sweeplab.laws.columns import PLAIN

        studies = read_studies(self.lab, [self.folder.name])
        asked = [f"{name}={yaml_text(value)}" for name, value in size.items()]
        return predict_size(self.folder, studies, studies.points(), asked, PLAIN)

    def enqueue(self, **values: Any) -> Done:
        """Enqueue trials with given values to run next, one in every cell that the values allow.

        Raises:
            BadInput: the study neither searches a name nor has it in its grid, or does not allow a value.
        """
        from sweeplab.sweep import steering

        return steering.enqueue(
            self.folder, [f"{name}={yaml_text(value)}" for name, value in values.items()]
        )

    def stop(self) -> None:
        """Make the study save its runs and end, whichever process runs it; `run` continues them.

        Call it from a callback, or from another thread or process.

        Raises:
            BadInput: no process runs the study.
        """
        from sweeplab.sweep import steering

        steering.stop(self.folder)


def _print_trial(event: Event, progress: StudyProgress) -> None:
    if isinstance(event, TrialEnded):
        print(ended_in_words(event, progress), flush=True)


def report_data(lab: Path, names: Sequence[str]) -> ReportData:
    """Return the data of reports about studies.

    Raises:
        BadInput: there is no such study, or studies cannot be compared.
    """
    from sweeplab.analysis.studies import read_studies
    from sweeplab.report.data import ReportData
    from sweeplab.tracking.connection import SERVERS

    studied = read_studies(lab, names)
    if len(names) > 1:
        studied.check_comparable()
    report = ReportData.of_study(
        studied.runs, lambda metric: studied.curves(lab, metric), studied, lab
    )
    pages = {}
    for name in names:
        tracked = StudyFolder(lab, name).read_tracked()
        if tracked and tracked.place.startswith(SERVERS):
            pages[name] = (
                f"{tracked.place.rstrip('/')}/#/experiments/{tracked.experiment_id}/runs/"
            )
    return replace(report, mlflow=pages)


def write_report(
    page: str,
    lab: Path,
    names: Sequence[str],
    folder: Path | None = None,
    dashboard: Path | None = None,
    single_file: bool = False,
) -> Path:
    """Write a page about studies from their records, and return it.

    `page` is scaling or sweep (one study), or compare (several). By default a study's pages go to its own folder, a
    comparison to `reports` in the lab. Pages share one plotly.js, in `reports` in the lab or in `folder`; a
    `single_file` embeds it.

    Raises:
        BadInput: the dashboard names something that does not exist, there is no such study, or studies cannot be
            compared.
    """
    from sweeplab.report.data import CURVES
    from sweeplab.report.writer import inputs_of, is_current, write_page

    one = StudyFolder(lab, names[0]) if len(names) == 1 else None
    joined = "+".join(names)  # no study's own name has a plus
    if len(joined) > LONGEST_KEY:
        joined = f"{len(names)}-{hashlib.sha256(joined.encode()).hexdigest()[:12]}"
    shared = None if single_file else folder or lab / "reports"
    folder = folder or (one.report if one else lab / "reports" / joined)
    inputs = inputs_of([StudyFolder(lab, name) for name in names], page, dashboard, single_file)
    if is_current(folder / f"{page}.html", inputs):
        return folder / f"{page}.html"
    report = report_data(lab, names)
    assert report.studied is not None
    if page == "scaling":  # its curves.csv holds all of them
        for metric in CURVES:
            report.curves(metric)
    return write_page(page, report, report.studied.runs, folder, dashboard, shared, inputs)
