"""Schemas, tool arguments and extra fields are sent with their keys in the order of the caller."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.capabilities import Capabilities
from dragoman.messages import (
    Assistant,
    Continuity,
    Issuer,
    Opaque,
    Request,
    RuntimeConfig,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    User,
)
from dragoman.provider import connect
from dragoman.wire import CODECS

# The key "z" comes before "a" here, as "reasoning" should come before "answer": models write the
# fields of a schema in this order.
SCHEMA = {
    "type": "object",
    "properties": {
        "z": {"type": "object", "properties": {"y": {"type": "string"}, "b": {"type": "string"}}},
        "a": {"type": "string"},
    },
    "required": ["z", "a"],
    "additionalProperties": False,
}
ARGUMENTS = {"z": {"y": "1", "b": "2"}, "a": "3"}
STATE = (User("hi"), Assistant(tool_calls=[ToolCall("c1", "f", ARGUMENTS)]), ToolResult("c1", "r"))
WIRES = sorted(CODECS)


def encode(wire: str, quirks: Any = None, **fields: Any) -> dict[str, Any]:
    codec = CODECS[wire].connect("m", "http://127.0.0.1:9", quirks, Capabilities())
    request = Request(
        config=RuntimeConfig(max_tokens=9, extras={"more": ARGUMENTS}), model="m", **fields
    )
    body = codec.encode(request).http.body
    assert codec.encode(request).http.body == body
    found: dict[str, Any] = json.loads(body)
    return found


def orders(value: Any) -> list[list[str]]:
    """Return the key order of every object in a body that has the key "z" or "y", including
    objects in JSON strings.
    """
    if isinstance(value, dict):
        own = [list(value)] if {"z", "y"} & set(value) else []
        return own + [order for each in value.values() for order in orders(each)]
    if isinstance(value, list):
        return [order for each in value for order in orders(each)]
    if isinstance(value, str) and "{" in value:
        try:
            return orders(json.loads(value[value.index("{") :]))
        except ValueError:
            return []
    return []


IN_ORDER = [["z", "a"], ["y", "b"]]


@pytest.mark.parametrize("wire", WIRES)
def test_key_order_of_tool_parameters_arguments_and_extra_fields_is_kept(wire: str) -> None:
    body = encode(wire, messages=STATE, tools=(Tool("f", "", parameters=SCHEMA),))
    found = orders(body)
    assert len(found) == 6, found
    assert [order for order in found if order not in IN_ORDER] == []


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("structured", [None, "prompt"])
def test_key_order_of_the_response_schema_is_kept(wire: str, structured: str | None) -> None:
    quirks = None if structured is None else {"structured": structured}
    body = encode(wire, quirks, messages=(User("hi"),), response_schema=SCHEMA)
    found = orders(body)
    assert len(found) == 4, found
    assert [order for order in found if order not in IN_ORDER] == []


def test_key_order_of_a_schema_sent_as_a_tool_is_kept() -> None:
    found = orders(
        encode("anthropic", {"structured": "tool"}, messages=(User("hi"),), response_schema=SCHEMA)
    )
    assert len(found) == 4
    assert [order for order in found if order not in IN_ORDER] == []


def test_key_order_of_emulated_tools_is_kept() -> None:
    found = orders(
        encode(
            "openai",
            {"tools": "schema"},
            messages=(User("hi"),),
            tools=(Tool("f", "", parameters=SCHEMA),),
        )
    )
    assert found.count(["z", "a"]) >= 2
    assert [order for order in found if order not in IN_ORDER] == []


def turned(value: Any) -> Any:
    """Return a value with the keys of each object in the reverse order."""
    if isinstance(value, dict):
        return {name: turned(value[name]) for name in reversed(value)}
    return [turned(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("structured", [None, "prompt"])
def test_canonical_requests_have_equal_bytes_in_any_order_of_keys(
    wire: str, structured: str | None
) -> None:
    for canonical in (True, False):
        quirks = {"canonical": canonical} | ({"structured": structured} if structured else {})
        codec = CODECS[wire].connect("m", "http://127.0.0.1:9", quirks, Capabilities())
        bodies = set()
        for given in (lambda value: value, turned):
            state = (
                User("hi"),
                Assistant("Hm.", tool_calls=[ToolCall("c1", "f", given(ARGUMENTS))]),
                ToolResult("c1", "r"),
            )
            extras = {"more": given(ARGUMENTS)}
            for fields in (
                {"messages": state, "tools": [Tool("f", "", parameters=given(SCHEMA))]},
                {"messages": (User("hi"),), "response_schema": given(SCHEMA)},
            ):
                config = RuntimeConfig(max_tokens=9, extras=extras)
                bodies.add(codec.encode(Request(config=config, model="m", **fields)).http.body)
        assert len(bodies) == (2 if canonical else 4)


def test_state_of_an_issuer_is_not_sorted() -> None:
    opaque = {"type": "server_tool_use", "id": "s", "name": "x", "input": {"z": 1, "a": 2}}
    state = Continuity(opaque=None, issuer=Issuer("anthropic", None, "m"))
    messages = (User("hi"), Assistant([Opaque(opaque, state), Text("x")]), User("go"))
    codec = CODECS["anthropic"].connect(
        "m", "http://127.0.0.1:9", {"canonical": True}, Capabilities()
    )
    sent = codec.encode(Request(messages, config=RuntimeConfig(max_tokens=9), model="m")).http.body
    assert b'"input":{"z":1,"a":2}' in sent or b'"input"' not in sent


def test_connect_and_models_yaml_have_the_setting_canonical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:9/v1"
    assert not quirks_of(connect("m", base_url=url)).canonical
    plain: Any = quirks_of(connect("m", base_url=url, canonical=True, quirks={"any_model": True}))
    assert plain.canonical is True
    assert plain.any_model is True
    file = tmp_path / "models.yaml"
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(file))
    adapter = f"type: llamacpp, base_url: '{url}'"
    file.write_text(
        f"adapters: {{a: {{{adapter}}}, b: {{{adapter}, quirks: {{canonical: true}}}}}}\n"
    )
    assert not quirks_of(connect("a:m")).canonical
    assert quirks_of(connect("b:m")).canonical
    asked: Any = quirks_of(connect("a:m", canonical=True))
    assert asked.canonical is True
    assert asked.any_model is True


def quirks_of(provider: Any) -> Any:
    return getattr(provider, "inner", provider).codec.quirks
