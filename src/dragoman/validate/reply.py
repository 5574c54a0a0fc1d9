"""Check tool calls and structured text of a reply against the request."""

from __future__ import annotations

from typing import Any

from ..events import Problem, read_json
from ..messages import Request
from .schema import compile_schema, first_error


class Expectation:
    """What a reply is checked against: the tools and the response schema of the request."""

    def __init__(self, request: Request) -> None:
        self.response_schema = request.response_schema
        self._tools = request.tools
        self._check_calls = request.check_calls

    def tool_problem(self, name: str, arguments: dict[str, Any]) -> tuple[Problem, str] | None:
        """Return why a call does not match the offered tools, or ``None`` if it does."""
        if not self._check_calls:
            return None if name else ("malformed", "the call has no name")
        tools = [tool for tool in self._tools if tool.name == name]
        if not tools:
            return "unknown_tool", "no tool of this name was offered"
        wrong = first_error(compile_schema(tools[0].parameters, "tools"), arguments)
        if wrong is None:
            return None
        return ("invalid_arguments", f"the arguments violate the tool's schema: {wrong}")

    def read_text(self, text: str) -> tuple[Any, str | None]:
        """Return the final text as parsed JSON, and the first violation of the schema, if any."""
        try:
            value = read_json(text)
        except ValueError as error:
            return None, f"it is not JSON ({error})"
        wrong = first_error(compile_schema(self.response_schema, "response_schema"), value)
        return (value, None) if wrong is None else (None, wrong)
