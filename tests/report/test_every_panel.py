"""Every panel of every page, on studies that have hardly begun, ended badly, lack columns or share nothing.

A panel draws something, or says in one sentence why there is nothing; it never raises and never warns.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from analysis.planted_sweep import plant_sweep
from analysis.typed_runs import typed_runs
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pandas import DataFrame, concat
from report.scaling_page import report_of

from sweeplab.analysis import sweep
from sweeplab.analysis.table import CURVES
from sweeplab.analysis.trials import LOST, WORST_FIRST
from sweeplab.hyperparameters import TABLE
from sweeplab.report.page import page_trials
from sweeplab.report.panels.base import PAGES, PANELS, PanelSpec, make_panel, read_dashboard
from sweeplab.report.summary import SUMMARIES

KEY = ("study", "cell", "trial", "seed")
CELLS = {"planted": ((1, 32), (2, 32), (2, 64)), "other": ((3, 48), (4, 96))}
N_TRIALS, SEEDS = 12, 2
LOSSES = ("best_val_loss", "final_val_loss", "value")
SEARCHED = ("learning_rate", "weight_decay", "dropout", "activation")
SHOWN = {page: [*read_dashboard(page=page).panels] for page in PAGES}
# What no default dashboard shows stands on the first page that can.
NAMED = {spec.panel for panels in SHOWN.values() for spec in panels}
for name, kind in sorted(PANELS.items()):
    if name not in NAMED:
        SHOWN[next(page for page in PAGES if kind.source in PAGES[page])].append(
            PanelSpec(name)
        )


class Planted(NamedTuple):
    """A study: its size, a state a trial (repeated as needed), columns of one value, and columns without any."""

    cells: int = 2
    trials: int = N_TRIALS
    seeds: int = 1
    states: tuple[str, ...] = ("complete",)
    equal: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    evaluations: int = 3


@cache
def _whole(name):
    return plant_sweep(N_TRIALS, CELLS[name], SEEDS, name=name, key=len(name))


def runs_of(study, name):
    runs = _whole(name)
    cells = runs["cell"].unique()[: study.cells]
    chosen = (runs["trial"] < study.trials) & (runs["seed"] < study.seeds)
    runs = runs[runs["cell"].isin(cells) & chosen].reset_index(drop=True)
    trials = runs.groupby(["cell", "trial"], sort=False).ngroup()
    runs["state"] = [study.states[trial % len(study.states)] for trial in trials]
    runs.loc[runs["state"].isin([*LOST, "running", "waiting"]), list(LOSSES)] = np.nan
    for column in study.equal if len(runs) else ():
        runs[column] = runs[column].iloc[0]
    return typed_runs(runs.assign(**dict.fromkeys(study.missing)))


def studied(*studies):
    runs = concat(
        [runs_of(*each) for each in zip(studies, CELLS, strict=False)], ignore_index=True
    )
    rows = [
        (*run[1:4], at * 100, at * 12800, metric, 4.0 - at)
        for run in runs[[*KEY]].itertuples(index=False, name=None)
        for at in range(studies[0].evaluations)
        for metric in ("val_loss", "tokens_per_second")
    ]
    return report_of(runs, DataFrame(rows, columns=list(CURVES)).astype(CURVES))


def check(panel):
    figure = panel.figure()
    if panel.missing:
        assert figure is None and "\n" not in panel.missing, panel.title
    elif figure is not None:
        assert figure.data, panel.title
    else:
        assert len(panel.data) or panel.text, panel.title


# Hyperparameters are in every record.
MEASURED = [name for name in _whole("planted") if name not in (*KEY, "state", *TABLE)]
STATES = st.sampled_from([*WORST_FIRST, "complete", "complete", "pruned"])
STUDIES = st.builds(
    Planted,
    cells=st.integers(0, 3),
    trials=st.sampled_from([1, 2, 4, N_TRIALS]),
    seeds=st.integers(1, SEEDS),
    states=st.lists(STATES, min_size=1, max_size=7).map(tuple),
    equal=st.lists(st.sampled_from([*SEARCHED, *LOSSES]), max_size=4).map(tuple),
    missing=st.lists(st.sampled_from(MEASURED), max_size=3).map(tuple),
    evaluations=st.integers(0, 3),
)


@pytest.fixture(autouse=True, scope="module")
def few_repeats():
    """Refit and shuffle a few times only: it is not tested here how precise the numbers are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "N_SHUFFLES", 3)
        yield


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 12, phases=[Phase.explicit, Phase.generate])
@given(studies=st.lists(STUDIES, min_size=1, max_size=2))
@example(
    [Planted(cells=2, trials=6, states=("complete", "pruned"))]
)  # too few that ended for one of two scopes
@example([Planted(trials=2, states=("running",), evaluations=0)])
@example([Planted(cells=1, trials=4, states=("diverged",))])
@example([Planted(equal=SEARCHED + LOSSES)])
@example([Planted(trials=2, missing=tuple(MEASURED))])
@example([Planted(trials=2), Planted(trials=2, states=("failed", "complete"))])
def test_a_panel_draws_something_or_says_in_a_sentence_why_not(studies):
    report = studied(*studies)
    drawn = []
    # Other pages than the comparison are of one study.
    for page in ["compare"] if len(studies) > 1 else PAGES:
        names = {spec.panel for spec in drawn} if page == "compare" else set()
        specs = [spec for spec in SHOWN[page] if spec.panel not in names and spec not in drawn]
        drawn += specs
        panels = [make_panel(spec, report) for spec in specs]
        for panel in panels:
            check(panel)
        assert SUMMARIES[page](report, panels).study
    page_trials(report)
