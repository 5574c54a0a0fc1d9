"""Vendors of the catalogue by name, against a server on this machine, also behind the gateway."""

import json
from pathlib import Path
from typing import Any

import pytest

import dragoman as d
from dragoman.gateway import create_app
from dragoman.registry import Registry, load_vendor, vendor_names
from dragoman.sim import ScriptedProvider, SimServer, SimulatedEmbedder, SimulatedReranker
from dragoman.transport.serving import serving

KEY = "k-0123456789abcdef"
# The vendors that a key alone opens, at the usual path: credentials of a cloud are tested in
# tests/test_auth.py, and other paths in tests/test_vendor_requests.py.
CHATS = [
    name
    for name in vendor_names()
    if load_vendor(name).chats
    and not load_vendor(name).auth.type
    and "chat_path" not in load_vendor(name).quirks
]


async def test_every_vendor_answers_by_its_name() -> None:
    assert len(CHATS) >= 50
    with SimServer(ScriptedProvider(*["Hello."] * len(CHATS))) as sim:
        for name in CHATS:
            root = f"{sim.url}/v1" if load_vendor(name).wire == "openai" else sim.url
            async with d.connect(f"{name}:some-model", base_url=root, api_key=KEY) as model:
                reply = await model.complete("Hi", max_tokens=9)
            assert reply.text == "Hello.", name


@pytest.mark.parametrize("name", ["moonshot:kimi-k3", "siliconflow:x", "venice:y", "portkey:@o/z"])
async def test_gateway_serves_a_vendor_by_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = name.partition(":")[0]
    monkeypatch.setenv(str(load_vendor(vendor).api_key_env), KEY)
    with SimServer(ScriptedProvider("Hello.")) as sim:
        file = tmp_path / "models.yaml"
        file.write_text(json.dumps({"adapters": {vendor: {"type": vendor, "base_url": sim.url}}}))
        model = Registry.load(file).open(name)
        async with serving(create_app({"m": model})) as url:
            client = d.connect("m", base_url=f"{url}/v1", wire="openai", api_key=KEY, vendor="g")
            async with client:
                assert (await client.complete("Hi", max_tokens=9)).text == "Hello."


async def test_vendor_by_its_name_in_a_batch_and_for_vectors_and_rankings(
    tmp_path: Path,
) -> None:
    simulated = {"embedder": SimulatedEmbedder(dimensions=8), "reranker": SimulatedReranker()}
    with SimServer(ScriptedProvider("Hello."), **simulated) as sim:
        place: dict[str, Any] = {"base_url": sim.url, "api_key": KEY}
        async with d.connect("zai:glm-5.3", **place) as model:
            report = await d.batch([{"id": "a", "prompt": "Hi"}], tmp_path / "out.jsonl", model)
        async with d.connect_embedder("portkey:some-model", **place) as embedder:
            vectors = await embedder.embed(["the Rhine"])
        async with d.connect_reranker("siliconflow:some-model", **place) as reranker:
            ranking = await reranker.rerank("a river", ["the Rhine", "a stone"])
    assert report.failed == 0
    assert "Hello." in (tmp_path / "out.jsonl").read_text()
    assert len(vectors.vectors) == 1
    assert len(ranking.results) == 2
