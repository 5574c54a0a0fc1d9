"""Test that a hostile MCP server at a URL learns nothing, leaks nothing and takes no memory."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from dragoman.permission import Decision
from dragoman.tools import McpServer, Toolbox, ToolFailure

from ..waiting import PATIENCE, settle, virtual_time

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

TOKEN = "tok-73b1f6c0a9d2"
KEY = "key-in-the-url-51"
TOOL = {"name": "look", "description": "Look.", "inputSchema": {"type": "object"}}
USUAL = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "x", "version": "1"},
    },
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"content": [{"type": "text", "text": "found"}]},
}

Answer = Callable[[web.Request, Any], Any]


@contextlib.asynccontextmanager
async def serve(
    method: str, answer: Answer, pong: Callable[[Any], Any] | None = None
) -> AsyncIterator[McpServer]:
    """Serve MCP; ``answer`` answers one method, ``pong`` the client's answers."""

    async def handle(request: web.Request) -> web.StreamResponse:
        asked = await request.json() if request.can_read_body else {}
        if "id" not in asked:
            return web.Response(status=202 if asked else 405)
        said = {"jsonrpc": "2.0", "id": asked["id"]}
        if "method" not in asked and pong is not None:
            await pong(asked)
            return web.Response(status=202)
        if asked["method"] == method:
            given = answer(request, asked["id"])
            return await given if not isinstance(given, dict) else web.json_response(said | given)
        if asked["method"] not in USUAL:
            return web.json_response(said | {"error": {"code": -32601, "message": "no"}})
        return web.json_response(said | {"result": USUAL[asked["method"]]})

    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    async with TestServer(app) as server:
        yield McpServer(
            f"{server.make_url('/mcp')}?key={KEY}", headers={"Authorization": f"Bearer {TOKEN}"},
            start_timeout=PATIENCE, timeout=PATIENCE,
        )  # fmt: skip


def echo(request: web.Request, _: Any) -> Any:
    return {"error": {"code": -1, "message": f"you sent {dict(request.headers)}"}}


async def call(server: McpServer) -> Any:
    async with server:
        return await Toolbox(server.tools).execute("look", {})


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        yield from chain(error.__cause__)
        error = error.__context__


@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
async def test_failure_has_no_secret_on_any_attribute_of_its_chain(method: str) -> None:
    async with serve(method, echo) as server:
        with pytest.raises(ToolFailure) as caught:
            await call(server)
    assert "Authorization" in str(caught.value)
    for error in chain(caught.value):
        shown = f"{error!r} {error} {error.args} {vars(error)}"
        assert TOKEN not in shown
        assert KEY not in shown


STATUSES = [(401, "Unauthorized"), (403, "Forbidden"), (429, "Too Many Requests"),
            (500, "Internal Server Error"), (502, "Bad Gateway")]  # fmt: skip


METHODS = ["initialize", "tools/list", "tools/call"]
KINDS = ["text/html", "application/json"]
REFUSED = [
    (status, phrase, METHODS[at % 3], KINDS[at % 2])
    for at, (status, phrase) in enumerate([*STATUSES, *STATUSES[::-1]])
]


@pytest.mark.parametrize(("status", "phrase", "method", "kind"), REFUSED)
async def test_failure_names_the_status(status: int, phrase: str, method: str, kind: str) -> None:
    async def refuse() -> web.Response:
        return web.Response(status=status, text='{"detail": "no"}', content_type=kind)

    async with serve(method, lambda *_: refuse()) as server:
        with pytest.raises(ToolFailure) as caught:
            await call(server)
    assert f"HTTP {status} {phrase}" in str(caught.value)
    assert ("headers=" in str(caught.value)) is (status in (401, 403))


async def test_error_in_the_body_of_a_failed_request_is_kept() -> None:
    async def refuse(request_id: Any) -> web.Response:
        error = {"code": -32602, "message": "an argument is wrong"}
        return web.json_response({"jsonrpc": "2.0", "id": request_id, "error": error}, status=400)

    async with serve("tools/call", lambda _, request_id: refuse(request_id)) as server:
        with pytest.raises(ToolFailure, match="an argument is wrong"):
            await call(server)


ODD: list[dict[str, Any]] = [
    {"$ref": "https://a.test/schema.json"}, {"$ref": "#/$defs/none"}, {"type": "money"},
    {"type": "string", "pattern": "("}, {"type": "string", "required": True},
]  # fmt: skip


async def test_tool_with_an_unusable_schema_is_refused() -> None:
    odd = [
        {"name": f"odd-{at}", "inputSchema": {"type": "object", "properties": {"a": each}}}
        for at, each in enumerate(ODD)
    ]
    async with serve("tools/list", result(tools=[*odd, TOOL])) as server:
        seen = await call(server)
        assert [tool.name for tool in server.tools] == ["look"]
        for tool, refusal in zip(odd, server.refused, strict=True):
            assert f"the tool '{tool['name']}' is refused: " in refusal
    assert seen.content == "found"


def stream(part: bytes, kind: str) -> Answer:
    """Return an answer that repeats a part until the client closes the connection."""

    async def send(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(part)
        return response

    return lambda request, _: send(request)


def compressed(request: web.Request, request_id: Any) -> Any:
    async def send() -> web.Response:
        said = {"jsonrpc": "2.0", "id": request_id, "result": {"text": "x" * 5_000_000}}
        data = gzip.compress(json.dumps(said).encode())
        return web.Response(
            body=data,
            headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
        )

    return send()


def result(**fields: Any) -> Answer:
    return lambda request, _: {"result": fields}


def pages(request: web.Request, _: Any) -> Any:
    tool = {**TOOL, "description": "x" * 1_000_000}
    return {"result": {"tools": [tool], "nextCursor": "more"}}


EMPTY = {"type": "text", "text": ""}
PARAMETERS = {"level": "info", "data": "x" * 60_000}
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": PARAMETERS}
EVENT = f"data: {json.dumps(NOTE)}\n\n".encode()
LONG = "more than 4,194,304 bytes"
EXCESS: dict[str, tuple[Answer, str]] = {
    "endless JSON": (stream(b"[" + b" " * 65536, "application/json"), LONG),
    "endless events": (stream(EVENT, "text/event-stream"), "ended without"),
    "gzip": (compressed, "the reply is compressed"),
    "1,001 tools": (result(tools=[TOOL] * 1001), "length <= 1000"),
    "1,001 texts": (result(content=[EMPTY] * 1001), "length <= 1000"),
}


@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
@pytest.mark.parametrize("name", EXCESS)
async def test_excessive_reply_is_refused_while_it_arrives(name: str, method: str) -> None:
    answer, reason = EXCESS[name]
    async with serve(method, answer) as server:
        with pytest.raises(ToolFailure, match=reason):
            await call(server)


async def test_pages_of_tools_are_limited_together() -> None:
    async with serve("tools/list", pages) as server:
        with pytest.raises(ToolFailure, match="4,194,304 bytes of them"):
            await call(server)


async def test_calls_continue_after_an_excessive_reply() -> None:
    answers = iter([result(content=[EMPTY] * 1001), result(content=[EMPTY] * 1000)])
    async with (
        serve("tools/call", lambda *given: next(answers)(*given)) as server,
        server,
    ):
        box = Toolbox(server.tools)
        with pytest.raises(ToolFailure):
            await box.execute("look", {})
        assert (await box.execute("look", {})).content == "\n" * 999


async def test_events_with_too_many_blocks_are_refused() -> None:
    async def send(request_id: Any) -> web.Response:
        said = {"jsonrpc": "2.0", "id": request_id, "result": {"content": [EMPTY] * 1001}}
        text = f"data: {json.dumps(said)}\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    async with serve("tools/call", lambda _, request_id: send(request_id)) as server:
        with pytest.raises(ToolFailure, match="more than 1,000 blocks"):
            await call(server)


async def test_pings_whose_answers_are_not_read_start_no_tasks() -> None:
    ping = b'data: {"jsonrpc": "2.0", "id": "mine", "method": "ping"}\n\n'
    pongs = asyncio.Event()
    silence = asyncio.Event()
    tasks = list[int]()

    async def send(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(200):
            await response.write(ping)
        await pongs.wait()
        await settle()
        tasks.append(len(asyncio.all_tasks()))
        silence.set()
        return response

    def pong(_: Any) -> Any:
        pongs.set()
        return silence.wait()

    async with serve("tools/call", lambda request, _: send(request), pong) as server:
        with pytest.raises(ToolFailure, match="ended without"):
            await call(server)
    assert tasks[0] < 50


async def test_question_of_an_older_server_is_asked_once_at_a_time() -> None:
    """A second question is refused while the first is open, so that no tasks are started."""
    form = {"type": "object", "properties": {"name": {"type": "string", "default": "Ann"}}}
    answers: asyncio.Queue[Any] = asyncio.Queue()

    async def send(request: web.Request, request_id: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in (1, 2):
            asked = {"message": "Who?", "requestedSchema": form}
            question = {"jsonrpc": "2.0", "id": number, "method": "elicitation/create"}
            await response.write(f"data: {json.dumps(question | {'params': asked})}\n\n".encode())
        given = [await answers.get(), await answers.get()]
        content = [
            {"type": "text", "text": json.dumps(sorted(given, key=lambda each: each["id"]))}
        ]
        said = {"jsonrpc": "2.0", "id": request_id, "result": {"content": content}}
        await response.write(f"data: {json.dumps(said)}\n\n".encode())
        return response

    async def approve(question: dict[str, Any]) -> Decision:
        return Decision(True, "ann")

    async with serve("tools/call", send, answers.put) as server, server:
        seen = await Toolbox(server.tools).execute("look", {}, ask=approve)
    first, second = json.loads(str(seen.content))
    assert first["result"] == {"action": "accept", "content": {"name": "Ann"}}
    assert second["error"]["code"] == -32601
    assert [each["answer"] for each in seen.details["questions"]] == [{"name": "Ann"}]


async def test_question_that_the_approver_fails_to_answer_is_refused_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: asyncio.Queue[Any] = asyncio.Queue()

    async def send(request: web.Request, request_id: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        asked = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
        question = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": asked}
        await response.write(f"data: {json.dumps(question)}\n\n".encode())
        content = [{"type": "text", "text": json.dumps(await answers.get())}]
        said = {"jsonrpc": "2.0", "id": request_id, "result": {"content": content}}
        await response.write(f"data: {json.dumps(said)}\n\n".encode())
        return response

    async def approve(question: dict[str, Any]) -> Decision:
        raise RuntimeError("no terminal")

    async with serve("tools/call", send, answers.put) as server, server:
        seen = await Toolbox(server.tools).execute("look", {}, ask=approve)
    assert json.loads(str(seen.content))["error"]["code"] == -32603
    assert "no terminal" in caplog.text


async def test_opening_a_silent_server_ends_at_its_deadline() -> None:
    loop = asyncio.get_running_loop()
    silence = asyncio.Event()

    async def wait() -> web.Response:
        await silence.wait()
        return web.Response()

    async with serve("initialize", lambda *_: wait()) as server:
        with virtual_time():
            began = loop.time()
            with pytest.raises(ToolFailure, match="not ready after"):
                await server.open()
            assert loop.time() - began < PATIENCE + 5
        silence.set()
