"""Test vendor clients with models of every wire, and compare the working features with the table
in the docs.

``python -m tests.gateway.test_matrix`` writes the page from a run.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dragoman.gateway.app import create_app
from dragoman.provider import Provider, connect
from dragoman.sim import SimServer
from tests.clients.scripted import Pauses
from tests.pages import ROOT
from tests.waiting import until

from .serving import serving
from .upstream import EXHAUSTIVE, WIRES
from .vendor_clients import CLIENTS, FEATURES, VendorClient, script

PAGE = ROOT / "docs/reference/gateway-clients.md"


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[tuple[str, Pauses]]:
    """Serve a gateway with a model of each wire; yield its URL, and the pauses of slow replies."""
    pauses = Pauses()
    with SimServer(script(pauses.sleep), models=("sim",)) as upstream:
        models: dict[str, Provider] = {
            wire: connect("sim", wire=wire, base_url=upstream.base_urls[wire], api_key="k" * 12)
            for wire in WIRES
        }
        async with serving(create_app(models)) as url:
            yield url, pauses


async def run(
    url: str, pauses: Pauses, each: VendorClient, wires: tuple[str, ...]
) -> dict[tuple[str, str], str]:
    """Return the outcome of each feature of a client, by feature and wire."""
    client = each.open(url)
    found = {}
    try:
        for feature in FEATURES:
            cell = getattr(each, feature, None)
            for wire in wires:
                if cell is None:
                    found[feature, wire] = "–"
                    continue
                pauses.begun = pauses.cut = 0
                try:
                    await cell(client, wire)
                    if feature == "abort":
                        await until(lambda: pauses.cut, "the end of the call")
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
    wires = WIRES if EXHAUSTIVE else (WIRES[at % len(WIRES)], WIRES[(at + 2) % len(WIRES)])
    async with gateway() as (url, pauses):
        found = await run(url, pauses, each, wires)
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
    async with gateway() as (url, pauses):
        cells = {each.name: await run(url, pauses, each, WIRES) for each in CLIENTS}
    for name, found in cells.items():
        for key, value in found.items():
            if value.startswith("no"):
                print(name, key, value)
    # Keep the second part of the page, which tests.clients.results writes.
    _, title, programs = PAGE.read_text().partition("\n## ")
    PAGE.write_text(write_page(cells) + title + programs)


if __name__ == "__main__":
    asyncio.run(main())
