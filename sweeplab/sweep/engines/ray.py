"""Workers on the nodes of a Ray cluster: one actor each, which runs the worker's process and passes on its output.

Ray places each actor on a node with enough free threads and GPU share; an actor without a place waits, and goes first
to a node that joins. A worker is a separate process, so that its libraries get their environment and signals reach it.
The actor holds the worker's input open: when the actor is gone, or this process, the worker saves its runs and exits.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from packaging.version import Version

from sweeplab.errors import BadInput, DamagedFile, Problem
from sweeplab.files import cache_folder, opened, write_whole
from sweeplab.hyperparameters import AUTO
from sweeplab.lab.events import StudyNotice, WorkerExited, read_event
from sweeplab.lab.listing import read_spec
from sweeplab.permissions import RAY, check_address
from sweeplab.processes import python, python_environment
from sweeplab.records.folders import StudyFolder
from sweeplab.study.inputs import cached_data
from sweeplab.study.spec import Engine
from sweeplab.sweep.engines.base import BEGIN, LEAVE, LEFT, UNSEEN, WorkerEngine, WorkerPlace
from sweeplab.sweep.engines.copies import REQUEST, answer

INSTALL = "pip install 'sweeplab[ray]'"
OLDEST = "2.59"  # the first that starts its clusters with a token by default
OPEN = "the Ray cluster asks for no token: whoever can reach it can run programs as its owner"
CLOSES = "start it again by RAY_AUTH_MODE=token ray start --head, with the token of `ray get-auth-token --generate`"
STARTS = "RAY_AUTH_MODE=token ray start --head starts one, and engine: {address: HOST:PORT} names another"
TOKEN = (
    "set RAY_AUTH_MODE=token, its token in RAY_AUTH_TOKEN or ~/.ray/auth_token, and use its version of Ray"
)
ANSWER_SECONDS = 5.0
# Asks a cluster without a token, in a process of its own: Ray reads the mode once.
ASK_OPENLY = "import sys, ray._raylet; ray._raylet.GcsClient(address=sys.argv[1])"
# How long killed processes may take to end before their actors are killed.
END_SECONDS = 5.0
# libpq's option for the certificate file by which it verifies a server.
CERTIFICATE = "sslrootcert"
# The exit code given to a worker that Ray could not start.
FAILED = 1


def connect(address: str) -> Any:
    """Return Ray's module, connected to a cluster.

    Raises:
        BadInput: Ray is not installed or too old, the address is Ray Client's, only a study file names it, or no
            cluster answers there.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise BadInput(f"the engine ray: Ray is not installed: {INSTALL}") from None
    if Version(ray.__version__) < Version(OLDEST):
        raise BadInput(f"the engine ray: Ray {ray.__version__} is older than {OLDEST}: {INSTALL}")
    if ray.is_initialized():
        return ray
    at, cure = os.environ.get("RAY_ADDRESS", address) if address == AUTO else address, STARTS
    if address != AUTO:
        check_address(RAY, address)
    if at.startswith("ray://"):
        allowed = "HOST:PORT of the cluster's head, auto"
        raise BadInput(Problem(f"engine.address {at}: the engine does not use Ray Client", allowed))
    with _restored() as said:
        try:
            host, _, port = at.rpartition(":")
            if port.isdecimal():  # Ray itself takes minutes to find out
                socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
                cure = TOKEN
            quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.CRITICAL}
            with chdir("/"):  # actors would look for modules in the working folder
                ray.init(address, namespace="sweeplab", **quiet)
        except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
            said.seek(0)
            told = said.read().decode(errors="replace").strip().rpartition("RPC error: ")
            why = told[2] if told[1] else str(error).strip().partition("\n")[0].partition(". ")[0]
            raise BadInput(f"the engine ray: no cluster answers at {at}: {why}; {cure}") from error
    # Ray prints what happens to nodes on standard output, which commands use for their results.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    return ray


def exposure(ray: Any) -> str:
    """Return that the cluster asks for no token; empty where it does.

    Raises:
        BadInput: it asks for none, and this process does: then no worker can report to it.
    """
    words = python("-c", ASK_OPENLY, ray.get_runtime_context().gcs_address)
    openly = python_environment(RAY_AUTH_MODE="disabled")
    asked = subprocess.run(words, env=openly, capture_output=True, text=True, check=False)
    if "AuthenticationError" in asked.stderr:
        return ""
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        raise BadInput(
            f"the engine ray: {OPEN}; with RAY_AUTH_MODE=token here no worker can report; {CLOSES}"
        )
    return OPEN


def shortage(ray: Any, spec: Engine) -> str:
    """Return that no node can ever hold a worker, and what the nodes have; empty where one can.

    Raises:
        BadInput: none can, and the cluster adds no nodes by itself.
    """
    from ray.experimental.internal_kv import _internal_kv_get

    asked = {"CPU": 1 if spec.threads == AUTO else float(spec.threads), "GPU": spec.gpus_per_worker}
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    if any(all(node.get(what, 0) >= count for what, count in asked.items()) for node in nodes):
        return ""
    has = Counter(", ".join(f"{what}: {node.get(what, 0):g}" for what in asked) for node in nodes)
    have = "; ".join(f"{count} with {what}" for what, count in has.items())
    takes = ", ".join(f"{what}: {count:g}" for what, count in asked.items())
    what = f"no node has what a worker takes, {takes} (nodes: {have})"
    # A cluster that adds no nodes names their types after their ids. Before its first report it may be of either kind.
    report = json.loads(_internal_kv_get("__autoscaling_status") or "{}").get("autoscaler_report") or {}
    types = report.get("node_type_mapping") or {}
    if types and all(name == f"node_{node}" for node, name in types.items()):
        raise BadInput(f"the engine ray: {what}; set engine.threads, engine.gpus_per_worker, or add a node")
    return f"{what}; workers wait for a node that the cluster adds"


def run_on_nodes(address: str, script: str, seconds: float) -> list[str]:
    """Run a shell script on every node of a cluster, and return what each prints.

    Raises:
        BadInput: the cluster does not answer, or not in time.
    """
    ray = connect(address)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task, asked = ray.remote(_run_script), []
    for node in (each["NodeID"] for each in ray.nodes() if each["Alive"]):
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        asked.append(task.options(num_cpus=0, scheduling_strategy=place).remote(script))
    try:
        return [str(each) for each in ray.get(asked, timeout=seconds)]
    except ray.exceptions.RayError as error:
        raise BadInput(f"the engine ray: nodes do not answer: {type(error).__name__}") from error


def _run_script(script: str) -> str:
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False).stdout


@contextmanager
def _restored() -> Iterator[IO[bytes]]:
    """Undo what Ray does to this process (signal handlers, lines on standard error); yield the file of those lines."""
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        error = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(error, 2)
            os.close(error)
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers.items():
                    signal.signal(number, handler)


class _Host:
    """The actor: it starts a worker on its node, passes on the worker's output, and ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._is_over, self._turn = False, threading.Lock()
        self._lab, self._n_logged = "", 0

    def node(self) -> str:
        """Return the name of the node."""
        return socket.gethostname()

    def sees(self, file: str, said: str) -> bool:
        """Return whether a file is on the node and has this content."""
        try:
            return Path(file).read_text(encoding="utf-8") == said
        except OSError:
            return False

    def lacks(self, names: Sequence[str]) -> list[str]:
        """Return which files the cache of the node lacks."""
        return [name for name in names if not (cache_folder() / name).exists()]

    def make_lab(self) -> str:
        """Create a private folder of this actor, and return it."""
        labs = cache_folder() / "labs"
        labs.mkdir(parents=True, exist_ok=True)
        for left in labs.iterdir():  # by actors that were killed
            if not Path("/proc", left.name.partition("-")[0]).exists():
                shutil.rmtree(left, ignore_errors=True)
        self._lab = tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=labs)
        return self._lab

    def put(self, study: str, files: Mapping[str, bytes], cached: Mapping[str, bytes]) -> None:
        """Write a study's `files` into that folder, and the `cached` ones into the cache."""
        for folder, found in ((StudyFolder(Path(self._lab), study).path, files), (cache_folder(), cached)):
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in found.items():
                write_whole(folder / name, content)

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], log: str
    ) -> Iterator[str | bytes | int]:
        """Start the worker; yield the lines that it prints, and then its exit code.

        Where it has a folder of its own, also yield what is new in its log, and remove the folder at the end.
        """
        with self._turn:
            if self._is_over:
                yield 0
                return
            with opened(Path(log), "ab") as file:
                process = self._process = subprocess.Popen(
                    python(*words),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    text=True,
                    env={**os.environ, **environment},
                )
        assert process.stdout
        self.answer(BEGIN)
        for line in process.stdout:
            yield from self._new_lines(log)
            yield line
        code = process.wait()
        yield from self._new_lines(log)
        if self._lab:
            shutil.rmtree(self._lab, ignore_errors=True)
        yield code

    def _new_lines(self, log: str) -> Iterator[bytes]:
        if self._lab and Path(log).stat().st_size > self._n_logged:
            with Path(log).open("rb") as file:
                file.seek(self._n_logged)
                lines = file.read()
            self._n_logged += len(lines)
            yield lines

    def answer(self, line: str) -> None:
        """Write a line to the worker's input."""
        assert self._process and self._process.stdin
        with suppress(OSError, ValueError):  # it has ended
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def end(self, at_once: bool) -> None:
        """Let the worker save its runs and exit, or kill it; one that has not begun does not begin."""
        with self._turn:
            self._is_over = True
            if self._process and at_once:
                self._process.kill()
            elif self._process:
                self.answer(LEAVE)


class _Actor:
    """An actor as this process knows it: `node` is the name of its node, None while it waits for one."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.is_ended = handle, False
        self.node: str | None = None
        self.thread: threading.Thread


class RayEngine(WorkerEngine):
    """Requests one actor per worker; as many run as the cluster has room for."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._ray = connect(self.spec.address)
        if is_open := exposure(self._ray):
            self.events.put(StudyNotice(message=f"{is_open}; {CLOSES}"))
        if waits := shortage(self._ray, self.spec):
            self.events.put(StudyNotice(message=waits))
        # Another machine may have a folder of the same name, or one left by an earlier run.
        self._seen = uuid.uuid4().hex
        write_whole(self.folder.seen_file, self._seen.encode())
        self._actors: dict[int, _Actor] = {}
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by the name of the node
        self._words: dict[int, str] = {}  # Ray's last message about a worker, as opposed to the worker's own

    @classmethod
    def check(cls, spec: Engine) -> None:
        """Connect to the cluster, and make sure that workers can report and that it has or may add a node for one."""
        ray = connect(spec.address)
        exposure(ray)
        shortage(ray, spec)

    def start(self, indices: Sequence[int], since: float = 0.0) -> None:
        """Request actors."""
        for index in indices:
            options = {
                "num_cpus": self.resources[index].threads,
                "num_gpus": self.spec.gpus_per_worker,
                "max_concurrency": 2,  # so that `end` is answered while `run` is under way
                "scheduling_strategy": "SPREAD",
            }
            actor = _Actor(self._ray.remote(_Host).options(**options).remote())
            self._actors[index] = actor
            actor.thread = threading.Thread(target=self._read, args=(index, actor), daemon=True)
            actor.thread.start()

    def _read(self, index: int, actor: _Actor) -> None:
        get, code = self._ray.get, FAILED
        try:
            actor.node = get(actor.handle.node.remote())
            words, log = self._words_for(index, actor)
            run = actor.handle.run.options(num_returns="streaming")
            for said in map(get, run.remote(words, self._environment(index), str(log))):
                if isinstance(said, int):
                    code = said
                elif isinstance(said, bytes):
                    with opened(self.log(index), "ab") as file:
                        file.write(said)
                elif said.startswith(f'{{"{REQUEST}"'):
                    actor.handle.answer.remote(f"{answer(self.folder, said)}\n")
                else:
                    with suppress(ValueError):  # a line that a kill has torn
                        self.events.put(read_event(said, index))
        except BadInput as error:
            code = FAILED if isinstance(error, DamagedFile) else UNSEEN
            self._words[index] = str(error)
        except self._ray.exceptions.RayError as error:
            code = self._code_of_loss(actor, error)
            is_raised = isinstance(error, self._ray.exceptions.RayTaskError)
            self._words[index] = str(error).splitlines()[-1] if is_raised else type(error).__name__
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(actor.handle)  # frees its place for another actor
        del self._actors[index]
        self.events.put(WorkerExited(worker=index, code=code))

    def _words_for(self, index: int, actor: _Actor) -> tuple[list[str], Path]:
        """Return the arguments that start a worker on the actor's node, and its log file there.

        If the node does not see the lab, the worker gets a folder of its own there with the study's files.

        Raises:
            BadInput: the study needs more files than these.
        """
        from sqlalchemy import make_url  # slow to import

        words, log, get, host = self.command(index), self.log(index), self._ray.get, actor.handle
        if get(host.sees.remote(str(self.folder.seen_file), self._seen)):
            return words, log
        spec = read_spec(self.folder, allow_plugins=True)
        if spec.plugins or spec.init_from:
            what = "the study's plugins" if spec.plugins else "the run that the study starts from"
            cure = "--lab or SWEEPLAB_LAB name a folder on a disk that all nodes share"
            raise BadInput(f"node {actor.node} does not see {self.folder.path}, nor {what}: {cure}")
        base = cached_data(self.folder, spec)
        names = [file.name for file in base.parent.glob(f"{base.name}.*") if file.suffix != ".tmp"]
        sent = (self.folder.canonical_file, self.folder.data_file, self.folder.plan_file)
        files = {file.name: file.read_bytes() for file in sent if file.exists()}
        lab = Path(get(host.make_lab.remote()))
        opened(log, "ab").close()  # the log's lines from the node are appended to it
        url = make_url(self.folder.storage_url)
        if certificate := url.query.get(CERTIFICATE):
            file = Path(str(certificate))
            files[file.name] = file.read_bytes()
            url = url.update_query_dict(
                {CERTIFICATE: str(StudyFolder(lab, self.folder.name).path / file.name)}
            )
        files[self.folder.storage_file.name] = url.render_as_string(hide_password=False).encode()
        with self._turns[str(actor.node)]:  # actors that start together on a node send it the tokens once
            cached = {name: (base.parent / name).read_bytes() for name in get(host.lacks.remote(names))}
            get(host.put.remote(self.folder.name, files, cached))
        here, there = str(self.folder.lab), str(lab)
        words = [there if each == here else each for each in words]
        return [*words[:2], "--apart", *words[2:]], lab / log.name

    def _code_of_loss(self, actor: _Actor, error: Exception) -> int:
        """Return the exit code of a worker whose actor is gone: 0 if we canceled the actor, LEFT if it was lost.

        A worker that dies has its own exit code; an actor dies with its node, or because somebody killed it.
        """
        known = self._ray.exceptions
        if actor.is_ended and actor.node is None:
            return 0
        is_lost = isinstance(error, known.ActorDiedError | known.ActorUnavailableError)
        return LEFT if is_lost and not getattr(error, "actor_init_failed", False) else FAILED

    def _environment(self, index: int) -> dict[str, str]:
        """Return the worker's additions to its actor's environment, in which Ray sets the GPU."""
        hidden = {} if self.spec.gpus_per_worker else {"CUDA_VISIBLE_DEVICES": ""}
        return {**self.environment(index, base={}), **hidden}

    def stop(self) -> None:
        """Let workers save their runs; cancel actors that wait for a node."""
        self._end(at_once=False)

    def kill(self) -> None:
        """Kill workers, and cancel actors that wait for a node."""
        self._end(at_once=True)

    def _end(self, at_once: bool) -> None:
        for actor in [*self._actors.values()]:
            actor.is_ended = not at_once
            if actor.node:
                actor.handle.end.remote(at_once)
            else:
                self._ray.kill(actor.handle)

    def places(self) -> list[WorkerPlace]:
        """Return the actors; those that wait for room on a node are queued."""
        found = []
        for index, actor in sorted(self._actors.copy().items()):
            name, log = f"actor {actor.handle._actor_id.hex()[:12]}", str(self.log(index))
            if actor.node:
                found.append(WorkerPlace(index, "running", actor.node, name, log))
            else:
                found.append(WorkerPlace(index, "queued", "", name, log, "waits for room on a node"))
        return found

    def last_words(self, index: int) -> str:
        """Return what Ray said of a worker's actor, else the last line of the worker's log."""
        return self._words.pop(index, "") or super().last_words(index)

    def close(self) -> None:
        """Kill the remaining actors, and disconnect from the cluster."""
        ends = time.monotonic() + END_SECONDS
        for actor in [*self._actors.values()]:
            actor.thread.join(max(0.0, ends - time.monotonic()))
        for actor in [*self._actors.values()]:
            self._ray.kill(actor.handle)
        self._ray.shutdown()
