"""Test calls to embedders and rerankers: arguments, splitting, partial failure, cancellation,
vectors.
"""

import array
import asyncio
import base64
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.retrieval import EMBED_CODECS, RERANK_CODECS
from dragoman.transport import FixtureTransport


class Lengths(d.Embedder):
    """Embed a text as a vector of its length and position; fail at the request with a given
    number.
    """

    name = "lengths"
    model = "m"
    batch_size = 2

    def __init__(
        self, fail_at: int = -1, error: Exception | None = None, usage: Sequence[int | None] = ()
    ) -> None:
        self.requests: list[d.EmbedRequest] = []
        self._fail_at = fail_at
        self._error = error
        self._usage = usage

    async def answer(self, request: d.EmbedRequest) -> d.Embeddings:
        number = len(self.requests)
        self.requests.append(request)
        if number == self._fail_at and self._error is not None:
            raise self._error
        rows = [[len(text), at] for at, text in enumerate(request.texts)]
        used = self._usage[number] if self._usage else len(request.texts)
        usage = d.Usage(input_tokens=used)
        return d.Embeddings(
            vectors=d.Vectors.of(rows), model=f"m{number}", usage=usage, response_id=f"id{number}"
        )


class Scores(d.Reranker):
    """Score a document by the number that it contains."""

    name = "scores"
    model = "m"
    batch_size = 3

    def __init__(self) -> None:
        self.requests: list[d.RerankRequest] = []

    async def answer(self, request: d.RerankRequest) -> d.Ranking:
        self.requests.append(request)
        ranked = [d.Ranked(at, float(text)) for at, text in enumerate(request.documents)]
        ranked.sort(key=lambda each: -each.relevance_score)
        return d.Ranking(
            results=tuple(ranked[: request.top_k]), usage=d.Usage(search_units=1), model="m"
        )


def open_embedder(**settings: Any) -> d.Embedder:
    return d.connect_embedder("m", base_url="http://host", **settings)


# --- invalid arguments of embed and rerank -----------------------------------------------------

EMBED_MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    ([], {}, "texts is empty"),
    (b"one", {}, "texts must be a list of strings; put the one string into a list"),
    ({"a"}, {}, "texts must be a list of strings, not set"),
    (["a", 1], {}, "texts[1] must be a string, not int"),
    ([[1, 2]], {}, "texts[0] must be a string, not list"),
    (["a"], {"dimensions": 0}, "dimensions must be a positive whole number"),
    (["a"], {"dimensions": True}, "dimensions must be a positive whole number"),
    (["a"], {"dimensions": 1.5}, "dimensions must be a positive whole number"),
    (["a"], {"input_type": ""}, "input_type must be a string"),
    (["a"], {"extras": ["x"]}, "extras must be a mapping"),
]


@pytest.mark.parametrize(("texts", "settings", "message"), EMBED_MISTAKES)
async def test_embed_rejects_invalid_input_before_a_request_is_sent(
    texts: Any, settings: dict[str, Any], message: str
) -> None:
    embedder = Lengths()
    with pytest.raises(d.InvalidRequestError) as caught:
        await embedder.embed(texts, **settings)
    assert message in str(caught.value)
    assert embedder.requests == []


RERANK_MISTAKES: list[tuple[Any, Any, dict[str, Any], str]] = [
    ("", ["a"], {}, "query is empty"),
    (3, ["a"], {}, "query must be a string"),
    ("q", [], {}, "documents is empty"),
    ("q", "a", {}, "documents must be a list of strings"),
    ("q", ["a", None], {}, "documents[1] must be a string"),
    ("q", ["a"], {"top_k": 0}, "top_k must be a positive whole number"),
    ("q", ["a"], {"top_k": -1}, "top_k must be a positive whole number"),
    ("q", ["a"], {"return_documents": "yes"}, "return_documents must be true or false"),
]


@pytest.mark.parametrize(("query", "documents", "settings", "message"), RERANK_MISTAKES)
async def test_rerank_rejects_invalid_input_before_a_request_is_sent(
    query: Any, documents: Any, settings: dict[str, Any], message: str
) -> None:
    reranker = Scores()
    with pytest.raises(d.InvalidRequestError) as caught:
        await reranker.rerank(query, documents, **settings)
    assert message in str(caught.value)
    assert reranker.requests == []


# --- splitting a large call into several requests ----------------------------------------------


async def test_large_call_is_split_and_its_results_are_joined_in_order() -> None:
    embedder = Lengths()
    found = await embedder.embed(
        ["a", "bb", "ccc", "dddd", "eeeee"], input_type="query", dimensions=2, extras={"x": 1}
    )
    assert found.vectors.tolist() == [[1, 0], [2, 1], [3, 0], [4, 1], [5, 0]]
    facts = [list(request.texts) for request in embedder.requests]
    assert facts == [["a", "bb"], ["ccc", "dddd"], ["eeeee"]]
    rest = {
        msgspec.json.encode(msgspec.structs.replace(request, texts=[]))
        for request in embedder.requests
    }
    assert len(rest) == 1  # all other fields of the requests are equal
    assert found.model == "m0"
    assert found.response_id == "id0"
    assert found.usage == d.Usage(input_tokens=5)
    assert found.latency_ms is not None


async def test_total_tokens_are_known_only_if_every_request_reports_them() -> None:
    found = await Lengths(usage=[1, None, 3]).embed(["a"] * 5)
    assert found.usage == d.Usage()


async def test_error_of_a_split_call_carries_the_earlier_results() -> None:
    embedder = Lengths(2, d.RateLimitError("slow down"))
    with pytest.raises(d.RateLimitError) as caught:
        await embedder.embed(["a"] * 7)
    error = caught.value
    assert (
        "texts[4:6] of 7 failed; texts[0:4] were answered and are in error.response; texts[6:7] "
        "were not sent" in str(error)
    )
    assert error.response.vectors.tolist() == [[1, 0], [1, 1]] * 2
    assert error.response.usage == d.Usage(input_tokens=4)
    assert len(embedder.requests) == 3


async def test_error_of_the_first_request_has_no_partial_result() -> None:
    with pytest.raises(d.RateLimitError) as caught:
        await Lengths(0, d.RateLimitError("slow down")).embed(["a"] * 3)
    assert caught.value.response is None
    assert "texts[0:2] of 3 failed; texts[2:3] were not sent" in str(caught.value)


async def test_vectors_of_one_call_have_the_same_length() -> None:
    class Growing(Lengths):
        async def answer(self, request: d.EmbedRequest) -> d.Embeddings:
            found = await super().answer(request)
            size = len(self.requests)
            return msgspec.structs.replace(
                found, vectors=d.Vectors.of([[0.0] * size for _ in request.texts])
            )

    with pytest.raises(
        d.InvalidResponseError, match="have 2 numbers, those before it 1"
    ) as caught:
        await Growing().embed(["a"] * 3)
    assert len(caught.value.response.vectors) == 2


async def test_rankings_of_a_split_call_are_merged() -> None:
    reranker = Scores()
    found = await reranker.rerank("q", ["3", "1", "9", "8", "2", "7", "5"], top_k=3)
    facts = [(each.index, each.relevance_score) for each in found.results]
    assert facts == [(2, 9), (3, 8), (5, 7)]
    assert [request.top_k for request in reranker.requests] == [3, 3, 1]
    assert found.usage == d.Usage(search_units=3)


@pytest.mark.parametrize(
    ("wire", "limit"),
    [
        ("openai", 2048),
        ("cohere", 96),
        ("voyage", 1000),
        ("gemini", 100),
        ("tei", 32),
        ("ollama", None),
        ("jina", None),
    ],
)
def test_every_wire_has_its_batch_limit(wire: str, limit: int | None) -> None:
    for settings, size in (
        ({}, limit),
        ({"batch_size": 7}, 7),
        ({"quirks": {"batch_limit": 5}}, 5),
        ({"capabilities": {"max_batch_size": 4}}, 4),
    ):
        assert open_embedder(wire=wire, **settings).batch_size == size


def test_supported_embedding_and_reranking_wires_are_listed() -> None:
    assert set(EMBED_CODECS) == {"openai", "cohere", "voyage", "gemini", "tei", "ollama", "jina"}
    assert set(RERANK_CODECS) == {"openai", "cohere", "voyage", "tei", "jina"}


# --- split calls over HTTP ---------------------------------------------------------------------


def _reply(*rows: Sequence[float], status: int = 200) -> tuple[int, dict[str, str], list[bytes]]:
    data = [{"index": at, "embedding": list(row)} for at, row in enumerate(rows)]
    return status, {}, [msgspec.json.encode({"data": data, "usage": {"prompt_tokens": 1}})]


async def test_one_text_may_be_a_string() -> None:
    transport = FixtureTransport(_reply([1.0]))
    found = await open_embedder(transport=transport).embed("one")
    assert found.vectors.tolist() == [[1.0]]
    assert msgspec.json.decode(transport.requests[0].body)["input"] == ["one"]


async def test_raw_field_is_a_reply_or_a_list_of_replies() -> None:
    transport = FixtureTransport(*[_reply([1.0])] * 2, _reply([2.0]), _reply([3.0]))
    whole = await open_embedder(transport=transport).embed(["a"])
    assert whole.raw["usage"] == {"prompt_tokens": 1}
    split = await open_embedder(transport=transport, batch_size=1).embed(["a", "b"])
    assert [each["data"][0]["embedding"] for each in split.raw] == [[1.0], [2.0]]
    assert split.vectors.tolist() == [[1.0], [2.0]]
    embedder = open_embedder(transport=transport, keep_raw=False)
    assert (await embedder.embed(["a"])).raw is None


@pytest.mark.parametrize("count", [10**9 + 1, 2**63, 10**30, 10**400])
async def test_count_that_no_call_can_have_is_unknown_and_reported(count: int) -> None:
    data = [{"embedding": [1.0], "index": 0}]
    body = msgspec.json.encode({"data": data, "usage": {"prompt_tokens": count}})
    answer = await open_embedder(transport=FixtureTransport((200, {}, [body]))).embed(["a"])
    assert answer.usage == d.Usage()
    assert [warning.path for warning in answer.warnings] == ["usage.input_tokens"]


async def test_errors_contain_neither_secrets_nor_texts() -> None:
    text = "a sentence that a server repeats in full"
    body = msgspec.json.encode(
        {"error": {"message": f"cannot embed {text} with key sk-verysecretkey123"}}
    )
    transport = FixtureTransport((400, {}, [body]))
    embedder = open_embedder(transport=transport, api_key="sk-verysecretkey123")
    with pytest.raises(d.InvalidRequestError) as caught:
        await embedder.embed([text])
    assert text not in str(caught.value)
    assert "verysecret" not in f"{caught.value!r}{caught.value.provider_message}"
    assert caught.value.model == "m"


async def test_key_may_come_from_a_function_and_is_hidden_in_errors() -> None:
    body = msgspec.json.encode({"error": {"message": "wrong key sk-madebyafunction1"}})
    transport = FixtureTransport((401, {}, [body]))
    embedder = open_embedder(transport=transport, api_key=lambda: "sk-madebyafunction1")
    with pytest.raises(d.AuthenticationError, match="wrong key") as caught:
        await embedder.embed(["a"])
    assert "sk-made" not in str(caught.value)


async def test_embedding_call_that_would_lose_a_setting_can_be_rejected() -> None:
    transport = FixtureTransport(_reply([1.0]))
    embedder = open_embedder(transport=transport, on_loss="reject")
    with pytest.raises(d.UnsupportedFeatureError, match="input_type"):
        await embedder.embed(["a"], input_type="query")
    assert transport.requests == []


async def test_error_for_a_loss_found_in_the_reply_carries_the_result() -> None:
    transport = FixtureTransport(_reply([1.0]))
    embedder = open_embedder(transport=transport, on_loss="reject")
    with pytest.raises(d.UnsupportedFeatureError, match="dimensions") as caught:
        await embedder.embed(["a"], dimensions=8)
    assert caught.value.response.vectors.tolist() == [[1.0]]


async def test_unsupported_features_are_not_sent() -> None:
    transport = FixtureTransport()
    known = {"supports_dimensions": False}
    embedder = open_embedder(transport=transport, capabilities=known)
    with pytest.raises(d.UnsupportedFeatureError, match="one length only"):
        await embedder.embed(["a"], dimensions=8)
    embedder = open_embedder(transport=transport, capabilities={"max_dimensions": 4})
    with pytest.raises(d.InvalidRequestError, match="4 at most"):
        await embedder.embed(["a"], dimensions=8)
    with pytest.raises(d.UnsupportedFeatureError, match="known not to embed"):
        await open_embedder(capabilities={"supports_embeddings": False}).embed(["a"])
    with pytest.raises(d.UnsupportedFeatureError, match="known not to rank"):
        await d.connect_reranker(
            "m", base_url="http://host", capabilities={"supports_reranking": False}
        ).rerank("q", ["a"])


def test_invalid_settings_are_rejected() -> None:
    for call, settings, message in [
        (
            d.connect_embedder,
            {"wire": "anthropic"},
            "unknown wire 'anthropic'; one of cohere, gemini",
        ),
        (d.connect_reranker, {"wire": "ollama"}, "unknown wire 'ollama'; one of cohere, jina"),
        (d.connect_embedder, {"batch_size": 0}, "batch_size must be a positive whole number"),
        (d.connect_embedder, {"on_loss": "ignore"}, "on_loss must be"),
        (d.connect_embedder, {"quirks": {"nonsense": 1}}, "quirks"),
        (d.connect_reranker, {"base_url": "ftp://host"}, "base_url"),
    ]:
        opened: Callable[..., Any] = call
        with pytest.raises(ValueError, match=message):
            opened("m", **{"base_url": "http://host", **settings})


# --- cancelling a split call -------------------------------------------------------------------


async def test_cancelled_split_call_keeps_the_earlier_results() -> None:
    class Stuck(Lengths):
        async def answer(self, request: d.EmbedRequest) -> d.Embeddings:
            if self.requests:
                waiting.set()
                await asyncio.Event().wait()
            return await super().answer(request)

    waiting = asyncio.Event()
    embedder = Stuck()
    call = asyncio.ensure_future(embedder.embed(["a"] * 3, request_id="r"))
    await waiting.wait()
    with pytest.raises(d.InvalidRequestError, match="already in flight"):
        await embedder.embed(["a"], request_id="r")
    assert await embedder.cancel("r") is True
    with pytest.raises(d.CallCancelledError) as caught:
        await call
    assert len(caught.value.response.vectors) == 2
    assert caught.value.request_id == "r"
    assert await embedder.cancel("r") is False


# --- vectors as sequences and arrays -----------------------------------------------------------


def test_vectors_behave_as_an_immutable_sequence_of_float_rows() -> None:
    vectors = d.Vectors.of([[1, 2], [3, 4], [5, 6]])
    assert len(vectors) == 3
    assert vectors.dimensions == 2
    assert vectors[1].tolist() == vectors[-2].tolist() == [3, 4]
    assert isinstance(vectors[0], memoryview)
    assert vectors[0].nbytes == 8
    assert vectors[1:].tolist() == [[3, 4], [5, 6]]
    assert vectors[::-1].tolist() == [[5, 6], [3, 4], [1, 2]]
    assert vectors[2:1].tolist() == []
    assert [list(row) for row in vectors] == [[1, 2], [3, 4], [5, 6]]
    assert vectors == d.Vectors(array.array("f", [1, 2, 3, 4, 5, 6]), 2)
    assert vectors != d.Vectors(array.array("f", [1, 2, 3, 4, 5, 6]), 3)
    assert vectors != [[1, 2]]
    assert pickle.loads(pickle.dumps(vectors)) == vectors
    assert base64.b64encode(vectors.tobytes()[:8]).decode() == "AACAPwAAAEA="
    with pytest.raises(IndexError):
        vectors[3]
    with pytest.raises(TypeError):
        vectors[0][0] = 1.0
    with pytest.raises(ValueError, match="differ in length"):
        d.Vectors.of([[1], [1, 2]])
    with pytest.raises(ValueError, match="are not vectors of 3"):
        d.Vectors(b"12345678", 3)
    assert d.Vectors.of([]).tolist() == []
    assert repr(vectors) == "<Vectors 3 of 2 float32>"


def test_numpy_array_shares_the_memory_of_the_vectors() -> None:
    numpy = pytest.importorskip("numpy")
    vectors = d.Vectors.of([[1, 2], [3, 4]])
    matrix = numpy.asarray(vectors)
    assert matrix.shape == (2, 2)
    assert matrix.dtype == numpy.float32
    assert numpy.shares_memory(matrix, numpy.asarray(vectors))
    assert not numpy.shares_memory(matrix, numpy.array(vectors))
    assert numpy.asarray(vectors, dtype="float64").tolist() == [[1, 2], [3, 4]]
    assert numpy.asarray(vectors[1]).tolist() == [3, 4]
    with pytest.raises(ValueError, match="cannot be shared"):
        numpy.array(vectors, dtype="float64", copy=False)


def test_using_vectors_does_not_import_numpy() -> None:
    code = (
        "import sys, dragoman; dragoman.Vectors.of([[1.0]]).tolist(); dragoman.connect_embedder; "
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
