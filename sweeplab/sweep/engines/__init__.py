"""Engines: what starts a study's workers, and tells where each runs and how it ended."""

from __future__ import annotations

from importlib import import_module

from sweeplab.sweep.engines.base import WorkerEngine

# Where the engine of each type is; a study's file names the type, and its keys stand in study/spec.py.
ENGINES = {"local": "local:LocalEngine", "slurm": "slurm:SlurmEngine", "ray": "ray:RayEngine"}


def engine_class(name: str) -> type[WorkerEngine]:
    """Return the engine of a type, imported only now: its libraries may not be installed."""
    module, _, own = ENGINES[name].partition(":")
    found: type[WorkerEngine] = getattr(import_module(f"sweeplab.sweep.engines.{module}"), own)
    return found
