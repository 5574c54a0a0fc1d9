"""Every recorded reply is decoded and agrees with an independent parser.

``make test-recordings`` runs these tests. ``DRAGOMAN_EXHAUSTIVE=1`` decodes all recordings byte by
byte; the default run uses a sample.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import dragoman.errors
from dragoman.capabilities import Capabilities
from dragoman.errors import (
    AuthenticationError,
    BillingError,
    ContextOverflowError,
    InvalidModelError,
    InvalidRequestError,
    MalformedToolCallError,
    ModelNotLoadedError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    TimedOutError,
    UnavailableError,
    UnsupportedContentError,
    UnsupportedFeatureError,
)
from dragoman.events import encode_event
from dragoman.messages import Request, ToolResult, User
from dragoman.wire import CODECS

from .cases import (
    BASE_URL,
    MODEL,
    DecodedReply,
    Record,
    bytewise,
    decode,
    find_exchanges,
    find_records,
    plain_request,
)

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"
TREE = tuple(
    getattr(dragoman.errors, name) for name in dragoman.errors.__all__ if name.endswith("Error")
)

pytestmark = pytest.mark.recordings

GOOD = [record for record in find_records().values() if record.status < 300]
BAD = [record for record in find_records().values() if record.status >= 300]
CHAT = [record for record in GOOD if record.wire == "openai"]

# The recordings of the openai wire whose reply is or contains an error, with the reason.
CUT = "the reply was cut at max_tokens inside a call"
CUT_OFF = """
    c5b42391-268af188 4d5a0b34-f9a047f4 5e3e22d1-f3638067 9d3d25cc-7515848a 2480f27e-fab9b0b6 e7d0b7a8-2dc18bee
    cd29a068-2e04d150 66ae39d3-cf7d2b8b 797c8de4-d32fb59c d64f7f4b-53cd7279 06275301-20f1b7f2 8b9362d6-14f2f5a4
    589c6db2-88b90358 5e3d8119-67e9efe5 6c364d42-1a0e21d3 a91da0e5-a1b7e211 977db603-e6be5866 068540c9-faf5bebd
    d6a3434d-9298b2f2 c3a6b913-26827c0e 8edbf75e-ab19e5aa 1735ccfb-cf03572f 9b162f33-3a900aa1 bc592b72-bc3c7a37
    4cce8980-3308bd85 900aaa03-a7cfb6e9 a31383b1-34ef78da 2c98699a-db25105e 4292fc48-1a8f553f fd6d94f5-343476c9
    6ee00cf2-1442a32d 4c177ae6-5a578a45 bb20aee5-efad34c6
"""
HELD: dict[str, tuple[str, str]] = {
    "4f2a679e-799e6750": (
        "InvalidRequestError",
        "an error event after text: the call did not fit its schema",
    ),
    "2bafa55a-3ef7e18a": (
        "InvalidRequestError",
        "an error event after text: no call though one was required",
    ),
    "36c3b056-a6934672": ("InvalidRequestError", "an error event as the first event"),
    "54da3aa7-ce5f2d46": (
        "InvalidRequestError",
        "an error object among the chunks: the limit of tokens",
    ),
    "b59effc0-fe15c60a": ("InvalidRequestError", "the first and only data is an error"),
    "25cf3d2f-2d7ae4c2": ("InvalidRequestError", "the first and only data is an error"),
    "41199f18-ca46c87c": ("InvalidRequestError", "the first and only data is an error"),
    "8f7d5607-17e3c1c9": (
        "InvalidRequestError",
        "a chunk with empty choices and an error of code 400",
    ),
    "18b2a070-c9c92dbc": (
        "InvalidRequestError",
        "a chunk with empty choices and an error of code 400",
    ),
    "94847dc5-8c4efa68": ("UnavailableError", "an error of code 502 on the choice"),
    "9a691003-ac4d1bc9": ("UnavailableError", "an error of code 502 on the choice of a body"),
    "6fd82fee-62ce2a11": ("UnavailableError", "an error of code 502 on the choice of a body"),
    "3158ad13-3a4dbfec": ("InvalidRequestError", "an error object after white space in a 200"),
    "78307849-4333144b": ("InvalidRequestError", "a content filter's error object in a 200"),
    "56108aee-4361d51b": ("InvalidResponseError", "a choice without a message"),
    "4ef57a6d-1cdf650a": (
        "MalformedToolCallError",
        "the arguments are the word null, and no tool is known",
    ),
    "d8bc5829-d103169c": ("MalformedToolCallError", "the arguments are not JSON"),
    **dict.fromkeys(CUT_OFF.split(), ("MalformedToolCallError", CUT)),
}


def hear(record: Record, pieces: Any = None) -> DecodedReply:
    heard = decode(
        record.codec(), record.request(), [record.body] if pieces is None else pieces, judged=False
    )
    error = heard.error
    if error is not None:
        assert type(error) in TREE
        assert error.__cause__ is None or isinstance(
            error.__cause__, ValueError | RecursionError
        ), error.__cause__
        assert error.response is not None or heard.response is None
    return heard


# --- opaque state that is sent back ------------------------------------------------------------

ROUTED = [
    record
    for record in CHAT
    if record.vendor == "openrouter" and b'"reasoning_details"' in record.body
]
SEALED = [
    record
    for record in ROUTED[40:]
    if b'"reasoning.encrypted"' in record.body or b'"signature"' in record.body
]


def recorded_details(record: Record) -> list[dict[str, Any]]:
    """Read the reasoning details of a recorded reply without our decoder, and join fragments of
    the same kind and index.
    """
    found: dict[Any, dict[str, Any]] = {}
    for body in bodies_of(record):
        for choice in body.get("choices") or ():
            part = choice.get("message") or choice.get("delta") or {}
            for at, detail in enumerate(part.get("reasoning_details") or ()):
                held = found.setdefault(
                    (detail["type"], detail["index"], None if record.is_events else at), {}
                )
                for name, value in detail.items():
                    grows = name in ("text", "summary") and name in held
                    held[name] = held[name] + value if grows else value
    return list(found.values())


@pytest.mark.parametrize("record", ROUTED if EXHAUSTIVE else [*ROUTED[:40], *SEALED], ids=str)
def test_reasoning_details_are_kept_and_sent_back(record: Record) -> None:
    codec = CODECS["openai"].connect(MODEL, BASE_URL, {"reasoning_details": True}, Capabilities())
    heard = decode(codec, record.request(), [record.body], judged=False)
    if heard.response is None or record.id in HELD:
        return
    kept = [detail for block in heard.response.message.content for detail in opaque_of(block)]
    recorded = recorded_details(record)
    assert kept == recorded
    message = heard.response.message
    answers = [ToolResult(call.id, "done") for call in message.tool_calls]
    encoded = codec.encode(Request([User("a"), message, *answers, User("b")], model=MODEL))
    if heard.response.finish_reason in ("stop", "tool_calls") and (
        message.text or message.tool_calls
    ):
        assert (
            json.loads(encoded.http.body)["messages"][1].get("reasoning_details", []) == recorded
        )


def opaque_of(block: Any) -> list[Any]:
    state = block.continuity
    # Citations are stored as a mapping, reasoning details as a list.
    return state.opaque if state is not None and isinstance(state.opaque, list) else []


# --- reading recorded replies with the standard library only, by the rules of the wire ---------


def bodies_of(record: Record) -> list[Any]:
    """Return the JSON values of a recorded reply: the body, or the data of each event."""
    text = record.body.decode().strip()
    if not record.is_events:
        return [json.loads(text)]
    events = re.split(r"\n\n+", text.replace("\r\n", "\n"))
    joined = [
        "\n".join([line[5:].strip() for line in event.split("\n") if line[:5] == "data:"])
        for event in events
    ]
    return [json.loads(data) for data in joined if data not in ("", "[DONE]")]


def words_of(content: Any, kind: str) -> str:
    if isinstance(content, str):
        return content if kind == "text" else ""
    if isinstance(content, dict):
        return (
            json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            if kind == "text"
            else ""
        )
    found = ""
    for part in content or ():
        if part["type"] == kind == "text":
            found += part["text"]
        elif part["type"] == kind == "thinking":
            found += "".join([piece["text"] for piece in part["thinking"]])
    return found


def read_plainly(record: Record) -> dict[str, Any]:
    """Parse a recorded reply independently of our decoder; return text, thinking, tool calls,
    usage and finish reason of the first choice.
    """
    text = thinking = refusal = ""
    words: list[str] = []
    calls: list[dict[str, Any]] = []
    usage: dict[str, Any] = {}
    for body in bodies_of(record):
        for choice in body.get("choices") or ():
            if choice.get("index"):
                continue
            part = choice.get("delta") if record.is_events else choice.get("message")
            part = part or {}
            thinking += part.get("reasoning_content") or part.get("reasoning") or ""
            thinking += words_of(part.get("content"), "thinking")
            text += words_of(part.get("content"), "text") + (part.get("refusal") or "")
            refusal += part.get("refusal") or ""
            words += [choice["finish_reason"]] if choice.get("finish_reason") else []
            for call in part.get("tool_calls") or ():
                add_call(calls, call, streamed=record.is_events)
            legacy = part.get("function_call") or {}
            if not part.get("tool_calls") and (legacy.get("name") or legacy.get("arguments")):
                add_call(calls, {"index": 0, "function": legacy}, streamed=record.is_events)
        counted = body.get("usage") or {}
        if any(
            counted.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        ):
            usage = counted
        if body.get("error"):
            break
    end = "content_filter" if refusal else end_of(words, called=bool(calls))
    return {"text": text, "thinking": thinking, "calls": calls, "usage": usage, "end": end}


def end_of(words: list[str], *, called: bool) -> str:
    """Return the finish reason that the decoder must report for the recorded finish reasons.

    The first recorded reason other than ``stop`` counts. A normal end becomes ``tool_calls`` if
    tools were called, otherwise ``stop``; an unknown reason becomes ``error``.
    """
    word = next((word for word in words if word != "stop"), "stop")
    if word in ("length", "content_filter"):
        return word
    if word in ("stop", "tool_calls", "tool_call", "function_call"):
        return "tool_calls" if called else "stop"
    return "error"


def add_call(calls: list[dict[str, Any]], call: dict[str, Any], *, streamed: bool) -> None:
    function = call.get("function") or {}
    where, call_id = call.get("index"), call.get("id")
    same = [
        known
        for known in calls
        if (known["id"] == call_id if call_id else known["index"] == where)
    ]
    if not streamed or not same:
        calls.append(
            {"index": where, "id": call_id, "name": function.get("name"), "arguments": ""}
        )
        same = calls[-1:]
    arguments = function.get("arguments") or ""
    same[-1]["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments)


def arguments_of(text: str) -> Any:
    try:
        value = json.loads(text) if text.strip() else {}
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def check_reading(record: Record, heard: DecodedReply) -> None:
    """Compare the decoded reply of a recording with an independent parse."""
    plain, reply = read_plainly(record), heard.response
    if reply is None:
        assert heard.error is not None
        assert not plain["text"]
        return
    assert reply.text == plain["text"]
    assert reply.message.thinking == plain["thinking"]
    assert [call.name for call in reply.tool_calls] == [call["name"] for call in plain["calls"]]
    for call, expected in zip(reply.tool_calls, plain["calls"], strict=True):
        assert call.id == expected["id"] or not expected["id"]
        arguments = arguments_of(expected["arguments"])
        # The reply was cut off before the arguments.
        missing = not expected["arguments"].strip() and heard.error is not None
        assert call.arguments == (None if missing else arguments)
    if heard.error is None:
        assert reply.finish_reason == plain["end"]
    usage = plain["usage"]
    if usage:
        assert reply.usage.input_tokens == usage["prompt_tokens"]
        reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
        beside = (
            usage.get("total_tokens")
            == usage["prompt_tokens"] + usage["completion_tokens"] + reasoning
        )
        assert reply.usage.output_tokens == usage["completion_tokens"] + (
            reasoning if beside else 0
        )
        assert reply.usage.total_tokens == usage.get("total_tokens")


def test_every_recorded_chat_completion_is_read(count: Callable[[str, int], None]) -> None:
    ends: Counter[str] = Counter()
    for record in CHAT:
        heard = hear(record)
        expected = HELD.get(record.id, ("none", ""))[0]
        found = "none" if heard.error is None else type(heard.error).__name__
        assert found == expected, f"{record.vendor} {record}: {heard.error}"
        try:
            check_reading(record, heard)
        except AssertionError as failure:
            raise AssertionError(f"{record.vendor} {record}: {failure}") from failure
        if HELD.get(record.id, ("", ""))[1] == CUT:
            assert heard.response is not None
            assert heard.response.finish_reason == "length", record
        ends[found if heard.response is None else heard.response.finish_reason] += 1
    assert set(HELD) <= {record.id for record in CHAT}
    count("recorded chats held against an independent reading", sum(ends.values()))


def test_raw_reply_equals_the_recorded_bodies(count: Callable[[str, int], None]) -> None:
    done = 0
    for record in CHAT[:: 1 if EXHAUSTIVE else 3]:
        reply = hear(record).response
        if reply is None:
            continue
        bodies = bodies_of(record)
        raw = reply.raw
        assert (raw["chunks"] if record.is_events else [raw]) == bodies, record
        done += 1
    assert done
    count("recorded chats whose raw is verbatim", done)


def test_every_recorded_exchange_gives_a_reply_or_a_provider_error(
    count: Callable[[str, int], None],
) -> None:
    """Only provider errors are raised, the event stream is valid, and every event can be
    serialised.
    """
    found: dict[str, Counter[str]] = {}
    for record in GOOD:
        heard = hear(record)
        for event in heard.events:
            encode_event(event)
        assert heard.response is not None or heard.error is not None
        ends = found.setdefault(record.wire, Counter())
        ends["sound" if heard.error is None else type(heard.error).__name__] += 1
    for wire, ends in found.items():
        count(f"recorded replies of {wire} decoded", sum(ends.values()))


def test_reading_recordings_byte_by_byte_gives_the_same_reply(
    count: Callable[[str, int], None],
) -> None:
    """The reply does not depend on how the bytes are split: one by one, or as the network
    delivered them.
    """
    longest, step = (50_000, 1) if EXHAUSTIVE else (3_000, 20)
    records = [record for record in GOOD if len(record.body) < longest][::step]
    for record in records:
        assert hear(record, bytewise(record.body)).facts == hear(record).facts, record
    cut = [record for record in GOOD if record.lengths and sum(record.lengths) == len(record.body)]
    cut = cut[:: 1 if EXHAUSTIVE else 4]
    for record in cut:
        edges = [sum(record.lengths[:at]) for at in range(len(record.lengths) + 1)]
        pieces = [record.body[start:end] for start, end in pairwise(edges)]
        assert hear(record, pieces).facts == hear(record).facts, record
    assert records
    count("recorded replies fed byte by byte, or as the network cut them", len(records) + len(cut))


# --- recorded error responses ------------------------------------------------------------------

# The expected error class for a status and a phrase in the body, chosen by hand. The first phrase
# that the body contains decides.
PHRASES: list[tuple[str, str, type[ProviderError]]] = [
    ("400", "maximum context length", ContextOverflowError),
    ("400", "max context length", ContextOverflowError),
    ("400", "available context size", ContextOverflowError),
    ("400", "context window exceeded", ContextOverflowError),
    ("400 404", "model_not_found", InvalidModelError),
    ("400", "invalid model", InvalidModelError),
    ("400", "is not a valid model id", InvalidModelError),
    ("400", "decommissioned", InvalidModelError),
    ("400", "supported api model names", InvalidModelError),
    ("404", "that support image input", UnsupportedContentError),
    ("404", "that support tool use", UnsupportedFeatureError),
    ("404", "no endpoints found", InvalidModelError),
    ("404", "model not found", InvalidModelError),
    ("404", "deploymentnotfound", InvalidModelError),
    ("404", "was deprecated", InvalidModelError),
    ("404", "alpha period for this model has ended", InvalidModelError),
    ("404", "not a chat model", InvalidModelError),
    ("404", "no-such-model` does not exist", InvalidModelError),
    ("404", "cached snapshot folder", InvalidModelError),
    ("400", "server is pinned to", InvalidModelError),
    ("400", "audio input is not enabled", UnsupportedContentError),
    ("400", "image input is not enabled", UnsupportedContentError),
    ("400", "is not a multimodal model", UnsupportedContentError),
    ("400", "vision not support", UnsupportedContentError),
    ("400", "content blocks are expected to be", UnsupportedContentError),
    ("400", "unsupported mime type", UnsupportedContentError),
    ("400", "does not support image_url", UnsupportedContentError),
    ("400", "does not support multimodal", UnsupportedContentError),
    ("400", "image_url is not supported", UnsupportedContentError),
    ("400", "content must be a string", UnsupportedContentError),
    ("400", "unknown variant `image_url`", UnsupportedContentError),
    ("400", "unknown variant `video_url`", UnsupportedContentError),
    ("400", "unknown variant `input_audio`", UnsupportedContentError),
    ("404", "only 'text' content", UnsupportedContentError),
    ("500", "image input is not supported", UnsupportedContentError),
    ("500", "audio input is not supported", UnsupportedContentError),
    ("500", "can only concatenate str", UnsupportedContentError),
    ("400", "not supported with this model", UnsupportedFeatureError),
    ("400", "unsupported_value", UnsupportedFeatureError),
    ("400", "does not support parameter", UnsupportedFeatureError),
    ("400", "does not support this tool_choice", UnsupportedFeatureError),
    ("400", "does not support logprobs", UnsupportedFeatureError),
    ("400", "does not support response format", UnsupportedFeatureError),
    ("400", "does not support the '", UnsupportedFeatureError),
    ("400", "function calling not support", UnsupportedFeatureError),
    ("400", "structured outputs not support", UnsupportedFeatureError),
    ("500", "requires --jinja", UnsupportedFeatureError),
    ("500", "validation error", InvalidRequestError),
    ("503", "loading model", ModelNotLoadedError),
    ("429", "insufficient_quota", QuotaExceededError),
]

STATUSES: dict[int, type[ProviderError]] = {
    401: AuthenticationError,
    402: BillingError,
    403: AuthenticationError,
    408: TimedOutError,
    429: RateLimitError,
    529: OverloadedError,
}


def class_of(status: int, body: str) -> type[ProviderError]:
    said = body.lower().replace('\\"', '"').replace("\\u0027", "'")
    for statuses, phrase, kind in PHRASES:
        if str(status) in statuses.split() and phrase in said:
            return kind
    return STATUSES.get(status) or (UnavailableError if status >= 500 else InvalidRequestError)


# Errors whose cause is in a nested ``details`` field. The codec does not read that field, so the
# status decides the class.
NESTED = {"54a4b85e-bf0debb4"}


def test_recorded_chat_errors_map_to_the_right_class(count: Callable[[str, int], None]) -> None:
    found: Counter[str] = Counter()
    for record in BAD:
        if record.wire != "openai":
            continue
        error = record.codec().error(record.status, record.headers, record.body, 0.0)
        expected = class_of(record.status, "" if record.id in NESTED else record.body.decode())
        assert type(error) is expected, (
            f"{record.vendor} {record} {record.status}: {error.provider_message}"
        )
        assert error.status == record.status
        assert error.provider_message or not record.body.strip()
        found[type(error).__name__] += 1
    count("recorded refusals of chats classified", sum(found.values()))


def test_every_recorded_error_becomes_a_provider_error() -> None:
    for record in BAD:
        error = record.codec().error(record.status, record.headers, record.body, 0.0)
        assert type(error) in TREE
        assert str(error)


# --- exchanges with real servers ---------------------------------------------------------------

# Bodies with a success status that are not replies, with the reason.
NO_ANSWER = {
    "llamacpppython_smollm2__err_context_too_long_stream": (
        "200 and not a byte, when the prompt is too long"
    ),
}


def status_of(exchange: dict[str, Any]) -> int:
    line = exchange["status_line"]
    return int(line.split()[1]) if line else 0


def test_every_exchange_with_a_real_server_is_read(count: Callable[[str, int], None]) -> None:
    codec = CODECS["openai"].connect(MODEL, "http://127.0.0.1/v1", None, Capabilities())
    found: Counter[str] = Counter()
    for exchange in find_exchanges():
        if (
            exchange["path"] != "/v1/chat/completions"
            or exchange["method"] != "POST"
            or not exchange["status_line"]
        ):
            continue
        status, body = status_of(exchange), (exchange["response_body"] or "").encode()
        if status >= 300:
            error: ProviderError | None = codec.error(
                status, dict(exchange["response_headers"]), body
            )
            assert type(error) is class_of(status, body.decode()), exchange["id"]
            found["refused"] += 1
            continue
        request = plain_request(stream='"stream": true' in exchange["request_body"])
        heard = decode(codec, request, [body], judged=False)
        again = decode(codec, request, bytewise(body), judged=False)
        assert again.facts == heard.facts, exchange["id"]
        if exchange["id"] in NO_ANSWER:
            assert heard.error is not None
            found["no answer"] += 1
            continue
        assert heard.error is None or isinstance(heard.error, MalformedToolCallError), exchange[
            "id"
        ]
        assert heard.response is not None
        record = Record(
            exchange["id"], "openai", exchange["server"], request.stream, status, {}, body, {}, ()
        )
        try:
            check_reading(record, heard)
        except AssertionError as failure:
            raise AssertionError(f"{record}: {failure}") from failure
        found["streamed" if record.is_events else "whole"] += 1
    assert found["streamed"] > 50
    assert found["whole"] > 100
    count("exchanges of chats with real servers read", sum(found.values()))
