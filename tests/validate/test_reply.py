"""Test the check of replies against their requests."""

from typing import Any

import pytest

from dragoman.messages import Request, Tool, User
from dragoman.validate import Expectation

WEATHER = Tool(
    "weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
OFFERED = Expectation(Request([User("u")], tools=[WEATHER, Tool("any")], response_schema=SCHEMA))
BARE = Expectation(Request([User("u")]))

CALLS: list[tuple[Expectation, str, dict[str, Any], tuple[str, str] | None]] = [
    (OFFERED, "weather", {"city": "Oslo"}, None),
    (OFFERED, "weather", {"city": "Oslo", "more": [1]}, None),
    (OFFERED, "any", {}, None),
    (OFFERED, "any", {"x": 1}, None),
    (OFFERED, "weather", {},
     ("invalid_arguments",
      'the arguments violate the tool\'s schema: "city" is a required property at /')),
    (OFFERED, "weather", {"city": 1},
     ("invalid_arguments",
      'the arguments violate the tool\'s schema: 1 is not of type "string" at /city')),
    (OFFERED, "Weather", {"city": "Oslo"}, ("unknown_tool", "no tool of this name was offered")),
    (OFFERED, "", {}, ("unknown_tool", "no tool of this name was offered")),
    (BARE, "any", {}, ("unknown_tool", "no tool of this name was offered")),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "name", "arguments", "problem"), CALLS)
def test_problem_of_an_invalid_tool_call_is_described(
    expected: Expectation, name: str, arguments: dict[str, Any], problem: tuple[str, str] | None
) -> None:
    assert expected.tool_problem(name, arguments) == problem


TEXTS: list[tuple[str, Any, str | None]] = [
    ('{"n": 1}', {"n": 1}, None),
    (' {"n": 1}\n', {"n": 1}, None),
    ('{"n": 1, "s": "\\ud83d"}', {"n": 1, "s": "\ufffd"}, None),
    ('{"n": "1"}', None, '"1" is not of type "integer" at /n'),
    ("[]", None, '[] is not of type "object" at /'),
    ("", None, "it is not JSON ("),
    ('```json\n{"n": 1}\n```', None, "it is not JSON ("),
    ('{"n": NaN}', None, "it is not JSON (NaN is not JSON)"),
]


@pytest.mark.parametrize(("text", "value", "wrong"), TEXTS)
def test_structured_output_is_parsed_and_validated(
    text: str, value: Any, wrong: str | None
) -> None:
    read, said = OFFERED.read_text(text)
    assert read == value
    assert said == wrong or (said is not None and wrong is not None and said.startswith(wrong))


def test_expected_schema_is_taken_from_the_request() -> None:
    assert OFFERED.response_schema == SCHEMA
    assert BARE.response_schema is None


def test_every_call_with_a_name_is_accepted_if_checks_are_off() -> None:
    unchecked = Expectation(Request([User("u")], tools=[WEATHER], check_calls=False))
    assert unchecked.tool_problem("weather", {"city": 7}) is None
    assert unchecked.tool_problem("fly", {}) is None
    assert unchecked.tool_problem("", {}) == ("malformed", "the call has no name")
