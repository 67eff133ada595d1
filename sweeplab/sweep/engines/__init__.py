"""Engines: they start a study's workers and report where each runs and how it ended."""

from __future__ import annotations

from importlib import import_module

from sweeplab.sweep.engines.base import WorkerEngine

# The class of each engine type. A study file names the type; study/spec.py lists the keys of each.
ENGINES = {"local": "local:LocalEngine", "slurm": "slurm:SlurmEngine", "ray": "ray:RayEngine"}


def engine_class(name: str) -> type[WorkerEngine]:
    """Return the class of an engine type; it is imported only here, as its libraries may not be installed."""
    module, _, class_name = ENGINES[name].partition(":")
    engine: type[WorkerEngine] = getattr(import_module(f"sweeplab.sweep.engines.{module}"), class_name)
    return engine
