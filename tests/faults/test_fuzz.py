"""Random changes of what people write or bring: none ends in a traceback, late, or in much memory."""

import pytest
from faults.fuzz import KINDS, tried

COUNTS = {"study": 45, "table": 110, "dashboard": 520, "import": 325}


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_changed_is_read_or_refused(kind, part, tmp_path):
    cases = range(part * COUNTS[kind], (part + 1) * COUNTS[kind])
    found = {case: tried(kind, 0, case, tmp_path) for case in cases}
    wrong = [f"--- {kind} 0/{case}\n{each.wrong}" for case, each in found.items() if each.wrong]
    assert not wrong, "\n".join(wrong[:20])
    ends = {each.end for each in found.values()}
    assert ends == {"read", "refused"}, "the changes are neither too small nor too large"
