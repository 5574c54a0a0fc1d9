"""Models that are sold at several service tiers, and replies that state at which they were served."""

import json
from typing import Any, NamedTuple

from dragoman import connect
from dragoman.provider import Provider
from dragoman.transport import FixtureTransport
from dragoman.wire.eventstream import encode_message

INPUT = 1000
OUTPUT = 100


class Sold(NamedTuple):
    """A model, and the fields with which a request asks for a tier and a reply states it."""

    model: str
    wire: str
    asked: dict[str, Any]
    stated: dict[str, Any]
    factor: str | None
    """How many times the usual price the call costs; ``None`` if that is not known."""


def tier(word: str) -> dict[str, Any]:
    return {"service_tier": word}


def bedrock(word: str) -> dict[str, Any]:
    return {"serviceTier": {"type": word}}


FLASH = "google:gemini-3.8-flash"
NOVA = "bedrock:us.amazon.nova-pro-v1:0"
OPUS = "anthropic:claude-opus-5-5"
SOL = "openai:gpt-6-sol"
TABLE = [
    # The tier of the reply counts, else that of the request.
    Sold(SOL, "openai", tier("priority"), tier("priority"), "2"),
    Sold(SOL, "openai", tier("priority"), {}, "2"),
    Sold(SOL, "openai", tier("priority"), tier("default"), "1"),
    Sold(SOL, "openai", tier("auto"), tier("fast"), "2"),
    Sold(SOL, "openai", {}, tier("priority"), "2"),
    Sold(SOL, "openai", {}, {"service_tier": None}, "1"),
    Sold(SOL, "openai", tier("flex"), tier("flex"), "0.5"),
    Sold(SOL, "openai", tier("flex"), tier("default"), "1"),
    Sold(SOL, "openai", {}, tier("scale"), None),
    Sold(SOL, "openai", tier("tomorrow"), {}, None),
    Sold("openai:gpt-6-astra", "openai", tier("ultrafast"), tier("ultrafast"), "6"),
    Sold("openai:gpt-6.1-sol", "openai", tier("fast"), tier("fast"), "2"),
    Sold("openai:gpt-5.5", "openai", tier("priority"), tier("priority"), "2.5"),
    Sold("openai:gpt-5-nano", "openai", tier("priority"), tier("priority"), None),
    Sold("groq:openai/gpt-oss-120b", "openai", tier("flex"), tier("flex"), "1"),
    Sold("groq:openai/gpt-oss-120b", "openai", {}, tier("on_demand"), "1"),
    Sold("groq:openai/gpt-oss-120b", "openai", {}, tier("performance"), None),
    Sold("xai:grok-4.6", "openai", tier("priority"), tier("priority"), None),
    Sold(SOL, "responses", tier("priority"), tier("priority"), "2"),
    Sold(SOL, "responses", tier("priority"), {}, "2"),
    Sold(SOL, "responses", tier("priority"), tier("default"), "1"),
    Sold(SOL, "responses", {}, tier("flex"), "0.5"),
    Sold("openai:gpt-6.1-sol", "responses", tier("priority"), tier("priority"), "2"),
    Sold(OPUS, "anthropic", {"speed": "fast"}, {"speed": "fast"}, "2"),
    Sold(OPUS, "anthropic", {"speed": "fast"}, {"speed": "standard"}, "1"),
    Sold(OPUS, "anthropic", {"speed": "fast"}, {}, "2"),
    Sold(OPUS, "anthropic", {"inference_geo": "us"}, {"inference_geo": "us"}, "1.1"),
    Sold(OPUS, "anthropic", {}, {"inference_geo": "not_available"}, "1"),
    Sold(OPUS, "anthropic", {}, {"speed": "fast", "inference_geo": "us"}, "2.2"),
    Sold(OPUS, "anthropic", tier("auto"), tier("standard"), "1"),
    Sold(OPUS, "anthropic", tier("auto"), tier("priority"), None),
    Sold("anthropic:claude-haiku-5-5", "anthropic", {"speed": "fast"}, {"speed": "fast"}, None),
    Sold(FLASH, "gemini", {"serviceTier": "priority"}, {"serviceTier": "priority"}, "1.8"),
    Sold(FLASH, "gemini", {"serviceTier": "PRIORITY"}, {"serviceTier": "STANDARD"}, "1"),
    Sold(FLASH, "gemini", {"serviceTier": "SERVICE_TIER_PRIORITY"}, {}, "1.8"),
    Sold(FLASH, "gemini", {}, {"serviceTier": "flex"}, "0.5"),
    Sold(FLASH, "gemini", {}, {"trafficType": "ON_DEMAND"}, "1"),
    Sold(FLASH, "gemini", {}, {"trafficType": "ON_DEMAND_PRIORITY"}, "1.8"),
    Sold(FLASH, "gemini", {}, {"trafficType": "PROVISIONED_THROUGHPUT"}, None),
    Sold(NOVA, "bedrock", bedrock("priority"), bedrock("priority"), "1.75"),
    Sold(NOVA, "bedrock", bedrock("priority"), bedrock("default"), "1"),
    Sold(NOVA, "bedrock", bedrock("flex"), {}, "0.5"),
    Sold(NOVA, "bedrock", {}, {"performanceConfig": {"latency": "optimized"}}, None),
]


def open_model(sold: Sold, body: bytes) -> tuple[Provider, FixtureTransport]:
    """Return the model, whose server answers one request with these bytes."""
    transport = FixtureTransport((200, {}, [body]))
    model = connect(sold.model, wire=sold.wire, transport=transport, api_key="k")
    return model, transport


def write_body(sold: Sold) -> bytes:
    """Return a whole reply that states the tier."""
    wire = sold.wire
    if wire == "openai":
        choice = {"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        return _dump({"choices": [choice], "usage": _counts(), **sold.stated})
    if wire == "responses":
        return _dump(_response(sold))
    if wire == "anthropic":
        said = [{"type": "text", "text": "Hi"}]
        return _dump({"content": said, "stop_reason": "end_turn", "usage": _claude(sold.stated)})
    if wire == "gemini":
        return _dump(_candidate(sold))
    message = {"message": {"role": "assistant", "content": [{"text": "Hi"}]}}
    return _dump({"output": message, "stopReason": "end_turn", **_metadata(sold)})


def write_stream(sold: Sold) -> bytes:
    """Return a streamed reply that states the tier."""
    wire = sold.wire
    if wire == "openai":
        said = {"choices": [{"delta": {"content": "Hi"}}], **sold.stated}
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}], **sold.stated}
        last = {"choices": [], "usage": _counts(), **sold.stated}
        return _frames(said, end, last) + b"data: [DONE]\n\n"
    if wire == "responses":
        created = {**_response(sold), "status": "in_progress", "output": [], "usage": None}
        said = {"output_index": 0, "content_index": 0, "item_id": "m1", "delta": "Hi"}
        return _frames(
            {"type": "response.created", "response": created},
            {"type": "response.output_text.delta", **said},
            {"type": "response.completed", "response": _response(sold)},
        )
    if wire == "anthropic":
        return _frames(
            {"type": "message_start", "message": {"usage": _claude(sold.stated)}},
            {"type": "content_block_start", "index": 0,
             "content_block": {"type": "text", "text": "Hi"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
             "usage": {"output_tokens": OUTPUT}},
            {"type": "message_stop"},
        )  # fmt: skip
    if wire == "gemini":
        said = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}}]}
        return _frames(said, _candidate(sold))
    events = {
        "messageStart": {"role": "assistant"},
        "contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Hi"}},
        "contentBlockStop": {"contentBlockIndex": 0},
        "messageStop": {"stopReason": "end_turn"},
        "metadata": _metadata(sold),
    }
    return b"".join(
        [
            encode_message({":message-type": "event", ":event-type": name}, _dump(event))
            for name, event in events.items()
        ]
    )


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def _frames(*events: Any) -> bytes:
    return b"".join([b"data: %s\n\n" % _dump(event) for event in events])


def _counts() -> dict[str, int]:
    return {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}


def _response(sold: Sold) -> dict[str, Any]:
    said = [{"type": "output_text", "text": "Hi"}]
    return {
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "id": "m1", "role": "assistant", "content": said}],
        "usage": {"input_tokens": INPUT, "output_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT},
        **sold.stated,
    }


def _claude(stated: dict[str, Any]) -> dict[str, Any]:
    return {"input_tokens": INPUT, "output_tokens": OUTPUT, **stated}


def _candidate(sold: Sold) -> dict[str, Any]:
    counts = {"promptTokenCount": INPUT, "candidatesTokenCount": OUTPUT}
    content = {"role": "model", "parts": [{"text": "Hi"}]}
    candidate = {"content": content, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": {**counts, **sold.stated}}


def _metadata(sold: Sold) -> dict[str, Any]:
    counts = {"inputTokens": INPUT, "outputTokens": OUTPUT, "totalTokens": INPUT + OUTPUT}
    return {"usage": counts, **sold.stated}
