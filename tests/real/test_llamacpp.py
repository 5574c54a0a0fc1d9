"""Test a real llama.cpp server, with a random-weight model and the embedded model."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

import dragoman as d
import dragoman.local
from dragoman.local import LocalServer, LocalServerError, find_model, pull_model

from ..ports import find_free_port
from ..waiting import arrival, block_until, poll

SHORT = {"max_tokens": 12, "temperature": 0.8, "seed": 7}


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[tuple[str, str]]:
    running = LocalServer(tiny, alias="tiny", context=512)
    url = running.start()
    yield url, running.key
    running.stop()


@pytest.fixture
def model(server: tuple[str, str]) -> d.Provider:
    return d.connect("tiny", base_url=server[0], api_key=server[1])


async def test_real_server_is_ready_and_returns_complete_and_streamed_replies(
    model: d.Provider,
) -> None:
    async with model:
        await model.ready()
        whole = await model.complete("Hello", config=SHORT)
        stream = model.stream("Hello", config=SHORT)
        events = [event async for event in stream]
    d.check_events(events)
    assert whole.finish_reason == "length"
    assert whole.usage.output_tokens == 12
    assert whole.usage.input_tokens is not None
    assert stream.response is not None
    assert stream.response.usage.output_tokens == 12
    assert stream.response.raw["chunks"][-1]["usage"]["completion_tokens"] == 12
    assert whole.raw["object"] == "chat.completion"


async def test_structured_output_is_enforced_by_the_server(model: d.Provider) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    async with model:
        response = await model.complete(
            "Yes?", config={"max_tokens": 200, "seed": 1}, response_schema=schema
        )
    assert response.structured_path == "native"
    assert response.parsed["ok"] in (True, False)


async def test_cancelling_a_call_stops_generation_on_the_server(model: d.Provider) -> None:
    async with model:
        stream = model.stream("Hello", config={"max_tokens": 100_000, "seed": 3})
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if sum(isinstance(each, d.TextDelta) for each in events) == 3:
                await stream.cancel()
        d.check_events(events)
        assert events[-1].finish_reason == "cancelled"
        # The server's slot is free again, so a complete call is served at once.
        assert (
            await arrival(model.complete("Hello", config=SHORT), "a reply")
        ).usage.output_tokens == 12


async def test_context_overflow_is_reported_for_streams_and_complete_replies(
    model: d.Provider,
) -> None:
    async with model:
        long = "word " * 3000
        with pytest.raises(d.ContextOverflowError) as caught:
            await model.complete(long, config=SHORT)
        with pytest.raises(d.ContextOverflowError):
            _ = [event async for event in model.stream(long, config=SHORT)]
    assert caught.value.status == 400
    assert caught.value.provider_code == "400"


async def test_wrong_key_is_rejected_by_the_local_server(server: tuple[str, str]) -> None:
    async with d.connect("tiny", base_url=server[0], api_key="wrong-key-0123456789") as model:
        for call in (model.ready(), model.complete("Hello")):
            with pytest.raises(d.AuthenticationError) as caught:
                await call
            assert caught.value.status == 401


async def test_one_hundred_sequential_calls_succeed(model: d.Provider) -> None:
    """Alternate between streams and complete replies, so that a connection that is left
    half-closed would be noticed.
    """
    async with model:
        for turn in range(50):
            stream = model.stream("Hi", config={"max_tokens": 2, "seed": turn})
            _ = [event async for event in stream]
            response = await model.complete("Hi", config={"max_tokens": 2, "seed": turn})
            assert response.usage.output_tokens == 2


# --- tests with the embedded model -------------------------------------------------------------


async def test_server_is_not_ready_while_the_model_is_loading() -> None:
    port = find_free_port()
    running = LocalServer((await asyncio.to_thread(pull_model)).path, alias="smol", port=port)
    running.launch()
    seen: set[type] = set()

    async def is_ready(model: d.Provider) -> bool:
        try:
            await model.ready()
        except (d.NetworkError, d.ModelNotLoadedError) as error:
            seen.add(type(error))
            return False
        return True

    try:
        async with d.connect(
            "smol", base_url=f"http://127.0.0.1:{port}", api_key=running.key
        ) as model:
            await poll(lambda: is_ready(model), bool, "the model to be loaded")
    finally:
        running.stop()
    assert d.ModelNotLoadedError in seen


async def test_the_embedded_model_answers() -> None:
    """Request a reply with the provider's default settings: one thread, a system prompt, and a
    temperature of 0.2.
    """
    async with d.connect("local") as model:
        await model.ready()
        reply = await model.complete("What is the capital of France?")
        assert "Paris" in reply.text
        assert reply.provider == "local"
        assert reply.finish_reason == "stop"
        assert model.plan("Hi").items[0].outcome == "kept"


async def test_the_local_server_uses_one_thread_by_default(tiny: Path) -> None:
    """If llama.cpp uses several threads, they wait for each other in busy loops, which makes it
    ten times slower on a busy machine.
    """
    running: dict[int | None, int] = {}
    for threads in (None, 5):
        server = (
            LocalServer(tiny, context=512)
            if threads is None
            else LocalServer(tiny, context=512, threads=threads)
        )
        try:
            async with d.connect(
                "tiny", base_url=await asyncio.to_thread(server.start), api_key=server.key
            ) as model:
                await model.complete("Hello", config={"max_tokens": 2})
            assert server._process is not None  # noqa: SLF001 - the process whose threads are counted
            # Count the threads of the server process.
            running[threads] = psutil.Process(server._process.pid).num_threads()  # noqa: SLF001
        finally:
            server.stop()
    assert running[5] == running[None] + 4


TEMPLATE = (Path(dragoman.local.__file__).parent / "fenced_calls.jinja").read_text()
CONVERSATION = {
    "messages": [
        {"role": "user", "content": "Read it."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function",
                            "function": {"name": "read", "arguments": '{"path": "a"}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "hello"},
    ],
    "tools": [{"type": "function",
               "function": {"name": "read", "description": "Read a file.", "parameters": {}}}],
}  # fmt: skip


async def test_chat_template_option_replaces_the_template_in_the_model_file(tiny: Path) -> None:
    plain = LocalServer(tiny, context=512)
    fenced = LocalServer(tiny, context=512, template=TEMPLATE, key="")
    try:
        plain.start()
        address = fenced.start()
        assert plain.calls == "schema"
        assert fenced.calls == "native"
        async with aiohttp.ClientSession(address) as client:
            reply = await client.post("/apply-template", json=CONVERSATION)
            prompt = (await reply.json())["prompt"]
    finally:
        plain.stop()
        fenced.stop()
    assert '"name": "read", "description": "Read a file."' in prompt
    assert (
        '<|im_start|>assistant\n```json\n{"name": "read", "arguments": {"path": '
        '"a"}}\n```<|im_end|>' in prompt
    )
    assert "<tool_response>\nhello\n</tool_response>" in prompt
    assert prompt.endswith("<|im_start|>assistant\n")


HAS_CALLER = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1" and find_model("qwen").path.exists()


@pytest.mark.exhaustive
@pytest.mark.skipif(
    not HAS_CALLER, reason="takes a minute, and needs dragoman local pull qwen (1.1 GB)"
)
async def test_a_small_model_calls_a_tool_and_uses_its_result() -> None:
    weather = d.Tool(
        "get_weather",
        "Get the weather of a city.",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    )
    async with d.connect("local:qwen") as model:
        asked = d.User("What is the weather in Paris?")
        first = await model.complete([asked], [weather], {"seed": 1})
        assert [(call.name, call.arguments) for call in first.tool_calls] == [
            ("get_weather", {"city": "Paris"})
        ]
        result = d.ToolResult(first.tool_calls[0].id, "Sunny, 21 degrees.")
        second = await model.complete([asked, first.message, result], [weather], {"seed": 1})
        assert second.tool_calls == ()
        assert "21" in second.text
        greeting = await model.complete("Hello, who are you?", [weather], {"seed": 1})
        assert greeting.tool_calls == ()
        assert greeting.finish_reason == "stop"


async def test_error_for_a_model_that_was_not_pulled_gives_advice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    async with d.connect("local:qwen") as model:
        with pytest.raises(d.ModelNotLoadedError) as caught:
            await model.complete("Hi")
    assert str(caught.value).endswith(
        "has not been pulled; run: dragoman local pull qwen (1,117 MB)"
    )
    assert not caught.value.transient  # not transient, so Retry does not wait for the model


async def test_model_file_of_the_user_works_and_a_missing_file_is_reported(
    tiny: Path, tmp_path: Path
) -> None:
    async with d.connect(f"local:{tiny}") as model:
        assert model.model == "tiny"
        assert (await model.complete("Hi", config={"max_tokens": 3})).usage.output_tokens == 3
    async with d.connect(f"local:{tmp_path / 'nothing.gguf'}") as model:
        with pytest.raises(d.ModelNotLoadedError, match="does not exist"):
            await model.complete("Hi")
    (tmp_path / "broken.gguf").write_bytes(b"GGUFnonsense")
    async with d.connect(f"local:{tmp_path / 'broken.gguf'}") as model:
        with pytest.raises(d.ModelNotLoadedError, match="did not start"):
            await model.complete("Hi")


async def test_a_local_server_that_died_is_started_again(tiny: Path) -> None:
    me = psutil.Process()
    before = set(me.children())
    async with d.connect(f"local:{tiny}") as model:
        await model.complete("Hi", config=SHORT)
        opened = me.num_fds()
        for _ in range(2):
            [server] = set(me.children()) - before
            server.kill()
            server.wait()
            await model.complete("Hi", config=SHORT)
        assert me.num_fds() == opened


def test_the_local_server_ends_with_its_parent_process(tiny: Path) -> None:
    script = (
        "import sys, time; from dragoman.local import LocalServer\ns = "
        f"LocalServer({str(tiny)!r}); s.start(); print(s._process.pid, flush=True); "
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        block_until(lambda: not _runs(child), "the end of the server")
    finally:
        parent.kill()
        parent.stdout.close()  # type: ignore[union-attr]
        parent.wait()


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_error_for_a_missing_extra_names_the_package_to_install(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LocalServerError, match=r"dragoman\[local\]"):
        LocalServer(tiny).start()
