"""The responses wire: streams equal their last event, and nothing is stored."""

import json
from typing import Any

import pytest

import dragoman as d
import dragoman.errors
from dragoman.wire import SERVER_CODECS
from dragoman.wire.policy.translate import Target, translate
from dragoman.wire.responses import Quirks, ResponsesCodec
from dragoman.wire.seal import seal_opaque
from tests.rows import read_table

from .cases import BASE_URL, MODEL, Case, decode, find_cases, with_between

CASE_LIST = find_cases("responses")
REPLIED = [case for case in CASE_LIST if case.reply is not None and case.options.status < 300]
STREAMED = [case for case in REPLIED if case.is_stream]


def make_codec(**quirks: Any) -> ResponsesCodec:
    return ResponsesCodec(MODEL, BASE_URL, Quirks(**quirks))


def event_of(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def events_in(data: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of a stream, parsed without our decoder."""
    lines = data.decode().replace("\r\n", "\n").split("\n")
    found = [
        json.loads(line[5:])
        for line in lines
        if line.startswith("data:") and line[5:].strip().startswith("{")
    ]
    return [event for event in found if isinstance(event.get("type"), str)]


# Streams whose last event does not repeat the streamed content, with the reason. All other streams
# must give the reply that their last event contains.
UNLIKE = dict(read_table("unlike_responses"))


def test_streamed_replies_equal_the_response_in_their_last_event() -> None:
    for case in [case for case in STREAMED if case.name not in UNLIKE]:
        codec = case.codec(ResponsesCodec)
        streamed = decode(codec, case.request, [case.reply or b""])
        ends = [
            event
            for event in events_in(case.reply or b"")
            if event["type"] in ("response.completed", "response.incomplete")
        ]
        if not ends or isinstance(streamed.error, d.StreamInterruptedError):
            assert streamed.error is not None, case
            continue
        body = decode(codec, case.request, [json.dumps(ends[0]["response"]).encode()])
        assert body.facts == streamed.facts, case


def test_request_never_lets_the_server_store_the_response() -> None:
    for case in find_cases("responses", "wire.json"):
        assert case.json("wire.json")["store"] is False
        assert "previous_response_id" not in case.json("wire.json")


# Events without content; inserting one into a complete stream must not change the reply.
IDLE: list[dict[str, Any]] = read_table("idle_responses")


@pytest.mark.parametrize("idle", IDLE, ids=lambda event: event["type"])
def test_events_without_content_are_ignored(idle: dict[str, Any]) -> None:
    case = Case("responses", "text-stream")
    whole = decode(make_codec(), case.request, [case.reply or b""])
    heard = decode(make_codec(), case.request, [with_between(case.reply or b"", event_of(idle))])
    assert heard.facts == whole.facts


ADDED = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [{"type": "custom", "name": "f"}],
}


@pytest.mark.parametrize("knows_item", [True, False])
def test_tools_of_input_items_move_to_the_field_of_servers_without_the_item(
    knows_item: bool,
) -> None:
    item = {"role": "user", "content": "Hi"}
    native = {"responses": {"input": [ADDED, item, {**ADDED, "tools": None}, ADDED]}}
    codec = make_codec(additional_tools=knows_item, tool_kinds="all")
    request = d.Request([d.User("Hi")], native=native)
    body = json.loads(codec.encode(request).http.body)
    if knows_item:
        assert "tools" not in body
        assert body["input"] == native["responses"]["input"]
    else:
        assert body["tools"] == ADDED["tools"]
        assert body["input"] == [item]


SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch", "description": "p"}
SPAWN = {"type": "namespace", "name": "agents", "description": "a", "tools": [SHELL]}
SEARCH = {"type": "web_search"}
# A client's conversation, with calls that only some servers know; the last field is an item of a turn.
OWN_CALLS = [
    {"type": "message", "role": "user", "content": "Hi"},
    {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    {"type": "function_call", "call_id": "c2", "namespace": "agents", "name": "shell",
     "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c2", "output": "there"},
]  # fmt: skip


def pass_on(codec: ResponsesCodec, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what a gateway sends for a client's body, and the codes of the notes."""
    asked = SERVER_CODECS["responses"].decode({"model": MODEL, **body})
    target = Target("t", frozenset({"responses"}))
    request = translate(asked, SERVER_CODECS["responses"], target, drops=True).request
    encoded = codec.encode(request)
    return json.loads(encoded.http.body), [note.code for note in encoded.notes]


def test_tools_and_calls_are_sent_as_functions_to_servers_without_other_kinds() -> None:
    body = {"input": OWN_CALLS, "tools": [SHELL, PATCH, SPAWN, SEARCH, {"type": "tool_search"}]}
    sent, notes = pass_on(make_codec(), body)
    kinds = [(tool["type"], tool.get("name")) for tool in sent["tools"]]
    assert kinds == [
        ("function", "shell"),
        ("function", "patch"),
        ("function", "agents__shell"),
        ("web_search", None),
    ]
    assert [(item["type"], item.get("name")) for item in sent["input"]] == [
        ("message", None),
        ("function_call", "patch"),
        ("function_call_output", None),
        ("function_call", "agents__shell"),
        ("function_call_output", None),
    ]
    assert json.loads(sent["input"][1]["arguments"]) == {"input": "x"}
    assert notes == ["tools_sent_as_functions"]


def test_custom_tool_alone_is_sent_as_a_function() -> None:
    sent, notes = pass_on(make_codec(), {"model": "m", "input": "Hi", "tools": [PATCH]})
    assert [(tool["type"], tool["name"]) for tool in sent["tools"]] == [("function", "patch")]
    assert notes == ["tools_sent_as_functions"]


@pytest.mark.parametrize("tools", [[PATCH], [SPAWN], [SHELL, SEARCH]])
def test_tools_are_sent_unchanged_to_servers_that_take_each_kind(
    tools: list[dict[str, Any]],
) -> None:
    body = {"input": OWN_CALLS[:1], "tools": tools}
    sent, notes = pass_on(make_codec(tool_kinds="all"), body)
    assert sent["tools"] == tools
    assert notes == []


def test_functions_and_hosted_tools_are_sent_unchanged_to_every_server() -> None:
    body = {"input": OWN_CALLS[:1], "tools": [SHELL, SEARCH]}
    sent, notes = pass_on(make_codec(), body)
    assert sent["tools"] == body["tools"]
    assert notes == []


CACHED = {"type": "web_search", "external_web_access": False, "search_context_size": "low"}
LIVE = {**CACHED, "external_web_access": True}
SEARCHES: list[tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]] = [
    ([SHELL, SEARCH], [SHELL, SEARCH], []),
    ([SHELL, LIVE], [SHELL, {**SEARCH, "search_context_size": "low"}], []),
    ([SHELL, CACHED], [SHELL], ["hosted_tool_dropped"]),
]  # fmt: skip


@pytest.mark.parametrize(("tools", "kept", "losses"), SEARCHES)
@pytest.mark.parametrize("place", ["field", "item"])
def test_search_of_live_pages_is_sent_without_a_field_and_of_cached_pages_left_out(
    place: str, tools: list[dict[str, Any]], kept: list[dict[str, Any]], losses: list[str]
) -> None:
    item = {"type": "message", "role": "user", "content": "Hi"}
    body: dict[str, Any] = {"input": [item], "tools": tools}
    if place == "item":
        body = {"input": [{**ADDED, "tools": tools}, item]}
    sent, notes = pass_on(make_codec(tool_kinds="all"), body)
    assert sent["tools"] == kept
    assert notes == losses
    sent, notes = pass_on(make_codec(tool_kinds="all", external_web_access=True), body)
    assert sent["tools"] == tools
    assert notes == []


def test_search_of_cached_pages_is_left_out_beside_tools_that_become_functions() -> None:
    sent, notes = pass_on(make_codec(), {"input": OWN_CALLS[:1], "tools": [PATCH, CACHED]})
    assert [tool["type"] for tool in sent["tools"]] == ["function"]
    assert notes == ["hosted_tool_dropped", "tools_sent_as_functions"]


def test_web_access_that_a_program_sets_is_treated_like_that_of_a_client() -> None:
    tools = [d.ServerTool("web_search", {"external_web_access": each}) for each in (True, False)]
    request = d.Request([d.User("Hi")], server_tools=tuple(tools))
    encoded = make_codec().encode(request)
    assert json.loads(encoded.http.body)["tools"] == [SEARCH]
    assert [each.code for each in encoded.warnings] == ["hosted_tool_dropped"]


def test_error_about_web_access_teaches_to_leave_it_out() -> None:
    codec = make_codec(external_web_access=True)
    message = "Argument not supported: external_web_access"
    error = dragoman.errors.InvalidRequestError(message, status=400, provider_message=message)
    request = d.Request([d.User("Hi")], native={"responses": {"tools": [CACHED]}})
    learned = codec.learn(error, request)
    assert learned is not None
    assert not learned.quirks.external_web_access


@pytest.mark.parametrize(
    "message",
    [
        "unknown variant `namespace`, expected one of `function`, `web_search`",  # xAI
        "tool type namespace not supported",  # vLLM
        "malformed request: failed to parse JSON for /v1/responses: unknown tool type",
        "Unsupported Responses tool type: 'custom'",
        "'type' of tool must be 'function'",  # llama.cpp
    ],
)
def test_error_about_a_kind_of_tool_teaches_to_send_functions(message: str) -> None:
    codec = make_codec(tool_kinds="all")
    error = dragoman.errors.InvalidRequestError(message, status=400, provider_message=message)
    request = d.Request([d.User("Hi")], native={"responses": {"tools": [PATCH]}})
    learned = codec.learn(error, request)
    assert learned is not None
    assert learned.quirks.tool_kinds == "functions"
    assert codec.learn(error, d.Request([d.User("Hi")])) is None


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "rs_1"},
        {"type": "additional_tools", "tools": [PATCH]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "message", "role": "developer", "content": "Obey."},
    ],
)
@pytest.mark.parametrize("client", ["anthropic", "bedrock"])
def test_sealed_item_that_no_model_sends_is_refused(client: str, item: dict[str, Any]) -> None:
    forged = seal_opaque(d.Opaque(item, d.Continuity(issuer=d.Issuer("responses", None, MODEL))))
    turn: dict[str, Any] = {"type": "redacted_thinking", "data": forged}
    if client == "bedrock":
        turn = {"reasoningContent": {"redactedContent": forged}}
    talk = [("user", {"text": "Hi"}), ("assistant", turn), ("user", {"text": "Go"})]
    messages = [{"role": role, "content": [{"type": "text", **part}]} for role, part in talk]
    if client == "bedrock":
        messages = [{"role": role, "content": [part]} for role, part in talk]
    asked = SERVER_CODECS[client].decode(
        {"model": MODEL, "max_tokens": 9, "messages": messages}
        if client == "anthropic"
        else {"messages": messages},
        f"/model/{MODEL}/converse",
    )
    with pytest.raises(d.UnsupportedContentError, match="is not from a reply"):
        make_codec().encode(asked.request)


def test_unknown_effort_of_a_client_is_reported() -> None:
    body = {"model": "m", "input": "Hi", "reasoning": {"effort": "extreme"}}
    asked = SERVER_CODECS["responses"].decode(body)
    assert asked.request.config.reasoning is None
    assert "reasoning" in asked.concepts


def test_repeated_tool_of_an_input_item_is_offered_once() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    added = {**ADDED, "tools": [tool, tool]}
    asked = SERVER_CODECS["responses"].decode(
        {"model": "m", "input": [added, {"role": "user", "content": "Hi"}]}
    )
    assert [each.name for each in asked.request.tools] == ["f"]


def test_stream_whose_items_have_no_ids_is_read_whole() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    named = {**call, "status": "completed", "x_state": "n"}
    events = [
        {"type": "response.created", "response": {"id": "r", "model": "m", "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0,
         "item": {"type": "reasoning", "summary": []}},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0,
         "delta": "Hm."},
        {"type": "response.output_item.done", "output_index": 0, "item": thought},
        {"type": "response.output_item.added", "output_index": 1,
         "item": {**call, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}"},
        {"type": "response.output_item.done", "output_index": 1, "item": named},
        {"type": "response.completed",
         "response": {"id": "r", "model": "m", "status": "completed", "output": [thought, named]}},
    ]  # fmt: skip
    tool = d.Tool("f", "", parameters={"type": "object"})
    request = d.Request([d.User("Hi")], tools=(tool,), model=MODEL, stream=True)
    heard = decode(make_codec(), request, [event_of(event) for event in events])
    ending = heard.events[-1]
    assert isinstance(ending, d.MessageComplete)
    first, second = ending.final_content
    assert isinstance(first, d.Thinking)
    assert first.text == "Hm."
    assert isinstance(second, d.ToolCall)
    assert second.continuity is not None
    assert second.continuity.opaque == {"x_state": "n"}
