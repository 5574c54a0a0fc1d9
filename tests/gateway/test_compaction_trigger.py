"""A request to compact the conversation is refused by name where no server compacts it."""

import aiohttp
import pytest

from dragoman.gateway.app import create_app
from dragoman.provider import connect
from dragoman.sim import ScriptedProvider, SimServer

from .serving import serving
from .upstream import WIRES

INPUT = [
    {"type": "message", "role": "user", "content": "Hello."},
    {"type": "message", "role": "assistant", "content": "Hello there."},
    {"type": "compaction_trigger"},
]


@pytest.mark.parametrize("wire", WIRES)
async def test_request_to_compact_is_answered_or_refused_by_name(wire: str) -> None:
    script = ScriptedProvider("Hi.")
    with SimServer(script, models=("sim",)) as upstream:
        model = connect("sim", wire=wire, base_url=upstream.base_urls[wire])
        async with serving(create_app({"m": model})) as url, aiohttp.ClientSession() as client:
            body = {"model": "m", "input": INPUT}
            async with client.post(f"{url}/v1/responses", json=body) as reply:
                status = reply.status
                text = await reply.text()
    if wire == "responses":
        assert status == 200
        assert "compaction_trigger" in str(script.requests)
    else:
        assert status == 400
        assert "compaction_trigger" in text
