"""The private parts of Ray that the engine uses, each with a public way behind the same call."""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from functools import cache
from typing import Any

from sweeplab.processes import switched_off

# Ask a cluster at an address without a token, in a process of its own: Ray reads the mode once. The second one joins
# the cluster, which takes seconds.
_ASK_OPENLY = "import sys, ray._raylet; ray._raylet.GcsClient(address=sys.argv[1])"
_JOIN_OPENLY = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False)"
_PARTS = {
    "ray._raylet": "GcsClient",
    "ray._private.worker": "print_to_stdstream",
    "ray.experimental.internal_kv": "_internal_kv_get",
}


def why_public() -> str:
    """Return why Ray's public ways are taken; empty where private ones are."""
    return switched_off() or _lacking()


@cache
def _lacking() -> str:
    lacking = []
    for module, name in _PARTS.items():
        with suppress(ImportError):
            if hasattr(importlib.import_module(module), name):
                continue
        lacking.append(f"{module}.{name}")
    if lacking:
        return f"this version of Ray has no {', '.join(lacking)}"
    return ""


def open_question() -> str:
    """Return a program that fails with an AuthenticationError if the cluster of its argument asks for a token."""
    if why_public():
        return _JOIN_OPENLY
    return _ASK_OPENLY


def keep_quiet(ray: Any) -> None:
    """Keep Ray from printing what happens to nodes on standard output, which commands use for their results.

    The public way is Ray's variable RAY_SCHEDULER_EVENTS, which has to be 0 before Ray is imported.
    """
    if not why_public():
        ray._private.worker.print_to_stdstream = lambda *_, **__: None


def adds_no_nodes() -> bool:
    """Return whether the cluster is known to add no nodes by itself; publicly that is not known.

    Such a cluster names the types of nodes after their ids. Before its first report it may be of either kind.
    """
    if why_public():
        return False
    from ray.experimental.internal_kv import _internal_kv_get

    report = json.loads(_internal_kv_get("__autoscaling_status") or "{}").get("autoscaler_report") or {}
    types = report.get("node_type_mapping") or {}
    return bool(types) and all(name == f"node_{node}" for node, name in types.items())
