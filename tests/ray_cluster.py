"""A real Ray cluster on loopback: a head and nodes, each with one core to give away, and a token."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from sweeplab.permissions import RAY, allow_address

IS_INSTALLED = find_spec("ray") is not None
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
# As a user's shell has it: read when Ray is imported.
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a-word-that-only-the-tests-know-of",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "170",  # 30 are not enough on a busy machine
}


class NodesApart:
    """Nodes with disks of their own: where this process has `hidden` each has an empty folder, with its cache."""

    def __init__(self, address: str, hidden: Path) -> None:
        self.address, self._hidden = address, hidden
        self._nodes: list[psutil.Popen] = []

    def add(self) -> None:
        """Start a node with one core to give away."""
        disk = shlex.quote(str(self._hidden))
        words = f"--num-cpus=1 --object-store-memory={SMALL['object_store_memory']} --block"
        ray = f"{shlex.quote(sys.executable)} -m ray.scripts.scripts start --address={self.address} {words}"
        script = f"mount -t tmpfs none {disk} && export SWEEPLAB_CACHE={disk}/cache && exec {ray}"
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        given |= {"env": os.environ | {"PYTHONUNBUFFERED": "1"}}
        node = psutil.Popen(["unshare", "--mount", "sh", "-c", script], **given)
        self._nodes.append(node)
        # Two that start at once may choose the same port.
        assert any("Ray runtime started" in line for line in node.stdout), "the node has not started"

    def lose(self, process: psutil.Process) -> None:
        """Kill all that runs on the node of a process."""
        above = {each.pid for each in process.parents()}
        (node,) = [each for each in self._nodes if each.pid in above]
        self._kill(node)
        self._nodes.remove(node)

    def close(self) -> None:
        """Kill all nodes."""
        for node in self._nodes:
            self._kill(node)

    @staticmethod
    def _kill(node: psutil.Popen) -> None:
        for each in [*node.children(recursive=True), node]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        node.wait()


@contextmanager
def alone(*words: str, **environment: str) -> Iterator[str]:
    """Start a cluster of one node with one core to give away; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # not where --address=auto looks for a cluster
        words = (*words, "--head", f"--port={port}", f"--temp-dir={place}", "--include-dashboard=false")
        words = (*words, "--num-cpus=1", f"--object-store-memory={SMALL['object_store_memory']}", "--block")
        known = os.environ | SETTINGS | {"PYTHONUNBUFFERED": "1"} | environment
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "env": known}
        head = psutil.Popen([sys.executable, "-m", "ray.scripts.scripts", "start", *words], **given)
        try:
            found = (re.search("--address='(.*)'", line) for line in head.stdout)
            address = next(each[1] for each in found if each)
            allow_address(RAY, address)
            yield address
        finally:
            NodesApart._kill(head)


@contextmanager
def started(n_nodes: int) -> Iterator[Any]:
    """Start a cluster whose head gives nothing away, so that each of its nodes may be lost."""
    os.environ |= SETTINGS
    from ray.cluster_utils import Cluster

    head = SMALL | {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(n_nodes):
            cluster.add_node(**SMALL)
        cluster.wait_for_nodes()
        allow_address(RAY, cluster.address)
        yield cluster
    finally:
        cluster.shutdown()
