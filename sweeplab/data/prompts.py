"""Special tokens, and prompts laid out with them as an objective's sequences are.

Special tokens are ids that stand for no text. They come last in a vocabulary, after all that the tokenizer has. An
objective has only those that it needs, so that a decoder of running text pays for none. Where a study gives a larger
vocab_size the special ones are its last ids all the same: they follow from the hyperparameters alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import Hyperparameters

PAD = "pad"  # fills a row up; never read, never a target
BOS = "bos"  # begins a target; in the one sequence of a decoder or an encoder it stands between source and target
EOS = "eos"  # ends a target
SCORE = "score"  # whose logit is a number that is to be found
MASK = "mask"  # stands where a token is hidden


def sentinel(index: int) -> str:
    """Return the name of the token that stands for the span of this number (from 0) of a corrupted text."""
    return f"sentinel_{index}"


def label(index: int) -> str:
    """Return the name of the token that stands for the label of this number (from 0)."""
    return f"label_{index}"


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a vocabulary, by name; `elsewhere` are the ids of a run that came with its own."""

    vocab_size: int
    names: tuple[str, ...] = ()
    elsewhere: Mapping[str, int] | None = None

    @property
    def n_ordinary(self) -> int:
        """Return the number of ids that stand for text: those from 0 on."""
        return self.vocab_size - len(self.names)

    def __getitem__(self, name: str) -> int:
        """Return the id of a special token.

        Raises:
            BadInput: the run came without one of that name.
        """
        if self.elsewhere is None:
            return self.n_ordinary + self.names.index(name)
        if name not in self.elsewhere:
            raise BadInput(f"the run came without a token {name!r}, which its objective needs")
        return self.elsewhere[name]

    @property
    def ids(self) -> dict[str, int]:
        """Return the id of each special token by its name."""
        return {name: self[name] for name in (self.names if self.elsewhere is None else self.elsewhere)}

    def name_of(self, token: int) -> str | None:
        """Return the name of a special token, None for one of text; of several names of one token the last."""
        return {number: name for name, number in self.ids.items()}.get(token)


# Stands in a prompt for what is to be found there: a token of an encoder's text, a span of a corrupted one.
HOLE = "[MASK]"

Ids = Sequence[int]


@dataclass(frozen=True)
class Prompt:
    """What a model reads before it finds anything.

    start: what comes before the first token to be found; of an encoder, the whole sequence.
    holes: places of `start` whose tokens are to be found, instead of those after it.
    source: what the encoder of an encoder_decoder reads.
    markers: special tokens that may be found: those that begin the spans of the holes, and `end`.
    end: the token after which there is nothing more.
    room: how many tokens a target may have at most, where a longer one cannot have been learned.
    """

    start: Ids
    holes: Ids = ()
    source: Ids | None = None
    markers: Ids = ()
    end: int | None = None
    room: int | None = None


def filled(pieces: Sequence[Ids], marks: Ids) -> list[int]:
    """Return pieces of a text with a mark between each two."""
    found = list(pieces[0])
    for mark, piece in zip(marks, pieces[1:], strict=True):
        found += [mark, *piece]
    return found


def cut(tokens: Ids, holes: Ids) -> list[Ids]:
    """Return tokens in pieces, with a hole for each that is to be found: what `filled` puts together."""
    starts = [0, *(hole + 1 for hole in holes)]
    return [tokens[start:end] for start, end in zip(starts, [*holes, len(tokens)], strict=True)]


def check_room(tokens: Ids, values: Hyperparameters, more: int = 0) -> None:
    """Refuse a prompt of no tokens, or of more than were ever read at once, with so many `more` around them.

    Raises:
        BadInput: says how many there may be.
    """
    room = values.block_size - more
    if room < 1:
        what = f"what is to be found leaves the prompt no room in the block_size of {values.block_size}"
        raise BadInput(Problem(what, f"at least {1 - room} {HOLE} fewer"))
    if not 0 < len(tokens) <= room:
        said = f"the prompt takes {len(tokens)} tokens" if len(tokens) else "the prompt is empty"
        raise BadInput(Problem(said, f"1 to {room} tokens, by the block_size of {values.block_size}"))
