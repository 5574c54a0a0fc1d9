"""A call of a tool that the client did not declare ends a reply with a term of its wire."""

import aiohttp
import pytest

from dragoman.gateway.app import create_app
from dragoman.provider import connect
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer

from .serving import serving
from .upstream import WIRES

BODY = {
    "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    "tools": [
        {"functionDeclarations": [{"name": "w__weather", "parameters": {"type": "OBJECT"}}]}
    ],
}


@pytest.mark.parametrize("wire", WIRES)
async def test_gemini_client_gets_a_finish_reason_of_its_wire(wire: str) -> None:
    model = ScriptedProvider(Answer(tool_calls=[Call("w-weather", {})]))
    with SimServer(model, models=("sim",)) as upstream:
        served = connect("sim", wire=wire, base_url=upstream.base_urls[wire])
        async with (
            serving(create_app({"m": served})) as url,
            aiohttp.ClientSession(url) as session,
            session.post("/v1beta/models/m:generateContent", json=BODY) as reply,
        ):
            (candidate,) = (await reply.json())["candidates"]
    assert candidate["finishReason"] == "STOP"
