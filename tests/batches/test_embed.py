"""Batches of embeddings: rows, results, failures, budgets, restarts, and how an embedding batch is
recognised.
"""

import base64
import json
from array import array
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman import BatchReport
from dragoman.batches import OutputError, StrictError
from dragoman.errors import InvalidRequestError, RateLimitError
from dragoman.retrieval import Embeddings, EmbedRequest
from dragoman.sim import SimServer, SimulatedEmbedder, serve
from tests.listed import Listed
from tests.rows import read_table

from .conftest import results, run

PRICE = "openai:text-embedding-3-small"


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with serve("chat") as found:
        yield found


def texts(count: int) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "input": f"w{number} x"} for number in range(count)]


def openai_row(name: str, **body: Any) -> dict[str, Any]:
    body = {"model": "other", **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": body}


async def embed_at(server: SimServer, source: Any, out: Path, **settings: Any) -> BatchReport:
    connection = {"base_url": server.base_urls["openai"], "priced_as": PRICE}
    return await run(source, out, "m", connection=connection, **settings)


async def expected(text: str, size: int = 64) -> list[float]:
    answer = await SimulatedEmbedder(dimensions=size).answer(EmbedRequest(texts=[text]))
    return answer.vectors[0].tolist()


class Refusing(SimulatedEmbedder):
    """An embedder that rejects texts with certain content."""

    def __init__(self, **errors: Exception) -> None:
        super().__init__()
        self.errors = errors

    async def answer(self, request: EmbedRequest) -> Embeddings:
        for word, error in self.errors.items():
            if word in request.texts[0]:
                self.requests.append(request)
                raise error
        return await super().answer(request)


# --- rows and results of embedding batches -------------------------------------------------------


async def test_row_gets_one_vector_for_a_text_and_a_list_of_vectors_for_a_list(
    server: SimServer, out: Path
) -> None:
    rows = [
        {"id": "a", "input": "one two"}, {"text": ["three", "four five"]},
        {"id": 7, "text": "six", "dimensions": 8}, {"input": ["six"]},
    ]  # fmt: skip
    report = await embed_at(server, rows, out)
    found = results(out)
    several = [await expected("three"), await expected("four five")]
    six = await expected("six", 8), [await expected("six")]
    wanted = [await expected("one two"), several, *six]
    assert [row.get("embedding", row.get("embeddings")) for row in found] == wanted
    assert [row.get("id") for row in found] == ["a", None, "7", None]
    assert [row["usage"]["input_tokens"] for row in found] == [2, 3, 1, 1]
    assert found[0]["model"] == "m"
    assert report.rows == 4
    assert report.failed == 0
    assert report.tokens == 7
    assert report.unpriced == 0
    assert report.cost_usd == 7 * Decimal("0.02") / 1_000_000
    assert sum(Decimal(row["cost_usd"]) for row in found) == report.cost_usd


async def test_row_in_openai_format_gets_a_result_in_openai_format(
    server: SimServer, out: Path
) -> None:
    rows = [
        openai_row("a", input=["one", "two"], dimensions=4, user="u"),
        openai_row("b", input="three", encoding_format="base64"),
    ]
    await embed_at(server, rows, out, dimensions=8)
    first, second = results(out)
    assert first["custom_id"] == "a"
    assert first["error"] is None
    assert first["response"]["status_code"] == 200
    body = first["response"]["body"]
    assert body["object"] == "list"
    assert body["model"] == "m"
    assert [each["index"] for each in body["data"]] == [0, 1]
    assert body["data"][0]["embedding"] == await expected("one", 4)
    assert body["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    packed = second["response"]["body"]["data"][0]["embedding"]
    # The number of dimensions comes from the settings of the batch.
    assert array("f", base64.b64decode(packed)).tolist() == await expected("three", 8)


async def test_batch_settings_apply_to_rows_without_their_own_settings(out: Path) -> None:
    model = SimulatedEmbedder()
    rows = [
        {"input": "a"},
        {"input": "b", "input_type": "query", "dimensions": 2, "encoding_format": "float"},
        openai_row("c", input="c"),
    ]
    given: dict[str, Any] = {"input_type": "document", "dimensions": 4, "extras": {"k": 1}}
    await run(rows, out, model, encoding_format="base64", concurrency=1, **given)
    asked = [(each.input_type, each.dimensions, each.extras) for each in model.requests]
    assert asked == [("document", 4, {"k": 1}), ("query", 2, {"k": 1}), ("document", 4, {"k": 1})]
    first, second, third = results(out)
    assert len(base64.b64decode(first["embedding"])) == 16
    assert len(second["embedding"]) == 2
    assert len(base64.b64decode(third["response"]["body"]["data"][0]["embedding"])) == 16


async def test_template_selects_the_columns_to_embed(out: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("key,word,input\nk1,Haus,x\nk2,Maus,y\n")
    model = SimulatedEmbedder()
    given = {"template": "search: {word}", "id_column": "key", "concurrency": 1}
    await run(tmp_path / "in.csv", out, model, **given)
    assert [each.texts for each in model.requests] == [("search: Haus",), ("search: Maus",)]
    assert [row["id"] for row in results(out)] == ["k1", "k2"]


@pytest.mark.parametrize(
    ("row", "reason"),
    read_table("invalid_row_is_reported_in_the_output_and_rejected_in_strict_mode"),
)
async def test_invalid_row_is_reported_in_the_output_and_rejected_in_strict_mode(
    row: dict[str, Any], reason: str, out: Path
) -> None:
    model = SimulatedEmbedder()
    report = await run([{"input": "good"}, row], out, model)
    assert report.rows == 2
    assert report.bad == 1
    assert len(model.requests) == 1
    error = results(out)[1]["error"]
    assert error["category"] == "batch_invalid_row"
    assert error["message"].startswith("line 2: ")
    assert reason in error["message"]
    with pytest.raises(StrictError, match="line 2: "):
        await run([{"input": "good"}, row], out, model, strict=True, fresh=True)
    assert len(model.requests) == 1


# --- order, failures, retries and budgets of embedding batches -----------------------------------


async def test_failed_row_is_reported_in_the_output_and_the_others_continue(out: Path) -> None:
    model = Refusing(
        w1=InvalidRequestError("too long", status=400), w2=RateLimitError("slow down", status=429)
    )
    rows = [*texts(4), openai_row("o", input="w1")]
    report = await run(rows, out, model, concurrency=2)
    found = results(out)
    assert report.rows == 5
    assert report.failed == 3
    assert report.bad == 0
    assert ["error" in row for row in found[:4]] == [False, True, True, False]
    assert found[1]["error"]["category"] == "provider_invalid_request"
    assert found[2]["error"]["status"] == 429
    assert found[2]["error"]["transient"] is True
    assert found[4]["response"] is None
    assert found[4]["error"]["message"].startswith("too long")
    again = SimulatedEmbedder(name="sim", model="sim")
    report = await run(rows, out, again, retry_failed=True)
    assert report.rows == 5
    assert report.failed == 0
    assert len(again.requests) == 3


async def test_tokens_of_a_row_that_fails_after_its_first_request_are_billed(out: Path) -> None:
    model = SimulatedEmbedder(None, InvalidRequestError("bad"), batch_size=2)
    model.priced_as = PRICE
    report = await run([{"input": ["a", "b", "c", "d", "e"]}], out, model)
    row = results(out)[0]
    assert "texts[2:4] of 5 failed" in row["error"]["message"]
    assert row["usage"]["input_tokens"] == 2
    assert report.tokens == 2
    assert report.cost_usd == 2 * Decimal("0.02") / 1_000_000


async def test_token_budget_covers_all_runs_of_an_embedding_batch(out: Path) -> None:
    rows = [openai_row(f"r{number}", input="one two") for number in range(10)]
    model = SimulatedEmbedder()
    report = await run(rows, out, model, budget="tokens=8")
    assert report.rows == 4
    assert report.tokens == 8
    assert report.stopped == "budget"
    again = SimulatedEmbedder()
    report = await run(rows, out, again, budget="tokens=12")
    assert report.rows == 6
    assert report.resumed == 4
    assert report.tokens == 12
    assert report.stopped == "budget"
    assert len(again.requests) == 2


async def test_finished_rows_are_not_sent_again(out: Path) -> None:
    await run(texts(6), out, SimulatedEmbedder(), budget="rows=4")
    again = SimulatedEmbedder()
    report = await run(texts(6), out, again)
    assert report.rows == 6
    assert report.resumed == 4
    assert len(again.requests) == 2
    with pytest.raises(OutputError, match="another model or other settings"):
        await run(texts(6), out, SimulatedEmbedder(), dimensions=3)


# --- how a batch is recognised as an embedding batch ---------------------------------------------


@pytest.mark.parametrize(
    "first", [{"input": "x"}, {"text": "x"}, {"text": ["x"]}, openai_row("a", input="x")]
)
async def test_batch_is_an_embedding_batch_if_its_first_row_has_a_text(
    first: dict[str, Any], server: SimServer, out: Path, tmp_path: Path
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("not JSON\n" + json.dumps(first) + "\n")
    assert (await embed_at(server, path, out)).bad == 1
    assert (await embed_at(server, iter([first]), tmp_path / "two.jsonl")).failed == 0
    assert (await embed_at(server, [first], tmp_path / "three.jsonl")).failed == 0


async def test_batch_is_a_chat_batch_if_its_first_row_has_a_prompt(
    server: SimServer, out: Path
) -> None:
    rows = [{"prompt": "x"}, {"input": "x"}, openai_row("a", input="x")]
    report = await embed_at(server, iter(rows), out)
    chat, embed, foreign = results(out)
    assert chat["text"] == "chat"
    assert "this one chats" in embed["error"]["message"]
    assert "this is a batch of chats" in foreign["error"]["message"]
    assert report.bad == 2


async def test_filled_templates_are_embedded_only_with_the_embed_option(
    server: SimServer, out: Path, tmp_path: Path
) -> None:
    rows = [{"text": "x"}]
    await embed_at(server, rows, out, template="{text}", embed=True)
    assert "embedding" in results(out)[0]
    await embed_at(server, rows, tmp_path / "chat.jsonl", template="{text}")
    assert results(tmp_path / "chat.jsonl")[0]["text"] == "chat"


async def test_batch_is_an_embedding_batch_if_its_model_is_known_to_embed(
    server: SimServer, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "models.yaml"
    config.write_text(f"adapters:\n  openai:\n    base_url: {server.base_urls['openai']}\n")
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(config))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    await run([{"word": "x"}], out, "openai:text-embedding-3-small", template="{word}")
    assert "embedding" in results(out)[0]


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        (SimulatedEmbedder(), {"temperature": 0}, "temperature: is a setting of chats"),
        (SimulatedEmbedder(), {"tools": [{"name": "a"}]}, "tools: is a setting of chats"),
        (SimulatedEmbedder(), {"dimensions": 0}, "dimensions must be a positive"),
        (SimulatedEmbedder(), {"encoding_format": "x"}, "encoding_format: must be"),
        (SimulatedEmbedder(), {"template": "{"}, "template: "),
        (SimulatedEmbedder(), {"embed": False}, "embed: is False, but model is a Simulated"),
        (SimulatedEmbedder(), {"on": "ray"}, "on: a batch on Ray needs the name"),
        (SimulatedEmbedder(), {"via": "provider"}, "via: rows to embed are not sent"),
        (Listed("x"), {"dimensions": 3}, "dimensions: is a setting of embeddings"),
        (Listed("x"), {"embed": True}, "embed: is True, but model is a Listed"),
    ],
)
async def test_settings_for_the_other_kind_of_batch_are_rejected(
    model: Any, settings: dict[str, Any], reason: str, out: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        await run([{"input": "x"}], out, model, **settings)
    assert model.requests == []
