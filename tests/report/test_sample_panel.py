"""What was given and what was found of a sample are told apart."""

from __future__ import annotations

import pytest

from sweeplab.report.panels.runs import parts

GIVEN, FOUND = False, True


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("ab", "abcd", ((GIVEN, "ab"), (FOUND, "cd"))),
        ("a[MASK]b[MASK]", "axbyy", ((GIVEN, "a"), (FOUND, "x"), (GIVEN, "b"), (FOUND, "yy"))),
        ("[MASK]b", "xb", ((FOUND, "x"), (GIVEN, "b"))),
        ("12+3", "15", ((GIVEN, "12+3\n"), (FOUND, "15"))),
        ("a", "ba", ((GIVEN, "a\n"), (FOUND, "ba"))),
    ],
)
def test_parts_of_a_text(prompt: str, text: str, expected: tuple[tuple[bool, str], ...]) -> None:
    assert parts(prompt, text) == expected
