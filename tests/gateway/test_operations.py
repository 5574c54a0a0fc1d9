"""Test how a gateway is operated: readiness without a key, draining, configuration reload and
tracing.
"""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman import Fallback, connect
from dragoman.errors import OverloadedError
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.models import Models
from dragoman.gateway.signals import reload_models
from dragoman.gateway.tracing import Tracing, read_parent

from ..listed import Listed, reply
from ..server import DONE, Connection, answering, chunk, serve
from .serving import serving
from .test_app import ANN, BODY, bearer, post
from .test_serve import running, write_config

KEYS = KeyRing([Key("ann", hash_key(ANN))])
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


async def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.json()


# --- readiness ---------------------------------------------------------------------------------


async def test_readiness_reply_names_no_models_without_a_key() -> None:
    good = Listed(reply("Hello"), repeat=True)
    async with serving(create_app({"fast": good}, keys=KEYS)) as url:
        assert (await get(f"{url}/ready"))[0] == 401
    app = create_app(
        {"fast": good, "slow": connect("m", base_url="http://127.0.0.1:1/v1")},
        keys=KEYS,
        open_ready=True,
    )
    async with serving(app) as url:
        assert await get(f"{url}/ready") == (503, {"status": "not ready"})
    app = create_app({"fast": good}, keys=KEYS, open_ready=True)
    async with serving(app) as url:
        assert await get(f"{url}/ready") == (200, {"status": "ready"})
        app.state.service.leaving = True
        assert await get(f"{url}/ready") == (503, {"status": "draining"})
        # A gateway that is draining still answers requests.
        assert (await post(f"{url}/v1/chat/completions", BODY, bearer(ANN)))[0] == 200


# --- the configuration -------------------------------------------------------------------------


async def test_reloading_the_configuration_changes_models_and_drops_no_stream() -> None:
    gate = asyncio.Event()
    old = Listed(
        lambda request: [*reply("old")(request)[:2], gate, *reply("old")(request)[2:]], repeat=True
    )
    new = Listed(reply("new"), repeat=True)
    closed: list[str] = []
    monitor(old, "old", closed)
    app = create_app({"fast": old})
    service = app.state.service
    async with serving(app) as url:
        path = f"{url}/v1/chat/completions"
        streaming = asyncio.ensure_future(post(path, {**BODY, "stream": True}))
        async with asyncio.timeout(5):
            while not old.running:
                await asyncio.sleep(0.01)
        service.reload = lambda: Models({"fast": new, "more": new})
        assert await reload_models(service)
        for name in ("fast", "more"):
            assert b"new" in (await post(path, {**BODY, "model": name}))[2]
        assert closed == []  # the old provider stays open because a stream still uses it
        gate.set()
        status, _, body = await streaming
        assert (status, body.endswith(DONE)) == (200, True)
        async with asyncio.timeout(5):
            while not closed:
                await asyncio.sleep(0.01)

        def fail() -> Models:
            raise ValueError("models.yaml:3: a mistake")

        service.reload = fail
        assert not await reload_models(service)
        assert b"new" in (await post(path, BODY))[2]
    assert closed == ["old"]


def monitor(model: Listed, name: str, closed: list[str]) -> None:
    async def close() -> None:
        closed.append(name)

    model.close = close  # type: ignore[method-assign]


async def test_real_process_reloads_and_finishes_running_calls_on_signals(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def slow(connection: Connection) -> None:
        if connection.seen.method == "GET":
            connection.reply(200, b'{"data": [{"id": "m"}]}')
            return
        connection.begin_stream()
        connection.chunk(chunk("first"))
        await connection.writer.drain()
        await go.wait()
        connection.chunk(chunk("last") + chunk(None, "stop") + DONE)
        connection.end_stream()

    async with serve(slow) as one, serve(answering("second server")) as two:
        config = Path(write_config(tmp_path, one.url))
        options = [
            "--config",
            str(config),
            "--model",
            "fast=up:m",
            "--drain-delay",
            "1.5",
            "--open-ready",
        ]
        async with running(*options) as (url, process), aiohttp.ClientSession() as session:
            path = f"{url}/v1/chat/completions"
            async with session.post(path, json={**BODY, "stream": True}) as streaming:
                while b"first" not in await streaming.content.readany():
                    pass
                config.write_text(config.read_text().replace(one.url, two.url))
                process.send_signal(signal.SIGHUP)
                async with asyncio.timeout(20):
                    while b"second server" not in await ask_once(session, path):
                        pass
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(10):
                    while (await get(f"{url}/ready"))[0] != 503:
                        await asyncio.sleep(0.02)
                # Requests are served during the drain delay.
                assert b"second server" in await ask_once(session, path)
                go.set()
                assert (await streaming.content.read()).endswith(DONE)
            assert await asyncio.wait_for(process.wait(), 20) is not None


async def ask_once(session: aiohttp.ClientSession, path: str) -> bytes:
    # A short timeout, because the first server never answers.
    timeout = aiohttp.ClientTimeout(total=0.5)
    try:
        async with session.post(path, json=BODY, timeout=timeout) as answer:
            return await answer.read()
    except TimeoutError:
        return b""


# --- traces ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "is_valid"),
    [
        (PARENT, True),
        (f"01-{TRACE}-{SPAN}-01-later", True),
        ("", False),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN}-01\n", False),
    ],
)
def test_invalid_traceparent_headers_are_ignored(header: str, is_valid: bool) -> None:
    assert (read_parent({"traceparent": header}) is not None) == is_valid


async def test_trace_context_is_forwarded_even_if_no_spans_are_recorded() -> None:
    async with serve(answering("Hello")) as upstream:
        model = connect("m", base_url=f"{upstream.url}/v1", api_key="k")
        async with serving(create_app({"fast": model})) as url:
            path = f"{url}/v1/chat/completions"
            await post(path, BODY, {"traceparent": PARENT, "tracestate": "vendor=1"})
            await post(path, BODY)
            await post(path, BODY, {"traceparent": "nonsense", "tracestate": "vendor=1"})
    first, *others = [seen.headers for seen in upstream.requests]
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-01", first["traceparent"])
    assert SPAN not in first["traceparent"]
    assert first["tracestate"] == "vendor=1"
    assert first["authorization"] == "Bearer k"
    assert not any("traceparent" in each or "tracestate" in each for each in others)


async def test_request_and_each_of_its_attempts_have_a_span() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with serve(answering("Hello")) as upstream:
        model = connect("m", base_url=f"{upstream.url}/v1", name="up")

        def fail(request: Any) -> Any:
            raise OverloadedError("no", status=503)

        group = Fallback([Listed(fail, name="one", model="a", repeat=True), model])
        app = create_app({"fast": group}, keys=KEYS, tracing=Tracing(provider))
        async with serving(app) as url:
            path = f"{url}/v1/chat/completions"
            await post(path, BODY, {**bearer(ANN), "traceparent": PARENT})
            # A request without a key, which is rejected.
            await post(path, BODY, {"traceparent": PARENT})
    spans = exporter.get_finished_spans()
    server, refused = [span for span in spans if span.kind.name == "SERVER"]
    attempts = [span for span in spans if span.kind.name == "CLIENT"]
    assert f"{server.context.trace_id:032x}" == TRACE
    assert f"{server.parent.span_id:016x}" == SPAN
    assert server.attributes["http.response.status_code"] == 200
    assert (server.attributes["dragoman.key"], server.attributes["dragoman.model"]) == (
        "ann",
        "fast",
    )
    assert refused.attributes["http.response.status_code"] == 401
    assert len(attempts) == 2
    assert {span.parent.span_id for span in attempts} == {server.context.span_id}
    (seen,) = upstream.requests
    assert seen.headers["traceparent"] == f"00-{TRACE}-{server.context.span_id:016x}-01"
    assert ANN not in repr([span.to_json() for span in spans])
