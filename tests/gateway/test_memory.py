"""After any reply of the gateway, nothing refers to the request without the cyclic collector.

The collector counts objects, not bytes: large bodies in a few reference cycles would fill the
memory long before it runs.
"""

import asyncio
import gc
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import dragoman as d
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.supervisor import tune_collector
from tests.gateway.serving import serving
from tests.gateway.upstream import write_reply
from tests.server import Connection, serve
from tests.waiting import settle, until

TIMES = 4
SIZE = 1_000
# Each property holds a list, because the collector does not track dictionaries of strings.
BIG = {f"p{number}": {"type": ["string"]} for number in range(SIZE)}
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"name": "t", "parameters": {"type": "object", "properties": BIG}}
TOOLS = [{"type": "function", "function": TOOL}]
SECRET = "sk-dragoman-" + "a" * 32
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "answered": (200, {"tools": TOOLS}),
    "without a key": (401, {"tools": TOOLS}),
    "unknown field": (200, {"x": BIG}),
    "unknown role": (400, {"messages": [{"role": "nope", "content": "x"}], "x": BIG}),
    "bad tool": (400, {"tools": [*TOOLS, {"type": "function", "function": {"name": 5}}]}),
    "unknown model": (404, {"model": "nope", "tools": TOOLS}),
    "limit reached": (429, {"tools": TOOLS}),
    "limit of all workers": (429, {"tools": TOOLS}),
    "loss rejected": (400, {"model": "strict", "tools": TOOLS, "seed": 1}),
    "upstream error": (429, {"model": "failing", "tools": TOOLS}),
    "no upstream": (502, {"model": "absent", "tools": TOOLS}),
    "stream cut": (200, {"model": "cut", "tools": TOOLS, "stream": True}),
    "client gone": (200, {"model": "hanging", "tools": TOOLS, "stream": True}),
}
CHUNK = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'


async def answer(connection: Connection) -> None:
    """Answer as the first part of the path names it."""
    way = connection.seen.path.split("/")[1]
    if way == "failing":
        connection.reply(429, b'{"error": {"message": "busy"}}')
    elif way in ("cut", "hanging"):
        connection.begin_stream()
        connection.chunk(CHUNK)
        if way == "hanging":
            await asyncio.Event().wait()
        connection.writer.close()
    else:
        connection.reply(200, write_reply("openai", "Hello"))


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("way", WAYS)
async def test_request_is_freed_without_the_collector(way: str, tmp_path: Path) -> None:
    status, body = WAYS[way]
    limit = 1 if way.startswith("limit") else None
    ledger = Ledger(tmp_path / "state.db") if way == "limit of all workers" else None
    ring = KeyRing([Key("ann", hash_key(SECRET), requests_per_minute=limit)])
    headers = {} if way == "without a key" else {"authorization": f"Bearer {SECRET}"}
    async with serve(answer) as upstream, aiohttp.ClientSession() as http:
        models = {
            name: d.connect("m", base_url=f"{upstream.url}/{name}/v1", retries=0)
            for name in ("m", "failing", "cut", "hanging")
        }
        models["strict"] = d.connect(
            "m", wire="anthropic", base_url=upstream.url, on_loss="reject"
        )
        models["absent"] = d.connect("m", base_url="http://127.0.0.1:1/v1")
        async with serving(create_app(models, keys=ring, ledger=ledger)) as url:

            async def ask() -> int:
                asked = {"model": "m", "messages": MESSAGES, **body}
                place = f"{url}/v1/chat/completions"
                async with http.post(place, json=asked, headers=headers) as reply:
                    if way == "client gone":
                        await reply.content.readany()
                        reply.close()
                    else:
                        await reply.read()
                    return reply.status

            await ask()  # what is kept once is not counted
            await ask()
            await until(lambda: upstream.in_flight == 0, "the end of the calls")
            before = len(gc.get_objects())
            for _ in range(TIMES):
                assert await ask() == status
            await until(lambda: upstream.in_flight == 0, "the end of the calls")
            await settle()
            # There are a dictionary and a list for each property.
            await until(lambda: len(gc.get_objects()) - before < TIMES * SIZE, "less garbage")


def test_collector_of_a_worker_runs_less_often_and_skips_the_application() -> None:
    thresholds = gc.get_threshold()
    frozen = gc.get_freeze_count()
    application = [object()]
    try:
        tune_collector()
        assert gc.get_threshold() == (20_000, 20, 20)
        assert gc.get_freeze_count() > frozen
        assert not any(each is application for each in gc.get_objects())
    finally:
        gc.set_threshold(*thresholds)
