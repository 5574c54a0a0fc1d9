"""Any conversation becomes a request that follows the rules of the server, on every wire."""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.validate import check_request
from dragoman.wire import CODECS

from .cases import BASE_URL, MODEL

WIRES = sorted(CODECS)
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA=="}
OPAQUE = [
    REASONING,
    {**REASONING, "status": "incomplete"},
    {"phase": "commentary"},
    {"citations": [{"n": 1}]},
    {"caller": {"type": "p", "tool_id": "srv1"}},
]
# Blocks of providers: calls and results of tools that the server runs, some without the other.
NATIVE = [
    {"type": "server_tool_use", "id": "srv1"},
    {"type": "server_tool_use", "id": "srv2"},
    {"type": "x_tool_result", "tool_use_id": "srv1"},
    {"type": "web_search_call", "call_id": "a"},
    {"type": "shell_call", "call_id": "a"},
    {"type": "shell_call_output", "call_id": "a"},
    {"type": "shell_call_output", "call_id": "b"},
]

ids = st.sampled_from(["call_0", "call_1", "functions.f:0", "x" * 65, "y" * 64, "ü"])
issuers = st.none() | st.builds(
    d.Issuer, st.sampled_from(WIRES), st.none(), st.sampled_from([None, MODEL, "other"])
)
states = st.none() | st.builds(
    d.Continuity,
    st.none() | st.just("sig"),
    st.none() | st.sampled_from(OPAQUE),
    issuers,
    st.booleans(),
)
spoken = st.one_of(
    st.builds(d.Text, st.sampled_from(["", " ", "Hello"]), states),
    st.builds(d.Thinking, st.sampled_from(["", "Hm"]), states),
    st.builds(d.RedactedThinking, st.just("xx"), states),
    st.builds(d.Opaque, st.sampled_from(NATIVE), states),
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[d.Message, ...]:
    """Generate valid conversations whose tool calls are answered at once, late, out of order or
    never.
    """
    messages: list[d.Message] = [d.User("Go.")]
    waiting: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        calls = draw(st.lists(ids, max_size=2, unique=True))
        made = [
            *draw(st.lists(spoken, max_size=3)),
            *[d.ToolCall(name, "f", {}, draw(states)) for name in calls],
        ]
        if any(block != d.Text("") for block in made):
            messages.append(d.Assistant(draw(st.permutations(made))))
            waiting += calls
        answers: list[d.Message] = [d.User(draw(st.sampled_from(["And?", [d.Text("a")]])))]
        for name in draw(st.permutations(waiting)):
            if draw(st.booleans()):
                waiting.remove(name)
                answers.append(d.ToolResult(name, draw(st.sampled_from(["", "done"]))))
        messages += draw(st.permutations(answers))
    return (*messages, d.User("Well?"))


def encode(wire: str, messages: tuple[d.Message, ...], quirks: Any = None) -> Any:
    codec = CODECS[wire].connect(MODEL, BASE_URL, quirks, d.Capabilities())
    config = d.RuntimeConfig(max_tokens=64)
    return codec.encode(d.Request(messages, config=config, model=MODEL, request_id="R"))


# --- the rules of each server ------------------------------------------------------------------


def check_alternating(turns: list[dict[str, Any]]) -> None:
    """Assert that the user begins, and that no side has two turns in succession."""
    roles = itertools.cycle(["user", "assistant"])
    assert [turn["role"] for turn in turns] == [role for role, _ in zip(roles, turns)]  # noqa: B905


def check_anthropic(body: Any) -> None:
    turns = body["messages"]
    check_alternating(turns)
    seen: set[str] = set()
    asked: list[str] = []
    for turn in turns:
        content = turn["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        assert content
        kinds = [block["type"] for block in content]
        answered = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        assert sorted(answered) == sorted(asked)
        assert kinds[: len(answered)] == ["tool_result"] * len(answered)
        asked = [block["id"] for block in content if block["type"] == "tool_use"]
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in asked)
        assert not seen.intersection(asked)
        assert len({*seen, *asked}) == len(seen) + len(asked)
        seen.update(asked)
        said = [block["text"] for block in content if block["type"] == "text"]
        assert all(said)
        assert not said or any(text.strip() for text in said)
        assert all(block["signature"] for block in content if block["type"] == "thinking")
        assert turn["role"] == "user" or kinds[-1] not in ("thinking", "redacted_thinking")
    assert not asked


def check_bedrock(body: Any) -> None:
    check_alternating(body["messages"])
    asked: list[str] = []
    for message in body["messages"]:
        assert all(len(block) == 1 for block in message["content"])
        results = [block["toolResult"] for block in message["content"] if "toolResult" in block]
        assert sorted([result["toolUseId"] for result in results]) == sorted(asked)
        uses = [block["toolUse"] for block in message["content"] if "toolUse" in block]
        asked = [use["toolUseId"] for use in uses]
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in asked)
    assert not asked


def check_gemini(body: Any) -> None:
    assert body["contents"][0]["role"] == body["contents"][-1]["role"] == "user"
    asked: list[str] = []
    for content in body["contents"]:
        parts = content["parts"]
        assert parts
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        assert [answer["name"] for answer in answers] == asked
        asked = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
    assert not asked


def check_responses(body: Any) -> None:
    assert body["store"] is False
    items = body["input"]
    asked: list[str] = []
    seen: set[str] = set()
    for at, item in enumerate(items):
        if item["type"] == "function_call":
            assert item["call_id"] not in seen
            assert 0 < len(item["call_id"]) <= 64
            seen.add(item["call_id"])
            asked.append(item["call_id"])
        elif item["type"] == "function_call_output":
            asked.remove(item["call_id"])
        elif item["type"] == "reasoning":
            assert item["encrypted_content"]
            assert "status" not in item
            assert items[at + 1]["type"] != "function_call_output"
            assert items[at + 1].get("role") != "user"
    assert not asked
    shells = [item for item in items if item["type"].startswith("shell_call")]
    for item in shells:
        partners = [other for other in shells if other["call_id"] == item["call_id"]]
        assert {other["type"] for other in partners} == {"shell_call", "shell_call_output"}


def check_cohere(body: Any) -> set[str]:
    """Check that each result follows its call; return the calls without a result, which are
    allowed.
    """
    asked: set[str] = set()
    answered: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool" and "tool_call_id" in message:
            assert message["tool_call_id"] in asked
            answered.add(message["tool_call_id"])
        asked |= {call["id"] for call in message.get("tool_calls") or () if "id" in call}
    return asked - answered


def check_chat(body: Any) -> None:
    """Check the messages of the openai wire, and of the ollama wire, which has no ids."""
    assert not check_cohere(body)


RULES: dict[str, Callable[[Any], object]] = {
    "anthropic": check_anthropic,
    "bedrock": check_bedrock,
    "cohere": check_cohere,
    "gemini": check_gemini,
    "ollama": check_chat,
    "openai": check_chat,
    "responses": check_responses,
}


@pytest.mark.parametrize("wire", WIRES)
@given(messages=conversations(), data=st.data())
def test_any_conversation_is_encoded_as_a_valid_request(
    wire: str, messages: tuple[d.Message, ...], data: st.DataObject
) -> None:
    quirks = data.draw(st.sampled_from([None, {"send_reasoning": "all"}]))
    before = msgspec.to_builtins(messages)
    check_request(d.Request(messages))
    encoded = encode(wire, messages, quirks if wire == "responses" else None)
    RULES[wire](json.loads(encoded.http.body))
    assert msgspec.to_builtins(messages) == before
    again = msgspec.convert(before, tuple[d.Message, ...])
    assert encode(wire, again).http.body == encode(wire, messages).http.body


@given(conversations())
def test_later_turns_only_append_bytes(messages: tuple[d.Message, ...]) -> None:
    body = encode("anthropic", messages).http.body
    longer = encode("anthropic", (*messages, d.Assistant("Yes."), d.User("Good.")))
    assert longer.http.body.startswith(body.removesuffix(b"]}"))


@given(conversations())
def test_every_omitted_block_is_noted(messages: tuple[d.Message, ...]) -> None:
    encoded = encode("responses", messages)
    items = json.loads(encoded.http.body)["input"]
    blocks = sum([len(each.content) if isinstance(each, d.Assistant) else 1 for each in messages])
    omitted = {
        note.path
        for note in encoded.notes
        if note.outcome == "dropped"
        and not note.path.endswith("continuity")
        and note.code != "message_dropped"
    }
    assert len(items) + len(omitted) == blocks
