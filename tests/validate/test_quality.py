"""The quality of tool calls: rates with intervals, and replies without calls to judge."""

import pytest

import dragoman as d
from dragoman.validate.quality import Rate, judge_calls


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [(0, 0, 0, 1), (0, 10, 0, 0.2775), (5, 10, 0.2366, 0.7634), (1, 20, 0.0089, 0.2361),
     (20, 20, 0.8389, 1)],
)  # fmt: skip
def test_rate_has_the_wilson_interval(count: int, total: int, low: float, high: float) -> None:
    rate = Rate(count, total)
    assert round(rate.low, 4) == low
    assert round(rate.high, 4) == high


def test_rate_is_printed_with_its_interval() -> None:
    assert str(Rate(5, 10)) == "50.0% (23.7%-76.3%)"
    assert str(Rate(0, 0)) == "-"
    assert Rate(0, 0).to_data()["share"] is None


def test_request_without_tools_has_no_calls_to_judge() -> None:
    assert judge_calls(d.Request([d.User("x")]), None) == {}
