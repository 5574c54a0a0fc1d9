"""Test all middleware layers together on a real socket, and that each layer forwards everything
that it does not change.
"""

import asyncio
import gc
import logging
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import dragoman as d
from dragoman.middleware import (
    CallCompleted,
    CallFailed,
    CallStarted,
    EventsDropped,
    Limiter,
    Middleware,
    RoutingSwitched,
    walk,
)
from dragoman.validate import build_request
from tests.listed import Clock, Listed, reply
from tests.server import Connection, answering, chunk, serve
from tests.waiting import arrival

# --- a stack of all layers, and a server that counts requests ----------------------------------


def stacked(
    base_url: str, clock: Clock, tmp_path: Path, told: list[Any], max_retries: int = 2
) -> d.Provider:
    """Return a provider with all layers in the documented order; its clock simulates waiting."""
    provider: d.Provider = d.connect(
        "m", base_url=base_url, api_key="sk-secret-0123456789", name="server"
    )
    provider = d.Observe(d.Record(provider, tmp_path / "cassette.jsonl", "record"), told.append)
    provider = d.RateLimit(
        provider, requests_per_minute=1e6, tokens_per_minute=1e9, max_concurrency=5
    )
    return d.Fallback([d.Retry(provider, max_retries, clock=clock, sleep=clock.sleep)])


async def _ask(model: d.Provider, stream: bool) -> None:
    if stream:
        async for _ in model.stream("hi"):
            pass
    else:
        await model.complete("hi")


def failing(how: str) -> Any:
    async def handler(connection: Connection) -> None:
        error = b'{"error": {"message": "broken", "code": 500}}'
        if how == "hang up":
            connection.writer.close()
        elif how != "200 with an error inside":
            connection.reply(int(how), error, **({"retry_after": "3"} if how == "429" else {}))
        elif connection.seen.json.get("stream"):
            connection.begin_stream()
            connection.chunk(b"data: " + error + b"\n\n")
            connection.end_stream()
        else:
            connection.reply(200, error)

    return handler


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_retries", [0, 2])
@pytest.mark.parametrize("how", ["500", "429", "529", "hang up", "200 with an error inside"])
async def test_failing_server_receives_one_request_per_attempt(
    tmp_path: Path, how: str, max_retries: int, stream: bool
) -> None:
    clock = Clock()
    told = list[Any]()
    async with serve(failing(how)) as server:
        model = stacked(server.base_url, clock, tmp_path, told, max_retries)
        with pytest.raises((d.UnavailableError, d.RateLimitError)):
            await _ask(model, stream)
        await model.close()
        assert len(server.requests) == 1 + max_retries
    assert [type(event) for event in told] == [CallStarted, CallFailed] * (1 + max_retries)
    assert len(clock.slept) == max_retries
    if how == "429":
        assert clock.slept == [3.0] * max_retries


async def test_internal_metadata_of_middleware_is_not_sent(tmp_path: Path) -> None:
    async with serve(answering()) as server:
        model = stacked(server.base_url, Clock(), tmp_path, [])
        await model.complete("hi")
        await model.close()
        assert b"dragoman" not in server.requests[0].body


async def test_abandoning_a_stream_closes_the_connection_through_all_layers(
    tmp_path: Path,
) -> None:
    async def handler(connection: Connection) -> None:
        connection.begin_stream()
        connection.chunk(chunk("Hello"))
        await connection.writer.drain()
        await asyncio.Event().wait()

    told: list[Any] = []
    async with serve(handler) as server:
        model = stacked(server.base_url, Clock(), tmp_path, told)
        async with model.stream("hi") as stream:
            async for event in stream:
                if event.type == "text.delta":
                    break
        await arrival(server.closed.wait(), "the end of the connection")
        await model.close()
        assert server.in_flight == 0
    assert [event.type for event in told] == ["llm.call_started", "llm.call_failed"]
    assert told[1].error_class == "cancelled"


# --- delegation to the inner provider ----------------------------------------------------------


def layers(inner: d.Provider, tmp_path: Path) -> list[Middleware]:
    return [
        d.Retry(inner),
        d.RateLimit(inner, max_concurrency=9),
        d.Observe(inner, lambda _: None),
        d.Record(inner, tmp_path / "c", "off"),
    ]


async def test_middleware_forwards_everything_it_does_not_change(tmp_path: Path) -> None:
    inner = Listed(
        d.UnavailableError("not ready"), name="n", model="big",
        capabilities={"max_context_tokens": 9, "supports_tools": False},
    )  # fmt: skip
    inner.searches_tools = True
    inner.compaction = lambda tokens: {"compact": tokens}  # type: ignore[method-assign]
    inner.compacted_at = lambda messages: len(messages) - 1  # type: ignore[method-assign]
    for layer in layers(inner, tmp_path):
        assert layer.name == "n"
        assert layer.model == "big"
        assert layer.capabilities == inner.capabilities
        assert layer.searches_tools
        assert layer.compaction(9) == {"compact": 9}
        assert layer.compacted_at([d.User("x")] * 5) == 4
        assert layer.plan("hello") == inner.plan("hello")
        assert layer.estimate_input_tokens("hello", None, "system") == inner.estimate_input_tokens(
            "hello", None, "system"
        )
        with pytest.raises(d.UnavailableError):
            await layer.ready()
        with pytest.raises(d.InvalidRequestError):
            await layer.complete("hi", [{"name": "t"}])
        before = inner.closed
        async with layer:
            pass
        assert inner.closed == before + 1


@pytest.mark.parametrize("mode", ["aclose", "cancel", "stream"])
async def test_every_middleware_closes_its_inner_stream_when_the_reader_stops(
    tmp_path: Path, mode: str
) -> None:
    for make in range(5):
        inner = Listed(lambda request: [*reply("hello")(request)[:2], asyncio.Event()])
        layer = [*layers(inner, tmp_path), d.Fallback([inner])][make]
        request = build_request("hi", stream=True)
        source: Any = layer.stream("hi") if mode == "stream" else layer.events(request)
        await source.__anext__()
        if mode in ("aclose", "stream"):
            await source.aclose()
        else:
            await source.__anext__()
            task = asyncio.ensure_future(source.__anext__())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert inner.running == 0
        await layer.close()


def test_description_of_a_middleware_stack_lists_its_layers(tmp_path: Path) -> None:
    def tell(_: object) -> None: ...

    provider = d.connect(
        "m", base_url="http://127.0.0.1:1/v1", api_key="sk-secret-0123456789", name="server"
    )
    observed = d.Observe(d.Record(provider, tmp_path / "c.jsonl"), tell)
    limited = d.RateLimit(observed, 60, limiter=Limiter(max_concurrency=3))
    override = [d.RuntimeConfig(extras={"key": "sk-secret-0123456789"})]
    retried = d.Retry(limited, per_attempt_override=override, deadline=9)
    stack = d.Fallback([retried, Listed(name="other")])
    lines = d.describe(stack).splitlines()
    assert lines.pop(3).startswith("     Observe(subscribers=[")
    assert lines == [
        "Fallback(name='fallback')",
        "  1. Retry(max_retries=2, per_attempt_override=1, deadline=9)",
        "     RateLimit(limiter1.requests_per_minute=60, limiter2.max_concurrency=3)",
        f"     Record(path={str(tmp_path / 'c.jsonl')!r}, mode='once', replay_timing=False)",
        "     HttpProvider server:m",
        "  2. Listed other:m",
    ]
    assert "sk-secret" not in d.describe(stack)
    assert [type(each).__name__ for each in walk(stack)] == [
        "Fallback", "Retry", "RateLimit", "Observe", "Record", "HttpProvider", "Listed",
    ]  # fmt: skip


def test_documented_example_prints_the_documented_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/middleware.md").read_text()
    example = page.split("```python\n", 1)[1].split("```", 1)[0]
    printed = page.split("```\nFallback(", 1)[1].split("...", 1)[0]
    exec(compile(example, "middleware.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Fallback(" + printed.rstrip())


async def test_custom_middleware_needs_only_one_method() -> None:
    class Shouting(Middleware):
        def events(self, request: Any) -> Any:
            return self.inner.events(build_request(request.messages[0].content.upper()))

    inner = Listed("x")
    model = Shouting(inner)
    assert (await model.complete("hi")).text == "x"
    assert inner.requests[0].messages[0].content == "HI"
    assert d.describe(model) == "Shouting()\nListed listed:m"


def test_description_shows_objects_by_their_class_only() -> None:
    class Secretive:
        def __call__(self, *_: object) -> None: ...

        def __repr__(self) -> str:
            return "Secretive('sk-secret-0123456789')"

    assert (
        d.describe(d.Retry(Listed(), on_retry=Secretive())).splitlines()[0]
        == "Retry(max_retries=2, on_retry=Secretive)"
    )


# --- long runs: no leak, and no attempt is lost ------------------------------------------------

SOAK = 100_000 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 200
# Few calls are enough to show a leak; tracing memory makes them several times slower.
TRACED = 100


async def _growth(run: Any) -> int:
    """Return how many bytes each run of a function leaves allocated, after the first.

    Run it twice more: a cache or a table of the interpreter that grows, grows in one run only.
    """
    held = list[int]()
    tracemalloc.start()
    try:
        for _ in range(3):
            await run()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        return min(held[1] - held[0], held[2] - held[1])
    finally:
        tracemalloc.stop()


@pytest.mark.exhaustive
async def test_every_attempt_of_a_long_run_with_faults_is_accounted_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every attempt sends one request and has a start and an end event, every retry waits once,
    and every switch to another candidate has one event.
    """
    # Record no warnings: caplog would keep them and look like a memory leak.
    caplog.set_level(logging.CRITICAL, "dragoman")
    draw = random.Random(7)
    clock = Clock()
    counts = {
        "ok": 0, "error": 0, "waits": 0, "switches": 0, "started": 0, "ended": 0, "dropped": 0,
    }  # fmt: skip
    fine = reply("hello")(build_request("hi"))
    faults: list[type[d.ProviderError]] = [
        d.UnavailableError, d.NetworkError, d.RateLimitError, d.InvalidRequestError,
    ]  # fmt: skip

    def answer(request: Any) -> Any:
        if draw.random() < 0.3:
            return draw.choice(faults)("x")
        if draw.random() < 0.001:
            return d.AuthenticationError("x")
        return fine

    class Counted(Listed):
        async def events(self, request: Any) -> Any:
            self.asked = getattr(self, "asked", 0) + 1
            async for event in super().events(request):
                yield event
            self.requests.clear()

    def tell(event: Any) -> None:
        if isinstance(event, EventsDropped):
            counts["dropped"] += event.count
        else:
            counts["started" if isinstance(event, CallStarted) else "ended"] += 1
            assert isinstance(event, CallStarted | CallCompleted | CallFailed)

    def switch(event: Any) -> None:
        counts["switches"] += isinstance(event, RoutingSwitched)

    def wait(*_: Any) -> None:
        counts["waits"] += 1

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    inners = [Counted(answer, name=name, repeat=True) for name in "abc"]
    limiter = Limiter(1e9, 1e12, 50, clock=clock, sleep=sleep)
    observers = [d.Observe(inner, tell, queue_size=100_000) for inner in inners]
    model = d.Fallback(
        [
            d.Retry(
                d.RateLimit(observer, limiter=limiter), on_retry=wait, clock=clock, sleep=sleep
            )
            for observer in observers
        ],
        on_event=switch,
        clock=clock,
    )

    async def call() -> None:
        clock.now += 0.5
        try:
            await model.complete("hi")
            counts["ok"] += 1
        except d.ProviderError:
            counts["error"] += 1

    async def run(calls: int) -> None:
        for _ in range(calls // 20):
            await asyncio.gather(*[call() for _ in range(20)])
        for observer in observers:
            await observer.flush()

    await run(SOAK)
    grown = await _growth(lambda: run(TRACED))
    await model.close()
    attempts = sum(inner.asked for inner in inners)
    calls = counts["ok"] + counts["error"]
    assert calls == SOAK + 3 * TRACED
    assert counts["started"] == counts["ended"] == attempts
    assert counts["dropped"] == 0
    assert counts["waits"] > calls / 10
    assert counts["switches"] > 0
    # A call has one attempt, plus one for each wait and at most one for each switch.
    assert attempts <= calls + counts["waits"] + counts["switches"]
    assert attempts >= counts["ok"] + counts["waits"]
    assert limiter.running == 0
    assert limiter.waiting == 0
    assert [inner.running for inner in inners] == [0, 0, 0]
    # The limit is in bytes. Tables of the interpreter grow in steps of 16 KiB, but one leaked
    # event per attempt would exceed the limit.
    assert grown < 50_000
