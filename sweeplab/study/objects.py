"""Samplers and pruners given as Optuna's objects, written as a study file has them: a type and its options.

Every worker makes its own from what is written, and a study records it. An object does not tell the arguments that it
was made with: they are taken from its attributes of their names, and hold if an object made of them has the same.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from sweeplab.errors import BadInput, Problem
from sweeplab.study.algorithms import PRUNERS, SAMPLERS, read_algorithm
from sweeplab.study.problems import Problems, SourceMap
from sweeplab.study.spec import Pruner, Sampler, StudySpec

_PLAIN = (bool, int, float, str, tuple, list, type(None))


def with_algorithms(spec: StudySpec, sampler: Any, pruner: Any) -> StudySpec:
    """Return a study with another sampler or pruner, if they are not None: as in a study file, or Optuna's.

    Raises:
        BadInput: there is no such sampler or pruner here, or it cannot be made again from what is known of it.
    """
    problems, changed = Problems(SourceMap()), dict[str, Any]()
    for key, model, algorithm in (("sampler", Sampler, sampler), ("pruner", Pruner, pruner)):
        if algorithm is not None:
            changed[key] = read_algorithm(model, as_written(algorithm), (key,), problems)
    if problems.found:
        raise BadInput(*problems.found)
    return spec.model_copy(update=changed)


def as_written(algorithm: Any) -> Any:
    """Return a sampler or pruner as a study file has it; what is not Optuna's is returned as it is.

    It may be given as an object, as a class, or as a functools.partial of a class.

    Raises:
        BadInput: its class is none of those here, or its arguments are unknown.
    """
    kind: Any = type(algorithm)
    arguments: Mapping[str, Any] | None = None
    if isinstance(algorithm, partial):
        kind, arguments = algorithm.func, algorithm.keywords
    elif isinstance(algorithm, type):
        kind, arguments = algorithm, {}
    if not kind.__module__.startswith("optuna."):
        return algorithm
    types = {row.optuna: name for name, row in reversed({**SAMPLERS, **PRUNERS}.items())}
    types["JointSampler"] = "joint"
    if kind.__name__ not in types:
        known = ", ".join(sorted(name for name in types if name != "JointSampler"))
        raise BadInput(Problem(f"a {kind.__name__} cannot be made in each worker", known))
    if arguments is None:
        arguments = _arguments(algorithm)
    options = {name: as_written(value) for name, value in arguments.items()}
    return {"type": types[kind.__name__], **options}


def _arguments(algorithm: Any) -> dict[str, Any]:
    parameters, held, kind = (
        inspect.signature(type(algorithm).__init__).parameters,
        _held(algorithm),
        type(algorithm),
    )
    arguments = {
        name: held[name] for name, row in parameters.items() if row.default is row.empty and name in held
    }
    usual = dict.fromkeys(held, -math.inf) | dict.fromkeys(arguments)
    with suppress(TypeError, ValueError):  # one of several arguments may be required
        usual = _held(_made(kind, arguments))
    arguments |= {
        name: held[name]
        for name in parameters
        if name in held and not _alike(held[name], usual[name]) and held[name] != math.inf
    }
    again = _held(_made(kind, arguments))
    if lost := [name for name in held if not _alike(held[name], again.get(name))]:
        what = f"this {kind.__name__} does not tell the argument behind its {', '.join(lost)}"
        raise BadInput(Problem(what, f"functools.partial(optuna.….{kind.__name__}, …) with its arguments"))
    return arguments


def _made(kind: type[Any], arguments: Mapping[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**arguments)


def _held(algorithm: Any) -> dict[str, Any]:
    held = dict[str, Any]()
    for name, value in vars(algorithm).items():
        held |= value._asdict() if hasattr(value, "_asdict") else {name.lstrip("_"): value}
    held.pop("seed", None)
    return held


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, _PLAIN) or callable(one):
        return bool(one == other)
    return type(one) is type(other)
