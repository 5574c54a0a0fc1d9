"""Writing a request: settings, tools, and what stands around the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InvalidRequestError, UnsupportedFeatureError
from ...messages import ForceTool, Request, RuntimeConfig, Tool, ToolChoice
from ..codec import Notes
from ..projection import merge_extras, schema_name, sorted_json
from .quirks import Quirks
from .schema import project_input

_CACHED = {"type": "ephemeral"}
_EFFORTS = ("low", "medium", "high", "xhigh")


def write_config(body: dict[str, Any], config: RuntimeConfig, limit: int | None) -> None:
    """The settings the caller made; ``limit`` is the model's own for a reply, if it is known."""
    for name in ("seed", "frequency_penalty", "presence_penalty"):
        if getattr(config, name) is not None:
            raise UnsupportedFeatureError(f"config.{name}: this wire has no such setting")
    if "max_tokens" not in config.extras or config.max_tokens is not None:
        tokens = limit if config.max_tokens is None else config.max_tokens
        if tokens is None:
            raise InvalidRequestError("config.max_tokens: this wire requires it, and the model's limit is not known")
        body["max_tokens"] = tokens
    for name in ("temperature", "top_p"):
        if (value := getattr(config, name)) is not None:
            body[name] = value
    if config.stop_sequences is not None:
        body["stop_sequences"] = list(config.stop_sequences)


def write_reasoning(body: dict[str, Any], config: RuntimeConfig, quirks: Quirks) -> None:
    """A budget in tokens, an effort where the model has it, or no thinking."""
    reasoning = config.reasoning
    if reasoning is None:
        return
    if reasoning == "none":
        body["thinking"] = {"type": "disabled"}
    elif type(reasoning) is int:
        if reasoning < 0:
            raise InvalidRequestError("config.reasoning: a budget in tokens cannot be negative")
        body["thinking"] = {"type": "enabled", "budget_tokens": reasoning} if reasoning else {"type": "disabled"}
    elif not quirks.effort:
        raise UnsupportedFeatureError(
            "config.reasoning: this model is not known to take an effort; give a budget in tokens, or quirks.effort"
        )
    elif reasoning not in _EFFORTS:
        raise UnsupportedFeatureError(f"config.reasoning: this wire has the efforts {', '.join(_EFFORTS)}")
    else:
        if quirks.adaptive:
            body["thinking"] = {"type": "adaptive"}
        body["output_config"] = {"effort": reasoning}


def thinks(config: RuntimeConfig, quirks: Quirks) -> bool:
    """Will the model be asked to think? Then no tool can be forced."""
    asked = config.extras.get("thinking")
    if isinstance(asked, Mapping):
        return asked.get("type") != "disabled"
    return bool(config.reasoning) and config.reasoning != "none" and (type(config.reasoning) is int or quirks.adaptive)


def write_tools(body: dict[str, Any], request: Request, quirks: Quirks, notes: Notes) -> None:
    """The tools, and which of them is to be called."""
    tools = [_write_tool(tool, notes, f"tools[{at}].parameters") for at, tool in enumerate(request.tools)]
    if tools:
        body["tools"] = _mark_last(tools, quirks)
    if request.tool_choice is None:
        return
    if tools or "tools" in request.config.extras:
        body["tool_choice"] = write_tool_choice(request.tool_choice)
    else:
        notes.rewrite("tool_choice", "tool_choice_omitted", "there is no tool to choose, and the wire refuses a choice")


def _write_tool(tool: Tool, notes: Notes, path: str) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "input_schema": sorted_json(project_input(tool.parameters, notes, path))}


def _mark_last(tools: list[dict[str, Any]], quirks: Quirks) -> list[dict[str, Any]]:
    if quirks.cache == "system+tools":
        tools[-1]["cache_control"] = _CACHED
    return tools


def write_tool_choice(choice: ToolChoice) -> dict[str, Any]:
    """The four modes of choosing a tool."""
    if isinstance(choice, ForceTool):
        return {"type": "tool", "name": choice.name}
    return {"type": "any" if choice == "required" else choice}


def answer_tool(body: dict[str, Any], schema: Mapping[str, Any], quirks: Quirks, notes: Notes) -> None:
    """Ask for the answer as the input of a tool that must be called, once."""
    name = schema_name(schema)
    tool = {
        "name": name,
        "description": "Give your whole answer as the input of this tool.",
        "input_schema": sorted_json(project_input(schema, notes, "response_schema")),
    }
    body["tools"] = _mark_last([tool], quirks)
    body["tool_choice"] = {"type": "tool", "name": name, "disable_parallel_tool_use": True}


def write_system(body: dict[str, Any], system: str | None, quirks: Quirks) -> None:
    """The instructions, marked for the cache where that was asked for."""
    if not system:
        return
    if quirks.cache == "system+tools":
        body["system"] = [{"type": "text", "text": system, "cache_control": _CACHED}]
    else:
        body["system"] = system


def schema_directive(schema: Mapping[str, Any]) -> str:
    """How to ask for JSON in words."""
    written = bytes(sorted_json(dict(schema))).decode()
    return f"Answer with one JSON value and nothing else: no code fences, no comment. It must satisfy:\n{written}"


def add_extras(body: dict[str, Any], request: Request) -> None:
    """The caller's extras, beside what this call sets by itself.

    ``stop_sequences`` and ``tools`` are lists and are joined, ours first (so a tool that the provider runs
    can stand beside the caller's own). ``stream: false`` is taken as said. Any other field that this call
    sets must be equal, or the call is refused; fields it does not set pass through.
    """
    extras = dict(request.config.extras)
    if "stream" in extras and not request.stream and extras.pop("stream") is not False:
        raise InvalidRequestError("config.extras['stream'] contradicts this call; use stream() to stream")
    theirs = extras.get("tools")
    if "tools" in body and isinstance(theirs, list | tuple) and all(isinstance(tool, Mapping) for tool in theirs):
        body["tools"] = [*body["tools"], *[sorted_json(tool) for tool in theirs]]
        del extras["tools"]
    merge_extras(body, extras, lists=frozenset({"stop_sequences"}))
