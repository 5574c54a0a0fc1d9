"""Provide an upstream that serves every wire with one fixed text and stores the requests it
receives.
"""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from dragoman.gateway.app import create_app
from dragoman.provider import Provider, connect
from dragoman.wire import SERVER_CODECS
from dragoman.wire.rules import FieldRule
from tests.server import Connection, serve

from .serving import serving

PATHS = {
    "openai": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/{model}:generateContent",
    "ollama": "/api/chat",
    "cohere": "/v2/chat",
    "bedrock": "/model/{model}/converse",
}
WIRES = tuple([wire for wire in PATHS if wire in SERVER_CODECS])
BODIES: dict[str, dict[str, Any]] = {
    "openai": {"messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"input": "Hi"},
    "anthropic": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
    "ollama": {"messages": [{"role": "user", "content": "Hi"}], "stream": False},
    "cohere": {"messages": [{"role": "user", "content": "Hi"}]},
    "bedrock": {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]},
}
TABLES: dict[str, dict[str, FieldRule]] = {
    wire: {
        **SERVER_CODECS[wire].table.rules,
        **{
            f"{path}.{name}": rule
            for path, rules in SERVER_CODECS[wire].table.inner.items()
            for name, rule in rules.items()
        },
    }
    for wire in WIRES
}
"""The rule for each request field of each wire."""
EXHAUSTIVE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))


def models_for(client: str, at: int) -> tuple[str, ...]:
    """Return the models to test: one on the client's own wire and one on another wire, or all
    models in an exhaustive run.
    """
    others = [wire for wire in WIRES if wire != client]
    return WIRES if EXHAUSTIVE else (client, others[at % len(others)])


_USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


def write_reply(wire: str, text: str) -> bytes:
    """Return a reply body with this text in the format of a wire."""
    replies: dict[str, Any] = {
        "openai": {"id": "c1", "choices": [{"index": 0,
                                            "message": {"role": "assistant", "content": text},
                                            "finish_reason": "stop"}],
                   "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}},
        "responses": {"id": "r1", "object": "response", "status": "completed",
                      "output": [{"type": "message", "id": "m1", "role": "assistant",
                                  "content": [{"type": "output_text", "text": text}]}],
                      "usage": _USAGE},
        "anthropic": {"id": "m1", "type": "message", "role": "assistant",
                      "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
                      "usage": {"input_tokens": 3, "output_tokens": 2}},
        "gemini": {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]},
                                   "finishReason": "STOP", "index": 0}],
                   "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2,
                                     "totalTokenCount": 5}},
        "ollama": {"model": "m", "message": {"role": "assistant", "content": text}, "done": True,
                   "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2},
        "cohere": {"id": "c1", "finish_reason": "COMPLETE",
                   "message": {"role": "assistant", "content": [{"type": "text", "text": text}]},
                   "usage": {"tokens": {"input_tokens": 3, "output_tokens": 2}}},
        "bedrock": {"output": {"message": {"role": "assistant", "content": [{"text": text}]}},
                    "stopReason": "end_turn",
                    "usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}},
    }  # fmt: skip
    return json.dumps(replies[wire]).encode()


def wire_of(path: str) -> str:
    """Return the wire that uses a URL path."""
    for wire, mark in (
        ("openai", "/chat/completions"),
        ("responses", "/responses"),
        ("anthropic", "/messages"),
        ("gemini", ":"),
        ("cohere", "/v2/chat"),
        ("bedrock", "/converse"),
    ):
        if mark in path:
            return wire
    return "ollama"


class Bench:
    """Hold a gateway and its upstream, which has one model per wire, named after the wire."""

    def __init__(self, url: str, seen: list[Any], http: aiohttp.ClientSession) -> None:
        self.url = url
        self.seen = seen
        self._http = http

    async def ask(
        self, client: str, model: str, fields: dict[str, Any]
    ) -> tuple[int, dict[str, str], Any]:
        """Send a request in the format of a client's wire; ``fields`` override the defaults."""
        body = {**BODIES[client], **fields}
        if client not in ("gemini", "bedrock"):  # whose paths name the model
            body.setdefault("model", model)
        self.seen.clear()
        return await self.post(PATHS[client].format(model=model), body)

    async def post(self, path: str, body: Any, **given: str) -> tuple[int, dict[str, str], Any]:
        async with self._http.post(self.url + path, json=body, headers=given) as reply:
            data = await reply.read()
            headers = {name.lower(): value for name, value in reply.headers.items()}
            is_json = data.startswith((b"{", b"[")) and "ndjson" not in headers["content-type"]
            return reply.status, headers, json.loads(data) if is_json else data


@contextlib.asynccontextmanager
async def bench(
    text: str = "Hello there",
    *,
    answer: Callable[[str, Any], bytes] | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Serve a gateway for all wires; the list ``seen`` contains the latest request that the
    upstream received. ``quirks`` are those of the models, by wire. ``answer`` returns the reply to a request, given its wire and its body.
    """
    seen: list[Any] = []

    async def handler(connection: Connection) -> None:
        seen.append(connection.seen.json)
        wire = wire_of(connection.seen.path)
        reply = answer(wire, connection.seen.json) if answer else write_reply(wire, text)
        connection.reply(200, reply)

    on_loss = settings.pop("on_loss", "warn")
    quirks: dict[str, Any] = settings.pop("quirks", {})
    async with serve(handler) as upstream, aiohttp.ClientSession() as http:
        models: dict[str, Provider] = {
            wire: connect(
                "m", wire=wire, base_url=upstream.url, on_loss=on_loss, quirks=quirks.get(wire)
            )
            for wire in WIRES
        }
        async with serving(create_app(models, **settings)) as url:
            yield Bench(url, seen, http)
