"""Tool names that a wire does not accept are replaced in requests and restored in replies."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import dragoman as d
from dragoman.wire import CODECS
from dragoman.wire.ids import NameRule

from .pairs import client, hear, serve
from .replies import Call, reply

WIRES = sorted(CODECS)
# The rules in the errors of the servers for other names, or in their documentation.
RULES = {
    "openai": r"[a-zA-Z0-9_-]{1,64}",
    "responses": r"[a-zA-Z0-9_-]{1,64}",
    "anthropic": r"[a-zA-Z0-9_-]{1,128}",
    "bedrock": r"[a-zA-Z0-9_-]{1,64}",
    "cohere": r"[a-zA-Z_][a-zA-Z0-9_]{0,63}",  # without a limit of the length; 64 is ours
    "gemini": r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}",
    "ollama": r"(?s).+",
}
NAMES = ["math.sum", "math_sum", "math sum", "9", "-a", "a-b", "日本", "x" * 65, "x" * 64 + "y"]
names_of_tools = st.lists(
    st.sampled_from(NAMES) | st.text("ab._-9é", min_size=1, max_size=70),
    min_size=1,
    max_size=6,
    unique=True,
)


def offer(names: list[str], *, stream: bool = False) -> d.Request:
    """Return a request that offers tools, forces the first, and contains a call of each."""
    calls = [d.ToolCall(f"call_{at}", name, {}) for at, name in enumerate(names)]
    return d.Request(
        [d.User("Go."), d.Assistant(calls), *[d.ToolResult(call.id, "done") for call in calls]],
        tools=[d.Tool(name) for name in names],
        config=d.RuntimeConfig(max_tokens=9),
        tool_choice=d.ForceTool(names[0]),
        model="test-model",
        stream=stream,
    )


def names_in(value: Any) -> Iterator[str]:
    """Yield each tool name of a request body: of tools, of calls, and of results."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key in ("name", "tool_name") and isinstance(each, str):
                yield each
            elif key == "allowedFunctionNames":
                yield from each
            elif key not in ("parameters", "input_schema", "inputSchema", "parametersJsonSchema"):
                yield from names_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from names_in(each)


@pytest.mark.parametrize("wire", WIRES)
@given(names=names_of_tools)
def test_names_that_a_wire_refuses_are_projected(wire: str, names: list[str]) -> None:
    body = json.loads(client(wire).encode(offer(names)).http.body)
    found = list(names_in(body))
    assert [name for name in found if not re.fullmatch(RULES[wire], name)] == []
    assert len(set(found)) == len(names)
    assert set(names) & set(found) == {name for name in names if re.fullmatch(RULES[wire], name)}
    assert body == json.loads(client(wire).encode(offer(names)).http.body)


@pytest.mark.parametrize("wire", WIRES)
def test_a_long_name_is_cut_alike_whatever_other_tools_there_are(wire: str) -> None:
    """Tools of an MCP server may come and go during a conversation."""
    first, second = ("tracker_" + "x" * 120 + end for end in "ab")
    sent = [set(names_in(json.loads(client(wire).encode(offer(names)).http.body)))
            for names in ([first, second], [second, first], [first], [second])]  # fmt: skip
    assert sent[0] == sent[1] == sent[2] | sent[3]
    assert len(sent[0]) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", WIRES)
def test_calls_in_replies_have_the_names_of_the_tools(wire: str, stream: bool) -> None:
    request = offer(NAMES, stream=stream)
    sent = client(wire).encode(request).http.body
    theirs = dict(zip(NAMES, dict.fromkeys(names_in(json.loads(sent))), strict=True))
    calls: list[Call] = [(f"call_{at}", theirs[name], {}) for at, name in enumerate(NAMES)]
    plain = replace(request, tools=[d.Tool(name) for name in theirs.values()], stream=False)
    body = json.dumps(reply(wire, "", *calls)).encode()
    heard = hear(wire, replace(plain, tool_choice=None), [body])
    assert heard.error is None
    pieces = serve(wire, replace(plain, stream=stream), heard.events, None)
    mine = hear(wire, request, pieces)
    assert mine.error is None
    assert [call.name for call in d.fold(mine.events).message.tool_calls] == NAMES
    starts = [event for event in mine.events if isinstance(event, d.ToolUseStart)]
    assert [event.tool_name for event in starts] == NAMES


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire not in ("gemini", "ollama")])
def test_projected_names_are_noted_where_they_occur(wire: str) -> None:
    notes = client(wire).encode(offer(["math.sum", "plain"])).notes
    assert [
        (note.path, note.outcome, note.loss) for note in notes if "math_sum" in note.detail
    ] == [
        ("tools[0]", "rewritten", False),
        ("tool_choice", "rewritten", False),
        ("messages[1].content[0]", "rewritten", False),
    ]
    assert {note.code for note in notes if "math_sum" in note.detail} == {"name_projected"}


def test_names_with_the_same_projection_stay_distinct() -> None:
    body = json.loads(client("openai").encode(offer(["a.b", "a_b", "a b"])).http.body)
    first, second, third = [tool["function"]["name"] for tool in body["tools"]]
    assert second == "a_b"
    assert len({first, second, third}) == 3
    assert first.startswith("a_b_")
    assert third.startswith("a_b_")


def test_a_quirk_turns_the_projection_of_names_off() -> None:
    codec = CODECS["openai"].connect("m", "http://a.test", {"name_rule": None}, d.Capabilities())
    body = json.loads(codec.encode(offer(["math.sum"])).http.body)
    assert body["tools"][0]["function"]["name"] == "math.sum"


@given(st.text(max_size=80), st.integers(0, 3))
def test_folded_names_satisfy_the_name_rule(name: str, salt: int) -> None:
    rule = NameRule(64, also="_", never_first="0123456789")
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", rule.fold(name, salt))
