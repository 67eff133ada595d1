"""The table of corpora."""

from __future__ import annotations

from sweeplab.data.corpora.base import OF_TEXT, AnyCorpus, Corpus, Targets, Texts, download
from sweeplab.data.corpora.pairs import (
    DOCSTRINGS,
    OF_FILES,
    RULES,
    Pair,
    PairCorpus,
    corpus_of_files,
)

__all__ = [
    "CORPORA",
    "AnyCorpus",
    "Corpus",
    "Pair",
    "PairCorpus",
    "Targets",
    "Texts",
    "corpus_of_files",
    "download",
]

CORPORA: dict[str, AnyCorpus] = {
    each.name: each for each in (*OF_TEXT, DOCSTRINGS, *OF_FILES, *RULES)
}
