"""The table of corpora."""

from __future__ import annotations

from sweeplab.data.corpora.base import OF_TEXT
from sweeplab.data.corpora.base import AnyCorpus as AnyCorpus
from sweeplab.data.corpora.base import Corpus as Corpus
from sweeplab.data.corpora.base import Targets as Targets
from sweeplab.data.corpora.base import Texts as Texts
from sweeplab.data.corpora.base import download as download
from sweeplab.data.corpora.base import user_files as user_files
from sweeplab.data.corpora.pairs import DOCSTRINGS, OF_FILES, RULES
from sweeplab.data.corpora.pairs import Pair as Pair
from sweeplab.data.corpora.pairs import PairCorpus as PairCorpus
from sweeplab.data.corpora.pairs import corpus_of_files as corpus_of_files

CORPORA: dict[str, AnyCorpus] = {each.name: each for each in (*OF_TEXT, DOCSTRINGS, *OF_FILES, *RULES)}
