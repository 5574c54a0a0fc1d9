"""The Vercel AI SDK, which validates replies with zod, uses the gateway over every wire."""

import json
from pathlib import Path

import pytest

from tests.gateway.upstream import WIRES
from tests.programs import require

from .results import record_outcomes
from .running import INSTALLED, find_program, gateway, in_full_run, run_program
from .scripted import script

pytestmark = [pytest.mark.exhaustive, in_full_run]

SIDES = ("compatible", "chat", "responses", "anthropic", "google")
LIST = Path(__file__).parent / "vercel.mjs"


async def run_list(url: str, side: str, wire: str, where: Path) -> dict[str, str]:
    """Test each listed feature with the AI SDK; return the outcomes by feature."""
    find_program("node", "node_modules", "ai")
    node = require("node")
    command = [str(node), str(LIST), str(INSTALLED / "node"), url, side, wire]
    status, printed = await run_program(command, where, {})
    assert status == 0, printed
    found: dict[str, str] = json.loads(printed.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("side", SIDES)
async def test_every_feature_of_the_vercel_library_works_through_the_gateway(
    side: str, tmp_path: Path
) -> None:
    model = script()
    async with gateway(model, tmp_path) as url:
        failed = {}
        for wire in WIRES:
            found = await run_list(url, side, wire, tmp_path)
            record_outcomes(f"Vercel AI SDK, {side}", wire, found)
            failed |= {f"{wire} {name}": what for name, what in found.items() if what != "yes"}
    assert failed == {}
