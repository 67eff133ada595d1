"""Check Slurm and Ray: whether they answer, and whether nodes see the lab, reach servers and tell one time."""

from __future__ import annotations

import fcntl
import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from sweeplab.doctor.findings import Check, Verdict, named
from sweeplab.errors import BadInput
from sweeplab.formatting import duration, several
from sweeplab.lab.server import EVERYWHERE, Server
from sweeplab.lab.storage import storage_address
from sweeplab.records.folders import StudyFolder
from sweeplab.study.spec import Engine, StudySpec
from sweeplab.sweep.engines.private import why_public
from sweeplab.sweep.engines.ray import CLOSES, connect, exposure, run_on_nodes, shortage
from sweeplab.sweep.engines.slurm import SlurmEngine, SlurmFailure, ask, place_options
from sweeplab.tracking.connection import SERVERS, tracking_uri


class Needed(NamedTuple):
    """A server that nodes use; `verdict` and `cure` are for nodes that do not reach it."""

    what: str
    host: str
    port: int
    verdict: Verdict
    cure: str


# What is told where Ray's messages cannot be kept from standard output.
QUIET = "set RAY_SCHEDULER_EVENTS=0, so that Ray prints nothing between results"
# How long to wait for a free node to check from: a queue may have none for hours.
WAIT_SECONDS = 30
MOST_LOOKED_FROM = 8
# Smaller clock offsets do not matter.
OFFSET_SECONDS = 1.0
CONFIGURATION = Path("/etc/slurm/slurm.conf")
# bash opens connections without further programs; 127 is the code where it is missing.
REACH = "timeout 5 bash -c 'exec 3<>/dev/tcp/$0/$1' {} {} >/dev/null 2>&1; echo $?"
NO_BASH = "127"
SHARED = "give a lab on a disk that all nodes share: --lab, SWEEPLAB_LAB"


def slurm_check(engine: Engine | None = None) -> Iterator[Check]:
    """Yield a check of Slurm; nothing where it is not set up and no engine needs it."""
    if not engine and not (os.environ.get("SLURM_CONF") or CONFIGURATION.exists()):
        return
    cure = "ask the cluster's administrator, or use --engine local"
    try:
        if engine:
            SlurmEngine.check(engine)
        states = ask("sinfo", "--noheader", "--format=%D %T").splitlines()
        answer = f"{ask('sbatch', '--version')} answers; nodes: {', '.join(states) or 'none'}"
        yield Check("slurm", "sbatch, sinfo", "ok", answer)
    except (SlurmFailure, BadInput) as error:
        verdict: Verdict = "bad" if engine else "warn"
        yield Check("slurm", "sbatch, sinfo", verdict, str(error), cure)


def ray_check(engine: Engine) -> Iterator[Check]:
    """Yield a check of the Ray cluster."""
    try:
        ray = connect(engine.address)
        nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        cores, gpus = (sum(each.get(what, 0) for each in nodes) for what in ("CPU", "GPU"))
        answer = f"{ray.__version__} answers; nodes: {len(nodes)}, offering {cores:g} cores and {gpus:g} GPUs"
        yield Check("ray", engine.address, "ok", answer)
        if why := why_public():
            yield Check("ray", "private parts of Ray", "warn", f"not used: {why}", QUIET)
        if is_open := exposure(ray):
            yield Check("ray", "token", "warn", is_open, CLOSES)
        if waits := shortage(ray, engine):
            cure = "change engine.threads or engine.gpus_per_worker if the cluster adds no such node"
            yield Check("ray", "room for a worker", "warn", waits, cure)
    except BadInput as error:
        yield Check("ray", engine.address, "bad", str(error), "correct this, or use --engine local")


def _run_on_free_nodes(engine: Engine, script: str) -> list[str]:
    """Run a script on nodes that are free, and return what each prints."""
    if engine.type == "ray":
        return run_on_nodes(engine.address, script, WAIT_SECONDS)
    words = ("sinfo", "--noheader", "--states=idle,mixed", "--format=%D", *place_options(engine))
    count = max(1, min(MOST_LOOKED_FROM, sum(map(int, ask(*words).split()))))
    where = (f"--nodes={count}", f"--ntasks={count}", f"--immediate={WAIT_SECONDS}", "--chdir=/")
    return ask("srun", *where, *place_options(engine), "sh", "-c", script).splitlines()


def engine_checks(folder: StudyFolder, spec: StudySpec, is_stored: bool) -> Iterator[Check]:
    """Check the engine of a study, and what its nodes need; without `is_stored` its storage does not answer here."""
    checks = [*{"slurm": slurm_check, "ray": ray_check}[spec.engine.type](spec.engine)]
    yield from checks
    if all(each.verdict != "bad" for each in checks):
        yield from node_checks(folder.lab, spec.engine, [*_needed(folder, spec, is_stored)])


def _needed(folder: StudyFolder, spec: StudySpec, is_stored: bool) -> Iterator[Needed]:
    opened = "open port {} of {} in the firewalls between"
    with suppress(BadInput):  # said of the storage
        address = storage_address(folder)
        if is_stored and address:
            server = Server(folder.lab)
            again = f"{server.command('stop')}, then {server.command('start')} --host {EVERYWHERE[0]}"
            more = f"the lab's own server listens beyond this machine by: {again}"
            yield Needed("storage", *address, "bad", f"{opened.format(*reversed(address))}; {more}")
    with suppress(BadInput):  # said of tracking
        at = urlsplit(tracking_uri(folder.lab, spec.track.uri))
        if spec.engine.type == "slurm" and at.scheme in SERVERS and at.hostname:
            port = at.port or {"http": 80}.get(at.scheme, 443)
            cure = f"{opened.format(port, at.hostname)}: a study that runs with --detach sends its numbers from a node"
            yield Needed("tracking server", at.hostname, port, "warn", cure)


def node_checks(lab: Path, engine: Engine, needed: Sequence[Needed]) -> Iterator[Check]:
    """Check from the nodes that they see a file of the lab, reach the servers, and have the same time.

    Of Slurm's nodes also that they see the file's lock, which is held here; Ray's workers are told by pipes.
    """
    at = next(place for place in (lab, *lab.parents) if place.exists())
    if not os.access(at, os.W_OK):  # said of the lab
        return
    with tempfile.NamedTemporaryFile(dir=at, prefix=".seen-") as file:
        name = Path(file.name).name  # without spaces, as the lab's path may have
        file.write(f"{name}\n".encode())
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        seen = shlex.quote(file.name)
        look = [
            f"cat {seen} 2>/dev/null || echo -",
            f"flock -n -s {seen} true 2>/dev/null && echo free || echo held",
            *(REACH.format(shlex.quote(server.host), server.port) for server in needed),
        ]
        script = f"echo $(hostname) ${{SLURMD_NODENAME:-$(hostname)}} $(date +%s.%N) $({'; '.join(look)})"
        began = time.time()
        try:
            rows = [row.split() for row in _run_on_free_nodes(engine, script)]
        except (SlurmFailure, BadInput) as error:
            failure = f"could not check whether nodes see the lab: {error}"
            yield Check("disk", str(lab), "warn", failure, "run doctor again when a node is free")
            return
        ended = time.time()
    blind = [row[1] for row in rows if row[3] != name]
    has_locks = engine.type == "slurm"
    unlocked = [row[1] for row in rows if has_locks and row[3] == name and row[4] != "held"]
    if blind:
        yield Check("disk", str(lab), "bad", named("nodes that do not see the lab", blind), SHARED)
    elif unlocked:
        cure = "mount it with locks (Lustre: flock; NFS: version 4): without them workers see no supervisor and stop"
        yield Check("disk", str(lab), "bad", named("nodes that do not see its locks", unlocked), cure)
    else:
        what = "seen, with its locks," if has_locks else "seen"
        yield Check("disk", str(lab), "ok", f"shared: {what} from {several(len(rows), 'node')}")
    for column, server in enumerate(needed, 5):
        place = f"{server.host}:{server.port}"
        away = [row[1] for row in rows if row[column] not in ("0", NO_BASH)]
        if away:
            far = named(f"nodes that do not reach the {server.what}", away)
            yield Check("ports", place, server.verdict, far, server.cure)
        else:
            nodes = several(sum(row[column] == "0" for row in rows), "node")
            yield Check("ports", place, "ok", f"the {server.what} is reached from {nodes}")
    offsets = {row[1]: max(began - float(row[2]), float(row[2]) - ended, 0.0) for row in rows}
    apart = [f"{node} ({duration(offset)})" for node, offset in offsets.items() if offset > OFFSET_SECONDS]
    if apart:
        cure = "set them by chrony or ntpd: logs and MLflow use these clocks, leases the database's"
        yield Check("clocks", "nodes against here", "warn", named("clocks that differ", apart), cure)
    else:
        yield Check("clocks", "nodes against here", "ok", "none differs by more than the check took")
