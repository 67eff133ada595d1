"""Engines: what the study file says of them, and that each keeps what all promise."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from sweep.engine_contract import EngineContract

from sweeplab.errors import BadInput
from sweeplab.lab.storage import choose_storage
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.reading import read_study
from sweeplab.study.spec import Engine
from sweeplab.sweep.engines import LocalEngine


def engine_of(text, *overrides):
    study = "name: a\ndata: {corpus: python-docs, tokenizer: char}\n"
    spec = read_study(Path("study.yaml"), overrides, text=f"{study}engine: {text}\n")
    return spec.as_written()["engine"]


def test_one_file_has_the_keys_of_all_engines():
    text = "{type: slurm, workers: 32, gpus_per_worker: 1, time: 4h, partition: gpu, address: auto}"
    ours = engine_of(text)
    assert (ours["workers"], ours["time"], ours["partition"], ours["threads"]) == (
        32,
        14400,
        "gpu",
        "auto",
    )
    # The command line's engine takes the place of the file's.
    assert engine_of(text, "engine.type=local") == {**ours, "type": "local"}
    assert engine_of(text, "engine.type=ray") == {**ours, "type": "ray"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{type: slurm, partitoin: gpu}", "did you mean 'partition'?"),
        ("{type: slrum}", "did you mean 'slurm'?"),
        ("{type: slurm, gpus_per_worker: 0.5}", "allowed: whole GPUs"),
        ("{type: slurm, time: 1m}", "allowed: 2m or more"),
    ],
)
def test_what_an_engine_does_not_know_is_said_with_its_place(text, said):
    with pytest.raises(BadInput) as refused:
        engine_of(text)
    assert said in str(refused.value) and len(refused.value.problems) == 1


def test_a_file_of_trials_is_no_storage_for_several_machines(opened, tiny):
    folder, _ = opened(tiny())
    with pytest.raises(
        BadInput, match="SQLite file, which only one machine may open: continue with --eng"
    ):
        choose_storage(folder, is_shared=True)


def test_several_machines_need_a_server_that_all_reach(tmp_path):
    with pytest.raises(
        BadInput,
        match=r"serves one at most: sweeplab storage start .*--host 0.0.0.0, on a machine",
    ):
        choose_storage(StudyFolder(tmp_path, "new"), is_shared=True)


class TestLocal(EngineContract):
    @pytest.fixture
    def make_engine(self):
        return lambda folder, resources: LocalEngine(folder, Engine(), resources)

    @pytest.mark.slow
    def test_ctrl_c_at_any_moment_ends_no_worker(self, begin):
        """A terminal sends it to all processes: the supervisor hears it, and says what its workers are to do."""
        study = begin()
        study.start()
        ids = [int(place.process.split()[1]) for place in study.engine.places()]
        for _ in range(100):  # while they start, and after
            for each in ids:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGINT)
            study.hear(0.02)
        study.wait(study.is_over)
        assert study.ended() == {0: 0, 1: 0}, study.logs()
