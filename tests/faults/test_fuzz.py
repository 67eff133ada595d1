"""2,000 random changes of what people write or bring: none ends in a traceback, late, or in much memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.fuzz import KINDS, tried

COUNTS = {"study": 90, "table": 220, "dashboard": 1040, "import": 650}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_changed_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    found = {case: tried(kind, 0, case, tmp_path) for case in range(COUNTS[kind])}
    wrong = [f"--- {kind} 0/{case}\n{each.wrong}" for case, each in found.items() if each.wrong]
    assert not wrong, "\n".join(wrong[:20])
    ends = {each.end for each in found.values()}
    assert ends == {"read", "refused"}, "the changes are neither too small nor too large"
