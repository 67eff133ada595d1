"""The Python API of studies: what its commands do, as methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, DamagedFile
from sweeplab.formatting import yaml_text
from sweeplab.lab.events import Callbacks, Event, OnEvaluation, OnTrialEnd, TrialEnded
from sweeplab.lab.listing import StudyTrials, find_study, read_spec, study_source
from sweeplab.lab.studies import check_same_study
from sweeplab.permissions import name_address
from sweeplab.records.folders import StudyFolder, lab_folder
from sweeplab.runs import find_checkpoint, open_run
from sweeplab.study.file.reading import read_plain, read_study
from sweeplab.study.plan import Plan
from sweeplab.study.space import folder_name
from sweeplab.sweep.planning import check_reach, make_plan
from sweeplab.sweep.progress import StudyProgress, ended_in_words

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.analysis.predicting import Prediction
    from sweeplab.lab.studies import Done
    from sweeplab.report.data import ReportData
    from sweeplab.report.headline import BestTrial, Headline
    from sweeplab.report.style import Figure
    from sweeplab.runs.run import Run
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

        callbacks = Callbacks(on_evaluation, on_trial_end)

        def hear(event: Event, so_far: StudyProgress) -> None:
            if listen:
                listen(event, so_far)
            elif listen is None and progress and isinstance(event, TrialEnded):
                print(ended_in_words(event, so_far), flush=True)
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


def make_study(
    name: str, *, lab: str | Path | None = None, allow_plugins: bool = False, **parts: Any
) -> Study:
    """Make a study from values instead of a file; `.run()` runs it, or continues the one of this name in the lab.

    `parts` are the keys of a study file: data, fixed, grid, search, budget, seeds, …. Relative paths start at the
    working folder.

    >>> study = sweeplab.make_study("mine", data={"path": "notes.txt"}, grid={"n_embd": [16, 32]})

    Raises:
        BadInput: lists every problem in the values.
    """
    folder = lab_folder(lab)
    find_run = partial(find_checkpoint, lab=folder)
    return Study(read_plain({"name": name} | parts, [], allow_plugins, find_run), folder)


def load_study(
    path: str | Path,
    *,
    lab: str | Path | None = None,
    name: str | None = None,
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
) -> Study:
    """Read a study, given by its file or its name; `.run()` runs it.

    The name `small` means studies/small.yaml or small.yaml, else the lab's study as it was last run.

    `overrides` are written as on the command line, ["budget.time=5m"]. A file or tracking address in an override is
    trusted, while one that only the file names may be refused. The study's plugins, Python files, are imported only
    with `allow_plugins`.

    Raises:
        BadInput: the file is wrong; lists every problem in it.
    """
    folder, changes = lab_folder(lab), [*overrides]
    if name is not None:
        changes.append(f"--name {name}")
    find_run = partial(find_checkpoint, lab=folder)
    spec = read_study(study_source(path, folder), changes, allow_plugins, find_run)
    for place, _, address in spec.addresses:
        if spec.is_overridden(place):
            name_address(address)
    return Study(spec, folder)


def open_study(
    name: str, lab: str | Path | None = None, *, allow_plugins: bool = False
) -> Study:
    """Open a study of the lab as it was last run; `.run()` continues it.

    Raises:
        BadInput: there is no such study; offers the nearest name.
    """
    folder = find_study(lab, name)
    return Study(read_spec(folder, allow_plugins), folder.lab)


def load_run(run: str, *, lab: str | Path | None = None) -> Run:
    """Load a trained run, given by NAME (the best run of a study), NAME/CELL, NAME/CELL/TRIAL-SEED, an MLflow run id,
    or a folder with a checkpoint.

    Raises:
        BadInput: there is no such run (offers the nearest name), or it kept no checkpoint.
    """
    return open_run(run, lab_folder(lab))


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
    joined = folder_name("+".join(names))  # no study's own name has a plus
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
