"""A real Ray cluster on loopback: a head and nodes, each with one core to give away, and a token."""

import os
import re
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from importlib.util import find_spec

import psutil

from sweeplab.permissions import allow, place_of

IS_INSTALLED = find_spec("ray") is not None
PROGRAM = (sys.executable, "-m", "ray.scripts.scripts")
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
# As a user's shell has it: read when Ray is imported.
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a-word-that-only-the-tests-know-of",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "170",  # 30 are not enough on a busy machine
}


@contextmanager
def alone(*words, hidden=None, **environment):
    """Start a cluster of one node with one core to give away, from which a folder is hidden; yield its address.

    A variable of the environment that is None is not set.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not where --address=auto looks for a cluster.
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        words = (
            *words,
            "--head",
            f"--port={port}",
            f"--temp-dir={place}",
            "--include-dashboard=false",
        )
        words = (
            *words,
            "--num-cpus=1",
            f"--object-store-memory={SMALL['object_store_memory']}",
            "--block",
        )
        known = os.environ | SETTINGS | {"PYTHONUNBUFFERED": "1"} | environment
        known = {variable: value for variable, value in known.items() if value is not None}
        given = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "text": True,
            "env": known,
        }
        hide = (
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -t tmpfs none "$0" && exec "$@"',
            str(hidden),
        )
        start = (*PROGRAM, "start", *words)
        head = psutil.Popen([*(hide if hidden else ()), *start], **given)
        try:
            found = (re.search("--address='(.*)'", line) for line in head.stdout)
            address = next(each[1] for each in found if each)
            allow(place_of(address))
            yield address
        finally:
            for process in [*head.children(recursive=True), head]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            head.wait()


@contextmanager
def started(n_nodes):
    """Start a cluster whose head gives nothing away, so that each of its nodes may be lost."""
    os.environ |= SETTINGS
    from ray.cluster_utils import Cluster

    head = SMALL | {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(n_nodes):
            cluster.add_node(**SMALL)
        cluster.wait_for_nodes()
        allow(place_of(cluster.address))
        yield cluster
    finally:
        cluster.shutdown()
