"""A run on disk: run.json when it starts, points.jsonl while it trains, end.json when it ends; each as a typed record.

A worker writes the three files, and readers use the same classes. `end.json` decides how a run ended: it is written
before the end is reported to the storage, so if a worker is killed between the two, the next one reports it. The norms
of layers are in gradients.jsonl, if `track` asks for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from sweeplab.errors import DamagedFile
from sweeplab.files import GrowingFile, make_folder, opened, read_bytes, write_new, write_whole
from sweeplab.formatting import json_ready
from sweeplab.hyperparameters import Hyperparameters

T = TypeVar("T")
# Further measures in a run's end: its loss at the iteration that gives its trial its value, the same for all seeds; the
# losses on the whole validation split, with the weights of that evaluation; and its share of the steps of its stacks'
# slots, empty slots included: a study's iterations divided by these are the mean occupancy of its stacks.
END_MEASURES = (
    "valued_val_loss",
    "best_whole_val_loss",
    "best_whole_bits_per_byte",
    "final_whole_val_loss",
    "final_whole_bits_per_byte",
    "slot_steps",
)
# The losses on the whole validation split, by the evaluation whose weights they are of.
WHOLE_LOSSES = {"best": "best_whole_val_loss", "final": "final_whole_val_loss"}
# What each loss is measured on: the words of every command and page beside a loss.
MEASURED_ON = {
    "val_loss": "on the evaluation targets",
    "whole_val_loss": "on the whole validation split",
    "test_loss": "on the whole test split",
}
# The cure for files that no command can recreate.
FROM_A_COPY = "restore from a copy of the lab; MLflow still has what was sent"
# The error of a trial that does not fit into memory begins with this: it does not count against other trials.
DOES_NOT_FIT = "does not fit"


def present(record: Mapping[str, T | None]) -> dict[str, T]:
    """Return the entries of a record that are not None."""
    return {name: value for name, value in record.items() if value is not None}


class RunState(StrEnum):
    """The state of a run, and the outcome of a trial, in the order in which people read them."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    STOPPED = "stopped"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    FAILED = "failed"

    @property
    def is_finished(self) -> bool:
        """Return whether the run has ended."""
        return self not in (RunState.WAITING, RunState.RUNNING)

    @property
    def has_value(self) -> bool:
        """Return whether the run ended by itself, so that its value counts."""
        return self in (RunState.COMPLETE, RunState.STOPPED)

    @property
    def counts_towards_budget(self) -> bool:
        """Return whether a trial of this outcome uses up one of its cell's trials."""
        return self.is_finished and self is not RunState.FAILED


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """The start of a run (run.json): what it trains, written once, before its first point.

    `grid` names the values that its cell fixes, `sampled` are the searched values; `enqueued` are those of them that
    a person gave. `threads` is the number of threads of the process; `started` is in seconds since 1970.
    """

    study: str = ""
    key: str
    cell: str
    trial: int
    seed: int
    values: Hyperparameters
    grid: list[str] = field(default_factory=list)
    sampled: Mapping[str, Any] = field(default_factory=dict)
    enqueued: Mapping[str, Any] | None = None
    facts: Mapping[str, int | float] = field(default_factory=dict)
    threads: int = 1
    started: float

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Read the record; hyperparameters that it lacks get their defaults."""
        return typed(cls, {**record, "values": Hyperparameters.from_json(record["values"])})

    def as_json(self) -> dict[str, Any]:
        """Return the record as run.json has it, without `enqueued` if it is None."""
        return present(vars(self) | {"values": self.values.as_dict()})


# A number that an evaluation measures besides the loss, if the task or the model has it.
Measured = float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """One line of points.jsonl: a run's measures at an iteration; those not measured there are None.

    Losses are in its objective's unit. `slot_steps` is the run's share of its stacks' slots, summed
    over steps: in a step, slots divided by training runs. `wall_seconds` is the training time so far, including
    `eval_seconds`, the time of the evaluation. `extra` has what a plug-in's objective measures, which the file has
    beside the other numbers. A number that is not finite is written, and read, as null.
    """

    iteration: int
    wall_seconds: float
    train_loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    eval_seconds: float | None = None
    val_loss: float | None = None
    bits_per_byte: Measured = None
    exact_match: Measured = None
    accuracy: Measured = None
    f1: Measured = None
    eval_train_loss: Measured = None
    slot_steps: float | None = None
    train_tokens: int
    extra: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Read the point; numbers of other names are what the objective itself measures."""
        declared = cls.__dataclass_fields__
        extra = {
            name: value
            for name, value in record.items()
            if name not in declared and type(value) in (int, float)
        }
        return typed(cls, {**record, "extra": extra})

    def as_json(self) -> dict[str, Any]:
        """Return the point as plain data, without fields that were not measured."""
        record = present(asdict(self))
        record |= record.pop("extra")
        return record

    @property
    def measures(self) -> dict[str, float]:
        """Return what was measured besides the loss, by name."""
        return present({name: getattr(self, name) for name in MEASURES}) | dict(self.extra)


# The names of these numbers; annotations are texts here.
MEASURES = tuple(each.name for each in fields(CurvePoint) if each.type == "Measured")
# The same, at the evaluation with the lowest loss.
BEST_MEASURES = tuple(f"best_{name}" for name in MEASURES)


@dataclass(frozen=True)
class TrialEnding:
    """How a trial ended, recorded in each of its runs. `value` is the mean over seeds, None if there is none.

    `states` are the states of the runs by seed; `error` is a traceback if the trial failed.
    """

    outcome: RunState
    value: float | None
    states: Mapping[int, RunState] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended (end.json). `state` is the run's own; `value`, `error` and `ending` are its trial's.

    `best_val_loss` and `best`, the MEASURES that there are (`best_…` in the file), belong to the evaluation with the
    lowest loss. `best_whole_…` are measured on the whole validation split with the same weights, `final_whole_…` with
    the last ones; only those that the study's objective uses exist, and none for a run that did not end by itself.
    `valued_val_loss` is the loss at the iteration that gives the trial its value. `is_asked_for` means that a person
    stopped the run; `ended` is in seconds since 1970, `wall_seconds` is the training time. `grad_accum` is the final
    number of parts of a batch, if memory could not hold the parts that run.json has: the tokens of a step stay the
    same, but the last bits of its gradient, dropout masks and the balance of experts differ.
    """

    state: RunState
    stop_reason: str | None = None
    is_asked_for: bool = False
    ended: float = 0.0
    iteration: int = 0
    best_val_loss: float | None = None
    best: Mapping[str, float] = field(default_factory=dict)
    final_val_loss: float | None = None
    valued_val_loss: float | None = None
    best_whole_val_loss: float | None = None
    best_whole_bits_per_byte: float | None = None
    final_whole_val_loss: float | None = None
    final_whole_bits_per_byte: float | None = None
    slot_steps: float | None = None
    train_tokens: int = 0
    train_flops: float = 0.0
    wall_seconds: float = 0.0
    grad_accum: int | None = None
    value: float | None = None
    error: str | None = None
    ending: TrialEnding

    @property
    def whole_val_loss(self) -> float | None:
        """Return the loss on the whole validation split, with the weights that the study's objective uses."""
        if self.best_whole_val_loss is None:
            return self.final_whole_val_loss
        return self.best_whole_val_loss

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Read the record."""
        best = {}
        for name, value in record.items():
            if name not in cls.__dataclass_fields__ and name.startswith("best_"):
                best[name.removeprefix("best_")] = value
        return typed(cls, {**record, "best": best})

    def as_json(self) -> dict[str, Any]:
        """Return the record as end.json has it, without what was not measured or did not happen."""
        record = present(asdict(self))
        return record | {
            f"best_{name}": measure for name, measure in record.pop("best").items()
        }


def run_key(cell: str, trial: int, seed: int) -> str:
    """Return the name of a run inside its study."""
    return f"{cell}/{trial}/{seed}"


class Inside:
    """A descriptor that returns the path of a file or folder inside a run's or a study's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Any, owner: object = None) -> Path:
        return Path(folder.path, self._name)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, `CELL/TRIAL-SEED`."""

    path: Path

    start_file = Inside("run.json")
    points_file = Inside("points.jsonl")
    gradients_file = Inside("gradients.jsonl")
    end_file = Inside("end.json")
    test_file = Inside("test.json")  # its measures on the test split
    # Where tracking has the run: the place, its study's id and its own.
    tracked_file = Inside("tracked")
    shipped_file = Inside("shipped")  # the marker that tracking has the complete run

    @property
    def cell(self) -> str:
        """Return the key of the run's cell."""
        return self.path.parent.name

    @property
    def trial(self) -> int:
        """Return the number of the run's trial in its cell."""
        return int(self.path.name.rpartition("-")[0])

    @property
    def seed(self) -> int:
        """Return the run's seed."""
        return int(self.path.name.rpartition("-")[2])

    @property
    def tracked(self) -> str:
        """Return where tracking has the run; an empty text if it was not sent."""
        if not self.tracked_file.exists():
            return ""
        return read_bytes(self.tracked_file).decode("utf-8", "replace")

    @property
    def tracked_id(self) -> str:
        """Return the run's id in tracking; an empty text if it was not sent."""
        return self.tracked.rpartition(" ")[2]

    @property
    def has_started(self) -> bool:
        """Return whether the run's start is written."""
        return self.start_file.exists()

    @property
    def started(self) -> float:
        """Return when the run started, in seconds since 1970; for a damaged record, when that was written."""
        try:
            return float(json.loads(read_bytes(self.start_file))["started"])
        except (ValueError, KeyError, TypeError):
            return self.start_file.stat().st_mtime

    def write_start(self, start: RunStart) -> None:
        """Write the run's start, unless an earlier worker did."""
        make_folder(self.path)
        if not self.has_started:
            write_json(self.start_file, start.as_json())

    def read_start(self) -> RunStart:
        """Return the run's start.

        Raises:
            DamagedFile: run.json is gone or damaged.
        """
        cure = f"rm {self.start_file}, and run the study again"
        if self.end_file.exists():
            cure = FROM_A_COPY
        return read_json(self.start_file, cure, RunStart.from_json)

    def append(self, points: Iterable[CurvePoint]) -> None:
        """Append points to the curve."""
        append_lines(
            self.points_file, [json.dumps(json_ready(point.as_json())) for point in points]
        )

    def points(self) -> list[CurvePoint]:
        """Return the curve by iteration; if a run repeated an iteration after a kill, the first record counts."""
        points = {point.iteration: point for point in reversed(CurveReader(self).new_points())}
        return [points[iteration] for iteration in sorted(points)]

    def write_end(self, end: RunEnd, promoted: int | None = None) -> RunEnd:
        """Write the run's end unless there is one, and return the one that holds; nothing of the run is written later.

        A worker that was suspended until its lease expired may write it at the same time as its successor: the first
        end holds for both. If the trial was `promoted` from an iteration, such a worker may write the end with which
        the trial was pruned, which is no longer valid.
        """
        while not write_new(self.end_file, _json(end.as_json())):
            written = self.take_back_end(promoted)
            if written:
                return written
        return end

    def rewrite_end(self, end: RunEnd) -> None:
        """Replace the run's end by one with more measures, which tracking then lacks."""
        write_json(self.end_file, end.as_json())
        self.shipped_file.unlink(missing_ok=True)

    def read_end(self) -> RunEnd | None:
        """Return how the run ended, or None while it has not.

        Raises:
            DamagedFile: end.json is damaged.
        """
        if not self.end_file.exists():
            return None
        return read_json(self.end_file, FROM_A_COPY, RunEnd.from_json)

    def write_test(self, measures: Mapping[str, float]) -> None:
        """Write the run's measures on the whole test split; the loss is `test_loss`."""
        write_whole(self.test_file, json.dumps(measures).encode())

    def read_test(self) -> dict[str, float] | None:
        """Return the run's measures on the whole test split, or None while it is not scored.

        Raises:
            DamagedFile: test.json is damaged.
        """
        if not self.test_file.exists():
            return None
        cure = f"rm {self.test_file}, and confirm the study again"
        return read_json(
            self.test_file, cure, lambda measures: typed(dict[str, float], measures)
        )

    def take_back_end(self, promoted: int | None) -> RunEnd | None:
        """Remove the end with which a run was pruned, if its trial was `promoted` from there; return any other end."""
        end = self.read_end()
        if end is None or promoted is None:
            return end
        if end.ending.outcome is not RunState.PRUNED or end.iteration > promoted:
            return end
        self.end_file.unlink()
        return None

    def checkpoint(self) -> Path | None:
        """Return the folder of the run's checkpoint, or None."""
        places = (self.path / "best", self.path / "last")
        return next(filter(Path.is_dir, places), None)


class CurveReader:
    """Reads the lines of a run's curve as they are written, each once."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self._file = folder, GrowingFile(folder.points_file)

    def new_points(self) -> list[CurvePoint]:
        """Return the points that were written since the last call, in the order of the file.

        A line that a kill cut off is skipped.
        """
        return [point for point in map(_point, self._file.new_lines().split(b"\n")) if point]


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines to a file.

    If a kill has left an incomplete line, the first new line starts on a line of its own.
    """
    with opened(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write("".join(f"{line}\n" for line in lines).encode())


def _point(line: bytes) -> CurvePoint | None:
    # Points are flat: after a cut-off line without its newline, the last brace opens the whole one.
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        record = json.loads(line[max(line.rfind(b"{"), 0) :])
        point = CurvePoint.from_json(record)
        counts = point.iteration, point.train_tokens, point.wall_seconds
        if record["iteration"] is not True and all(0 <= count < 2**53 for count in counts):
            return point
    return None


@contextmanager
def reading(file: Path, cure: str) -> Iterator[None]:
    """Turn errors while a file is read and interpreted into a DamagedFile with the reason and the cure."""
    try:
        yield
    except OSError as error:
        raise DamagedFile(file, error.strerror or str(error), cure) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise DamagedFile(file, f"it cannot be read ({why})", cure) from error


def read_json(file: Path, cure: str, made: Callable[[Any], T]) -> T:
    """Return what is made of the content of a JSON file.

    Raises:
        DamagedFile: the file is gone or damaged.
    """
    with reading(file, cure):
        return made(json.loads(read_bytes(file)))


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # slow to import

    return TypeAdapter(kind)


def typed(kind: type[T], plain: Any) -> T:
    """Return a value of a type from plain values; raise ValueError where they do not fit."""
    return cast(T, _adapter(kind).validate_python(plain))  # type: ignore[arg-type]


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file; a number that is not finite is written as null."""
    write_whole(file, _json(content))


def _json(content: Any) -> bytes:
    return json.dumps(json_ready(content), indent=1).encode()


Norms = tuple[float | None, float | None, float | None]


@dataclass(frozen=True)
class GradientPoint:
    """The norms in one step of each layer's gradient (before clipping), update and weights, in the order of the layers.

    `iteration` counts the steps including this one. A norm that is not finite is None.
    """

    iteration: int
    layers: Mapping[str, Norms]


def append_gradients(folder: RunFolder, points: Sequence[GradientPoint]) -> None:
    """Append points to a run's file."""
    lines = [json_ready({"iteration": point.iteration, **point.layers}) for point in points]
    if lines:
        append_lines(folder.gradients_file, map(json.dumps, lines))


def read_gradients(folder: RunFolder) -> list[GradientPoint]:
    """Return a run's points by iteration; if it repeated an iteration after a kill, the first record counts."""
    lines = GrowingFile(folder.gradients_file).new_lines().split(b"\n")
    points = {point.iteration: point for point in map(_gradients, reversed(lines)) if point}
    return [points[iteration] for iteration in sorted(points)]


def _gradients(line: bytes) -> GradientPoint | None:
    with suppress(ValueError):  # a kill may have cut the line off
        record = json.loads(line)
        return typed(GradientPoint, {"iteration": record.pop("iteration"), "layers": record})
    return None
