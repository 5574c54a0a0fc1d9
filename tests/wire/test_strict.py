"""Strict mode: which schemas are sent as strict, in which form, and the strict flag of a tool."""

from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from dragoman.capabilities import Capabilities
from dragoman.messages import Request, RuntimeConfig, Tool, User
from dragoman.messages.signatures import schema_of
from dragoman.wire import CODECS
from dragoman.wire.anthropic.schema import project_format
from dragoman.wire.codec import Notes
from dragoman.wire.gemini.schema import project_schema
from dragoman.wire.strict import strict_form
from tests.rows import read_table

TEXT = {"type": "string"}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRICT: list[dict[str, Any]] = [
    closed(),
    closed(b=TEXT, a={"type": "integer", "minimum": 1, "multipleOf": 2}),
    closed(a={"type": ["string", "null"]}),
    closed(a={"anyOf": [TEXT, {"type": "null"}], "description": "d"}),
    closed(a={"type": "array", "items": closed(x=TEXT), "minItems": 1}),
    closed(a={"type": "array", "prefixItems": [TEXT, TEXT]}),
    closed(a={"type": "string", "format": "date-time", "pattern": "^2"}),
    closed(a={"enum": ["x", "y"], "title": "A"}, b={"const": 1}),
    {
        **closed(a={"$ref": "#/$defs/A"}),
        "$defs": {"A": closed(x=TEXT)},
        "$schema": "https://json-schema.org/x",
    },
    {**closed(a={"$ref": "#/definitions/A"}), "definitions": {"A": TEXT}},
]


@pytest.mark.parametrize("schema", STRICT)
def test_strict_schemas_are_sent_unchanged(schema: dict[str, Any]) -> None:
    assert strict_form(schema) == schema


LOOSE: list[Any] = read_table("loose_schemas")


@pytest.mark.parametrize("schema", LOOSE)
def test_schemas_that_cannot_be_strict_have_no_strict_form(schema: dict[str, Any]) -> None:
    assert strict_form(schema) is None


def test_deeply_nested_schema_has_no_strict_form() -> None:
    schema: dict[str, Any] = TEXT
    for _ in range(40):
        schema = closed(a=schema)
    assert strict_form(schema) is None


def test_schema_reference_with_a_description_becomes_a_union_of_one_type() -> None:
    schema = {**closed(a={"$ref": "#/$defs/A", "description": "d"}), "$defs": {"A": TEXT}}
    form = strict_form(schema)
    assert form is not None
    assert form["properties"]["a"] == {"description": "d", "anyOf": [{"$ref": "#/$defs/A"}]}


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class Cat(Closed):
    kind: Literal["cat"]
    lives: int


class Dog(Closed):
    kind: Literal["dog"]
    name: str


class Owner(Closed):
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


def test_discriminated_union_is_sent_as_a_plain_union() -> None:
    schema = schema_of(Owner)
    assert "oneOf" in schema["properties"]["pet"]
    form = strict_form(schema)
    assert form is not None
    assert form["properties"]["pet"] == {
        "anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "title": "Pet",
    }
    assert list(form["$defs"]["Cat"]["properties"]) == ["kind", "lives"]


def test_tagged_union_is_projected_without_a_loss() -> None:
    schema = schema_of(Owner)
    notes = Notes()
    for form in (project_format(schema, notes), project_schema(schema, "parameters", notes)):
        pet = form["properties"]["pet"]
        assert len(pet["anyOf"]) == 2
        assert not {"oneOf", "discriminator", "description"} & set(pet)
    lost = {warning.path.rpartition(".")[2] for warning in notes.warnings}
    assert not {"oneOf", "discriminator"} & lost


def test_discriminator_beside_any_of_is_not_sent() -> None:
    union = {"anyOf": [TEXT, {"type": "null"}]}
    form = strict_form(closed(a={**union, "discriminator": {"propertyName": "kind"}}))
    assert form == closed(a=union)


# --- the strict flag of a tool -----------------------------------------------------------------

SENT: list[tuple[str, bool | None, dict[str, Any], Any, bool]] = read_table("strict_schemas")


@pytest.mark.parametrize(("wire", "strict", "parameters", "sent", "loss"), SENT)
def test_strict_flag_of_a_tool_is_sent_dropped_or_reported(
    wire: str, strict: bool | None, parameters: Any, sent: Any, loss: bool
) -> None:
    codec = CODECS[wire].connect("m", "http://127.0.0.1:9", None, Capabilities())
    tool = Tool("f", "d", parameters=parameters, strict=strict)
    encoded = codec.encode(
        Request((User("hi"),), tools=(tool,), config=RuntimeConfig(max_tokens=9), model="m")
    )
    body = msgspec.json.decode(encoded.http.body)
    [written] = body.get("toolConfig", body)["tools"]
    assert written.get("function", written.get("toolSpec", written)).get("strict") is sent
    assert [warning.code for warning in encoded.warnings] == ["strict_dropped"] * loss
    if loss:
        assert encoded.warnings[0].path == "tools[0].strict"
