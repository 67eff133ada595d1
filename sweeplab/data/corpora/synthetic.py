"""Pairs made by rule, for tests and teaching: what is to be learned is known, and so is what is right.

Sources are drawn from a generator of fixed key, all distinct, so that no source of one split stands in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sweeplab.data.corpora.base import Pair, PairCorpus
from sweeplab.data.generators import Noise, generator_key

N_PAIRS = 20_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORTEST, LONGEST = 4, 12
# Numbers to be added have so many digits or fewer.
N_DIGITS = 3


def _words(noise: Noise) -> list[str]:
    lengths = SHORTEST + noise.integers(N_PAIRS, LONGEST + 1 - SHORTEST)
    letters = iter(noise.integers(int(lengths.sum()), len(LETTERS)).tolist())
    return ["".join(LETTERS[next(letters)] for _ in range(length)) for length in lengths.tolist()]


def _sums(noise: Noise) -> list[str]:
    numbers = noise.integers(2 * N_PAIRS, 10**N_DIGITS).reshape(-1, 2).tolist()
    return [f"{first}+{second}" for first, second in numbers]


def _rule(
    name: str, meaning: str, sources: Callable[[Noise], list[str]], target: Callable[[str], str]
) -> PairCorpus:
    def pairs(files: Sequence[Path]) -> list[Pair]:
        drawn = dict.fromkeys(sources(Noise(generator_key(0, f"corpus {name}"))))
        return [Pair(source, target(source), group=source) for source in drawn]

    return PairCorpus(
        name, meaning, lambda path: [Path(__file__).absolute()], pairs, needs_whole=True, takes_path=False
    )


RULES = (
    _rule("copy", "Words of random letters, and the same again", _words, str),
    _rule(
        "reverse", "Words of random letters, and their letters from last to first", _words, lambda w: w[::-1]
    ),
    _rule(
        "sort", "Words of random letters, and their letters in order", _words, lambda w: "".join(sorted(w))
    ),
    _rule(
        "addition",
        f"Sums of two numbers of up to {N_DIGITS} digits, and what they come to",
        _sums,
        lambda text: str(sum(map(int, text.split("+")))),
    ),
)
