"""What a person gives a model to go on from, as an objective lays it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeplab.errors import BadInput, Problem

# Stands in a prompt for what is to be found there: a token of an encoder's text, a span of a corrupted one.
HOLE = "[MASK]"

Ids = Sequence[int]
Values = Mapping[str, Any]


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


def check_room(tokens: Ids, values: Values, more: int = 0) -> None:
    """Refuse a prompt of no tokens, or of more than were ever read at once, with so many `more` around them.

    Raises:
        BadInput: says how many there may be.
    """
    room = values["block_size"] - more
    if room < 1:
        what = f"what is to be found leaves the prompt no room in the block_size of {values['block_size']}"
        raise BadInput(Problem(what, f"at least {1 - room} {HOLE} fewer"))
    if not 0 < len(tokens) <= room:
        said = f"the prompt takes {len(tokens)} tokens" if len(tokens) else "the prompt is empty"
        raise BadInput(Problem(said, f"1 to {room} tokens, by the block_size of {values['block_size']}"))
