"""A real Slurm cluster on loopback: munged, slurmctld and a slurmd for each of a few nodes, in a folder of its own.

`python tests/slurm_cluster.py [N]` starts one of N nodes, prints what to export, and ends it at Ctrl-C.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from terminal import captured, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
# Daemons are not on the path of those who are not root.
os.environ["PATH"] += ":/usr/sbin:/sbin"
IS_INSTALLED = all(map(shutil.which, PROGRAMS))
WHY_NOT = f"Slurm's programs are not installed: {', '.join(each for each in PROGRAMS if not shutil.which(each))}"
START_SECONDS = 60.0
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
InactiveLimit=0
KillWait=30
MinJobAge=300
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={slurmd_ports} CPUs={n_cpus} RealMemory=2000
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL State=UP MaxTime=INFINITE PriorityTier=9 PreemptMode=OFF
"""


@dataclass
class Cluster:
    """A running cluster: the environment in which its commands find it, and its daemons by name."""

    folder: Path
    environment: dict[str, str]
    nodes: list[str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ask(self, *words):
        """Return what one of Slurm's commands prints."""
        done = captured(words, env=os.environ | self.environment, check=True)
        return done.stdout.strip()

    def start_node(self, node, *before):
        """Start a node's daemon, `before` being what it is started by."""
        self._start(
            node, *before, "slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf")
        )

    def kill_node(self, node):
        """Kill a node: its daemon and all that runs there, at once."""
        jobs = self.ask("squeue", "--noheader", f"--nodelist={node}", "--Format=JobID").split()
        daemon = self.daemons.pop(node)
        daemon.kill()
        for step in psutil.process_iter(["cmdline"]):
            if any(
                f"slurmstepd: [{job}." in " ".join(step.info["cmdline"] or ()) for job in jobs
            ):
                for each in (step, *step.children(recursive=True)):
                    with suppress(psutil.Error):
                        each.kill()
        daemon.wait()

    def _start(self, name, *words):
        with (self.folder / f"{name}.said").open("ab") as said:
            self.daemons[name] = subprocess.Popen(
                words,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env=os.environ | self.environment,
            )

    def wait_until_up(self):
        """Wait until every node is there to take jobs."""
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends:
            with suppress(subprocess.CalledProcessError):
                states = self.ask(
                    "sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"
                ).split()
                if len(states) == len(self.nodes) and set(states) <= {
                    "idle",
                    "mixed",
                    "allocated",
                }:
                    return
            time.sleep(0.2)
        said = [
            f"{file.name}: {file.read_text(errors='replace')[-2000:]}"
            for file in self.folder.glob("*.log")
        ]
        raise TimeoutError("\n".join(said))


@contextmanager
def started(n_nodes=3, n_cpus=1):
    """Start a cluster whose commands find it by this process' environment, and end it with all that it runs."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(
        folder,
        {"SLURM_CONF": str(folder / "slurm.conf")},
        [f"n{n + 1}" for n in range(n_nodes)],
    )
    before = os.environ.get("SLURM_CONF")
    try:
        _write_configuration(cluster, n_cpus)
        munged = ["munged", "--foreground", "--force", "--num-threads=2"]
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
        files |= {"log-file": "munged.log", "seed-file": "munge.seed"}
        cluster._start(
            "munged",
            *munged,
            *(f"--{option}={folder / file}" for option, file in files.items()),
        )
        wait_until((folder / "munge.socket").exists)
        cluster._start("slurmctld", "slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        for node in cluster.nodes:
            cluster.start_node(node)
        cluster.wait_until_up()
        os.environ |= cluster.environment
        yield cluster
    finally:
        if before is None:
            os.environ.pop("SLURM_CONF", None)
        else:
            os.environ["SLURM_CONF"] = before
        for node in [each for each in cluster.nodes if each in cluster.daemons]:
            cluster.kill_node(node)
        for daemon in cluster.daemons.values():
            daemon.kill()
            daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _write_configuration(cluster, n_cpus):
    folder, n_nodes = cluster.folder, len(cluster.nodes)
    for own in ("state", *(f"spool-{node}" for node in cluster.nodes)):
        (folder / own).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    first = _free_ports(n_nodes + 1)
    conf = CONF.format(
        folder=folder,
        user=getpass.getuser(),
        host=socket.gethostname(),
        ports=range(first, first + n_nodes + 1),
        nodes=f"n[1-{n_nodes}]",
        slurmd_ports=f"[{first + 1}-{first + n_nodes}]",
        n_cpus=n_cpus,
    )
    (folder / "slurm.conf").write_text(conf)


def _free_ports(count):
    """Return the first of so many ports in a row that nobody listens at."""
    for first in range(21000 + os.getpid() % 1000 * 10, 32000, count):
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as free:
                    free.bind(("127.0.0.1", port))
            return first
    raise OSError("no free ports")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        suppress(KeyboardInterrupt),
        started(int(sys.argv[1]) if len(sys.argv) > 1 else 3) as running,
    ):
        print(
            *(f"export {name}={value}" for name, value in running.environment.items()),
            sep="\n",
            flush=True,
        )
        signal.pause()
