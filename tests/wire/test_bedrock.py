"""The wire of the Converse API: cases, unusual replies, requests, server side, recordings."""

import base64
import gzip
import json
from collections import Counter
from typing import Any

import pytest

import dragoman as d
from dragoman.conformance.cases import write_frames
from dragoman.eventstream import EventStreamDecoder, encode_message
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.bedrock import BedrockCodec, Quirks
from dragoman.wire.codec import _decode_stream
from tests.rows import read_table

from .cases import (
    RECORDED,
    DecodedReply,
    Record,
    decode,
    plain_request,
)
from .readings import READERS

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OURS = d.Issuer("bedrock", None, "m")
SERVER = SERVER_CODECS["bedrock"]
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def codec(model: str = "m", **quirks: Any) -> BedrockCodec:
    return BedrockCodec(model, "https://bedrock-runtime.us-east-1.amazonaws.com", Quirks(**quirks))


def read(data: Any, *, stream: bool = True) -> DecodedReply:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return decode(
        codec(), d.Request([d.User("x")], model="m", stream=stream), [body], judged=False
    )


def frames(*records: Any) -> bytes:
    return write_frames(b"\n".join([json.dumps(record).encode() for record in records]))


def delta(index: Any, **fields: Any) -> dict[str, Any]:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": fields}}


END = ({"messageStop": {"stopReason": "end_turn"}}, {"metadata": {"usage": {"inputTokens": 1}}})


@pytest.mark.parametrize(
    ("data", "text", "kind"),
    [
        ({"output": {"message": {"content": [5, {"text": "a"}]}}}, "a", None),
        ({"output": {"message": {"content": None}}, "stopReason": "unheard_of"}, "", None),
        ({"output": {"message": {"content": [{}]}}, "stopReason": "end_turn", "usage": 5}, "",
         None),
        ({"output": {"message": {"content": [{"reasoningContent": {"reasoningText": 5}}]}}}, "",
         None),
        ({"output": 5}, None, d.InvalidResponseError),
        ({"message": "broken"}, None, d.UnavailableError),
        ({"Message": "broken"}, None, d.UnavailableError),
        ([], None, d.InvalidResponseError),
        (b"{", None, d.InvalidResponseError),
        (b'{"messageStart":{}}\n{"contentBlockDelta":{"delta":{"text":"a"}}}\n\n', "a",
         d.StreamInterruptedError),
        (b'{"messageStop":{"stopReason":"end_turn"}}\n', "", None),
        (b'{"messageStart":{}}\n{"throttlingException":{"message":"no"}}\n{"messageStart":{}}', "",
         d.RateLimitError),
        (frames(delta(0, text="a"), *END), "a", None),
        (frames({"contentBlockDelta": {"delta": 5}}, {"contentBlockDelta": None}, *END), "", None),
        (frames({"contentBlockDelta": 5}), None, d.InvalidResponseError),
        (frames({"error": {"message": "it broke"}}), None, d.UnavailableError),
        (frames({"messageStop": 5}, {"metadata": 5}, delta(0, toolUse=5)), "",
         d.StreamInterruptedError),
        (frames({"contentBlockStart": {"contentBlockIndex": 0, "start": {}}}, *END), "", None),
        (frames(delta(0, text="a"), {"someException": {"message": "it broke"}}), "a",
         d.UnavailableError),
    ],
)  # fmt: skip
def test_unusual_replies_give_text_or_the_right_error(
    data: Any, text: str | None, kind: type[d.ProviderError] | None
) -> None:
    heard = read(data)
    assert type(heard.error) is (kind or type(None)), heard.error
    assert (None if heard.response is None else heard.response.text) == text


def test_invalid_utf8_in_text_is_replaced() -> None:
    data = frames(delta(0, text="?"), *END)
    payload = b'{"contentBlockIndex":0,"delta":{"text":"\xff"}}'
    broken = encode_message(
        {":event-type": "contentBlockDelta", ":message-type": "event"}, payload
    )
    reply = read(broken + data).response
    assert reply is not None
    assert reply.text == "\ufffd?"


def test_tool_calls_with_missing_or_wrong_fields_are_read() -> None:
    start = {
        "contentBlockStart": {
            "contentBlockIndex": 0,
            "start": {"toolUse": {"toolUseId": 5, "name": 5}},
        }
    }
    reply = read(
        frames(
            start, delta(0, toolUse={"input": {"a": 1}}), delta(1, toolUse={"input": "{}"}), *END
        )
    ).response
    assert reply is not None
    assert [call.arguments for call in reply.tool_calls] == [{"a": 1}, {}]
    assert reply.finish_reason == "tool_calls"
    server = {"toolUse": {"type": "server_tool_use", "toolUseId": "t"}}
    opaque = read(
        frames({"contentBlockStart": {"start": server}}, delta(None, toolUse={"input": 5}), *END)
    ).response
    assert opaque is not None
    assert isinstance(opaque.message.content[0], d.Opaque)


# --- encoding requests -------------------------------------------------------------------------


def sent(request: d.Request, model: str = "m", **quirks: Any) -> tuple[dict[str, Any], list[str]]:
    encoded = codec(model, **quirks).encode(request)
    return json.loads(encoded.http.body), [note.code for note in encoded.notes]


def test_url_contains_the_model_and_the_streaming_mode() -> None:
    root = "https://bedrock-runtime.us-east-1.amazonaws.com/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0"
    whole = codec(CLAUDE).encode(d.Request([d.User("x")])).http
    streamed = codec(CLAUDE).encode(d.Request([d.User("x")], stream=True)).http
    assert (whole.url, streamed.url) == (f"{root}/converse", f"{root}/converse-stream")
    assert streamed.headers["accept"] == "application/vnd.amazon.eventstream"
    asked = next(codec(CLAUDE).ready())
    assert (
        asked.url
        == f"https://bedrock.us-east-1.amazonaws.com/inference-profiles/{CLAUDE.replace(':', '%3A')}"
    )


def test_unsupported_content_is_noted_or_rejected() -> None:
    blocks = [
        d.Image(d.Url("data:image/png;base64,aGk="), detail="low"),
        d.Image(d.Url("s3://bucket/a.png"), "image/png"),
        d.Document(d.Inline("aGk="), "text/csv", "a/b_c.csv"),
        d.Document(d.Inline("aGk="), "text/markdown"),
        d.Document(d.Inline("aGk="), "text/html", "___"),
    ]
    body, codes = sent(d.Request([d.User(blocks)], (d.Tool("f", strict=True),)))
    assert codes == ["strict_dropped", "detail_dropped", "name_projected", "name_projected"]
    content = body["messages"][0]["content"]
    assert content[1] == {
        "image": {"format": "png", "source": {"s3Location": {"uri": "s3://bucket/a.png"}}}
    }
    facts = [each["document"]["name"] for each in content[2:]]
    assert facts == ["a-b-c-csv", "document", "document"]
    for wrong in (
        d.Image(d.Url("https://a.test/a.png"), "image/png"),
        d.Image(d.Inline("aGk="), "image/tiff"),
        d.Image(d.Inline("aGk=")),
        d.Document(d.Url("data:text/x,aGk")),
        d.Audio(d.Inline("aGk="), "audio/midi"),
        d.Audio(d.Url("https://a.test/a.wav"), "audio/wav"),
    ):
        with pytest.raises(d.UnsupportedContentError):
            codec().encode(d.Request([d.User([wrong])]))
    for config in (d.RuntimeConfig(seed=1), d.RuntimeConfig(presence_penalty=1.0)):
        with pytest.raises(d.UnsupportedFeatureError):
            codec().encode(d.Request([d.User("x")], config=config))
    assert sent(d.Request([d.User("x")], (d.Tool("f"),), tool_choice="auto"))[0]["toolConfig"][
        "toolChoice"
    ] == {"auto": {}}


def test_native_blocks_are_sent_back_to_the_service_that_issued_them() -> None:
    heard = read(frames(
        {"contentBlockStart": {"contentBlockIndex": 0,
                               "start": {"toolUse": {"type": "server_tool_use", "name": "g"}}}},
        delta(0, toolUse={"input": '{"q": 1}'}), delta(1, text="Hi"), *END,
    )).response  # fmt: skip
    assert heard is not None
    result = d.Opaque(
        {"type": "toolResult", "toolResult": {"toolUseId": "t"}}, d.Continuity(issuer=OURS)
    )
    message = d.Assistant([result, *heard.message.content[1:]])
    body, codes = sent(d.Request([d.User("x"), message, d.User("y")]))
    assert codes == []
    assert body["messages"][1]["content"] == [{"toolResult": {"toolUseId": "t"}}, {"text": "Hi"}]
    call = d.Opaque(
        {"type": "toolUse", "toolUse": {"name": "g"}, "input": {"q": 1}}, d.Continuity(issuer=OURS)
    )
    body, _ = sent(d.Request([d.User("x"), d.Assistant([call, d.Text("a")]), d.User("y")]))
    assert body["messages"][1]["content"][0] == {"toolUse": {"name": "g", "input": {"q": 1}}}


def test_structured_output_uses_a_tool_unless_the_model_reasons() -> None:
    request = d.Request(
        [d.User("x")],
        config=d.RuntimeConfig(reasoning=2000, max_tokens=4000),
        response_schema=SCHEMA,
    )
    assert codec(CLAUDE).encode(request).structured_path == "prompt"
    given = d.RuntimeConfig(
        extras={"additionalModelRequestFields": {"thinking": {"type": "enabled"}}}
    )
    assert (
        codec()
        .encode(d.Request([d.User("x")], config=given, response_schema=SCHEMA))
        .structured_path
        == "prompt"
    )
    off = d.Request([d.User("x")], config=d.RuntimeConfig(reasoning="off"), response_schema=SCHEMA)
    assert codec(CLAUDE).encode(off).structured_path == "tool"
    known = d.Capabilities.of({"supports_images": False, "supports_tools": False})
    adapted = CODECS["bedrock"].connect("m", "https://a.test", None, known)
    assert adapted.encode(off).structured_path == "prompt"


@pytest.mark.parametrize(
    "data",
    [{}, {"type": []}, {"type": "text"}, {"type": "medium", "converse": 5}, {"type": "x", "y": 1}],
)
def test_opaque_data_of_an_unknown_shape_is_sent_unchanged(data: dict[str, Any]) -> None:
    home = d.Continuity(issuer=d.Issuer("bedrock", None, "m"))
    request = d.Request(
        [d.User("x"), d.Assistant([d.Text("a"), d.Opaque(data, home)]), d.User("y")], model="m"
    )
    turns = json.loads(codec().encode(request).http.body)["messages"]
    assert turns[1]["content"] == [{"text": "a"}, data]


# --- the server side: reading requests and writing replies -------------------------------------


def test_alternative_forms_of_a_request_are_read() -> None:
    body: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": [{"text": "a"}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "f"}},
                                              {"text": "b"},
                                               {"reasoningContent": {"reasoningText": {"text": "t"}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "c",
                                                         "content": [{"json": {"a": 1}}]}}]},
        ],
        "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {}}}}],
                       "toolChoice": {"tool": {"name": "f"}}},
    }  # fmt: skip
    asked = SERVER.decode(body, "/model/m/converse")
    assert asked.request.messages[2].text == '{"a":1}'  # type: ignore[union-attr]
    assert (asked.request.tool_choice.name, asked.request.stream) == ("f", False)  # type: ignore[union-attr]
    plain = SERVER.decode({"messages": body["messages"][:1]}, "/model/a%3A0/converse")
    assert plain.request.model == "a:0"
    for source in ({"text": "hi"}, {"bytes": "aGk="}):
        said = {
            "role": "user",
            "content": [{"document": {"name": "d", "format": "txt", "source": source}}],
        }
        (read,) = SERVER.decode({"messages": [said]}, "/model/m/converse").request.messages
        assert read == d.User([d.Document(d.Inline("aGk="), "text/plain", "d")])
    untyped = {
        "role": "user",
        "content": [{"document": {"name": "d", "source": {"text": "hi"}}}, {"text": "a"}],
    }
    (read,) = SERVER.decode({"messages": [untyped]}, "/model/m/converse").request.messages
    assert read == d.User([d.Document(d.Inline("aGk="), "text/plain", "d"), d.Text("a")])
    mixed = [{"text": "a"}, {"toolResult": {"toolUseId": "c", "content": []}}]
    found = SERVER.decode(
        {"messages": [{"role": "user", "content": mixed}]}, "/model/m/converse"
    ).request.messages
    assert found == (d.User([d.Text("a")]), d.ToolResult("c", []))
    own: list[dict[str, Any]] = [
        {"toolUse": {"name": "g", "type": "server_tool_use"}},
        {"toolResult": {"toolUseId": "t"}},
    ]
    said = {"role": "assistant", "content": own}
    (read,) = SERVER.decode({"messages": [said]}, "/model/m/converse").request.messages
    found = [block.data for block in read.content if isinstance(block, d.Opaque)]
    assert found == [{"type": "toolUse", **own[0]}, {"type": "toolResult", **own[1]}]


def test_error_that_is_a_page_is_read() -> None:
    assert codec().error(500, {}, b"<html>no</html>").provider_message == "no"


def test_path_of_another_operation_is_rejected() -> None:
    body = {"messages": [{"role": "user", "content": [{"text": "a"}]}]}
    with pytest.raises(d.InvalidRequestError):
        SERVER.decode(body, "/model/m/invoke")


LOST: dict[str, tuple[dict[str, Any], list[str]]] = dict(read_table("bedrock_losses"))


@pytest.mark.parametrize(("body", "codes"), LOST.values(), ids=LOST)
def test_fields_that_our_request_cannot_represent_are_reported(
    body: dict[str, Any], codes: list[str]
) -> None:
    hi = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    asked = SERVER.decode({**hi, **body}, "/model/m/converse")
    assert [warning.code for warning in asked.warnings] == codes


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({"guardContent": {"text": {"text": "a"}}},
         "messages[0].content[0]: content of type 'guardContent'"),
        ({"video": {}}, "messages[0].content[0]: content of type 'video'"),
        ({"document": {"source": {"content": [{"text": "a"}]}}},
         "messages[0].content[0].document.source.content"),
    ],
)  # fmt: skip
def test_content_that_our_request_cannot_represent_is_rejected(
    block: dict[str, Any], path: str
) -> None:
    with pytest.raises((d.InvalidRequestError, d.UnsupportedContentError)) as caught:
        SERVER.decode({"messages": [{"role": "user", "content": [block]}]}, "/model/m/converse")
    assert caught.value.message.startswith(path)


def test_portable_server_tool_names_are_translated() -> None:
    tools = (
        d.ServerTool("web_search"),
        d.ServerTool("code_execution"),
        d.ServerTool("other", {"a": 1}),
    )
    body, codes = sent(d.Request([d.User("x")], server_tools=tools))
    names = [
        {"name": "nova_grounding"},
        {"name": "nova_code_interpreter"},
        {"name": "other", "a": 1},
    ]
    assert (body["toolConfig"]["tools"], codes) == ([{"systemTool": tool} for tool in names], [])
    with pytest.raises(d.UnsupportedFeatureError, match=r"server_tools\[0\]"):
        sent(d.Request([d.User("x")], server_tools=(d.ServerTool("url_context"),)))


# --- InvokeModel: native bodies of models, read by the matching wires --------------------------


def payloads_of(record: dict[str, Any]) -> list[Any]:
    """Return the JSON of a recorded model invocation: its body, or the chunks of its stream."""
    if record["response_encoding"] == "utf-8":
        lines = (
            record["response_body"].splitlines() if record["stream"] else [record["response_body"]]
        )
        return [json.loads(line) for line in lines if line.strip()]
    decoder = EventStreamDecoder()
    frames = decoder.feed(base64.b64decode(record["response_body"]))
    chunks = [json.loads(frame.data)["chunk"]["bytes"] for frame in frames]
    return [json.loads(base64.b64decode(chunk)) for chunk in chunks]


def wire_of(first: dict[str, Any]) -> str | None:
    if first.get("type") in ("message_start", "message"):
        return "anthropic"
    if "choices" in first:
        # A legacy text completion, which Dragoman does not decode.
        return None if "text" in first["choices"][0] else "openai"
    if "text" in first and "finish_reason" in first:  # version 1 of Cohere's chat API
        return "cohere"
    return (
        "bedrock"
        if "messageStart" in first or ("output" in first and "stopReason" in first)
        else None
    )


# Bodies that no wire decodes (prompt completions and embedding vectors), by the field that
# identifies each kind.
COMPLETIONS = {
    "completion": "Claude 1 and 2", "results": "Titan", "outputText": "Titan, streamed",
    "generation": "Llama",
    "generations": "Command", "is_finished": "Command, streamed", "outputs": "Mistral",
    "completions": "Jurassic",
    "embedding": "vectors", "embeddings": "vectors",
    "choices": "completions of a marketplace model",
}  # fmt: skip


@pytest.mark.recordings
def test_recorded_native_bodies_are_read_by_the_matching_wire(count: Any) -> None:
    found: Counter[str] = Counter()
    with gzip.open(RECORDED, "rb") as lines:
        records = [
            record
            for line in lines
            if (record := json.loads(line))["provider"] == "bedrock-invoke"
        ]
    for record in records:
        if record["status"] >= 300:
            assert (
                codec()
                .error(record["status"], {}, record["response_body"].encode())
                .provider_message
            )
            found["refused"] += 1
            continue
        payloads = payloads_of(record)
        wire = wire_of(payloads[0])
        if wire is None:
            assert set(payloads[0]) & set(COMPLETIONS), record["id"]
            found["left"] += 1
            continue
        written = [json.dumps(each) for each in payloads]
        body = (
            "\n".join(written)
            if wire == "bedrock"
            else "".join([f"data: {each}\n\n" for each in written])
        )
        data = (body if record["stream"] else written[0]).encode()
        reader = CODECS[wire].connect("m", "https://a.test", None, d.Capabilities())
        heard = decode(reader, plain_request(stream=record["stream"]), [data], judged=False)
        made = Record(record["id"], wire, "", record["stream"], 200, {}, data)
        assert heard.response is not None, record["id"]
        assert heard.response.text == READERS[wire](made)["text"], record["id"]
        found[wire] += 1
    assert dict(found) == {
        "anthropic": 81,
        "openai": 9,
        "bedrock": 17,
        "cohere": 2,
        "refused": 13,
        "left": 40,
    }
    for name, number in found.items():
        count(f"recorded invocations: {name}", number)


def test_raw_reply_shows_an_invalid_event_stream_as_text() -> None:
    data = b"\x00\x00\x00\x10not an event stream"
    assert _decode_stream(EventStreamDecoder, {"seen": 1}, data) == {
        "chunks": [data.decode("utf-8", "replace")],
        "seen": 1,
    }
