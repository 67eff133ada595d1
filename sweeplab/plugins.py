"""Register your own parts with sweeplab, in a Python file that a study names under `plugins`.

    from sweeplab.plugins import activation, corpus, metric, tokenizer

    @corpus("mine", "Letters that I wrote")
    def mine(files):  # the files at data.path, if any
        return "\\n".join(file.read_text() for file in files)

    @activation("squared_relu")
    def squared_relu(x):  # element by element
        return x.relu().square()

    @metric("bits")  # the value of an evaluation; lower is better
    def bits(val_loss, iteration, values):
        return val_loss / 0.6931471805599453

    @tokenizer
    class Words(sweeplab.data.tokenizers.Tokenizer): ...

From then on a part is known by its name in this process; sweeplab's own parts cannot be replaced.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE

if TYPE_CHECKING:
    from sweeplab.data.tokenizers import Tokenizer
    from sweeplab.train.run import Metric

_Part = TypeVar("_Part")
_TokenizerClass = TypeVar("_TokenizerClass", bound="type[Tokenizer]")
KINDS = ("corpus", "tokenizer", "activation", "metric")
# Every part that was added in this process, in order: its kind, its name, the part.
added: list[tuple[str, str, Any]] = []


class NotImported:
    """Stands for a part whose file was not imported: its name is known, but using it raises BadInput."""

    def __init__(self, kind: str, name: str) -> None:
        self._what = f"{kind} {name!r} is from a plugin that was not imported; --allow-plugins imports it"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise BadInput(self._what)

    def __call__(self, *_: Any) -> Any:
        """Refuse to be used.

        Raises:
            BadInput: always.
        """
        raise BadInput(self._what)


def corpus(
    name: str, meaning: str = ""
) -> Callable[[Callable[[Sequence[Path]], str]], Callable[[Sequence[Path]], str]]:
    """Register a function as a corpus: it takes the files at the study's `data.path` and returns the text.

    It is called again when one of these files, or its own file, has changed.
    """

    def register(function: Callable[[Sequence[Path]], str]) -> Callable[[Sequence[Path]], str]:
        from sweeplab.data.corpora import Corpus, user_files

        own = _file_of(function)

        def read(files: Sequence[Path]) -> list[str]:
            try:
                text = function(files[1:])
                if not isinstance(text, str):
                    raise TypeError(f"the text is a {type(text).__name__}")
            except BadInput:
                raise
            except Exception as error:
                raise BadInput(f"corpus {name}: {said(error, own)}") from error
            return [text]

        def find(path: str | None) -> list[Path]:
            return [own, *(user_files(path) if path is not None else [])]

        first_line = (inspect.getdoc(function) or "").partition("\n")[0] or "A plugin's"
        add("corpus", name, Corpus(name, meaning or first_line, find, read))
        return function

    return register


def tokenizer(kind: _TokenizerClass) -> _TokenizerClass:
    """Register a subclass of Tokenizer under its `name`; texts are tokenized again when its file has changed."""
    kind.version = hashlib.sha256(_file_of(kind).read_bytes()).hexdigest()[:12]
    add("tokenizer", kind.name, kind)
    return kind


def activation(name: str) -> Callable[[_Part], _Part]:
    """Register an element-wise function of a tensor as an activation of the feed-forward layers."""
    return lambda function: _added("activation", name, function)


def metric(name: str) -> Callable[[Metric], Metric]:
    """Register a function that values an evaluation, for `objective: {metric: NAME}`.

    It takes the mean validation loss over a trial's seeds, the iteration, and the hyperparameters. Lower is better.
    """
    return lambda function: _added("metric", name, function)


def table_of(kind: str) -> dict[str, Any]:
    """Return the table of the parts of a kind, by name."""
    match kind:
        case "corpus":
            from sweeplab.data.corpora import CORPORA

            return CORPORA
        case "tokenizer":
            from sweeplab.data.tokenizers import TOKENIZERS

            return TOKENIZERS
        case "metric":
            from sweeplab.train.run import METRICS

            return METRICS
        case _:
            from sweeplab.model.activations import ACTIVATIONS

            return ACTIVATIONS


def add(kind: str, name: str, part: Any) -> None:
    """Add a part under a name, replacing one that a plugin added before.

    Raises:
        ValueError: the name belongs to one of sweeplab's own parts.
    """
    table = table_of(kind)
    if name in table and not any((kind, name) == each[:2] for each in added):
        raise ValueError(f"{kind} {name!r} is sweeplab's own: give another name")
    table[name] = part
    if kind == "activation":
        from sweeplab.model.activations import Activation

        table[name], row = Activation(part), TABLE[kind]
        TABLE[kind] = replace(row, choices=tuple(dict.fromkeys([*row.choices, name])))
    added.append((kind, name, part))


def said(error: BaseException, file: Path) -> str:
    """Say in one line what a user's file raised, and in which of its lines."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    place = f"{file}:{line}" if line else str(file)
    text = (error.msg if isinstance(error, SyntaxError) else str(error)).strip().partition("\n")[0]
    return f"{place}: {type(error).__name__}{f': {text}' if text else ''}"


def _added(kind: str, name: str, part: _Part) -> _Part:
    add(kind, name, part)
    return part


def _file_of(part: Any) -> Path:
    file = inspect.getsourcefile(part) if inspect.isclass(part) or inspect.isfunction(part) else None
    if not file or not Path(file).is_file():
        raise ValueError(f"{getattr(part, '__name__', part)} is defined in no file: write it into one")
    return Path(file).absolute()
