"""Test that a call is billed at the rates of the service tier at which it was served.

What counts is the tier that the reply states, else the one that the request asked for. A tier whose
price is not known has no cost, rather than the usual one (sources: the table's ``terms``).
"""

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.calls import CallCompleted
from dragoman.errors import QuotaExceededError, StreamInterruptedError
from dragoman.events import Assembler, Usage
from dragoman.messages import Request, RuntimeConfig
from dragoman.middleware import Observe, Spend
from dragoman.prices import (
    Match,
    PricedAs,
    PriceRow,
    PriceTable,
    TermRow,
    Unpriced,
    cost,
)
from dragoman.wire.terms import list_asked, note_terms

from .sold import INPUT, OUTPUT, SOL, TABLE, Sold, open_model, tier, write_body, write_stream

PLAIN = Usage(INPUT, OUTPUT)


def ask(sold: Sold, most: int = OUTPUT) -> RuntimeConfig:
    return RuntimeConfig(extras=sold.asked, max_tokens=most)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("sold", TABLE, ids=[f"{at}-{row.wire}" for at, row in enumerate(TABLE)])
async def test_call_costs_what_its_service_tier_costs(sold: Sold, stream: bool) -> None:
    model, _ = open_model(sold, (write_stream if stream else write_body)(sold))
    ends: list[CallCompleted] = []
    observed = Observe(model, lambda each: isinstance(each, CallCompleted) and ends.append(each))
    usual = model.priced_as.cost(PLAIN)
    assert usual
    if stream:
        async with observed.stream("Hi", config=ask(sold)) as events:
            async for _ in events:
                pass
        reply = events.response
    else:
        reply = await observed.complete("Hi", config=ask(sold))
    await observed.flush()
    assert reply.usage.input_tokens == INPUT
    assert reply.usage.output_tokens == OUTPUT
    expected = None if sold.factor is None else usual.total * Decimal(sold.factor)
    assert reply.cost.total == expected
    assert ends[0].cost_usd == expected
    assert ends[0].usage.terms == reply.usage.terms
    if sold.factor is None:
        assert reply.usage.terms[0] in str(reply.cost.reason)
        assert ends[0].cost_unknown == reply.cost.reason


ASKED = [row for row in TABLE if row.asked and not row.stated and row.factor is not None]


@pytest.mark.parametrize("sold", ASKED, ids=[row.wire for row in ASKED])
async def test_interrupted_call_is_estimated_at_the_tier_that_it_asked_for(sold: Sold) -> None:
    body = write_stream(sold)
    end = body.index(b"data:", body.index(b'"Hi"')) if b"data:" in body else len(body) - 250
    model, _ = open_model(sold, body[:end])
    with pytest.raises(StreamInterruptedError) as caught:
        async for _ in model.stream("Hi", config=ask(sold)):
            pass
    assert caught.value.response is not None
    usage = caught.value.response.usage
    assert usage.estimated
    usual = model.priced_as.cost(replace(usage, terms=()))
    found = model.priced_as.cost(usage)
    assert usual
    assert found
    assert found.total == usual.total * Decimal(str(sold.factor))


async def test_budget_expects_the_price_of_the_tier_and_refuses_one_of_unknown_price() -> None:
    sold = Sold(SOL, "openai", tier("priority"), tier("priority"), "2")
    usual = cost(PLAIN, SOL)
    assert usual
    model, transport = open_model(sold, write_body(sold))
    # enough at the usual price, since the question has fewer tokens, but not at twice the price
    enough = cost(Usage(100, 4 * OUTPUT), SOL)
    assert enough
    config = ask(sold, 4 * OUTPUT)
    with pytest.raises(QuotaExceededError):
        await Spend(model, usd=enough.total).complete("Hi", config=config)
    with pytest.raises(QuotaExceededError, match="service_tier:scale"):
        await Spend(model, usd=100).complete("Hi", config=replace(config, extras=tier("scale")))
    assert transport.requests == []
    rich = Spend(model, usd=1)
    await rich.complete("Hi", config=ask(sold))
    assert rich.wallet.spent_usd == usual.total * 2


def test_terms_stated_before_the_message_count_from_its_start() -> None:
    out = Assembler(request_id="R", model="m")
    note_terms(out, {"service_tier": "priority"})
    assert out.reported.terms == ()
    out.start()
    assert out.reported.terms == ("service_tier:priority",)


def test_terms_that_a_client_asked_for_on_the_same_wire_are_listed() -> None:
    request = Request([], native={"openai": {"service_tier": "flex"}})
    assert list_asked(request) == ("service_tier:flex",)


def test_terms_of_a_table_of_ones_own_come_first() -> None:
    scale = TermRow(
        provider="openai",
        match=Match(starts_with=("gpt-6",)),
        terms=("service_tier:scale", "service_tier:priority"),
        factor=Decimal(0),
        cache_read=Decimal(1),
    )
    table = PriceTable.bundled().with_overrides((), (scale,))
    assert table.version != PriceTable.bundled().version
    for term in scale.terms:
        used = replace(PLAIN, cached_input_tokens=INPUT, terms=(term,))
        bill = cost(used, SOL, table=table)
        assert bill
        assert bill.total == bill.parts["cached_input"] > 0
    assert not cost(replace(PLAIN, terms=("service_tier:scale",)), "openai:gpt-5.5", table=table)


def test_table_file_has_terms(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(
        "rows: []\nterms:\n  - provider: OpenAI\n    match: {starts_with: [gpt-6]}\n"
        "    terms: ['service_tier:scale']\n    factor: '1'\n"
    )
    [row] = PriceTable.load(file).terms
    assert row.provider == "openai"
    assert row.factor == 1
    file.write_text(file.read_text().replace("'1'", "'-1'"))
    with pytest.raises(ValueError, match="factor"):
        PriceTable.load(file)


def test_price_row_of_ones_own_is_multiplied_too() -> None:
    row = PriceRow("openai", Match(("gpt-6-sol",)), input=Decimal(1), output=Decimal(1))
    sold = PricedAs(SOL, row)
    usual = sold.cost(PLAIN)
    fast = sold.cost(replace(PLAIN, terms=("service_tier:fast",)))
    assert usual
    assert fast
    assert fast.total == 2 * usual.total
    assert fast.notes[0] == "service_tier:fast: 2 times the usual rates"
    assert isinstance(sold.cost(replace(PLAIN, terms=("service_tier:x",))), Unpriced)


def test_free_models_stay_free_and_a_stated_cost_is_taken() -> None:
    sold = replace(PLAIN, terms=("service_tier:x",))
    free = cost(sold, "ollama:llama")
    assert free
    assert free.total == 0
    stated = cost(replace(sold, stated_cost_usd=Decimal("0.5")), SOL)
    assert stated
    assert stated.total == Decimal("0.5")


def test_every_bundled_row_of_terms_has_a_source_a_day_and_a_priced_model() -> None:
    table = PriceTable.bundled()
    for row in table.terms:
        assert "; " in row.source or "litellm" in row.source
        assert row.as_of is not None
        assert row.as_of >= date(2026, 11, 19)
        assert row.factor > 0
        names = [
            name
            for each in table.rows
            if each.provider == row.provider
            for name in (*each.match.equals, *each.match.starts_with)
        ]
        assert any(row.match.covers(name) for name in names), row
