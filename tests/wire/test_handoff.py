"""A conversation from one wire can be continued on every other, and every loss is listed."""

import itertools
import json
import math
from typing import Any

import pytest

import dragoman as d
from dragoman.wire import CODECS, Codec

from .cases import find_cases
from .replies import reply
from .test_conversations import RULES

WIRES = tuple(CODECS)
PAIRS = list(itertools.product(WIRES, WIRES))
CONFIG = d.RuntimeConfig(max_tokens=100)
WEATHER = d.Tool(
    "weather",
    "The weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)


def codec(wire: str) -> Codec:
    made: Any = d.connect(
        "model-1", wire=wire, base_url="https://example.test", vendor=f"{wire}-vendor"
    )
    return made.codec  # type: ignore[no-any-return]


def state(wire: str, signature: str) -> d.Continuity:
    return d.Continuity(signature, issuer=d.Issuer(wire, f"{wire}-vendor", "model-1"))


def conversation(wire: str) -> list[Any]:
    """Return a conversation from ``wire`` with thinking, parallel calls, a tool error, an image
    and a truncated turn.
    """
    thought = {
        "anthropic": d.Thinking("let me see", state("anthropic", "sig-a")),
        "gemini": d.Thinking("let me see"),
        "ollama": d.Thinking("let me see"),
        "cohere": d.Thinking("let me see"),
        "bedrock": d.Thinking("let me see", state("bedrock", "sig-b")),
        "openai": d.Thinking("let me see"),
        "responses": d.Thinking(
            "let me see",
            d.Continuity(
                opaque={
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "encrypted_content": "xyz",
                },
                issuer=d.Issuer("responses", "responses-vendor", "model-1"),
            ),
        ),
    }[wire]
    signed = state("gemini", "sig-g") if wire == "gemini" else None
    calls = [
        d.ToolCall("call_1", "weather", {"city": "Oslo"}, signed),
        d.ToolCall("call|2 ø", "weather", {"city": "Rome"}),
    ]
    return [
        d.System("Be brief."),
        d.User([d.Text("Look:"), d.Image(d.Inline("aGVsbG8="), "image/png")]),
        d.Assistant([thought, d.Text("I will ask."), *calls]),
        d.ToolResult("call_1", "rain"),
        d.ToolResult("call|2 ø", "no such city", is_error=True),
        d.Assistant([d.Text("Rain in Oslo.", signed)]),
        d.User("And tomorrow?"),
        # This turn was cancelled, so its tool call has no result.
        d.Assistant([d.Text("Let me"), d.ToolCall("call_3", "weather", {"city": "Oslo"})]),
        d.User("Never mind. Thanks."),
    ]


def visible(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False)


@pytest.mark.parametrize(("origin", "target"), PAIRS)
def test_conversation_from_any_wire_is_encoded_for_any_other(origin: str, target: str) -> None:
    request = d.Request(conversation(origin), tools=(WEATHER,), config=CONFIG, model="model-1")
    encoded = codec(target).encode(request)
    body = json.loads(encoded.http.body)
    said = visible(body)
    for words in ("Be brief.", "Look:", "aGVsbG8=", "I will ask.", "Oslo", "Rome", "rain",
                  "no such city",
                  "Rain in Oslo.", "And tomorrow?", "Let me", "Never mind. Thanks."):  # fmt: skip
        assert words in said, words
    RULES[target](body)
    # The notes list exactly the content that is omitted.
    listed = {note.code for note in encoded.notes}
    assert ("let me see" in said or "xyz" in said) or any(
        "thinking" in code or "continuity" in code for code in listed
    )
    for secret in ("sig-a", "sig-g", "xyz"):
        if secret in said:
            assert origin == target
    assert all(note.path.startswith(("messages[", "tools", "config")) for note in encoded.notes)


# --- a conversation of six turns, each on another wire -----------------------------------------

OSLO = ("c1", "weather", {"city": "Oslo"})


def model_on(wire: str, *bodies: Any) -> tuple[d.Provider, Any]:
    transport = d.transport.FixtureTransport(
        *[(200, {}, [json.dumps(body).encode()]) for body in bodies]
    )
    settings = {"wire": wire, "base_url": "https://example.test", "vendor": f"{wire}-vendor"}
    return d.connect("model-1", transport=transport, **settings), transport  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "order", list(itertools.permutations(WIRES))[:: math.factorial(len(WIRES)) // 2]
)
async def test_conversation_continues_over_six_turns_on_alternating_wires(
    order: tuple[str, ...],
) -> None:
    messages: list[Any] = [d.System("Be brief.")]
    for turn, wire in enumerate(itertools.islice(itertools.cycle(order), 6)):
        messages.append(d.User(f"question {turn}"))
        model, _ = model_on(wire, reply(wire, "", OSLO), reply(wire, f"answer {turn}"))
        proposed = await model.complete(messages, [WEATHER], CONFIG)
        messages.append(proposed.message)
        messages.append(d.ToolResult(proposed.tool_calls[0].id, f"rain {turn}"))
        answered = await model.complete(messages, [WEATHER], CONFIG)
        messages.append(answered.message)
    messages.append(d.User("And?"))
    for wire in WIRES:
        model, transport = model_on(wire, reply(wire, "done"))
        assert (await model.complete(messages, [WEATHER], CONFIG)).text == "done"
        said = transport.requests[0].body.decode()
        places = [
            said.index(f"{word} {turn}")
            for turn in range(6)
            for word in ("question", "rain", "answer")
        ]
        assert places == sorted(places)


# --- equal behaviour on all wires --------------------------------------------------------------


async def test_same_content_gives_equal_replies_on_all_wires() -> None:
    outcomes = []
    for wire in WIRES:
        model, _ = model_on(wire, reply(wire, "Hello"), reply(wire, "", OSLO))
        text = await model.complete("Hi", config=CONFIG)
        call = await model.complete("Hi", [WEATHER], CONFIG)
        outcomes.append(
            [(each.message.content, each.finish_reason, each.usage) for each in (text, call)]
        )
    for outcome in outcomes[1:]:
        for (content, reason, usage), (first_content, first_reason, first_usage) in zip(
            outcome, outcomes[0], strict=True
        ):
            assert content == first_content
            assert reason == first_reason
            assert usage.input_tokens == 7
            assert usage.output_tokens == 3
            assert usage.total_tokens == 10
            assert first_usage.total_tokens == 10


# Conditions that every wire reports, in a body of its own form, with the same class of error.
COMMON = {"AuthenticationError", "InvalidModelError", "RateLimitError", "ContextOverflowError",
          "OverloadedError"}  # fmt: skip


@pytest.mark.parametrize("wire", WIRES)
def test_same_condition_gives_the_same_error_class_on_all_wires(wire: str) -> None:
    cases = [case for case in find_cases(wire, "error.json") if case.reply is not None]
    assert {case.json("error.json")["error"] for case in cases} >= COMMON


@pytest.mark.parametrize("wire", WIRES)
def test_second_turn_only_appends_bytes_to_the_first(wire: str) -> None:
    first = [d.System("S"), d.User("one")]
    second = [*first, d.Assistant("two"), d.User("three")]
    bodies = [
        codec(wire)
        .encode(d.Request(messages, tools=(WEATHER,), config=CONFIG, model="model-1"))
        .http.body.decode()
        for messages in (first, second)
    ]
    shared = len(bodies[0]) - len(bodies[0].rstrip("]}"))
    prefix = bodies[0][: len(bodies[0]) - shared]
    assert bodies[1].startswith(prefix), (bodies[0][-80:], bodies[1][:200])


@pytest.mark.parametrize(("origin", "target"), [pair for pair in PAIRS if pair[0] != pair[1]])
def test_native_blocks_of_another_provider_are_dropped_and_reported(
    origin: str, target: str
) -> None:
    issuer = d.Issuer(origin, f"{origin}-vendor", "model-1")
    foreign = [
        d.RedactedThinking("secret", d.Continuity(issuer=issuer)),
        d.Opaque({"type": "server_tool_use", "note": "secret"}, d.Continuity(issuer=issuer)),
        d.Text("kept"),
    ]
    encoded = codec(target).encode(
        d.Request(
            [d.User("a"), d.Assistant(foreign), d.User("b")],
            tools=(),
            config=CONFIG,
            model="model-1",
        )
    )
    assert b"secret" not in encoded.http.body
    assert b"kept" in encoded.http.body
    dropped = {note.path for note in encoded.notes if note.outcome == "dropped"}
    assert {"messages[1].content[0]", "messages[1].content[1]"} <= dropped


@pytest.mark.parametrize("wire", WIRES)
def test_truncated_thinking_is_never_sent_back(wire: str) -> None:
    """Thinking from an interrupted stream is not sent, even to its own issuer."""
    issuer = d.Issuer(wire, f"{wire}-vendor", "model-1")
    cut = d.Thinking("half a tho", d.Continuity("half-a-sig", issuer=issuer, replayable=False))
    encoded = codec(wire).encode(
        d.Request(
            [d.User("a"), d.Assistant([cut, d.Text("t")]), d.User("b")],
            tools=(),
            config=CONFIG,
            model="model-1",
        )
    )
    assert b"half-a-sig" not in encoded.http.body
    assert any(note.path.startswith("messages[1].content[0]") for note in encoded.notes)
