"""The ledger, the access log, the event log and the observer of a gateway add up to the same money."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman import connect
from dragoman.calls import CallCompleted, CallFailed
from dragoman.errors import OverloadedError, StructuredOutputError
from dragoman.events import Usage
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.ledger import Ledger
from dragoman.log import SqliteLog, read_uses
from dragoman.messages import Assistant, Request, Text
from dragoman.middleware import Fallback, Observe, Retry
from dragoman.prices import cost
from dragoman.sim import Answer, Fault, RequestMatch, ScriptedProvider, ScriptRule, SimServer
from dragoman.tokens import estimate_input_tokens

from ..listed import Listed, speak
from .serving import serving
from .test_app import ANN, BODY, KEYS, bearer, post

SONNET = "claude-sonnet-4-6"
COUNT = 10_000 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 300
OWNERS = ("ann", "bob", "eve")
KINDS = ("answer", "filtered", "busy", "refused", "breaks", "hangs")
WORDS = "one two three four five six"
ARRIVED = "one two three"


class Bills:
    """The simulator's own account of what it bills."""

    def __init__(self) -> None:
        self.total = Decimal(0)
        self.calls: Counter[str] = Counter()
        self.tried: set[str] = set()

    def answer(self, request: Request) -> Answer:
        """Answer a request whose text has the form "kind number input output", and bill it."""
        kind, number, *counts = request.messages[-1].text.split()
        usage = Usage(*[int(count) for count in counts])
        if kind == "refused" or (kind == "busy" and number not in self.tried):
            self.tried.add(number)
            raise OverloadedError("busy", status=529)
        if kind in ("breaks", "hangs"):
            # The counts come at the end, which never comes: both sides can only estimate.
            asked = estimate_input_tokens(request.messages, request.tools, family="claude")
            usage = Usage(asked, estimate_input_tokens((Assistant((Text(ARRIVED),)),), family="claude"))
        self.calls[kind] += 1
        self.total += cost(usage, f"anthropic:{SONNET}").total or 0
        return Answer(WORDS, usage=usage, finish="content_filter" if kind == "filtered" else "stop")

    def script(self) -> list[ScriptRule]:
        broken = Fault(error="StreamInterruptedError", after=3)
        return [
            ScriptRule(self.answer, RequestMatch(text="breaks"), fault=broken),
            ScriptRule(self.answer, RequestMatch(text="hangs"), fault=Fault(stall=float("inf"), after=3)),
            ScriptRule(self.answer),
        ]


async def ask(session: aiohttp.ClientSession, url: str, number: int, dice: random.Random) -> None:
    kind = dice.choice(KINDS)
    text = f"{kind} {number} {dice.randint(1, 9999)} {dice.randint(0, 999)}"
    stream = kind in ("breaks", "hangs") or dice.random() < 0.5
    body = {"model": "fast", "stream": stream, "messages": [{"role": "user", "content": text}]}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=bearer(dice.choice(OWNERS))) as reply:
        if kind != "hangs":
            await reply.read()
            return
        received = b""
        while b"three" not in received:
            received += await reply.content.readany()
        reply.close()  # hang up in the middle


@pytest.mark.exhaustive
async def test_all_accounts_of_a_gateway_agree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bills, observed, dice = Bills(), [], random.Random(16)
    keys = KeyRing([Key(name, hash_key(name), budget_usd=Decimal(10**6)) for name in OWNERS])
    ledger = Ledger(tmp_path / "state.db")
    with SimServer(ScriptedProvider(*bills.script(), model=SONNET)) as sim:
        model = connect(SONNET, base_url=f"{sim.url}/v1", api_key="k")
        model.priced_as, model.token_family = f"anthropic:{SONNET}", "claude"
        watched = Observe(model, observed.append, queue_size=10 * COUNT)
        provider = Retry(watched, max_retries=1, backoff=lambda attempt: 0.0)
        with caplog.at_level(logging.INFO, "dragoman.access"):
            async with SqliteLog(tmp_path / "log.db") as log:
                async with serving(create_app({"fast": provider}, keys=keys, ledger=ledger, log=log)) as url:
                    limit = asyncio.Semaphore(32)
                    async with aiohttp.ClientSession() as session:

                        async def run(number: int) -> None:
                            async with limit:
                                await ask(session, url, number, dice)

                        await asyncio.gather(*[run(number) for number in range(COUNT)])
                uses = list(read_uses(log))
                records = [record.payload for record in log.find("llm.call_completed", "llm.call_failed")]
    assert len(bills.calls) == len(KINDS) - 1  # all but the refused ones are billed
    ends = [event for event in observed if isinstance(event, CallCompleted | CallFailed)]
    lines = [json.loads(record.message) for record in caplog.records if record.name == "dragoman.access"]
    assert len(ends) == len(records) == len(lines) > COUNT  # retries are records of their own
    assert bills.total == sum([event.cost_usd or 0 for event in ends])
    assert bills.total == sum([use.old or 0 for use in uses])
    assert bills.total == sum([Decimal(line.get("cost_usd", 0)) for line in lines])
    assert bills.total == sum([ledger.spent(name) for name in OWNERS])
    for name in OWNERS:
        of_key = [record.cost_usd or 0 for record in records if record.inbound.key == name]  # type: ignore[union-attr]
        assert ledger.spent(name) == sum(of_key) > 0
    ledger.close()


# --- replies that are asked for again ---------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
usages = st.builds(Usage, st.integers(1, 300_000), st.integers(0, 9_000))


@settings(max_examples=10, deadline=None)
@given(replies=st.lists(st.tuples(st.booleans(), usages), min_size=1, max_size=8), with_fallback=st.booleans())
async def test_replies_that_violate_the_schema_are_billed(
    replies: list[tuple[bool, Usage]], with_fallback: bool
) -> None:
    observed: list[Any] = []
    billed: list[Decimal] = []

    def make(fits: bool, usage: Usage) -> Any:
        def answer(request: Request) -> Any:
            billed.append(cost(usage, f"anthropic:{SONNET}").total or Decimal(0))
            wrong = StructuredOutputError("no", response_schema=SCHEMA, output_content="{}", usage=usage)
            events = speak(lambda out: out.text('{"n": 1}' if fits else "{}"), usage=usage)(request)
            return events if fits else [*events, wrong]

        return answer

    model = Listed(*[make(*each) for each in replies], make(True, Usage(7, 7)), name="anthropic", model=SONNET)
    model.repeat = True
    retried: Any = Retry(Observe(model, observed.append), reask=lambda error: "Again, please.")
    provider = Fallback([retried]) if with_fallback else retried
    ledger, keys = Ledger(), KeyRing([Key("ann", hash_key(ANN), budget_usd=Decimal(10**6))])
    body = {**BODY, "response_format": FORMAT}
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteLog(Path(folder) / "log.db") as log:
            async with serving(create_app({"fast": provider}, keys=keys, ledger=ledger, log=log)) as url:
                for _ in range(3):
                    await post(f"{url}/v1/chat/completions", body, bearer(ANN))
            logged = sum([use.old or 0 for use in read_uses(log)])
    seen = sum([event.cost_usd or 0 for event in observed if isinstance(event, CallCompleted | CallFailed)])
    assert sum(billed) == ledger.spent("ann") == logged == seen > 0


# --- records in the log -----------------------------------------------------------------------------


async def test_a_call_is_logged_without_content(tmp_path: Path) -> None:
    reply = speak(lambda out: out.text("An answer."), usage=Usage(100_000, 1_000))
    model = Listed(OverloadedError("secret prompt is wrong"), reply, name="anthropic", model=SONNET)
    provider = Retry(model, backoff=lambda attempt: 0.0)
    body = {**BODY, "user": "somebody", "messages": [{"role": "user", "content": "a secret prompt"}]}
    async with SqliteLog(tmp_path / "log.db") as log:
        async with serving(create_app({"fast": provider}, keys=KEYS, log=log)) as url:
            await post(f"{url}/v1/chat/completions", body, bearer(ANN))
            await post(f"{url}/v1/chat/completions", BODY, bearer("dg-wrong"))
        [entry] = log.sessions()
        records = list(log.read(entry.session))
        log.export(tmp_path / "all.jsonl")
    assert [record.type for record in records] == [
        "session.started", "llm.call_failed", "llm.call_completed", "session.finished",
    ]  # fmt: skip
    end: Any = records[2].payload
    assert (end.inbound.key, end.inbound.wire, end.inbound.name, end.inbound.status) == ("ann", "openai", "fast", 200)
    assert (end.attempt, end.cost_usd, end.latency_ms > 0) == (1, Decimal("0.315000"), True)
    assert records[1].turn == records[2].turn == end.request_id
    text = (tmp_path / "all.jsonl").read_text()
    for hidden in ("secret prompt", "An answer", ANN, "dg-wrong"):
        assert hidden not in text


async def test_content_is_logged_on_request(tmp_path: Path) -> None:
    async with SqliteLog(tmp_path / "log.db") as log:
        app = create_app({"fast": Listed("An answer.")}, keys=KEYS, log=log, log_content=True)
        async with serving(app) as url:
            await post(f"{url}/v1/chat/completions", BODY, bearer(ANN))
        said: list[Any] = [record.payload for record in log.find("message.recorded")]
    assert [type(each.message).__name__ for each in said] == ["User", "Assistant"]
    assert said[1].message.text == "An answer."
