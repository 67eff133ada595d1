"""What a study records of its data and of the weights that its runs start from: data.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class DataDescription:
    """A study's data: counts are of tokens, but for `val_bytes`; digests are sha256.

    `val_targets` are the tokens that an evaluation on the whole validation split finds. `init_digest` is that of the
    weights that runs start from, None where they are drawn from a seed.
    """

    corpus: str
    tokenizer: str
    vocab_size: int
    train_tokens: int
    val_tokens: int
    val_targets: int
    val_bytes: int
    text_digest: str
    token_digest: str
    init_digest: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the description fit for JSON; without an `init_digest` where there is none."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> DataDescription:
        """Return a description that was written as JSON."""
        return cls(**{each.name: plain[each.name] for each in fields(cls) if each.name in plain})
