"""Test limits with several gateway processes, PostgreSQL, Redis and many concurrent clients."""

import asyncio
import os
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import aiohttp
import pytest

from dragoman.gateway.keystore import KeyStore
from dragoman.gateway.ledger import Ledger

from ..server import Connection, completion, serve
from ..waiting import arrival
from .test_serve import BODY, running, write_config

CLIENTS = 200
WORKERS = 2  # number of workers of each of the two gateways
COST = Decimal("0.01")  # the cost of one call according to ``write_prices``
BUDGET = Decimal("1.5")
RATE = 300
SLOTS = 20
SECONDS = 3.0  # how long the clients continue after every limit was reached


def write_prices(folder: Path) -> None:
    """Write a price table in which a token costs 0.002 dollars, so that a call of 5 tokens costs
    one cent.
    """
    (folder / "prices.yaml").write_text(
        'version: "1"\nrows:\n  - {provider: up, match: {equals: [m]}, input: "2000", output: '
        '"2000"}\n'
    )


class Upstream:
    """Serve a model, and count the calls and concurrent calls of each key. Clients send the name
    of their key as the message.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def handle(self, connection: Connection) -> None:
        if connection.seen.method == "GET":
            connection.reply(200, b'{"data": [{"id": "m"}]}')
            return
        name = connection.seen.json["messages"][0]["content"]
        self.calls[name] += 1
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        try:
            await asyncio.sleep(0.05)
            connection.reply(200, completion())
        finally:
            self.running[name] -= 1


@pytest.mark.exhaustive
@pytest.mark.skipif(
    "DRAGOMAN_EXHAUSTIVE" not in os.environ, reason="five processes for ten seconds"
)
async def test_limits_hold_with_four_workers_and_two_hundred_clients(
    tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    store = KeyStore(postgres_url)
    keys = {
        "money": store.create("money", budget_usd=BUDGET),
        "rate": store.create("rate", requests_per_minute=RATE),
        "slots": store.create("slots", max_concurrency=SLOTS),
    }
    store.close()
    upstream = Upstream()
    statuses: Counter[tuple[str, int]] = Counter()
    async with serve(upstream.handle) as server:
        config = write_config(tmp_path, server.url)
        Path(config).write_text(
            Path(config).read_text() + "    priced_as: up:m\nprices: prices.yaml\n"
        )
        write_prices(tmp_path)
        options = [
            "--config", config, "--model", "fast=up:m", "--auth", postgres_url, "--state",
            postgres_url,
        ]  # fmt: skip
        options += ["--redis", redis_url, "--workers", str(WORKERS), "--no-access-log"]
        async with running(*options) as (one, first), running(*options) as (two, second):
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:
                ends: dict[str, float] = {}  # key -> time of its first rejection
                began = time.time()
                paid: list[
                    tuple[float, float]
                ] = []  # times at which answered calls began and ended

                async def ask(number: int) -> None:
                    name = list(keys)[number % 3]
                    headers = {"authorization": f"Bearer {keys[name]}"}
                    body = {**BODY, "messages": [{"role": "user", "content": name}]}
                    while (
                        time.time() < min(began + 100, max(ends.values(), default=began) + SECONDS)
                        or len(ends) < 3
                    ):
                        url = (one, two)[number % 2]
                        sent = time.monotonic()
                        async with session.post(
                            f"{url}/v1/chat/completions", json=body, headers=headers
                        ) as answer:
                            statuses[name, answer.status] += 1
                            await answer.read()
                            if name == "money" and answer.status == 200:
                                paid.append((sent, time.monotonic()))
                            if answer.status in (402, 429):
                                ends.setdefault(name, time.time())

                await asyncio.gather(*[ask(number) for number in range(CLIENTS)])
                took = time.time() - began
            for process in (first, second):  # workers write their remaining usage before they end
                process.terminate()
                await arrival(process.wait(), "the end of a gateway")
    ledger = Ledger(postgres_url)
    spent = ledger.spent("money")
    ledger.close()
    print(f"\n{statuses=} {upstream.calls=} {upstream.most=} {spent=} {took=:.1f}")
    assert statuses["money", 200] == upstream.calls["money"]
    assert spent == upstream.calls["money"] * COST  # every call is charged exactly once
    # Only calls in flight may exceed the budget: no call began after it was used up.
    used_up = sorted([end for _, end in paid])[int(BUDGET / COST) - 1]
    in_flight = sum([begin <= used_up < end for begin, end in paid])
    print(f"exceeded by {spent - BUDGET}, in flight {in_flight}")
    assert [begin for begin, _ in paid if begin > used_up] == []
    assert BUDGET <= spent <= BUDGET + COST * in_flight
    # A longer run may also use part of the limit of the next minute.
    allowed = RATE * (1 + took / 60)
    assert 0.98 * RATE <= upstream.calls["rate"] <= 1.02 * allowed
    assert upstream.most["slots"] <= SLOTS
