"""Special tokens: ids that stand for no text. They come last in a vocabulary, after all that the tokenizer has.

An objective has only those that it needs, so that a decoder of running text pays for none. Where a study gives a
larger vocab_size the special ones are its last ids all the same: they follow from the hyperparameters alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeplab.errors import BadInput

PAD = "pad"  # fills a row up; never read, never a target
BOS = "bos"  # begins a target; in the one sequence of a decoder or an encoder it stands between source and target
EOS = "eos"  # ends a target
MASK = "mask"  # stands where a token is hidden


def sentinel(index: int) -> str:
    """Return the name of the token that stands for the span of this number (from 0) of a corrupted text."""
    return f"sentinel_{index}"


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
        if self.elsewhere is not None:
            if name not in self.elsewhere:
                raise BadInput(f"the run came without a token {name!r}, which its objective needs")
            return self.elsewhere[name]
        return self.n_ordinary + self.names.index(name)

    @property
    def ids(self) -> dict[str, int]:
        """Return the id of each special token by its name."""
        return {name: self[name] for name in (self.names if self.elsewhere is None else self.elsewhere)}

    def name_of(self, token: int) -> str | None:
        """Return the name of a special token, None for one of text; of several names of one token the last."""
        return {number: name for name, number in self.ids.items()}.get(token)
