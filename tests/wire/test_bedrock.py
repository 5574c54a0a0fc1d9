"""The wire of the Converse API: URLs, and recorded bodies of InvokeModel."""

import base64
import gzip
import json
from collections import Counter
from typing import Any

import pytest

import dragoman as d
from dragoman.wire import CODECS
from dragoman.wire.bedrock import BedrockCodec, Quirks
from dragoman.wire.codec import _decode_stream
from dragoman.wire.eventstream import EventStreamDecoder

from .cases import RECORDED, Record, decode, plain_request
from .readings import READERS

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def codec(model: str = "m", **quirks: Any) -> BedrockCodec:
    return BedrockCodec(model, "https://bedrock-runtime.us-east-1.amazonaws.com", Quirks(**quirks))


def test_url_contains_the_model_and_the_streaming_mode() -> None:
    root = "https://bedrock-runtime.us-east-1.amazonaws.com/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0"
    whole = codec(CLAUDE).encode(d.Request([d.User("x")])).http
    streamed = codec(CLAUDE).encode(d.Request([d.User("x")], stream=True)).http
    assert whole.url == f"{root}/converse"
    assert streamed.url == f"{root}/converse-stream"
    assert streamed.headers["accept"] == "application/vnd.amazon.eventstream"
    asked = next(codec(CLAUDE).ready())
    assert (
        asked.url
        == f"https://bedrock.us-east-1.amazonaws.com/inference-profiles/{CLAUDE.replace(':', '%3A')}"
    )


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
