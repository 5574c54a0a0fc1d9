"""Test that the gateway counts tokens with the model's server, or marks the count as an estimate."""

import json
from typing import Any

import aiohttp
import pytest

from dragoman import Guard
from dragoman.gateway.app import create_app
from dragoman.middleware.guard import Rules
from dragoman.provider import connect
from tests.server import Connection, replying, serve

from .serving import serving
from .upstream import BODIES, WIRES

PATHS = {
    "anthropic": ("/v1/messages/count_tokens", "input_tokens"),
    "responses": ("/v1/responses/input_tokens", "input_tokens"),
    "gemini": ("/v1beta/models/{model}:countTokens", "totalTokens"),
}
COUNTS = {
    "/count_tokens": {"input_tokens": 41},
    "/input_tokens": {"input_tokens": 42},
    ":countTokens": {"totalTokens": 43},
    "/apply-template": {"prompt": "one two"},
    "/tokenize": {"tokens": [1, 2, 3, 4]},
}
WANTED = {"anthropic": 41, "responses": 42, "gemini": 43, "openai": 4}


@pytest.mark.parametrize("can_count", [True, False])
async def test_a_token_count_is_exact_or_reported_as_an_estimate(can_count: bool) -> None:
    async def handler(connection: Connection) -> None:
        path = connection.seen.path
        found = [reply for end, reply in COUNTS.items() if path.endswith(end) and can_count]
        reply = found[0] if found else {"error": {"message": "no such route"}}
        connection.reply(200 if found else 404, json.dumps(reply).encode())

    async with serve(handler) as upstream, aiohttp.ClientSession() as http:
        models = {
            wire: connect(
                "m",
                wire=wire,
                base_url=upstream.url,
                quirks={"any_model": True} if wire == "openai" else None,
            )
            for wire in WIRES
        }
        async with serving(create_app(models)) as url:
            for client, (path, name) in PATHS.items():
                for model in WIRES:
                    body: dict[str, Any] = {**BODIES[client], "model": model}
                    body = BODIES[client] if client == "gemini" else body
                    async with http.post(url + path.format(model=model), json=body) as reply:
                        count = (await reply.json())[name]
                        warned = reply.headers.get("x-dragoman-warnings", "")
                    where = (client, model, count, warned)
                    if can_count and model in WANTED:
                        assert count == WANTED[model], where
                        assert "count_estimated" not in warned, where
                    else:
                        assert count > 0, where
                        assert "count_estimated input" in warned, where


async def test_request_that_no_judge_has_seen_is_not_sent_to_be_counted() -> None:
    async with serve(replying(200, b'{"input_tokens": 41}')) as upstream:
        model = connect("m", wire="anthropic", base_url=upstream.url)
        models = {"m": Guard(model, Rules([{"code": "any", "pattern": "."}]))}
        async with serving(create_app(models)) as url, aiohttp.ClientSession() as http:
            path, name = PATHS["anthropic"]
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
            async with http.post(url + path, json=body) as reply:
                counted = await reply.json()
                assert "count_estimated" in reply.headers["x-dragoman-warnings"]
    assert 0 < counted[name] < 41
    assert upstream.requests == []
