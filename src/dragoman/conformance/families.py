"""Checks of tool calls by families of schemas: how often the arguments fit the schema."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct

from .. import errors
from .. import messages as m
from ..quality import FAULTS, SOUND, Rate, judge_calls
from .server import Server

_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}


class Family(Struct, frozen=True):
    """A kind of schema: a tool that has it, and questions that lead to a call of the tool."""

    name: str
    title: str
    tool: m.Tool
    questions: tuple[str, ...]


def _make(
    name: str, title: str, tool: str, properties: dict[str, Any], optional: str, *questions: str
) -> Family:
    required = [each for each in properties if each != optional]
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    described = m.Tool(tool, f"{tool.replace('_', ' ').capitalize()}.", schema)
    return Family(name, title, described, questions)


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_PLACE = _object(street=_TEXT, city=_object(name=_TEXT, country=_TEXT))

FAMILIES = (
    _make(
        "nested", "nested objects", "add_customer", {"name": _TEXT, "address": _PLACE}, "",
        "Add the customer Ada, who lives in Ring 1 in Bern in Switzerland.",
        "Add the customer Bob, who lives in Main Street 9 in Lyon in France.",
    ),
    _make(
        "enums", "enumerations", "set_light",
        {"room": {"enum": ["kitchen", "hall"]}, "state": {"enum": ["on", "off", "dimmed"]}}, "",
        "Turn the light in the kitchen on.", "Dim the light in the hall.",
    ),
    _make(
        "unions", "unions of types", "find_order",
        {"order": {"anyOf": [_COUNT, _object(customer=_TEXT)]}}, "",
        "Find order 4711.", "Find the order of the customer Ada.",
    ),
    _make(
        "optional", "optional properties", "get_forecast", {"city": _TEXT, "days": _COUNT}, "days",
        "Get the forecast for Bern.", "Get the forecast for Lyon for 3 days.",
    ),
    _make(
        "arrays", "arrays of objects", "order_items",
        {"items": {"type": "array", "minItems": 1, "items": _object(name=_TEXT, count=_COUNT)}},
        "", "Order 2 apples and 3 pears.", "Order 1 chair, 4 cups and 4 plates.",
    ),
    _make(
        "strings", "long strings", "save_note",
        {"title": _TEXT, "text": {"type": "string", "minLength": 40}}, "",
        'Save this note unchanged: "Bring the \\"old\\" ladder,\nthen 3 ropes & a tarpaulin."',
        "Save a note of two sentences about the sea.",
    ),
    _make(
        "unicode", "names beyond ASCII", "book_table", {"größe": _COUNT, "都市": _TEXT}, "",
        "Book a table for 2 in Tokyo (都市 is the city, größe the number of people).",
        "Book a table for 5 in Kyoto (都市 is the city, größe the number of people).",
    ),
)  # fmt: skip
"""The families of schemas that ``dragoman check`` tries."""


async def judge_family(family: Family, server: Server) -> dict[str, int]:
    """Ask the questions of a family; return how many calls were sound, and how many had faults."""
    request = m.Request((), (family.tool,))
    found: Counter[str] = Counter()
    for question in family.questions:
        error = None
        try:
            reply = await server.ask(
                f"{question} Use the tool.", tools=[family.tool], tool_choice="required",
                config={"max_tokens": server.max_tokens * 4}, check_calls=False,
            )  # fmt: skip
        except errors.MalformedToolCallError as unreadable:
            reply, error = unreadable.response, unreadable
        found.update(judge_calls(request, reply, error))
    server.judged[family.name] = dict(found)
    return dict(found)


def describe_calls(outcomes: dict[str, int]) -> str:
    """Return a line with the number of sound calls, and the faults of the others."""
    total = sum(outcomes.values())
    faults = [f"{outcomes[name]} {name}" for name in FAULTS if outcomes.get(name)]
    return ", ".join([f"{outcomes.get(SOUND, 0)} of {total} calls sound", *faults])


def describe_rate(judged: dict[str, dict[str, int]]) -> str | None:
    """Return the rate of faulty calls over all families; ``None`` if no calls came."""
    total: Counter[str] = Counter()
    for outcomes in judged.values():
        total.update(outcomes)
    if not total:
        return None
    rate = Rate(total.total() - total[SOUND], total.total())
    return f"{rate.count} of {rate.total}, {rate}"
