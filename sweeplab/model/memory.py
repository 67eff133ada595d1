"""What a decoder keeps of what it has read, so that no token is read twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from sweeplab.model.attention import Kept, Sight


@dataclass
class Memory:
    """The places that have been read, what each attention keeps of them, and what the encoder made of a source.

    kept: by the name of a sub-layer, tensors [K*B, …]; of cross-attention the source's keys and values.
    """

    length: int = 0
    kept: dict[str, Kept] = field(default_factory=dict)
    source: tuple[Tensor, Sight] | None = None

    def choose(self, rows: Tensor) -> None:
        """Go on from these sequences of those that were read, of a lone run: as often as each is named."""
        self.kept = {name: tuple(each[rows] for each in kept) for name, kept in self.kept.items()}
