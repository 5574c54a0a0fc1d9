"""The cost of a call: the bundled table, the arithmetic, user tables, and repricing."""

import hashlib
import importlib.resources
import json
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.events import Usage
from dragoman.messages import Request, User
from dragoman.middleware import Observe
from dragoman.middleware.attempts import Attempt
from dragoman.prices import (
    Cost,
    Match,
    PricedAs,
    PricedUse,
    PriceRow,
    PriceTable,
    Tier,
    Unpriced,
    cost,
    reprice,
)
from dragoman.registry import load_vendor, vendor_names
from tests.rows import read_table

from .listed import Listed, reply

D = Decimal
PARTS = ["input", "cached_input", "cache_write", "output", "reasoning"]
# Every vendor of chat models, and the embedded model; Jina has no chat model.
# The vendors without prices: one public list alone has them, or the lists differ.
UNPRICED = {
    "ai21", "baidu", "github", "huggingface", "hyperbolic", "jina", "litellm", "nvidia",
    "ollama-cloud", "portkey", "reka", "requesty", "sambanova", "siliconflow", "snowflake",
    "stepfun", "tencent", "upstage", "venice", "volcengine", "watsonx", "writer",
}  # fmt: skip
PROVIDERS = sorted({*vendor_names(), "local"} - UNPRICED)
JUNE = date(2026, 6, 1)


def row(name: str = "m", provider: str = "p", **fields: Any) -> PriceRow:
    for key, value in fields.items():
        if isinstance(value, str) and key not in ("unpriced", "disputed"):
            fields[key] = D(value)
    return PriceRow(provider, Match(equals=(name,)), **fields)


def table(*rows: PriceRow, **fields: Any) -> PriceTable:
    return PriceTable(rows, version="t", **fields)


def price(usage: Usage, *rows: PriceRow, model: str = "p:m", at: date | datetime = JUNE) -> Cost:
    bill = cost(usage, model, at, table=table(*rows))
    assert isinstance(bill, Cost), bill
    return bill


def refusal(usage: Usage, *rows: PriceRow, model: str = "p:m", at: date | datetime = JUNE) -> str:
    bill = cost(usage, model, at, table=table(*rows))
    assert isinstance(bill, Unpriced)
    assert not bill
    return bill.reason


PLAIN = row(input="3", output="15", cache_read="0.3", cache_write="3.75")
BARE = row(input="3", output="15")


# --- the bundled price table -------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundled() -> PriceTable:
    return PriceTable.bundled()


def test_bundled_price_table_has_a_date_and_a_version(bundled: PriceTable) -> None:
    text = (importlib.resources.files("dragoman") / "catalog" / "prices.json").read_text("utf-8")
    written = json.loads(text)
    rows = written["rows"]
    digest = hashlib.sha256(
        json.dumps(rows + written["terms"], separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()[:8]
    assert bundled.generated_at is not None
    assert bundled.generated_at > date(2026, 1, 1)
    assert bundled.version == f"{bundled.generated_at}.{digest}"
    assert bundled.source.startswith("genai-prices ")
    assert "MIT License" in bundled.licence
    assert "Copyright" in bundled.licence
    assert len(bundled.rows) == len(rows) > 1000


def test_bundled_price_table_has_rows_for_every_provider(bundled: PriceTable) -> None:
    assert sorted({row.provider for row in bundled.rows}) == PROVIDERS
    for provider in PROVIDERS:
        assert any(row.input is not None for row in bundled.rows if row.provider == provider)


def test_prices_that_two_lists_confirm_name_both(bundled: PriceTable) -> None:
    assert set(bundled.sources) == {
        "alibaba", "deepinfra", "inception", "nebius", "perplexity", "vercel", "vertex", "xiaomi",
    }  # fmt: skip
    assert set(bundled.sources.values()) == {
        "litellm 1.109.1 and models.dev in opencode-ai 1.18.33 (2026-09-28)"
    }
    known = bundled.find("nebius:deepseek-ai/DeepSeek-V4-Pro", JUNE)
    assert isinstance(known, PriceRow)
    # the lists differ, and neither is known to be right
    assert isinstance(bundled.find("deepinfra:XiaomiMiMo/MiMo-V2.5", JUNE), Unpriced)
    # besides tokens, each request of this vendor has a price
    sonar = bundled.find("perplexity:sonar-pro", JUNE)
    assert isinstance(sonar, PriceRow)
    assert sonar.input == 3
    assert sonar.ignored == ("requests",)


@pytest.mark.parametrize(
    ("model", "like"),
    [
        ("vertex:gemini-3.8-flash", "google:gemini-3.8-flash"),
        ("vertex:claude-opus-5-5", "anthropic:claude-opus-5-5"),
        ("vertex:claude-opus-4-5@20251101", "anthropic:claude-opus-4-5"),
        ("azure:claude-sonnet-5-5", "anthropic:claude-sonnet-5-5"),
    ],
)
def test_model_at_another_host_has_the_price_of_its_maker(
    bundled: PriceTable, model: str, like: str
) -> None:
    at = datetime(2026, 11, 19, tzinfo=UTC)
    found = bundled.find(model, at)
    assert isinstance(found, PriceRow)
    wanted = bundled.find(like, at)
    assert isinstance(wanted, PriceRow)
    for rate in ("input", "output", "cache_read", "cache_write"):
        assert getattr(found, rate) == getattr(wanted, rate)


def test_every_bundled_price_is_finite_and_not_negative(bundled: PriceTable) -> None:
    kinds = ("input", "output", "cache_read", "cache_write", "reasoning")
    holders = [holder for entry in bundled.rows for holder in (entry, *entry.tiers)]
    rates = [getattr(holder, kind) for holder in holders for kind in kinds]
    known = [rate for rate in rates if rate is not None]
    assert len(known) > 3000
    assert all(rate.is_finite() and rate >= 0 for rate in known)
    sold = [entry for entry in bundled.rows if not entry.free and not entry.unpriced]
    assert all(entry.input or entry.output or entry.search for entry in sold)


CLAUSES = ("equals", "starts_with", "contains", "regex")


def overlap(one: PriceRow, other: PriceRow) -> bool:
    """Return whether both rows are valid at the same time and match the same names."""
    first = date.min
    last = date.max
    later = max(one.valid_from or first, other.valid_from or first)
    if later >= min(one.valid_until or last, other.valid_until or last):
        return False
    if one.hours and other.hours:
        return one.holds_at(other.hours[0]) or other.holds_at(one.hours[0])
    # A row for certain hours takes precedence over a row for the whole day, so the two are not
    # ambiguous.
    return one.hours is other.hours


def ambiguous(rows: tuple[PriceRow, ...]) -> list[tuple[PriceRow, PriceRow]]:
    """Return the pairs of rows with one provider and clause that are valid at one time."""
    sharing: dict[tuple[str, str, str], list[PriceRow]] = {}
    for entry in rows:
        for kind in CLAUSES:
            for text in getattr(entry.match, kind):
                sharing.setdefault((entry.provider, kind, text), []).append(entry)
    return [
        pair for group in sharing.values() for pair in combinations(group, 2) if overlap(*pair)
    ]


def test_no_two_bundled_price_rows_are_valid_for_one_name_at_one_time(bundled: PriceTable) -> None:
    assert ambiguous(bundled.rows) == []
    assert len(ambiguous((*bundled.rows, bundled.rows[0]))) >= 1


def test_check_for_ambiguous_price_rows_finds_ambiguous_rows() -> None:
    first = date(2026, 1, 1)
    later = row(input="1", output="1", valid_from=first)
    sooner = row(input="1", output="1", valid_until=first)
    peak = row(input="1", output="1", hours=(time(1), time(4)))
    peak_2 = row(input="1", output="1", hours=(time(3), time(5)))
    assert ambiguous((BARE, PLAIN)) == [(BARE, PLAIN)]
    assert ambiguous((later, sooner)) == ambiguous((peak, BARE)) == []
    assert ambiguous((later, BARE)) == [(later, BARE)]
    assert ambiguous((peak, peak_2)) == [(peak, peak_2)]


def test_every_bundled_price_row_is_found_by_each_of_its_names(bundled: PriceTable) -> None:
    """Each exact name and each prefix of a row finds it while it is valid."""
    asked = 0
    for entry in bundled.rows:
        first = entry.valid_from or (entry.valid_until or date(2026, 11, 15)) - timedelta(days=1)
        clocks = [entry.hours[0]] if entry.hours else [time(hour, 50) for hour in range(24)]
        for name in (*entry.match.equals, *entry.match.starts_with):
            full = f"{entry.provider}:{name or 'x'}"
            found = (bundled.find(full, datetime.combine(first, clock)) for clock in clocks)
            if entry.unpriced:
                assert all(
                    isinstance(one, Unpriced) and entry.unpriced in one.reason for one in found
                )
            else:
                assert any(one is entry for one in found), (entry, name)
            asked += 1
    assert asked > 1500


def test_well_known_prices_are_found(bundled: PriceTable) -> None:
    """Check some well-known prices, as a guard against a misplaced decimal point."""
    at = date(2026, 11, 1)
    for model, rates in {
        "openai:gpt-4o": ("2.5", "10", "1.25", None),
        "openai:gpt-5": ("1.25", "10", "0.125", None),
        "anthropic:claude-sonnet-4-6": ("3", "15", "0.3", "3.75"),
        "anthropic:claude-opus-4-8": ("5", "25", "0.5", "6.25"),
        "google:gemini-2.5-flash": ("0.3", "2.5", "0.03", None),
    }.items():
        found = bundled.find(model, at)
        assert isinstance(found, PriceRow), found
        expected = tuple(rate and D(rate) for rate in rates)
        assert (found.input, found.output, found.cache_read, found.cache_write) == expected


def test_dated_price_change_takes_effect_on_its_date(bundled: PriceTable) -> None:
    usage = Usage(1_000_000, 0, cached_input_tokens=0)
    before = cost(usage, "openai:o3", date(2025, 6, 9))
    after = cost(usage, "openai:o3", date(2025, 6, 10))
    assert isinstance(before, Cost)
    assert before.total == D(10)
    assert after.total == D(2)
    assert before.row.valid_until == after.row.valid_from == date(2025, 6, 10)


# Costs that xAI and OpenRouter reported for recorded calls (`cost_in_usd_ticks`, `usage.cost`).
# They include cache reads and writes, reasoning, and dates with other prices than today's.
RECORDED_BILLS = {
    "xai:grok-3-mini": (
        date(2026, 2, 11),
        Usage(
            12, 322, cached_input_tokens=2, cache_creation_input_tokens=None, reasoning_tokens=320
        ),
        "0.00016415",
    ),
    "xai:grok-4-fast-reasoning": (
        date(2026, 3, 12),
        Usage(
            468,
            659,
            cached_input_tokens=467,
            cache_creation_input_tokens=None,
            reasoning_tokens=582,
        ),
        "0.00035305",
    ),
    "xai:grok-code-fast-1": (
        date(2026, 3, 12),
        Usage(
            496,
            333,
            cached_input_tokens=320,
            cache_creation_input_tokens=None,
            reasoning_tokens=256,
        ),
        "0.0005411",
    ),
    "openrouter:x-ai/grok-4-fast": (
        date(2025, 11, 2),
        Usage(
            173,
            104,
            cached_input_tokens=150,
            cache_creation_input_tokens=None,
            reasoning_tokens=90,
        ),
        "0.0000641",
    ),
    "openrouter:z-ai/glm-4.5v": (
        date(2025, 11, 2),
        Usage(
            226, 105, cached_input_tokens=4, cache_creation_input_tokens=None, reasoning_tokens=65
        ),
        "0.00032264",
    ),
    "openrouter:anthropic/claude-4.6-sonnet-20260217": (
        date(2026, 3, 8),
        Usage(
            2572, 63, cached_input_tokens=0, cache_creation_input_tokens=2569, reasoning_tokens=0
        ),
        "0.01058775",
    ),
    "openrouter:z-ai/glm-5-turbo-20260315": (
        date(2026, 4, 27),
        Usage(
            359, 55, cached_input_tokens=256, cache_creation_input_tokens=0, reasoning_tokens=21
        ),
        "0.00040504",
    ),
}


@pytest.mark.parametrize("model", RECORDED_BILLS)
def test_cost_equals_the_providers_bill(model: str) -> None:
    at, usage, bill = RECORDED_BILLS[model]
    assert cost(usage, model, at).total == D(bill)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "provider", ["local", *[name for name in vendor_names() if load_vendor(name).local]]
)
def test_local_model_is_free(provider: str) -> None:
    for usage in (Usage(10, 20), Usage()):
        bill = cost(usage, f"{provider}:some/model:with-colons.gguf")
        assert bill.row.free
        assert bill.total == 0
        assert bill.parts == dict.fromkeys(PARTS, D(0))
        assert bill


def test_unknown_cost_is_none_and_not_zero() -> None:
    bill = cost(Usage(1, 1), "nobody:knows")
    assert bill.total is None
    assert bill.parts is None
    assert bill.pricing_version is None
    assert bool(bill) is False
    assert msgspec.to_builtins(bill) == {"type": "unpriced", "reason": bill.reason}


def test_price_table_is_loaded_on_first_use() -> None:
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import dragoman.prices as prices
assert not [path for path in opened if path.endswith("prices.json")]
table = prices.PriceTable.bundled()
assert prices.PriceTable.bundled() is table
assert len([path for path in opened if path.endswith("prices.json")]) == 1
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- computing the cost of a call --------------------------------------------------------------


def test_billed_token_counts_take_precedence_over_processed_ones() -> None:
    rates = row(input="2.5", output="10", cache_read="1", reasoning="20")
    processed = Usage(
        1000,
        100,
        cached_input_tokens=900,
        reasoning_tokens=60,
        billed_input_tokens=40,
        billed_output_tokens=70,
    )
    bill = price(processed, rates)
    expected = {**dict.fromkeys(PARTS, D(0)), "input": D("0.0001"), "output": D("0.0007")}
    assert bill.parts == expected
    assert bill.notes == ()
    # Input and output are handled separately. A billed count of zero costs nothing; if there is no
    # billed count, the processed tokens are priced.
    assert price(
        Usage(1000, 100, billed_input_tokens=0), row(input="2.5", output="10")
    ).total == D("0.001")
    assert price(
        Usage(1000, 100, billed_output_tokens=0), row(input="2.5", output="10")
    ).total == D("0.0025")
    assert price(Usage(10, 10, billed_input_tokens=4, billed_output_tokens=4), rates).notes == ()


def test_cost_of_a_call_is_itemised() -> None:
    bill = price(
        Usage(
            1_000_000,
            200_000,
            cached_input_tokens=600_000,
            cache_creation_input_tokens=100_000,
            reasoning_tokens=50_000,
        ),
        PLAIN,
    )
    assert bill.parts == {
        "input": D("0.9"), "cached_input": D("0.18"), "cache_write": D("0.375"),
        "output": D("2.25"), "reasoning": D("0.75"),
    }  # fmt: skip
    assert bill.total == D("4.455")
    assert bill.currency == "USD"
    assert bill.pricing_version == "t"
    assert bill.row == PLAIN
    assert bill.notes == ()
    assert bill


@pytest.mark.parametrize(
    ("usage", "entry", "notes"),
    [
        (
            Usage(9, 1, cached_input_tokens=4),
            BARE,
            ["no cache_read rate: cached_input is billed at the input rate"],
        ),
        (
            Usage(9, 1, cached_input_tokens=0, cache_creation_input_tokens=4),
            BARE,
            ["no cache_write rate: cache_write is billed at the input rate"],
        ),
        (Usage(9, 1, cached_input_tokens=0, cache_creation_input_tokens=0), BARE, []),
        (Usage(9, 1), BARE, []),
        (
            Usage(9, 1),
            PLAIN,
            ["cached_input_tokens not reported: all input is billed as not cached"],
        ),
        (
            Usage(9, 1, cached_input_tokens=0, estimated=True),
            BARE,
            ["the token counts are estimates"],
        ),
        (Usage(9, 1, cached_input_tokens=0, total_tokens=10), BARE, []),
        (
            Usage(9, 1, cached_input_tokens=0, total_tokens=12),
            BARE,
            ["total_tokens is 12, but input and output add up to 10"],
        ),
        (
            Usage(9, 1, cached_input_tokens=0, cache_creation_input_tokens=4),
            row(input="1", output="2", cache_write="1.25", ignored=("cache_write_1h",)),
            [
                "cache writes are billed at the rate of the shortest lifetime; longer ones cost "
                "more"
            ],
        ),
        (
            Usage(9, 1, cached_input_tokens=0),
            row(input="1", output="2", reasoning="3"),
            ["reasoning_tokens not reported: all output is billed at the output rate"],
        ),
        (
            Usage(9, 1, cached_input_tokens=0),
            row(input="1", output="2", disputed="another table has input 2"),
            ["sources disagree: another table has input 2"],
        ),
    ],
)
def test_assumptions_of_a_cost_are_noted(usage: Usage, entry: PriceRow, notes: list[str]) -> None:
    assert list(price(usage, entry).notes) == notes


@pytest.mark.parametrize(("usage", "reason"), read_table("usage_that_cannot_be_billed"))
def test_usage_that_cannot_be_billed_is_unpriced(usage: dict[str, Any], reason: str) -> None:
    assert refusal(Usage(**usage), PLAIN).startswith(reason)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("p:other", "no price for p:other on 2026-06-01"),
        ("other:m", "no price for other:m on 2026-06-01"),
        ("m", "not a model of the form provider:name: 'm'"),
        (":m", "not a model of the form provider:name: ':m'"),
        ("p:", "not a model of the form provider:name: 'p:'"),
    ],
)
def test_unknown_cost_has_a_reason_and_is_never_zero(model: str, reason: str) -> None:
    assert refusal(Usage(1, 1), PLAIN, model=model) == reason


def test_model_name_is_split_at_the_first_colon_ignoring_case() -> None:
    entry = row("maker/model:free:x", "Router", input="1", output="1")
    assert price(Usage(1, 1), entry, model="router:maker/Model:FREE:x").row is entry
    assert price(Usage(1, 1), entry, model="ROUTER:maker/model:free:x").notes == ()


# --- price tiers, and prices that depend on the date or hour -----------------------------------

TIERED = row(
    input="1",
    output="10",
    cache_read="0.1",
    tiers=(
        Tier(above=100, input=D(2), output=D(20)),
        Tier(above=200, input=D(4), cache_read=D("0.4")),
    ),
)


@pytest.mark.parametrize(
    ("tokens", "rates"),
    [
        (100, ("1", "0.1", "10")),
        (101, ("2", "0.1", "20")),
        (200, ("2", "0.1", "20")),
        (201, ("4", "0.4", "10")),
    ],
)
def test_price_tier_applies_to_all_tokens_of_a_call(tokens: int, rates: tuple[str, ...]) -> None:
    parts = price(Usage(tokens, 7, cached_input_tokens=50), TIERED).parts
    million = Decimal(10**6)
    assert parts["input"] == (tokens - 50) * D(rates[0]) / million
    assert parts["cached_input"] == 50 * D(rates[1]) / million
    assert parts["output"] == 7 * D(rates[2]) / million


@pytest.mark.parametrize(
    ("at", "rate"),
    [
        (date(2025, 12, 31), None),
        (date(2026, 1, 1), 1),
        (date(2026, 2, 28), 1),
        (date(2026, 3, 1), 2),
        (datetime(2026, 2, 28, 23, 59), 1),
        # this time is still in February in UTC
        (datetime(2026, 3, 1, 0, 30, tzinfo=timezone(timedelta(hours=2))), 1),
        (datetime(2026, 2, 28, 23, 30, tzinfo=timezone(timedelta(hours=-2))), 2),
    ],
)
def test_price_row_that_is_valid_at_the_time_is_used(at: date, rate: int | None) -> None:
    rows = [
        row(input="1", output="1", valid_from=date(2026, 1, 1), valid_until=date(2026, 3, 1)),
        row(input="2", output="2", valid_from=date(2026, 3, 1)),
    ]
    if rate is None:
        assert refusal(Usage(1, 1), *rows, at=at) == "no price for p:m on 2025-12-31"
    else:
        assert price(Usage(1_000_000, 0), *rows, at=at).total == rate


def test_call_without_a_date_is_priced_as_of_today() -> None:
    today = datetime.now(UTC).date()
    days = table(
        row(input="1", output="1", valid_until=today - timedelta(days=1)),
        row(input="2", output="2"),
    )
    assert cost(Usage(1_000_000, 0), "p:m", table=days).total == 2  # type: ignore[union-attr]


def test_time_of_a_call_must_be_a_date_or_datetime() -> None:
    with pytest.raises(TypeError, match=r"at: must be a date or a datetime, not str"):
        cost(Usage(1, 1), "p:m", "2026-01-01", table=table(BARE))  # type: ignore[arg-type]


def hourly(start: int, end: int) -> list[PriceRow]:
    peak = row(input="2", output="2", hours=(time(start), time(end)))
    return [peak, row(input="1", output="1")]


@pytest.mark.parametrize(
    ("span", "hour", "rate"),
    [
        ([1, 4], 0, 1),
        ([1, 4], 1, 2),
        ([1, 4], 3, 2),
        ([1, 4], 4, 1),
        ([22, 2], 23, 2),
        ([22, 2], 1, 2),
        ([22, 2], 2, 1),
    ],
)
def test_price_can_depend_on_the_time_of_day(span: tuple[int, int], hour: int, rate: int) -> None:
    at = datetime(2026, 6, 1, hour)
    assert price(Usage(1_000_000, 0), *hourly(*span), at=at).total == rate


def test_date_without_a_time_is_not_enough_for_hourly_prices() -> None:
    assert (
        refusal(Usage(1, 1), *hourly(1, 4))
        == "the price of p:m depends on the hour; give `at` as a datetime"
    )


def test_row_marked_as_unpriced_takes_precedence_over_a_broader_row() -> None:
    wide = PriceRow("p", Match(starts_with=("m",)), input=D(1), output=D(1))
    kept = row("m-image", unpriced="not a text model")
    assert refusal(Usage(1, 1), kept, wide, model="p:m-image") == "p:m-image: not a text model"
    assert price(Usage(1, 1), kept, wide, model="p:m-other").row is wide


def test_price_of_a_reseller_falls_back_to_the_makers_price_with_a_note() -> None:
    resold = table(row(provider="maker", input="1", output="1"), fallback={"reseller": ("maker",)})
    bill = cost(Usage(1, 1), "reseller:m", JUNE, table=resold)
    assert bill.notes == ("reseller has no row for this model; the price is that of maker",)
    assert not cost(Usage(1, 1), "stranger:m", JUNE, table=resold)


def test_price_rows_match_model_names_ignoring_case() -> None:
    match = Match(("Exact",), ("pre-",), ("mid",), ("^a.c$",))
    for name in ("exact", "EXACT", "pre-", "Pre-x", "x-MID-y", "abc", "ABC"):
        assert match.covers(name), name
    for name in ("exact2", "xpre-", "mi", "abcd", ""):
        assert not match.covers(name), name


# --- cost properties that hold for all prices and usages ---------------------------------------

amounts = st.decimals(min_value=0, max_value=10**6, places=6)


@st.composite
def usages(draw: st.DrawFn, largest: int) -> Usage:
    whole = draw(st.integers(0, largest))
    out = draw(st.integers(0, largest))
    cached = draw(st.integers(0, whole))
    parts = {
        "cached_input_tokens": cached,
        "cache_creation_input_tokens": draw(st.integers(0, whole - cached)),
        "reasoning_tokens": draw(st.integers(0, out)),
    }
    stated = {name: part for name, part in parts.items() if part or draw(st.booleans())}
    return Usage(whole, out, **stated)


@st.composite
def rows(draw: st.DrawFn) -> PriceRow:
    rates: dict[str, Any] = {name: draw(amounts) for name in ("input", "output")}
    for name in ("cache_read", "cache_write", "reasoning"):
        rates[name] = draw(st.none() | amounts)
    if not (rates["input"] or rates["output"]):
        rates["output"] = D("0.01")
    return PriceRow("p", Match(("m",)), **rates)


@given(usages(10**18), rows())
def test_parts_of_a_cost_sum_to_the_total_exactly(usage: Usage, entry: PriceRow) -> None:
    cached = usage.cached_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    reasoned = usage.reasoning_tokens or 0

    def rate(*names: str) -> Fraction:
        rates = [value for name in names if (value := getattr(entry, name)) is not None]
        return Fraction(rates[0]) / 10**6

    with localcontext(prec=3):  # the decimal precision of the caller must not affect the result
        bill = price(usage, entry)
    parts = {part: Fraction(value) for part, value in bill.parts.items()}
    assert parts == {
        "input": (usage.input_tokens - cached - written) * rate("input"),
        "cached_input": cached * rate("cache_read", "input"),
        "cache_write": written * rate("cache_write", "input"),
        "output": (usage.output_tokens - reasoned) * rate("output"),
        "reasoning": reasoned * rate("reasoning", "output"),
    }
    assert list(parts) == PARTS
    assert sum(parts.values()) == Fraction(bill.total)


# --- price tables of the user ------------------------------------------------------------------

GOOD_YAML = """
version: mine-1
rows:
  - provider: openai
    match: {equals: [gpt-5], starts_with: [ft:gpt-5]}
    input: 1
    output: 2.10
    cache_read: "0.1"
    tiers: [{above: 1000, input: 3}]
    valid_from: 2026-01-01
    hours: ["01:00:00", "04:00:00"]
  - {provider: lab, match: {starts_with: [""]}, free: true}
"""


def test_price_table_is_read_from_yaml_or_json(tmp_path: Path) -> None:
    yaml_file = tmp_path / "prices.yaml"
    json_file = tmp_path / "prices.json"
    yaml_file.write_text(GOOD_YAML)
    mine = PriceTable.load(yaml_file)
    assert mine.version == "mine-1"
    first, free = mine.rows
    assert first.input == D(1)
    assert first.output == D("2.1")
    assert first.cache_read == D("0.1")
    assert first.tiers == (Tier(above=1000, input=D(3)),)
    assert first.valid_from == date(2026, 1, 1)
    assert first.hours == (time(1), time(4))
    assert free.free is True
    assert free.input == 0
    assert free.output == 0
    json_file.write_bytes(msgspec.json.encode(mine))
    assert PriceTable.load(json_file) == mine
    fields = '"provider": "p", "match": {"equals": ["m"]}, "input": 0.100000000000000001'
    json_file.write_text(f'{{"rows": [{{{fields}, "output": 1}}]}}')
    assert PriceTable.load(str(json_file)).rows[0].input == D("0.100000000000000001")


def test_overriding_row_wins_and_changes_the_version(tmp_path: Path, bundled: PriceTable) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(
        "rows: [{provider: openai, match: {contains: [gpt]}, input: 7, output: 9, valid_from: "
        "2026-01-01}]"
    )
    mine = bundled.with_overrides(PriceTable.load(file).rows)
    usage = Usage(1_000_000, 0, cached_input_tokens=0)
    new = cost(usage, "openai:gpt-5", JUNE, table=mine)
    assert new.total == 7
    assert new.pricing_version == mine.version != bundled.version
    assert mine.version.startswith(bundled.version + "+")
    assert cost(usage, "openai:gpt-5", date(2025, 12, 31), table=mine).total == D("1.25")  # type: ignore[union-attr]
    assert cost(usage, "openai:gpt-5", JUNE).total == D("1.25")  # type: ignore[union-attr]
    assert len(mine.rows) == len(bundled.rows) + 1
    assert mine.generated_at == bundled.generated_at


def test_different_overriding_rows_give_different_table_versions() -> None:
    base = table(BARE)
    versions = {base.with_overrides(rows).version for rows in ([BARE], [PLAIN], [BARE, PLAIN])}
    assert len(versions) == 3
    assert base.with_overrides([BARE]).version in versions
    assert PriceTable((BARE,)).version != PriceTable((PLAIN,)).version != ""


BAD_FIELDS = read_table("wrong_prices")


@pytest.mark.parametrize(("fields", "problem"), BAD_FIELDS, ids=lambda value: str(value)[:50])
def test_invalid_price_row_is_named(tmp_path: Path, fields: dict[str, Any], problem: str) -> None:
    good = {"provider": "p", "match": {"equals": ["m"]}, "input": "1", "output": "2"}
    bad = {key: value for key, value in {**good, **fields}.items() if value is not None}
    for name in ("mine.json", "mine.yaml"):  # this JSON file is valid YAML too
        file = tmp_path / name
        file.write_text(json.dumps({"rows": [good, bad]}))
        with pytest.raises(ValueError) as caught:
            PriceTable.load(file)
        line = "1: " if name.endswith("yaml") else " "
        assert str(caught.value).startswith(f"{file}:{line}rows[1]{problem}")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        *read_table("invalid_price_file_is_rejected"),
        ("a.json", "[" * 100_000, " nested too deeply"),
    ],
)
def test_bad_price_file_is_rejected(tmp_path: Path, name: str, text: str, problem: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ValueError) as caught:
        PriceTable.load(file)
    assert str(caught.value).startswith(f"{file}:{problem}")


def test_price_row_made_in_code_is_validated() -> None:
    with pytest.raises(ValueError, match="input: must be a Decimal, not float"):
        PriceRow("p", Match(("m",)), input=0.1, output=D(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"tiers\.above: must be a whole number"):
        Tier(above=1.5)  # type: ignore[arg-type]


# --- repricing earlier calls -------------------------------------------------------------------


def test_repricing_gives_old_cost_new_cost_and_difference() -> None:
    new_table = PriceTable((row(input="3", output="1"),), version="n")
    usage = Usage(1_000_000, 500_000)
    before = cost(usage, "p:m", JUNE, table=table(row(input="2", output="2")))
    records: list[Any] = [
        PricedUse(usage, "p:m", JUNE, before), (usage, "p:m", JUNE, D(5)),
        (usage, "p:m", JUNE, None), (usage, "p:m", JUNE, Unpriced("then unknown")),
        (usage, "p:gone", JUNE, D(1)), (usage, "p:m", None, D(1)),
    ]  # fmt: skip
    results = list(reprice(iter(records), new_table))
    assert [result.old for result in results] == [D(3), D(5), None, None, D(1), D(1)]
    assert [result.difference for result in results] == [D("0.5"), D("-1.5"), *[None] * 4]
    assert [result.new.total for result in results] == [*[D("3.5")] * 4, None, None]
    assert results[0].new.pricing_version == "n"
    assert results[4].new == Unpriced("no price for p:gone on 2026-06-01")
    assert results[5].new == Unpriced("the record has no time")
    assert results[1].use == PricedUse(usage, "p:m", JUNE, D(5))


def test_repricing_uses_the_prices_of_the_date_of_the_call() -> None:
    dated = table(
        row(input="1", output="1", valid_until=date(2026, 1, 1)),
        row(input="2", output="2", valid_from=date(2026, 1, 1)),
    )
    usage = Usage(1_000_000, 0)
    uses = [PricedUse(usage, "p:m", day, D(1)) for day in (date(2025, 12, 31), date(2026, 1, 1))]
    assert [result.difference for result in reprice(uses, dated)] == [0, 1]


def test_repricing_reads_its_input_lazily() -> None:
    def endless() -> Any:
        while True:
            yield (Usage(1, 1), "p:m", JUNE, None)

    assert next(reprice(endless(), table(BARE))).new


def test_cost_round_trips_through_json() -> None:
    bill = price(Usage(1_000, 200, cached_input_tokens=100), PLAIN)
    assert msgspec.json.decode(msgspec.json.encode(bill), type=Cost | Unpriced) == bill
    unknown = Unpriced("why")
    assert msgspec.json.decode(msgspec.json.encode(unknown), type=Cost | Unpriced) == unknown


def test_cost_that_a_provider_states_counts_if_no_price_is_known(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.middleware.attempts._DIFFER", set())
    usage = Usage(10, 5, stated_cost_usd=D("0.0123"))
    stated = cost(usage, "openrouter:x/y")
    assert stated.total == D("0.0123")
    assert stated.pricing_version == "stated"
    assert cost(Usage(10, 5), "openrouter:x/y").total is None
    counted = cost(usage, PricedAs("anthropic:claude-sonnet-4-6"))
    assert counted.total == D("0.000105")
    assert counted.notes[-1] == "the provider states a cost of $0.0123"
    for sold, warned in (("stated-alone:m", 0), ("anthropic:claude-sonnet-4-6", 1)):
        model = Listed(name="p")
        model.priced_as = sold
        for _ in range(2):
            attempt = Attempt(model, Request((User("Hi"),), model="m"))
            attempt.usage = usage
            bill = attempt.bill()
        assert bill["cost_usd"] == (D("0.000105") if warned else D("0.0123"))
        assert caplog.text.count(f"{sold}: the provider states a cost of $0.012300") == warned


def test_stated_cost_of_a_seller_that_chooses_the_price_is_the_cost() -> None:
    usage = Usage(1000, 100, stated_cost_usd=Decimal("0.5"))
    found = cost(usage, "openrouter:openai/gpt-5")
    assert found.total == Decimal("0.5")
    assert [note for note in found.notes if "the price table gives $" in note] != []
    table = PriceTable.default().find("openrouter:openai/gpt-5")
    assert isinstance(table, PriceRow)
    computed = cost(replace(usage, stated_cost_usd=None), "openrouter:openai/gpt-5")
    assert computed.total not in (None, Decimal("0.5"))
    # another seller's statement, and a row of the caller's own, do not replace the table
    assert cost(usage, "openai:gpt-5").total == computed.total
    assert PricedAs("openrouter:openai/gpt-5", table).cost(usage).total == computed.total


async def test_difference_between_the_stated_cost_and_the_table_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for stated, warned in (("0.5", True), ("0.00225", False)):
        caplog.clear()
        seen: list[Any] = []
        model = Listed(
            reply("ok", usage=Usage(1000, 100, stated_cost_usd=Decimal(stated))),
            name="openrouter", model=f"openai/gpt-5{'' if warned else ':floor'}",
        )  # fmt: skip
        observed = Observe(model, seen.append)
        await observed.complete("hi")
        await observed.close()
        assert seen[-1].cost_usd == Decimal(stated)
        assert ("the price table gives" in caplog.text) is warned
