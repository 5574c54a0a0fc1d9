"""Test messages in the caller's own formats: they are parsed without loss, or rejected with the
path of the mistake.
"""

import copy
from collections import deque
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import dragoman as d
from dragoman.validate import build_request, parse_config, parse_tool_choice, parse_tools
from tests import strategies as some
from tests.rows import read_table

# --- parsing messages --------------------------------------------------------------------------


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


# Other messages are in the table: their name, what the caller gives, and the messages.
READ: dict[str, tuple[Any, list[d.Message]]] = {
    "one value": (d.User("hi"), [d.User("hi")]),
    "values": ([d.System("s"), d.User("u")], [d.System("s"), d.User("u")]),
    "a tuple of values": ((d.System("s"), d.User("u")), [d.System("s"), d.User("u")]),
    "values and records": ([d.System("s"), {"role": "user", "content": "u"}],
                           [d.System("s"), d.User("u")]),
    "any mapping": ([MappingProxyType({"role": "user", "content": "u"})], [d.User("u")]),
    "seed: images": (
        [user({"type": "text", "text": "t"},
              {"type": "image", "source": {"type": "url", "url": "https://x"}},
              {"type": "image", "source": {"type": "inline", "base64_data": "aGk="},
               "media_type": "image/png", "detail": "low"},
              {"type": "image", "source": d.Inline("aGk="), "media_type": "image/png"})],
        [d.User([d.Text("t"), d.Image(d.Url("https://x")),
                 d.Image(d.Inline("aGk="), "image/png", detail="low"),
                 d.Image(d.Inline("aGk="), "image/png")])]),
    "documents": (
        [user({"type": "document", "source": {"type": "url", "url": "https://x"}},
              {"type": "document", "source": d.Url("u"), "media_type": "text/plain",
               "name": "n"})],
        [d.User([d.Document(d.Url("https://x")), d.Document(d.Url("u"), "text/plain", "n")])]),
    "state with its issuer": (
        [assistant(content=[{"type": "opaque", "data": [1], "continuity": d.Continuity(opaque=2)},
                            {"type": "opaque"},
                            {"type": "tool_call", "id": "1", "name": "f", "arguments": {},
                             "continuity": {
                                 "signature": "s", "issuer": {"wire": "gemini"},
                                 "replayable": False}}])],
        [d.Assistant([d.Opaque([1], d.Continuity(opaque=2)), d.Opaque(None),
                      d.ToolCall(
                          "1", "f", {},
                          d.Continuity("s", issuer=d.Issuer("gemini"), replayable=False))])]),
    "the parts of one message": (["t", d.Text("u")], [d.User("t", d.Text("u"))]),
    "a part alone": (d.Text("u"), [d.User(d.Text("u"))]),
    "another sequence": (deque([d.System("s"), d.User("u")]), [d.System("s"), d.User("u")]),
    **{name: (given, msgspec.convert(messages, list[d.Message]))
       for name, given, messages in read_table("parsed_messages")},
}  # fmt: skip


@pytest.mark.parametrize(("given", "messages"), READ.values(), ids=READ)
def test_messages_of_every_supported_format_are_parsed(
    given: Any, messages: list[d.Message]
) -> None:
    before = (
        copy.deepcopy(given)
        if not isinstance(given, list) or MappingProxyType not in map(type, given)
        else given
    )
    assert d.parse_messages(given) == tuple(messages)
    assert given == before


@given(st.lists(some.messages, max_size=4))
def test_encoded_messages_are_parsed_without_loss(messages: list[d.Message]) -> None:
    assert d.parse_messages(msgspec.to_builtins(messages)) == tuple(messages)
    assert d.parse_messages(msgspec.json.decode(msgspec.json.encode(messages))) == tuple(messages)


# Each entry: what is wrong, and the end of the error text, which begins with its path.
REFUSED_PARTS: list[tuple[Any, str]] = read_table("rejected_parts")
REFUSED_BLOCKS: list[tuple[Any, str]] = read_table("rejected_blocks")
REFUSED_CALLS: list[tuple[Any, str]] = read_table("rejected_calls")
REFUSED_MESSAGES: list[tuple[Any, str]] = read_table("rejected_messages")
REFUSED: list[tuple[Any, str]] = [
    (None, "messages must be text or a list of messages, not NoneType"),
    (5, "messages must be text or a list of messages, not int"),
    (
        d.Request(()),
        "messages must be text or a list of messages, not Request; send it with send()",
    ),
    ({"role": "user", "content": "u"}, "messages must be text or a list of messages, not dict"),
    (iter([d.User("u")]), "messages must be text or a list of messages, not list_iterator"),
    (["u"], "messages[0] must be a message, not str; write User(...) around it"),
    ([d.User("u"), d.Text("t")], "messages[1] must be a message, not Text; write User(...)"),
    ([d.User("u"), 5], "messages[1] must be an object, not an integer"),
    (b"u", "messages must be text or a list of messages, not bytes; decode text"),
    *[([message], f"messages[0]{says}") for message, says in REFUSED_MESSAGES],
    *[([user(part)], f"messages[0].content[0]{says}") for part, says in REFUSED_PARTS],
    *[
        ([assistant(content=[block])], f"messages[0].content[0]{says}")
        for block, says in REFUSED_BLOCKS
    ],
    *[
        ([assistant(tool_calls=[call])], f"messages[0].tool_calls[0]{says}")
        for call, says in REFUSED_CALLS
    ],
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_invalid_messages_are_rejected(given: Any, message: str) -> None:
    with pytest.raises(d.ProviderError) as caught:
        d.parse_messages(given)
    assert caught.value.message.startswith(message)
    unreadable = message.endswith("is not supported")
    assert type(caught.value) is (
        d.UnsupportedContentError if unreadable else d.InvalidRequestError
    )


records = st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), some.json_values)


@given(some.json_values | st.lists(records))
def test_any_json_is_parsed_as_messages_or_rejected(given: Any) -> None:
    outcome: Any
    try:
        outcome = d.parse_messages(given)
    except (d.InvalidRequestError, d.UnsupportedContentError) as error:
        outcome = error.message
    assert isinstance(outcome, tuple) or outcome.startswith("messages")


# --- parsing tools -----------------------------------------------------------------------------


def now() -> str:
    """Return the time."""
    return "12:00"


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS: list[tuple[Any, list[d.Tool]]] = [
    (None, []),
    ([], []),
    ((d.Tool("t"),), [d.Tool("t")]),
    ([{"name": "t"}], [d.Tool("t")]),
    ([{"name": "t", "description": None, "parameters": None}], [d.Tool("t")]),
    (
        [{"name": "t", "description": "d", "parameters": SCHEMA}],
        [d.Tool("t", "d", parameters=SCHEMA)],
    ),
    (
        [{"name": "t", "parameters": MappingProxyType(SCHEMA)}],
        [d.Tool("t", "", parameters=SCHEMA)],
    ),
    (
        [{"type": "function", "function": {"name": "t", "parameters": SCHEMA, "strict": True}}],
        [d.Tool("t", "", parameters=SCHEMA, strict=True)],
    ),
    ([{"function": {"name": "t"}}], [d.Tool("t")]),
    (
        [{"type": "function", "name": "t", "parameters": SCHEMA, "strict": False}],
        [d.Tool("t", "", parameters=SCHEMA, strict=False)],
    ),
    ([d.Tool("a"), {"name": "b"}], [d.Tool("a"), d.Tool("b")]),
    ([now], [d.Tool("now", "Return the time.", parameters=d.Tool.from_function(now).parameters)]),
]


@pytest.mark.parametrize(("given", "tools"), TOOLS)
def test_tools_of_every_supported_format_are_parsed(given: Any, tools: list[d.Tool]) -> None:
    assert parse_tools(given) == tuple(tools)


TOOLS_REFUSED: list[tuple[Any, str]] = [
    (d.Tool("t"), "tools must be a list of tools, not Tool"),
    ({"t"}, "tools must be a list of tools, not set"),
    (
        "Be brief.",
        "tools must be a list of tools, not a string; a system prompt is passed as system=",
    ),
    ([lambda: 0], "tools[0] cannot be described as a tool: a lambda has no name"),
    *read_table("rejected_tools"),
]


@pytest.mark.parametrize(("given", "message"), TOOLS_REFUSED)
def test_invalid_tools_are_rejected(given: Any, message: str) -> None:
    with pytest.raises(d.InvalidRequestError) as caught:
        parse_tools(given)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("kind", [5, None, ["function"]])
def test_tool_whose_type_is_not_a_string_is_parsed_as_a_function(kind: Any) -> None:
    assert parse_tools([{"type": kind, "function": {"name": "t"}}]) == (d.Tool("t"),)


# --- parsing settings --------------------------------------------------------------------------

CONFIGS: list[tuple[Any, d.RuntimeConfig]] = [
    (None, d.RuntimeConfig()),
    ({}, d.RuntimeConfig()),
    (d.RuntimeConfig(seed=1), d.RuntimeConfig(seed=1)),
    (MappingProxyType({"seed": 1}), d.RuntimeConfig(seed=1)),
    (
        {"temperature": 1, "stop_sequences": ["a"], "reasoning": "low", "extras": {"top_k": 5}},
        d.RuntimeConfig(
            temperature=1.0, stop_sequences=["a"], reasoning="low", extras={"top_k": 5}
        ),
    ),
    ({"reasoning": 1024, "seed": None}, d.RuntimeConfig(reasoning=1024)),
]


@pytest.mark.parametrize(("given", "config"), CONFIGS)
def test_settings_of_a_call_are_parsed(given: Any, config: d.RuntimeConfig) -> None:
    assert parse_config(given) == config


CONFIGS_REFUSED: list[tuple[Any, str]] = read_table("rejected_configs")


@pytest.mark.parametrize(("given", "message"), CONFIGS_REFUSED)
def test_invalid_settings_of_a_call_are_rejected(given: Any, message: str) -> None:
    with pytest.raises(d.InvalidRequestError) as caught:
        parse_config(given)
    assert caught.value.message == message


@given(some.configs)
def test_settings_of_a_call_can_be_read_from_a_mapping(config: d.RuntimeConfig) -> None:
    assert parse_config(msgspec.to_builtins(config)) == config


# --- parsing the tool choice -------------------------------------------------------------------

CHOICES: list[tuple[Any, Any]] = [
    (None, None),
    ("auto", "auto"),
    ("required", "required"),
    ("none", "none"),
    (d.ForceTool("t"), d.ForceTool("t")),
    ({"type": "tool", "name": "t"}, d.ForceTool("t")),
    ({"type": "function", "function": {"name": "t"}}, d.ForceTool("t")),
]


@pytest.mark.parametrize(("given", "choice"), CHOICES)
def test_tool_choice_is_parsed(given: Any, choice: Any) -> None:
    assert parse_tool_choice(given) == choice


CHOICES_REFUSED: list[tuple[Any, str]] = read_table("rejected_tool_choices")


@pytest.mark.parametrize(("given", "message"), CHOICES_REFUSED)
def test_invalid_tool_choice_is_rejected(given: Any, message: str) -> None:
    with pytest.raises(d.InvalidRequestError) as caught:
        parse_tool_choice(given)
    assert caught.value.message.startswith(message)


# --- building the request ----------------------------------------------------------------------


class Answer(msgspec.Struct):
    n: int


class AnswerModel(BaseModel):
    n: int


@dataclass
class Reading:
    n: int


def test_arguments_of_a_call_become_a_request() -> None:
    made = build_request(
        "hi",
        [{"name": "t"}],
        {"seed": 1},
        {"type": "object"},
        "auto",
        model="m",
        request_id="r",
        stream=True,
    )
    assert made == d.Request(
        (d.User("hi"),),
        tools=(d.Tool("t"),),
        config=d.RuntimeConfig(seed=1),
        response_schema={"type": "object"},
        tool_choice="auto",
        model="m",
        request_id="r",
        stream=True,
    )


@pytest.mark.parametrize("number", [0, -1])
def test_max_tokens_below_one_is_rejected(number: int) -> None:
    for where in ("settings", "config"):
        with pytest.raises(d.InvalidRequestError, match="max_tokens must be at least 1"):
            build_request("hi", **{where: {"max_tokens": number}})


def test_call_with_messages_alone_becomes_a_request() -> None:
    first = build_request("hi")
    second = build_request("hi")
    assert first == d.Request((d.User("hi"),), request_id=first.request_id)
    assert len(first.request_id) == 26
    assert first.request_id < second.request_id


def test_schema_passed_by_the_caller_is_copied() -> None:
    schema = {"type": "object"}
    assert build_request("hi", response_schema=schema).response_schema is not schema


@pytest.mark.parametrize("kind", [Answer, AnswerModel])
def test_schema_is_generated_from_a_python_type(kind: type) -> None:
    schema = build_request("hi", response_schema=kind).response_schema
    assert schema is not None
    assert schema["properties"]["n"]["type"] == "integer"


@pytest.mark.parametrize("kind", [5, "text", object(), object])
def test_type_that_has_no_json_schema_is_rejected(kind: Any) -> None:
    with pytest.raises(
        d.InvalidRequestError,
        match="response_schema must be a JSON Schema or a type that has one, not",
    ):
        build_request("hi", response_schema=kind)


@pytest.mark.parametrize("value", [Answer(n=1), AnswerModel(n=1), Reading(n=1)])
def test_instance_in_place_of_a_schema_is_rejected(value: Any) -> None:
    name = type(value).__name__
    with pytest.raises(
        d.InvalidRequestError,
        match=f"must be a type, not an instance; write response_schema={name}$",
    ):
        build_request("hi", response_schema=value)


def test_object_that_describes_a_tool_is_accepted() -> None:
    class Described:
        description = d.Tool("f", "Do it.")

    assert build_request("Hi", [Described()]).tools == (Described.description,)
