"""The provider on a real socket: calls, cancellation, leaks, structured output, secrets."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import logging
from typing import Any

import msgspec
import pydantic
import pytest

import dragoman as d
from dragoman.events import Assembler
from dragoman.transport import FixtureTransport
from tests.rows import read_table

from .listed import Listed
from .server import Connection, answering, chunk, completion, replying, serve, stream_of
from .waiting import arrival, settle, until

CITY = d.Tool(
    "weather",
    "The weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)
KEY = "sk-canary-0123456789abcdef"


def fixed(
    *bodies: bytes, status: int = 200, **settings: Any
) -> tuple[d.Provider, FixtureTransport]:
    transport = FixtureTransport(*[(status, {}, [body]) for body in bodies])
    return d.connect("m", base_url="http://test/v1", transport=transport, **settings), transport


def tool_reply(arguments: str, name: str = "weather", finish: str = "tool_calls") -> bytes:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}]}).encode()


# --- complete and streamed calls ---------------------------------------------------------------


async def test_completed_and_streamed_calls_give_the_same_reply() -> None:
    async with (
        serve(answering("Hello")) as server,
        d.connect("m", base_url=server.base_url) as model,
    ):
        whole = await model.complete("Hi")
        stream = model.stream("Hi")
        events = [event async for event in stream]
    d.check_events(events)
    streamed = stream.response
    assert whole.text == "Hello"
    expected = (whole.message, whole.finish_reason, whole.usage)
    assert (streamed.message, streamed.finish_reason, streamed.usage) == expected
    assert whole.latency_ms is not None
    assert whole.latency_ms > 0
    assert whole.raw["choices"][0]["message"]["content"] == "Hello"
    assert len(streamed.raw["chunks"]) == 7
    expected = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert server.requests[0].json == expected
    assert server.requests[1].json["stream_options"] == {"include_usage": True}


async def test_call_neither_checks_readiness_nor_retries() -> None:
    async with (
        serve(replying(500, b"{}")) as server,
        d.connect("m", base_url=server.base_url) as model,
    ):
        with pytest.raises(d.UnavailableError):
            await model.complete("Hi")
        with pytest.raises(d.UnavailableError):
            _ = [event async for event in model.stream("Hi")]
    assert [seen.path for seen in server.requests] == ["/v1/chat/completions"] * 2


async def test_prebuilt_request_is_sent_completely() -> None:
    search = d.ServerTool("web_search")
    asked = d.Request((d.User("Hi"),), stream=True, metadata={"a": "b"}, server_tools=(search,))
    model = Listed("Hello", "Hello")
    reply = await model.send(asked)
    (sent,) = model.requests
    assert reply.text == "Hello"
    assert reply.request_id == asked.request_id
    assert sent == msgspec.structs.replace(asked, stream=False, model="m")
    with pytest.raises(d.InvalidRequestError, match="messages is empty") as caught:
        await model.send(d.Request(()))
    assert caught.value.provider == "listed"
    assert len(model.requests) == 1


async def test_two_hundred_concurrent_calls_succeed() -> None:
    gate = asyncio.Event()

    async def wait_for_all(connection: Connection) -> None:
        if server.in_flight >= 200:
            gate.set()
        await gate.wait()
        connection.reply(200, completion())

    async with serve(wait_for_all) as server, d.connect("m", base_url=server.base_url) as model:
        calls = asyncio.gather(*[model.complete(f"Hi {n}") for n in range(200)])
        replies = await arrival(calls, "200 replies")
    assert server.most_in_flight == 200
    assert len({reply.request_id for reply in replies}) == 200


async def test_arguments_of_a_call_are_not_mutated() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "T"}]},
    ]
    tools = [
        {"type": "function",
         "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}},
    ]  # fmt: skip
    config = {"temperature": 0.5, "stop_sequences": ["x"], "extras": {"stop": ["y"]}}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    given = (messages, tools, config, schema, {"type": "tool", "name": "f"})
    before = copy.deepcopy(given)
    model, transport = fixed(tool_reply("{}", name="f"), quirks={"structured": "prompt"})
    await model.complete(*given)
    assert given == before
    assert json.loads(transport.requests[0].body)["stop"] == ["x", "y"]


# --- structured output -------------------------------------------------------------------------


class River(msgspec.Struct):
    name: str
    km: int


class Bridge(pydantic.BaseModel):
    name: str


async def test_structured_output_can_be_requested_by_schema_or_by_type() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    for asked, expected in ((schema, {"name": "Po", "km": 652}), (River, River("Po", 652))):
        model, transport = fixed(completion('{"name": "Po", "km": 652}'))
        response = await model.complete("Hi", response_schema=asked)
        assert response.parsed == expected
        assert response.structured_path == "native"
        assert response.text == '{"name": "Po", "km": 652}'
        assert (
            json.loads(transport.requests[0].body)["response_format"]["json_schema"]["strict"]
            is False
        )
    model, _ = fixed(stream_of('{"name": ', '"Rialto"}'))
    stream = model.stream("Hi", response_schema=Bridge)
    await _drain(stream)
    assert stream.response.parsed == Bridge(name="Rialto")


class Delta(pydantic.BaseModel):
    arms: list[Delta] = []


async def test_structured_output_can_be_of_a_recursive_type() -> None:
    model, transport = fixed(completion('{"arms": [{"arms": []}]}'))
    response = await model.complete("Hi", response_schema=Delta)
    assert response.parsed == Delta(arms=[Delta()])
    sent = json.loads(transport.requests[0].body)["response_format"]["json_schema"]["schema"]
    expected = ("object", {"$ref": "#/$defs/Delta"})
    assert (sent["type"], sent["properties"]["arms"]["items"]) == expected


async def test_structured_value_that_matches_the_schema_but_not_the_type_raises() -> None:
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def check(cls, value: int) -> int:
            if value % 2:
                raise ValueError("odd")
            return value

    model, _ = fixed(completion('{"n": 3}'))
    with pytest.raises(d.StructuredOutputError, match="Even"):
        await model.complete("Hi", response_schema=Even)
    model, _ = fixed(stream_of('{"n": ', "3}"))
    stream = model.stream("Hi", response_schema=Even)
    while not isinstance(await anext(stream), d.MessageComplete):
        pass
    with pytest.raises(d.StructuredOutputError, match="Even"):
        await anext(stream)
    assert stream.response.text == '{"n": 3}'
    assert stream.response.parsed is None
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_rejected_stream_options_are_omitted_from_later_requests() -> None:
    refusal = b'{"error": {"message": "Unknown field: stream_options"}}'
    transport = FixtureTransport(
        (400, {}, [refusal]), (200, {}, [stream_of("a")]), (200, {}, [stream_of("b")])
    )
    model = d.connect("m", base_url="http://test", transport=transport)
    for text in "ab":
        stream = model.stream("Hi")
        _ = [event async for event in stream]
        assert stream.response.text == text
    expected = [True, False, False]
    assert [b"stream_options" in request.body for request in transport.requests] == expected


# --- requests that are rejected before they are sent -------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "capabilities"),
    [
        (d.InvalidRequestError, {"messages": []}, {}),
        (d.InvalidRequestError, {"messages": "x", "tool_choice": "required"}, {}),
        (d.InvalidRequestError, {"messages": "x", "tools": [CITY, CITY]}, {}),
        (d.InvalidRequestError, {"messages": "x", "response_schema": {"type": "array"}}, {}),
        (d.UnsupportedContentError, {"messages": [d.User([d.Image(d.Url("https://x/y.png"))])]},
         {"supports_images": False}),
        (d.UnsupportedFeatureError, {"messages": "x", "tools": [CITY]}, {"supports_tools": False}),
        (d.ContextOverflowError, {"messages": "long " * 400}, {"max_context_tokens": 50}),
    ],
)  # fmt: skip
async def test_invalid_request_is_rejected_before_sending(
    kind: type[d.ProviderError], arguments: Any, capabilities: Any
) -> None:
    model, transport = fixed(capabilities=capabilities)
    with pytest.raises(kind) as caught:
        await model.complete(**arguments)
    with pytest.raises(kind):
        model.stream(**arguments)
    assert transport.requests == []
    assert caught.value.provider == "test"
    assert caught.value.model == "m"
    assert caught.value.request_id


async def test_streaming_is_rejected_if_the_model_does_not_support_it() -> None:
    model, _ = fixed(capabilities={"supports_streaming": False})
    with pytest.raises(d.UnsupportedFeatureError, match="complete"):
        model.stream("x")


async def test_loss_of_content_gives_a_warning_or_is_rejected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    conversation = [d.User("a"), d.Assistant([d.Thinking("hm"), d.Text("b")]), d.User("c")]
    model, transport = fixed(completion())
    with caplog.at_level(logging.WARNING, "dragoman"):
        response = await model.complete(conversation)
    assert [(warning.code, warning.path) for warning in response.warnings] == [
        ("thinking_dropped", "messages[1].content[0]")
    ]
    assert "thinking_dropped" in caplog.text
    assert b"hm" not in transport.requests[0].body
    model, transport = fixed(completion(), on_loss="reject")
    with pytest.raises(d.UnsupportedContentError, match="thinking_dropped"):
        await model.complete(conversation)
    results = [
        d.User("a"),
        d.Assistant("", tool_calls=[d.ToolCall("i", "f", {})]),
        d.ToolResult("i", "no", is_error=True),
    ]
    with pytest.raises(d.UnsupportedFeatureError, match="is_error"):
        await model.complete(results)
    assert transport.requests == []


async def test_plan_reports_what_sending_would_do() -> None:
    model, _ = fixed(capabilities={"max_context_tokens": 10})
    planned = d.plan(
        [d.User("a " * 100), d.Assistant([d.Thinking("hm"), d.Text("b")]), d.User("c")], model
    )
    assert [(item.path, item.outcome) for item in planned.items] == [
        ("messages[0]", "kept"),
        ("messages[1].content[0]", "dropped"),
        ("messages[1].content[1]", "kept"),
        ("messages[2]", "kept"),
    ]
    assert [item.rule for item in planned.losses] == ["thinking_dropped"]
    assert planned.fits is False
    blind, _ = fixed(capabilities={"supports_images": False, "supports_system_prompt": False})
    assert "not to see images" in str(
        blind.plan([d.User([d.Image(d.Url("https://x/y.png"))])]).refused
    )
    assert "system prompt" in str(blind.plan([d.System("Be brief."), d.User("Hi")]).refused)
    assert blind.plan([d.User("Hi")]).refused is None
    assert blind.plan([]).items == ()
    refused = model.plan([d.User([d.Document(d.Url("https://x/y.pdf"))])])
    assert refused.refused is not None
    assert "inline" in refused.refused
    assert model.plan([d.User([d.Document(d.Inline("eA=="))])]).refused is None


# --- cancellation of calls ---------------------------------------------------------------------


async def stalled(connection: Connection) -> None:
    """Send the beginning of a stream, then stall."""
    if connection.seen.json.get("stream"):
        call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"ci'}}
        delta = (
            b"data: "
            + json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode()
            + b"\n\n"
        )
        connection.begin_stream()
        connection.chunk(chunk("Hel") + chunk("lo") + delta)
        await connection.writer.drain()
    await asyncio.Event().wait()


@pytest.mark.parametrize("stream", [True, False])
async def test_cancelled_call_closes_its_socket_at_once(stream: bool) -> None:
    """The socket closes without waiting for any timer."""
    async with serve(stalled) as server, d.connect("m", base_url=server.base_url) as model:
        # A streamed call waits for more content, an unstreamed call for the first byte.
        if stream:
            call = model.stream("Hi", request_id="r")
            await anext(call)
            task = asyncio.ensure_future(_drain(call))
        else:
            task = asyncio.ensure_future(model.complete("Hi", request_id="r"))  # type: ignore[arg-type]
        await settle()
        assert len(server.requests) == 1
        assert not server.closed.is_set()
        assert await model.cancel("r")
        await settle()
        assert server.closed.is_set()
        await asyncio.gather(task, return_exceptions=True)


async def test_completed_stream_cannot_be_cancelled_and_raises_its_error() -> None:
    # The connection closes before the end marker of the stream.
    model, _ = fixed(b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n')
    stream = model.stream("Hi")
    while not isinstance(event := await anext(stream), d.MessageComplete):
        pass
    assert event.finish_reason == "error"
    assert await stream.cancel() is False
    with pytest.raises(d.StreamInterruptedError):
        await anext(stream)


@pytest.mark.parametrize("first", ["call", "task"])
@pytest.mark.parametrize("stream", [True, False])
async def test_cancelled_task_propagates_with_its_call(stream: bool, first: str) -> None:
    """The task raises ``CancelledError``, so that a timeout around it takes effect."""
    async with serve(stalled) as server, d.connect("m", base_url=server.base_url) as model:
        if stream:
            task = asyncio.ensure_future(_drain(model.stream("Hi", [CITY], request_id="r")))
        else:
            task = asyncio.ensure_future(model.complete("Hi", request_id="r"))  # type: ignore[arg-type]
        await settle()
        if first == "call":
            await model.cancel("r")
        task.cancel()
        await model.cancel("r")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()


@pytest.mark.usefixtures("virtual_time")
async def test_stream_whose_task_is_cancelled_ends_as_cancelled() -> None:
    async with serve(stalled) as server, d.connect("m", base_url=server.base_url) as model:
        stream = model.stream("Hi", [CITY], request_id="r5")
        events: list[Any] = []
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_collect(stream, events), 10)
        await arrival(server.closed.wait(), "the connection to close")
        assert await model.cancel("r5") is False
        await _collect(stream, events)
        d.check_events(events)
        assert events[-1].finish_reason == "cancelled"  # type: ignore[union-attr]
        assert stream.response.text == "Hello"
        await model.stream("Hi", request_id="r5").aclose()  # the request id can be used again


@pytest.mark.parametrize("how", ["aclose", "with", "cancel"])
async def test_stream_closed_early_has_a_response_and_no_more_events(how: str) -> None:
    async with serve(stalled) as server, d.connect("m", base_url=server.base_url) as model:
        async with model.stream("Hi", [CITY]) as stream:
            async for event in stream:
                if isinstance(event, d.TextDelta):
                    break
            if how != "with":
                await getattr(stream, how)()
        assert [event async for event in stream] == []
        assert stream.response.text == "Hel"
        assert stream.response.finish_reason == "cancelled"
        await until(lambda: not server.open, "every connection to close")


async def test_request_id_can_be_reused_once_the_message_is_complete() -> None:
    async with (
        serve(answering("abc")) as server,
        d.connect("m", base_url=server.base_url) as model,
    ):
        stream = model.stream("Hi", request_id="r6")
        async for event in stream:
            if isinstance(event, d.MessageComplete):
                break
        assert await model.cancel("r6") is False
        assert (await model.complete("Hi", request_id="r6")).text == "abc"
        await stream.aclose()
        assert stream.response.finish_reason == "stop"


async def _drain(stream: Any) -> None:
    await _collect(stream, [])


async def _collect(stream: Any, events: list[Any]) -> None:
    async for event in stream:
        events.append(event)


async def test_duplicate_request_id_in_flight_is_rejected() -> None:
    async with serve(stalled) as server, d.connect("m", base_url=server.base_url) as model:
        first = model.stream("Hi", [CITY], request_id="same")
        await anext(first)
        with pytest.raises(d.InvalidRequestError, match="in flight"):
            model.stream("Hi", request_id="same")
        await first.aclose()


# --- no socket, task or reply is left behind ---------------------------------------------------


async def test_breaking_out_of_a_stream_leaves_no_socket_and_no_task() -> None:
    async with serve(stalled) as server, d.connect("m", base_url=server.base_url) as model:
        before = asyncio.all_tasks()
        async for _ in model.stream("Hi", [CITY]):
            break
        await until(lambda: not server.open, "every connection to close")
        async with model.stream("Hi", [CITY]) as stream:
            await anext(stream)
        await until(lambda: not server.open, "every connection to close")
        assert {
            task for task in asyncio.all_tasks() - before if "connected" not in repr(task)
        } == set()


async def test_deleting_a_provider_leaves_no_socket_open(recwarn: pytest.WarningsRecorder) -> None:
    async with serve(answering()) as server:
        model = d.connect("m", base_url=server.base_url)
        await model.complete("Hi")
        assert server.open == 1
        del model
        gc.collect()
        await until(lambda: not server.open, "every connection to close")
    assert [str(warning.message) for warning in recwarn if "nclosed" in str(warning.message)] == []


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("stream", [False, True])
async def test_reply_is_freed_without_the_garbage_collector(stream: bool) -> None:
    async def ask() -> None:
        if stream:
            await _drain(model.stream("Hi"))
        else:
            await model.complete("Hi")

    async with serve(answering()) as server, d.connect("m", base_url=server.base_url) as model:
        await ask()
        assert [thing for thing in gc.get_objects() if type(thing) is Assembler] == []


async def test_provider_use_after_close_or_from_another_event_loop_raises() -> None:
    async with serve(answering()) as server:
        model = d.connect("m", base_url=server.base_url)
        await model.complete("Hi")
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, model.complete("Hi"))
        await model.close()
        with pytest.raises(d.InvalidRequestError, match="closed"):
            await model.complete("Hi")


# --- streams that break off --------------------------------------------------------------------


async def cut(connection: Connection) -> None:
    connection.begin_stream()
    connection.chunk(chunk("Hel") + chunk("lo"))
    await connection.writer.drain()
    connection.writer.transport.abort()


async def no_end_mark(connection: Connection) -> None:
    connection.begin_stream()
    connection.chunk(chunk("Hel") + chunk("lo"))
    connection.end_stream()


@pytest.mark.parametrize("handler", [cut, no_end_mark])
async def test_truncated_stream_never_counts_as_a_success(handler: Any) -> None:
    async with serve(handler) as server, d.connect("m", base_url=server.base_url) as model:
        stream = model.stream("Hi")
        events: list[Any] = []
        with pytest.raises(d.StreamInterruptedError) as caught:
            await _collect(stream, events)
        d.check_events(events)
        assert events[-1].finish_reason == "error"
        assert caught.value.response.text == "Hello"
        assert stream.response.text == "Hello"
        with pytest.raises(d.StreamInterruptedError):
            await model.complete("Hi")


# --- API keys and prompts are never shown ------------------------------------------------------


@pytest.mark.parametrize(
    "said", ["the launch code is 4711", "my thought of it", "hunter2hunter2", "in a list of words"]
)
async def test_prompt_echoed_by_a_provider_is_not_quoted(said: str) -> None:
    arguments = {
        "password": "hunter2hunter2", "more": [{"words": ["in a list of words"]}], "n": 5,
        "unit": "metric",
    }  # fmt: skip
    call = d.Assistant(
        [d.Thinking("my thought of it")], tool_calls=[d.ToolCall("c1", "f", arguments)]
    )
    messages = [d.User("the launch code is 4711"), call, d.ToolResult("c1", "done")]
    model = d.connect(
        "m", base_url="http://test", transport=FixtureTransport((400, {}, [_refusal(said)]))
    )
    with pytest.raises(d.InvalidRequestError) as caught:
        await model.complete(messages)
    assert said not in str(caught.value)
    assert said in str(caught.value.provider_message)
    model = d.connect(
        "m", base_url="http://test", transport=FixtureTransport((400, {}, [_refusal("metric")]))
    )
    with pytest.raises(d.InvalidRequestError, match="bad value: metric"):
        await model.complete(messages)


def _refusal(word: str) -> bytes:
    return json.dumps({"error": {"message": f"bad value: {word}"}}).encode()


async def test_redirect_is_not_followed_and_the_key_is_not_forwarded() -> None:
    async with serve(answering()) as other:

        async def redirect(connection: Connection) -> None:
            connection.head(
                307, {"location": f"{other.url}/v1/chat/completions", "content-length": "0"}
            )

        async with (
            serve(redirect) as server,
            d.connect("m", base_url=server.base_url, api_key=KEY) as model,
        ):
            with pytest.raises(d.InvalidRequestError) as caught:
                await model.complete("Hi")
        assert caught.value.status == 307
        assert other.requests == []


# --- custom providers --------------------------------------------------------------------------


class Parrot(d.Provider):
    """A minimal provider."""

    name = "parrot"
    model = "grey"

    async def events(self, request: d.Request) -> Any:
        out = Assembler(request_id=request.request_id, model=self.model, provider=self.name)
        out.start()
        out.text(request.messages[-1].text)  # type: ignore[union-attr]
        out.finish("stop")
        for event in out.take():
            yield event


async def test_custom_provider_needs_only_one_method() -> None:
    async with Parrot() as parrot:
        await parrot.ready()
        response = await parrot.complete("Hello")
        assert response.text == "Hello"
        assert response.provider == "parrot"
        assert response.model == "grey"
        events = [event async for event in parrot.stream("Hello")]
        assert isinstance(events[-1], d.MessageComplete)
        assert parrot.estimate_input_tokens("Hello there, how are you?") > 3
        assert parrot.plan("Hello").items[0].outcome == "kept"
        assert repr(parrot) == "<Parrot parrot grey>"


class Mumbler(Parrot):
    async def events(self, request: d.Request) -> Any:
        async for event in super().events(request):
            if not isinstance(event, d.MessageComplete):
                yield event


async def test_event_stream_without_an_end_raises_an_error() -> None:
    async with Mumbler() as mumbler:
        with pytest.raises(d.StreamInterruptedError):
            await mumbler.complete("Hello")
        with pytest.raises(d.StreamInterruptedError):
            await _drain(mumbler.stream("Hello"))


# --- arguments of connect ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    read_table("invalid_connect_settings"),
)
def test_invalid_settings_of_connect_are_rejected(settings: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        d.connect("m", **settings)
