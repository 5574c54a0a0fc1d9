"""Open Responses: ``/v1/responses`` of the gateway over models of every wire.

The seven requests are those of the specification's compliance test. Every body and every event of
a stream is validated against the types of ``openresponses-types``, and the client
``@ai-sdk/open-responses`` makes the same calls.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from dragoman.gateway.app import create_app
from dragoman.provider import Provider, connect
from dragoman.sim import Answer, Call, RequestMatch, ScriptedProvider, ScriptRule, SimServer
from dragoman.transport.serving import serving

from .board import Board
from .install import install_node, install_python, node, node_version

WIRES = ("openai", "responses", "anthropic", "gemini", "ollama", "cohere", "bedrock")
TITLE = "Open Responses"
HERE = Path(__file__).parent
TEXT = "Ahoy, Alice."
PLACE = {"location": "San Francisco, CA"}


def _picture() -> str:
    """Return a PNG of one red pixel as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    data += chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _say(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state"}},
        "required": ["location"],
    },
}
_LOOK = [
    {"type": "input_text", "text": "What is in this image?"},
    {"type": "input_image", "image_url": _picture()},
]
REQUESTS: dict[str, dict[str, Any]] = {
    "text": {"input": [_say("user", "Say hello in exactly 3 words.")]},
    "stream": {"input": [_say("user", "Count from 1 to 5.")], "stream": True},
    "system message": {"input": [_say("system", "You are a pirate."), _say("user", "Say hello.")]},
    "tool call": {"input": [_say("user", "What is the weather?")], "tools": [WEATHER]},
    "streamed tool call": {
        "input": [_say("user", "What is the weather?")],
        "tools": [WEATHER],
        "stream": True,
    },
    "image": {"input": [_say("user", _LOOK)]},
    "several turns": {
        "input": [
            _say("user", "My name is Alice."),
            _say("assistant", "Hello Alice!"),
            _say("user", "What is my name?"),
        ]
    },
}


def script() -> ScriptedProvider:
    """Return a model that calls the tool it is offered, and otherwise answers with a text."""
    call = Answer(tool_calls=[Call("get_weather", PLACE)])
    return ScriptedProvider(
        ScriptRule(call, RequestMatch(tools=["get_weather"], turn=1)), ScriptRule(TEXT)
    )


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[str]:
    """Serve a gateway with one model per wire, named after the wire; yield its address."""
    with SimServer(script(), models=("sim",)) as upstream:
        models: dict[str, Provider] = {
            wire: connect("sim", wire=wire, base_url=upstream.base_urls[wire], api_key="k" * 12)
            for wire in WIRES
        }
        async with serving(create_app(models)) as url:
            yield url


async def exchange(url: str, name: str, wire: str) -> list[dict[str, Any]]:
    """Send one of the requests; return the body, or the events of the stream."""
    fields = REQUESTS[name]
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/responses", json={"model": wire, **fields}) as reply,
    ):
        data = await reply.read()
    if reply.status != 200:
        raise RuntimeError(f"HTTP {reply.status}: {data.decode('utf-8', 'replace')[:300]}")
    if not fields.get("stream"):
        return [json.loads(data)]
    return [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]


def find_fault(name: str, wire: str, found: list[dict[str, Any]]) -> str:
    """Return what the compliance test would miss in a reply, besides its form."""
    final = found[-1].get("response", found[-1])
    if final.get("status") != "completed":
        return f"the status is {final.get('status')}"
    kinds = [item["type"] for item in final["output"]]
    if ("function_call" if "tool" in name else "message") not in kinds:
        return f"the output has {kinds}"
    if final["model"] != wire:
        return f"the model is {final['model']}"
    events = [event["type"] for event in found if "sequence_number" in event]
    if "tool" in name and events:
        wanted = [f"response.function_call_arguments.{step}" for step in ("delta", "done")]
        return "" if set(wanted) <= set(events) else f"the stream has {events}"
    return ""


async def collect() -> dict[tuple[str, str], list[dict[str, Any]] | str]:
    """Return the reply to each request by each wire, or why it is not the wanted one."""
    cells: dict[tuple[str, str], list[dict[str, Any]] | str] = {}
    async with gateway() as url:
        for name in REQUESTS:
            for wire in WIRES:
                try:
                    found = await exchange(url, name, wire)
                    cells[name, wire] = find_fault(name, wire, found) or found
                except (RuntimeError, aiohttp.ClientError, KeyError, IndexError) as error:
                    cells[name, wire] = f"{type(error).__name__}: {error}"
    return cells


async def _ask_client(command: list[str]) -> dict[str, str]:
    async with gateway() as url:
        process = await asyncio.create_subprocess_exec(
            *command, url, *WIRES, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
    if process.returncode:
        return {"": err.decode("utf-8", "replace").strip()[-300:]}
    found: dict[str, str] = json.loads(out)
    return found


def run() -> Board:
    """Run the requests, validate the replies, and run the client."""
    board = Board(
        "open_responses",
        TITLE,
        "`/v1/responses` of the gateway, with a model of each wire behind it: the seven requests of the\n"
        "[Open Responses](https://www.openresponses.org) compliance test. Each body and each event of a stream is\n"
        "validated against the specification's types; an event of an unknown type fails. The rows with `client` are\n"
        "calls of the AI SDK's client for Open Responses.",
    )
    python = install_python("openresponses-types")
    folder = install_node()
    cells = asyncio.run(collect())
    replies = [[*key, found] for key, found in cells.items() if not isinstance(found, str)]
    checked = subprocess.run(
        [python, str(HERE / "open_responses_types.py")],
        input=json.dumps(replies),
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(checked.stdout)
    faults = {(row, column): fault for row, column, fault in result["faults"]}
    for key, found in cells.items():
        board.cells[key] = found if isinstance(found, str) else faults[key]
    asked = asyncio.run(_ask_client([node(), str(HERE / "open_responses.mjs"), str(folder)]))
    for key_text, outcome in asked.items():
        row, _, wire = key_text.partition("/")
        board.cells[f"client, {row}", wire] = outcome
    board.versions = {
        "openresponses-types": result["version"],
        "@ai-sdk/open-responses": node_version("@ai-sdk/open-responses"),
    }
    return board
