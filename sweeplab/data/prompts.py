"""Special tokens, and prompts laid out with them like an objective's sequences.

Special tokens are ids that represent no text. They are the last ids of a vocabulary, after the tokenizer's. An
objective has only those that it needs, so that a decoder of running text has none. If a study sets a larger
vocab_size, the special tokens still are its last ids: they depend only on the hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.hyperparameters import Hyperparameters

PAD = "pad"  # fills up a row; never read, never a target
BOS = "bos"  # begins a target; in the single sequence of a decoder or encoder it separates source and target
EOS = "eos"  # ends a target
MASK = "mask"  # replaces a hidden token


def sentinel(index: int) -> str:
    """Return the name of the token that replaces the span of this number (from 0) in a corrupted text."""
    return f"sentinel_{index}"


def label(index: int) -> str:
    """Return the name of the token of the label with this number (from 0)."""
    return f"label_{index}"


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a vocabulary, by name; `elsewhere` has the ids of an imported run with its own."""

    vocab_size: int
    names: tuple[str, ...] = ()
    elsewhere: Mapping[str, int] | None = None

    @property
    def n_ordinary(self) -> int:
        """Return the number of ids that represent text: those from 0 on."""
        return self.vocab_size - len(self.names)

    def __getitem__(self, name: str) -> int:
        """Return the id of a special token.

        Raises:
            BadInput: the imported run has no token of this name.
        """
        if self.elsewhere is None:
            return self.n_ordinary + self.names.index(name)
        if name not in self.elsewhere:
            raise BadInput(f"the imported run has no token {name!r}, which its objective needs")
        return self.elsewhere[name]

    @property
    def ids(self) -> dict[str, int]:
        """Return the id of each special token by its name."""
        if self.elsewhere is not None:
            return {**self.elsewhere}
        return {name: self[name] for name in self.names}

    def name_of(self, token: int) -> str | None:
        """Return the name of a special token, None for a token of text; if it has several names, the last."""
        return {number: name for name, number in self.ids.items()}.get(token)


# Marks in a prompt what the model is to predict: a token of an encoder's text, a span of a corrupted text.
HOLE = "[MASK]"

Ids = Sequence[int]


@dataclass(frozen=True)
class Prompt:
    """The input of a model before it predicts anything.

    start: the tokens before the first predicted one; for an encoder, the whole sequence.
    holes: positions of `start` whose tokens are predicted, instead of those after it.
    source: the input of the encoder of an encoder_decoder.
    markers: special tokens that may be predicted: those that begin the spans of the holes, and `end`.
    end: the token that ends the output.
    room: the most tokens of a target, if a longer one cannot have been learned.
    """

    start: Ids
    holes: Ids = ()
    source: Ids | None = None
    markers: Ids = ()
    end: int | None = None
    room: int | None = None


def filled(pieces: Sequence[Ids], marks: Ids) -> list[int]:
    """Join the pieces of a text with the marks between them."""
    ids = list(pieces[0])
    for mark, piece in zip(marks, pieces[1:], strict=True):
        ids += [mark, *piece]
    return ids


def cut(tokens: Ids, holes: Ids) -> list[Ids]:
    """Cut tokens into pieces at the holes: the inverse of `filled`."""
    starts = [0, *(hole + 1 for hole in holes)]
    return [tokens[start:end] for start, end in zip(starts, [*holes, len(tokens)], strict=True)]


def check_room(tokens: Ids, values: Hyperparameters, more: int = 0) -> None:
    """Refuse a prompt that is empty, or longer than block_size together with `more` tokens around it.

    Raises:
        BadInput: the message says how many tokens are allowed.
    """
    room = values.block_size - more
    if room < 1:
        what = f"the tokens to predict leave no room for the prompt in the block_size of {values.block_size}"
        raise BadInput(Problem(what, f"at least {1 - room} fewer {HOLE}"))
    if not 0 < len(tokens) <= room:
        if len(tokens):
            problem = f"the prompt takes {several(len(tokens), 'token')}"
        else:
            problem = "the prompt is empty"
        raise BadInput(
            Problem(problem, f"1 to {several(room, 'token')} with the block_size of {values.block_size}")
        )
