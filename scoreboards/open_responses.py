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
import re
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from dragoman.gateway.app import create_app
from dragoman.provider import Provider, connect
from dragoman.sim import Answer, Call, RequestMatch, ScriptedProvider, ScriptRule, SimServer
from dragoman.transport.serving import serving

from .board import Board
from .damage import Damaged
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
async def gateway(damage: Callable[[bytes], bytes] = bytes) -> AsyncIterator[str]:
    """Serve a gateway with one model per wire, named after the wire; yield its address.

    ``damage`` changes the bytes of its replies.
    """
    with SimServer(script(), models=("sim",)) as upstream:
        models: dict[str, Provider] = {
            wire: connect("sim", wire=wire, base_url=upstream.base_urls[wire], api_key="k" * 12)
            for wire in WIRES
        }
        async with serving(Damaged(create_app(models), damage)) as url:
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


Cells = dict[tuple[str, str], str]


async def collect(
    names: Iterable[str] = tuple(REQUESTS), damage: Callable[[bytes], bytes] = bytes
) -> dict[tuple[str, str], list[dict[str, Any]] | str]:
    """Return the reply to each request by each wire, or why it is not the wanted one."""
    cells: dict[tuple[str, str], list[dict[str, Any]] | str] = {}
    async with gateway(damage) as url:
        for name in names:
            for wire in WIRES:
                try:
                    found = await exchange(url, name, wire)
                    cells[name, wire] = find_fault(name, wire, found) or found
                except (RuntimeError, aiohttp.ClientError, KeyError, IndexError) as error:
                    cells[name, wire] = f"{type(error).__name__}: {error}"
    return cells


def validate(cells: Mapping[tuple[str, str], list[dict[str, Any]] | str]) -> tuple[Cells, str]:
    """Return the outcome of each reply, and the version of the types that it is validated against."""
    replies = [[*key, found] for key, found in cells.items() if not isinstance(found, str)]
    checked = subprocess.run(
        [install_python("openresponses-types"), str(HERE / "open_responses_types.py")],
        input=json.dumps(replies),
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(checked.stdout)
    faults = {(row, column): fault for row, column, fault in result["faults"]}
    outcomes = {
        key: found if isinstance(found, str) else faults[key] for key, found in cells.items()
    }
    return outcomes, result["version"]


async def ask_client(damage: Callable[[bytes], bytes] = bytes) -> Cells:
    """Return the outcome of each call of the client, by its row and the wire."""
    command = [node(), str(HERE / "open_responses.mjs"), str(install_node())]
    async with gateway(damage) as url:
        process = await asyncio.create_subprocess_exec(
            *command, url, *WIRES, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
    if process.returncode:
        return {("client", "all"): err.decode("utf-8", "replace").strip()[-300:]}
    found: dict[str, str] = json.loads(out)
    return {
        (f"client, {key.partition('/')[0]}", key.partition("/")[2]): outcome
        for key, outcome in found.items()
    }


# --- negative controls: damage to the replies that must be noticed ------------------------------


class Control(NamedTuple):
    """A damage, and the rows of each kind in whose replies there is something to damage."""

    damage: Callable[[bytes], bytes]
    requests: tuple[str, ...] = ()
    client: tuple[str, ...] = ()


def _rename(pattern: bytes, replacement: bytes) -> Callable[[bytes], bytes]:
    """Return a function that replaces what matches in the bytes of a reply."""
    return lambda body: re.sub(pattern, replacement, body)


EVERY = tuple(REQUESTS)
STREAMED = tuple(name for name, fields in REQUESTS.items() if fields.get("stream"))
CALLS = tuple(name for name in REQUESTS if "tool" in name)
CLIENT_TEXTS = ("client, text", "client, stream")
CLIENT_CALLS = ("client, tool call", "client, streamed tool call")
CONTROLS = {
    "field of the reply renamed": Control(_rename(rb'"created_at":', b'"made_at":'), EVERY),
    "field of an item renamed": Control(_rename(rb'"(text|arguments)":', rb'"x_\1":'), EVERY),
    "unknown type of event": Control(
        _rename(rb'"type":"response.output_item.added"', b'"type":"response.thing.added"'),
        STREAMED,
    ),
    "status changed": Control(_rename(rb'"status":"completed"', b'"status":"incomplete"'), EVERY),
    "model renamed": Control(_rename(rb'"model":"', b'"model":"x'), EVERY),
    "items of another type": Control(
        _rename(rb'"type":"(message|function_call)"', b'"type":"reasoning"'), EVERY
    ),
    "arguments not streamed": Control(
        _rename(
            rb'"type":"response.function_call_arguments.(delta|done)"', b'"type":"response.queued"'
        ),
        ("streamed tool call",),
    ),
    "text changed": Control(_rename(rb"Ahoy", b"Ohay"), client=CLIENT_TEXTS),
    "arguments changed": Control(_rename(rb"San Francisco", b"Oslo"), client=CLIENT_CALLS),
    "reply cut at its limit": Control(
        _rename(
            rb'"status":"completed"(.*?)"incomplete_details":null',
            rb'"status":"incomplete"\1"incomplete_details":{"reason":"max_output_tokens"}',
        ),
        client=CLIENT_TEXTS,
    ),
    "tokens of the prompt removed": Control(
        _rename(rb'"input_tokens":\d+', b'"input_tokens":0'), client=("client, text",)
    ),
}


def try_controls(passed: Collection[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """Return how often each damage was noticed, and how often it was tried.

    ``passed`` names the cells that pass without damage, as row and wire.
    """
    found = {}
    for name, control in CONTROLS.items():
        outcomes: Cells = {}
        if control.requests:
            outcomes, _ = validate(asyncio.run(collect(control.requests, control.damage)))
        if control.client:
            asked = asyncio.run(ask_client(control.damage))
            outcomes |= {key: why for key, why in asked.items() if key[0] in control.client}
        tried = [key for key in outcomes if key in passed]
        found[name] = (sum(bool(outcomes[key]) for key in tried), len(tried))
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
    install_node()
    outcomes, version = validate(asyncio.run(collect()))
    board.cells = outcomes | asyncio.run(ask_client())
    board.controls = try_controls([key for key, why in board.cells.items() if not why])
    board.versions = {
        "openresponses-types": version,
        "@ai-sdk/open-responses": node_version("@ai-sdk/open-responses"),
    }
    return board
