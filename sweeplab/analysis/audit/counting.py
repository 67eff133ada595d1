"""Checks of what is counted: the embeddings in N, the head in C.

Both are a large part of a small model and a small part of a large one, so they bend what should be a power law
(Pearce and Song 2024, Reconciling Kaplan and Chinchilla scaling laws; Porian et al. 2024, Resolving discrepancies
in compute-optimal scaling of language models).
"""

from __future__ import annotations

import numpy as np

from sweeplab.analysis.audit.evidence import CLEAR, FOUND, UNKNOWN, Evidence, Finding, ends, share

LARGE = 0.1  # a part of N or C from which on it shows in an exponent


def embeddings_in_n(evidence: Evidence) -> Finding:
    """Find points whose N is to a large part embeddings."""
    counted = {"total": "n_params", "active": "n_params_active"}.get(evidence.conventions.chosen("params"))
    if counted is None:
        return Finding(CLEAR, "N leaves the embeddings out")
    embeddings = evidence.numbers("n_params") - evidence.numbers("n_params_non_embedding")
    part = embeddings / evidence.numbers(counted)
    if np.isnan(part).any():
        return Finding(UNKNOWN, "the runs do not say how many of their parameters are embeddings")
    names = evidence.names(part > LARGE)
    if not names:
        return Finding(CLEAR, f"embeddings are {ends(part, share)} of N")
    return Finding(
        FOUND,
        f"embeddings are {ends(part, share)} of N, and over {share(LARGE)} of it in {len(names)} of {len(part)} points",
        names,
        evidence.counting("with N without the embeddings", params="non-embedding"),
    )


def head_left_out(evidence: Evidence) -> Finding:
    """Find points whose C leaves a head out that takes a large part of it."""
    per_token = evidence.numbers("train_flops") / evidence.numbers("train_tokens")
    part = 6 * evidence.numbers("vocab_size") * evidence.numbers("n_embd") / per_token
    if np.isnan(part).any():
        return Finding(UNKNOWN, "the runs do not say how wide their head is")
    chosen = evidence.conventions.chosen
    tied = evidence.numbers("tie_weights") == 1
    left_out = tied & (chosen("params") == "non-embedding") & (chosen("flops") == "6nd")
    names = evidence.names(left_out & (part > LARGE))
    if not names:
        how = "left out of C, but small" if left_out.any() else "in C"
        return Finding(CLEAR, f"the head's products, {ends(part, share)} of all, are {how}")
    return Finding(
        FOUND,
        f"C is 6 N D with an N that leaves out the head, whose products are {ends(part, share)} of all",
        names,
        evidence.counting("with N, and so C, with the head", params="with-head"),
    )
