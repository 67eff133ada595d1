"""Workers on the nodes of a Ray cluster: one actor each, which runs the worker's process.

Ray places each actor on a node with enough free threads and GPU share; an actor without a place waits, and goes first
to a node that joins. A worker is a separate process, so that its libraries get their environment and signals reach it.
The actor holds the worker's input open: when the actor is gone, or this process, the worker saves its runs and exits.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.files import read_bytes, read_own, write_whole
from sweeplab.hyperparameters import AUTO
from sweeplab.lab.events import StudyNotice, WorkerExited
from sweeplab.permissions import RAY, check_address, name_address
from sweeplab.processes import python, python_environment
from sweeplab.records.folders import WorkerPlace
from sweeplab.study.spec import Engine
from sweeplab.sweep.engines import LEFT, UNSEEN, WorkerEngine, begin

INSTALL = "pip install 'sweeplab[ray]'"
OPEN = "the Ray cluster asks for no token: whoever can reach it can run programs as its owner"
START = "export RAY_AUTH_MODE=token && ray get-auth-token --generate && ray start --head"
CLOSES = f"start it again by {START}"
STARTS = f"{START} starts one, and engine: {{address: HOST:PORT}} names another"
TOKEN = "set RAY_AUTH_MODE=token, its token in RAY_AUTH_TOKEN or ~/.ray/auth_token, and use its version of Ray"
# Joins a cluster without a token, in a process of its own: Ray reads the mode once.
_JOIN_OPENLY = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False)"
ANSWER_SECONDS = 5.0
# How long killed processes may take to end before their actors are killed.
END_SECONDS = 5.0
# The exit code given to a worker that Ray could not start.
FAILED = 1


def connect(address: str) -> Any:
    """Return Ray's module, connected to a cluster.

    Raises:
        BadInput: Ray is not installed, the address is Ray Client's, only a study file names it, or no
            cluster answers there.
    """
    # Else Ray prints what happens to nodes on standard output, which commands use for their results.
    os.environ.setdefault("RAY_SCHEDULER_EVENTS", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise _refused(f"Ray is not installed: {INSTALL}") from None
    if ray.is_initialized():
        return ray
    at = _running() if address == AUTO else address
    cure = STARTS
    check_address(RAY, at)
    if at.startswith("ray://"):
        allowed = "HOST:PORT of the cluster's head, auto"
        raise BadInput(
            Problem(f"engine.address {at}: the engine does not use Ray Client", allowed)
        )
    with _restored() as stderr:
        try:
            host, _, port = at.rpartition(":")
            if port.isdecimal():  # Ray itself takes minutes to find out
                socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
                cure = TOKEN
            quiet = {
                "log_to_driver": False,
                "configure_logging": False,
                "logging_level": logging.CRITICAL,
            }
            with chdir("/"):  # actors would look for modules in the working folder
                ray.init(at, namespace="sweeplab", **quiet)
        except (ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
            stderr.seek(0)
            _, marker, why = (
                stderr.read().decode(errors="replace").strip().rpartition("RPC error: ")
            )
            if not marker:
                why = str(error).strip().partition("\n")[0].partition(". ")[0]
            raise _refused(f"no cluster answers at {at}: {why}; {cure}") from error
    return ray


def _refused(why: str) -> BadInput:
    return BadInput(f"the engine ray: {why}")


def _running() -> str:
    """Return the address of the cluster that RAY_ADDRESS names, else of the one that this user has started here.

    `ray start` writes it into a folder in which other users may write. Ray itself would read any file there, and take
    the address from the arguments of any process that is called as a cluster's.

    Raises:
        BadInput: there is none, or another user has written it.
    """
    if os.environ.get("RAY_ADDRESS", AUTO) != AUTO:
        return os.environ["RAY_ADDRESS"]
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        at = read_own(Path(temporary) / "ray" / "ray_current_cluster").strip()
    except OSError as error:
        what = f"no cluster of yours is known here: {error.filename}: {error.strerror}"
        raise _refused(f"{what}; {STARTS}") from error
    name_address(at)
    return at


def exposure(ray: Any) -> str:
    """Return that the cluster asks for no token; empty where it does.

    Raises:
        BadInput: it asks for none, and this process does: then no worker can report to it.
    """
    words = python("-c", _JOIN_OPENLY, ray.get_runtime_context().gcs_address)
    openly = python_environment(RAY_AUTH_MODE="disabled")
    asked = subprocess.run(words, env=openly, capture_output=True, text=True, check=False)
    if "AuthenticationError" in asked.stderr:
        return ""
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        raise _refused(f"{OPEN}; with RAY_AUTH_MODE=token here no worker can report; {CLOSES}")
    return OPEN


@contextmanager
def _restored() -> Iterator[IO[bytes]]:
    """Undo what Ray does to this process (signal handlers, lines on standard error); yield the file of those lines."""
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    sys.stderr.flush()
    with tempfile.TemporaryFile() as lines:
        stderr = os.dup(2)
        os.dup2(lines.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers.items():
                    signal.signal(number, handler)


class _Host:
    """The actor: it starts a worker on its node, and ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._is_over = False
        self._turn = threading.Lock()

    def look(self, file: str, content: str) -> tuple[str, bool]:
        """Return the node's name, and whether a file is on it and has this content."""
        try:
            return socket.gethostname(), read_bytes(Path(file)) == content.encode()
        except OSError:
            return socket.gethostname(), False

    def run(self, words: Sequence[str], environment: Mapping[str, str], log: str) -> int:
        """Run the worker; return its exit code."""
        with self._turn:
            if self._is_over:
                return 0
            process = self._process = begin(words, {**os.environ, **environment}, Path(log))
        return process.wait()

    def end(self, at_once: bool) -> None:
        """Let the worker save its runs and exit, or kill it; one that has not begun does not begin."""
        with self._turn:
            self._is_over = True
            if self._process and at_once:
                self._process.kill()
            elif self._process and self._process.stdin:
                self._process.stdin.close()


@dataclass
class _Actor:
    """An actor as this process knows it, by the name that `ray list actors` shows.

    `node` is the name of its node, empty while it waits for one. `is_canceled` means that it was asked to end.
    """

    name: str
    handle: Any
    node: str = ""
    is_canceled: bool = False


class RayEngine(WorkerEngine):
    """Requests one actor per worker; as many run as the cluster has room for."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._ray = connect(self.spec.address)
        is_open = exposure(self._ray)
        if is_open:
            self.events.put(StudyNotice(message=f"{is_open}; {CLOSES}"))
        # Another machine may have a folder of the same name, or one left by an earlier run.
        self._seen = uuid.uuid4().hex
        write_whole(self.folder.seen_file, self._seen.encode())
        self._actors: dict[int, _Actor] = {}
        self._threads: list[threading.Thread] = []
        # Ray's last message about a worker, as opposed to the worker's own.
        self._words: dict[int, str] = {}

    @classmethod
    def check(cls, spec: Engine) -> None:
        """Connect to the cluster, and make sure that workers can report."""
        exposure(connect(spec.address))

    def start(self, indices: Sequence[int], since: float = 0.0) -> None:
        """Request actors."""
        for index in indices:
            name = f"{self.folder.name}-{index}-{uuid.uuid4().hex[:8]}"
            host = self._ray.remote(_Host).options(
                name=name,
                num_cpus=self.resources[index].threads,
                num_gpus=self.spec.gpus_per_worker,
                max_concurrency=2,  # so that `end` is answered while `run` is under way
                scheduling_strategy="SPREAD",
            )
            self._actors[index] = _Actor(name, host.remote())
            thread = threading.Thread(
                target=self._follow, args=(index, self._actors[index]), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _follow(self, index: int, actor: _Actor) -> None:
        get = self._ray.get
        code = FAILED
        known = self._ray.exceptions
        try:
            actor.node, is_seen = get(
                actor.handle.look.remote(str(self.folder.seen_file), self._seen)
            )
            if not is_seen:
                code = UNSEEN
                self._words[index] = self.unseen_from(actor.node)
                return
            environment = self.environment(index, base={})
            code = get(
                actor.handle.run.remote(self.command(index), environment, str(self.log(index)))
            )
        except known.RayTaskError as error:
            self._words[index] = str(error).splitlines()[-1]
        except known.RayError as error:
            # A worker that dies has its own exit code; an actor dies with its node, or because somebody killed it.
            self._words[index] = type(error).__name__
            is_lost = isinstance(error, known.ActorDiedError | known.ActorUnavailableError)
            if actor.is_canceled and not actor.node:
                code = 0
            elif is_lost and not getattr(error, "actor_init_failed", False):
                code = LEFT
        finally:
            with suppress(known.RayError):
                self._ray.kill(actor.handle)  # frees its place for another actor
            del self._actors[index]
            self.events.put(WorkerExited(worker=index, code=code))

    def stop(self) -> None:
        """Let workers save their runs; cancel actors that wait for a node."""
        self._end(at_once=False)

    def kill(self) -> None:
        """Kill workers, and cancel actors that wait for a node."""
        self._end(at_once=True)

    def _end(self, at_once: bool) -> None:
        for actor in [*self._actors.values()]:
            actor.is_canceled = not at_once
            if actor.node:
                actor.handle.end.remote(at_once)
            else:
                self._ray.kill(actor.handle)

    def places(self) -> list[WorkerPlace]:
        """Return the actors; those that wait for room on a node are queued."""
        places = []
        for index, actor in sorted(self._actors.copy().items()):
            name = f"actor {actor.name}"
            log = str(self.log(index))
            place = WorkerPlace(index, "queued", "", name, log, "waits for room on a node")
            if actor.node:
                place = WorkerPlace(index, "running", actor.node, name, log)
            places.append(place)
        return places

    def last_words(self, index: int) -> str:
        """Return what Ray said of a worker's actor, else the last line of the worker's log."""
        return self._words.pop(index, "") or super().last_words(index)

    def close(self) -> None:
        """Kill the remaining actors, and disconnect from the cluster."""
        ends = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        for actor in [*self._actors.values()]:
            self._ray.kill(actor.handle)
        self._ray.shutdown()
