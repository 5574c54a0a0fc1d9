"""Functions as tools: constraints from Pydantic's ``Field``, and docstrings of three styles."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from pydantic import BaseModel, Field

from dragoman import Tool
from dragoman.messages.signatures import field_defaults, pydantic_adapter, read_docstring
from tests.rows import read_table


class Place(BaseModel):
    """A place and the city it is in."""

    city: str


def travel(
    days: Annotated[int, Field(ge=0, le=30, description="for how long")],
    code: Annotated[str, "a country", Field(pattern="^[A-Z]{2}$")],
    stops: list[Annotated[int, Field(gt=0)]],
    places: Annotated[list[Place], Field(max_length=3)],
    speed: float = Field(50.0, gt=0, description="km/h"),
    tags: list[str] = Field(default_factory=list),  # noqa: B008 - what Pydantic's users write
    name: str = Field(min_length=1),
    plain: Annotated[int, msgspec.Meta(ge=1), "plain"] = 1,
) -> str:
    """Travel to a country."""
    return (
        f"{days} {code} {stops} {[place.city for place in places]} {speed} {tags} {name} {plain}"
    )


def test_constraints_of_pydantic_fields_are_kept_in_the_schema() -> None:
    schema = Tool.from_function(travel).parameters
    properties = schema["properties"]
    expected = {"type": "integer", "minimum": 0, "maximum": 30, "description": "for how long"}
    assert properties["days"] == expected
    expected = {"type": "string", "pattern": "^[A-Z]{2}$", "description": "a country"}
    assert properties["code"] == expected
    assert properties["stops"]["items"] == {"type": "integer", "exclusiveMinimum": 0}
    expected = (3, {"$ref": "#/$defs/Place"})
    assert (properties["places"]["maxItems"], properties["places"]["items"]) == expected
    expected = {"type": "number", "exclusiveMinimum": 0, "description": "km/h", "default": 50.0}
    assert properties["speed"] == expected
    assert properties["name"] == {"type": "string", "minLength": 1}
    expected = {"type": "integer", "minimum": 1, "description": "plain", "default": 1}
    assert properties["plain"] == expected
    assert schema["required"] == ["days", "code", "stops", "places", "name"]
    assert schema["$defs"]["Place"]["properties"].keys() == {"city"}
    assert set(field_defaults(travel)) == {"speed", "tags", "name"}


def test_only_types_with_constraints_of_pydantic_have_an_adapter() -> None:
    adapter = pydantic_adapter(Annotated[int, Field(ge=0)])
    assert adapter.validate_python(3) == 3
    with pytest.raises(pydantic.ValidationError):
        adapter.validate_python(-1)
    assert pydantic_adapter(Place) is None
    assert pydantic_adapter(int) is None


def test_pydantic_fields_are_ignored_without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    def go(days: Annotated[int, Field(ge=0)]) -> None: ...

    go.__annotations__["days"] = Annotated[int, Field(ge=0)]
    assert pydantic
    monkeypatch.delitem(sys.modules, "pydantic")
    assert Tool.from_function(go).parameters["properties"]["days"] == {"type": "integer"}


GOOGLE = """Look it up.

    Longer text, with a colon: here.

    Args:
        city: where, and
            a second line
        days (int, optional): for how long
        **options: more

    Returns:
        The answer.
"""
NUMPY = """Look it up.

Longer text, with a colon: here.

Parameters
----------
city : str
    where, and
    a second line
days
    for how long

Returns
-------
The answer.
"""
SPHINX = """Look it up.

Longer text, with a colon: here.

:param str city: where, and
    a second line
:type city: str
:param days: for how long
:returns: The answer.
"""
FOUND = {"city": "where, and a second line", "days": "for how long"}
TEXT = "Look it up.\n\nLonger text, with a colon: here."


@pytest.mark.parametrize("style", [GOOGLE, NUMPY, SPHINX])
def test_three_docstring_styles_are_parsed(style: str) -> None:
    import inspect

    description, parameters = read_docstring(inspect.cleandoc(style), ["city", "days"])
    assert parameters == FOUND
    assert description.startswith(TEXT)
    assert "The answer." in description
    assert "where" not in description
    assert "for how long" not in description


@pytest.mark.parametrize(
    ("text", "names", "description", "found"),
    read_table("docstrings"),
)
def test_docstrings_are_split_into_description_and_parameters(
    text: str, names: list[str], description: str, found: dict[str, str]
) -> None:
    assert read_docstring(text, names) == (description, found)


def test_docstrings_describe_parameters_unless_annotations_do() -> None:
    def go(
        city: str, days: Annotated[int, "length of the stay"] = 1, place: Place | None = None
    ) -> None:
        """Travel to a city.

        Args:
            city: name of the city
            days: number of days
            place: where to stay
        """

    go.__annotations__ = {
        "city": str, "days": Annotated[int, "length of the stay"], "place": Place | None,
    }  # fmt: skip
    tool = Tool.from_function(go)
    properties: dict[str, Any] = tool.parameters["properties"]
    assert tool.description == "Travel to a city."
    assert properties["city"] == {"type": "string", "description": "name of the city"}
    assert properties["days"]["description"] == "length of the stay"
    assert properties["place"]["description"] == "where to stay"
