"""Schemas, tool arguments and extra fields are sent with their keys in the order of the caller."""

import json
from typing import Any

import pytest

from dragoman.capabilities import Capabilities
from dragoman.messages import Assistant, Request, RuntimeConfig, Tool, ToolCall, ToolResult, User
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
