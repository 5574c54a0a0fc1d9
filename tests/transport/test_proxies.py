"""Test proxies: the real tinyproxy, and small proxies with the behaviour that a test needs."""

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman import HttpTransport, InvalidResponseError, NetworkError, TimedOutError
from dragoman.transport import Timeouts
from dragoman.transport.connect import Proxy, find_proxy, parse_url
from dragoman.wire import HttpRequest
from tests.rows import read_table

from ..ports import find_free_port
from ..programs import require
from ..waiting import arrival, until
from .certificates import Authority, server_context
from .raw import PATIENT, Handler, call, listen, read_request, replying

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


# --- calls through a real proxy ----------------------------------------------------------------


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _start(
    program: str, folder: Path, password: str
) -> tuple[asyncio.subprocess.Process, int]:
    port = find_free_port()
    lines = [f"Port {port}", "Listen 127.0.0.1", "Allow 127.0.0.1", 'ViaProxyName "tiny"']
    lines += [f"BasicAuth ann {password}"] if password else []
    (folder / "tinyproxy.conf").write_text("\n".join([*lines, ""]))
    process = await asyncio.create_subprocess_exec(
        program, "-d", "-c", str(folder / "tinyproxy.conf"), stdout=asyncio.subprocess.DEVNULL
    )
    await until(lambda: process.returncode is not None or _is_open(port), "tinyproxy")
    assert process.returncode is None
    return process, port


@contextlib.asynccontextmanager
async def tinyproxy(folder: Path, *, password: str = "") -> AsyncIterator[str]:
    """Run tinyproxy; yield its URL, with a user name and the password if a password is set."""
    process, port = await _start(require("tinyproxy"), folder, password)
    try:
        yield f"http://ann:{password}@127.0.0.1:{port}" if password else f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("password", ["", "s3cret-word"], ids=["open", "with a password"])
async def test_calls_work_through_a_real_proxy(
    password: str, authority: Authority, tmp_path: Path
) -> None:
    heads: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append((await read_request(reader))[0])
            writer.write(REPLY)

    async with (
        tinyproxy(tmp_path, password=password) as proxy,
        listen(handler) as plain,
        listen(handler, ssl=server_context(authority.issue("127.0.0.1"))) as secure,
    ):
        transport = HttpTransport(proxy=proxy, ca=authority.path)
        for stream in (False, True):
            assert (await call(transport, plain.url, stream=stream))[2] == b"hi"
            assert (await call(transport, secure.url, stream=stream))[2] == b"hi"
        await transport.close()
        if password:
            stranger = HttpTransport(proxy=proxy.replace("ann:", "bob:"), ca=authority.path)
            # The proxy closes the connection without reading the request, so the reply's body may
            # be lost, but not its status.
            request = HttpRequest("POST", f"{plain.url}/v1", {}, b"")
            async with stranger.send(request, {}, PATIENT) as reply:
                assert reply.status in (401, 407)
            with pytest.raises(NetworkError, match="refused to connect") as caught:
                await call(stranger, secure.url)
            assert caught.value.status in (401, 407)
            assert password not in repr(vars(caught.value)) + repr(caught.value.__cause__)
            await stranger.close()
    assert len(heads) == 4
    assert all(b"proxy-authorization" not in head.lower() for head in heads)
    # The proxy adds its header only to plain requests: it cannot change encrypted ones.
    assert sum(b"via: " in head.lower() for head in heads) == 2


# --- tunnels through an HTTP proxy -------------------------------------------------------------


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def tunnelling(
    heads: list[bytes], reply: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        host, _, port = head.split()[1].decode().rpartition(":")
        inner, outer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(reply)
        await asyncio.gather(_relay(reader, outer), _relay(inner, writer))

    return handler


@pytest.mark.parametrize("secure", [False, True], ids=["http proxy", "https proxy"])
async def test_calls_work_through_a_proxy_tunnel(secure: bool, authority: Authority) -> None:
    heads: list[bytes] = []
    context = server_context(authority.issue("127.0.0.1"))
    async with (
        listen(tunnelling(heads), **({"ssl": context} if secure else {})) as proxy,
        listen(replying(REPLY), ssl=context) as server,
    ):
        address = proxy.url.replace("://", "://ann:p%40ss@")
        transport = HttpTransport(proxy=address, ca=authority.path)
        for _ in range(3):
            assert (await call(transport, server.url))[2] == b"hi"
        assert proxy.connections == 1
        assert server.connections == 1
        assert transport.open_pool().sizes == (1, 1)
        await transport.close()
        await arrival(server.closed.wait(), "the connection to close")
    [head] = heads
    place = server.url.removeprefix("https://").encode()
    assert head.startswith(b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n" % (place, place))
    assert b"proxy-authorization: Basic " + base64.b64encode(b"ann:p@ss") in head


async def test_the_certificate_of_the_server_is_checked_inside_a_proxy_tunnel(
    authority: Authority,
) -> None:
    async with (
        listen(tunnelling([])) as proxy,
        listen(replying(REPLY), ssl=server_context(authority.issue("other.test"))) as server,
    ):
        transport = HttpTransport(proxy=proxy.url, ca=authority.path)
        with pytest.raises(NetworkError, match=r"certificate of .* was refused through the proxy"):
            await call(transport, server.url)
        await arrival(proxy.closed.wait(), "the connection to close")
        await transport.close()


async def test_proxy_that_does_not_answer_http_is_reported() -> None:
    for reply, kind in [(b"SSH-2.0\r\n", InvalidResponseError), (b"", NetworkError)]:

        async def handler(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: bytes = reply
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            await writer.drain()

        async with listen(handler) as proxy:
            transport = HttpTransport(proxy=proxy.url)
            with pytest.raises(kind):
                await call(transport, "https://nowhere.test")
            assert transport.open_pool().sizes == (0, 0)
            await transport.close()


@pytest.mark.usefixtures("virtual_time")
async def test_the_connect_timeout_covers_the_proxy() -> None:
    async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listen(mute) as proxy:
        transport = HttpTransport(proxy=proxy.url)
        with pytest.raises(TimedOutError, match="through the proxy") as caught:
            await call(transport, "https://nowhere.test", timeouts=Timeouts(connect=10))
        assert caught.value.which == "connect"
        await arrival(proxy.closed.wait(), "the connection to close")
        await transport.close()


async def test_connections_through_different_proxies_are_not_mixed(authority: Authority) -> None:
    async with listen(replying(REPLY)) as proxy:
        transport = HttpTransport(proxy=proxy.url)
        await call(transport, "http://one.test")
        await call(transport, "http://two.test")
        await call(transport, "http://one.test")
        assert proxy.connections == 2
        await transport.close()


# --- proxy settings of the environment ---------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "no_proxy", "proxied"), read_table("no_proxy_variable_excludes_hosts_from_the_proxy")
)
def test_no_proxy_variable_excludes_hosts_from_the_proxy(
    url: str, no_proxy: str, proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    found = find_proxy(parse_url(url))
    assert (found is not None) is proxied
    assert found is None or found.origin == "http://proxy.test:3128"


def test_proxy_variable_of_a_scheme_overrides_the_general_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "all.test:1")
    monkeypatch.setenv("http_proxy", "http://plain.test:2")
    for url, origin in [
        ("http://a.test", "http://plain.test:2"),
        ("https://a.test", "http://all.test:1"),
    ]:
        found = find_proxy(parse_url(url))
        assert found is not None
        assert found.origin == origin


@pytest.mark.parametrize(
    "url", ["http://user:pass-word@proxy.test:1", "https://user:pass-word@proxy.test"]
)
def test_repr_hides_the_proxy_password(url: str) -> None:
    proxy = Proxy(url)
    assert "pass-word" not in f"{proxy.origin} {proxy!r} {proxy.authorization!r}"


def test_invalid_proxies_are_rejected() -> None:
    for wrong in ("socks5://127.0.0.1:1", "http://", "http://[::1", "ftp://x"):
        with pytest.raises(ValueError, match="proxy:"):
            HttpTransport(proxy=wrong)
    with pytest.raises(ValueError, match="Unix socket"):
        HttpTransport(proxy="http://127.0.0.1:1", uds="/tmp/x")
