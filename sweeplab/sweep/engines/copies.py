"""Run folders of a worker whose machine does not see the lab: on its own disk, and sent to the lab before they count.

Such a worker writes its runs like any other. Before it reports a value or an ending to the study's storage, it sends
the files written since the last time and waits for the answer, so everything that the storage knows is in the lab even
if the machine is lost. Before it continues a run it fetches the run's files. Requests and answers are lines of JSON on
the worker's pipes. Of curves only the new lines are sent, with the offset at which they belong, so that a request that
failed halfway is sent again and adds no line twice; other files are sent whole.
"""

from __future__ import annotations

import json
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from sweeplab.files import opened, write_whole
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunEnd, RunFolder, append_lines
from sweeplab.train.checkpoint import remove_snapshots

LINES = ".jsonl"  # the suffix of files that grow by lines
REQUEST = "request"  # the key that marks a line of a worker's output as a request, not an event


class RunFiles:
    """The folders of runs on the lab's own disk: what a worker writes there is in the lab."""

    def fetch(self, runs: Iterable[RunFolder]) -> None:
        """Copy the lab's files of runs to this machine."""

    def send(self, runs: Mapping[RunFolder, int | None]) -> bool:
        """Send the files of runs to the lab; return whether the lab already had another end of one, now copied here.

        Each run comes with the iteration at which its trial was pruned, if it was promoted from there.

        Raises:
            OSError: the lab's disk cannot be written, or nobody answers.
        """
        return False

    def drop_snapshots(self, run: RunFolder) -> None:
        """Remove the snapshots of a run that another worker may have trained."""
        remove_snapshots(run.path)

    def forget(self, runs: Iterable[RunFolder]) -> None:
        """Forget runs that this worker does not hold any more."""


class SentRunFiles(RunFiles):
    """The folders of runs on the worker's own disk; `ask` sends a request and returns its answer."""

    def __init__(self, ask: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._ask = ask
        self._sent: dict[Path, tuple[int, int]] = {}  # size and time of each file as the lab has it
        self._dropped: list[RunFolder] = []

    def fetch(self, runs: Iterable[RunFolder]) -> None:
        """Replace the local files of runs by the lab's."""
        runs = [*runs]
        if not runs:  # a worker that waits for trials calls this twice a second
            return
        self.forget(runs)
        self._put(runs, self._ask({"wanted": [_place(run) for run in runs]}))

    def send(self, runs: Mapping[RunFolder, int | None]) -> bool:
        """Send the files of runs written since the last time, and wait until they are in the lab."""
        sent, known, gone = [], dict[Path, tuple[int, int]](), list[Path]()
        for run, promoted in runs.items():
            files, starts = dict[str, str](), dict[str, int]()
            for file in sorted(run.path.rglob("*")):
                if file.suffix == ".tmp" or not file.is_file():
                    continue
                with suppress(FileNotFoundError):  # a snapshot that a later one replaces
                    state, before = file.stat(), self._sent.get(file, (0, 0))
                    if before != (state.st_size, state.st_mtime_ns):
                        start = before[0] if file.suffix == LINES else 0
                        content = file.read_bytes()[start : state.st_size]
                        name = file.relative_to(run.path).as_posix()
                        files[name], starts[name] = b64encode(content).decode(), start
                        known[file] = state.st_size, state.st_mtime_ns
            lost = [file for file in self._sent if run.path in file.parents and not file.exists()]
            removed = [file.relative_to(run.path).as_posix() for file in lost]
            about = {"run": _place(run), "promoted": promoted, "removed": removed}
            sent.append({**about, "files": files, "starts": starts})
            gone += lost
        if not known and not gone and not self._dropped:
            return False
        dropped = [_place(run) for run in self._dropped]
        answer = self._ask({"sent": sent, "dropped": dropped})
        self._dropped.clear()
        self._sent = {file: each for file, each in self._sent.items() if file not in gone} | known
        return self._put([*runs], answer)

    def drop_snapshots(self, run: RunFolder) -> None:
        """Have a run's snapshots removed from the lab with the next request."""
        self._dropped.append(run)

    def forget(self, runs: Iterable[RunFolder]) -> None:
        """Remove the local folders of runs."""
        for run in runs:
            shutil.rmtree(run.path, ignore_errors=True)
            self._sent = {file: known for file, known in self._sent.items() if run.path not in file.parents}

    def _put(self, runs: Sequence[RunFolder], answer: dict[str, Any]) -> bool:
        """Write the files of an answer."""
        for run, files in zip(runs, answer["files"], strict=False):
            for name, content in files.items():
                file = run.path / name
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, b64decode(content))
                state = file.stat()
                self._sent[file] = state.st_size, state.st_mtime_ns
        return any(answer["files"])


def answer(folder: StudyFolder, line: str) -> str:
    """Carry out a worker's request in the lab, and return the answer as a line of JSON."""
    asked = json.loads(line)
    back: list[dict[str, str]] = []
    error = None
    try:
        back += [_read(folder.run(*place)) for place in asked.get("wanted", ())]
        back += [_write(folder, one) for one in asked.get("sent", ())]
        for place in asked.get("dropped", ()):
            remove_snapshots(folder.run(*place).path)
    except OSError as failed:
        error = failed.strerror or str(failed)
    return json.dumps({REQUEST: asked[REQUEST], "files": back, "error": error})


def _place(run: RunFolder) -> tuple[str, int, int]:
    return run.cell, run.trial, run.seed


def _read(run: RunFolder) -> dict[str, str]:
    """Return the lab's files of a run."""
    return {
        file.relative_to(run.path).as_posix(): b64encode(file.read_bytes()).decode()
        for file in sorted(run.path.rglob("*"))
        if file.is_file() and file.suffix != ".tmp"
    }


def _write(folder: StudyFolder, sent: dict[str, Any]) -> dict[str, str]:
    """Write the files that a worker sent of a run; return the run's earlier end, if the lab had another one.

    Files that name others, or say that the run has ended, are written last: a kill at any moment leaves the lab whole.
    """
    run, promoted = folder.run(*sent["run"]), sent["promoted"]
    run.path.mkdir(parents=True, exist_ok=True)
    if run.take_back_end(promoted):  # a worker that was stopped meanwhile has nothing to add
        return {run.end_file.name: b64encode(run.end_file.read_bytes()).decode()}
    back = {}
    for name in sorted(sent["files"], key=lambda name: (name == "end.json", name.endswith(".json"), name)):
        content, file = b64decode(sent["files"][name]), run.path / _checked(name)
        if file.suffix == LINES:
            _append(file, sent["starts"][name], content)
        elif file == run.end_file:
            end = RunEnd.from_json(json.loads(content))
            if run.write_end(end, promoted) is not end:
                back[name] = b64encode(file.read_bytes()).decode()
        elif file != run.start_file or not run.has_started:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content)
    for name in sent["removed"]:
        if name != run.end_file.name:  # it was taken back here
            (run.path / _checked(name)).unlink(missing_ok=True)
    return back


def _append(file: Path, start: int, content: bytes) -> None:
    """Append what belongs at the offset `start`, without what an earlier request has written there."""
    with opened(file, "ab+") as lines:
        lines.seek(start)
        there = lines.read()
        if content.startswith(there):
            lines.write(content[len(there) :])
            return
    # Another worker wrote there: readers tell the two workers' points apart.
    append_lines(file, content.decode().splitlines())


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise OSError(f"{name!r} is not inside a run's folder")
    return path
