"""The logger ``dragoman`` reports each call, and its contents at the level DEBUG."""

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

import dragoman as d
from dragoman import connect
from dragoman.provider import call_log
from dragoman.transport import FixtureTransport

from .server import Connection, answering, serve

REPLY = {"choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
         "usage": {"prompt_tokens": 12, "completion_tokens": 34}}  # fmt: skip
BODY = json.dumps(REPLY).encode()
KEY = "a-very-secret-key"


def lines_of(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == level]


async def ask(caplog: pytest.LogCaptureFixture, level: str, prompt: str = "Name a river.") -> None:
    caplog.set_level(level, "dragoman")
    transport = FixtureTransport((200, {}, [BODY]))
    model = connect("m", base_url="http://box.example/v1", api_key=KEY, transport=transport)
    await model.complete(prompt)


async def test_call_is_one_line_at_info(caplog: pytest.LogCaptureFixture) -> None:
    await ask(caplog, "INFO")
    [line] = lines_of(caplog, logging.INFO)
    assert line.startswith("box.example/m at box.example ")
    assert ": 200, " in line
    assert line.endswith(" ms, 12 input tokens, 34 output tokens, attempt 1")
    assert lines_of(caplog, logging.DEBUG) == []


async def test_request_and_reply_are_logged_at_debug_without_the_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await ask(caplog, "DEBUG", f"Name a river. {KEY} " + "x" * 500)
    request, reply = lines_of(caplog, logging.DEBUG)
    assert "POST box.example/v1/chat/completions {" in request
    assert "Name a river." in request
    assert "characters)" in request
    assert '"content": "Hi"' in reply
    assert KEY not in caplog.text


async def test_long_stream_is_logged_by_its_first_and_last_chunks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "dragoman")
    async with (
        serve(answering("word " * 100)) as server,
        connect("m", base_url=server.base_url) as model,
    ):
        async for _ in model.stream("Hi"):
            pass
    _, reply = lines_of(caplog, logging.DEBUG)
    assert '"content": "w"' in reply
    assert "left out)" in reply
    assert '"finish_reason": "stop"' in reply
    assert len(reply) < 4000


async def test_embedding_and_ranking_are_logged_like_chat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "dragoman")
    vectors = {"data": [{"index": 0, "embedding": [0.5] * 300}], "usage": {"prompt_tokens": 7}}
    ranking = {"results": [{"index": 0, "relevance_score": 0.5}]}
    transport = FixtureTransport(
        (200, {}, [json.dumps(vectors).encode()]), (503, {}, [b"{}"]),
        (200, {}, [json.dumps(ranking).encode()]),
    )  # fmt: skip
    at: dict[str, Any] = {"base_url": "http://box.example/v1", "transport": transport}
    embedder = d.connect_embedder("e", api_key=KEY, **at)
    await embedder.embed(f"some text {KEY}")
    with pytest.raises(d.UnavailableError):
        await embedder.embed("more")
    await d.connect_reranker("r", **at).rerank("query", ["document"])
    good, bad, ranked = lines_of(caplog, logging.INFO)
    assert good.startswith("box.example/e at box.example ")
    assert ": 200, " in good
    assert good.endswith(" ms, 7 input tokens, attempt 1")
    assert ": 503, UnavailableError, " in bad
    assert ranked.startswith("box.example/r at box.example ")
    contents = lines_of(caplog, logging.DEBUG)
    assert "POST box.example/v1/embeddings {" in contents[0]
    assert "some text" in contents[0]
    assert len(contents[1]) < 1000
    assert KEY not in caplog.text


async def test_failures_and_attempts_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dragoman")
    transport = FixtureTransport((503, {}, [b"{}"]), (200, {}, [BODY]))
    model = connect("m", base_url="http://box.example/v1", transport=transport)
    await d.Retry(model, backoff=lambda _: 0).complete("Hi")
    failed, again, answered = lines_of(caplog, logging.INFO)
    assert ": attempt 1 failed (server_error); the next in" in again
    assert ": 503, UnavailableError, " in failed
    assert failed.endswith("attempt 1")
    assert answered.endswith("attempt 2")


async def test_cancelled_stream_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dragoman")

    async def answer(connection: Connection) -> None:
        connection.begin_stream()
        chunk = {"choices": [{"delta": {"content": "Hi"}}]}
        connection.chunk(f"data: {json.dumps(chunk)}\n\n".encode())
        await connection.writer.drain()
        await connection.writer.wait_closed()

    async with serve(answer) as server, connect("m", base_url=server.base_url) as model:
        async with model.stream("Hi") as stream:
            async for _ in stream:
                break
        [line] = lines_of(caplog, logging.INFO)
    assert ": 200, cancelled, " in line


async def test_nothing_is_prepared_while_the_log_is_off(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.provider.http_model.CallLine", None)
    await ask(caplog, "WARNING")
    vectors = {"data": [{"index": 0, "embedding": [0.5]}]}
    transport = FixtureTransport((200, {}, [json.dumps(vectors).encode()]))
    embedder = d.connect_embedder("e", base_url="http://box.example/v1", transport=transport)
    await embedder.embed("Hi")
    assert caplog.records == []


PROGRAM = """
import asyncio, dragoman
from dragoman.transport import FixtureTransport
model = dragoman.connect("m", base_url="http://box.example/v1",
                         transport=FixtureTransport((200, {}, [%r])))
asyncio.run(model.complete("Hi"))
"""


@pytest.mark.parametrize(
    ("level", "shown", "hidden"),
    [("info", "attempt 1", "POST"), ("DEBUG", "POST box.example", "nothing")],
)
def test_variable_prints_the_log(level: str, shown: str, hidden: str) -> None:
    environment = {**os.environ, "DRAGOMAN_LOG": level}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % BODY], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stderr
    assert hidden not in done.stderr


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="DRAGOMAN_LOG must be one of debug, info"):
        call_log.print_log("loud")
