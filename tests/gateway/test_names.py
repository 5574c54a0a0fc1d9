"""A client gets the names of its own tools, whatever names the model's wire allows."""

import json
import re
from typing import Any

import pytest

from tests.wire.replies import reply
from tests.wire.test_names import RULES, names_in

from .upstream import WIRES, bench

NAME = "math.sum"
TOOLS: dict[str, dict[str, Any]] = {
    "gemini": {"tools": [{"functionDeclarations": [{"name": NAME}]}]},
    "ollama": {"tools": [{"type": "function", "function": {"name": NAME}}]},
    "openai": {"tools": [{"type": "function", "function": {"name": NAME}}]},
}


def call_the_tool(wire: str, body: Any) -> bytes:
    """Return a reply that calls the tool of the request by the name in the request."""
    return json.dumps(reply(wire, "", ("call_1", next(names_in(body)), {}))).encode()


@pytest.mark.parametrize("client", TOOLS)
async def test_client_gets_its_own_tool_names(client: str) -> None:
    async with bench(answer=call_the_tool) as gateway:
        for model in WIRES:
            status, _, body = await gateway.ask(client, model, TOOLS[client])
            sent = next(names_in(gateway.seen[0]))
            assert re.fullmatch(RULES[model], sent), model
            assert status == 200, model
            assert list(names_in(body)) == [NAME], model
