"""Calls of LiteLLM side by side: what is sent and what is returned by ``dragoman.compat.litellm``."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.transport.serving import serving

from .board import Board
from .install import PYTHON_PACKAGES, ROOT, install_python

TITLE = "LiteLLM's calls"
PACKAGE = "litellm"
PROGRAM = Path(__file__).with_name("litellm_program.py")
SENT = "sent"
RETURNED = "returned"
NONE = "none"  # the damage of the calls that are compared
_CALLS = "an absent text is sent as `null`, and arguments without spaces"
_USAGE = "the counts of tokens of a stream are always asked for"
_NARROWER = "a narrower class than LiteLLM's, which has the same name as OpenAI's"
EXPECTED = {
    ("max_tokens", SENT): "sent as `max_completion_tokens`, which every model of OpenAI takes",
    ("sampling", SENT): "LiteLLM drops `user` for a model that it does not know",
    ("several choices", "*"): "`n` above 1 is refused, because a reply has one choice",
    ("get_supported_openai_params", RETURNED): "`n` above 1 is refused",
    ("response class", SENT): "`strict` is not added, because it changes the schema of the class",
    ("response schema", SENT): "the name of a schema is sent as its `title` too",
    ("result of a tool", SENT): _CALLS,
    ("message sent back", SENT): _CALLS,
    ("stream", SENT): _USAGE,
    ("rebuilt stream", SENT): _USAGE,
    ("streamed tool call", SENT): _USAGE,
    ("astream", SENT): _USAGE,
    ("text_completion", SENT): "the prompt is sent as the message of a user",
    ("responses", SENT): "sent to Chat Completions, as the wire of the model",
    ("embedding", SENT): "vectors are asked for in base64, a quarter of the bytes",
    ("status 403", RETURNED): _NARROWER,
    ("status 422", RETURNED): _NARROWER,
    (
        "refused connection",
        RETURNED,
    ): "`APIConnectionError`; LiteLLM calls it a failure of the server",
    (
        "completion_cost",
        RETURNED,
    ): "LiteLLM returns 0 for the reply of a model without a price, also with `model=`",
}
Body = dict[str, Any]
Damage = Callable[[Body], None]


class Server:
    """A model of OpenAI's API that keeps the requests of each call.

    The first part of a path is the name of a damage to replies, the second one the name of a call.
    """

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, list[tuple[str, Body]]]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        _, damage, call, path = scope["path"].split("/", 3)
        request = json.loads(body)
        known = self.requests.setdefault(damage, {}).setdefault(call, [])
        known.append((path, request))
        status = _find_status(call, request)
        reply = _fail() if status != 200 else answer(path, request)
        REPLY_DAMAGES.get(damage, _leave)(reply)
        is_stream = status == 200 and bool(request.get("stream"))
        data = _write_stream(reply) if is_stream else json.dumps(reply).encode()
        kind = b"text/event-stream" if is_stream else b"application/json"
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", kind), (b"content-length", b"%d" % len(data))],
            }
        )
        await send({"type": "http.response.body", "body": data})


def _find_status(call: str, request: Body) -> int:
    """Return the status that the address of a call asks for."""
    if call == "fallbacks":
        return 503 if request["model"] == "sim-1" else 200
    return int(call.removeprefix("status-")) if call.startswith("status-") else 200


def _fail() -> Body:
    return {"error": {"message": "no", "type": "error", "param": None, "code": None}}


def answer(path: str, request: Body) -> Body:
    """Return the reply to a request, which depends on what was asked."""
    model = request["model"]
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    if path == "v1/embeddings":
        vectors = [[0.5, -0.25, float(at)] for at in range(len(request["input"]))]
        data = [
            {"object": "embedding", "index": at, "embedding": each}
            for at, each in enumerate(vectors)
        ]
        return {"object": "list", "data": data, "model": model, "usage": usage}
    base = {"id": "reply-1", "created": 1790000000, "model": model, "usage": usage}
    if path == "v1/completions":
        choice = {"index": 0, "text": "Hello.", "finish_reason": "stop", "logprobs": None}
        return {**base, "object": "text_completion", "choices": [choice]}
    if path == "v1/responses":
        part = {"type": "output_text", "text": "Hello.", "annotations": []}
        item = {
            "type": "message", "id": "m1", "role": "assistant", "status": "completed",
            "content": [part],
        }  # fmt: skip
        counts = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
        return {
            "id": "resp_1", "object": "response", "created_at": 1790000000, "model": model,
            "status": "completed", "output": [item], "usage": counts, "tools": [], "metadata": {},
            "parallel_tool_calls": True, "tool_choice": "auto", "temperature": 1, "top_p": 1,
            "error": None, "incomplete_details": None, "instructions": None,
        }  # fmt: skip
    message: Body = {"role": "assistant", "content": "Hello."}
    finish = (
        "length" if request.get("max_tokens", request.get("max_completion_tokens")) else "stop"
    )
    arguments = '{"city": "Oslo", "days": 2}'
    is_forced = request.get("tool_choice") not in (None, "auto", "none")
    if is_forced:
        function = {"name": "get_weather", "arguments": arguments}
        call = {"id": "call_1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        finish = "tool_calls"
    elif request.get("function_call") not in (None, "auto", "none"):
        function = {"name": "get_weather", "arguments": arguments}
        message = {"role": "assistant", "content": None, "function_call": function}
        finish = "function_call"
    elif request.get("response_format"):
        message["content"] = '{"name": "Oslo"}'
    choices = [
        {"index": at, "message": copy.deepcopy(message), "finish_reason": finish, "logprobs": None}
        for at in range(request.get("n") or 1)
    ]
    return {**base, "object": "chat.completion", "choices": choices}


def _write_stream(reply: Body) -> bytes:
    """Return a chat reply as the events of a stream."""
    base = {key: reply[key] for key in ("id", "created", "model")}
    base["object"] = "chat.completion.chunk"
    events = []
    for choice in reply["choices"]:
        message = choice["message"]
        deltas: list[Body] = [{"role": message["role"], "content": ""}]
        text = message["content"] or ""
        deltas += [{"content": part} for part in (text[:2], text[2:]) if part]
        for at, call in enumerate(message.get("tool_calls", ())):
            name = call["function"]["name"]
            arguments = call["function"]["arguments"]
            begin = {"name": name, "arguments": arguments[:4]}
            deltas += [
                {"tool_calls": [{**call, "index": at, "function": begin}]},
                {"tool_calls": [{"index": at, "function": {"arguments": arguments[4:]}}]},
            ]
        index = choice["index"]
        events += [{"index": index, "delta": each, "finish_reason": None} for each in deltas]
        events.append({"index": index, "delta": {}, "finish_reason": choice["finish_reason"]})
    chunks = [{**base, "choices": [event]} for event in events]
    chunks.append({**base, "choices": [], "usage": reply["usage"]})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def _leave(reply: Body) -> None:
    """Change nothing."""


def _each_message(reply: Body) -> list[Body]:
    return [choice["message"] for choice in reply.get("choices", ()) if "message" in choice]


def _change_text(reply: Body) -> None:
    for message in _each_message(reply):
        if message["content"]:
            message["content"] = message["content"].replace("Hello", "Hullo")


def _change_finish(reply: Body) -> None:
    for choice in reply.get("choices", ()):
        choice["finish_reason"] = "content_filter"


def _change_calls(reply: Body, change: Callable[[Body], None]) -> None:
    for message in _each_message(reply):
        for call in message.get("tool_calls", ()):
            change(call)


def _rename_calls(reply: Body) -> None:
    _change_calls(reply, lambda call: call["function"].update(name="get_climate"))


def _change_arguments(reply: Body) -> None:
    text = '{"city": "Rome", "days": 2}'
    _change_calls(reply, lambda call: call["function"].update(arguments=text))


def _change_ids(reply: Body) -> None:
    _change_calls(reply, lambda call: call.update(id="call_2"))


def _change_usage(reply: Body) -> None:
    for name, count in reply.get("usage", {}).items():
        reply["usage"][name] = count + (2 if name == "total_tokens" else 1)


def _change_vectors(reply: Body) -> None:
    for each in reply.get("data", ()):
        each["embedding"] = [1.0, 1.0, 1.0]


REPLY_DAMAGES: dict[str, Damage] = {
    "text-changed": _change_text,
    "finish-reason-changed": _change_finish,
    "call-renamed": _rename_calls,
    "arguments-changed": _change_arguments,
    "id-of-a-call-changed": _change_ids,
    "usage-changed": _change_usage,
    "vectors-changed": _change_vectors,
}


class Run(NamedTuple):
    """What the calls of one library returned and sent, by damage and call."""

    returned: dict[str, dict[str, Any]]
    sent: dict[str, dict[str, list[tuple[str, Body]]]]


async def make_calls(python: str, library: str) -> Run:
    """Make all calls with one library, without damage and with each, in a process of its own."""
    server = Server()
    settings = {
        key: text for key, text in os.environ.items() if not key.endswith(("_KEY", "_TOKEN"))
    }
    settings["PYTHONPATH"] = str(ROOT / "src")
    damages = [NONE, *REPLY_DAMAGES]
    async with serving(server) as url:
        urls = [f"{url}/{damage}" for damage in damages]
        process = await asyncio.create_subprocess_exec(
            python, "-P", str(PROGRAM), library, *urls,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=settings,
        )  # fmt: skip
        printed, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(errors.decode(errors="replace")[-2000:])
    by_url = json.loads(printed.splitlines()[-1])
    returned = {damage: by_url[url] for damage, url in zip(damages, urls, strict=True)}
    return Run(returned, server.requests)


def compare(mine: Any, theirs: Any) -> str:
    """Return an empty text, or how two values differ."""
    if mine == theirs:
        return ""
    return f"{json.dumps(mine)[:140]}, LiteLLM: {json.dumps(theirs)[:140]}"


def simplify(requests: list[tuple[str, Body]]) -> list[Any]:
    """Return requests without their empty fields."""
    return [
        [path, {name: field for name, field in request.items() if field not in (None, [], {})}]
        for path, request in requests
    ]


def _change_sent_text(request: Body) -> None:
    for message in request.get("messages", ()):
        if isinstance(message["content"], str):
            message["content"] += "!"


def _remove_sent_tools(request: Body) -> None:
    request.pop("tools", None)
    request.pop("functions", None)


def _rename_sent_model(request: Body) -> None:
    request["model"] += "-x"


def _remove_settings(request: Body) -> None:
    for name in [*request]:
        if name not in ("model", "messages", "tools", "functions", "input", "stream"):
            del request[name]


REQUEST_DAMAGES: dict[str, Damage] = {
    "sent text changed": _change_sent_text,
    "sent tools removed": _remove_sent_tools,
    "sent model renamed": _rename_sent_model,
    "sent settings removed": _remove_settings,
}


def try_controls(board: Board, mine: Run, theirs: Run) -> None:
    """Damage replies and requests of Dragoman's calls, and count how often it is noticed.

    Only calls that are equal without it are tried: with a damage of a reply those whose result it
    changes with LiteLLM, and with one of a request those whose request it changes.
    """
    whole = theirs.returned[NONE]
    for damage in REPLY_DAMAGES:
        tried = [
            name
            for name in whole
            if theirs.returned[damage][name] != whole[name] == mine.returned[NONE][name]
        ]
        noticed = [name for name in tried if compare(mine.returned[damage][name], whole[name])]
        board.controls[damage.replace("-", " ")] = (len(noticed), len(tried))
    for title, change in REQUEST_DAMAGES.items():
        count = 0
        missed = 0
        for place, requests in mine.sent[NONE].items():
            wanted = simplify(theirs.sent[NONE].get(place, []))
            if simplify(requests) != wanted:
                continue
            damaged = copy.deepcopy(requests)
            for _, request in damaged:
                change(request)
            if damaged != requests:
                count += 1
                missed += simplify(damaged) == wanted
        board.controls[title] = (count - missed, count)


def fill(board: Board, mine: Run, theirs: Run) -> None:
    """Compare what the calls returned, and what they sent."""
    for name, returned in theirs.returned[NONE].items():
        board.cells[name, RETURNED] = compare(mine.returned[NONE][name], returned)
        place = name.replace(" ", "-")
        if requests := theirs.sent[NONE].get(place):
            board.cells[name, SENT] = compare(
                simplify(mine.sent[NONE].get(place, [])), simplify(requests)
            )
    try_controls(board, mine, theirs)


def run() -> Board:
    """Make each call with LiteLLM and with Dragoman's module of the same functions."""
    python = install_python(PACKAGE)
    board = Board(
        "litellm_calls",
        TITLE,
        "The same calls with LiteLLM and with `dragoman.compat.litellm`, to a server that keeps the requests: what a call\n"
        "returns (texts, roles, tool calls with their ids, reasons of the end, counts of tokens, or the class of the error)\n"
        "and what it sends (path and body, without empty fields) must be equal. Ids and times of replies are left out, and\n"
        "what LiteLLM reads from the internet: `encode`, `decode`, and a call of a vendor without a key.",
        versions={PACKAGE: PYTHON_PACKAGES[PACKAGE]},
        expected=EXPECTED,
    )
    theirs = asyncio.run(make_calls(python, "litellm"))
    mine = asyncio.run(make_calls(sys.executable, "dragoman"))
    fill(board, mine, theirs)
    return board
