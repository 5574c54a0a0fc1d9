"""Encode requests of this wire: settings, tools, system prompt and response schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ... import messages as m
from ...errors import InvalidRequestError, UnsupportedFeatureError
from ..caching import note_unplaced, read_cache
from ..codec import Notes
from ..extras import drop_stream
from ..json import merge_extras, ordered_json
from ..marks import mark_of, place_marks
from ..reasoning import reasoning_fields
from ..schema import schema_directive, schema_name
from ..server_tools import write_server_tools
from ..settings import write_settings
from .conversation import TurnWriter
from .quirks import Quirks
from .schema import fits_format, project_format, project_input, project_strict

_Path = Literal["native", "tool", "prompt"]
_SERVER_TOOLS = {
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "code_execution": {"type": "code_execution_20250825", "name": "code_execution"},
    "url_context": {"type": "web_fetch_20250910", "name": "web_fetch"},
    "computer_use": {"type": "computer_20250124", "name": "computer"},
}
SETTINGS = {name: name for name in ("max_tokens", "temperature", "top_p", "stop_sequences")}
EFFORTS = ("low", "medium", "high", "xhigh")


def write_request(
    request: m.Request,
    home: m.Issuer,
    quirks: Quirks,
    path: _Path | None,
    limit: int | None,
    notes: Notes,
) -> dict[str, Any]:
    """Return the body of a request.

    Messages come last, so that the body of the next turn begins with the same bytes.

    ``limit`` is the model's output limit, if known. It is sent if the caller sets no
    ``max_tokens``, which the wire requires.
    """
    writer = TurnWriter(request, home, quirks, notes)
    body: dict[str, Any] = {"model": home.model}
    _write_config(body, request.config, limit)
    body |= _reasoning_fields(request.config, home, quirks, notes, body.get("max_tokens"))
    cache = read_cache(request, default=quirks.cache == "auto")
    note_unplaced(cache, ("ttl",), notes)
    directive = _write_structure(body, request, quirks, path, notes)
    _write_system(body, request.messages[: writer.first], writer.system, directive)
    if request.stream:
        body["stream"] = True
    body["messages"] = writer.write()
    place_marks(body, cache, notes, prefix=quirks.cache == "system+tools")
    _add_extras(body, request)
    body["messages"] = body.pop("messages")
    return body


def structured_path(request: m.Request, home: m.Issuer, quirks: Quirks) -> _Path:
    """Return how the schema is requested: by the wire's field, a forced tool, or the prompt."""
    schema = request.response_schema or {}
    if quirks.structured == "native" and fits_format(schema):
        return "native"
    tools = bool(request.tools or request.server_tools) or "tools" in request.config.extras
    return (
        "prompt"
        if quirks.structured == "prompt"
        or tools
        or _requests_thinking(request.config, home, quirks)
        else "tool"
    )


def _write_structure(
    body: dict[str, Any], request: m.Request, quirks: Quirks, path: _Path | None, notes: Notes
) -> str | None:
    """Write the tools and the response schema; return the instruction for the prompt, if any."""
    schema = request.response_schema
    if schema is not None and path == "native":
        form = {"type": "json_schema", "schema": ordered_json(project_format(schema, notes))}
        body["output_config"] = {**body.get("output_config", {}), "format": form}
    if schema is not None and path == "tool":
        _answer_tool(body, schema, notes)
        return None
    _write_tools(body, request, quirks, notes)
    if request.server_tools:
        theirs = write_server_tools(
            request.server_tools, _SERVER_TOOLS, lambda name: {"type": name}
        )
        body["tools"] = [*body.get("tools", ()), *theirs]
    return (
        schema_directive(schema, "anthropic") if schema is not None and path == "prompt" else None
    )


def _write_config(body: dict[str, Any], config: m.RuntimeConfig, limit: int | None) -> None:
    """Write the caller's settings; ``limit`` is the model's output limit, if known."""
    settings = write_settings(config, SETTINGS)
    if "max_tokens" not in settings and "max_tokens" not in config.extras:
        if limit is None:
            raise InvalidRequestError(
                "config.max_tokens: this wire requires it, and the model's limit is not known"
            )
        settings = {"max_tokens": limit, **settings}
    body |= settings


def _reasoning_fields(
    config: m.RuntimeConfig, home: m.Issuer, quirks: Quirks, notes: Notes, room: int | None
) -> dict[str, Any]:
    """Return the reasoning setting: a budget in tokens, an effort, or no thinking."""
    reasoning = config.reasoning
    if quirks.effort and isinstance(reasoning, str) and reasoning not in ("off", "none"):
        if reasoning not in EFFORTS:
            raise UnsupportedFeatureError(
                f"config.reasoning: this wire has the efforts {', '.join(EFFORTS)}"
            )
        adaptive: dict[str, Any] = {"thinking": {"type": "adaptive"}} if quirks.adaptive else {}
        return {**adaptive, "output_config": {"effort": reasoning}}
    fields = reasoning_fields(config, quirks.reasoning, home, notes, room)
    if fields is not None or reasoning is None:
        return fields or {}
    if reasoning in ("off", "none", 0):
        return {"thinking": {"type": "disabled"}}
    if type(reasoning) is not int:
        raise UnsupportedFeatureError(
            "config.reasoning: this model is not known to take an effort; give a budget in tokens,"
            " or quirks.effort"
        )
    if reasoning < 0:
        raise InvalidRequestError("config.reasoning: a budget in tokens cannot be negative")
    return {"thinking": {"type": "enabled", "budget_tokens": reasoning}}


def _requests_thinking(config: m.RuntimeConfig, home: m.Issuer, quirks: Quirks) -> bool:
    """Return whether thinking is requested. If it is, the request cannot force a tool."""
    asked = config.extras.get("thinking")
    if not isinstance(asked, Mapping):
        asked = _reasoning_fields(config, home, quirks, Notes(), config.max_tokens).get("thinking")
    return asked is not None and asked.get("type") != "disabled"


def _write_tools(body: dict[str, Any], request: m.Request, quirks: Quirks, notes: Notes) -> None:
    """Write the tools and the tool choice."""
    tools = [_write_tool(tool, notes, f"tools[{at}]") for at, tool in enumerate(request.tools)]
    if tools:
        body["tools"] = tools
    if tools and not quirks.parallel_tools and request.tool_choice != "none":
        choice = (
            {"type": "auto"}
            if request.tool_choice is None
            else _write_tool_choice(request.tool_choice)
        )
        body["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
        return
    if request.tool_choice is None:
        return
    if tools or "tools" in request.config.extras:
        body["tool_choice"] = _write_tool_choice(request.tool_choice)
    else:
        notes.rewrite(
            "tool_choice",
            "tool_choice_omitted",
            "there is no tool to choose, and the wire refuses a choice",
        )


def _write_tool(tool: m.Tool, notes: Notes, path: str) -> dict[str, Any]:
    written: dict[str, Any] = {"name": tool.name}
    if tool.description:
        written["description"] = tool.description
    schema = project_strict(tool, notes, path)
    if schema is not None:
        written["strict"] = True
    else:
        schema = project_input(tool.parameters, notes, f"{path}.parameters")
    written["input_schema"] = ordered_json(schema)
    return written


def _write_tool_choice(choice: m.ToolChoice) -> dict[str, Any]:
    """Return the tool choice in the form of this wire."""
    if isinstance(choice, m.ForceTool):
        return {"type": "tool", "name": choice.name}
    return {"type": "any" if choice == "required" else choice}


def _answer_tool(body: dict[str, Any], schema: Mapping[str, Any], notes: Notes) -> None:
    """Add a forced tool, whose input is the structured answer."""
    name = schema_name(schema)
    tool = {
        "name": name,
        "description": "Give your whole answer as the input of this tool.",
        "input_schema": ordered_json(project_input(schema, notes, "response_schema")),
    }
    body["tools"] = [tool]
    body["tool_choice"] = {"type": "tool", "name": name, "disable_parallel_tool_use": True}


def _write_system(
    body: dict[str, Any], messages: Sequence[m.Message], system: str | None, directive: str | None
) -> None:
    """Return the system prompt as a string, or as blocks if a message is marked for caching."""
    if any(isinstance(message, m.System) and message.cache for message in messages):
        blocks = [
            {"type": "text", "text": message.content, **mark_of(message)}
            for message in messages
            if isinstance(message, m.System)
        ]
        body["system"] = [*blocks, *([{"type": "text", "text": directive}] if directive else [])]
    elif texts := [text for text in (system, directive) if text]:
        body["system"] = "\n\n".join(texts)


def _add_extras(body: dict[str, Any], request: m.Request) -> None:
    """Merge the caller's extras into the fields that the codec sets.

    The lists ``stop_sequences`` and ``tools`` are joined, with the codec's values first, so extras
    can add a server-side tool. ``stream: false`` is ignored. If the codec sets any other field,
    the extra must have the same value, or the call is rejected. All other extras are sent
    unchanged.
    """
    extras = drop_stream(request)
    theirs = extras.get("tools")
    if (
        "tools" in body
        and isinstance(theirs, list | tuple)
        and all(isinstance(tool, Mapping) for tool in theirs)
    ):
        body["tools"] = [*body["tools"], *[ordered_json(tool) for tool in theirs]]
        del extras["tools"]
    merge_extras(body, extras, lists=frozenset({"stop_sequences"}))
