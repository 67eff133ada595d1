"""What every engine promises, with real processes: a class that the tests of each engine inherit."""

import json
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty

import pytest

from sweeplab.lab.events import WorkerExited
from sweeplab.lab.studies import versions
from sweeplab.lab.studies import write_study as write_identity
from sweeplab.records.folders import StudyFolder
from sweeplab.study.inputs import describe_data
from sweeplab.study.plan import WorkerResources
from sweeplab.study.spec import Engine as EngineSpec
from sweeplab.sweep.trials.store import Store
from sweeplab.tracking.tracker import USE

N_WORKERS = 2
# Longer than a machine three times as slow takes to start workers and to let them train what they are asked to.
PATIENCE_SECONDS = 600.0


class Started:
    """A study that is run by this process, and an engine for it."""

    def __init__(self, folder, store, engine):
        self.folder, self.store, self.engine = folder, store, engine
        self.heard = []

    def start(self, *indices):
        self.engine.start(indices or range(N_WORKERS), self.store.commands.state.started)

    def wait(self, until):
        """Hear events until something is so."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while not until():
            assert time.monotonic() < ends, (
                f"{self.heard}, {self.engine.places()}, {self.logs()}"
            )
            self.hear(0.1)

    def hear(self, seconds):
        """Hear the next event, if one comes in time."""
        with suppress(Empty):
            self.heard.append(self.engine.events.get(timeout=seconds))

    def ended(self):
        """Return the codes of the workers that have ended."""
        return {each.worker: each.code for each in self.heard if isinstance(each, WorkerExited)}

    def is_over(self):
        return len(self.ended()) == N_WORKERS and not self.engine.places()

    def n_points(self):
        return sum(len(run.points()) for run in self.folder.runs())

    def logs(self):
        return [self.engine.last_words(index) for index in range(N_WORKERS)]


class EngineContract:
    """Subclasses have the fixture `engine`, which makes one of a folder and its resources."""

    # What else makes a study's storage one that the engine's workers reach.
    @pytest.fixture
    def make_engine(self):
        raise NotImplementedError

    @pytest.fixture
    def storage(self):
        """Let SWEEPLAB_STORAGE name one that the workers share, where that is not the study's own file."""

    @pytest.fixture
    def begin(self, make_engine, storage, tiny, dataset, tmp_path):
        from sweeplab.lab.storage import choose_storage

        holding, begun = [], []

        def begin(max_iters=20, **changed):
            values = {"max_iters": max_iters, "save_interval": max_iters, "patience": None}
            spec = tiny(values=values, engine=EngineSpec(stack=1), **changed)
            folder = StudyFolder(tmp_path / "lab", spec.name)
            folder.path.mkdir(parents=True)
            holding.append(folder.held("it is held"))
            holding[-1].__enter__()
            choose_storage(folder)
            store = Store.create(spec, dataset.sizes, folder.storage_url)
            write_identity(spec, folder, describe_data(spec, dataset))
            plan = {
                "workers": [{"threads": 1}] * N_WORKERS,
                "device": "cpu",
                "dtype": "float32",
                "cells": [],
            }
            folder.plan_file.write_text(json.dumps(plan))
            store.commands.add("start", {"versions": versions(dataset.token_digest)})
            store.commands.read()
            engine = make_engine(folder, [WorkerResources(threads=1)] * N_WORKERS)
            begun.append(Started(folder, store, engine))
            return begun[-1]

        yield begin
        for each in begun:
            each.engine.kill()
            each.engine.close()
            each.store.storage.engine.dispose()
        for each in holding:
            each.__exit__(None, None, None)

    @pytest.mark.slow
    def test_it_says_where_each_runs_and_who_is_stopped_puts_its_runs_away(self, begin):
        study = begin(max_iters=100_000)
        study.start()
        study.wait(lambda: study.n_points() > 4)
        # Each writes what it uses of its machine under its own number.
        study.wait(
            lambda: len([*study.folder.path.glob(f"{USE}/worker-[01].jsonl")]) == N_WORKERS
        )
        study.wait(
            lambda: [each.state for each in study.engine.places()] == ["running"] * N_WORKERS
        )
        for index, place in enumerate(study.engine.places()):
            assert (
                (place.worker, place.state) == (index, "running")
                and place.node
                and place.process
            )
            assert Path(place.log) == study.engine.log(index) and Path(place.log).exists()
            json.dumps(asdict(place))
        study.store.commands.set_phase("stop")
        study.engine.stop()
        study.wait(study.is_over)
        assert set(study.ended().values()) == {0}, study.logs()
        assert study.store.n_held() == 0 and study.store.n_running() > 0
        for run in study.folder.runs():
            assert run.read_end() is None and [*run.path.glob("state-*.safetensors")]

    @pytest.mark.slow
    def test_who_is_killed_ends_at_once_and_others_train_the_study_to_its_end(self, begin):
        study = begin(max_iters=200)
        study.start()
        study.wait(lambda: study.n_points() > 4)
        study.engine.kill()
        study.wait(study.is_over)
        assert 0 not in study.ended().values()
        assert study.store.n_running() > 0
        study.heard.clear()
        study.start()
        study.wait(study.is_over)
        assert study.ended() == {0: 0, 1: 0}, study.logs()
        assert study.store.tallies()[0].counted == 4 and study.store.n_held() == 0
        for run in study.folder.runs():
            iterations = [point.iteration for point in run.points()]
            assert run.read_end() and len(iterations) == len({*iterations})

    @pytest.mark.slow
    def test_an_end_has_its_code_and_last_words_and_one_is_replaced(self, begin):
        study = begin()
        whole = study.folder.canonical_file.read_text()
        study.folder.canonical_file.write_text("{")
        study.start(0)
        study.wait(lambda: 0 in study.ended())
        assert study.ended()[0] == 1 and "study.json" in study.engine.last_words(0), (
            study.logs()
        )
        study.folder.canonical_file.write_text(whole)
        study.heard.clear()
        study.start(0)
        study.wait(lambda: 0 in study.ended())
        assert study.ended() == {0: 0} and study.store.tallies()[0].counted == 4

    @pytest.mark.slow
    def test_one_that_has_not_begun_can_be_stopped_and_killed(self, begin):
        for end in ("stop", "kill"):
            study = begin() if end == "stop" else study  # noqa: F821
            if end == "stop":
                study.store.commands.set_phase("stop")
            study.heard.clear()
            study.start()
            getattr(study.engine, end)()
            study.wait(study.is_over)
        assert study.store.n_held() == 0
