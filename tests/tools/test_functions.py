"""Functions as tools that run: what they accept and get."""

from typing import Any

import dragoman as d
from dragoman.tools import FunctionTool, tool
from dragoman.validate import parse_tools

from ..messages.test_signatures import travel
from ..validate.test_parse import now

GOOD: dict[str, Any] = {
    "days": 3,
    "code": "CH",
    "stops": [1],
    "places": [{"city": "Basel"}],
    "name": "x",
}


async def test_tool_function_with_pydantic_fields_gets_instances_and_defaults() -> None:
    tool = FunctionTool(travel)
    assert tool.check(GOOD) is None
    assert (await tool.execute(GOOD)).content == "3 CH [1] ['Basel'] 50.0 [] x 1"
    assert "greater than or equal to 0" in str(tool.check({**GOOD, "days": -1}))
    assert (
        await tool.execute({**GOOD, "speed": 3, "tags": ["a"]})
    ).content == "3 CH [1] ['Basel'] 3.0 ['a'] x 1"


def test_tool_that_can_run_is_parsed_as_its_definition() -> None:
    assert parse_tools([tool(now)]) == (d.Tool.from_function(now),)
