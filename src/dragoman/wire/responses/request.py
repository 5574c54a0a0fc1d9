"""Encode requests of this wire; ``items`` encodes the conversation."""

from __future__ import annotations

from typing import Any, Literal

from ...errors import UnsupportedFeatureError, quote
from ...messages import ForceTool, Issuer, Request, RuntimeConfig, Tool
from ...reasoning import merge_fields
from ..caching import read_cache, write_key
from ..codec import Notes
from ..extras import drop_stream
from ..json import merge_extras, ordered_json
from ..reasoning import reasoning_fields
from ..schema import schema_directive
from ..server_tools import write_server_tools
from ..settings import write_settings
from ..strict import choose_strict, schema_format
from .items import ItemWriter
from .quirks import Quirks

SETTINGS = {"max_tokens": "max_output_tokens", "temperature": "temperature", "top_p": "top_p"}
_SERVER_TOOLS: dict[str, dict[str, Any]] = {
    "web_search": {"type": "web_search"},
    "code_execution": {"type": "code_interpreter", "container": {"type": "auto"}},
    "file_search": {"type": "file_search"},
    "computer_use": {"type": "computer_use_preview"},
}
_STATE = ("previous_response_id", "conversation", "background")


def write_request(
    request: Request,
    home: Issuer,
    quirks: Quirks,
    path: Literal["native", "prompt"] | None,
    notes: Notes,
) -> dict[str, Any]:
    """Return the body of a request.

    The input comes last, so that the body of the next turn begins with the same bytes.
    """
    writer = ItemWriter(request, home, quirks, notes)
    body: dict[str, Any] = {"model": home.model, "store": False}
    _write_structure(body, request, quirks, path, writer.system, notes)
    settings = write_settings(request.config, SETTINGS)
    _write_reasoning(body, request.config, home, quirks, notes)
    body |= settings
    body |= write_key(read_cache(request), request, notes, auto_key=quirks.cache_key)
    if request.stream:
        body["stream"] = True
    body["input"] = writer.write()
    _add_extras(body, request)
    body["input"] = body.pop("input")
    return body


def _write_structure(
    body: dict[str, Any],
    request: Request,
    quirks: Quirks,
    path: str | None,
    system: str | None,
    notes: Notes,
) -> None:
    schema = request.response_schema
    instructions = [system] if system else []
    if schema is not None and path == "prompt":
        instructions.append(schema_directive(schema))
    if instructions:
        body["instructions"] = "\n\n".join(instructions)
    if request.tools:
        body["tools"] = [
            _write_tool(tool, at, quirks, notes) for at, tool in enumerate(request.tools)
        ]
        if not quirks.parallel_tools:
            body["parallel_tool_calls"] = False
    if request.server_tools:
        theirs = write_server_tools(
            request.server_tools, _SERVER_TOOLS, lambda name: {"type": name}
        )
        body["tools"] = [*body.get("tools", ()), *theirs]
    if request.tool_choice is not None:
        body["tool_choice"] = _write_tool_choice(request.tool_choice)
    if schema is not None and path == "native":
        form = schema_format(schema, strict=quirks.strict_schemas)
        body["text"] = {"format": {"type": "json_schema", **form}}


def _write_reasoning(
    body: dict[str, Any], config: RuntimeConfig, home: Issuer, quirks: Quirks, notes: Notes
) -> None:
    fields = reasoning_fields(config, quirks.reasoning, home, notes)
    if fields is None and isinstance(config.reasoning, str):
        fields = {
            "reasoning": {"effort": "none" if config.reasoning == "off" else config.reasoning}
        }
    elif fields is None and config.reasoning is not None:
        raise UnsupportedFeatureError(
            "config.reasoning: this wire takes an effort; a budget in tokens needs "
            "quirks.reasoning for this model"
        )
    merge_fields(body, fields or {})
    if quirks.reasoning_summary is not None:
        merge_fields(body, {"reasoning": {"summary": quirks.reasoning_summary}})
    if quirks.encrypted_reasoning:
        body["include"] = ["reasoning.encrypted_content"]


def _add_extras(body: dict[str, Any], request: Request) -> None:
    """Merge the caller's extras into the codec's fields; the two ``include`` lists are joined."""
    extras = drop_stream(request)
    for name in _STATE:
        if extras.get(name):
            raise UnsupportedFeatureError(
                f"config.extras[{quote(name)}]: nothing is kept on the server between calls"
            )
    merge_extras(body, extras, lists=frozenset({"include"}), objects=frozenset({"reasoning"}))


def _write_tool(tool: Tool, at: int, quirks: Quirks, notes: Notes) -> dict[str, Any]:
    """Return a tool in the form of this wire.

    ``strict`` is always sent, because its default on hosted OpenAI is true.
    """
    strict, parameters = choose_strict(tool, f"tools[{at}]", notes, default=quirks.strict_tools)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": ordered_json(parameters),
        "strict": strict or False,
    }


def _write_tool_choice(choice: Any) -> Any:
    """Return the tool choice in the form of this wire."""
    return {"type": "function", "name": choice.name} if isinstance(choice, ForceTool) else choice
