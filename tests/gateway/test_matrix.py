"""Test vendor clients with models of every wire, and compare the working features with the table
in the docs.

``python -m tests.gateway.test_matrix`` writes the page from a run.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from dragoman.gateway.app import create_app
from dragoman.provider import Provider, connect
from dragoman.sim import SimServer
from tests.pages import ROOT
from tests.waiting import arrival

from .serving import serving
from .upstream import EXHAUSTIVE, WIRES
from .vendor_clients import CLIENTS, FEATURES, VendorClient, script

PAGE = ROOT / "docs/reference/gateway-clients.md"


class Relay:
    """Forward bytes to a server, and record when the client closes its latest connection."""

    def __init__(self, port: int) -> None:
        self.closed = asyncio.Event()
        self._port = port
        self._tasks: set[asyncio.Task[Any] | None] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in self._tasks:
                assert task is not None
                task.cancel()
            await asyncio.sleep(0)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        closed = asyncio.Event()
        self._tasks.add(asyncio.current_task())
        above, below = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.ensure_future(pump(above, writer))
        try:
            while data := await reader.read(65536):
                self.closed = closed
                below.write(data)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            closed.set()
            below.close()
            writer.close()
            back.cancel()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


class Bench(NamedTuple):
    """Hold the URL of a gateway, and for each wire a relay in front of the model's server."""

    url: str
    relays: dict[str, Relay]


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[Bench]:
    with SimServer(script(), models=("sim",)) as upstream:
        async with contextlib.AsyncExitStack() as stack:
            models: dict[str, Provider] = {}
            relays: dict[str, Relay] = {}
            for wire in WIRES:
                address = urlsplit(upstream.base_urls[wire])
                relays[wire] = Relay(address.port or 0)
                port = await stack.enter_async_context(relays[wire].serving())
                base_url = f"http://127.0.0.1:{port}{address.path}"
                models[wire] = connect("sim", wire=wire, base_url=base_url, api_key="k" * 12)
            yield Bench(await stack.enter_async_context(serving(create_app(models))), relays)


async def run(
    bench: Bench, each: VendorClient, wires: tuple[str, ...]
) -> dict[tuple[str, str], str]:
    """Return the outcome of each feature of a client, by feature and wire."""
    client, found = each.open(bench.url), {}
    try:
        for feature in FEATURES:
            cell = getattr(each, feature, None)
            for wire in wires:
                if cell is None:
                    found[feature, wire] = "–"
                    continue
                try:
                    await cell(client, wire)
                    if feature == "abort":
                        await arrival(bench.relays[wire].closed.wait(), "the end of the call")
                    found[feature, wire] = "yes"
                except Exception as error:
                    found[feature, wire] = f"no: {type(error).__name__}: {str(error)[:300]}"
    finally:
        await each.close(client)
    return found


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
@pytest.mark.parametrize("each", CLIENTS, ids=lambda each: each.name)
async def test_every_supported_combination_of_client_and_upstream_wire_works(
    each: VendorClient,
) -> None:
    at = CLIENTS.index(each)
    wires = WIRES if EXHAUSTIVE else (WIRES[at], WIRES[(at + 2) % len(WIRES)])
    async with gateway() as bench:
        found = await run(bench, each, wires)
    assert {key: value for key, value in found.items() if value not in ("yes", "–")} == {}
    lacking = [feature for feature in FEATURES if not getattr(each, feature, None)]
    assert write_row(each.name, lacking, {}) in PAGE.read_text().splitlines()


_HEAD = """# Clients of the gateway

The vendors' own clients work unchanged with models of every wire: WIRES.
A test checks each feature with each wire over real sockets: FEATURES.

"""


def write_page(cells: dict[str, dict[tuple[str, str], str]]) -> str:
    """Return the documentation page with a line for each client."""
    lines = []
    for name, found in cells.items():
        lacking = [feature for feature in FEATURES if found[feature, WIRES[0]] == "–"]
        failed = {
            feature: [wire for wire in WIRES if found[feature, wire].startswith("no")]
            for feature in FEATURES
        }
        lines.append(write_row(name, lacking, failed))
    names = ", ".join([feature.replace("_", " ") for feature in FEATURES])
    head = _HEAD.replace("WIRES", ", ".join(WIRES)).replace("FEATURES", names)
    return head + "\n".join(lines) + "\n"


def write_row(name: str, lacking: list[str], failed: dict[str, list[str]]) -> str:
    """Return the line of a client, with the features that it cannot request and, by feature, the
    wires of the models with which it failed.
    """
    notes = [f"cannot request {', '.join(lacking).replace('_', ' ')}"] if lacking else []
    notes += [
        f"{feature.replace('_', ' ')} fails with {', '.join(wires)}"
        for feature, wires in failed.items()
        if wires
    ]
    return f"- {name}: {'; '.join(notes) or 'all'}"


async def main() -> None:
    async with gateway() as bench:
        cells = {each.name: await run(bench, each, WIRES) for each in CLIENTS}
    for name, found in cells.items():
        for key, value in found.items():
            if value.startswith("no"):
                print(name, key, value)
    # Keep the second part of the page, which tests.clients.results writes.
    _, title, programs = PAGE.read_text().partition("\n## ")
    PAGE.write_text(write_page(cells) + title + programs)


if __name__ == "__main__":
    asyncio.run(main())
