"""A number in a usage record that no call can have is unknown, and a warning reports it."""

from decimal import Decimal
from typing import Any

import pytest

from dragoman.events import MAX_COST, MAX_COUNT, Assembler, Usage, bound_usage, find_absurd

COUNTS = [
    name
    for name in Usage.__struct_fields__
    if name not in ("estimated", "stated_cost_usd", "from_cache", "terms")
]
HUGE = [-1, -(2**63), MAX_COUNT + 1, 2**63, 10**30, 10**400]
WRONG_COSTS = ["-1", "NaN", "Infinity", "-Infinity", "1000000.01", "1e400", "1e-400", "1e9999999"]


@pytest.mark.parametrize("count", HUGE, ids=lambda count: str(count)[:12])
@pytest.mark.parametrize("name", COUNTS)
def test_count_outside_its_range_is_unknown(name: str, count: int) -> None:
    usage = Usage(**{**dict.fromkeys(COUNTS, 7), name: count})
    assert find_absurd(usage) == name
    bounded, warnings = bound_usage(usage)
    assert bounded == Usage(**{**dict.fromkeys(COUNTS, 7), name: None})
    assert [(warning.code, warning.path) for warning in warnings] == [
        ("usage_dropped", f"usage.{name}")
    ]


@pytest.mark.parametrize("amount", WRONG_COSTS)
def test_stated_cost_outside_its_range_is_unknown(amount: str) -> None:
    bounded, warnings = bound_usage(Usage(7, 3, stated_cost_usd=Decimal(amount)))
    assert bounded == Usage(7, 3)
    assert [warning.path for warning in warnings] == ["usage.stated_cost_usd"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        dict.fromkeys(COUNTS, 0),
        dict.fromkeys(COUNTS, MAX_COUNT),
        {"stated_cost_usd": MAX_COST},
        {"stated_cost_usd": Decimal("1.4999999999999999e-05")},
        {"stated_cost_usd": Decimal(0)},
    ],
)
def test_number_within_its_range_is_kept(fields: dict[str, Any]) -> None:
    usage = Usage(**fields)
    assert bound_usage(usage) == (usage, ())
    assert find_absurd(usage) is None


def test_count_that_is_reported_with_every_chunk_is_reported_as_lost_once() -> None:
    out = Assembler()
    out.start()
    for _ in range(3):
        out.usage(Usage(10**30, 3))
    out.finish("stop")
    response = out.response
    assert response is not None
    assert response.usage == Usage(output_tokens=3)
    assert [warning.path for warning in response.warnings] == ["usage.input_tokens"]
