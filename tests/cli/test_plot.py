"""A curve as a terminal shows it: it fits, its ends are where they belong, and what is no number is left out."""

import math

import pytest

from sweeplab.cli.study.show import plot

EMPTY = "\u2800"


def rows(lines: list[str]) -> list[str]:
    return [line.partition("┤")[2] for line in lines if "┤" in line]


def test_a_falling_curve_goes_from_the_upper_left_to_the_lower_right() -> None:
    lines = plot([[(step, 4.0 - step / 100) for step in range(0, 201, 10)]], 20, 5)
    drawn = rows(lines)
    assert {len(row) for row in drawn} == {20} and len(drawn) == 5
    assert drawn[0][0] != EMPTY and drawn[-1][-1] != EMPTY
    assert drawn[0][-1] == EMPTY and drawn[-1][0] == EMPTY
    assert all(row.strip(EMPTY) for row in drawn), "no gap on the way"
    assert lines[0].startswith("4 ┤") and lines[4].startswith("2 ┤")
    assert lines[-1].split() == ["0", "200"] and len(lines[-1]) == len(lines[-2])


def test_what_is_no_number_is_left_out_and_a_lone_point_is_shown() -> None:
    assert plot([[(0, math.nan), (10, math.inf)], []], 20, 5) == []
    (dot,) = [row.strip(EMPTY) for row in rows(plot([[(0, math.nan), (10, 2.5)]], 20, 5)) if row.strip(EMPTY)]
    assert len(dot) == 1


@pytest.mark.parametrize("iteration", [0, 1, 250])
def test_a_curve_of_one_evaluation_lies_on_an_axis_of_iterations(iteration: int) -> None:
    lines = plot([[(iteration, 4.6)]], 20, 5)
    assert lines[-1].split() == ["0", str(max(iteration, 1))], (
        "no run has an iteration below 0, or half of one"
    )
    assert any(row.strip(EMPTY) for row in rows(lines))
    low, high = float(lines[4].split("┤")[0]), float(lines[0].split("┤")[0])
    assert 4.6 * 0.9 < low < 4.6 < high < 4.6 * 1.1


def test_several_curves_share_the_axes() -> None:
    one = rows(plot([[(0, 1.0), (10, 1.0)], [(0, 3.0), (10, 3.0)]], 10, 3))
    assert one[0].strip(EMPTY) and not one[1].strip(EMPTY) and one[2].strip(EMPTY)
