"""What a study's folder tells of it: each trial begun, evaluated and ended once, with several seeds too."""

from dataclasses import replace

import pytest
from tiny_study import on_report

from sweeplab.lab.events import EventStream, RunEvaluated, TrialClaimed, TrialEnded
from sweeplab.study.spec import Budget, Engine
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.progress import StudyProgress

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_trial_of_two_seeds_is_seen_to_end_and_runs_no_more(opened, dataset, tiny, tmp_path):
    spec = tiny(budget=Budget(trials_per_cell=2), seeds=[0, 1], engine=Engine(stack=2))
    folder, store = opened(spec)
    feed, heard = EventStream(folder), []
    on_report(store, lambda report: heard.extend(feed.new()))
    Loop(store, dataset, folder).run()
    heard += [*feed.new(), *feed.new()]
    for trial in (0, 1):
        own = [type(event) for event in heard if event.trial == trial]
        assert own[0] is TrialClaimed and own.count(TrialEnded) == 1 and own[-1] is TrialEnded
    progress = StudyProgress(make_plan(spec, tmp_path / "lab")[0], {})
    for event in heard:
        progress.take_in(event)
    assert not progress.live and progress.counted == 2


def test_a_run_that_goes_on_before_its_reopening_is_seen_lacks_no_point(opened, dataset, tiny):
    folder, store = opened(tiny(budget=Budget(trials_per_cell=1)))
    Loop(store, dataset, folder).run()
    heard = []
    feed = EventStream(
        folder, lambda run, points, end: heard.extend(point.iteration for point in points)
    )
    *_, ended = feed.new(latest_only=True)
    assert isinstance(ended, TrialEnded)
    (run,) = folder.runs()
    last = run.points()[-1]
    run.end_file.unlink()
    run.append([replace(last, iteration=last.iteration + 10)])
    assert feed.reopen(*ended.place)
    assert [(type(each), each.iteration) for each in feed.new()] == [
        (RunEvaluated, last.iteration + 10)
    ]
    assert heard == [point.iteration for point in run.points()]
