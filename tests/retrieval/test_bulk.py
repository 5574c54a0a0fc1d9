"""Test embedding many texts: CPU time and memory, compared with the openai client in the same run."""

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from dragoman import Embeddings, InvalidRequestError, connect_embedder
from dragoman.sim import SimulatedEmbedder

SERVER = """
import sys
from dragoman.sim import ScriptedProvider, SimServer, SimulatedEmbedder
server = SimServer(ScriptedProvider("Hi."), embedder=SimulatedEmbedder(dimensions=64))
print(server.url, flush=True)
sys.stdin.read()
"""
TEXTS = [f"the quick brown fox number {number} jumps over the lazy dog" for number in range(3000)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.communicate()


async def test_embedding_takes_a_fifth_of_the_cpu_time_of_the_openai_client(url: str) -> None:
    async def ours() -> int:
        quirks = {"encoding_format": "base64"}
        async with connect_embedder(
            "sim", base_url=f"{url}/v1", quirks=quirks, keep_raw=False
        ) as embedder:
            return len((await embedder.embed(TEXTS)).vectors)

    async def theirs() -> int:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
            rows: list[Any] = []
            for start in range(0, len(TEXTS), 2048):
                reply = await client.embeddings.create(
                    model="sim", input=TEXTS[start : start + 2048]
                )
                rows += [item.embedding for item in reply.data]
            return len(rows)

    async def spend(call: Callable[[], Any]) -> float:
        await call()
        began = time.process_time()
        assert await call() == len(TEXTS)
        return time.process_time() - began

    mine = await spend(ours)
    other = await spend(theirs)
    assert other > 5 * mine, f"{other / mine:.1f} times"


class Wide(SimulatedEmbedder):
    """Embed texts, and discard the requests, because keeping them would use memory."""

    async def answer(self, request: Any) -> Embeddings:
        found = await super().answer(request)
        self.requests.clear()
        return found


async def test_memory_does_not_grow_with_the_number_of_texts() -> None:
    async def peak(count: int) -> int:
        embedder = Wide(batch_size=50)
        total = 0
        tracemalloc.start()
        async for part in embedder.embed_batches(
            (f"text {number}" for number in range(count)), size=50
        ):
            total += len(part.vectors)
        assert total == count
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    await peak(200)
    assert await peak(4000) < 2 * await peak(400)


async def test_embeddings_of_a_split_call_are_stored_only_once() -> None:
    embedder = Wide(batch_size=50, dimensions=256)
    texts = [f"text {number}" for number in range(2000)]
    await embedder.embed(texts[:100])
    tracemalloc.start()
    found = await embedder.embed(texts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = found.vectors.data.nbytes
    assert size == 2000 * 256 * 4
    assert peak < 1.7 * size


async def test_texts_from_any_iterable_are_embedded_in_batches() -> None:
    embedder = SimulatedEmbedder(batch_size=3)
    sizes = [len(part.vectors) async for part in embedder.embed_batches(iter("abcdefg"), size=100)]
    assert sizes == [3, 3, 1]
    with pytest.raises(InvalidRequestError, match="put the one string into a list"):
        await anext(embedder.embed_batches("abc"))
