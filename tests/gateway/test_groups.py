"""Test a group of upstreams behind the gateway: one fails under load, and clients see no error."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman import connect
from dragoman.gateway import create_app
from dragoman.log import MemoryLog
from dragoman.middleware import Fallback, Retry
from dragoman.middleware.translation import Upstream, describe_upstream
from dragoman.provider import Provider
from dragoman.registry import Registry
from tests.listed import Listed
from tests.server import Connection, serve

from .serving import serving

SAID = {
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
CHUNK = {
    "choices": [
        {"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    ]
}


async def answer(connection: Connection) -> None:
    await asyncio.sleep(0.002)
    if connection.seen.json.get("stream"):
        connection.begin_stream()
        connection.chunk(f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n".encode())
        connection.end_stream()
    else:
        connection.reply(200, json.dumps(SAID).encode())


def configure(folder: Path, strategy: str, *urls: str) -> Registry:
    adapters = "".join(
        [
            f"  up{at}: {{type: openai-compatible, base_url: {url}/v1}}\n"
            for at, url in enumerate(urls)
        ]
    )
    names = ", ".join([f"up{at}:m" for at in range(len(urls))])
    path = folder / "models.yaml"
    path.write_text(
        f"adapters:\n{adapters}groups:\n  fast: {{strategy: {strategy}, candidates: [{names}]}}\n"
    )
    return Registry.load(path)


@pytest.mark.parametrize("strategy", ["fallback", "least_busy"])
async def test_model_group_keeps_answering_when_an_upstream_dies_under_load(
    strategy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    headers: list[Any] = []
    calls = 80
    log = MemoryLog()
    dying = serve(answer)
    first = await dying.__aenter__()
    async with serve(answer) as second:
        registry = configure(tmp_path, strategy, first.url, second.url)
        app = create_app(registry, log=log)
        with caplog.at_level(logging.INFO, "dragoman"):
            async with serving(app) as url, aiohttp.ClientSession() as client:
                started = asyncio.Event()

                async def call(number: int) -> int:
                    body = {
                        "model": "fast",
                        "stream": number % 2 == 0,
                        "messages": [{"role": "user", "content": "Hi"}],
                    }
                    if number == calls // 4:
                        started.set()
                    async with client.post(f"{url}/v1/chat/completions", json=body) as reply:
                        text = await reply.text()
                        headers.append(reply.headers)
                        return reply.status if "Hi" in text else 0

                async def work(numbers: range) -> list[int]:
                    return [await call(number) for number in numbers]

                async def kill() -> None:
                    await started.wait()
                    await dying.__aexit__(None, None, None)

                killing = asyncio.ensure_future(kill())
                done = await asyncio.gather(*[work(range(at, calls, 8)) for at in range(8)])
                await killing
                metrics = await (await client.get(f"{url}/metrics")).text()
                listed = await (await client.get(f"{url}/v1/models")).json()
        records = [record.type for entry in log.sessions() for record in log.read(entry.session)]
        await registry.close()
    statuses = [status for each in done for status in each]
    assert len(first.requests) > 0
    # Only a stream that has begun can be cut by the dying server; a call that has not received an
    # event is sent to another server and succeeds.
    assert statuses.count(200) == calls
    served = [each["x-dragoman-served-by"] for each in headers]
    assert set(served) == {"up0:m", "up1:m"}
    switched = [each["x-dragoman-switched"] for each in headers if "x-dragoman-switched" in each]
    assert switched
    assert all(each.startswith("up0:m ") for each in switched)
    assert 'dragoman_switches_total{model="fast",from="up0:m",to="up1:m",reason="' in metrics
    assert "RoutingSwitched(from_='up0:m', to='up1:m'" in caplog.text
    assert listed["data"][0]["id"] == "fast"
    assert "routing.switched" in records


def connect_to(model: str, wire: str, **settings: Any) -> Provider:
    return connect(model, base_url="http://127.0.0.1:1/v1", wire=wire, **settings)


ONE = connect_to("m", "anthropic", api_key="a")
OTHER_KEY = connect_to("m", "anthropic", api_key="b", name="other")
STRICT = connect_to("m", "openai", on_loss="reject", name="strict")


@pytest.mark.parametrize(
    ("provider", "found"),
    [
        (Retry(ONE), Upstream(frozenset({"anthropic"}), False, False, True)),
        (Fallback([ONE, OTHER_KEY]),
         Upstream(frozenset({"anthropic"}), False, is_group=True, needs_max_tokens=True)),
        (Fallback([ONE, STRICT]), Upstream(frozenset({"anthropic", "openai"}), True, True, True)),
        (Listed("Hi"), Upstream(frozenset(), refuses_losses=False)),
    ],
    ids=["one provider", "two keys", "two wires", "no wire"],
)  # fmt: skip
def test_group_is_described_by_all_its_providers(provider: Provider, found: Upstream) -> None:
    assert describe_upstream(provider) == found
