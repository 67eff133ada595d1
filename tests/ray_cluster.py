"""A real Ray cluster on loopback: a head and nodes, each with one core to give away, and a token."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

IS_INSTALLED = find_spec("ray") is not None
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
# As a user's shell has it: read when Ray is imported.
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a-word-that-only-the-tests-know-of",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


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
        yield cluster
    finally:
        cluster.shutdown()
