"""Type errors that mypy and pyright must find; a numbered comment precedes each one.

A comment after each error makes the checkers ignore it. They report a comment that they do not
need, so ``make lint`` fails if one of them misses an error.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=error, reportUnnecessaryComparison=error

from __future__ import annotations

import dragoman
from dragoman import TextDelta
from dragoman.middleware import Cache, Fallback, Observe, Retry
from dragoman.retrieval import Embedder
from dragoman.tools import tool


class Invoice:
    """A type for structured output."""

    total: int


async def ten_mistakes(model: dragoman.Provider) -> None:
    # 1: a role that does not exist
    await model.complete([{"role": "usr", "content": "Hi"}])  # type: ignore
    # 2: a misspelt setting
    await model.complete("Hi", temprature=0)  # type: ignore
    # 3: a tool of the wrong type
    await model.complete("Hi", tools=["search"])  # type: ignore
    # 4: a field that a reply does not have
    print((await model.complete("Hi")).txt)  # type: ignore
    # 5: assigning a parsed value to another type
    text: str = (await model.complete("Hi", response_schema=Invoice)).parsed  # type: ignore
    # 6: a missing await
    print(model.complete("Hi").text)  # type: ignore
    # 7: a tool choice that does not exist
    await model.complete("Hi", tool_choice="always")  # type: ignore
    # 8: a schema that is neither a type nor a mapping
    await model.complete("Hi", response_schema="Invoice")  # type: ignore
    async for event in model.stream("Hi"):
        if isinstance(event, TextDelta):
            # 9: a field that an event does not have
            print(event.txt, text)  # type: ignore
    # 10: a subscriber that is not callable with an event
    Observe(model, len("x"))  # type: ignore


def the_same_without_an_event_loop() -> None:
    model = dragoman.sync.connect("llama3", base_url="http://127.0.0.1:8080/v1")
    # 11: a misspelt setting
    model.complete("Hi", max_token=5)  # type: ignore
    # 12: a misspelt field of config
    model.complete("Hi", config={"max_token": 5})  # type: ignore
    # 13: assigning a parsed value to another type
    number: int = model.stream("Hi", response_schema=Invoice).response.parsed  # type: ignore
    print(number)


async def mistakes_in_many_calls(model: dragoman.Provider) -> None:
    # 14: a misspelt setting
    dragoman.gather(model, ["Hi"], temprature=0)  # type: ignore
    # 15: numbers instead of prompts
    dragoman.gather(model, [1, 2])  # type: ignore
    async for item in dragoman.gather(model, ["Hi"], response_schema=Invoice):
        # 16: use of a response that may be None
        print(item.response.text)  # type: ignore
    async for part in model.stream("Hi", response_schema=Invoice).partial():
        # 17: use of a partial value that may be a plain dict
        print(part.total)  # type: ignore


async def mistakes_in_sessions_and_money(model: dragoman.Provider) -> None:
    # 18: a side effect that does not exist
    dragoman.Rule("allow", side_effect="nothing")  # type: ignore
    # 19: assigning a session's output to another type
    text: str = (await dragoman.Session(model, output=Invoice).run("Hi")).output  # type: ignore
    # 20: the cost of token usage without naming a model
    print(dragoman.cost(dragoman.Usage(1, 1)), text)  # type: ignore
    # 21: use of a cost that may be unknown
    dollars: float = dragoman.cost(await model.complete("Hi")).total  # type: ignore
    print(dollars)


async def mistakes_without_a_schema(model: dragoman.Provider) -> None:
    # 22: use of a parsed value that no schema was given for
    print((await model.complete("Hi")).parsed.total)  # type: ignore
    # 23: the same in a stream
    print(model.stream("Hi").response.parsed["total"])  # type: ignore


async def mistakes_with_layers(model: dragoman.Provider, embedder: Embedder) -> None:
    # 24: vectors from a chat model
    await Retry(model).embed(["a"])  # type: ignore
    # 25: the same through several layers
    await Retry(Cache(model, "answers.db")).embed(["a"])  # type: ignore
    # 26: the same from several models
    await Fallback([Retry(model), model]).embed(["a"])  # type: ignore
    # 27: the same in batches
    Retry(model).embed_batches(["a"])  # type: ignore
    # 28: a ranking from an embedder
    await Retry(embedder).rerank("a", ["b"])  # type: ignore


@tool
def look(place: str, days: int = 1) -> str:
    """Look at the weather of a place."""
    return place * days


@tool(side_effect="read")
async def wait(seconds: float) -> bool:
    """Wait."""
    return seconds > 0


async def mistakes_with_tools(embedder: Embedder, model: dragoman.Provider) -> None:
    # 29: an argument of the wrong type for a decorated function
    look(5)  # type: ignore
    # 30: assigning its result to another type
    number: int = look("Basel")  # type: ignore
    # 31: the same for a decorated coroutine function with settings
    await wait("long")  # type: ignore
    # 32: numbers in place of texts
    await embedder.embed([number, 2])  # type: ignore
    # 33: a result of a tool without content
    dragoman.ToolResult("call_1")  # type: ignore
    # 34: a finish reason that does not exist
    print((await model.complete("Hi")).finish_reason == "stopp")  # type: ignore
    # 35: a setting under its name on the command line
    dragoman.Budget(usd=5)  # type: ignore
    # 36: a name of another library
    print((await model.complete("Hi")).choices)  # type: ignore
    # 37: a model in the wrong kind of with
    with model:  # type: ignore
        pass
