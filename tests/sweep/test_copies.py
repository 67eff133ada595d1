"""Runs that a worker keeps on a disk of its own: what the lab has of them, whatever befalls the worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import CurvePoint, RunEnd, RunFolder, RunStart, RunState, TrialEnding
from sweeplab.sweep.engines.copies import REQUEST, SentRunFiles, answer

START = RunStart(
    key="all/1/0", cell="all", trial=1, seed=0, values=Hyperparameters(), facts={}, started=1000.5
)


class Worker:
    """A worker with a disk of its own; its requests are answered by whoever has the lab."""

    def __init__(self, place: Path, lab: StudyFolder) -> None:
        self.run, self._lab = StudyFolder(place, "s").run("all", 1, 0), lab
        self.files, self.n_asked = SentRunFiles(self._ask), 0

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        self.n_asked += 1
        said = json.loads(answer(self._lab, json.dumps({REQUEST: self.n_asked, **request})))
        if said["error"]:
            raise OSError(said["error"])
        assert said.pop(REQUEST) == self.n_asked
        return said

    def train(self, *iterations: int) -> None:
        self.run.write_start(START)
        self.run.append(point(each) for each in iterations)

    def send(self, promoted: int | None = None) -> bool:
        return self.files.send({self.run: promoted})


def point(iteration: int) -> CurvePoint:
    return CurvePoint(iteration=iteration, train_tokens=iteration, wall_seconds=1.0, val_loss=4.0)


def ended(state: RunState, iteration: int) -> RunEnd:
    return RunEnd(state=state, value=2.0, iteration=iteration, ending=TrialEnding(state, 2.0))


@pytest.fixture
def lab(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "lab", "s")


@pytest.fixture
def there(lab) -> RunFolder:
    return lab.run("all", 1, 0)


@pytest.fixture
def workers(tmp_path: Path, lab) -> tuple[Worker, Worker]:
    return Worker(tmp_path / "one", lab), Worker(tmp_path / "two", lab)


def test_what_is_new_is_sent_once_and_what_is_gone_is_removed(workers, there) -> None:
    one, two = workers
    one.train(0, 10)
    (one.run.path / "state-10.safetensors").write_bytes(b"ten")
    (one.run.path / "best").mkdir()
    (one.run.path / "best" / "model.json").write_bytes(b"{}")
    (one.run.path / "state-20.tmp").write_bytes(b"torn")
    one.send()
    assert not one.send() and one.n_asked == 1
    (one.run.path / "state-10.safetensors").rename(one.run.path / "state-20.safetensors")
    one.train(20)
    one.send()
    assert [each.iteration for each in there.points()] == [0, 10, 20]
    names = {each.relative_to(there.path).as_posix() for each in there.path.rglob("*") if each.is_file()}
    assert names == {"run.json", "points.jsonl", "best/model.json", "state-20.safetensors"}
    two.files.fetch([])
    assert two.n_asked == 0
    two.files.fetch([two.run])
    assert two.run.points() == one.run.points() and not two.send()
    two.train(30)
    two.send()
    assert there.points_file.read_bytes() == two.run.points_file.read_bytes()
    two.files.forget([two.run])
    assert not two.run.path.exists() and there.has_started


def test_of_two_ends_the_first_holds_and_nothing_comes_after_it(workers, there) -> None:
    one, two = workers
    one.train(0)
    one.send()
    two.files.fetch([two.run])
    (two.run.path / "best").mkdir()
    (two.run.path / "best" / "model.json").write_bytes(b"{}")
    complete = two.run.write_end(ended(RunState.COMPLETE, 20))
    assert not two.send() and there.read_end() == complete
    one.train(10)  # it was stopped for longer than its lease
    one.run.write_end(ended(RunState.PRUNED, 10))
    assert one.send() and one.run.read_end() == complete == there.read_end()
    assert [each.iteration for each in there.points()] == [0] and there.checkpoint()


def test_a_promoted_run_goes_on_and_ends_again(workers, there) -> None:
    one, two = workers
    one.train(0, 10)
    one.run.write_end(ended(RunState.PRUNED, 10))
    one.send()
    two.files.fetch([two.run])
    assert two.run.take_back_end(10) is None
    two.train(20)
    two.send(promoted=10)
    assert there.read_end() is None and len(there.points()) == 3
    complete = two.run.write_end(ended(RunState.COMPLETE, 20), promoted=10)
    assert not two.send(promoted=10) and there.read_end() == complete


def test_a_disk_that_cannot_be_written_is_told_and_all_is_sent_again(workers, there, monkeypatch) -> None:
    one, _ = workers
    one.train(0)
    there.path.parent.mkdir(parents=True)
    there.path.write_bytes(b"")  # no folder
    with pytest.raises(OSError, match="exists"):
        one.send()
    there.path.unlink()
    one.send()
    assert len(there.points()) == 1


def test_a_request_that_failed_halfway_is_sent_again_and_adds_no_line_twice(lab, tmp_path: Path) -> None:
    own = StudyFolder(tmp_path / "one", "s")
    runs = [own.run("all", trial, 0) for trial in (1, 2)]
    kept, requests = [lab.run("all", trial, 0) for trial in (1, 2)], []

    def ask(request: dict[str, object]) -> dict[str, object]:
        requests.append(json.dumps({REQUEST: 1, **request}))
        said = json.loads(answer(lab, requests[-1]))
        if said["error"]:
            raise OSError(said["error"])
        return said

    files = SentRunFiles(ask)
    for run in runs:
        run.write_start(START)
        run.append([point(0), point(10)])
    kept[1].path.parent.mkdir(parents=True)
    kept[1].path.write_bytes(b"")  # no folder: the first run's files are written, the second's are not
    with pytest.raises(OSError, match="exists"):
        files.send(dict.fromkeys(runs))
    assert kept[0].points_file.read_bytes() == runs[0].points_file.read_bytes()
    kept[1].path.unlink()
    runs[0].append([point(20)])
    files.send(dict.fromkeys(runs))
    # A kill, or a full disk, tore what was written of the next request.
    runs[0].append([point(30), point(40)])
    whole = runs[0].points_file.read_bytes()
    with kept[0].points_file.open("ab") as file:
        file.write(whole[file.tell() : -7])
    files.send(dict.fromkeys(runs))
    assert not json.loads(answer(lab, requests[-1]))["error"]
    for own_run, there in zip(runs, kept, strict=True):
        assert there.points_file.read_bytes() == own_run.points_file.read_bytes()


def test_points_of_a_worker_that_has_lost_its_lease_keep_none_from_being_read(workers, there) -> None:
    one, two = workers
    one.train(0)
    one.send()
    two.files.fetch([two.run])
    one.run.append([CurvePoint(iteration=10, train_tokens=10, wall_seconds=999.5, val_loss=4.0)])
    one.send()
    two.train(10, 20)
    two.send()
    two.train(30)
    two.send()
    assert [each.iteration for each in there.points()] == [0, 10, 20, 30]


def test_only_files_of_runs_are_written(lab) -> None:
    for name in ("../../study.json", "/etc/passwd"):
        sent = {"run": ["all", 1, 0], "promoted": None, "files": {name: ""}, "removed": []}
        said = json.loads(answer(lab, json.dumps({REQUEST: 1, "sent": [sent]})))
        assert "is not inside a run's folder" in said["error"]
