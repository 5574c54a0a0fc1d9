"""Correct programs, which are never run: a type checker must accept them and infer the given
types.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, assert_type

import dragoman
from dragoman import (
    Assistant,
    Cost,
    EventStream,
    Policy,
    Response,
    Rule,
    Session,
    Tool,
    ToolResult,
    Unpriced,
    User,
)
from dragoman.middleware import Fallback, Middleware, Retry
from dragoman.retrieval import Embedder, Embeddings, Ranking, Reranker
from dragoman.tools import tool


class Invoice:
    """A type for structured output."""

    total: int


def search(query: str) -> str:
    """Search for documents."""
    return query


async def every_form(model: dragoman.Provider, schema: Mapping[str, Any]) -> None:
    assert_type(await model.complete("Hi"), Response[None])
    assert_type(await model.complete("Hi", response_schema=Invoice), Response[Invoice])
    assert_type((await model.complete("Hi", response_schema=Invoice)).parsed, Invoice)
    assert_type((await model.complete("Hi", response_schema=list[Invoice])).parsed, list[Invoice])
    untyped: tuple[Any, ...] = (
        assert_type(await model.complete("Hi", response_schema={"type": "object"}), Response[Any]),
        assert_type(await model.complete("Hi", response_schema=schema), Response[Any]),
        assert_type(await model.complete("Hi", response_schema=int | None), Response[Any]),
    )
    a_or_b = await model.complete("Hi", response_schema=Literal["a", "b"])  # Any for mypy
    print(a_or_b.parsed.upper(), untyped)
    any_reply: Response = await model.complete("Hi", response_schema=Invoice)
    assert_type(any_reply.parsed, Any)
    await model.complete("Hi", system="Be brief.", temperature=0, max_tokens=50, reasoning="low")
    await model.complete("Hi", config={"temperature": 0.5, "stop_sequences": ["END"]})
    await model.complete(
        User("Hi"), tools=[search, Tool("f"), {"name": "g", "parameters": {}}, Invoice]
    )
    await model.complete(
        [User("Hi"), Assistant("Ho"), ToolResult("1", "x"), {"role": "user", "content": "Hi"}]
    )
    await model.complete(
        [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text"}]}]
    )
    await model.complete("Hi", session_id="s", metadata={"team": "rivers"})
    stream = model.stream("Hi", response_schema=Invoice)
    assert_type(stream, EventStream[Invoice])
    async for text in stream.text():
        assert_type(text, str)
    async for part in stream.partial():
        assert_type(part, Invoice | dict[str, Any] | list[Any] | str)
    assert_type(stream.response.parsed, Invoice)
    assert_type(stream.response.thinking, str)
    async for item in dragoman.gather(
        model, ["Hi", User("Ho")], concurrency=2, response_schema=Invoice, temperature=0
    ):
        assert_type(item.response, Response[Invoice] | None)
        assert_type(item.error, Exception | None)
    async for plain in dragoman.gather(model, ["Hi"]):
        assert_type(plain.response, Response[None] | None)
    assert_type(model.stream("Hi").response.parsed, None)


class Plain(Middleware):
    """Middleware of a program, without a type parameter."""


async def layers(
    model: dragoman.Provider, embedder: Embedder, reranker: Reranker, retry: Retry, plain: Plain
) -> None:
    assert_type(await Retry(model).complete("Hi", response_schema=Invoice), Response[Invoice])
    assert_type(await Fallback([Retry(model), model]).complete("Hi"), Response[None])
    assert_type(await Retry(embedder).embed(["a"]), Embeddings)
    assert_type(await Retry(Retry(embedder)).embed(["a"]), Embeddings)
    assert_type(await Fallback([Retry(embedder), embedder]).embed(["a"]), Embeddings)
    async for part in Retry(embedder).embed_batches(["a"]):
        assert_type(part, Embeddings)
    assert_type(await Retry(reranker).rerank("a", ["b"]), Ranking)
    assert_type(await retry.embed(["a"]), Embeddings)
    assert_type(await plain.embed(["a"]), Embeddings)
    provider: dragoman.Provider = Retry(model)
    await Session(provider).run("Hi")


async def sessions_and_money(model: dragoman.Provider) -> None:
    policy = Policy(
        [Rule("allow", side_effect="none"), Rule("ask", side_effect=["write", "execute"])]
    )
    assert_type((await Session(model, [search], policy, output=Invoice).run("Hi")).output, Invoice)
    await Session(model).run("Hi")
    reply = await model.complete("Hi")
    bill = dragoman.cost(reply)
    assert_type(bill, Cost | Unpriced)
    if bill:
        assert_type(bill.total, Decimal)
    dragoman.cost(reply.usage, "vendor:model")


def without_an_event_loop() -> None:
    model = dragoman.sync.connect("llama3", base_url="http://127.0.0.1:8080/v1")
    assert_type(model.complete("Hi", response_schema=Invoice).parsed, Invoice)
    assert_type(model.complete("Hi").parsed, None)
    for text in model.stream("Hi", temperature=0).text():
        assert_type(text, str)


@tool
def look(place: str, days: int = 1) -> str:
    """Look at the weather of a place."""
    return place * days


@tool(side_effect="read")
async def wait(seconds: float) -> bool:
    """Wait."""
    return seconds > 0


async def decorated_functions(model: dragoman.Provider) -> None:
    assert_type(look("Basel", days=2), str)
    assert_type(await wait(1.5), bool)
    await model.complete("Hi", tools=[look, wait])
    await Session(model, [look, wait]).run("Hi")
    print(
        ToolResult("1", "x", "y"),
        ToolResult("1", content="x"),
        ToolResult("1", "x", is_error=True),
    )


async def events_are_narrowed_by_their_type(stream: EventStream[None]) -> None:
    async for event in stream:
        if event.type == "text.delta":
            assert_type(event.text, str)
        elif event.type == "message.complete":
            print(event.finish_reason)
