"""The wire of Cohere's v2 chat API: cases, unusual replies, requests, server side, recordings."""

import json
from typing import Any

import pytest

import dragoman as d
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.cohere import CohereCodec, Quirks

from .cases import (
    DecodedReply,
    decode,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OURS = d.Issuer("cohere", None, "m")
SERVER = SERVER_CODECS["cohere"]


def codec(**quirks: Any) -> CohereCodec:
    return CohereCodec("m", "https://api.example.test", Quirks(**quirks))


def read(data: Any, *, stream: bool = True, tools: tuple[d.Tool, ...] = ()) -> DecodedReply:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return decode(
        codec(), d.Request([d.User("x")], tools, model="m", stream=stream), [body], judged=False
    )


def events(*records: dict[str, Any]) -> bytes:
    return b"".join([b"data: " + json.dumps(record).encode() + b"\n\n" for record in records])


def content(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "index": 0, "delta": {"message": {"content": fields}}}


END = {"type": "message-end", "delta": {"finish_reason": "COMPLETE"}}


def test_each_citation_is_attached_to_the_text_that_it_cites() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "thinking", "thinking": "t"},
        {"type": "text", "text": "b"},
    ]
    found = [
        {"start": 0, "end": 1, "sources": [{"id": "x"}], "content_index": 0},
        {"start": 0, "sources": [{"id": "y"}]},
    ]
    reply = read(
        {"message": {"content": parts, "citations": found}, "finish_reason": "COMPLETE"},
        stream=False,
    ).response
    assert reply is not None
    texts = [block for block in reply.message.content if isinstance(block, d.Text)]
    assert [[cited.source for cited in block.citations] for block in texts] == [["x"], ["y"]]


@pytest.mark.parametrize(
    ("data", "text", "kind"),
    [
        ({"message": {"content": "plain"}, "finish_reason": "COMPLETE"}, "plain", None),
        ({"message": {"content": [5, {"text": 5}]}, "finish_reason": None}, "", None),
        ({"message": {}, "finish_reason": "UNHEARD_OF"}, "", None),
        ({"message": "no such thing"}, None, d.UnavailableError),
        ({"error": {"message": "broken"}}, None, d.UnavailableError),
        ({"detail": "broken"}, None, d.UnavailableError),
        ({"id": "x"}, None, d.InvalidResponseError),
        ([], None, d.InvalidResponseError),
        (b'{"text": "half', None, d.InvalidResponseError),
        (b'{"event_type":"text-generation","text":"a"}\n{"event_type":"stream-end","response":{"text":"a",'
         b'"finish_reason":"COMPLETE","meta":{"billed_units":{"input_tokens":1,"output_tokens":2}}}}\n', "a", None),
        (b'{"event_type":"text-generation"}\n{"event_type":"text-generation"}\n', None,
         d.InvalidResponseError),
        (b"data: [DONE]\n\n" + events(content("content-delta", text="a"), END), "a", None),
        (events({"type": "content-delta"}, {"type": "unheard-of"}, {"type": "content-start"}, END),
         "", None),
        (events({"type": "content-delta", "delta": {"message": {"content": "x"}}},
                {"type": "message-end"}), "", None),
        (events({"type": "citation-start", "delta": {"message": {"citations": 5}}}, END), "",
         None),
        (events({"type": "content-delta", "delta": 5}), None, d.InvalidResponseError),
        (b'data: {"type": "content-delta", "delta": {"message": {"content": {"text": "\xff"}}}}\n\n'
         + events(END), "\ufffd", None),
        (events(content("content-delta", text="a")), "a", d.StreamInterruptedError),
        (events({"type": "message-end", "delta": {"error": "no", "error_type": 5}}), "",
         d.InvalidRequestError),
        (b"event: error\ndata: it broke\n\n", None, d.UnavailableError),
    ],
)  # fmt: skip
def test_unusual_replies_give_text_or_the_right_error(
    data: Any, text: str | None, kind: type[d.ProviderError] | None
) -> None:
    heard = read(data)
    assert type(heard.error) is (kind or type(None)), heard.error
    assert (None if heard.response is None else heard.response.text) == text


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([("tool-call-start", {"id": 5, "function": {"name": 5, "arguments": {"a": 1}}})],
         {"a": 1}),
        ([("tool-call-start", {"function": {"name": "f", "arguments": '{"a"'}}),
          ("tool-call-delta", 5),
          ("tool-call-delta", {"function": {"arguments": ": 1}"}})], {"a": 1}),
        ([("tool-call-delta", {"function": {"name": "f", "arguments": "{}"}}),
          ("tool-call-end", None),
          ("tool-call-end", None)], {}),
        ([("tool-call-start", None)], {}),
        ([("tool-call-start", {"function": 5}), ("tool-call-delta", {"function": 5}),
          ("tool-call-end", None)], {}),
    ],
)  # fmt: skip
def test_tool_calls_with_missing_or_wrong_fields_are_read(
    calls: list[tuple[str, Any]], expected: dict[str, Any]
) -> None:
    records = [
        {"type": kind, "index": 0, "delta": {"message": {"tool_calls": call}}}
        for kind, call in calls
    ]
    reply = read(
        events(*records, {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL"}})
    ).response
    assert reply is not None
    assert ([call.arguments for call in reply.tool_calls], reply.finish_reason) == (
        [expected],
        "tool_calls",
    )


def test_tool_calls_of_api_version_1_are_read() -> None:
    body = {
        "text": None,
        "generation_id": "1",
        "tool_calls": [{"name": "f", "parameters": {"a": 1}}],
    }
    cited = [{"document_ids": 5}, {"document_ids": ["a", 5]}]
    reply = read({**body, "finish_reason": "COMPLETE", "citations": cited}, stream=False).response
    assert reply is not None
    assert [call.arguments for call in reply.tool_calls] == [{"a": 1}]
    assert reply.finish_reason == "tool_calls"


# --- encoding requests -------------------------------------------------------------------------


def sent(request: d.Request, **quirks: Any) -> tuple[dict[str, Any], list[str]]:
    encoded = codec(**quirks).encode(request)
    return json.loads(encoded.http.body), [note.code for note in encoded.notes]


def test_dropped_and_changed_content_is_noted() -> None:
    messages = [
        d.User([d.Text("a", d.Continuity("s")), d.Document(d.Inline("eA=="), "text/markdown")]),
        d.Assistant([
            d.Thinking("cut", d.Continuity(replayable=False)),
            d.Thinking("foreign", d.Continuity("sig", issuer=d.Issuer("anthropic"))),
            d.ToolCall("c", "f", {}, d.Continuity("sig")),
            d.Text("after", d.Continuity(None, {"citations": 5}, OURS)),
            d.Audio(d.Inline("aGk="), "audio/wav"),
            d.Audio(d.Inline("aGk="), "audio/wav", "said"),
            d.Opaque({}),
        ]),
        d.ToolResult("c", [d.Image(d.Inline("aGk="), "image/png"), d.Text("b")], is_error=True),
        d.Assistant([d.Thinking("only", d.Continuity(replayable=False))]),
        d.User([d.Document(d.Inline("eA=="), "text/plain")]),
    ]  # fmt: skip
    body, codes = sent(
        d.Request(
            messages,
            (d.Tool("f", strict=True), d.Tool("g")),
            d.RuntimeConfig(extras={"logprobs": True}),
        )
    )
    assert codes == [
        "logprobs_in_raw", "strict_dropped", "continuity_dropped", "document_moved",
        "thinking_dropped",
        "continuity_dropped", "continuity_dropped", "continuity_dropped", "order_lost",
        "continuity_dropped",
        "order_lost", "audio_dropped", "order_lost", "audio_transcribed", "opaque_dropped",
        "image_omitted",
        "is_error_dropped", "thinking_dropped", "continuity_dropped", "message_dropped",
        "document_moved",
    ]  # fmt: skip
    assert [each["id"] for each in body["documents"]] == ["doc_0", "doc_1"]
    assert body["messages"][-1] == {"role": "user", "content": ""}
    facts = [part["type"] for part in body["messages"][1]["content"]]
    assert facts == ["thinking", "text", "text"]


def test_unsupported_content_and_settings_are_rejected() -> None:
    for block in (
        d.Document(d.Inline("eA=="), "application/pdf"),
        d.Document(d.Inline("eA==")),
        d.Document(d.Url("https://a.test/a.txt"), "text/plain"),
        d.Document(d.Inline("/w=="), "text/plain"),
        d.Audio(d.Inline("eA=="), "audio/wav"),
    ):
        with pytest.raises(d.UnsupportedContentError):
            codec().encode(d.Request([d.User([block])]))
    with pytest.raises(d.UnsupportedFeatureError):
        codec().encode(
            d.Request(
                [d.User("x")],
                config=d.RuntimeConfig(reasoning="xhigh"),
                model="command-a-reasoning-08-2025",
            )
        )


def test_tool_choice_is_sent_only_with_tools() -> None:
    body, codes = sent(
        d.Request(
            [d.User("x")], config=d.RuntimeConfig(extras={"tools": [{}]}), tool_choice="none"
        )
    )
    assert (body["tool_choice"], codes) == ("NONE", [])
    assert (
        "tool_choice" not in sent(d.Request([d.User("x")], (d.Tool("f"),), tool_choice="auto"))[0]
    )
    assert sent(d.Request([d.User("x")], (d.Tool("f"),), tool_choice=d.ForceTool("f")))[1] == []


def test_thinking_is_not_sent_to_a_model_that_does_not_reason() -> None:
    known = d.Capabilities.of({"supports_thinking": False, "supports_structured_output": False})
    encoded = (
        CODECS["cohere"]
        .connect("m", "https://a.test", None, known)
        .encode(
            d.Request(
                [d.User("x"), d.Assistant([d.Thinking("t"), d.Text("a")]), d.User("y")],
                response_schema=SCHEMA,
            )
        )
    )
    assert [note.code for note in encoded.notes] == ["thinking_dropped"]
    assert encoded.structured_path == "prompt"


# --- the server side: reading requests and writing replies -------------------------------------


def test_alternative_forms_of_a_request_are_read() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "document", "document": {"id": "1", "data": {"a": 1}}},
    ]
    body: dict[str, Any] = {
        "model": "m",
        "messages": [
            {"role": "system",
             "content": [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "",
             "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "c",
             "content": [*parts, {"type": "document", "document": {"data": "t"}}]},
            {"role": "assistant", "content": "said", "citations": [{"start": 0}]},
            {"role": "user", "content": "v"},
        ],
        "strict_tools": True,
        "tool_choice": "NONE",
        "response_format": {"type": "json_object"},
        "thinking": {"type": "disabled"},
    }  # fmt: skip
    asked = SERVER.decode(body)
    assert asked.request.messages[0] == d.System("S\n\nT")
    assert asked.request.messages[3].text == 'a{"a":1}t'  # type: ignore[union-attr]
    assert (asked.request.tool_choice, asked.request.config.reasoning) == ("none", "off")
    assert asked.request.response_schema == {"type": "object"}
    assert [warning.code for warning in asked.warnings] == ["strict_tools_dropped"]
    plain = {"model": "m", "messages": body["messages"][1:2]}
    assert (
        SERVER.decode({**plain, "response_format": {"type": "text"}}).request.response_schema
        is None
    )
    assert (
        SERVER.decode({**plain, "thinking": {"type": "enabled"}}).request.config.reasoning
        == "medium"
    )
    for wrong in (
        {"messages": [{"role": "x", "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
        {"response_format": {"type": "json_object", "json_schema": 5}},
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "["}}],
                }
            ]
        },
    ):
        with pytest.raises((d.InvalidRequestError, d.UnsupportedContentError)):
            SERVER.decode({**plain, **wrong})
