"""Test Spend: no call is sent that the wallet does not cover, and each cost is counted once."""

import asyncio
import random
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import dragoman as d
from dragoman import Fallback, Retry, Spend, Wallet
from dragoman.errors import OverloadedError
from dragoman.events import Usage
from dragoman.middleware import describe
from dragoman.prices import Match, PriceRow
from tests.listed import Clock, Listed, reply
from tests.server import Connection, serve
from tests.waiting import arrival, settle

# One output token costs one US dollar; input is free.
DOLLAR = PriceRow("listed", Match(equals=("m",)), input=Decimal(0), output=Decimal(1_000_000))


def make(*answers: Any, price: PriceRow = DOLLAR, **settings: Any) -> Listed:
    model = Listed(*answers, **settings)
    model.priced_as = price
    return model


def spoken(output: int, input_tokens: int = 10) -> Any:
    return reply("text", usage=Usage(input_tokens=input_tokens, output_tokens=output))


async def ask(model: d.Provider, tokens: int | None = None) -> d.Response | d.QuotaExceededError:
    config = {} if tokens is None else {"max_tokens": tokens}
    try:
        return await model.complete("Hi", **config)  # type: ignore[arg-type]
    except d.QuotaExceededError as error:
        return error


def count(results: list[Any]) -> tuple[int, int]:
    refused = [each for each in results if isinstance(each, d.QuotaExceededError)]
    return len(results) - len(refused), len(refused)


async def test_budget_is_exact_for_200_concurrent_calls() -> None:
    inner = make(spoken(5), repeat=True)
    model = Spend(inner, usd=187)
    results = await asyncio.gather(*[ask(model, 5) for _ in range(200)])
    assert count(results) == (37, 163)  # 38 calls would cost 190 dollars
    assert len(inner.requests) == 37
    assert model.wallet.spent_usd == 185
    assert model.wallet.reserved_usd == 0
    assert model.wallet.left_usd == 2


async def test_wallet_is_exact_for_layers_that_share_it() -> None:
    wallet = Wallet(usd=100)
    models = [Spend(make(spoken(output), repeat=True), wallet) for output in (1, 2, 3)]
    results = await asyncio.gather(*[ask(models[at % 3], at % 3 + 1) for at in range(200)])
    done = [each for each in results if isinstance(each, d.Response)]
    assert wallet.spent_usd == sum(each.usage.output_tokens or 0 for each in done)
    assert 98 <= wallet.spent_usd <= 100
    assert wallet.reserved_usd == 0


async def test_refused_call_is_not_sent_and_says_why() -> None:
    inner = make(spoken(5), repeat=True)
    model = Spend(inner, usd="4.50")
    refused = await ask(model, 5)
    assert isinstance(refused, d.QuotaExceededError)
    assert inner.requests == []
    assert "$0 of $4.5" in str(refused)
    assert "this call may cost $5" in str(refused)
    assert "max_tokens" in str(refused)
    assert refused.provider_code == "budget"
    assert not refused.transient
    with pytest.raises(d.QuotaExceededError):
        async with model.stream("Hi", max_tokens=5) as stream:
            [event async for event in stream]
    assert isinstance(await ask(model, 4), d.Response)


async def test_call_waits_for_the_calls_in_flight_and_is_sent_if_they_leave_enough() -> None:
    release = asyncio.Event()

    def slowly(request: d.Request) -> list[Any]:
        return [release, *spoken(1)(request)]

    inner = make(slowly, spoken(3))
    model = Spend(inner, usd=5)
    first = asyncio.ensure_future(ask(model, 4))
    second = asyncio.ensure_future(ask(model, 4))
    await settle()
    assert len(inner.requests) == 1
    assert model.wallet.reserved_usd == 4
    release.set()
    results = await arrival(asyncio.gather(first, second), "both calls")
    assert count(results) == (2, 0)  # the first call cost 1 dollar, so that 4 are left
    assert model.wallet.spent_usd == 4


async def test_cancelled_wait_does_not_block_the_calls_behind_it() -> None:
    release = asyncio.Event()
    inner = make(lambda request: [release, *spoken(1)(request)], spoken(1))
    model = Spend(inner, usd=5)
    first, waiting, last = (asyncio.ensure_future(ask(model, size)) for size in (3, 4, 2))
    await settle()
    assert len(inner.requests) == 1
    waiting.cancel()
    await settle()
    assert isinstance(await arrival(last, "the last call"), d.Response)
    release.set()
    assert isinstance(await arrival(first, "the first call"), d.Response)
    assert model.wallet.spent_usd == 2


async def test_without_max_tokens_the_first_call_runs_alone_and_teaches_the_cost() -> None:
    inner = make(spoken(5), repeat=True)
    model = Spend(inner, usd=52)
    results = await asyncio.gather(*[ask(model) for _ in range(200)])
    assert count(results) == (10, 190)
    assert model.wallet.spent_usd == 50


async def test_cost_of_a_reply_that_is_longer_than_expected_is_counted() -> None:
    model = Spend(make(spoken(1), spoken(100), spoken(1)), usd=50)
    results = [await ask(model) for _ in range(3)]
    assert count(results) == (2, 1)
    assert model.wallet.spent_usd == 101
    assert model.wallet.left_usd == 0


async def test_each_attempt_of_a_retry_is_counted() -> None:
    def broken(request: d.Request) -> list[Any]:
        error = d.TimedOutError("late", which="read")
        return [error]

    inner = make(
        broken,
        spoken(5),
        price=PriceRow(
            "listed", Match(equals=("m",)), input=Decimal(10**6), output=Decimal(10**6)
        ),
    )
    clock = Clock()
    model = Spend(Retry(inner, max_retries=1, clock=clock, sleep=clock.sleep), usd=100)
    reply = await model.complete("Hi", max_tokens=5)
    # The server may have processed the request that timed out, so its input is counted.
    [lost] = reply.failed
    assert lost.cost_usd is not None
    assert model.wallet.spent_usd == 15 + lost.cost_usd


async def test_rejected_call_costs_nothing() -> None:
    inner = make(OverloadedError("busy"), spoken(5))
    model = Spend(inner, usd=5)
    with pytest.raises(OverloadedError):
        await model.complete("Hi", max_tokens=5)
    assert model.wallet.left_usd == 5
    assert isinstance(await ask(model, 5), d.Response)


async def _speak_and_wait(connection: Connection) -> None:
    connection.begin_stream()
    connection.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"one two three"}}]}\n\n')
    await connection.writer.drain()
    await asyncio.Event().wait()


async def test_cost_of_a_closed_stream_is_counted() -> None:
    async with serve(_speak_and_wait) as server:
        inner = d.connect("m", base_url=server.base_url, priced_as=DOLLAR)
        async with Spend(inner, usd=1000) as model:
            async with model.stream("Hi", max_tokens=100) as stream:
                async for _ in stream.text():
                    break
            await asyncio.sleep(0)
            assert model.wallet.spent_usd == stream.response.usage.output_tokens
            assert model.wallet.spent_usd > 0
            assert model.wallet.reserved_usd == 0


async def test_cost_of_a_cancelled_call_is_counted() -> None:
    heard = asyncio.Event()

    async def answer(connection: Connection) -> None:
        heard.set()
        await _speak_and_wait(connection)

    row = replace(DOLLAR, input=Decimal(10**6))
    async with serve(answer) as server:
        inner = d.connect("m", base_url=server.base_url, priced_as=row)
        async with Spend(inner, usd=1000) as model:
            call = asyncio.ensure_future(model.complete("Count to three.", max_tokens=100))
            await arrival(heard.wait(), "the request")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            asked = model.estimate_input_tokens("Count to three.")
            assert model.wallet.spent_usd >= asked > 0
            assert model.wallet.reserved_usd == 0


async def test_group_reserves_the_cost_of_its_most_expensive_model() -> None:
    cheap = make(
        spoken(1),
        price=PriceRow("listed", Match(equals=("m",)), input=Decimal(0), output=Decimal(1)),
        name="a",
    )
    model = Spend(Fallback([cheap, make(spoken(1), name="b")]), usd=5)
    assert isinstance(await ask(model, 6), d.QuotaExceededError)
    assert isinstance(await ask(model, 5), d.Response)
    assert model.wallet.spent_usd == Decimal("0.000001")


async def test_fallback_inside_passes_a_refusal_to_a_cheaper_model() -> None:
    wallet = Wallet(usd=5)
    first = make(spoken(6), name="a")
    cheap = make(
        spoken(1),
        price=PriceRow("listed", Match(equals=("m",)), input=Decimal(0), output=Decimal(1)),
        name="b",
    )
    model = Fallback([Spend(first, wallet), Spend(cheap, wallet)])
    assert (await model.complete("Hi", max_tokens=6)).provider == "listed"
    assert first.requests == []


async def test_unknown_price_is_refused() -> None:
    unpriced = Listed("Hi")
    with pytest.raises(ValueError, match="the price of listed:m is not known") as caught:
        Spend(unpriced, usd=5)
    assert "priced_as" in str(caught.value)
    local = make(spoken(5), repeat=True)
    model = Spend(local, usd=5)
    local.priced_as = "listed:m"
    refused = await ask(model, 1)
    assert isinstance(refused, d.QuotaExceededError)
    assert local.requests == []


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        (Usage(input_tokens=5), "listed:m: usage not reported: output_tokens"),
        (Usage(), "listed:m: the server reported no usage"),
    ],
)
async def test_no_call_follows_one_whose_cost_is_unknown(usage: Usage, reason: str) -> None:
    model = Spend(make(reply("text", usage=usage), spoken(1)), usd=5)
    await ask(model, 1)
    refused = await ask(model, 1)
    assert isinstance(refused, d.QuotaExceededError)
    assert reason in str(refused)


async def test_free_models_cost_nothing() -> None:
    inner = Listed(spoken(5), repeat=True)
    inner.priced_as = "free"
    model = Spend(inner, usd=1)
    assert isinstance(await ask(model, 10**6), d.Response)
    assert model.wallet.spent_usd == 0


async def test_embeddings_are_counted() -> None:
    async def answer(connection: Connection) -> None:
        body = b'{"data":[{"index":0,"embedding":[1.0]}],"usage":{"prompt_tokens":3,"total_tokens":3}}'
        connection.reply(200, body)

    row = PriceRow("m", Match(equals=("m",)), input=Decimal(10**6), output=Decimal(0))
    async with serve(answer) as server:
        inner = d.connect_embedder("m", base_url=server.base_url, priced_as=row)
        async with Spend(inner, usd=5) as model:
            await model.embed(["a b c"])
            assert model.wallet.spent_usd == 3
            with pytest.raises(d.QuotaExceededError):
                await model.embed(["a b c " * 100])
    assert len(server.requests) == 1


@pytest.mark.parametrize("usd", [0, -1, "much", float("nan"), float("inf"), True, 10**16])
def test_impossible_amounts_are_rejected(usd: Any) -> None:
    with pytest.raises(ValueError, match="usd must be a number above 0"):
        Spend(make("Hi"), usd=usd)


@pytest.mark.parametrize("given", [{}, {"wallet": Wallet(1), "usd": 1}, {"wallet": 5}])
def test_spend_needs_one_amount(given: Any) -> None:
    with pytest.raises(ValueError, match="Spend: "):
        Spend(make("Hi"), **given)


def test_layer_is_described() -> None:
    assert describe(Spend(make("Hi"), usd=5)).startswith("Spend(usd='5', spent_usd='0')")
    assert repr(Wallet(5)) == "Wallet(usd=5, spent_usd=0)"


class Slow(d.Provider):
    """Answers after random steps of the event loop; some calls fail."""

    name = "listed"
    model = "m"

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.billed = 0
        self.priced_as = DOLLAR

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)
        if self.random.random() < 0.2:
            raise OverloadedError("busy")
        output = self.random.randint(0, request.config.max_tokens or 0)
        self.billed += output
        for event in spoken(output)(request):
            yield event


@given(st.integers(0, 2**32), st.integers(1, 60), st.lists(st.integers(1, 9), max_size=40))
@settings(deadline=None)
async def test_wallet_never_exceeds_its_amount(seed: int, usd: int, sizes: list[int]) -> None:
    inner = Slow(seed)
    model = Spend(inner, usd=usd)
    wallet = model.wallet
    calls = [asyncio.ensure_future(ask(model, size)) for size in sizes]
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        assert wallet.spent_usd + wallet.reserved_usd <= usd
    await asyncio.gather(*calls, return_exceptions=True)
    assert wallet.spent_usd == inner.billed <= usd
    assert wallet.reserved_usd == 0
