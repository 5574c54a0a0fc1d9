"""A long conversation sent again is written from what was kept of it, and comes out as if nothing had been."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import InvalidRequestError
from dragoman.messages import (
    Assistant,
    Message,
    Request,
    RuntimeConfig,
    System,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
)
from dragoman.wire.openai import OpenAICodec
from dragoman.wire.prefix import LONG, Prefixes


def encode(codec: OpenAICodec, messages: list[Message]) -> bytes:
    return codec.encode(Request(tuple(messages), model="m")).http.body


def codec() -> OpenAICodec:
    return OpenAICodec("m", "http://127.0.0.1:1/v1")


def call(number: int, **arguments: Any) -> list[Message]:
    """A turn in which a tool is used."""
    id_ = f"call_{number}"
    return [
        User(f"use it {number}"),
        Assistant([Text("so be it"), ToolCall(id_, "tool", arguments)]),
        ToolResult(id_, "done"),
        Assistant(f"answer {number}"),
    ]


TURNS: list[list[Message]] = [
    [User("é"), Assistant("b")],
    [User([Text("c")]), Assistant([Text("d"), Text("e")])],
    call(1, a=1, b=2),
    [User("thought"), Assistant([Thinking("hm"), Text("f")])],  # drops something, so that nothing is kept
    [User("open"), Assistant([Text("g"), ToolCall("call_open", "tool", {})])],  # never answered
]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(TURNS[:3]), min_size=LONG // 2), st.lists(st.sampled_from(TURNS), max_size=4))
def test_a_conversation_that_grows_is_written_as_one_that_is_new(
    first: list[list[Message]], more: list[list[Message]]
) -> None:
    keeping = codec()
    messages: list[Message] = [System("s"), *[message for turn in first for message in turn]]
    for turn in [[], *more]:
        messages += turn
        asked = [*messages, User("?")]
        assert encode(keeping, asked) == encode(codec(), asked)
        assert encode(keeping, asked) == encode(codec(), asked)


def test_only_what_was_added_is_written(monkeypatch: Any) -> None:
    keeping = codec()
    messages: list[Message] = [message for number in range(10) for message in call(number)]
    encode(keeping, [*messages, User("?")])
    written: list[int] = []
    original = Prefixes.find

    def find(self: Prefixes, asked: Any) -> Any:
        found = original(self, asked)
        written.append(len(asked) - len(found.messages))
        return found

    monkeypatch.setattr(Prefixes, "find", find)
    question = User("?")
    encode(keeping, [*messages, question])
    asked = [*messages, question]
    encode(keeping, [*asked, Assistant("b"), User("c")])
    encode(keeping, [*messages[:-1], User("another")])
    assert written == [41, 2, 40]


def test_another_message_in_the_middle_is_seen() -> None:
    keeping = codec()
    messages: list[Message] = [User("a"), Assistant("b")] * LONG + [User("c")]
    encode(keeping, messages)
    messages[3] = Assistant("changed")
    assert b"changed" in encode(keeping, messages)


def test_arguments_that_were_changed_in_their_place_are_seen() -> None:
    keeping = codec()
    messages = [message for number in range(LONG) for message in call(number, secret="old")] + [User("?")]
    assert b"old" in encode(keeping, messages)
    for message in messages:
        if isinstance(message, Assistant):
            for block in message.tool_calls:
                assert block.arguments is not None
                block.arguments["secret"] = "new"
    sent = encode(keeping, messages)
    assert b"new" in sent
    assert b"old" not in sent


def test_what_is_kept_is_bounded() -> None:
    kept = Prefixes(conversations=3, size=100)
    nothing = kept.find([])
    for number in range(9):
        kept.keep([User(str(number))], b"[%d]" % number, 0, nothing)
    assert [prefix.body for prefix in kept._kept] == [b"[6]", b"[7]", b"[8]"]
    kept.keep([User("large")], b"[" + b"1" * 95 + b"]", 0, nothing)
    assert [len(prefix.body) for prefix in kept._kept] == [3, 97]
    kept.keep([User("too large")], b"[" + b"1" * 100 + b"]", 0, nothing)
    assert [len(prefix.body) for prefix in kept._kept] == [3, 97]


def test_other_settings_go_before_the_same_messages() -> None:
    keeping = codec()
    messages = tuple([User("a"), Assistant("b")] * LONG + [User("c")])
    for config in ({}, {"temperature": 0.5}, {"extras": {"user": "me"}}, {"temperature": 0.1, "extras": {"top_k": 3}}):
        request = Request(messages, config=RuntimeConfig(**config), model="m", stream="extras" in config)
        body = keeping.encode(request).http.body
        assert body == codec().encode(request).http.body
        assert list(json.loads(body))[-1] == "messages"
    same = RuntimeConfig(extras={"messages": json.loads(body)["messages"]})
    assert keeping.encode(Request(messages, config=same, model="m")).http.body == encode(codec(), list(messages))
    with pytest.raises(InvalidRequestError, match="messages"):
        keeping.encode(Request(messages, config=RuntimeConfig(extras={"messages": []}), model="m"))
