"""Pytest plugin: cassettes, simulated models, and a guard that keeps tests off the network.

``dragoman_cassette`` records the calls of a test once and plays them back afterwards.

::

    async def test_river(dragoman_cassette):
        llama = connect("llama3", base_url="http://127.0.0.1:8080/v1")
        async with dragoman_cassette(llama) as model:
            assert "Rhine" in (await model.complete("Name a river.")).text

The cassette is ``cassettes/<module>/<test>.jsonl`` next to the test.
``--dragoman-cassettes=record`` records again, ``replay`` never uses the network (for CI), ``off``
neither records nor plays.

``dragoman_sim`` gives a simulated model, as a provider and on a port::

    def test_agent(dragoman_sim):
        sim = dragoman_sim("Hello.")  # or Path("script.yaml"), or rules
        run_agent(base_url=sim.base_urls["openai"])
        assert len(sim.requests) == 1

``forbid_network()``, or the fixture ``dragoman_no_network``, raises an error for any connection to
another machine.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import ipaddress
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .middleware.cassette import MODES, Record
from .provider import Provider
from .sim import SimServer, serve

__all__ = [
    "NetworkForbiddenError", "cassette_path", "dragoman_cassette", "dragoman_no_network",
    "dragoman_sim", "forbid_network", "pytest_addoption",
]  # fmt: skip

_UNSAFE = re.compile(r"[^\w.\-\[\]=,+]+")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects whether cassettes are recorded or played."""
    parser.getgroup("dragoman").addoption(
        "--dragoman-cassettes",
        choices=MODES,
        default="once",
        help="replay, record, once (record what has no cassette yet) or off; default: once",
    )


@pytest.fixture
def dragoman_cassette(request: pytest.FixtureRequest) -> Callable[..., Record]:
    """Wrap a provider so that a cassette records the test's calls.

    A second cassette of the same test needs a ``name``.
    """
    mode: Any = request.config.getoption("--dragoman-cassettes")
    taken: set[str] = set()

    def wrap(provider: Provider, name: str = "", *, replay_timing: bool = False) -> Record:
        if name in taken:
            raise ValueError(
                f"dragoman_cassette: name {name!r} is used twice in this test; give each cassette "
                "its own"
            )
        taken.add(name)
        return Record(
            provider,
            cassette_path(request.path, request.node.name, name),
            mode,
            replay_timing=replay_timing,
        )

    return wrap


def cassette_path(test_file: Path, test: str, name: str = "") -> Path:
    """Return the path of a test's cassette.

    Characters that file names must not contain are escaped, without collisions.
    """
    wanted = f"{test}.{name}" if name else test
    safe = _UNSAFE.sub("-", wanted)[:150]
    if safe != wanted:
        safe += "-" + hashlib.sha256(wanted.encode()).hexdigest()[:8]
    return test_file.parent / "cassettes" / test_file.stem / f"{safe}.jsonl"


@pytest.fixture
def dragoman_sim() -> Iterator[Callable[..., SimServer]]:
    """Simulate models: call the fixture with the arguments of ``dragoman.sim.serve``.

    The server opens its port when its URL is first read.
    """
    made: list[SimServer] = []

    def simulate(*script: Any, **settings: Any) -> SimServer:
        made.append(serve(*script, **settings))
        return made[-1]

    yield simulate
    for server in made:
        server.stop()


# --- blocking network access in tests ----------------------------------------------------------


class NetworkForbiddenError(AssertionError):
    """A test attempted a connection to another machine; the error message has the address."""


@contextlib.contextmanager
def forbid_network(*allowed: str) -> Iterator[None]:
    """Raise ``NetworkForbiddenError`` if any thread contacts or looks up another machine.

    The host names and IP addresses in ``allowed`` may be contacted; they are compared as strings.
    """
    _watch()
    _guards.append(frozenset(allowed))
    guard = _guards[-1]
    try:
        yield
    finally:
        _guards.remove(guard)


@pytest.fixture
def dragoman_no_network() -> Iterator[None]:
    """Forbid network access in a test."""
    with forbid_network():
        yield


_guards: list[frozenset[str]] = []
_watching = False


def _watch() -> None:
    """Install the audit hook that checks every socket; a hook cannot be removed, only disabled."""
    global _watching
    if not _watching:
        _watching = True
        sys.addaudithook(_look)
    if "uvloop" in sys.modules:
        _watch_loop(sys.modules["uvloop"].Loop)


def _watch_loop(loop: Any) -> None:
    """Wrap the methods of uvloop, which connects without an audit event."""
    connect = loop.create_connection
    send = loop.create_datagram_endpoint
    if hasattr(connect, "__wrapped__"):
        return

    @functools.wraps(connect)
    async def create_connection(
        self: Any, factory: Any, host: Any = None, port: Any = None, **facts: Any
    ) -> Any:
        if _guards and host is not None:
            _refuse_host((host, port))
        return await connect(self, factory, host, port, **facts)

    @functools.wraps(send)
    async def create_datagram_endpoint(
        self: Any, factory: Any, local_addr: Any = None, remote_addr: Any = None, **facts: Any
    ) -> Any:
        if _guards and remote_addr is not None:
            _refuse_host(tuple(remote_addr))
        return await send(self, factory, local_addr, remote_addr, **facts)

    loop.create_connection = create_connection
    loop.create_datagram_endpoint = create_datagram_endpoint


def _look(event: str, args: tuple[Any, ...]) -> None:
    if not _guards or not event.startswith("socket."):
        return
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        _refuse_host(args[1])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        _refuse_host((args[0],))


def _refuse_host(address: Any) -> None:
    if not isinstance(address, tuple) or not address:
        return  # no host to check: a Unix socket, or a socket that is connected already
    host = address[0].decode("idna") if isinstance(address[0], bytes) else address[0]
    if _is_here(host) or all(host in guard for guard in _guards):
        return
    where = f"{host}:{address[1]}" if len(address) > 1 else host
    raise NetworkForbiddenError(f"forbid_network: something wanted to reach {where}")


def _is_here(host: Any) -> bool:
    if host is None or host in ("", "localhost") or str(host).endswith(".localhost"):
        return True
    try:
        found = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return found.is_loopback or found.is_unspecified or (mapped is not None and mapped.is_loopback)
