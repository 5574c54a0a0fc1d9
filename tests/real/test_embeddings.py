"""Test embeddings from a real llama.cpp server, with a random-weight model and the embedded model."""

import operator
from pathlib import Path

import pytest

from dragoman import ContextOverflowError, connect_embedder
from dragoman.local import LocalEmbedder, LocalServer

from .tiny import WIDTH


async def test_the_local_server_returns_embeddings(tiny: Path) -> None:
    async with LocalEmbedder(tiny) as embedder:
        await embedder.ready()
        found = await embedder.embed(["one", "two", "one"])
        assert found.dimensions == WIDTH
        assert found.vectors[0].tolist() == pytest.approx(found.vectors[2].tolist(), abs=1e-4)
        assert found.vectors[0].tolist() != pytest.approx(found.vectors[1].tolist(), abs=1e-2)
        assert found.usage.input_tokens
        assert found.raw["data"][0]["index"] == 0
        # A base64 string, because the request asked for base64.
        assert isinstance(found.raw["data"][0]["embedding"], str)
        assert embedder.priced_as.model.startswith("local:")


async def test_text_too_long_for_the_embedding_model_is_rejected(tiny: Path) -> None:
    server = LocalServer(tiny, alias="tiny", context=256, parallel=1, embeds=True)
    try:
        url = server.start()
        async with connect_embedder("tiny", base_url=url, api_key=server.key) as embedder:
            assert isinstance((await embedder.embed(["short"])).raw["data"][0]["embedding"], list)
            with pytest.raises(ContextOverflowError):
                await embedder.embed(["long " * 400])
    finally:
        server.stop()


PAIRS = {
    "a river": "the stream flows to the sea",
    "a dog": "my puppy barks at night",
    "How do I reset my password?": "I forgot my login",
    "Share prices fell today.": "The stock market lost two per cent.",
}


async def test_embedded_model_tells_related_from_unrelated_texts() -> None:
    async with connect_embedder("local") as embedder:
        left = (await embedder.embed(list(PAIRS))).vectors.tolist()
        right = (await embedder.embed(list(PAIRS.values()))).vectors.tolist()
        with pytest.raises(ContextOverflowError):
            await embedder.embed(["long " * 600])
        await embedder.embed(["long " * 500])
        query = await embedder.embed("a river", input_type="query")
    assert query.warnings == ()
    assert query.vectors[0].tolist() == pytest.approx(left[0], abs=1e-4)
    products = [[sum(map(operator.mul, a, b)) for b in right] for a in left]
    related = [products[number][number] for number in range(len(PAIRS))]
    others = [each for row in products for each in row if each not in related]
    assert min(related) > 0.4 > 0.25 > max(others), products
