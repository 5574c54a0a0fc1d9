"""Test the simulator on a real socket: every wire and every fault, with the same scripts."""

import asyncio
import http.client
import json
import logging
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from click.testing import CliRunner

import dragoman as d
from dragoman.cli import main
from dragoman.sim import (
    Answer,
    Call,
    Fault,
    RequestMatch,
    Script,
    ScriptedProvider,
    ScriptRule,
    SimServer,
    serve,
)
from dragoman.sim import server as server_module
from dragoman.wire import SERVER_CODECS

from ..listed import collect
from ..waiting import PATIENCE, until, virtual_time

WIRES = sorted(SERVER_CODECS)
SETTINGS: dict[str, Any] = {"config": {"max_tokens": 200}}
TOOLS = [d.Tool("search")]
TEXT = "The quick brown fox jumps over the lazy dog, and over the next one, too."
Sim = Callable[..., SimServer]


@pytest.mark.parametrize("wire", WIRES)
async def test_client_receives_the_complete_scripted_answer(dragoman_sim: Sim, wire: str) -> None:
    answer = Answer(
        TEXT,
        tool_calls=[Call("search", {"q": "a"}, "call_1"), Call("search", {"q": "b"}, "call_2")],
    )
    sim = dragoman_sim(answer)
    async with sim.connect(wire) as model:
        whole = await model.complete("x", TOOLS, **SETTINGS)
        events, error = await collect(model.stream("x", TOOLS, **SETTINGS))
    assert error is None
    d.check_events(events)
    for reply in (whole, d.fold(events)):
        assert reply.text == TEXT
        assert [(call.id, call.arguments) for call in reply.tool_calls] == [
            ("call_1", {"q": "a"}),
            ("call_2", {"q": "b"}),
        ]
        assert reply.finish_reason == "tool_calls"
        assert reply.usage.output_tokens
    assert [len(request.tools) for request in sim.requests] == [1, 1]


Row = tuple[Fault, type[d.ProviderError] | None, type[d.ProviderError] | None]
# The error that a complete call raises, and the error that a stream raises.
FAULTS: dict[str, Row] = {
    "status": (Fault(status=429, retry_after=3), d.RateLimitError, d.RateLimitError),
    "status 401": (Fault(status=401), d.AuthenticationError, d.AuthenticationError),
    "page": (
        Fault(status=502, body="<html>x", content_type="text/html"),
        d.UnavailableError,
        d.UnavailableError,
    ),
    "error later": (Fault(error="OverloadedError", after=2), d.OverloadedError, d.OverloadedError),
    "cut": (Fault(cut_at=90), d.StreamInterruptedError, d.StreamInterruptedError),
    "cut at once": (Fault(cut_at=0), d.StreamInterruptedError, d.StreamInterruptedError),
    "ended": (Fault(end_at=90), d.InvalidResponseError, d.StreamInterruptedError),
    "garbage": (Fault(garbage_at=30, garbage=40), d.InvalidResponseError, None),
    "stall": (Fault(stall=1e6, after=2), d.TimedOutError, d.TimedOutError),
    "stall at once": (Fault(stall=1e6), d.TimedOutError, d.TimedOutError),
    "drip": (Fault(drip=50, pace=0.0001), None, None),
    "content type": (Fault(content_type="text/plain"), None, None),
    "duplicate": (Fault(duplicate=99), None, None),
}


# ``test_faults.py`` tests faults with each wire, without a socket.
@pytest.mark.parametrize(
    ("wire", "name"), [(WIRES[at % len(WIRES)], name) for at, name in enumerate(FAULTS)]
)
async def test_scripted_faults_occur_over_a_socket(
    dragoman_sim: Sim, wire: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fault, whole, streamed = FAULTS[name]
    stalled = threading.Event()

    async def sleep(seconds: float) -> None:
        if seconds == 1e6:
            stalled.set()
        await asyncio.sleep(seconds)

    async def finish(call: Awaitable[Any]) -> Any:
        """Let the deadlines of a call pass when the server has sent everything."""
        running = asyncio.ensure_future(call)
        await until(lambda: running.done() or stalled.is_set(), "the end of the reply")
        stalled.clear()
        with virtual_time():
            return await running

    sim = dragoman_sim(ScriptRule(TEXT, fault=fault), sleep=sleep)
    limits = {"first_event": 15, "idle": 15, "total": 30} if "stall" in name else None
    async with sim.connect(wire, timeouts=limits) as model:
        try:
            assert (await finish(model.complete("x", **SETTINGS))).text == TEXT
            raised: Exception | None = None
        except d.ProviderError as error:
            raised = error
        events, error = await finish(collect(model.stream("x", **SETTINGS)))
    sim.stop()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert (type(raised) if raised else None) is whole
    d.check_events(events)
    if name == "garbage":
        assert error is None or isinstance(error, d.ProviderError)
        return
    assert (type(error) if error else None) is streamed
    if fault.retry_after:
        assert isinstance(error, d.ProviderError)
        assert error.retry_after == fault.retry_after
    if streamed is None:
        assert d.fold(events).text == TEXT


def send_raw(sim: SimServer, head: str, body: bytes = b"") -> bytes:
    """Send a request over a new connection; return all bytes that the server sends."""
    host, _, port = sim.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(f"{head}\r\nhost: x\r\n\r\n".encode() + body)
        return b"".join(iter(lambda: client.recv(65536), b""))


# The second reply does not fit into the buffers of the kernel, so its connection closes later.
@pytest.mark.parametrize(
    ("text", "size"), [(TEXT, 90), ("x" * 9_000_000, 8_000_000)], ids=["small", "large"]
)
def test_cut_reply_announces_more_bytes_than_it_has(
    dragoman_sim: Sim, text: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    # Counting the tokens of a long text takes seconds.
    answer = Answer(text, usage=d.Usage())
    sim = dragoman_sim(ScriptRule(answer, fault=Fault(cut_at=size)))
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(body)}"
    headers, _, received = send_raw(sim, head, body).partition(b"\r\n\r\n")
    sim.stop()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert len(received) == size
    [length] = [each[16:] for each in headers.split(b"\r\n") if each.startswith(b"content-l")]
    assert int(length) > size


HI = {"role": "user", "content": "Hi"}
CALLED = {
    "role": "assistant",
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    ],
}


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([{"role": "system", "content": "Say hi."}], 200),
        ([{"role": "developer", "content": "Say hi."}], 200),
        ([HI, {"role": "assistant", "content": "Sure, "}], 200),
        ([{"role": "assistant", "content": "Hello."}, HI], 200),
        ([HI, {"role": "system", "content": "Be brief."}, HI], 200),
        ([], 400),
        ([HI, CALLED], 400),
        ([{"role": "stranger", "content": "Hi"}], 400),
    ],
    ids=str,
)
async def test_simulator_answers_the_conversations_that_servers_answer(
    messages: list[Any], status: int, dragoman_sim: Sim
) -> None:
    sim = dragoman_sim("Hello.")
    async with openai.AsyncOpenAI(
        base_url=sim.base_urls["openai"], api_key="k", max_retries=0
    ) as client:
        found = 200
        try:
            await client.chat.completions.create(model="m", messages=messages)
        except openai.APIStatusError as error:
            found = error.status_code
    assert found == status


def test_simulator_rejects_a_request_that_is_too_large(dragoman_sim: Sim) -> None:
    size = server_module.MAX_BODY + 1
    head = f"POST /v1/messages HTTP/1.1\r\nconnection: close\r\ncontent-length: {size}"
    assert send_raw(dragoman_sim("x"), head).startswith(b"HTTP/1.1 413 ")


def test_uploaded_file_is_kept_byte_for_byte(dragoman_sim: Sim) -> None:
    sim = dragoman_sim("x")
    content = b'{"a": "\xe2\x80\xa8"}\r\n\n--\r\x1c\x85' + bytes(range(256)) + b"\n"
    client = openai.OpenAI(base_url=sim.base_urls["openai"], api_key="x", max_retries=0)
    kept = client.files.create(file=content, purpose="batch")
    assert kept.bytes == len(content)
    assert client.files.content(kept.id).content == content
    with pytest.raises(openai.BadRequestError):
        client.files.create(file=content, purpose="assistants")
    client.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_models_of_the_script_are_ready_on_every_wire(dragoman_sim: Sim, wire: str) -> None:
    """A name may contain slashes, and a rule may answer for one model only."""
    name = "org/first:1"
    rules = [ScriptRule("a", RequestMatch(model=name)), ScriptRule("b")]
    sim = dragoman_sim(Script(rules, models=[name, "second"]))
    for served, text in ((name, "a"), ("second", "b")):
        async with sim.connect(wire, served) as model:
            await model.ready()
            assert (await model.complete("x", **SETTINGS)).text == text
    async with sim.connect(wire, "third") as missing:
        with pytest.raises(d.InvalidModelError):
            await missing.ready()
        with pytest.raises(d.InvalidModelError):
            await missing.complete("x", **SETTINGS)


async def test_unmatched_request_gets_an_error_response(dragoman_sim: Sim) -> None:
    sim = dragoman_sim(ScriptRule("a", RequestMatch(text="zebra")))
    async with sim.connect() as model:
        with pytest.raises(d.InvalidRequestError, match="no rule of the script"):
            await model.complete("x")


def fail(request: d.Request) -> Any:
    return {"known": 1}[request.model]


BROKEN = {
    "the reply of broken": ScriptRule(fail, name="broken"),
    "the match of rule 1": ScriptRule("x", RequestMatch(where=fail)),
}


@pytest.mark.parametrize("place", BROKEN)
@pytest.mark.parametrize("wire", WIRES)
async def test_error_names_the_rule_whose_function_raised(
    dragoman_sim: Sim, wire: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = rf"the script failed: KeyError: 'sim' \(raised by {place}\)"
    async with dragoman_sim(BROKEN[place]).connect(wire, retries=0) as model:
        with pytest.raises(d.UnavailableError, match=said) as caught:
            await model.complete("x", **SETTINGS)
    assert caught.value.status == 500
    assert "in fail" in caplog.text
    with pytest.raises(KeyError) as plain:
        await ScriptedProvider(BROKEN[place]).complete("x")
    assert plain.value.__notes__ == [f"raised by {place}"]


@pytest.mark.parametrize("after", [0, 4])
async def test_simulator_stops_its_reply_when_the_client_disconnects(
    dragoman_sim: Sim, after: int
) -> None:
    stalled = threading.Event()
    ended = threading.Event()

    async def sleep(seconds: float) -> None:
        stalled.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    sim = dragoman_sim(ScriptRule(TEXT, fault=Fault(stall=99, after=after)), sleep=sleep)
    async with sim.connect() as model, model.stream("x") as stream:
        reading = asyncio.create_task(collect(stream))
        assert await asyncio.to_thread(stalled.wait, PATIENCE)
        assert not ended.is_set()
        reading.cancel()
        await asyncio.wait([reading])
    assert await asyncio.to_thread(ended.wait, PATIENCE)


async def test_stopping_the_simulator_ends_its_replies(dragoman_sim: Sim) -> None:
    stalled = threading.Event()

    async def sleep(seconds: float) -> None:
        stalled.set()
        await asyncio.Event().wait()

    sim = dragoman_sim(ScriptRule(TEXT, fault=Fault(stall=99, after=4)), sleep=sleep)
    async with sim.connect() as model:
        reading = asyncio.create_task(collect(model.stream("x")))
        assert await asyncio.to_thread(stalled.wait, PATIENCE)
        await asyncio.to_thread(sim.stop)
        _, error = await reading
    assert isinstance(error, d.StreamInterruptedError)


def test_simulator_serves_health_model_lists_and_token_counts(dragoman_sim: Sim) -> None:
    sim = dragoman_sim("x")
    line = http.client.HTTPConnection(sim.url.removeprefix("http://"), timeout=PATIENCE)

    def ask(method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        line.request(method, path, body)
        reply = line.getresponse()
        data = reply.read()
        return reply.status, json.loads(data) if data[:1] == b"{" else data

    assert ask("GET", "/health") == (200, {"status": "ok"})
    assert ask("GET", "/v1/models")[1]["data"][0]["id"] == "sim"
    assert ask("GET", "/v1beta/models")[1]["models"][0]["name"] == "models/sim"
    assert ask("GET", "/v1/models/sim")[1]["id"] == "sim"
    counted = ask(
        "POST",
        "/v1/messages/count_tokens",
        '{"model": "m", "messages": [{"role": "user", "content": "hi"}]}',
    )
    assert counted[1]["input_tokens"] > 0
    assert ask("POST", "/v1/messages/count_tokens", "{")[0] == 400
    assert ask("POST", "/v1/chat/completions", "{")[0] == 400
    assert ask("POST", "/nowhere", "{}")[0] == 404
    line.close()


def test_vendor_client_libraries_work_with_the_simulator(dragoman_sim: Sim) -> None:
    sim = dragoman_sim(ScriptRule(fault=Fault(status=503), times=1), Answer(TEXT))
    chat = openai.OpenAI(base_url=sim.base_urls["openai"], api_key="x", max_retries=1)
    said = chat.chat.completions.create(model="sim", messages=[{"role": "user", "content": "hi"}])
    assert said.choices[0].message.content == TEXT
    parts = chat.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    assert "".join([part.choices[0].delta.content or "" for part in parts if part.choices]) == TEXT
    messages = anthropic.Anthropic(base_url=sim.base_urls["anthropic"], api_key="x")
    with messages.messages.stream(
        model="sim", max_tokens=99, messages=[{"role": "user", "content": "hi"}]
    ) as stream:  # fmt: skip
        assert "".join(stream.text_stream) == TEXT
    chat.close()
    messages.close()
    assert len(sim.requests) == 4


def test_starting_on_a_port_in_use_raises_an_error() -> None:
    with serve("x") as first, pytest.raises(OSError):
        serve("y", port=int(first.url.rpartition(":")[2])).start()


@pytest.mark.parametrize("module", ["starlette.routing", "uvicorn.config"])
def test_missing_extra_of_the_simulator_is_named(
    script: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(main, ["sim", str(script), "--port", "0"])
    assert "pip install 'dragoman[cli]'" in result.output
    assert result.exit_code == 2


def test_simulator_server_can_be_restarted() -> None:
    server = serve(ScriptedProvider("x"))
    first = server.start()
    assert server.start() == first
    server.stop()
    server.stop()
    assert asyncio.run(_ask(server)) == "x"
    server.stop()


async def _ask(server: SimServer) -> str:
    async with server.connect() as model:
        return (await model.complete("hi")).text


# --- dragoman sim, the command -----------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.yaml"
    path.write_text("model: m\nrules:\n  - reply: hello\n")
    return path


def test_sim_command_serves_a_script(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def wait(server: SimServer) -> None:
        heard.append(asyncio.run(_ask(server)))
        raise KeyboardInterrupt

    monkeypatch.setattr(server_module.SimServer, "wait", wait)
    plain = CliRunner().invoke(main, ["sim", str(script), "--port", "0"])
    assert plain.output.startswith("m is served")
    assert "openai" in plain.output
    assert plain.exit_code == 130
    as_json = CliRunner().invoke(
        main, ["sim", str(script), "--port", "0", "--json", "--seed", "3"]
    )
    assert set(json.loads(as_json.stdout)["base_urls"]) >= set(WIRES)
    assert heard == ["hello", "hello"]


def test_sim_command_with_check_only_validates_the_script(script: Path) -> None:
    assert (
        CliRunner()
        .invoke(main, ["sim", str(script), "--check"])
        .output.endswith("1 rules for m\n")
    )
    told = CliRunner().invoke(main, ["sim", str(script), "--check", "--json"])
    assert json.loads(told.output) == {"rules": 1, "model": "m", "seed": 0}


def test_sim_command_reports_invalid_scripts(script: Path) -> None:
    script.write_text("rules:\n  - replly: x\n")
    result = CliRunner().invoke(main, ["sim", str(script)])
    assert result.exit_code == 2
    assert f"{script}:2: rules[0].replly: unknown key; did you mean reply?" in result.output


def test_sim_command_reports_a_port_in_use(script: Path) -> None:
    with serve("x") as other:
        result = CliRunner().invoke(
            main, ["sim", str(script), "--port", other.url.rpartition(":")[2]]
        )
    assert result.exit_code == 2
    assert "cannot listen there" in result.output
