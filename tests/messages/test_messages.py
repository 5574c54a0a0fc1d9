"""Messages, blocks, tools and settings: plain values that round-trip through JSON."""

from __future__ import annotations

import base64
import copy
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

import dragoman as d
from dragoman import capabilities, events, messages, wire
from dragoman.messages import AssistantBlock, ToolChoice, UserBlock, join_system
from dragoman.messages.signatures import schema_of
from dragoman.wire import errors, ids
from tests import strategies as some

VALUES = [
    (d.Issuer, some.issuers),
    (d.Continuity, some.continuities),
    (d.Url | d.Inline, some.sources),
    (UserBlock, some.user_blocks),
    (AssistantBlock, some.assistant_blocks),
    (d.Message, some.messages),
    (d.Tool, some.tools),
    (ToolChoice | None, some.tool_choices),
    (d.RuntimeConfig, some.configs),
    (d.LossWarning, some.warnings),
    (d.Request, some.requests),
]


# --- messages as values: equality, copies and JSON ---------------------------------------------


@pytest.mark.parametrize(("kind", "strategy"), VALUES)
@given(data=st.data())
def test_messages_round_trip_through_json(
    kind: Any, strategy: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(strategy)
    again = msgspec.json.decode(msgspec.json.encode(value), type=kind)
    assert again == value
    assert type(again) is type(value)
    assert msgspec.json.encode(again) == msgspec.json.encode(value)


@given(st.one_of(some.messages, some.requests))
def test_copied_and_pickled_messages_are_equal(value: d.Message | d.Request) -> None:
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value


MODULES = (messages, capabilities, events, wire, errors, ids)
STRUCTS = {
    kind
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and not name.startswith("_")
} - {msgspec.Struct}


@pytest.mark.parametrize("kind", sorted(STRUCTS, key=str), ids=lambda kind: kind.__name__)
def test_values_are_immutable(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.frozen
    assert kind.__struct_config__.eq
    assert not kind.__struct_config__.dict


PNG = d.Image(b"\x89PNG\r\n\x1a\n")
CALL = d.ToolCall("1", "search", {"q": "x"})
FORMS = [
    (d.User("a", PNG), (d.Text("a"), PNG)),
    (d.User(PNG), (PNG,)),
    (d.User(["a", PNG], cache=True), (d.Text("a"), PNG)),
    (d.User(content=["a"]), (d.Text("a"),)),
    (d.User("a", ["b", PNG], ""), (d.Text("a"), d.Text("b"), PNG)),
    (d.Assistant(), ()),
    (d.Assistant(""), ()),
    (d.Assistant(None, tool_calls=None), ()),
    (d.Assistant(()), ()),
    (d.Assistant("a", CALL), (d.Text("a"), CALL)),
    (d.Assistant(content="a", tool_calls=(CALL,)), (d.Text("a"), CALL)),
    (d.Assistant([d.Thinking("hm"), CALL, d.Text("hi")]), (d.Thinking("hm"), CALL, d.Text("hi"))),
    (d.Assistant(tool_calls=[CALL]), (CALL,)),
    (d.Assistant((d.Text("a"), CALL), tool_calls=(CALL,)), (d.Text("a"), CALL, CALL)),
    (d.ToolResult("1", "a", PNG, is_error=True), (d.Text("a"), PNG)),
    (d.ToolResult("1", "a", PNG, True), (d.Text("a"), PNG)),  # type: ignore[arg-type]
    (d.ToolResult(tool_call_id="1", content=PNG), (PNG,)),
]


@pytest.mark.parametrize(("message", "content"), FORMS)
def test_assistant_message_accepts_every_form_of_content(message: Any, content: Any) -> None:
    assert message.content == content
    assert type(message.content) is tuple
    assert msgspec.json.decode(msgspec.json.encode(message), type=type(message)) == message
    assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == message


def test_boolean_after_the_parts_of_a_result_is_its_error() -> None:
    given: Any = "1", "no such file", True
    assert d.ToolResult(*given) == d.ToolResult("1", "no such file", is_error=True)


LISTS = [
    (d.User([d.Text("a")]), "content", (d.Text("a"),)),
    (d.ToolResult("i", [d.Text("a")]), "content", (d.Text("a"),)),
    (d.Assistant([d.Text("a")]), "content", (d.Text("a"),)),
    (d.RuntimeConfig(stop_sequences=["a"]), "stop_sequences", ("a",)),
    (d.Request([d.User("u")]), "messages", (d.User("u"),)),
    (d.Request([], tools=[d.Tool("t")]), "tools", (d.Tool("t"),)),
]


@pytest.mark.parametrize(("value", "name", "kept"), LISTS)
def test_lists_are_stored_as_tuples(value: Any, name: str, kept: tuple[Any, ...]) -> None:
    assert getattr(value, name) == kept
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


ON_THE_WIRE = [
    (d.System("s"), b'{"role":"system","content":"s"}'),
    (d.User("u"), b'{"role":"user","content":"u"}'),
    (d.User([d.Text("u")]), b'{"role":"user","content":[{"type":"text","text":"u"}]}'),
    (d.Assistant("a"), b'{"role":"assistant","content":[{"type":"text","text":"a"}]}'),
    (d.ToolResult("i", "r"), b'{"role":"tool","tool_call_id":"i","content":"r"}'),
    (d.ToolCall("i", "n", None), b'{"type":"tool_call","id":"i","name":"n","arguments":null}'),
    (d.Image(d.Inline("aGk=")), b'{"type":"image","source":{"type":"inline","base64_data":"aGk="}}'),
    (d.Document(d.Url("u")), b'{"type":"document","source":{"type":"url","url":"u"}}'),
    (d.Thinking("t"), b'{"type":"thinking","text":"t"}'),
    (d.RedactedThinking("d"), b'{"type":"redacted_thinking","data":"d"}'),
    (d.Opaque(None), b'{"type":"opaque","data":null}'),
    (d.RuntimeConfig(temperature=0.0), b'{"temperature":0.0}'),
    (d.ForceTool("t"), b'{"type":"tool","name":"t"}'),
]  # fmt: skip


@pytest.mark.parametrize(("value", "written"), ON_THE_WIRE)
def test_messages_are_encoded_as_documented_json(value: Any, written: bytes) -> None:
    assert msgspec.json.encode(value) == written


# --- content and properties of messages --------------------------------------------------------


def test_text_and_thinking_of_a_message_are_joined_without_separator() -> None:
    message = d.Assistant([d.Thinking("a"), d.Text("b"), CALL, d.Thinking("c"), d.Text("d"), CALL])
    assert message.text == "bd"
    assert message.thinking == "ac"
    assert message.tool_calls == (CALL, CALL)


def test_omitted_json_fields_have_defaults() -> None:
    assert d.ToolResult("i", "r").is_error is False
    assert d.Tool("t").description == ""
    assert d.Document(d.Url("u")).media_type == "application/pdf"
    expected = (True, False, None)
    assert (d.Continuity().replayable, d.Request([]).stream, d.Request([]).tool_choice) == expected


@pytest.mark.parametrize("kind", [d.User, lambda content: d.ToolResult("i", content)])
def test_text_of_several_blocks_is_joined(kind: Any) -> None:
    assert kind("plain").text == "plain"
    assert (
        kind([d.Text("a"), d.Image(d.Url("u")), d.Text("b"), d.Document(d.Url("d"))]).text == "ab"
    )
    assert kind(()).text == ""
    assert d.System("Be brief.").text == "Be brief."


S = d.System
U = d.User
JOINS: list[tuple[Sequence[d.Message], str | None, Sequence[d.Message]]] = [
    ([], None, []),
    ([U("u")], None, [U("u")]),
    ([S("a")], "a", []),
    ([S("a"), S("b"), U("u"), d.Assistant("x")], "a\n\nb", [U("u"), d.Assistant("x")]),
    ((S("a"), U("u"), S("late")), "a", (U("u"), S("late"))),
]


@pytest.mark.parametrize(("conversation", "system", "rest"), JOINS)
def test_several_system_messages_are_joined(
    conversation: Sequence[d.Message], system: str | None, rest: Sequence[d.Message]
) -> None:
    assert join_system(conversation) == (system, rest)


def test_loss_warning_reads_as_a_sentence() -> None:
    assert (
        str(d.LossWarning("order_lost", "messages[1]", "said earlier"))
        == "messages[1]: said earlier [order_lost]"
    )


# --- images and documents from files -----------------------------------------------------------


def test_image_is_made_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "dot.png"
    path.write_bytes(b"\x89PNG")
    source = d.Inline(base64.b64encode(b"\x89PNG").decode())
    assert d.Image(path) == d.Image.from_file(path) == d.Image(source, "image/png")
    assert d.Image.from_file(str(path), detail="low") == d.Image(source, "image/png", detail="low")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("notes.txt", "notes.txt is not an image: it begins with b'hello'"),
        ("notes", "notes is not an image: it begins with b'hello'"),
        ("a.png", "a.png is not an image, although its name is that of image/png: it begins"),
    ],
)
def test_file_that_is_not_an_image_is_rejected(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / name).write_bytes(b"hello")
    with pytest.raises(ValueError, match=re.escape(problem)):
        d.Image(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.pdf", "application/pdf"), ("a.txt", "text/plain"), ("a", "application/pdf")],
)
def test_document_is_made_from_a_file(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert d.Document.from_file(tmp_path / name) == d.Document(d.Inline("eA=="), kind, name)


# --- tools made from functions and types -------------------------------------------------------


def weather(
    city: Annotated[str, "a city"],
    days: Annotated[int, msgspec.Meta(ge=1)] = 3,
    units: list[str] = ["C"],  # noqa: B006
    *,
    anything: Any = None,
) -> str:
    """Return the weather."""
    raise AssertionError("a Tool never calls its function")


def test_tool_is_made_from_a_function() -> None:
    tool = d.Tool.from_function(weather)
    assert tool.name == "weather"
    assert tool.description == "Return the weather."
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "a city"},
            "days": {"type": "integer", "minimum": 1, "default": 3},
            "units": {"type": "array", "items": {"type": "string"}},
            "anything": {"default": None},
        },
        "required": ["city"],
    }
    assert weather not in [getattr(tool, name) for name in tool.__struct_fields__]


def test_tool_made_from_a_function_can_have_another_name() -> None:
    def bare() -> None: ...

    assert d.Tool.from_function(bare, name="other") == d.Tool(
        "other", "", parameters={"type": "object", "properties": {}, "required": []}
    )
    assert d.Tool("plain").parameters == {"type": "object", "properties": {}}


class Forecast:
    """Forecast the weather."""

    def __call__(self, city: Annotated[str, "a city"], *, days: int = 3) -> str:
        """Return the forecast."""
        raise AssertionError("a Tool never calls its function")


@pytest.mark.parametrize(
    ("function", "name", "description", "parameters"),
    [
        (Forecast(), "Forecast", "Forecast the weather.", ["city", "days"]),
        (Forecast().__call__, "__call__", "Return the forecast.", ["city", "days"]),
        (partial(Forecast(), days=1), "Forecast", "Forecast the weather.", ["city"]),
        (partial(weather, "Oslo", units=["metric"]), "weather", "Return the weather.",
         ["days", "anything"]),
        (partial(partial(weather, days=1), units=[]), "weather", "Return the weather.",
         ["city", "anything"]),
    ],
)  # fmt: skip
def test_tool_from_a_partial_or_callable_object_is_described_by_its_function(
    function: Any, name: str, description: str, parameters: list[str]
) -> None:
    tool = d.Tool.from_function(function)
    expected = (name, description, parameters)
    assert (tool.name, tool.description, list(tool.parameters["properties"])) == expected
    if "city" in parameters:
        assert tool.parameters["properties"]["city"] == {"type": "string", "description": "a city"}
        assert tool.parameters["required"] == ["city"]


def test_tool_from_a_lambda_needs_a_name() -> None:
    with pytest.raises(TypeError, match="a lambda has no name"):
        d.Tool.from_function(lambda city: city)
    assert d.Tool.from_function(lambda: "now", name="clock").name == "clock"


def test_tool_needs_a_type_hint_for_each_parameter() -> None:
    with pytest.raises(TypeError, match=r"f: the parameter city has no type hint.*city: str"):
        d.Tool.from_function(lambda city: city, name="f")


def star(*args: int) -> None: ...
def stars(**kwargs: int) -> None: ...


@pytest.mark.parametrize("function", [star, stars])
def test_function_with_variable_arguments_cannot_be_a_tool(function: Any) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}: \*args and \*\*kwargs"):
        d.Tool.from_function(function)


class Place(msgspec.Struct):
    """A place: its city and its zip code."""

    city: str
    zip: int | None = None


@dataclass
class PlaceData:
    """A place: its city and its zip code."""

    city: str
    zip: int | None = None


class PlaceDict(TypedDict):
    city: str


class PlaceModel(BaseModel):
    """A place and the city it is in."""

    city: str = Field(description="its name")


class Tree(msgspec.Struct):
    """A tree, which contains its children."""

    children: list[Tree] = []


class Forest(msgspec.Struct):
    """A forest of trees at a place."""

    trees: list[Tree]
    place: Place


PROPERTIES = {
    "city": {"type": "string"},
    "zip": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
}


@pytest.mark.parametrize("model", [Place, PlaceData])
def test_tool_is_made_from_a_struct_or_dataclass(model: type) -> None:
    schema = {
        "title": model.__name__, "description": "A place: its city and its zip code.",
        "type": "object", "properties": PROPERTIES, "required": ["city"],
    }  # fmt: skip
    assert d.Tool.from_model(model) == d.Tool(
        model.__name__, "A place: its city and its zip code.", parameters=schema
    )


def test_tool_is_made_from_a_typed_dict() -> None:
    schema = {
        "title": "PlaceDict", "type": "object", "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }  # fmt: skip
    assert d.Tool.from_model(PlaceDict, name="place", description="Where.") == d.Tool(
        "place", "Where.", parameters=schema
    )
    assert d.Tool.from_model(PlaceDict).description == ""


def test_tool_is_made_from_a_pydantic_model() -> None:
    tool = d.Tool.from_model(PlaceModel)
    assert tool.name == "PlaceModel"
    assert tool.description == "A place and the city it is in."
    assert tool.parameters == PlaceModel.model_json_schema()
    assert tool.parameters["properties"]["city"]["description"] == "its name"


class Leg(BaseModel):
    """A part of a journey."""

    to: PlaceModel
    then: list[Leg] = []


def namesake(**fields: Any) -> Any:
    """Create another model Leg, whose field ``to`` is another model PlaceModel."""
    return create_model("Leg", to=(create_model("PlaceModel", **fields), ...))


def test_tool_is_made_from_a_function_with_pydantic_parameters() -> None:
    def plan(
        place: PlaceModel, legs: list[Leg], last: PlaceModel | None = None, days: int = 1
    ) -> None:
        """Plan a journey."""

    plan.__annotations__ |= {"place": PlaceModel, "legs": list[Leg], "last": PlaceModel | None}
    schema = d.Tool.from_function(plan).parameters
    place = PlaceModel.model_json_schema()
    assert schema["properties"]["place"] == place
    assert schema["properties"]["legs"] == {"type": "array", "items": {"$ref": "#/$defs/Leg"}}
    assert schema["properties"]["last"] == {"anyOf": [place, {"type": "null"}], "default": None}
    assert schema["required"] == ["place", "legs"]
    assert schema["$defs"] == {"Leg": Leg.model_json_schema()["$defs"]["Leg"], "PlaceModel": place}


def test_tool_parameters_may_have_a_model_default_or_a_description() -> None:
    ur = PlaceModel(city="Ur")

    def go(place: Any = ur, leg: Any = None) -> None: ...

    go.__annotations__ |= {"place": PlaceModel, "leg": Annotated[Leg, "the first"]}
    schema = d.Tool.from_function(go).parameters
    assert schema["required"] == []
    expected = {"$ref": "#/$defs/Leg", "description": "the first", "default": None}
    assert schema["properties"]["leg"] == expected


def test_pydantic_models_with_the_same_name_keep_their_definitions() -> None:
    def go(a: Any, b: Any, c: Any) -> None: ...

    other = namesake(zip=(int, ...))
    third = namesake(code=(str, ...))
    go.__annotations__ |= {"a": Leg, "b": other, "c": third}
    schema = d.Tool.from_function(go).parameters
    properties = schema["properties"]
    definitions = schema["$defs"]
    assert properties["a"] == {"$ref": "#/$defs/Leg"}
    assert definitions["Leg"]["properties"]["to"] == {"$ref": "#/$defs/PlaceModel"}
    assert definitions["PlaceModel"]["required"] == ["city"]
    for name, field_of in (("b", "zip"), ("c", "code")):
        held = properties[name]["properties"]["to"]["$ref"].removeprefix("#/$defs/")
        assert definitions[held]["required"] == [field_of]


def test_struct_keeps_its_definition_when_a_pydantic_model_has_the_same_name() -> None:
    class Holder(BaseModel):
        place: PlaceModel

    def go(a: Any, b: Any) -> None: ...

    go.__annotations__ |= {"a": msgspec.defstruct("PlaceModel", [("x", int)]), "b": Holder}
    schema = d.Tool.from_function(go).parameters
    assert schema["$defs"]["PlaceModel"]["required"] == ["x"]
    held = schema["properties"]["b"]["properties"]["place"]["$ref"].removeprefix("#/$defs/")
    assert schema["$defs"][held]["required"] == ["city"]
    assert len(schema["$defs"]) == 2


def test_function_without_a_json_schema_is_rejected() -> None:
    def go(a: Any) -> None: ...

    go.__annotations__ |= {"a": Random}
    with pytest.raises(TypeError, match="Random"):
        d.Tool.from_function(go)


def test_schema_of_a_recursive_model_has_the_model_at_its_root() -> None:
    schema = d.Tool.from_model(Leg).parameters
    assert schema["type"] == "object"
    assert schema["title"] == "Leg"
    assert schema["properties"]["then"]["items"] == {"$ref": "#/$defs/Leg"}
    assert schema["$defs"].keys() == {"Leg", "PlaceModel"}


def test_schema_of_a_plain_type_is_built() -> None:
    assert schema_of(int) == {"type": "integer"}
    assert schema_of(list[Place])["items"] == {"$ref": "#/$defs/Place"}


def test_schema_of_a_recursive_type_keeps_its_definition() -> None:
    schema = schema_of(Tree)
    assert schema["type"] == "object"
    assert schema["title"] == "Tree"
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"] == {
        "Tree": {name: value for name, value in schema.items() if name != "$defs"}
    }


def test_schema_of_a_nested_type_refers_to_definitions() -> None:
    schema = schema_of(Forest)
    assert schema["$defs"].keys() == {"Tree", "Place"}
    assert schema["properties"]["place"] == {"$ref": "#/$defs/Place"}


@dataclass
class Odd:
    """A dataclass with a field named like a JSON Schema keyword."""

    ref: int = field(default=1)


def test_schema_with_a_single_definition_is_inlined() -> None:
    assert "$defs" not in schema_of(Odd)
