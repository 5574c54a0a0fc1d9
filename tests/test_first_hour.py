"""Type what people try in their first hour, mistakes included, and read the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import dragoman as d
from dragoman.cli import main
from dragoman.tools import tool

from .listed import Listed
from .server import Connection, answering, serve
from .test_sync import Background

PNG = d.Image(b"\x89PNG\r\n\x1a\n")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_text_and_image_in_a_list_are_one_message() -> None:
    model = Listed("A cat.")
    await model.complete(["What is this?", PNG])
    assert model.requests[0].messages == (d.User("What is this?", PNG),)


async def test_decorated_function_is_offered_to_the_model_and_can_be_called() -> None:
    model = Listed("5")
    await model.complete("2 + 3?", tools=[add])
    assert model.requests[0].tools == (add.description,)
    assert add(2, 3) == 5


def test_synchronous_call_in_a_coroutine_warns() -> None:
    model = d.sync.SyncProvider(Listed("Hi", repeat=True))

    async def block() -> str:
        return model.complete("Hi").text

    with pytest.warns(RuntimeWarning, match="blocks the running event loop"):
        assert asyncio.run(block()) == "Hi"


def bare(a):  # type: ignore[no-untyped-def]
    """Do nothing."""


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "stream=True": (lambda m: m.complete("x", stream=True), "call .stream(...) in place of"),
    "images=": (lambda m: m.complete("x", images=[PNG]), 'User("...", Image("photo.png"))'),
    "timeout= of a call": (lambda m: m.complete("x", timeout=5), "pass timeouts= to connect()"),
    "max_tokens=-1": (lambda m: m.complete("x", max_tokens=-1), "max_tokens must be at least 1"),
    "a tool without hints": (
        lambda m: m.complete("x", tools=[bare]),
        "the parameter a has no type hint, which the model needs; write for example a: str",
    ),
    "texts in a list": (lambda m: m.complete(["x", "y"]), "write User(...) around it"),
    "cache by position": (
        lambda m: m.complete([d.User("x", True)]),  # type: ignore[arg-type]
        "messages[0].content[1] must be text, an Image, a Document or an Audio, not bool",
    ),
    "timeout= of connect": (lambda _: d.connect("m", timeout=5), "did you mean timeouts?"),  # type: ignore[arg-type]
    "LiteLLM's form of names": (
        lambda _: d.connect("anthropic/claude-sonnet-4-6"),
        "did you mean anthropic:claude-sonnet-4-6?",
    ),
    "a name without a vendor": (lambda _: d.connect("gpt-5"), "did you mean openai:gpt-5 or"),
}


@pytest.mark.parametrize(("call", "hint"), MISTAKES.values(), ids=MISTAKES)
async def test_mistake_is_answered_with_what_to_write(
    call: Callable[[Any], Any], hint: str
) -> None:
    with pytest.raises((TypeError, d.ProviderError)) as caught:
        await call(Listed("Hi"))
    assert hint in str(caught.value)
    assert "would be refused again" not in str(caught.value)


async def test_stream_used_without_async_names_the_right_form() -> None:
    stream: Any = Listed("Hi").stream("x")
    with pytest.raises(TypeError, match="use 'async for'"):
        list(stream)
    with pytest.raises(TypeError, match=r"use 'async with', or dragoman\.sync"), stream:
        pass
    with pytest.raises(TypeError, match="use 'async for event in stream'"):
        await stream
    await stream.aclose()


PAGE = b"<!doctype html><html><head><title>Sign in\n to Corp</title></head></html>"
REPLIES: dict[str, tuple[int, bytes, dict[str, str], str]] = {
    "a login page": (200, PAGE, {}, "an HTML page came instead of a reply, with the title 'Sign in to Corp'"),
    "a page without a title": (200, b"\n<html></html>", {}, "an HTML page came instead of a reply. "),
    "a wrong path": (404, b'{"detail": "Not Found"}', {}, "Check base_url: {url}/v2/chat/completions was asked."),
    "a redirect": (301, b"", {"location": "https://u:pw@other.test/v1?key=secret"},
                   "It redirects to https://other.test/v1. Check base_url: {url}/v2/chat/completions was asked."),
}  # fmt: skip


@pytest.mark.parametrize(("status", "body", "headers", "text"), REPLIES.values(), ids=REPLIES)
async def test_reply_of_something_else_than_a_model_is_explained(
    status: int, body: bytes, headers: dict[str, str], text: str
) -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(status, body, "text/html", **headers)

    async with (
        serve(answer) as server,
        d.connect("m", base_url=f"{server.url}/v2") as model,
    ):
        with pytest.raises(d.ProviderError) as caught:
            await model.complete("x")
        assert text.format(url=server.url) in str(caught.value)
        assert "secret" not in str(caught.value)


async def test_call_that_never_left_the_machine_is_not_charged() -> None:
    async with d.connect(
        "m", base_url="http://nowhere.invalid/v1", priced_as="openai:gpt-5"
    ) as model:
        stream = model.stream("Hello there")
        with pytest.raises(d.NetworkError):
            await anext(aiter(stream))
        [*_, end] = stream.reply.cancel()
    assert isinstance(end, d.MessageComplete)
    assert end.usage == stream.reply.usage == d.Usage()


# --- the command line --------------------------------------------------------------------------


def run(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(main, words, env=variables)


def test_ask_takes_model_and_system_prompt_as_options_and_continues(tmp_path: Path) -> None:
    where = {"DRAGOMAN_LOG": str(tmp_path / "log.db")}
    with Background(answering("Hello")) as server:
        first = run(
            "ask", "-m", "m", "-s", "Be brief.", "Hi", "--base-url", server.base_url, **where
        )
        second = run("ask", "-c", "And then?", **where)
        bodies = [request.json for request in server.requests]
    assert (first.exit_code, second.exit_code) == (0, 0), second.stderr
    talk = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "And then?")]
    for body, count in zip(bodies, (2, 4), strict=True):
        assert body["model"] == "m"
        assert [(each["role"], each["content"]) for each in body["messages"]] == talk[:count]


COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "a misspelt command": (["aks", "Hi"], 2, "No such command 'aks'. Did you mean 'ask'?"),
    "an unlike command": (["xyzzy"], 2, "No such command 'xyzzy'.\n"),
    "the model twice": (["ask", "-m", "m", "m", "Hi"], 2, "named twice: by MODEL and by -m"),
    "the model twice in a chat": (["chat", "-m", "m", "m"], 2, "named twice: by MODEL and by -m"),
    "nothing to continue": (["ask", "-c", "Hi"], 20, "no log exists here"),
    "a search for models": (["models", "search", "gemini-2.5-pro"], 0, "google:gemini-2.5-pro"),
    "the path of models.yaml": (["config", "path"], 0, "models.yaml"),
}


@pytest.mark.parametrize(("words", "code", "text"), COMMANDS.values(), ids=COMMANDS)
def test_command_of_a_newcomer_works_or_names_the_right_one(
    words: list[str], code: int, text: str, tmp_path: Path
) -> None:
    result = run(*words, DRAGOMAN_LOG=str(tmp_path / "log.db"))
    assert (result.exit_code, text in result.output) == (code, True), result.output
