"""Keys of the random generators: one a run's seed and purpose, so that no draw moves another's."""

from __future__ import annotations

import hashlib


def generator_key(seed: int, purpose: str) -> int:
    """Return the key, from 0 to 2**63 - 1, of the generator that serves `purpose` in a run of this seed.

    Purposes are "init", "batches", "dropout" and "evaluation". The key is a hash, so neighbouring seeds
    are as far apart as any two, and it is the same in every process and on every machine.
    """
    return int.from_bytes(hashlib.sha256(f"{purpose}:{seed}".encode()).digest()[:8], "big") >> 1
