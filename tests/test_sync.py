"""The blocking API, used without an event loop."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from dragoman import AuthenticationError, TextDelta, check_events
from dragoman.sync import SyncProvider, connect

from .server import Connection, Server, answering, chunk, replying, serve
from .waiting import PATIENCE, block_until


class Background:
    """A test server in a separate thread."""

    def __init__(self, handler: object) -> None:
        self._handler = handler
        self._stop: asyncio.Event | None = None
        self._up = threading.Event()
        self.server: Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with serve(self._handler) as self.server:  # type: ignore[arg-type]
            self._up.set()
            await self._stop.wait()

    def __enter__(self) -> Server:
        self._thread.start()
        self._up.wait(PATIENCE)
        assert self.server is not None
        return self.server

    def __exit__(self, *_: object) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with Background(answering("Hello")) as running:
        yield running


def test_every_method_works_in_the_blocking_api(server: Server) -> None:
    with connect("m", base_url=server.base_url) as model:
        model.ready()
        assert model.complete("Hi").text == "Hello"
        stream = model.stream("Hi")
        events = list(stream)
        check_events(events)
        assert stream.response.text == "Hello"
        assert model.estimate_input_tokens("Hello there, you") > 0
        assert model.plan("Hi").items[0].outcome == "kept"
        assert model.cancel("unknown") is False
        assert model.name == urlsplit(server.base_url).netloc
        assert model.model == "m"
        assert repr(model) == f"<sync <HttpProvider {model.name} m>>"
        assert model.provider.model == "m"


def test_blocking_calls_from_many_threads_succeed(server: Server) -> None:
    with connect("m", base_url=server.base_url) as model:
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda: texts.append(model.complete("Hi").text))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == ["Hello"] * 8


async def stalled(connection: Connection) -> None:
    if connection.seen.json.get("stream"):
        connection.begin_stream()
        connection.chunk(chunk("Hel"))
        await connection.writer.drain()
    await asyncio.Event().wait()


FIRST_CALLS = """
import sys, threading
import dragoman, dragoman.sync
from dragoman.prices import PriceTable

sys.setswitchinterval(1e-6)
start = threading.Barrier(6)
tables = []

def call():
    start.wait()
    tables.append(PriceTable.bundled())
    try:
        with dragoman.sync.connect("m", base_url="http://127.0.0.1:9/v1", retries=0) as model:
            model.complete("Hi")
    except dragoman.ProviderError:
        pass

threads = [threading.Thread(target=call) for _ in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert len({id(each) for each in tables}) == 1
assert len(tables) == 6
"""


def test_first_calls_of_several_threads_do_not_crash() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_leaving_a_stream_early_closes_it() -> None:
    with Background(stalled) as server, connect("m", base_url=server.base_url) as model:
        with model.stream("Hi") as stream:
            next(stream)
        block_until(lambda: not server.open, "the end of the connection")


def test_deleting_an_unfinished_stream_closes_it() -> None:
    with Background(stalled) as server, connect("m", base_url=server.base_url) as model:
        for event in model.stream("Hi"):
            if isinstance(event, TextDelta):
                break
        del event
        gc.collect()
        block_until(lambda: not server.open, "the end of the connection")


def test_blocking_api_raises_errors_unchanged() -> None:
    with Background(replying(401, b"{}")) as server:
        model: SyncProvider = connect("m", base_url=server.base_url)
        with pytest.raises(AuthenticationError):
            model.complete("Hi")
        model.close()
