"""Test each feature in a list with a client, and print the outcomes as one JSON object.

This module runs in the client's environment, where Dragoman is not installed: ``python CLIENT.py
URL SIDE MODEL``. SIDE is the API that the client uses, such as ``responses``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

CASES: dict[str, Callable[..., Any]] = {}
TEXT = "Hello there"
RIVER = {"name": "Rhine", "km": 1233}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PNG = "iVBORw0KGgo="


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function that tests one feature."""
    CASES[function.__name__] = function
    return function


class NotOffered(Exception):
    """Raised for a feature that the client does not offer on this wire."""


def expect(found: Any, wanted: Any) -> None:
    """Raise an error if two values differ."""
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


def add_cases(
    ask: Callable[..., Awaitable[str]],
    stream: Callable[[str], AsyncGenerator[str, None]],
    use_tool: Callable[[str, list[str]], Awaitable[str]],
    structure: Callable[[str], Awaitable[Any]],
) -> None:
    """Register the features that most clients have, from four functions of the client: ask with
    or without an image, stream the pieces of a reply, add the city of a tool call to a list and
    answer, and answer with an object.
    """

    @case
    async def completes() -> None:
        expect(await ask("Hi"), TEXT)

    @case
    async def streams() -> None:
        expect("".join([piece async for piece in stream("Hi")]), TEXT)

    @case
    async def tools() -> None:
        places: list[str] = []
        expect([await use_tool("CALL", places), places], ["It rains.", ["Paris"]])

    @case
    async def structured() -> None:
        expect(await structure("RIVER"), RIVER)

    @case
    async def image() -> None:
        expect(await ask("What?", PNG), TEXT)

    @case
    async def errors() -> None:
        for status in (401, 404, 429):
            try:
                await ask(f"E{status}")
            except Exception as error:
                expect(str(status) in _show_causes(error).replace(f"E{status}", ""), True)
            else:
                raise AssertionError(f"no error for {status}")

    @case
    async def abort() -> None:
        """Only an aborted reply ends: its first piece is the last one that is sent."""
        pieces = stream("SLOW")
        expect("one two three four five six".startswith(await anext(pieces)), True)
        await pieces.aclose()
        await completes()


def _show_causes(error: BaseException | None) -> str:
    if error is None:
        return ""
    inner = getattr(error, "exceptions", ())
    shown = [f"{getattr(error, 'status_code', '')} {error}", _show_causes(error.__cause__)]
    return " ".join([*shown, *map(_show_causes, inner)])


async def listen(
    run: Callable[[Callable[[str], None]], Awaitable[Any]],
) -> AsyncGenerator[str, None]:
    """Yield the pieces that a function passes to its callback; cancel it if the caller stops."""
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    task = asyncio.ensure_future(run(pieces.put_nowait))
    task.add_done_callback(lambda _: pieces.put_nowait(None))
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
        await task
    finally:
        task.cancel()


def main(*settings: Any) -> None:
    """Test all features of the list, and print the outcomes as JSON."""
    found = {}
    for name, function in CASES.items():
        try:
            made = function(*settings)
            if inspect.isawaitable(made):
                asyncio.run(_wait(made))
            found[name] = "yes"
        except NotOffered:
            found[name] = "–"
        except Exception as error:
            traceback.print_exc()
            found[name] = f"no: {type(error).__name__}: {error}"[:600]
    print("\n" + json.dumps(found))
    sys.stdout.flush()


async def _wait(made: Any) -> None:
    async with asyncio.timeout(180):
        await made
