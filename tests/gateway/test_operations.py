"""Test how a gateway is operated: readiness without a key, draining, configuration reload and
tracing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
import pytest
import uvicorn
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from uvicorn.config import STARTUP_FAILURE

from dragoman import Fallback, connect, connect_embedder
from dragoman.errors import OverloadedError
from dragoman.gateway.access import Bounds
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.metrics import Metrics
from dragoman.gateway.models import Models
from dragoman.gateway.readiness import serve_readiness
from dragoman.gateway.signals import handle_signals, reload_models
from dragoman.gateway.supervisor import _Supervisor, bind_port
from dragoman.gateway.tracing import Tracing, read_parent
from dragoman.gateway.worker_metrics import MetricsFolder
from tests.rows import read_table

from ..listed import Clock, Listed, reply
from ..ports import find_free_port
from ..server import DONE, Connection, answering, chunk, completion, replying, serve
from ..waiting import PATIENCE, arrival, patience, poll, until, virtual_time
from .serving import raw, serving
from .test_app import ANN, BODY, bearer, post
from .test_serve import ask_health, running, write_config

KEYS = KeyRing([Key("ann", hash_key(ANN))])
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


async def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.json()


# --- the readiness endpoint --------------------------------------------------------------------


async def test_readiness_reply_names_no_models_without_a_key() -> None:
    good = Listed(reply("Hello"), repeat=True)
    async with serving(create_app({"fast": good}, keys=KEYS)) as url:
        assert (await get(f"{url}/ready"))[0] == 401
    bad = connect("m", base_url="http://127.0.0.1:1/v1")
    # an outage of one model does not take the gateway out of a load balancer
    states = [({"slow": bad}, 503, "not ready"), ({"fast": good, "slow": bad}, 200, "degraded")]
    for models, status, state in states:
        async with serving(create_app(models, keys=KEYS, open_ready=True)) as url:
            assert await get(f"{url}/ready") == (status, {"status": state})
        async with serving(create_app(models, keys=KEYS)) as url:
            found = await get(f"{url}/ready", bearer(ANN))
            assert found[0] == 503
            assert found[1]["models"].keys() == {"slow"}
    app = create_app({"fast": good}, keys=KEYS, open_ready=True)
    async with serving(app) as url:
        assert await get(f"{url}/ready") == (200, {"status": "ready"})
        app.state.service.leaving = True
        assert await get(f"{url}/ready") == (503, {"status": "draining"})
        # A gateway that is draining still answers requests.
        assert (await post(f"{url}/v1/chat/completions", BODY, bearer(ANN)))[0] == 200


@contextlib.asynccontextmanager
async def serving_readiness(models: dict[str, Any], **options: Any) -> AsyncIterator[Ports]:
    """Serve an application whose readiness check has a separate port; yield both addresses."""
    app = create_app(models, keys=KEYS, **options)
    listener = bind_port("127.0.0.1", 0)
    port = listener.getsockname()[1]
    app.state.service.side_port = partial(serve_readiness, app.state.service, listener)
    async with serving(app) as url:
        yield Ports(url, f"http://127.0.0.1:{port}", app)
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(f"http://127.0.0.1:{port}/health")


class Ports(NamedTuple):
    main: str
    side: str
    app: Any


async def test_separate_port_serves_nothing_but_readiness_without_a_key() -> None:
    good = Listed(reply("Hello"), repeat=True)
    async with serving_readiness({"fast": good}) as (main, side, app):
        assert (await get(f"{main}/ready"))[0] == 401
        assert await get(f"{side}/ready") == (200, {"status": "ready"})
        assert await get(f"{side}/health") == (200, {"status": "ok"})
        for path in ("/metrics", "/v1/models", "/openapi.json", "/ready/", "//ready", "/"):
            assert (await get(f"{side}{path}", bearer(ANN)))[0] == 404
        assert (await post(f"{side}/v1/chat/completions", BODY, bearer(ANN)))[0] == 404
        assert (await post(f"{side}/ready", BODY, bearer(ANN)))[0] == 405
        app.state.service.leaving = True
        assert await get(f"{side}/ready") == (503, {"status": "draining"})
        assert await get(f"{side}/health") == (200, {"status": "ok"})
    bad = connect("m", base_url="http://127.0.0.1:1/v1")
    async with serving_readiness({"fast": good, "a secret name": bad}) as (_, side, _):
        assert await get(f"{side}/ready") == (200, {"status": "degraded"})
    async with serving_readiness({"a secret name": bad}) as (_, side, _):
        assert await get(f"{side}/ready") == (503, {"status": "not ready"})


async def test_separate_port_has_limits_and_connection_counts_of_its_own() -> None:
    bounds = Bounds(connections=3, connections_per_peer=3, head_bytes=1000)
    good = Listed(reply("Hello"), repeat=True)
    async with serving_readiness({"fast": good}, bounds=bounds) as (main, side, _):
        long = b"GET /health HTTP/1.1\r\nx: " + b"a" * 2000 + b"\r\n\r\n"
        assert b" 431 " in await raw(side, long)
        assert b" 400 " in await raw(side, b"\x16\x03\x01 not HTTP\r\n\r\n")
        for url, other in ((main, side), (side, main)):
            async with contextlib.AsyncExitStack() as held:
                for _ in range(3):
                    _, writer = await asyncio.open_connection(*url[7:].split(":"))
                    held.callback(writer.close)
                assert b" 503 " in await raw(url, b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
                assert (await get(f"{other}/health"))[0] == 200
            await poll(
                lambda url=url: get(f"{url}/health"),
                lambda answer: answer[0] == 200,
                "a free connection",
            )


# --- reloading the configuration ---------------------------------------------------------------


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
        await until(lambda: old.running, "the call")
        service.reload = lambda: Models({"fast": new, "more": new})
        assert await reload_models(service)
        for name in ("fast", "more"):
            assert b"new" in (await post(path, {**BODY, "model": name}))[2]
        assert closed == []  # the old provider stays open because a stream still uses it
        gate.set()
        status, _, body = await streaming
        assert status == 200
        assert body.endswith(DONE)
        await until(lambda: closed, "the end of the old provider")

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


async def test_sigterm_ends_the_server_after_the_drain_delay() -> None:
    service = create_app({"fast": Listed("Hello")}).state.service
    service.drain_delay = 60
    ended: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [
        signal.signal(number, lambda number, _: ended.append(number)) for number in numbers
    ]
    try:
        handle_signals(service)
        signal.raise_signal(signal.SIGTERM)
        assert service.leaving
        with virtual_time():
            await asyncio.sleep(59)
            assert ended == []
            await asyncio.sleep(2)
            assert ended == [signal.SIGTERM]
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


def streaming_until(go: asyncio.Event) -> Any:
    """Return a handler that sends the first half of a stream, and the last after ``go``."""

    async def handler(connection: Connection) -> None:
        if connection.seen.method == "GET":
            connection.reply(200, b'{"data": [{"id": "m"}]}')
            return
        if not connection.seen.json.get("stream"):
            connection.reply(200, completion("first server"))
            return
        connection.begin_stream()
        connection.chunk(chunk("first"))
        await connection.writer.drain()
        await go.wait()
        connection.chunk(chunk("last") + chunk(None, "stop") + DONE)
        connection.end_stream()

    return handler


async def test_real_process_reloads_and_finishes_running_calls_on_signals(tmp_path: Path) -> None:
    go = asyncio.Event()
    async with serve(streaming_until(go)) as one, serve(answering("second server")) as two:
        config = Path(write_config(tmp_path, one.url))
        side = f"http://127.0.0.1:{(port := find_free_port())}"
        options = ["--config", str(config), "--model", "fast=up:m", "--ready-port", str(port)]
        options += ["--drain-delay", "600"]
        async with running(*options) as (url, process), aiohttp.ClientSession() as session:
            path = f"{url}/v1/chat/completions"
            async with session.post(path, json={**BODY, "stream": True}) as streaming:
                while b"first" not in await streaming.content.readany():
                    pass
                config.write_text(config.read_text().replace(one.url, two.url))
                process.send_signal(signal.SIGHUP)
                await poll(
                    lambda: post(path, BODY),
                    lambda answer: b"second server" in answer[2],
                    "the new configuration",
                )
                process.send_signal(signal.SIGTERM)
                await poll(
                    lambda: get(f"{side}/ready"),
                    lambda answer: answer[0] == 503,
                    "the drain delay to begin",
                )
                # Requests are served during the drain delay, which a second signal ends.
                assert b"second server" in (await post(path, BODY))[2]
                process.send_signal(signal.SIGTERM)
                await wait_until_closed(url)
                # The readiness port is open until the last reply has ended.
                assert await get(f"{side}/ready") == (503, {"status": "draining"})
                assert await get(f"{side}/health") == (200, {"status": "ok"})
                go.set()
                assert (await streaming.content.read()).endswith(DONE)
            assert process.stderr is not None
            said = (await process.stderr.read()).decode()
            await arrival(process.wait(), "the end of the gateway")
        await wait_until_closed(side)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    [streamed] = [line["inbound"] for line in lines if line.get("stream")]
    assert streamed["name"] == "fast"
    assert streamed["status"] == 200
    assert "canary" not in said


async def wait_until_closed(url: str) -> None:
    await poll(lambda: ask_health(url), lambda status: status is None, f"{url} to close")


# --- trace context of requests -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "is_valid"), read_table("invalid_traceparent_headers_are_ignored")
)
def test_invalid_traceparent_headers_are_ignored(header: str, is_valid: bool) -> None:
    assert (read_parent({"traceparent": header}) is not None) == is_valid


EMBEDDED = {"data": [{"index": 0, "embedding": [0.5, 0.5]}], "usage": {"prompt_tokens": 2}}


@pytest.mark.parametrize(
    ("connect_model", "path", "body", "answer"),
    [
        (connect, "/v1/chat/completions", BODY, completion("Hello")),
        (connect_embedder, "/v1/embeddings", {"model": "fast", "input": "a red fox"},
         json.dumps(EMBEDDED).encode()),
    ],
    ids=["chat", "embeddings"],
)  # fmt: skip
async def test_trace_context_is_forwarded_even_if_no_spans_are_recorded(
    connect_model: Any, path: str, body: Any, answer: bytes
) -> None:
    async with serve(replying(200, answer)) as upstream:
        model = connect_model("m", base_url=f"{upstream.url}/v1", api_key="k")
        async with serving(create_app({"fast": model})) as url:
            traced = {"traceparent": PARENT, "tracestate": "vendor=1"}
            for headers in (traced, {}, {**traced, "traceparent": "nonsense"}):
                assert (await post(f"{url}{path}", body, headers))[0] == 200
    first, *others = [seen.headers for seen in upstream.requests]
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-01", first["traceparent"])
    assert SPAN not in first["traceparent"]
    assert first["tracestate"] == "vendor=1"
    assert first["authorization"] == "Bearer k"
    assert not any("traceparent" in each or "tracestate" in each for each in others)


# --- several worker processes ------------------------------------------------------------------


def test_metrics_are_the_sums_of_all_workers(tmp_path: Path) -> None:
    one = Metrics()
    two = Metrics()
    ended = Metrics()
    for metrics, count in ((one, 1), (two, 2), (ended, 4)):
        metrics.in_flight = count
        for _ in range(count):
            metrics.count("openai", "fast", 200)
            metrics.time("fast", "up", request=0.2)
    folders = [MetricsFolder(tmp_path, each) for each in (one, two, ended)]
    for folder in folders:
        folder.save()
    (gone,) = [path for path in tmp_path.glob("*.json") if b'"in_flight":4' in path.read_bytes()]
    gone.rename(tmp_path / "999999999-ended.json")  # the id of a process that does not exist
    (tmp_path / "1-broken.json").write_bytes(b"{")
    # This worker has not saved its count yet, but answers the query itself.
    two.count("openai", "fast", 200)
    found = folders[1].gather().text()
    assert 'dragoman_requests_total{wire="openai",model="fast",status="200"} 8' in found
    assert "dragoman_in_flight 3" in found  # the calls of a worker that has ended are not included
    labels = 'model="fast",provider="up"'
    assert f'dragoman_request_seconds_bucket{{{labels},le="0.5"}} 7' in found
    assert f"dragoman_request_seconds_count{{{labels}}} 7" in found


class Worker:
    """A worker whose process is not started; it answers its supervisor when the test lets it."""

    def __init__(self, *_: Any) -> None:
        self.parent_conn, self.child_conn = multiprocessing.Pipe()
        self.process = self
        self.alive = True
        self.pid = 0
        self.exitcode = -9
        self.started = self.killed = False

    def is_alive(self) -> bool:
        return self.alive

    def start(self) -> None:
        self.started = True

    def kill(self) -> None:
        self.killed = True
        self.alive = False

    def join(self) -> None:
        assert not self.alive, "the supervisor waits for a worker that runs"

    def terminate(self) -> None:
        pass

    def answer(self) -> None:
        assert self.child_conn.recv() == b"ping"
        self.child_conn.send(True)


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_Supervisor, Clock]]:
    """Return a supervisor of two workers, and its clock."""
    clock = Clock()
    monkeypatch.setattr("dragoman.gateway.supervisor.Process", Worker)
    supervisor = _Supervisor(uvicorn.Config("none:app", port=0, workers=2), None, clock=clock)
    supervisor.processes = [Worker(), Worker()]  # type: ignore[list-item]
    yield supervisor, clock
    supervisor.terminate_all()


def test_worker_that_ends_is_replaced_although_another_one_still_starts(
    supervised: tuple[_Supervisor, Clock],
) -> None:
    supervisor, _ = supervised
    starting, ended = supervisor.processes
    supervisor.keep_subprocess_alive()
    ended.alive = False  # type: ignore[attr-defined]
    supervisor.keep_subprocess_alive()
    assert supervisor.processes[0] is starting
    assert supervisor.processes[1] is not ended
    assert supervisor.processes[1].started  # type: ignore[attr-defined]


def test_worker_is_replaced_only_if_it_does_not_answer_for_a_minute(
    supervised: tuple[_Supervisor, Clock],
) -> None:
    supervisor, clock = supervised
    starting, hung = supervisor.processes
    supervisor.keep_subprocess_alive()
    hung.answer()  # type: ignore[attr-defined]
    for _ in range(3):
        clock.now += 40
        supervisor.keep_subprocess_alive()
        starting.answer()  # type: ignore[attr-defined]
        if not hung.killed:  # type: ignore[attr-defined]
            clock.now += 15
            supervisor.keep_subprocess_alive()
    assert supervisor.processes[0] is starting
    assert hung.killed  # type: ignore[attr-defined]


def test_worker_that_starts_has_ten_minutes(supervised: tuple[_Supervisor, Clock]) -> None:
    """Workers that start on a busy machine must not be replaced by others that start as slowly."""
    supervisor, clock = supervised
    supervisor.keep_subprocess_alive()
    slow, stuck = supervisor.processes
    clock.now += 599
    supervisor.keep_subprocess_alive()
    slow.answer()  # type: ignore[attr-defined]
    assert supervisor.processes == [slow, stuck]
    clock.now += 2
    supervisor.keep_subprocess_alive()
    assert supervisor.processes[0] is slow
    assert stuck.killed  # type: ignore[attr-defined]


def test_worker_that_fails_to_start_ends_the_gateway(
    supervised: tuple[_Supervisor, Clock],
) -> None:
    supervisor, _ = supervised
    failed = supervisor.processes[0]
    failed.alive = False
    failed.exitcode = STARTUP_FAILURE  # type: ignore[attr-defined, misc]
    supervisor.keep_subprocess_alive()
    assert supervisor.should_exit.is_set()
    assert supervisor.processes[0] is failed


@pytest.mark.skipif("sys.platform == 'win32'", reason="Windows has no SIGKILL")
async def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    async with serve(answering("one")) as upstream:
        config = write_config(tmp_path, upstream.url)
        options = ["--config", config, "--model", "fast=up:m", "--workers", "2"]
        async with running(*options) as (url, process):
            assert (await post(f"{url}/v1/chat/completions", BODY))[0] == 200
            children = psutil.Process(process.pid).children(recursive=True)
            assert len(children) >= 2
            process.kill()
            _, left = await asyncio.to_thread(psutil.wait_procs, children, PATIENCE)
            running_still = [each for each in left if each.status() != psutil.STATUS_ZOMBIE]
            for each in running_still:
                each.kill()
            assert running_still == []


@pytest.mark.exhaustive
@pytest.mark.skipif("DRAGOMAN_EXHAUSTIVE" not in os.environ, reason="three processes")
async def test_all_workers_reload_on_a_signal_and_share_their_metrics(tmp_path: Path) -> None:
    async with serve(answering("one")) as one, serve(answering("two")) as two:
        config = Path(write_config(tmp_path, one.url))
        options = ["--config", str(config), "--model", "fast=up:m", "--workers", "2"]
        async with running(*options) as (url, process):
            path = f"{url}/v1/chat/completions"
            sent = 40
            # Each request opens a new connection, which any worker may accept.
            for _ in range(sent):
                assert b"one" in (await post(path, BODY))[2]
            write_config(tmp_path, two.url)
            process.send_signal(signal.SIGHUP)
            in_a_row = 0
            async with patience("the new configuration in all workers"):
                while in_a_row < 40:
                    status, _, answer = await post(path, BODY)
                    sent += 1
                    assert status == 200
                    in_a_row = in_a_row + 1 if b"two" in answer else 0
            line = f'dragoman_requests_total{{wire="openai",model="fast",status="200"}} {sent}'

            async def read_metrics() -> list[str]:
                found = []
                for _ in range(8):
                    async with (
                        aiohttp.ClientSession() as session,
                        session.get(f"{url}/metrics") as answered,
                    ):
                        found.append(await answered.text())
                return found

            # Each worker saves its counts once in a while.
            await poll(
                read_metrics,
                lambda found: all(line in each for each in found),
                "the sum of all workers",
            )
            workers = psutil.Process(process.pid).children()
            assert len([each for each in workers if each.cpu_times().user > 0]) >= 2


@pytest.mark.exhaustive
@pytest.mark.skipif("DRAGOMAN_EXHAUSTIVE" not in os.environ, reason="three processes")
async def test_workers_share_the_readiness_port_and_serve_it_while_they_drain(
    tmp_path: Path,
) -> None:
    go = asyncio.Event()
    async with serve(streaming_until(go)) as upstream:
        side = f"http://127.0.0.1:{(port := find_free_port())}"
        options = ["--config", write_config(tmp_path, upstream.url), "--model", "fast=up:m"]
        options += ["--ready-port", str(port), "--workers", "2", "--drain-delay", "1"]
        async with running(*options) as (url, process), aiohttp.ClientSession() as session:
            workers = psutil.Process(process.pid).children()
            for _ in range(40):
                assert await get(f"{side}/ready") == (200, {"status": "ready"})
            # a worker that died is replaced, and the port is served in the meantime
            next(each for each in workers if each.cpu_times().user > 0.3).kill()
            async with patience("a new worker"):
                while set(psutil.Process(process.pid).children()) <= set(workers):
                    assert (await get(f"{side}/ready"))[0] == 200
            body = {**BODY, "stream": True}
            async with session.post(f"{url}/v1/chat/completions", json=body) as streaming:
                while b"first" not in await streaming.content.readany():
                    pass
                process.send_signal(signal.SIGTERM)
                await wait_until_closed(url)
                for _ in range(20):
                    assert await get(f"{side}/ready") == (503, {"status": "draining"})
                go.set()
                assert (await streaming.content.read()).endswith(DONE)
            await arrival(process.wait(), "the end of the gateway")
        await wait_until_closed(side)


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
            # This request has no key, so it is rejected.
            await post(path, BODY, {"traceparent": PARENT})
    spans = exporter.get_finished_spans()
    server, refused = [span for span in spans if span.kind.name == "SERVER"]
    attempts = [span for span in spans if span.kind.name == "CLIENT"]
    assert f"{server.context.trace_id:032x}" == TRACE
    assert f"{server.parent.span_id:016x}" == SPAN
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["dragoman.key"] == "ann"
    assert server.attributes["dragoman.model"] == "fast"
    assert refused.attributes["http.response.status_code"] == 401
    assert len(attempts) == 2
    assert {span.parent.span_id for span in attempts} == {server.context.span_id}
    (seen,) = upstream.requests
    assert seen.headers["traceparent"] == f"00-{TRACE}-{server.context.span_id:016x}-01"
    assert ANN not in repr([span.to_json() for span in spans])
