"""Print how the shipped corpora are split, and what sampled losses are off by: `splits.py [LAB STUDY]`.

For each corpus: the overlap of validation and test with training, and the largest share of validation that one document
has, for the first 90% of its text and the rest, and for its splits. For a study that has run: how far each run's
sampled loss is from that of the whole validation split. SWEEPLAB_TINYSHAKESPEARE says where tinyshakespeare is.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from setting import print_table, setting

from sweeplab.data.corpora import CORPORA, Corpus
from sweeplab.data.corpora.splits import BETWEEN_DOCUMENTS, overlaps
from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder


def largest_share(documents: Sequence[str], val: str) -> float:
    """Return the largest share of a split's lines, by characters, that stand in one document."""
    lines = val.splitlines()
    own = [set(document.splitlines()) for document in documents]
    return max(sum(len(line) for line in lines if line in each) for each in own) / sum(map(len, lines))


def corpus_row(corpus: Corpus) -> list[str]:
    """Return a corpus' row; its documents before near-duplicates went."""
    documents = corpus.documents(corpus.files())
    text = BETWEEN_DOCUMENTS.join(documents)
    cut = len(text) * 9 // 10
    found = corpus.texts(corpus.files())
    (before,) = overlaps([text[:cut]], [text[cut:]])
    after = found.overlaps
    largest = (largest_share(documents, val) for val in (text[cut:], found.val[0]))
    sizes = " / ".join(f"{len(split[0]):,}" for split in (found.train, found.val, found.test))
    shares = [f"{share:.1%}" for share in (before, *after, *largest)]
    return [corpus.name, f"{len(documents)}", f"{found.n_duplicates}", sizes, *shares]


def sampling_rows(lab: Path, study: str) -> list[list[str]]:
    """Return how far sampled losses are from those of the whole split, over a study's runs and within cells."""
    by_cell: dict[str, list[float]] = {}
    for run in StudyFolder(lab, study).runs():
        end = run.read_end()
        if end and end.best_val_loss and end.best_whole_val_loss:
            by_cell.setdefault(run.cell, []).append(end.best_val_loss / end.best_whole_val_loss - 1)
    off = [each for own in by_cell.values() for each in own]
    several = [statistics.stdev(own) for own in by_cell.values() if len(own) > 1]
    within = statistics.mean(several) if several else 0.0
    mean, sd = statistics.mean(off), statistics.pstdev(off)
    return [
        [
            study,
            f"{len(off)}",
            f"{mean:+.2%}",
            f"{min(off):+.2%} to {max(off):+.2%}",
            f"{sd:.2%}",
            f"{within:.2%}",
        ]
    ]


print(setting())
if len(sys.argv) > 1:
    headings = ["study", "runs", "sampled over whole, mean", "range", "sd", "sd in a cell"]
    print_table(headings, sampling_rows(Path(sys.argv[1]), sys.argv[2]))
else:
    rows = []
    for name in ("python-docs", "python-source", "tinyshakespeare"):
        chosen = CORPORA[name]
        try:
            rows.append(corpus_row(chosen))  # type: ignore[arg-type]
        except BadInput as error:
            print(error)
    for name in ("python-docstrings", "copy", "reverse", "sort", "addition"):
        pairs = CORPORA[name].texts(CORPORA[name].files())
        sizes = " / ".join(f"{len(split) // 2:,} pairs" for split in (pairs.train, pairs.val, pairs.test))
        rows.append([name, "", "", sizes, "", *(f"{share:.1%}" for share in pairs.overlaps), "", ""])
    headings = ["corpus", "documents", "left out", "train / val / test", "before", "val", "test"]
    print_table([*headings, "largest before", "largest"], rows)
