"""Each family learns what the synthetic corpora ask, to nearly every letter of a whole target."""

from __future__ import annotations

import pytest
from benchmarks.families import MATCHES, ROWS, effective, trained

from sweeplab.data.dataset import prepare


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoder-reverse", "encoder-copy", "encoder_decoder-reverse"])
def test_a_family_learns_a_rule(name: str, one_thread) -> None:
    row = ROWS[name]
    data = prepare(row.corpus, row.tokenizer)
    assert trained(row, data, effective(row, data)).matches >= MATCHES
