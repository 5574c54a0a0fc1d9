"""Every recorded reply is decoded and agrees with an independent parser.

``make test-recordings`` runs these tests. ``DRAGOMAN_EXHAUSTIVE=1`` decodes all recordings byte by
byte; the default run uses a sample.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

import dragoman as d
import dragoman.errors
from dragoman.wire import CODECS, Encoded
from tests.rows import read_table

from .cases import (
    BASE_URL,
    MODEL,
    DecodedReply,
    Record,
    bytewise,
    decode,
    find_records,
    find_served,
)
from .readings import bodies_of, check_reading, gemini_parts, joined
from .test_damaged import TREE

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"

pytestmark = pytest.mark.recordings

GOOD = [record for record in find_records().values() if record.status < 300]
BAD = [record for record in find_records().values() if record.status >= 300]
CHAT = [record for record in GOOD if record.wire == "openai"]

# The recordings whose reply is or contains an error: its class, and the reason.
HELD: dict[str, tuple[str, str]] = {
    name: (kind, why) for name, kind, why in read_table("failed_recordings")
}
CUT = "the reply was cut at max_tokens inside a call"


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
    codec = CODECS["openai"].connect(
        MODEL, BASE_URL, {"reasoning_details": True}, d.Capabilities()
    )
    heard = decode(codec, record.request(), [record.body], judged=False)
    if heard.response is None or record.id in HELD:
        return
    kept = [detail for block in heard.response.message.content for detail in opaque_of(block)]
    recorded = recorded_details(record)
    assert kept == recorded
    message = heard.response.message
    answers = [d.ToolResult(call.id, "done") for call in message.tool_calls]
    encoded = codec.encode(d.Request([d.User("a"), message, *answers, d.User("b")], model=MODEL))
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


# --- replies -----------------------------------------------------------------------------------

# Recordings whose deltas were shortened by hand, so that the final event contains more.
SHORTENED = {"e04932f6-e76438a6"}


def is_reply(record: Record) -> bool:
    """Return whether a recording contains a reply: token counts and other operations do not, nor
    does a response that is still in progress.
    """
    waits = re.search(rb'"status": ?"(queued|in_progress)"', record.body)
    return record.op == "create" and (record.is_events or not waits)


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_recorded_replies_agree_with_an_independent_reading(
    wire: str, count: Callable[[str, int], None]
) -> None:
    done = 0
    for record in GOOD:
        if record.wire != wire or not is_reply(record):
            continue
        heard = hear(record)
        expected, reason = HELD.get(record.id, ("NoneType", ""))
        assert type(heard.error).__name__ == expected, f"{record.vendor} {record}: {heard.error}"
        try:
            if record.id not in SHORTENED and (wire != "responses" or heard.error is None):
                check_reading(record, heard)
        except AssertionError as failure:
            raise AssertionError(f"{record.vendor} {record}: {failure}") from failure
        if reason == CUT:
            assert heard.response is not None
            assert heard.response.finish_reason == "length", record
        done += 1
    assert set(HELD) <= {record.id for record in GOOD}
    count(f"recorded replies of {wire} held against an independent reading", done)


def test_input_and_output_tokens_add_up_to_the_total() -> None:
    counted = 0
    for record in GOOD:
        usage = (
            reply.usage if record.wire == "gemini" and (reply := hear(record).response) else None
        )
        if usage is None or None in (usage.input_tokens, usage.total_tokens):
            continue
        counted += 1
        asked = usage.input_tokens or 0
        said = usage.output_tokens or 0
        assert asked + said == usage.total_tokens or record.is_fixture, record
        assert (usage.cached_input_tokens or 0) <= asked
    assert counted > 850


def test_billed_tokens_are_priced(count: Callable[[str, int], None]) -> None:
    priced = 0
    for record in GOOD:
        usage = (
            reply.usage if record.wire == "cohere" and (reply := hear(record).response) else None
        )
        if usage is None or usage.billed_input_tokens is None:
            continue
        bill = d.cost(usage, "cohere:command-r-08-2024", date(2026, 11, 1))
        assert isinstance(bill, d.Cost), record
        asked = usage.billed_input_tokens
        said = usage.billed_output_tokens or 0
        assert bill.total == (asked * Decimal("0.15") + said * Decimal("0.6")) / 1_000_000, record
        priced += 1
    assert priced == 123


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
            d.encode_event(event)
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

# How many recorded errors of each status become each class.
CLASSES = {
    "anthropic": (
        "1 400 ContextOverflow, 14 400 InvalidRequest, 2 400 UnsupportedFeature, 12 401 "
        "Authentication, 17 404 InvalidModel"
    ),
    "bedrock": (
        "1 400 ContextOverflow, 5 400 InvalidModel, 4 400 InvalidRequest, 4 400 "
        "UnsupportedContent, 1 400 UnsupportedFeature, 2 403 Authentication, 1 404 "
        "InvalidModel"
    ),
    "cohere": (
        "3 400 UnsupportedContent, 2 401 Authentication, 3 404 InvalidModel, 2 422 InvalidRequest"
    ),
    "gemini": (
        "2 400 Authentication, 1 400 ContextOverflow, 1 400 InvalidModel, 9 400 "
        "InvalidRequest, 2 400 UnsupportedContent, 1 401 Authentication, 2 403 "
        "Authentication, 28 404 InvalidModel, 1 404 InvalidRequest, 3 429 RateLimit"
    ),
    "ollama": "3 404 InvalidModel, 6 500 Unavailable",
    "openai": (
        "5 400 ContextOverflow, 30 400 InvalidModel, 69 400 InvalidRequest, 72 400 "
        "UnsupportedContent, 39 400 UnsupportedFeature, 37 401 Authentication, 8 402 "
        "Billing, 10 403 Authentication, 104 404 InvalidModel, 12 404 UnsupportedContent,"
        " 36 404 UnsupportedFeature, 1 422 InvalidRequest, 49 429 RateLimit, 9 500 "
        "Unavailable, 6 500 UnsupportedContent, 1 500 UnsupportedFeature"
    ),
    "responses": (
        "2 400 Authentication, 14 400 InvalidModel, 12 400 InvalidRequest, 3 400 "
        "UnsupportedContent, 8 400 UnsupportedFeature, 15 401 Authentication, 3 404 "
        "InvalidRequest"
    ),
}


# The same, of errors that local servers sent.
SERVED = {
    "anthropic": (
        "14 400 InvalidRequest, 2 401 Authentication, 11 404 InvalidRequest, 1 429 "
        "RateLimit, 6 500 Unavailable, 1 503 ModelNotLoaded"
    ),
    "ollama": "1 400 InvalidRequest, 1 429 RateLimit",
    "openai": (
        "11 400 ContextOverflow, 2 400 InvalidModel, 44 400 InvalidRequest, 1 400 "
        "UnsupportedContent, 2 401 Authentication, 2 404 InvalidModel, 6 404 "
        "InvalidRequest, 1 404 UnsupportedContent, 2 422 InvalidRequest, 2 429 RateLimit,"
        " 10 500 InvalidRequest, 8 500 Unavailable, 4 500 UnsupportedContent, 1 503 "
        "ModelNotLoaded"
    ),
    "responses": "6 400 InvalidRequest, 7 404 InvalidRequest, 3 500 Unavailable",
}


@pytest.mark.parametrize(
    ("records", "expected"), [(BAD, CLASSES), (find_served(), SERVED)], ids=["vendors", "local"]
)
def test_recorded_errors_map_to_the_right_class(
    records: Iterable[Record], expected: dict[str, str]
) -> None:
    found: dict[str, Counter[str]] = {}
    for record in records:
        if record.status >= 300:
            error = record.codec().error(record.status, record.headers, record.body, 0.0)
            assert type(error) in TREE
            assert error.provider_message or not record.body.strip()
            kinds = found.setdefault(record.wire, Counter())
            kinds[f"{record.status} {type(error).__name__[:-5]}"] += 1
    assert {
        wire: ", ".join([f"{number} {kind}" for kind, number in sorted(kinds.items())])
        for wire, kinds in sorted(found.items())
    } == expected


# --- replies that are sent back ----------------------------------------------------------------

LOSSES = {"thinking_dropped", "message_dropped", "opaque_dropped", "dangling_call_dropped",
          "id_projected", "citations_dropped", "blank_text_dropped"}  # fmt: skip
CONFIG = d.RuntimeConfig(max_tokens=64)


def send_back(record: Record, **quirks: Any) -> tuple[d.Assistant, list[Any], Encoded] | None:
    """Encode a recorded reply as a message of the next request; return the message, the next turns
    of the request and all that was encoded. A failed reply gives ``None``.
    """
    heard = hear(record)
    if heard.error is not None or heard.response is None or not heard.response.message.content:
        return None
    message = heard.response.message
    results = [d.ToolResult(call.id, "done") for call in message.tool_calls]
    codec = CODECS[record.wire].connect(MODEL, BASE_URL, quirks or None, d.Capabilities())
    request = d.Request((d.User("a"), message, *results, d.User("b")), config=CONFIG, model=MODEL)
    encoded = codec.encode(request)
    assert {note.code for note in encoded.notes} <= LOSSES, record
    body = json.loads(encoded.http.body)
    return message, next(body[name] for name in TURNS if name in body), encoded


TURNS = ("messages", "contents", "input")


def without_defaults(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block of the anthropic wire without empty fields."""
    silent = {"citations": (None, []), "caller": (None, {"type": "direct"})}
    silent = silent if block["type"] in ("text", "tool_use") else {}
    return {name: value for name, value in block.items() if value not in silent.get(name, ())}


def test_recorded_blocks_of_anthropic_are_sent_back_unchanged() -> None:
    count = 0
    for record in GOOD:
        if record.wire != "anthropic" or record.op != "create" or record.is_events:
            continue
        sent = send_back(record)
        # Unsigned or truncated thinking, and half a turn, are lost and reported.
        if sent is None or sent[2].notes:
            continue
        content = json.loads(record.body)["content"]
        said = [without_defaults(block) for block in content if block.get("text") != ""]
        assert sent[1][1]["content"] == said, record
        count += 1
    assert count > 700


def test_recorded_parts_of_gemini_are_sent_back_unchanged() -> None:
    count = 0
    for record in GOOD:
        parts = gemini_parts(record) if record.wire == "gemini" else []
        in_pieces = any("willContinue" in part.get("functionCall", {}) for part in parts)
        sent = send_back(record) if parts and not in_pieces else None
        if sent is None:
            continue
        back = sent[1][1]["parts"] if sent[1][1]["role"] == "model" else []
        assert joined(back) == joined(parts), record
        count += 1
    assert count > 900


def test_recorded_reasoning_of_responses_is_sent_back_unchanged() -> None:
    for record in GOOD:
        sent = send_back(record, send_reasoning="all") if record.wire == "responses" else None
        if sent is None:
            continue
        message, turns, encoded = sent
        blocks = [block for block in message.content if isinstance(block, d.Thinking)]
        kept = [block.continuity.opaque for block in blocks if block.continuity]
        ours = [item for item in turns if item["type"] == "reasoning"]
        assert ours == kept[: len(ours)], record
        lost = sum(note.code == "thinking_dropped" for note in encoded.notes)
        assert len(kept) - len(ours) == lost, record


# --- exchanges with real servers ---------------------------------------------------------------

# Bodies with a success status that are empty: llama-cpp-python sends one when the prompt is too
# long, vLLM once for no known reason.
EMPTY = 2


def test_every_exchange_with_a_real_server_is_read(count: Callable[[str, int], None]) -> None:
    found: Counter[str] = Counter()
    for record in find_served():
        if record.status >= 300:
            continue
        heard = hear(record)
        assert hear(record, bytewise(record.body)).facts == heard.facts, record
        if not record.body:
            assert heard.error is not None
            found["empty"] += 1
            continue
        assert heard.error is None or isinstance(heard.error, d.MalformedToolCallError), record
        assert heard.response is not None
        try:
            check_reading(record, heard)
        except AssertionError as failure:
            raise AssertionError(f"{record}: {failure}") from failure
        assert heard.response.usage.total_tokens is not None or record.wire != "anthropic", record
        found["streamed" if record.is_events else "whole"] += 1
    assert found["empty"] == EMPTY
    assert found["streamed"] > 80
    assert found["whole"] > 150
    count("exchanges with real servers read", sum(found.values()))
