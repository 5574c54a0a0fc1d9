"""The network guard: remote connections are blocked, and the error names the address."""

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from dragoman import connect
from dragoman.testing import NetworkForbiddenError, forbid_network

from .server import answering, serve

# 192.0.2.0/24 and 2001:db8::/32 are reserved for documentation and never answer.
FAR = [("192.0.2.1", 80), ("2001:db8::1", 443), ("::ffff:192.0.2.1", 80)]


def try_connect(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.setblocking(False)
        one.connect((host, port))


def send_datagram(host: str, port: int) -> None:
    with socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
    ) as one:
        one.sendto(b"x", (host, port))


def create(host: str, port: int) -> None:
    socket.create_connection((host, port))


@pytest.mark.parametrize(("host", "port"), FAR)
@pytest.mark.parametrize("reach", [try_connect, send_datagram])
def test_error_names_the_address(host: str, port: int, reach: Callable[[str, int], None]) -> None:
    with forbid_network(), pytest.raises(NetworkForbiddenError, match=f"{host}:{port}"):
        reach(host, port)


def test_network_guard_blocks_dns_lookups() -> None:
    with forbid_network(), pytest.raises(NetworkForbiddenError, match=r"example\.org"):
        create("example.org", 80)


async def test_network_guard_blocks_remote_providers_and_allows_local_ones() -> None:
    async with serve(answering("hello")) as server:
        with forbid_network():
            async with connect("m", base_url=server.base_url) as near:
                assert (await near.complete("hi")).text == "hello"
            for url in ("http://192.0.2.1:9/v1", "http://no-such-host.example/v1"):
                async with connect("m", base_url=url) as far:
                    with pytest.raises(NetworkForbiddenError):
                        await far.complete("hi")


def test_network_guard_blocks_other_threads() -> None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            try_connect("192.0.2.1", 80)
        except BaseException as error:
            caught.append(error)

    with forbid_network():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert isinstance(caught[0], NetworkForbiddenError)


def test_network_guard_can_allow_hosts_by_name() -> None:
    with forbid_network("192.0.2.1"):
        with pytest.raises(OSError):
            create("192.0.2.1", 9)
        with pytest.raises(NetworkForbiddenError):
            try_connect("192.0.2.2", 80)
        with forbid_network(), pytest.raises(NetworkForbiddenError):
            try_connect("192.0.2.1", 9)


def test_network_guard_is_removed_afterwards() -> None:
    with forbid_network(), pytest.raises(NetworkForbiddenError):
        try_connect("192.0.2.1", 80)
    with pytest.raises(OSError):
        try_connect("192.0.2.1", 80)


@pytest.mark.usefixtures("dragoman_no_network")
async def test_pytest_fixture_blocks_the_network() -> None:
    with pytest.raises(NetworkForbiddenError, match=r"192\.0\.2\.1:80"):
        await asyncio.open_connection("192.0.2.1", 80)
    first, second = socket.socketpair()
    with first, second:
        first.send(b"x")
        assert second.recv(1) == b"x"


def test_network_guard_blocks_an_event_loop_that_connects_natively() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def reach() -> None:
        listener = await asyncio.start_server(
            lambda reader, writer: writer.close(), "127.0.0.1", 0
        )
        host, port = listener.sockets[0].getsockname()
        with forbid_network():
            for far in ("192.0.2.1", "example.org"):
                with pytest.raises(NetworkForbiddenError, match=far):
                    await asyncio.open_connection(far, 80)
            with pytest.raises(NetworkForbiddenError, match=r"192\.0\.2\.1"):
                await asyncio.get_running_loop().create_datagram_endpoint(
                    asyncio.DatagramProtocol, remote_addr=("192.0.2.1", 53)
                )
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
        listener.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(reach())
