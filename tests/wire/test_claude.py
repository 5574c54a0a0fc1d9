"""What the models of one family demand on both of its wires: a strict server accepts each request.

The checker has the rules that the vendors document for tool loops, thinking and settings; see
``catalog/families/claude.json`` for the sources.
"""

import itertools
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dragoman as d
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.anthropic.thinking import BINDING, open_turn
from tests.rows import read_table

WIRES = ("anthropic", "bedrock")
PAIRS = list(itertools.permutations(sorted(CODECS), 2))
TOOL = d.Tool("look", "Looks.", parameters={"type": "object", "properties": {}})
HI = d.User("Hi")

# The models, and what their server accepts: the kinds of thinking, the kind without the field,
# sampling settings, and forced tools: always, never, or only in requests without thinking.
MODELS: dict[str, tuple[set[str], str, bool, str]] = {
    "claude-sonnet-4-5": ({"enabled", "disabled"}, "disabled", True, "silent"),
    "claude-opus-4-1@20250805": ({"enabled", "disabled"}, "disabled", True, "silent"),
    "claude-opus-4-6": ({"enabled", "disabled", "adaptive"}, "disabled", True, "silent"),
    "claude-opus-4-8": ({"disabled", "adaptive"}, "disabled", False, "yes"),
    "claude-opus-5": ({"disabled", "adaptive"}, "adaptive", False, "yes"),
    "claude-haiku-5-5": ({"disabled", "adaptive"}, "adaptive", False, "yes"),
    "claude-sonnet-5-5": ({"between_tools", "adaptive"}, "adaptive", False, "no"),
    "claude-fable-5": ({"adaptive"}, "adaptive", False, "yes"),
    "claude-opus-5-5": ({"adaptive"}, "adaptive", False, "no"),
    "claude-fable-5-2": ({"adaptive"}, "adaptive", False, "no"),
    "claude-of-tomorrow": ({"adaptive"}, "adaptive", False, "no"),
}
BUDGETS = ("claude-sonnet-4-5", "claude-opus-4-1@20250805", "claude-opus-4-6")


@cache
def connect(wire: str, model: str) -> Any:
    name = model if wire == "anthropic" else f"us.anthropic.{model}"
    return CODECS[wire].connect(name, "https://api.example.com", None, d.Capabilities())


def read_converse(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request of the bedrock wire in the form of the anthropic wire, for the checker."""

    def read(block: dict[str, Any]) -> dict[str, Any]:
        if "reasoningContent" in block:
            text = block["reasoningContent"].get("reasoningText")
            if text is None:
                return {"type": "redacted_thinking"}
            return {"type": "thinking", "signature": text["signature"]}
        if "toolUse" in block:
            return {"type": "tool_use", "id": block["toolUse"]["toolUseId"]}
        if "toolResult" in block:
            return {"type": "tool_result", "tool_use_id": block["toolResult"]["toolUseId"]}
        return {"type": "text"}

    more = body.get("additionalModelRequestFields", {})
    config = body.get("inferenceConfig", {})
    choice = [*body.get("toolConfig", {}).get("toolChoice", {})]
    return {
        **{name: more[name] for name in ("thinking", "top_k") if name in more},
        **{name: config[its] for name, its in (("temperature", "temperature"), ("top_p", "topP")) if its in config},
        **({"tool_choice": {"type": choice[0]}} if choice else {}),
        "messages": [
            {"role": turn["role"], "content": [read(block) for block in turn["content"]]}
            for turn in body["messages"]
        ],
    }  # fmt: skip


def types_of(turn: dict[str, Any]) -> list[str]:
    content = turn["content"]
    return ["text"] if isinstance(content, str) else [block["type"] for block in content]


def check(wire: str, model: str, encoded: Any) -> None:
    """Fail as the server does, if a request breaks a rule of the model."""
    body = json.loads(encoded.http.body)
    body = read_converse(body) if wire == "bedrock" else body
    kinds, unasked, has_sampling, forced = MODELS[model]
    kind = body.get("thinking", {}).get("type", unasked)
    assert kind in kinds
    if not has_sampling:
        assert body.keys().isdisjoint({"temperature", "top_p", "top_k"})
    elif kind in ("enabled", "adaptive"):
        assert body.get("temperature", 1) == 1
        assert "top_k" not in body
        assert body.get("top_p", 1) >= 0.95
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        assert forced == "yes" or (forced == "silent" and kind == "disabled")
    turns = body["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"]
    last = max(at for at, turn in enumerate(turns) if turn["role"] == "user" and "tool_result" not in types_of(turn))  # fmt: skip
    opened = [types_of(turn) for turn in turns[last + 1 :] if turn["role"] == "assistant"]
    if kind == "enabled" and opened:
        assert opened[0][0] in ("thinking", "redacted_thinking")
    if kind == "disabled" and model in BUDGETS:
        assert not [each for each in opened if "thinking" in each or "redacted_thinking" in each]
    for turn in turns:
        for block in turn["content"] if turn["role"] == "assistant" else ():
            if block["type"] == "thinking":
                assert block["signature"] == f"signed for {wire}"


def issuer(wire: str, model: str) -> d.Issuer:
    if wire in WIRES:
        return d.Issuer(wire, None, connect(wire, model).model)
    return d.Issuer(wire, None, "other-model")


@st.composite
def answers(draw: Any, wire: str, model: str, call: str | None) -> d.Assistant:
    """Draw an answer of a model: with thinking or not, text, and a call."""
    state = d.Continuity(
        signature=draw(st.sampled_from([f"signed for {wire}", f"signed for {wire}", None])),
        issuer=issuer(wire, model),
        replayable=draw(st.sampled_from([True, True, False])),
    )
    blocks: list[Any] = []
    if draw(st.booleans()) or wire in WIRES:
        blocks.append(d.Thinking("Hm.", state))
    if draw(st.sampled_from([False, False, True])):
        blocks.append(d.RedactedThinking("ZW5j", d.Continuity(issuer=issuer(wire, model))))
    if draw(st.booleans()) or call is None:
        blocks.append(d.Text("Let me see."))
    if call is not None:
        blocks.append(d.ToolCall(call, "look", {}))
    return d.Assistant(blocks)


@st.composite
def configs(draw: Any) -> d.RuntimeConfig:
    amounts = [None, "off", "low", "high", "max", 2000, 8000]
    return d.RuntimeConfig(
        max_tokens=16000,
        reasoning=draw(st.sampled_from(amounts)),
        temperature=draw(st.sampled_from([None, 1, 0.2])),
        top_p=draw(st.sampled_from([None, 0.9])),
    )


def switch(draw: Any, first: str, second: str, model: str) -> list[tuple[str, list[d.Message]]]:
    """Return the requests of a tool loop that begins on one wire, moves and comes back."""
    said: list[d.Message] = [HI]
    made: list[tuple[str, list[d.Message]]] = []
    for step, wire in enumerate((first, second, first, second)):
        made.append((wire, [*said]))
        call = None if step == 2 else f"c{step}"
        said.append(draw(answers(wire, model, call)))
        if call is not None:
            said.append(d.ToolResult(call, "Seen."))
        if call is None or draw(st.sampled_from([False, False, False, True])):
            said.append(d.User("Go on."))
    made += [(first, [*said]), (second, [*said])]
    if draw(st.booleans()):
        made.append((first, [*said, d.Assistant([d.Text("{")])]))
    return made


@pytest.mark.parametrize(("first", "second"), PAIRS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_strict_server_accepts_a_conversation_that_moves_in_the_middle_of_a_turn(
    first: str, second: str, data: st.DataObject
) -> None:
    model = data.draw(st.sampled_from(sorted(MODELS)))
    config = data.draw(configs())
    choice = data.draw(st.sampled_from([None, "auto", "required", d.ForceTool("look")]))
    for wire, messages in switch(data.draw, first, second, model):
        if wire in WIRES:
            choices = {"tool_choice": choice, "tools": [TOOL], "config": config}
            if model in BUDGETS and isinstance(messages[-1], d.Assistant):
                continue  # older models continue a message, which is not a turn of the checker
            encoded = connect(wire, model).encode(d.Request(messages, **choices))
            check(wire, model, encoded)


@pytest.mark.parametrize("wire", WIRES)
def test_turn_that_lacks_its_thinking_is_finished_without_reasoning(wire: str) -> None:
    codec = connect(wire, "claude-sonnet-4-5")
    foreign = d.Thinking("Hm.", d.Continuity("s", issuer=d.Issuer("responses", None, "other")))
    said = [HI, d.Assistant([foreign, d.ToolCall("c", "look", {})]), d.ToolResult("c", "Seen.")]
    config = d.RuntimeConfig(max_tokens=4000, reasoning=2000)
    moved = codec.encode(d.Request(said, tools=[TOOL], config=config))
    assert b'"disabled"' in moved.http.body
    assert [each.code for each in moved.warnings] == ["reasoning_off", "thinking_dropped"]
    said += [d.Assistant([d.Text("Done.")]), HI]
    later = codec.encode(d.Request(said, tools=[TOOL], config=config))
    assert b'"budget_tokens":2000' in later.http.body
    assert [each.code for each in later.warnings] == ["thinking_dropped"]


NATIVE = {"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 2000}}}
NATIVE["bedrock"] = {"additionalModelRequestFields": {**NATIVE["anthropic"], "top_k": 5}}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("place", ["native", "extras"])
def test_thinking_that_a_client_asks_for_by_itself_is_turned_off_too(
    wire: str, place: str
) -> None:
    said = [HI, d.Assistant([d.ToolCall("c", "look", {})]), d.ToolResult("c", "Seen.")]
    config = d.RuntimeConfig(max_tokens=4000, extras=NATIVE[wire] if place == "extras" else {})
    native = {wire: NATIVE[wire], "other": {"a": 1}} if place == "native" else {}
    codec = connect(wire, "claude-sonnet-4-5")
    encoded = codec.encode(d.Request(said, tools=[TOOL], config=config, native=native))
    body = json.loads(encoded.http.body)
    more = body if wire == "anthropic" else body["additionalModelRequestFields"]
    assert more["thinking"] == {"type": "disabled"}
    assert more.get("top_k") == (None if wire == "anthropic" else 5)


def test_model_that_always_reasons_is_asked_for_no_amount_in_a_turn_without_thinking() -> None:
    style = {"budget": "thinking.budget_tokens", "with_budget": {"thinking.type": "enabled"}}
    quirks = {"needs_thinking": True, "reasoning": style}
    codec = CODECS["anthropic"].connect("m", "http://a.test", quirks, d.Capabilities())
    said = [HI, d.Assistant([d.ToolCall("c", "look", {})]), d.ToolResult("c", "Seen.")]
    config = d.RuntimeConfig(max_tokens=4000, reasoning=2000)
    body = json.loads(codec.encode(d.Request(said, tools=[TOOL], config=config)).http.body)
    assert "thinking" not in body


CALL = d.Assistant([d.ToolCall("c", "look", {})])
RESULT = d.ToolResult("c", "Seen.")
SAID = d.Assistant([d.Text("Done.")])


@pytest.mark.parametrize(
    ("messages", "first"),
    [
        ([HI], 1),
        ([HI, CALL, RESULT], 1),
        ([HI, CALL, RESULT, CALL, RESULT], 1),
        ([HI, CALL, RESULT, HI], 1),
        ([HI, CALL, RESULT, SAID, HI], 5),
        ([HI, CALL, RESULT, SAID, HI, CALL, RESULT], 5),
        ([d.System("S"), HI, SAID], 2),
        ([SAID], 0),
        ([RESULT, CALL], 0),
        ([], 0),
    ],
)
def test_turn_is_open_after_the_last_message_that_has_more_than_results(
    messages: list[d.Message], first: int
) -> None:
    assert open_turn(messages) == first


# Each entry: the model's name, and the quirks that it has on both wires.
@pytest.mark.parametrize(("model", "quirks"), read_table("claude_models"))
@pytest.mark.parametrize("wire", WIRES)
def test_model_has_the_quirks_of_its_line(wire: str, model: str, quirks: dict[str, Any]) -> None:
    found = CODECS[wire].connect(model, "http://a.test", None, d.Capabilities()).quirks  # type: ignore[attr-defined]
    named = {name: getattr(found, name) for name in quirks if hasattr(found, name)}
    expected = {name: value for name, value in quirks.items() if hasattr(found, name)}
    if wire == "anthropic":
        expected.pop("structured", None)
        named.pop("structured", None)
    assert named == expected
    assert len(expected) >= 6


def bound(wire: str, encoded: Any) -> bool:
    """Return whether a request asks the server to drop thinking whose prefix has changed."""
    body = json.loads(encoded.http.body)
    betas = encoded.http.headers.get("anthropic-beta", "").split(",")
    if wire == "bedrock":
        body = body.get("additionalModelRequestFields", {})
        betas = body.get("anthropic_beta", [])
    name = SERVER_CODECS[wire].binding_field
    asks = body.get("thinking", {}).get("block_binding") == {name: "drop_block"}
    assert asks == (BINDING in betas)
    return asks


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("model", "amount", "binds"),
    [
        ("claude-opus-5-5", None, True),
        ("claude-opus-5-5", "off", True),
        ("claude-fable-5-2", "high", True),
        ("claude-of-tomorrow", None, True),
        ("claude-haiku-5-5", None, True),
        ("claude-haiku-5-5", "off", False),
        ("claude-sonnet-5-5", "off", False),
        ("claude-opus-5", None, False),
        ("claude-fable-5", "low", False),
        ("claude-sonnet-4-5", None, False),
    ],
)
def test_changed_prefix_costs_thinking_and_not_the_request(
    wire: str, model: str, amount: Any, binds: bool
) -> None:
    codec = connect(wire, model)
    signed = d.Thinking("Hm.", d.Continuity("s", issuer=d.Issuer(wire, None, codec.model)))
    config = d.RuntimeConfig(max_tokens=4000, reasoning=amount)
    first = d.Request([HI], tools=[TOOL], config=config)
    assert not bound(wire, codec.encode(first))
    said = [HI, d.Assistant([signed, d.ToolCall("c", "look", {})]), d.ToolResult("c", "Seen.")]
    assert bound(wire, codec.encode(d.Request(said, tools=[TOOL], config=config))) is binds


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("place", ["native", "extras"])
def test_caller_decides_what_happens_to_thinking_whose_prefix_has_changed(
    wire: str, place: str
) -> None:
    codec = connect(wire, "claude-opus-5-5")
    signed = d.Thinking("Hm.", d.Continuity("s", issuer=d.Issuer(wire, None, codec.model)))
    own: dict[str, Any] = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}  # fmt: skip
    fields = {"thinking": own} if wire == "anthropic" else {"additionalModelRequestFields": {"thinking": own}}  # fmt: skip
    config = d.RuntimeConfig(max_tokens=4000, extras=fields if place == "extras" else {})
    native = {wire: fields} if place == "native" else {}
    said = [HI, d.Assistant([signed, d.Text("Done.")]), HI]
    encoded = codec.encode(d.Request(said, config=config, native=native))
    assert b"drop_block" not in encoded.http.body
    assert BINDING not in str(encoded.http)


@pytest.mark.parametrize("wire", WIRES)
def test_client_that_sets_thinking_itself_decides_about_a_changed_prefix(wire: str) -> None:
    codec = connect(wire, "claude-opus-5-5")
    signed = d.Thinking("Hm.", d.Continuity("s", issuer=d.Issuer(wire, None, codec.model)))
    fields: dict[str, Any] = {"thinking": {"type": "adaptive"}}
    fields = fields if wire == "anthropic" else {"additionalModelRequestFields": fields}
    said = [HI, d.Assistant([signed, d.Text("Done.")]), HI]
    config = d.RuntimeConfig(max_tokens=4000)
    encoded = codec.encode(d.Request(said, config=config, native={wire: fields}))
    assert not bound(wire, encoded)


def test_turn_that_a_server_tool_has_paused_is_sent_back_as_it_is() -> None:
    codec = connect("anthropic", "claude-opus-5-5")
    state = d.Continuity(issuer=d.Issuer("anthropic", None, codec.model))
    call = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    paused = d.Assistant([d.Opaque(call, state), d.Opaque(found, state)])
    config = d.RuntimeConfig(max_tokens=9)
    encoded = codec.encode(d.Request([HI, paused], config=config, continues=True))
    assert json.loads(encoded.http.body)["messages"][-1]["content"][-1] == found
    assert encoded.warnings == ()


@pytest.mark.parametrize(
    ("model", "amount", "path"),
    [
        ("claude-sonnet-4-5", None, "tool"),
        ("claude-sonnet-4-5", 2000, "prompt"),
        ("claude-opus-5-5", None, "prompt"),
    ],
)
def test_schema_that_the_field_cannot_express_uses_the_next_path(
    model: str, amount: Any, path: str
) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    config = d.RuntimeConfig(max_tokens=4000, reasoning=amount)
    codec = connect("bedrock", model)
    encoded = codec.encode(d.Request([HI], response_schema=schema, config=config))
    assert encoded.structured_path == path


def test_path_of_a_schema_is_that_of_a_turn_that_is_finished_without_reasoning() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    config = d.RuntimeConfig(max_tokens=4000, reasoning=2000)
    said = [HI, d.Assistant([d.ToolCall("c", "look", {})]), d.ToolResult("c", "Seen.")]
    request = d.Request(said, response_schema=schema, config=config)
    for wire in WIRES:
        codec = connect(wire, "claude-sonnet-4-5")
        assert codec.encode(request).structured_path == "tool"
        assert codec.answer_tool(request) is not None


# "`temperature` and `top_p` cannot both be specified for this model": aws-samples/bedrock-chat#979,
# mem0ai/mem0#4147 (seen 2026-11-18).
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("model", "settings", "sent", "lost"),
    [
        ("claude-sonnet-4-5", {"temperature": 0.3, "top_p": 0.9}, {"temperature"}, ["top_p"]),
        ("claude-opus-4-1@20250805", {"temperature": 1, "top_p": 1}, {"temperature"}, ["top_p"]),
        ("claude-opus-4-6", {"top_p": 0.9}, {"top_p"}, []),
        ("claude-3-5-sonnet-20241022", {"temperature": 0.3, "top_p": 0.9},
         {"temperature", "top_p"}, []),
    ],
)  # fmt: skip
def test_one_of_two_sampling_settings_is_sent(
    wire: str, model: str, settings: dict[str, Any], sent: set[str], lost: list[str]
) -> None:
    config = d.RuntimeConfig(max_tokens=99, **settings)
    encoded = connect(wire, model).encode(d.Request([HI], config=config))
    body = json.loads(encoded.http.body)
    body = read_converse(body) if wire == "bedrock" else body
    assert body.keys() & {"temperature", "top_p"} == sent
    assert [each.path for each in encoded.warnings] == [f"config.{name}" for name in lost]


def test_refusal_of_both_sampling_settings_teaches_an_unknown_name() -> None:
    codec = CODECS["anthropic"].connect("m", "http://a.test", None, d.Capabilities())
    config = d.RuntimeConfig(max_tokens=9, temperature=0.3, top_p=0.9)
    request = d.Request([HI], config=config)
    message = "`temperature` and `top_p` cannot both be specified for this model."
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    learned = codec.learn(codec.error(400, {}, json.dumps(body).encode()), request)
    assert learned is not None
    sent = json.loads(learned.encode(request).http.body)
    assert sent.keys() & {"temperature", "top_p"} == {"temperature"}
