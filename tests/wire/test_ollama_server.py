"""Round trips between the server side and the client side of the Ollama wire, and its pages."""

import json
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import dragoman as d
from dragoman.capabilities import Capabilities
from dragoman.events import Assembler
from dragoman.validate import Expectation, check_request
from dragoman.wire import SERVER_CODECS
from dragoman.wire.listing import ListedModel
from dragoman.wire.ollama.generate import OllamaGenerateServer
from tests import strategies as some
from tests.listed import reply

from .pairs import client, hear, serve
from .test_pairs import assemble

SERVER = SERVER_CODECS["ollama"]
PNG = "iVBORw0KGgoAAAANSUhEUg=="
TOOLS = (
    d.Tool("any", "", parameters={"type": "object"}),
    d.Tool("other", "It.", parameters={"type": "object"}),
)
PLAIN: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
texts = some.words.filter(lambda text: bool(text.strip()))
quickly = settings(max_examples=25)


@st.composite
def conversations(draw: st.DrawFn) -> list[d.Message]:
    said: list[d.Message] = [d.System(draw(texts))] if draw(st.booleans()) else []
    said.append(d.User(draw(texts)))
    count = 0
    for _ in range(draw(st.integers(0, 3))):
        blocks: list[Any] = [d.Thinking(draw(texts))] if draw(st.booleans()) else []
        blocks.append(d.Text(draw(texts)))
        calls = []
        for _ in range(draw(st.integers(0, 2))):
            count += 1
            calls.append(
                d.ToolCall(
                    f"call_{count}",
                    draw(st.sampled_from(["any", "other"])),
                    draw(some.json_objects),
                )
            )
        said.append(d.Assistant([*blocks, *calls]))
        said += [d.ToolResult(call.id, draw(texts)) for call in calls]
        said.append(
            d.User(
                draw(
                    st.one_of(texts, st.just((d.Text("see"), d.Image(d.Inline(PNG), "image/png"))))
                )
            )
        )
    return said


@given(
    conversations(),
    st.sampled_from([(), TOOLS]),
    st.booleans(),
    some.numbers,
    some.counts,
    st.data(),
)
@quickly
def test_any_request_round_trips(
    messages: list[d.Message],
    tools: Any,
    stream: bool,
    number: float | None,
    seed: int | None,
    data: st.DataObject,
) -> None:
    config = d.RuntimeConfig(
        temperature=number,
        max_tokens=data.draw(st.none() | st.integers(1, 99)),
        top_p=number,
        seed=seed,
        frequency_penalty=number,
        presence_penalty=number,
        stop_sequences=data.draw(st.none() | st.just(("a", "b"))),
        reasoning=data.draw(st.sampled_from([None, "none", "low", "high"])),
        extras=data.draw(st.sampled_from([{}, {"num_ctx": 4096, "mirostat": 1}])),
    )
    schema = data.draw(
        st.sampled_from([None, {"type": "object", "properties": {"a": {"type": "integer"}}}])
    )
    request = d.Request(
        messages,
        tools=tools,
        config=config,
        response_schema=schema,
        tool_choice=None,
        model="m",
        request_id="R",
        stream=stream,
    )
    check_request(request)
    encoded = client("ollama").encode(request)
    assert encoded.notes == ()
    asked = SERVER.decode(encoded.http.body)
    assert asked.warnings == ()
    assert replace(asked.with_extras(), request_id="R") == request


@given(
    verbs=some.verbs(), ending=st.sampled_from(["stop", "length", "fail"]), stream=st.booleans()
)
@quickly
def test_any_reply_round_trips(verbs: list[some.Verb], ending: str, stream: bool) -> None:
    sent = [each for each in verbs if each[0] != "whole"]
    request, heard = assemble("ollama", sent, ending, d.Usage(3, 4, total_tokens=7), stream=stream)
    hypothesis.note(f"{verbs} {heard}")
    raised: list[d.ProviderError] = []
    try:
        again = hear("ollama", request, serve("ollama", request, heard.events, heard.error))
    except d.ProviderError as error:  # an unstreamed body cannot represent this error
        raised.append(error)
    if raised:
        assert not stream
        assert raised == [heard.error]
        return
    assert (again.error is None) == (heard.error is None)
    if heard.error is not None:
        return
    ours = d.fold(heard.events)
    theirs = d.fold(again.events)
    assert theirs.message.text == ours.message.text
    assert theirs.message.thinking == ours.message.thinking
    assert theirs.tool_calls == ours.tool_calls
    assert theirs.finish_reason == ours.finish_reason
    assert theirs.usage == ours.usage


@pytest.mark.parametrize(
    ("arguments", "found"), [('{"a": 1}', {"a": 1}), ('{"b": 1}', {"b": 1}), ('{"a": ', None)]
)
def test_streamed_tool_call_is_sent_as_one_line_when_it_is_complete(
    arguments: str, found: dict[str, int] | None
) -> None:
    tool = d.Tool("any", "", parameters={"type": "object", "required": ["a"]})
    request = d.Request([d.User("Hello")], tools=(tool,), model="m", request_id="R", stream=True)
    out = Assembler(request_id="R", model="m", expected=Expectation(request))
    out.start()
    out.tool_start(0, "c", "any")
    for piece in arguments:
        out.tool_input(0, piece)
    out.finish("tool_calls")
    pieces = serve("ollama", request, out.take(), out.error)
    lines = [msgspec.json.decode(line) for line in b"".join(pieces).splitlines()]
    said = [line["message"] for line in lines if "message" in line]
    calls = [message["tool_calls"] for message in said if "tool_calls" in message]
    assert [call["function"]["arguments"] for (call,) in calls] == ([found] if found else [])
    assert ("error" in lines[-1]) == (found is None)


def test_the_pages_list_the_served_models() -> None:
    models = [ListedModel("a"), ListedModel("b", Capabilities.of({"max_context_tokens": 4096}))]
    shown = {path: write(models, "1.2") for path, write in SERVER.pages.items()}
    assert [each["name"] for each in shown["/api/tags"]["models"]] == ["a", "b"]
    assert [each["size_vram"] for each in shown["/api/ps"]["models"]] == [0, 0]
    assert [each["context_length"] for each in shown["/api/ps"]["models"]] == [0, 4096]
    assert shown["/api/version"] == {"version": "1.2"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("codec", [SERVER, OllamaGenerateServer()])
def test_reply_has_the_durations_that_clients_divide_by(codec: Any, stream: bool) -> None:
    """Strands computes latencies from them, others tokens per second."""
    body = {"model": "m", "prompt": "hi", "stream": stream, **PLAIN}
    for seconds, wanted in (((0.5, 2.0), (2e9, 0, 5e8, 1.5e9)), ((0.0, 0.0), (2, 0, 1, 1))):
        asked = codec.decode(body)
        encoder = codec.encoder(asked)
        times = iter(seconds)
        encoder.elapsed = lambda times=times: next(times)
        written = (
            b"".join([encoder.feed(event) for event in reply("Hi")(asked.request)]) + encoder.end()
        )
        last = json.loads(written.splitlines()[-1])
        names = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
        assert tuple([last[name] for name in names]) == wanted
