"""The samplers and pruners, their options, and Optuna's objects for them.

Options are Optuna's own, with Optuna's names; Optuna's resource is an iteration here, and such options have a second
name that says so. Defaults follow from the budget and the evaluation interval: how many of a cell's trials are spread
evenly before a sampler models them, and at which iterations a halving pruner decides.

Optuna's objects are written as a study file has them, because every worker makes its own, and a study records them. An
object does not tell the arguments that it was made with: they are taken from its attributes of their names, and hold if
an object made of them has the same.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.hyperparameters import AUTO, is_number
from sweeplab.study.problems import Location, Problems, dotted, shown
from sweeplab.study.search import Choices, Divisors, Range, SearchSpec, stored_values
from sweeplab.study.spec import Algorithm, Pruner, Sampler, StudySpec

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

    from sweeplab.study.space import Space


# Our own option of halving pruners: pruned trials continue if budget is left when all trials have ended.
PROMOTE = "promote"
# The sampler of all cells together.
JOINT = "joint"

# The types in Optuna's annotations that YAML can express: Python's types, our words, and JSON Schema's.
WORDS = {
    "int": (int, "a whole number", "integer"),
    "float": (int | float, "a number", "number"),
    "bool": (bool, "true or false", "boolean"),
    "str": (str, "a string", "string"),
    "None": (type(None), "null", "null"),
}


@dataclass(frozen=True)
class Option:
    """One of Optuna's options: the names in its type annotation, and whether it is required."""

    words: frozenset[str]
    required: bool

    def accepts(self, value: Any) -> bool:
        """Return whether a value has one of the option's types."""
        if isinstance(value, bool):
            return "bool" in self.words
        return any(isinstance(value, WORDS[word][0]) for word in self.words if word in WORDS)

    @property
    def allowed(self) -> str:
        """Describe the values that the option accepts."""
        words = {word: text for word, (_, text, _) in WORDS.items()}
        return " or ".join(sorted(words.get(word, f"a {word}") for word in self.words))


@dataclass(frozen=True)
class AlgorithmRow:
    """A sampler or pruner: Optuna's class, our names for its options, and our defaults for them.

    A `sequence` takes its trials one after the other from points that its seed determines: all trials of a cell need
    the same seed. A pruner that `halves` decides at rungs, iterations that grow by a factor.
    """

    optuna: str
    meaning: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sequence: bool = False
    halves: bool = False

    @property
    def optuna_class(self) -> type[Any]:
        """Return Optuna's class."""
        import optuna

        if self.optuna == "JointSampler":
            from sweeplab.study.joint import JointSampler

            return JointSampler
        room = optuna.samplers if self.optuna.endswith("Sampler") else optuna.pruners
        return getattr(room, self.optuna)  # type: ignore[no-any-return]

    @property
    def optuna_defaults(self) -> dict[str, Any]:
        """Return Optuna's defaults of its arguments; `inspect.Parameter.empty` is that of a required one."""
        parameters = inspect.signature(self.optuna_class.__init__).parameters
        return {name: parameter.default for name, parameter in parameters.items()}

    def options(self) -> dict[str, Option]:
        """Return the options that a study file can set, by Optuna's names: those whose values YAML can express."""
        options = {}
        for name, parameter in inspect.signature(self.optuna_class.__init__).parameters.items():
            words = frozenset(re.findall(r"\w+", inspect.formatannotation(parameter.annotation)))
            if name == "wrapped_pruner":
                words = frozenset({"pruner", "None"})
            elif name == "seed" or not words <= WORDS.keys():
                continue
            required = parameter.default is parameter.empty and name not in self.defaults
            options[name] = Option(words, required)
        if self.halves:
            options[PROMOTE] = Option(frozenset({"bool"}), False)
        return options


# At most this share of a cell's trials is spread evenly, before the sampler models their results.
STARTUP_SHARE = 0.25
JOINT_STARTUP = 2
# Halving first decides when this share of a run's iterations is done, rounded up to an evaluation.
FIRST_RUNG_SHARE = 0.2

# Parameters that a sampler cannot model are drawn at random; Optuna would warn of it at every trial.
_QUIET = {"warn_independent_sampling": False}
_HYPERBAND = {"min_iters": "min_resource", "max_iters": "max_resource", "factor": "reduction_factor"}
_HALVING = {"min_iters": "min_resource", "factor": "reduction_factor"}
_HALVING |= {"early_stopping_rate": "min_early_stopping_rate"}
_TPE = "Tree-structured Parzen estimator: the best all-rounder"
_CMAES = "Covariance matrix adaptation: for many trials of numeric parameters"
_GRID = "Every combination of the choices, in random order"
_ASHA = "Successive halving: at growing iterations only the best 1/factor of the trials continue"
_PERCENTILE = "Ends a trial that is not within the best share of the others"
_PATIENT = "Applies another pruner only to a trial that has stopped improving"

SAMPLERS: dict[str, AlgorithmRow] = {
    AUTO: AlgorithmRow(
        "JointSampler", "joint where a study searches numbers in several cells, or has a prior; else tpe"
    ),
    JOINT: AlgorithmRow("JointSampler", "One Gaussian process over all cells: sizes learn from each other"),
    "tpe": AlgorithmRow("TPESampler", _TPE),
    "gp": AlgorithmRow("GPSampler", "Gaussian process: for few trials of few numeric parameters", {}, _QUIET),
    "cmaes": AlgorithmRow("CmaEsSampler", _CMAES, {}, _QUIET),
    "qmc": AlgorithmRow("QMCSampler", "Evenly spread points, whatever the results", {}, _QUIET, True),
    "random": AlgorithmRow("RandomSampler", "Independent random points"),
    "grid": AlgorithmRow("GridSampler", _GRID, sequence=True),
}
PRUNERS: dict[str, AlgorithmRow] = {
    "none": AlgorithmRow("NopPruner", "Every trial runs to its end"),
    "median": AlgorithmRow("MedianPruner", "Ends a trial that is worse than the median of the others"),
    "percentile": AlgorithmRow("PercentilePruner", _PERCENTILE),
    "asha": AlgorithmRow("SuccessiveHalvingPruner", _ASHA, _HALVING, halves=True),
    "hyperband": AlgorithmRow(
        "HyperbandPruner", "Several successive halvings with different first rungs", _HYPERBAND, halves=True
    ),
    "patient": AlgorithmRow(
        "PatientPruner", _PATIENT, {"wrapped": "wrapped_pruner"}, {"wrapped_pruner": None}
    ),
    "threshold": AlgorithmRow("ThresholdPruner", "Ends a trial whose value leaves an interval"),
}
# The largest value of an option; an early-stopping rate is lower, because it is an exponent.
LARGEST = 10**9
MOST = {"min_early_stopping_rate": 30}
OTHER_NAMES = {"patience": "patient"}


def read_algorithm(
    model: type[Algorithm], written: Any, path: Location, problems: Problems
) -> Algorithm | None:
    """Return the typed sampler or pruner for an entry of a study file, or None where it is invalid."""
    before, rows, place = len(problems.found), SAMPLERS if model is Sampler else PRUNERS, path
    if isinstance(written, str):
        written = {"type": written}
    elif isinstance(written, Mapping) and "type" in written:
        place = (*path, "type")
    else:
        allowed = f"{' | '.join(rows)}, or {{type: …}} with Optuna's options beside it"
        problems.add(path, f"{dotted(path)} is {shown(written)}", allowed)
        return None
    name = OTHER_NAMES.get(str(written["type"]), str(written["type"]))
    if name not in rows:
        problems.add(place, f"{dotted(path)} is {shown(name)}", " | ".join(rows), nearest(name, rows))
        return None
    options = {key: value for key, value in written.items() if key != "type"}
    read = model(type=name, options=_read_options(rows[name], options, path, problems))
    if len(problems.found) == before and name != "grid":
        try:
            _build(read)
        except (ValueError, TypeError) as error:
            problems.add(path, f"{dotted(path)}: Optuna refuses these options: {error}")
    return read if len(problems.found) == before else None


def _read_options(
    row: AlgorithmRow, written: Mapping[str, Any], path: Location, problems: Problems
) -> dict[str, Any]:
    known, options = row.options(), dict[str, Any]()
    for key, value in written.items():
        at, name = (*path, key), row.aliases.get(key, key)
        if name not in known:
            problems.unknown(at, [*known, *row.aliases], "option")
        elif name in options:
            problems.add(at, f"{dotted(at)} is another name of {name}, which is already given", at_key=True)
        elif "pruner" in known[name].words and value is not None:
            options[name] = read_algorithm(Pruner, value, at, problems)
        else:
            most = MOST.get(name, LARGEST)
            if not known[name].accepts(value):
                problems.add(at, f"{dotted(at)} is {shown(value)}", known[name].allowed)
            elif isinstance(value, int | float) and not -most <= value <= most:
                problems.add(at, f"{dotted(at)} is {shown(value)}", f"at most {most:,}")
            options[name] = value
    for name, option in known.items():
        if option.required and name not in options:
            problems.add(path, f"{dotted(path)} lacks the required option {name}", option.allowed)
    return options


def settled_sampler(spec: StudySpec) -> Sampler:
    """Return a study's sampler, chosen where it is `auto`."""
    if spec.sampler.type != AUTO:
        return spec.sampler
    has_cells = _n_points(spec) > 1 and any(map(_has_numbers, spec.search.values()))
    return Sampler(type=JOINT if has_cells or believed(spec) else "tpe", options=spec.sampler.options)


def believed(spec: StudySpec) -> dict[str, Range]:
    """Return the ranges with a prior, which the joint sampler alone takes."""
    entries = spec.search.items()
    return {name: entry for name, entry in entries if isinstance(entry, Range) and entry.prior is not None}


def _n_points(spec: StudySpec) -> int:
    return max(1, len(spec.cells)) * math.prod(map(len, spec.grid.values()))


def _has_numbers(entry: SearchSpec) -> bool:
    has_choices = isinstance(entry, Choices) and all(map(is_number, entry.values))
    return has_choices or isinstance(entry, Range | Divisors)


def n_startup_trials(spec: StudySpec, trials_per_cell: int | None) -> int:
    """Return how many trials of a cell are spread evenly before the sampler models any; 0 where it models none.

    The number that the study gives; else Optuna's default, but at most STARTUP_SHARE of the cell's trials, at least 1.
    All cells of a joint search together spread JOINT_STARTUP trials for each searched value, and as many more.
    """
    name, sampler = "n_startup_trials", settled_sampler(spec)
    if name in sampler.options:
        return int(sampler.options[name])
    if sampler.type == JOINT:
        shared = JOINT_STARTUP * (len(spec.search) + 1)
        return max(1, min(math.ceil(shared / _n_points(spec)), (trials_per_cell or shared) // 2))
    defaults = SAMPLERS[sampler.type].optuna_defaults
    most = int(defaults.get(name, 0))
    if trials_per_cell is None or not most:
        return most
    return max(1, min(most, math.floor(STARTUP_SHARE * trials_per_cell)))


def make_sampler(sampler: Sampler, seed: int, space: Space, cell_seed: int | None = None) -> BaseSampler:
    """Return Optuna's sampler for a cell.

    `seed` may differ from trial to trial; `cell_seed` (default: `seed`) is the same for all trials of a cell and
    is used by samplers that go through a sequence.

    Raises:
        ValueError: Optuna refuses an option, or a grid is infinite.
    """
    if SAMPLERS[sampler.type].sequence and cell_seed is not None:
        seed = cell_seed
    if sampler.type == "grid":
        return _grid_sampler(space, seed)
    if sampler.type == "tpe" and space.has_conditions:
        return _build(sampler, group=True, seed=seed)  # type: ignore[no-any-return]
    return _build(sampler, seed=seed)  # type: ignore[no-any-return]


def _grid_sampler(space: Space, seed: int) -> BaseSampler:
    from optuna.samplers import GridSampler

    class AskedGrid(GridSampler):
        """A grid for ask and tell: Optuna's own stops the loop of `optimize`, which is not used here."""

        def after_trial(self, *_: Any) -> None:
            pass

    if space.n_points is None:
        raise ValueError("a grid needs every parameter in every trial, with a step or as a list")
    return AskedGrid({name: list(stored_values(each)) for name, each in space.parameters.items()}, seed)


def settled_pruner(pruner: Pruner, eval_interval: int, max_iters: int) -> Pruner:
    """Return the pruner with its first rung set, which Optuna would otherwise guess from the first trials.

    By default Optuna takes a hundredth of a run (a single iteration for Hyperband); the first evaluation comes later
    and would then decide several rungs at once, on one value.
    """
    inner = {name: value for name, value in pruner.options.items() if isinstance(value, Pruner)}
    settled = {name: settled_pruner(value, eval_interval, max_iters) for name, value in inner.items()}
    options = pruner.options | settled
    if PRUNERS[pruner.type].halves:
        if options.get("min_resource", "auto") == "auto":
            share = math.ceil(FIRST_RUNG_SHARE * max_iters / eval_interval)
            options["min_resource"] = min(max_iters, share * eval_interval)
        if pruner.type == "hyperband" and options.get("max_resource", "auto") == "auto":
            options["max_resource"] = max_iters
    return Pruner(type=pruner.type, options=options)


def rungs(pruner: Pruner, eval_interval: int, max_iters: int) -> list[int]:
    """Return the iterations before the end at which a settled pruner halves, each one that of an evaluation.

    An evaluation occurs once per rung that it decides: twice where two rungs lie between it and the one before.
    """
    if not PRUNERS[pruner.type].halves:
        return [each for inner in _inside(pruner) for each in rungs(inner, eval_interval, max_iters)]
    factor, first = _halving(pruner)
    all_rungs = (first * factor**count for count in itertools.count())
    at_evaluations = (-(-rung // eval_interval) * eval_interval for rung in all_rungs)
    return [*itertools.takewhile(lambda at: at < max_iters, at_evaluations)]


def first_decision(pruner: Pruner) -> int | None:
    """Return the iteration before which a settled pruner never prunes; None where it has no such iteration."""
    if not PRUNERS[pruner.type].halves:
        return next(map(first_decision, _inside(pruner)), pruner.options.get("n_warmup_steps"))
    return _halving(pruner)[1]


def _halving(pruner: Pruner) -> tuple[int, int]:
    options = {"min_early_stopping_rate": 0, **PRUNERS[pruner.type].optuna_defaults, **pruner.options}
    factor = int(options["reduction_factor"])
    return factor, int(options["min_resource"]) * factor ** int(options["min_early_stopping_rate"])


def promotes(pruner: Pruner) -> bool:
    """Return whether pruned trials continue if budget is left when all others have ended."""
    return bool(pruner.options.get(PROMOTE)) or any(map(promotes, _inside(pruner)))


def _inside(pruner: Pruner) -> Iterator[Pruner]:
    return (value for value in pruner.options.values() if isinstance(value, Pruner))


def make_pruner(pruner: Pruner) -> BasePruner:
    """Return Optuna's pruner.

    Raises:
        ValueError: Optuna refuses an option.
    """
    return _build(pruner)  # type: ignore[no-any-return]


def _build(algorithm: Algorithm, **unasked: Any) -> Any:
    from optuna.exceptions import ExperimentalWarning

    row = (SAMPLERS if isinstance(algorithm, Sampler) else PRUNERS)[algorithm.type]
    arguments = {**unasked, **row.defaults, **algorithm.options}
    arguments.pop(PROMOTE, None)
    for name, value in arguments.items():
        if isinstance(value, Pruner):
            arguments[name] = make_pruner(value)
    return _made(row.optuna_class, arguments, ExperimentalWarning, FutureWarning)


_PLAIN = (bool, int, float, str, tuple, list, type(None))


def with_algorithms(spec: StudySpec, sampler: Any, pruner: Any) -> StudySpec:
    """Return a study with another sampler or pruner, if they are not None: as in a study file, or Optuna's.

    Raises:
        BadInput: there is no such sampler or pruner here, or it cannot be made again from what is known of it.
    """
    problems, changed = Problems(), dict[str, Any]()
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
    if isinstance(algorithm, partial | type):
        made = partial(algorithm)  # joins a partial's arguments
        kind, arguments = made.func, made.keywords
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
    held, kind = _held(algorithm), type(algorithm)
    parameters = inspect.signature(kind.__init__).parameters
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
    lost = ", ".join(name for name in held if not _alike(held[name], again.get(name)))
    if lost:
        what = f"this {kind.__name__} does not tell the argument behind its {lost}"
        raise BadInput(Problem(what, f"functools.partial(optuna.….{kind.__name__}, …) with its arguments"))
    return arguments


def _made(kind: type[Any], arguments: Mapping[str, Any], *ignored: type[Warning]) -> Any:
    """Make an object without warnings, or without those that are `ignored`."""
    with warnings.catch_warnings():
        for category in ignored or (Warning,):
            warnings.simplefilter("ignore", category)
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
