"""Validation of messages and settings, requests, schemas and replies.

Box: core.

``parse`` turns strings, dictionaries and SDK shapes into values; ``request`` checks a request
against the contract and against what the model is known not to support; ``schema`` compiles JSON
Schemas, never following a reference out of the document; ``reply`` checks tool calls and
structured text.
"""

from .arguments import Messages, ResponseSchema, Settings, ToolChoices, Tools
from .parse import (
    apply_settings,
    build_request,
    parse_config,
    parse_messages,
    parse_tool_choice,
    parse_tools,
)
from .partial import PartialValue
from .reply import Expectation
from .request import check_request, find_refusal
from .schema import compile_schema
from .structured import to_instance

__all__ = [
    "Expectation", "Messages", "PartialValue", "ResponseSchema", "Settings", "ToolChoices",
    "Tools", "apply_settings", "build_request", "check_request", "compile_schema", "find_refusal", "parse_config",
    "parse_messages", "parse_tool_choice", "parse_tools", "to_instance",
]  # fmt: skip
