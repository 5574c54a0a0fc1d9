"""Test the transport on real sockets: timeouts, limits, proxies, certificates, and failures below
HTTP.
"""

import asyncio
import contextlib
import gzip
import pickle
import socket
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dragoman as d
from dragoman.provider import bind
from dragoman.transport import FixtureTransport, Secret
from dragoman.transport.body import MAX_RATIO
from dragoman.wire import Decoder

from ..listed import collect
from ..server import Connection, Handler, answering, chunk, completion, replying, serve
from ..waiting import arrival, settle

pytestmark = pytest.mark.usefixtures("virtual_time")


async def _collect(model: d.Provider) -> tuple[list[Any], Any]:
    return await collect(model.stream("Hi"))


async def _ask(model: d.Provider, *, stream: bool) -> None:
    """Make a call and raise its error."""
    if not stream:
        await model.complete("Hi")
    elif (error := (await _collect(model))[1]) is not None:
        raise error


# --- the four deadlines of an exchange ---------------------------------------------------------


async def test_opening_a_connection_fails_at_the_connect_timeout() -> None:
    # A listener with a full backlog accepts no connection.
    with socket.socket() as listener, contextlib.ExitStack() as fillers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(address)
        url = f"http://127.0.0.1:{address[1]}/v1"
        async with d.connect("m", base_url=url, timeouts={"connect": 10}) as model:
            with pytest.raises(d.TimedOutError) as caught:
                await model.complete("Hi")
    assert caught.value.which == "connect"
    assert caught.value.transient


async def test_connect_timeout_covers_the_dns_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    async with d.connect(
        "m", base_url="http://nowhere.test/v1", timeouts={"connect": 10, "total": 60}
    ) as model:
        with pytest.raises(d.TimedOutError) as caught:
            await model.complete("Hi")
        _, error = await _collect(model)
    assert caught.value.which == "connect"
    assert isinstance(error, d.TimedOutError)
    assert error.which == "connect"


async def silent(connection: Connection) -> None:
    await asyncio.Event().wait()


def commenting(text: str | None = None) -> Handler:
    async def handler(connection: Connection) -> None:
        connection.begin_stream()
        if text is not None:
            connection.chunk(chunk(text))
        while True:
            connection.chunk(b": keep-alive\n\n")
            await connection.writer.drain()
            await asyncio.sleep(1)

    return handler


async def drip(connection: Connection) -> None:
    connection.begin_stream()
    while True:
        connection.chunk(chunk("x"))
        await connection.writer.drain()
        await asyncio.sleep(1)


@pytest.mark.parametrize(
    ("handler", "timeouts", "which", "text"),
    [
        (silent, {"first_event": 15}, "first_event", None),
        (commenting(), {"first_event": 15}, "first_event", None),
        (commenting("Hello"), {"idle": 15}, "idle", "Hello"),
        (drip, {"total": 50, "idle": 1.5}, "total", "x" * 50),
        (silent, {"total": 15}, "total", None),
    ],
    ids=["silent", "comments only", "comments after text", "drip", "silent in total"],
)
async def test_stream_ends_with_an_error_at_each_of_its_timeouts(
    handler: Any, timeouts: dict[str, float], which: str, text: str | None
) -> None:
    async with (
        serve(handler) as server,
        d.connect("m", base_url=server.base_url, timeouts=timeouts) as model,
    ):
        began = asyncio.get_running_loop().time()
        events, error = await arrival(_collect(model), "the timeout")
        passed = asyncio.get_running_loop().time() - began
        await arrival(server.closed.wait(), "the connection to close")
    assert isinstance(error, d.TimedOutError)
    assert error.which == which
    assert passed == pytest.approx(timeouts[which], abs=0.1)
    d.check_events(events)
    if text is None:
        assert events == []
    else:
        assert events[-1].finish_reason == "error"
        assert error.response.text == text


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_that_wait_for_a_reply_fail_when_the_provider_is_closed(stream: bool) -> None:
    async def half(connection: Connection) -> None:
        if stream:
            connection.begin_stream()
            connection.chunk(chunk("Hello"))
        else:
            connection.head(200, {"content-length": "1000"})
            connection.send(b'{"cho')
        await connection.writer.drain()
        await asyncio.Event().wait()

    async with serve(half) as server:
        model = d.connect("m", base_url=server.base_url, timeouts=None)
        waiting = asyncio.ensure_future(_ask(model, stream=stream))
        await settle()
        assert server.requests
        await model.close()
        with pytest.raises(d.StreamInterruptedError):
            await arrival(waiting, "an error")


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "missing"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, d.AuthenticationError), (429, d.RateLimitError), (500, d.UnavailableError)],
)
async def test_error_response_without_a_complete_body_is_classified_by_its_status(
    status: int, kind: type[d.ProviderError], is_cut: bool
) -> None:
    async def refuse(connection: Connection) -> None:
        connection.head(status, {"content-length": "500", "retry-after": "7"})
        if is_cut:
            connection.send(b'{"error": {"mess')
            await connection.writer.drain()
            connection.writer.close()
        else:
            await asyncio.Event().wait()

    async with serve(refuse) as server, d.connect("m", base_url=server.base_url) as model:
        with pytest.raises(kind) as caught:
            await arrival(model.complete("Hi"), "an error")
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert caught.value.retry_after == 7.0


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Return 100 KB that decompress to 64 MiB of SSE comments, which are not events."""
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    comments = (b":" + b"x" * 1000 + b"\n") * 1024
    return b"".join([packed.compress(comments) for _ in range(64)]) + packed.flush()


def exploding(bomb: bytes) -> Callable[[Connection], Awaitable[None]]:
    async def explode(connection: Connection) -> None:
        connection.head(200, {"content-encoding": "gzip", "content-length": str(len(bomb))})
        connection.send(bomb)

    return explode


@pytest.mark.parametrize("stream", [False, True])
async def test_decompression_bomb_is_rejected(
    stream: bool, bomb: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    feed = Decoder.feed

    def counted(self: Decoder, data: bytes) -> list[d.Event]:
        nonlocal read
        read += len(data)
        return feed(self, data)

    monkeypatch.setattr(Decoder, "feed", counted)
    async with serve(exploding(bomb)) as server, d.connect("m", base_url=server.base_url) as model:
        with pytest.raises(d.InvalidResponseError, match="times its compressed size"):
            await _ask(model, stream=stream)
    assert 0 < read < MAX_RATIO * len(bomb) + 1024 * 1024


async def test_long_compressed_reply_is_accepted() -> None:
    text = "".join(f"{number:x} " for number in range(400_000))

    async with (
        serve(replying(200, gzip.compress(completion(text)), content_encoding="gzip")) as server,
        d.connect("m", base_url=server.base_url) as model,
    ):
        assert (await model.complete("Hi")).text == text


@pytest.mark.parametrize("stream", [False, True])
async def test_compressed_comments_neither_extend_a_timeout_nor_block_the_event_loop(
    stream: bool, bomb: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.transport.body.MAX_RATIO", 10_000)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    # A second passes at each turn of the event loop.
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: turns)
    async with (
        serve(exploding(bomb * 2)) as server,
        d.connect("m", base_url=server.base_url, timeouts=100) as model,
    ):
        counting = asyncio.create_task(count_turns())
        with pytest.raises(d.TimedOutError):
            await _ask(model, stream=stream)
        counting.cancel()
        asked = server.requests[0].headers.get("accept-encoding")
    assert turns > 10
    assert (asked == "identity") is stream


async def test_complete_call_fails_at_the_total_timeout() -> None:
    async def half(connection: Connection) -> None:
        connection.head(200, {"content-length": "1000"})
        connection.send(b'{"cho')
        await asyncio.Event().wait()

    for handler in (silent, half):
        async with (
            serve(handler) as server,
            d.connect("m", base_url=server.base_url, timeouts=15) as model,
        ):
            with pytest.raises(d.TimedOutError) as caught:
                await arrival(model.complete("Hi"), "the timeout")
            await arrival(server.closed.wait(), "the connection to close")
        assert caught.value.which == "total"


async def test_slow_handling_of_the_first_event_causes_no_timeout() -> None:
    going_on = asyncio.Event()

    async def slow(connection: Connection) -> None:
        connection.begin_stream()
        connection.chunk(chunk("Hel"))
        await connection.writer.drain()
        await going_on.wait()
        connection.chunk(chunk("lo") + b"data: [DONE]\n\n")
        await connection.writer.drain()
        await asyncio.Event().wait()

    patience = {"first_event": 10, "idle": 5}
    async with (
        serve(slow) as server,
        d.connect("m", base_url=server.base_url, timeouts=patience) as model,
    ):
        stream = model.stream("Hi")
        async for event in stream:
            if isinstance(event, d.TextDelta) and event.text == "Hel":
                await asyncio.sleep(30)
                going_on.set()
        assert stream.response is not None
        assert stream.response.text == "Hello"


async def test_slow_reader_causes_no_idle_timeout() -> None:
    patience = {"idle": 20}
    async with (
        serve(answering("abc")) as server,
        d.connect("m", base_url=server.base_url, timeouts=patience) as model,
    ):
        texts = []
        async for event in model.stream("Hi"):
            await asyncio.sleep(25 if event.type == "text.delta" else 0)
            texts.append(event.type)
    assert texts[-1] == "message.complete"


async def test_timeouts_can_be_turned_off() -> None:
    off = d.Timeouts(None, None, None, None)
    async with (
        serve(answering()) as server,
        d.connect("m", base_url=server.base_url, timeouts=off) as model,
    ):
        assert (await model.complete("Hi")).text == "Hello"
        assert (await _collect(model))[1] is None


@pytest.mark.parametrize(
    "value", [0, -1, 10**10, 10**400, -(10**400), 1e308, float("nan"), float("-inf"), True, "1"]
)
def test_invalid_timeouts_are_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match=r"timeouts\.idle"):
        d.Timeouts(idle=value)


# --- failures below the HTTP level -------------------------------------------------------------


async def hang_up(connection: Connection) -> None:
    connection.writer.transport.abort()


async def not_http(connection: Connection) -> None:
    connection.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


async def broken_framing(connection: Connection) -> None:
    """Send an invalid chunk size, after which an HTTP library would keep waiting."""
    connection.begin_stream()
    connection.chunk(chunk("Hello"))
    await connection.writer.drain()
    await settle()
    connection.send(b"zz\r\nnonsense\r\n")
    await asyncio.Event().wait()


async def short_body(connection: Connection) -> None:
    connection.head(200, {"content-length": "1000"})
    connection.send(b'{"choices": [')
    await connection.writer.drain()
    connection.writer.transport.abort()


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (hang_up, d.NetworkError),
        (not_http, d.InvalidResponseError),
        (short_body, d.StreamInterruptedError),
        (broken_framing, d.StreamInterruptedError),
    ],
)
async def test_broken_http_replies_raise_the_right_error_class(
    handler: Any, kind: type[Exception]
) -> None:
    async with serve(handler) as server, d.connect("m", base_url=server.base_url) as model:
        with pytest.raises(kind) as caught:
            await arrival(model.complete("Hi"), "an error")
        events, error = await arrival(_collect(model), "the end of the stream")
    assert type(error) is kind
    d.check_events(events)
    if handler is broken_framing:
        assert error.response.text == "Hello"
    assert caught.value.__cause__ is None or caught.value.__cause__.__traceback__ is None


async def test_refused_connection_and_unknown_host_are_reported() -> None:
    async with d.connect(
        "m", base_url="http://127.0.0.1:1/v1/secret-path?key=secret-query"
    ) as model:
        with pytest.raises(
            d.NetworkError, match=r"the server at http://127\.0\.0\.1:1 cannot be reached"
        ) as caught:
            await model.complete("Hi")
        assert caught.value.__cause__ is not None
        assert str(caught.value).startswith("127.0.0.1:1/m: ")
        assert "secret" not in str(caught.value)
    async with d.connect("m", base_url="http://no-such-host.invalid/v1") as model:
        with pytest.raises(
            d.NetworkError, match=r"name of http://no-such-host\.invalid cannot be resolved"
        ) as failed:
            await model.complete("Hi")
        assert failed.value.is_unresolved


async def test_hint_is_shown_only_if_no_server_can_be_reached() -> None:
    async with bind("m", "http://127.0.0.1:1/v1", hint="Is it running?") as model:
        with pytest.raises(d.NetworkError) as caught:
            await model.complete("Hi")
    assert (
        str(caught.value)
        == "127.0.0.1:1/m: the server at http://127.0.0.1:1 cannot be reached. Is it running?"
    )
    async with (
        serve(hang_up) as server,
        bind("m", server.base_url, hint="Is it running?") as model,
    ):
        with pytest.raises(d.NetworkError) as lost:
            await model.complete("Hi")
    assert "Is it running?" not in str(lost.value)


async def test_errors_name_the_proxy_without_its_password() -> None:
    async with serve(replying(502, b"no")) as server:
        address = server.base_url.removesuffix("/v1").removeprefix("http://")
        for proxy, complaint in [
            (
                f"http://user:pass-word@{address}",
                f"the proxy http://{address} refused to connect to https://test.invalid",
            ),
            (
                "http://user:pass-word@127.0.0.1:1",
                "the proxy http://127.0.0.1:1 to https://test.invalid cannot be reached",
            ),
        ]:
            transport = d.HttpTransport(proxy=proxy)
            async with d.connect(
                "m", base_url="https://test.invalid/v1", transport=transport
            ) as model:
                with pytest.raises(d.NetworkError) as caught:
                    await model.complete("Hi")
            assert complaint in str(caught.value)
            assert "HTTPS_PROXY" in str(caught.value)
            assert "pass-word" not in str(caught.value)


# --- bodies of replies -------------------------------------------------------------------------


async def test_large_reply_is_read_and_an_endless_one_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def endless(connection: Connection) -> None:
        connection.head(200, {"transfer-encoding": "chunked"})
        while True:
            connection.chunk(b"{" + b" " * 65536)
            await connection.writer.drain()

    async with (
        serve(replying(200, completion("x" * 10_000_000))) as server,
        d.connect("m", base_url=server.base_url) as model,
    ):
        assert len((await model.complete("Hi")).text) == 10_000_000
    monkeypatch.setattr("dragoman.wire.codec.MAX_BODY", 1_000_000)
    async with serve(endless) as server, d.connect("m", base_url=server.base_url) as model:
        with pytest.raises(d.InvalidResponseError, match="longer than"):
            await arrival(model.complete("Hi"), "an error")
        await arrival(server.closed.wait(), "the connection to close")


async def test_body_of_an_error_response_is_read_up_to_a_limit() -> None:
    async def endless(connection: Connection) -> None:
        connection.head(500, {"transfer-encoding": "chunked"})
        while True:
            connection.chunk(b"<" * 65536)
            await connection.writer.drain()

    async with serve(endless) as server, d.connect("m", base_url=server.base_url) as model:
        with pytest.raises(Exception, match="HTTP 500"):
            await arrival(model.complete("Hi"), "an error")
        await arrival(server.closed.wait(), "the connection to close")


# --- reuse of connections ----------------------------------------------------------------------


async def test_complete_calls_reuse_a_connection_and_streams_close_theirs() -> None:
    connections: set[int] = set()
    inner = answering()

    async def counted(connection: Connection) -> None:
        connections.add(id(connection.writer))
        await inner(connection)

    async with serve(counted) as server, d.connect("m", base_url=server.base_url) as model:
        for _ in range(5):
            await model.complete("Hi")
        assert len(connections) == 1
        for _ in range(3):
            assert (await _collect(model))[1] is None
            await model.complete("Hi")
        assert server.requests[-2].headers["connection"] == "close"


# --- proxies ----------------------------------------------------------------------------------


async def test_proxy_variables_are_used_unless_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(answering("by proxy")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "direct.invalid")
        async with d.connect("m", base_url="http://somewhere.invalid/v1") as model:
            assert (await model.complete("Hi")).text == "by proxy"
        assert proxy.requests[-1].path == "http://somewhere.invalid/v1/chat/completions"
        seen = len(proxy.requests)
        async with d.connect("m", base_url="http://direct.invalid/v1") as model:
            with pytest.raises(d.NetworkError):
                await model.complete("Hi")
        async with d.connect(
            "m", base_url="http://other.invalid/v1", transport=d.HttpTransport(proxy=None)
        ) as model:
            with pytest.raises(d.NetworkError):
                await model.complete("Hi")
        async with (
            serve(answering("direct")) as server,
            d.connect("m", base_url=server.base_url) as model,
        ):
            assert (await model.complete("Hi")).text == "direct"
        assert len(proxy.requests) == seen
        chosen = d.HttpTransport(proxy=proxy.url)
        async with d.connect("m", base_url="http://other.invalid/v1", transport=chosen) as model:
            assert (await model.complete("Hi")).text == "by proxy"


# --- secrets, the fixture transport and invalid proxies ----------------------------------------


def test_repr_of_a_secret_does_not_contain_it() -> None:
    secret = Secret("sk-canary-1234567890")
    assert "canary" not in f"{secret} {secret!r} {[secret]} {vars}"
    assert bool(secret)
    assert not Secret(None)
    assert repr(Secret(None)) == "Secret(None)"
    with pytest.raises(TypeError):
        pickle.dumps(secret)


async def test_fixture_transport_replays_a_failure_and_raises_when_empty() -> None:
    transport = FixtureTransport((200, {}, [chunk("a"), d.StreamInterruptedError("cut")]))
    async with d.connect("m", base_url="http://x", transport=transport) as model:
        events, error = await _collect(model)
        assert isinstance(error, d.StreamInterruptedError)
        assert events[-1].finish_reason == "error"
        with pytest.raises(d.NetworkError, match="no more replies"):
            await model.complete("Hi")
    assert len(transport.requests) == 2


async def test_proxy_variable_that_is_not_http_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", "socks5h://127.0.0.1:1")
    provider = d.connect("m", base_url="http://example.invalid/v1", api_key="k")
    with pytest.raises(d.NetworkError, match="the proxy is a socks5h URL"):
        await provider.complete("Hi")
    await provider.close()
