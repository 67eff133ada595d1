"""Register your own parts with sweeplab, in a Python file that a study names under `plugins`.

    from sweeplab.plugins import activation, corpus, metric, tokenizer

    @corpus("mine", "Letters that I wrote")
    def mine(files):  # the files at data.path, if any
        return "\\n".join(file.read_text() for file in files)

    @activation("squared_relu")
    def squared_relu(x):  # element by element
        return x.relu().square()

    @metric("bits")  # measured at every evaluation
    def bits(model, batches, record):
        return record.val_loss / 0.6931471805599453

    @schedule("square")  # a function of the share of training
    def square(share):
        return (1 - share) ** 2

    @optimizer("nadam")  # or a class that updates the rows of a stack
    def nadam(parameters, values):
        return torch.optim.NAdam(parameters, lr=values.learning_rate)

    @tokenizer
    class Words(sweeplab.data.tokenizers.Tokenizer): ...

    hyperparameter("beta", 0.1, "How strongly a run is kept close to its start", above=0.0)

    @objective  # studies/plugins/ has three, each with its corpus of pairs
    class Preference(sweeplab.data.objectives.PairsObjective): ...

From then on a part is known by its name in this process; sweeplab's own parts cannot be replaced.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from sweeplab import permissions
from sweeplab.errors import BadInput, said
from sweeplab.files import read_bytes
from sweeplab.hyperparameters import (
    TABLE,
    Hyperparameter,
    add_row,
    canonical,
)

_Part = TypeVar("_Part")
_Class = TypeVar("_Class", bound=type[Any])
# The table of the parts of each kind.
_TABLES = {
    "corpus": "data.corpora:CORPORA",
    "tokenizer": "data.tokenizers:TOKENIZERS",
    "activation": "model.shape:ACTIVATIONS",
    "metric": "train.run:METRICS",
    "hyperparameter": "hyperparameters:TABLE",
    "objective": "data.objectives:OBJECTIVES",
    "model": "model.shape:MODELS",
    "optimizer": "train.optimizers:OPTIMIZERS",
    "schedule": "train.run:SCHEDULES",
}
# The row of the table whose choices are the names of a kind's parts.
_CHOSEN = {
    "activation": "activation",
    "objective": "objective",
    "model": "model",
    "optimizer": "optimizer",
    "schedule": "scheduler_type",
}
# Every part that was added in this process, in order: its kind, its name, the part.
added: list[tuple[str, str, Any]] = []


class NotImported:
    """Stands for a part whose file was not imported: its name is known, but using it raises BadInput."""

    def __init__(self, kind: str, name: str) -> None:
        what = f"{kind} {name!r} is from a plugin that is not allowed"
        self._what = f"{what}: --allow-plugins, once, if you trust it"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise BadInput(self._what)

    def __call__(self, *_: Any) -> Any:
        """Refuse to be used."""
        raise BadInput(self._what)


def corpus(name: str, meaning: str = "A plugin's") -> Callable[[_Part], _Part]:
    """Register a function as a corpus: it takes the files at the study's `data.path` and returns the text.

    It is called again when one of these files, or its own file, has changed.
    """

    def made(make: Callable[[Sequence[Path]], Any]) -> Any:
        from sweeplab.data.corpora import Corpus
        from sweeplab.data.formats import user_files

        file = _file_of(make)

        def read(files: Sequence[Path]) -> list[str]:
            try:
                text = make(files[1:])
            except BadInput:
                raise
            except Exception as error:
                raise BadInput(f"corpus {name}: {said(error, file)}") from error
            if not isinstance(text, str):
                raise BadInput(f"corpus {name}: {file}: the text is a {type(text).__name__}")
            return [text]

        def find(path: str | None) -> list[Path]:
            if path is None:
                return [file]
            return [file, *user_files(path)]

        return Corpus(name, meaning, find, read)

    return _adding("corpus", name, made)


def pairs(
    name: str,
    meaning: str,
    keys: Sequence[str],
    suffixes: Sequence[str] = (".jsonl", ".csv"),
    **settings: Any,
) -> Callable[[_Part], _Part]:
    """Register a function as a corpus of pairs in files of the user, with one value for each of the `keys` in a line.

    It takes the values of a line and returns its pairs, or raises ValueError with what is wrong. The corpus has a
    kind of data of its own name, for an objective that `learns` it. `settings` are those of `corpus_of_files`, such as
    `targets`.
    """

    def made(make: Any) -> Any:
        from sweeplab.data.corpora import corpus_of_files

        file = _file_of(make)
        plain = corpus_of_files(name, meaning, keys, suffixes, make, **settings)
        # Its own file is one of the files of the corpus, so that the texts are read again when it changes.
        return replace(
            plain,
            find=lambda path: [file, *plain.find(path)],
            pairs=lambda files, how: plain.pairs(files[1:], how),
        )

    return _adding("corpus", name, made)


def objective(kind: _Class) -> _Class:
    """Register a subclass of Objective under its `name`."""
    add("objective", kind.name, kind)
    return kind


def hyperparameter(name: str, sample: float, meaning: str, **row: Any) -> None:
    """Add a row of numbers to the hyperparameter table; `row` has what else a `Hyperparameter` has, such as bounds."""
    add(
        "hyperparameter",
        name,
        Hyperparameter(name, "training", "float", sample, meaning, **row),
    )


def tokenizer(kind: _Class) -> _Class:
    """Register a subclass of Tokenizer under its `name`; texts are tokenized again when its file has changed."""
    kind.version = hashlib.sha256(_file_of(kind).read_bytes()).hexdigest()[:12]
    add("tokenizer", kind.name, kind)
    return kind


def activation(name: str) -> Callable[[_Part], _Part]:
    """Register an element-wise function of a tensor as an activation of the feed-forward layers."""
    return _adding("activation", name)


def _adding(
    kind: str, name: str, make: Callable[[Any], Any] = lambda part: part
) -> Callable[[_Part], _Part]:
    def register(part: _Part) -> _Part:
        add(kind, name, make(part))
        return part

    return register


def model(name: str, settings: type | None = None) -> Callable[[_Part], _Part]:
    """Register a factory of modules as a model, for `fixed: {model: NAME}`: a function of a run's hyperparameters.

    It returns an `nn.Module` whose `forward` takes token ids [B, T] and returns logits [B, T, vocab_size]. `settings`
    is a dataclass: its fields become rows of the table, which a study fixes, searches, or has in its grid. A field's
    type is int, float, bool, str or a Literal of texts; its metadata may have what else a `Hyperparameter` has, such as
    meaning, low and suggested. The numbers and sizes of the module's parameters may depend on them and on the table's
    other rows of models, and on nothing else.

    Raises:
        ValueError: a field has another type, no default, or the name of one of sweeplab's own rows.
    """

    rows = []
    if settings is not None:
        hints = get_type_hints(settings)
        rows = [_row(name, field, hints[field.name]) for field in fields(settings)]

    def made(make: Any) -> Any:
        from sweeplab.model.shape import PluginModel

        for row in rows:
            add("hyperparameter", row.name, row)
        return PluginModel(make, tuple(row.name for row in rows), _file_of(make))

    return _adding("model", name, made)


def _row(model: str, field: Field[Any], hint: Any) -> Hyperparameter:
    choices: tuple[str, ...] = get_args(hint) if get_origin(hint) is Literal else ()
    kind: Any = "str" if choices else getattr(hint, "__name__", hint)
    if kind not in ("int", "float", "bool", "str") or field.default is MISSING:
        what = f"{field.name} of model {model} is declared as {kind}"
        raise ValueError(
            f"{what}; allowed: int, float, bool, str or a Literal of texts, each with a default"
        )
    known = canonical(field.name)
    if known != field.name:
        raise ValueError(
            f"{field.name} of model {model} is another name of {known}: read values.{known}"
        )
    further = {"meaning": f"Of model {model}", **field.metadata}
    row = Hyperparameter(
        field.name,
        "model",
        kind,
        field.default,
        **further,
        choices=choices,
        shape=True,
        of_model=model,
    )
    row.check(field.default)
    return row


def optimizer(name: str) -> Callable[[_Part], _Part]:
    """Register an optimizer, for `optimizer: NAME`: a subclass of `sweeplab.train.optimizers.Optimizer`, or a function.

    The class updates the rows of a stack. The function takes the parameters of a run and its hyperparameters, and
    returns a `torch.optim.Optimizer`; its runs are trained one by one. What an optimizer does may depend on its state,
    the gradient and the hyperparameters alone: a snapshot has nothing else.

    Raises:
        ValueError: the class lacks `update_`, or the state of the torch optimizer has other numbers than float32.
    """

    def checked(part: Any) -> Any:
        from sweeplab.train import optimizers, run

        optimizers.check_optimizer(part)
        run.MADE_FROM_VALUES.discard(name)
        if not isinstance(part, type):
            run.MADE_FROM_VALUES.add(name)
        return part

    return _adding("optimizer", name, checked)


def schedule(name: str) -> Callable[[Callable[[float], float]], Callable[[float], float]]:
    """Register a schedule, for `scheduler_type: NAME`: a function of the share of training after the warm-up.

    It takes and returns a number from 0 to 1: the learning rate's share of the way from min_lr to the peak.
    """

    from sweeplab.train.run import own_schedule

    return _adding("schedule", name, own_schedule)


def metric(name: str) -> Callable[[_Part], _Part]:
    """Register a function that measures a run at every evaluation, for `objective: {metric: NAME}`.

    It takes the run's model (`logits(batch)`, `values`, `weights`), the batches of the validation split that
    the evaluation read (`inputs` and `targets` [B, T], -1 where nothing is predicted), and the evaluation's record. It
    returns a number, or several by name, which are recorded like a loss. A trial's value is the mean over seeds.
    """
    return _adding("metric", name)


def table_of(kind: str) -> dict[str, Any]:
    """Return the table of the parts of a kind, by name."""
    table: dict[str, Any] = resolve_name(f"sweeplab.{_TABLES[kind]}")
    return table


def add(kind: str, name: str, part: Any) -> None:
    """Add a part under a name, replacing one that a plugin added before.

    Raises:
        ValueError: the name belongs to one of sweeplab's own parts.
    """
    table = table_of(kind)
    if name in table and (kind, name) not in _names_added():
        raise ValueError(f"{kind} {name!r} is sweeplab's own: give another name")
    if kind == "hyperparameter":
        add_row(part)
    elif kind == "activation":
        from sweeplab.model.shape import Activation

        table[name] = Activation(part)
    # Else nobody knows it: runs are shown by its name.
    elif kind != "objective" or not isinstance(part, NotImported):
        table[name] = part
    if kind in _CHOSEN:
        row = TABLE[_CHOSEN[kind]]
        if name not in row.choices:
            TABLE[row.name] = replace(row, choices=(*row.choices, name))
    added.append((kind, name, part))


def _names_added() -> set[tuple[str, str]]:
    return {(kind, name) for kind, name, _ in added}


def add_names(
    provides: Mapping[str, Iterable[str]], rows: Mapping[str, Mapping[str, Any]]
) -> None:
    """Add the parts, by kind, of a file that is not imported, unless a file was that has such parts.

    `rows` has the rows of hyperparameters as plain values, if they were recorded.
    """
    from pydantic import TypeAdapter  # slow to import

    for name in provides.get("hyperparameter", ()):
        about = "A plugin's, which was not imported"
        row = Hyperparameter(name, "training", "float", 0.0, about)
        with suppress(KeyError, TypeError, ValueError):  # no row was recorded, or a damaged one
            known = TypeAdapter(Hyperparameter).validate_python({**rows[name], "name": name})
            known.check(known.sample)
            row = known
        if name not in TABLE:
            add("hyperparameter", name, row)
    for kind in _TABLES:
        for name in provides.get(kind, ()):
            if (kind, name) not in _names_added() and name not in table_of(kind):
                add(kind, name, NotImported(kind, name))


def _file_of(part: Any) -> Path:
    with suppress(TypeError, OSError):  # neither a class nor a function, or one of no file
        file = Path(inspect.getsourcefile(part) or "")
        if file.is_file():
            return file.absolute()
    raise ValueError(
        f"{getattr(part, '__name__', part)} is defined in no file: write it into one"
    )


# ------------------------------------------------------------------ the code of plugins
# The permission to execute a file is for the digest of its code, wherever it lies: changed code has none, and what is
# executed are the bytes with this digest.

_KIND = "plugin"
# The parts registered by the code that this process has executed, by its place and digest.
_imported: dict[tuple[str, str], list[tuple[str, str, Any]]] = {}


@dataclass(frozen=True)
class Code:
    """The code of a plugin: its file, its content and the digest of that."""

    place: str
    content: bytes
    digest: str

    @classmethod
    def at(cls, place: str) -> Code:
        """Return the code of a file, without executing any of it.

        Raises:
            OSError: there is no such file.
        """
        content = read_bytes(Path(place))
        return cls(place, content, hashlib.sha256(content).hexdigest())

    @property
    def is_allowed(self) -> bool:
        """Return whether the user has allowed this code, now or earlier."""
        return permissions.is_allowed(_KIND, self.digest)

    def allow(self) -> None:
        """Remember that the user allows this code."""
        permissions.allow(_KIND, self.digest)

    def parts(self) -> list[tuple[str, str, Any]]:
        """Execute the code once in this process, and return the parts that it registers: kind, name, part.

        Raises:
            BadInput: it raises; says what, and in which line.
        """
        key = self.place, self.digest
        if key in _imported:
            for part in _imported[key]:  # other code may have replaced a name since
                add(*part)
            return _imported[key]
        before = len(added)
        module = ModuleType(f"sweeplab_plugin_{self.digest[:12]}")
        module.__file__ = self.place
        sys.modules[module.__name__] = module  # inspect, pickle and dataclasses look there
        try:
            exec(compile(self.content, self.place, "exec"), module.__dict__)
        except BaseException as error:
            del sys.modules[module.__name__]
            if isinstance(error, KeyboardInterrupt):
                raise
            raise BadInput(said(error, Path(self.place))) from error
        _imported[key] = added[before:]
        return _imported[key]


def import_allowed(place: str, digest: str) -> bool:
    """Execute the code at a place, if it has this digest and the user has allowed it; return whether it is imported.

    Raises:
        BadInput: the code raises.
    """
    with suppress(OSError):
        code = Code.at(place)
        if code.digest == digest and code.is_allowed:
            code.parts()
    return (place, digest) in _imported
