"""Rules of the specifications that no other test notices, through the public API."""

# mypy: disable-error-code="arg-type,list-item,call-overload"

import asyncio
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.events import to_model_events
from dragoman.log import MemoryLog
from dragoman.tools import ProcessTool, tool
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS

from .listed import Listed, reply, speak
from .ports import find_free_port
from .server import Connection, completion, replying, serve
from .test_specification import HI, answer, calls, fixed, frames
from .waiting import until
from .wire.replies import reply as write_reply

WIRES = sorted(CODECS)


async def test_error_keeps_the_exception_that_caused_it() -> None:
    model = d.connect("m", base_url=f"http://127.0.0.1:{find_free_port()}")
    with pytest.raises(d.NetworkError) as caught:
        await model.complete("Hi")
    assert isinstance(caught.value.__cause__, OSError)
    await model.close()
    model, _ = fixed((200, b'{"choices": 1}'))
    with pytest.raises(d.InvalidResponseError) as unread:
        await model.complete("Hi")
    assert isinstance(unread.value.__cause__, ValueError)


async def test_unreachable_server_is_not_ready() -> None:
    async with d.connect("m", base_url=f"http://127.0.0.1:{find_free_port()}") as model:
        with pytest.raises(d.UnavailableError):
            await model.ready()


@pytest.mark.usefixtures("virtual_time")
async def test_provider_does_not_limit_rates() -> None:
    loop = asyncio.get_running_loop()
    model, transport = fixed(*[(200, answer())] * 100)
    began = loop.time()
    await asyncio.gather(*[model.complete(f"Hi {at}") for at in range(100)])
    assert loop.time() == began
    assert len(transport.requests) == 100


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ({"model": "other"}, "pass the model's name to connect"),
        ({"logit_bias": {}}, "extras="),
        ({"retry": 2}, "retries= to connect"),
    ],
)
async def test_setting_of_another_model_or_of_one_vendor_is_refused(
    setting: dict[str, Any], hint: str
) -> None:
    model, transport = fixed((200, answer()))
    with pytest.raises(TypeError, match=hint):
        await model.complete("Hi", **setting)
    with pytest.raises(TypeError, match=hint):
        model.stream("Hi", **setting)
    assert transport.requests == []


@pytest.mark.parametrize(
    ("role", "field"),
    [
        *[("system", name) for name in ("tool_calls", "tool_call_id")],
        *[("user", name) for name in ("tool_calls", "tool_call_id")],
        ("assistant", "tool_call_id"),
        ("tool", "tool_calls"),
    ],
)
def test_fields_of_other_roles_are_refused(role: str, field: str) -> None:
    call = {"id": "c", "name": "f", "arguments": {}}
    message = {"role": role, "content": "x", field: [call] if field == "tool_calls" else "c"}
    if role == "tool":
        message["tool_call_id"] = "c"
    with pytest.raises(d.InvalidRequestError, match=f"{field} is not a known field"):
        d.parse_messages([message])


def test_image_has_one_source() -> None:
    both = {"type": "url", "url": "https://a.test/b.png", "base64_data": "aGk="}
    with pytest.raises(d.InvalidRequestError, match="base64_data is not a known field"):
        d.parse_messages([{"role": "user", "content": [{"type": "image", "source": both}]}])


async def test_media_type_of_a_url_is_ignored() -> None:
    model, transport = fixed((200, answer()), (200, answer()))
    for media_type in (None, "application/x-nonsense"):
        await model.complete([d.User([d.Image(d.Url("https://a.test/b.png"), media_type)])])
    assert transport.requests[0].body == transport.requests[1].body


async def test_tools_are_offered_beside_a_schema() -> None:
    model, transport = fixed((200, calls("{}")), (200, answer('{"a": 1}')))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    called = await model.complete("Hi", [d.Tool("f")], response_schema=schema)
    assert called.finish_reason == "tool_calls"
    assert called.parsed is None
    answered = await model.complete("Hi", [d.Tool("f")], response_schema=schema)
    assert answered.finish_reason == "stop"
    assert answered.parsed == {"a": 1}
    for request in transport.requests:
        assert b'"tools":' in request.body
        assert b'"response_format":' in request.body


async def test_degraded_reply_is_returned_and_not_retried() -> None:
    inner = Listed(reply("half", finish="error"), "whole")
    response = await d.Retry(inner, backoff=lambda attempt: 0.0).complete("Hi")
    assert response.text == "half"
    assert response.finish_reason == "error"
    assert len(inner.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_equal_calls_send_equal_bytes(wire: str) -> None:
    model, transport = fixed(*[(500, {})] * 2, wire=wire)
    for _ in range(2):
        with pytest.raises(d.UnavailableError):
            await model.complete([HI], [d.Tool("f")], max_tokens=9, tool_choice="auto")
    assert transport.requests[0].body == transport.requests[1].body


async def test_wire_without_tool_choice_reports_the_loss() -> None:
    model, _ = fixed((200, {"message": {"content": "x"}, "done": True}), wire="ollama")
    response = await model.complete("Hi", [d.Tool("f")], tool_choice="required")
    assert [warning.code for warning in response.warnings] == ["tool_choice_dropped"]


TOO_LONG = "prompt is too long: 210000 tokens exceeds the context window of 200000"
NO_TOOLS = "this model does not support tools"
NO_IMAGES = "images are not supported"
OWN_WORDS = {
    ("gemini", TOO_LONG): "The input token count exceeds the maximum number of tokens allowed",
    ("gemini", NO_TOOLS): "tools[0].function_declarations: unknown",
    ("gemini", NO_IMAGES): "Unsupported MIME type: image/png",
    ("cohere", NO_TOOLS): "tools is not supported by this model",
}
"""How the server of a wire reports a condition, if not in the words of most."""
CONDITIONS: list[tuple[int, str, str, type[d.ProviderError]]] = [
    (400, "invalid_request_error", "messages is missing", d.InvalidRequestError),
    (400, "invalid_request_error", TOO_LONG, d.ContextOverflowError),
    (400, "invalid_request_error", NO_TOOLS, d.UnsupportedFeatureError),
    (400, "invalid_request_error", NO_IMAGES, d.UnsupportedContentError),
    (401, "authentication_error", "no", d.AuthenticationError),
    (403, "permission_error", "no", d.AuthenticationError),
    (404, "not_found_error", "model m not found", d.InvalidModelError),
    (408, "x", "slow", d.TimedOutError),
    (422, "x", "bad", d.InvalidRequestError),
    (429, "rate_limit_error", "slow down", d.RateLimitError),
    (500, "api_error", "oops", d.UnavailableError),
    (502, "x", "bad gateway", d.UnavailableError),
    (503, "x", "no server", d.UnavailableError),
    (504, "timeout_error", "slow", d.TimedOutError),
    (529, "overloaded_error", "overloaded", d.OverloadedError),
]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("status", "kind", "message", "error"), CONDITIONS)
async def test_same_condition_raises_the_same_error_on_every_wire(
    wire: str, status: int, kind: str, message: str, error: type[d.ProviderError]
) -> None:
    message = OWN_WORDS.get((wire, message), message)
    body: Any = {"error": {"message": message}}
    if wire == "anthropic":
        body = {"type": "error", "error": {"type": kind, "message": message}}
    if wire in ("bedrock", "cohere"):
        body = {"message": message}
    transport = FixtureTransport((status, {"retry-after": "7"}, [json.dumps(body).encode()]))
    model = d.connect("m", wire=wire, base_url="http://127.0.0.1:9", transport=transport)
    with pytest.raises(d.ProviderError) as caught:
        await model.complete("Hi", max_tokens=9)
    assert type(caught.value) is error
    assert caught.value.status == status
    assert caught.value.error_class == error.error_class
    assert caught.value.retry_after == 7
    assert len(transport.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_failures_before_a_reply_are_of_the_class_network(wire: str) -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    async with d.connect("m", wire=wire, base_url=url, api_key="k") as model:
        with pytest.raises(d.NetworkError) as caught:
            await model.complete("Hi", max_tokens=9)
    assert caught.value.error_class == "network"
    assert caught.value.transient is True


async def test_only_a_call_in_flight_can_be_cancelled() -> None:
    model, _ = fixed((200, answer()))
    assert await model.cancel("never begun") is False
    await model.complete("Hi", request_id="r")
    assert await model.cancel("r") is False


@pytest.mark.usefixtures("virtual_time")
async def test_closing_twice_releases_the_connections() -> None:
    loop = asyncio.get_running_loop()
    async with serve(replying(200, completion())) as server:
        model = d.connect("m", base_url=server.base_url)
        await model.complete("Hi")
        assert server.open == 1
        began = loop.time()
        await model.close()
        await model.close()
        await until(lambda: not server.open, "every connection to close")
        assert loop.time() - began < 1  # no timer closed them


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "models.yaml"
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(path))
    return path


def test_local_server_needs_no_key(file: Path) -> None:
    file.write_text("adapters: {here: {type: llamacpp, base_url: 'http://127.0.0.1:9/v1'}}\n")
    registry = d.Registry.load(file)
    assert registry.find("here:m").status == "configured"
    assert registry.provider("here:m").name == "here"


async def test_base_url_and_headers_of_the_file_are_used(file: Path) -> None:
    async with serve(replying(200, completion())) as server:
        file.write_text(
            f"adapters: {{mine: {{type: mistral, api_key: k, base_url: '{server.base_url}', "
            "extra_headers: {x-team: a}}}\n"
        )
        async with d.Registry.load(file).provider("mine:m") as model:
            await model.complete("Hi")
    assert server.requests[0].headers["x-team"] == "a"


async def stall(connection: Connection) -> None:
    await asyncio.Event().wait()


@pytest.mark.usefixtures("virtual_time")
async def test_call_has_a_time_limit_of_600_seconds() -> None:
    loop = asyncio.get_running_loop()
    async with serve(stall) as server, d.connect("m", base_url=server.base_url) as model:
        began = loop.time()
        with pytest.raises(d.TimedOutError) as caught:
            await model.complete("Hi")
        assert caught.value.which == "total"
        assert loop.time() - began == pytest.approx(600, abs=1)


async def test_system_prompt_may_be_given_beside_the_messages() -> None:
    model, transport = fixed((200, answer()), (200, answer()))
    await model.complete("Hi", system="Be brief.")
    await model.complete([d.System("Be brief."), d.User("Hi")])
    assert transport.requests[0].body == transport.requests[1].body
    assert b"Be brief." in transport.requests[0].body


async def test_response_names_its_provider() -> None:
    model, _ = fixed((200, answer()), name="acme")
    assert (await model.complete("Hi")).provider == "acme"


async def test_stated_cost_of_a_reply_is_kept() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "cost": 0.5}
    model, _ = fixed((200, {**answer(), "usage": usage}))
    assert (await model.complete("Hi")).usage.stated_cost_usd == Decimal("0.5")


SHAPES: dict[str, Any] = {
    "text": "a", "none": None, "yes": True, "whole": 7, "part": 0.5, "list": [1, [2, {"a": None}]],
    "object": {"b": {"c": [False, "d"]}}, "empty": {}, "blank": "", "quote": '"\\\n\u00e9',
}  # fmt: skip


@pytest.mark.parametrize("wire", WIRES)
async def test_arguments_of_every_shape_make_a_round_trip(wire: str) -> None:
    """The reply of one call is the history of the next, which sends the same arguments."""
    said = json.dumps(write_reply(wire, "", ("c1", "f", SHAPES))).encode()
    transport = FixtureTransport(*[(200, {}, [said])] * 2)
    model = d.connect("m", wire=wire, base_url="http://127.0.0.1:9", transport=transport)
    tool = d.Tool("f", "", parameters={"type": "object"})
    first = await model.complete([HI], [tool], max_tokens=99)
    assert [call.arguments for call in first.tool_calls] == [SHAPES]
    history = [HI, first.message, d.ToolResult(first.tool_calls[0].id, "done")]
    await model.complete(history, [tool], max_tokens=99)
    sent = json.loads(transport.requests[1].body)
    assert SHAPES in list(find_objects(sent))


def find_objects(value: Any) -> Iterator[Any]:
    """Yield each object in a body, including those that are written as a JSON text."""
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from find_objects(each)


def test_model_is_chosen_by_its_capabilities_and_price(file: Path) -> None:
    file.write_text(
        "adapters: {a: {type: openai, base_url: 'http://127.0.0.1:9/v1', api_key: k}}\n"
        "models:\n"
        "  a:thinks: {wire_name: x, capabilities: {supports_thinking: true}, "
        "priced_as: 'openai:gpt-5'}\n"
        "  a:thinks-cheaply: {wire_name: y, capabilities: {supports_thinking: true}, "
        "priced_as: 'openai:gpt-5-nano'}\n"
        "  a:does-not: {wire_name: z, capabilities: {supports_thinking: false}, "
        "priced_as: free}\n"
    )
    names = ["a:thinks", "a:thinks-cheaply", "a:does-not"]
    choice = d.Registry.load(file).choose("thinking", among=names)
    assert [entry.id for entry in choice.models] == ["a:thinks-cheaply", "a:thinks"]
    assert choice.excluded == {"a:does-not": ("no_thinking_support",)}


async def test_no_streamed_event_is_in_the_log() -> None:
    kinds = []
    for pieces in (["Hello."], ["H", "el", "lo."]):
        log = MemoryLog()
        said = speak(lambda out, pieces=pieces: [out.text(piece) for piece in pieces])
        session = d.Session(Listed(said), [], None, log)
        assert (await session.run("Go.")).text == "Hello."
        kinds.append([record.type for record in log.read(session.id)])
    assert kinds[0] == kinds[1]
    assert "message.recorded" in kinds[0]


async def test_functions_of_tools_do_not_reach_the_provider() -> None:
    """A provider gets a name, a description and a schema of a tool, two hints for its wire, and who runs it."""

    @tool(side_effect="execute")
    def bash(command: str) -> str:
        """Run a command."""
        raise AssertionError("it ran")

    model = Listed("Done.", "Done.")
    await model.complete("Hi", [bash])
    await d.Session(model, [bash], d.Policy([])).run("Go.")
    for request in model.requests:
        [offered] = request.tools
        assert type(offered) is d.Tool
        assert offered.__struct_fields__ == (
            "name", "description", "parameters", "strict", "deferred", "external",
        )  # fmt: skip
        assert msgspec.json.decode(msgspec.json.encode(offered), type=d.Tool) == offered


async def test_aborted_call_is_no_provider_error() -> None:
    model, _ = fixed((200, frames(*[{"choices": [{"delta": {"content": "a"}}]}] * 9)))
    stream = model.stream("Hi")
    kinds = []
    async for event in to_model_events(stream):
        kinds.append(event.type)
        if event.type == "model.text_delta":
            await stream.cancel()
    assert kinds[-1] == "model.finished"
    assert stream.response.finish_reason == "cancelled"


def test_folder_of_a_command_is_recorded(tmp_path: Path) -> None:
    command = ProcessTool(d.Tool("p"), ["true"], cwd=tmp_path)
    assert command.context()["cwd"] == str(tmp_path)


async def test_offsets_of_an_intent_are_places_in_the_stream() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}
    pieces = [call, *[{"index": 0, "function": {"arguments": part}} for part in ('{"a"', ": 1}")]]
    body = frames(
        {"choices": [{"delta": {"content": "So."}}]},
        *[{"choices": [{"delta": {"tool_calls": [piece]}}]} for piece in pieces],
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    )
    model, _ = fixed((200, body))
    stream = model.stream("Hi", [d.Tool("f", "", parameters={"type": "object"})])
    [end] = [event async for event in stream if isinstance(event, d.ToolUseEnd)]
    assert end.intent is not None
    found = end.intent.assembled_from
    assert found.event_count == 2
    starts = [body[at:].startswith(b"data: ") for at in (found.first_offset, found.last_offset)]
    assert starts == [True, True]
    assert b'"name": "f"' in body[found.first_offset :].partition(b"\n\n")[0]
    assert b": 1}" in body[found.last_offset :].partition(b"\n\n")[0]


async def test_code_of_an_invalid_key_is_an_authentication_error() -> None:
    model, _ = fixed((400, {"error": {"message": "no", "code": "invalid_api_key"}}))
    with pytest.raises(d.AuthenticationError):
        await model.complete("Hi")


async def test_session_can_be_cancelled_in_the_pause_before_a_retry() -> None:
    paused = asyncio.Event()

    async def pause(seconds: float) -> None:
        paused.set()
        await asyncio.Event().wait()

    log = MemoryLog()
    model = d.Retry(Listed(d.UnavailableError("down"), "never"), sleep=pause)
    session = d.Session(model, [], None, log)
    running = asyncio.ensure_future(session.run("Go."))
    await paused.wait()
    assert await session.cancel()
    assert (await running).outcome == "cancelled"
    calls = [record.type for record in log.read(session.id) if record.type.startswith("llm.")]
    assert calls == ["llm.call_started", "llm.call_failed"]
