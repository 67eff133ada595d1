"""Check Slurm and Ray: whether they answer, and whether their nodes see the lab, its locks and the same time."""

from __future__ import annotations

import fcntl
import os
import shlex
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sweeplab.doctor.check import Check, named
from sweeplab.errors import BadInput
from sweeplab.study.spec import Engine
from sweeplab.sweep.engines.ray import OPEN, connect, is_closed, run_on_nodes
from sweeplab.sweep.engines.slurm import SlurmEngine, SlurmFailure, ask, place_options

# How long to wait for a free node to check from: a queue may have none for hours.
WAIT_SECONDS = 30
MOST_LOOKED_FROM = 8
# Smaller clock offsets do not matter.
OFFSET_SECONDS = 1.0
CONFIGURATION = Path("/etc/slurm/slurm.conf")
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
        found = f"{ask('sbatch', '--version')} answers; nodes: {', '.join(states) or 'none'}"
        yield Check("slurm", "sbatch, sinfo", "ok", found)
    except (SlurmFailure, BadInput) as error:
        yield Check("slurm", "sbatch, sinfo", "bad" if engine else "warn", str(error), cure)


def ray_check(engine: Engine) -> Iterator[Check]:
    """Yield a check of the Ray cluster."""
    try:
        ray = connect(engine.address)
        nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        cores, gpus = (sum(each.get(what, 0) for each in nodes) for what in ("CPU", "GPU"))
        found = f"{ray.__version__} answers; nodes: {len(nodes)}, offering {cores:g} cores and {gpus:g} GPUs"
        yield Check(
            "ray", engine.address, "ok" if is_closed() else "warn", found, "" if is_closed() else OPEN
        )
    except BadInput as error:
        yield Check("ray", engine.address, "bad", str(error), "start the cluster, or use --engine local")


def _run_on_free_nodes(engine: Engine, script: str) -> list[str]:
    """Run a script on nodes that are free, and return what each prints."""
    if engine.type == "ray":
        return run_on_nodes(engine.address, script, WAIT_SECONDS)
    words = ("sinfo", "--noheader", "--states=idle,mixed", "--format=%D", *place_options(engine))
    count = max(1, min(MOST_LOOKED_FROM, sum(map(int, ask(*words).split()))))
    where = (f"--nodes={count}", f"--ntasks={count}", f"--immediate={WAIT_SECONDS}", "--chdir=/")
    return ask("srun", *where, *place_options(engine), "sh", "-c", script).splitlines()


def shared_checks(lab: Path, engine: Engine) -> Iterator[Check]:
    """Check from the nodes that they see a file of the lab and its lock, which is held here, and their clocks."""
    with tempfile.NamedTemporaryFile(dir=lab, prefix=".seen-") as file:
        file.write(f"{file.name}\n".encode())
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        place = shlex.quote(file.name)
        look = f"cat {place} 2>/dev/null || echo -; flock -n -s {place} true 2>/dev/null && echo free || echo held"
        script = f"echo $(hostname) ${{SLURMD_NODENAME:-$(hostname)}} $(date +%s.%N) $({look})"
        began = time.time()
        try:
            rows = [row.split() for row in _run_on_free_nodes(engine, script)]
        except (SlurmFailure, BadInput) as error:
            cure = "run doctor again when a node is free"
            yield Check(
                "disk",
                str(lab),
                "warn",
                f"could not check whether nodes see the lab: {error}",
                cure,
            )
            return
        ended = time.time()
    blind = [row[1] for row in rows if row[3] != file.name]
    locks = rows if engine.type == "slurm" else []  # Ray's workers are told by pipes
    unlocked = [row[1] for row in locks if row[3] == file.name and row[4] != "held"]
    if blind and engine.type == "ray":
        said = named("nodes that do not see the lab and send their runs through Ray", blind)
        yield Check("disk", str(lab), "ok", said)
    elif blind:
        yield Check("disk", str(lab), "bad", named("nodes that do not see the lab", blind), SHARED)
    elif unlocked:
        cure = "mount it with locks (Lustre: flock; NFS: version 4): without them workers see no supervisor and stop"
        yield Check("disk", str(lab), "bad", named("nodes that do not see its locks", unlocked), cure)
    else:
        yield Check("disk", str(lab), "ok", f"shared: seen, with its locks, from {len(rows)} nodes")
    offsets = {row[1]: max(began - float(row[2]), float(row[2]) - ended, 0.0) for row in rows}
    apart = [f"{node} ({offset:.0f} s)" for node, offset in offsets.items() if offset > OFFSET_SECONDS]
    if apart:
        cure = "set them by chrony or ntpd: logs and MLflow use these clocks, leases the database's"
        yield Check("clocks", "nodes against here", "warn", named("clocks that differ", apart), cure)
    else:
        yield Check("clocks", "nodes against here", "ok", "none differs by more than the check took")
