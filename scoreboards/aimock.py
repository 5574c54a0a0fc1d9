"""aimock: Dragoman's client against a simulator of the vendors' APIs that others wrote."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import dragoman as d
from dragoman.conformance import check_server

from .board import Board
from .install import HOME, install_node, node, node_version

TITLE = "aimock"
PACKAGE = "@copilotkit/aimock"
WIRES = ("openai", "responses", "anthropic", "gemini", "ollama", "cohere", "bedrock")
PATHS = {"openai": "/v1", "responses": "/v1", "gemini": "/v1beta"}
HERE = Path(__file__).parent
WEATHER = d.Tool(
    "weather",
    "The weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)
RIVER = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ODD = 'Zoë 日本 🦜 \\n {"a": 1}\nend'
# For each status: the class that Dragoman must raise, and the type and message of the error.
ERRORS: dict[int, tuple[type[d.ProviderError], str, str]] = {
    400: (d.InvalidRequestError, "invalid_request_error", "temperature is out of range"),
    401: (d.AuthenticationError, "authentication_error", "the key is not valid"),
    404: (d.InvalidModelError, "not_found_error", "the model `m` does not exist"),
    429: (d.RateLimitError, "rate_limit_error", "too many requests"),
    500: (d.UnavailableError, "api_error", "an internal error"),
    503: (d.UnavailableError, "api_error", "come back later"),
}
_CALL = {"name": "weather", "arguments": '{"city": "Bern"}'}
_OTHER = {"name": "weather", "arguments": '{"city": "Rome"}'}
FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "TEXT"}, "response": {"content": "Hello there."}},
    {"match": {"userMessage": "ODD"}, "response": {"content": ODD}},
    {"match": {"userMessage": "THINK"}, "response": {"content": "Yes.", "reasoning": "Hm."}},
    {
        "match": {"userMessage": "CUT"},
        "response": {"content": "Once upon", "finishReason": "length"},
    },
    {"match": {"userMessage": "JSON"}, "response": {"content": '{"name": "Rhine"}'}},
    {"match": {"userMessage": "LOOP", "hasToolResult": True}, "response": {"content": "Sunny."}},
    {"match": {"userMessage": "LOOP"}, "response": {"toolCalls": [_CALL]}},
    {"match": {"userMessage": "BOTH"}, "response": {"toolCalls": [_CALL, _OTHER]}},
    *[
        {
            "match": {"userMessage": f"E{status}"},
            "response": {"error": {"message": message, "type": kind}, "status": status},
        }
        for status, (_, kind, message) in ERRORS.items()
    ],
    *[
        {
            "match": {"userMessage": f"P{status}"},
            "response": {"error": {"message": message}, "status": status},
        }
        for status, (_, _, message) in ERRORS.items()
    ],
    {"match": {}, "response": {"content": "Hello there."}},  # for the questions of the check
]
Ask = Callable[..., Any]


def _equal(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


async def _text(ask: Ask) -> None:
    reply = await ask("TEXT")
    _equal((reply.text, reply.finish_reason), ("Hello there.", "stop"))


async def _odd(ask: Ask) -> None:
    _equal((await ask("ODD")).text, ODD)


async def _think(ask: Ask) -> None:
    reply = await ask("THINK")
    thoughts = "".join(
        [each.text for each in reply.message.content if isinstance(each, d.Thinking)]
    )
    _equal((thoughts, reply.text), ("Hm.", "Yes."))


async def _cut(ask: Ask) -> None:
    reply = await ask("CUT")
    _equal((reply.text, reply.finish_reason), ("Once upon", "length"))


async def _json(ask: Ask) -> None:
    _equal((await ask("JSON", response_schema=RIVER)).parsed, {"name": "Rhine"})


async def _loop(ask: Ask) -> None:
    messages: list[d.Message] = [d.User("LOOP")]
    reply = await ask(messages, tools=[WEATHER])
    _equal([call.arguments for call in reply.tool_calls], [{"city": "Bern"}])
    _equal(reply.finish_reason, "tool_calls")
    messages += [reply.message, d.ToolResult(reply.tool_calls[0].id, "sun")]
    _equal((await ask(messages, tools=[WEATHER])).text, "Sunny.")


async def _both(ask: Ask) -> None:
    reply = await ask("BOTH", tools=[WEATHER])
    _equal([call.arguments["city"] for call in reply.tool_calls], ["Bern", "Rome"])
    _equal(len({call.id for call in reply.tool_calls}), 2)


def _refused(mark: str, status: int) -> Callable[[Ask], Any]:
    async def refused(ask: Ask) -> None:
        try:
            await ask(f"{mark}{status}")
        except d.ProviderError as error:
            kind = ERRORS[status][0]
            _equal((type(error).__mro__.count(kind), error.status), (1, status))
            return
        raise AssertionError("no error was raised")

    return refused


ROWS: dict[str, Callable[[Ask], Any]] = {
    "text": _text,
    "escapes and emoji": _odd,
    "thinking": _think,
    "cut at the limit": _cut,
    "structured output": _json,
    "tool call and result": _loop,
    "two tool calls": _both,
    **{f"HTTP {status}": _refused("E", status) for status in ERRORS},
    **{f"plain {status}": _refused("P", status) for status in ERRORS},
}
_ONE = "a fixture has one answer to every request"
_ANY = "aimock answers every model, every key and an empty list of messages"
_PLAIN = "aimock gives a plain error the type of a failure of the server"
_COUNTS = "aimock reports no tokens of a prompt on this API"
# The outcome "not observed" is no row: a server with one answer shows nothing by giving it.
EXPECTED = {
    ("cut at the limit*", "responses"): "aimock sends `incomplete` without `incomplete_details`",
    ("cut at the limit*", "ollama"): "aimock ignores `finishReason` on this API",
    ("thinking*", "ollama"): "aimock sends `reasoning_content`, which is not a field of this API",
    ("thinking*", "cohere"): "aimock sends the thinking as text",
    **{("plain 400*", wire): _PLAIN for wire in ("openai", "responses", "anthropic", "ollama")},
    ("check:ready.answers", "*"): "aimock lists models of its own",
    **{("check:usage.reported", wire): _COUNTS for wire in WIRES if wire != "openai"},
    **{(f"check:errors.{name}", "*"): _ANY for name in ("unknown_model", "no_messages", "key")},
    ("check:limits.max_tokens", "*"): _ONE,
    ("check:tools.forced", "*"): _ONE,
    ("check:tools.required", "*"): _ONE,
    ("check:schema.native", "*"): _ONE,
}


# --- negative controls: damage to the replies that must be noticed ------------------------------

Response = dict[str, Any]


class Control(NamedTuple):
    """A damage to the responses of all fixtures, and the rows that compare what it changes."""

    damage: Callable[[Response], Response]
    rows: tuple[str, ...]


def _replace(name: str, change: Callable[[Any], Any]) -> Callable[[Response], Response]:
    """Return a function that changes a field of a response that has it."""
    return lambda found: {**found, name: change(found[name])} if name in found else found


def _fail(response: Response) -> Response:
    return {"error": {"message": "out of order", "type": "api_error"}, "status": 500}


_REFUSED = tuple(f"{kind} {status}" for kind in ("HTTP", "plain") for status in ERRORS)
CONTROLS = {
    "text changed": Control(
        _replace("content", lambda text: f"{text}!"),
        (
            "text", "escapes and emoji", "thinking", "cut at the limit", "structured output",
            "tool call and result",
        ),
    ),
    "thinking changed": Control(_replace("reasoning", lambda text: f"{text}!"), ("thinking",)),
    "reason of the end changed": Control(
        _replace("finishReason", lambda _: "stop"), ("cut at the limit",)
    ),
    "arguments changed": Control(
        _replace("toolCalls", lambda calls: [{**each, "arguments": "{}"} for each in calls]),
        ("tool call and result", "two tool calls"),
    ),
    "call removed": Control(
        _replace("toolCalls", lambda calls: calls[1:]),
        ("tool call and result", "two tool calls"),
    ),
    "status changed": Control(_replace("status", lambda _: 418), _REFUSED),
}  # fmt: skip
_UNTOUCHED = "check:errors.malformed"
"""The only check that no fixture has a part in: aimock refuses a body that is not JSON by itself."""


def damage_fixtures(damage: Callable[[Response], Response]) -> list[dict[str, Any]]:
    """Return the fixtures with damaged responses."""
    return [{**each, "response": damage(each["response"])} for each in FIXTURES]


@contextlib.asynccontextmanager
async def _serve(given: list[dict[str, Any]]) -> AsyncIterator[str]:
    fixtures = HOME / "aimock-fixtures.json"
    fixtures.write_text(json.dumps(given))
    process = await asyncio.create_subprocess_exec(
        node(), str(HERE / "aimock.mjs"), str(install_node()), str(fixtures),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


async def _ask(model: d.Provider, streamed: bool, messages: Any, **more: Any) -> Any:
    more["config"] = d.RuntimeConfig(max_tokens=64)
    if not streamed:
        return await model.complete(messages, **more)
    async with model.stream(messages, **more) as stream:
        async for _ in stream:
            pass
    return stream.response


Cells = dict[tuple[str, str], str]


async def collect(rows: Iterable[str], fixtures: list[dict[str, Any]]) -> Cells:
    """Return the outcome of each row on each wire, with a complete and a streamed reply."""
    cells: Cells = {}
    async with _serve(fixtures) as url:
        for streamed in (False, True):
            for name in rows:
                for wire in WIRES:
                    model = d.connect(
                        "m", wire=wire, base_url=url + PATHS.get(wire, ""), api_key="k" * 12
                    )

                    shown = f"{name}, streamed" if streamed else name
                    try:
                        await ROWS[name](functools.partial(_ask, model, streamed))
                        cells[shown, wire] = ""
                    except Exception as error:
                        text = f"{type(error).__name__}: {error}"[:200]
                        cells[shown, wire] = f"{wire}, {name}: {text}"
                    await model.close()
    return cells


async def check(fixtures: list[dict[str, Any]]) -> Cells:
    """Return what ``dragoman check`` finds on each wire, without what it did not observe."""
    cells: Cells = {}
    async with _serve(fixtures) as url:
        for wire in WIRES:
            at = url + PATHS.get(wire, "")
            report = await check_server(at, "m", wire, "k" * 12)
            for found in report.outcomes:
                if found.status in ("pass", "fail"):
                    failed = f"{wire}, check {found.name}: {found.detail}"
                    cells[f"check:{found.name}", wire] = "" if found.status == "pass" else failed
    return cells


async def try_controls(passed: Collection[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """Return how often each damage was noticed, and how often it was tried.

    ``passed`` names the cells that pass without damage.
    """
    found = {}
    for name, control in CONTROLS.items():
        cells = await collect(control.rows, damage_fixtures(control.damage))
        tried = [cell for cell in cells if cell in passed]
        found[name] = (sum(bool(cells[cell]) for cell in tried), len(tried))
    cells = await check(damage_fixtures(_fail))
    # a check that is no longer observed, or not made, is no longer passed
    tried = [each for each in passed if each[0].startswith("check:") and each[0] != _UNTOUCHED]
    noticed = [each for each in tried if cells.get(each, "not made")]
    found["failures in place of all replies, rows with `check:`"] = (len(noticed), len(tried))
    return found


def run() -> Board:
    """Run every row on every wire."""
    install_node()
    board = Board(
        "aimock",
        TITLE,
        "Dragoman's client against [aimock](https://aimock.copilotkit.dev), a simulator of the vendors' APIs, with a\n"
        "complete and with a streamed reply. The server is theirs; the fixtures and the checks are ours. Plain errors have\n"
        "no type. Rows with `check:` are what `dragoman check` finds of a mock, without what it reports as unsupported or not\n"
        "observed: a mock with one answer to every request proves nothing about system prompts, turns, results and seeds.\n"
        f"`{_UNTOUCHED}` has no damage to notice, since no fixture takes part in it.",
        expected=EXPECTED,
    )
    board.cells = asyncio.run(collect(ROWS, FIXTURES)) | asyncio.run(check(FIXTURES))
    passed = [cell for cell, outcome in board.cells.items() if not outcome]
    board.controls = asyncio.run(try_controls(passed))
    board.versions = {PACKAGE: node_version(PACKAGE)}
    return board
