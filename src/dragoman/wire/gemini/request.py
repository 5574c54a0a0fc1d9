"""Encode requests of this wire: settings, tools and schema.

The module ``contents`` encodes the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ... import messages as m
from ...errors import InvalidRequestError
from ..caching import note_unplaced, read_cache
from ..codec import Notes
from ..extras import note_raw_only
from ..json import merge_extras, ordered_json
from ..reasoning import reasoning_fields
from ..schema import schema_directive
from ..settings import write_settings
from ..strict import note_strict
from .contents import ContentWriter
from .quirks import Quirks
from .schema import project_schema

NAMES = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_tokens": "maxOutputTokens",
    "stop_sequences": "stopSequences",
    "seed": "seed",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
}
SETTINGS = frozenset(
    {
        *NAMES.values(), "topK", "candidateCount", "responseMimeType", "responseSchema",
        "responseJsonSchema", "responseModalities", "speechConfig", "thinkingConfig",
        "mediaResolution", "imageConfig", "logprobs", "responseLogprobs",
        "enableEnhancedCivicAnswers", "audioTimestamp", "routingConfig", "modelSelectionConfig",
    }
)  # fmt: skip
"""The fields of ``generationConfig``. Extras with these names are added to it; all other extras
are added to the root of the body.
"""
LEVELS = ("minimal", "low", "medium", "high")
_DYNAMIC = -1  # with the budget -1, the model decides how many tokens it uses for thinking
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}


def write_request(
    request: m.Request,
    home: m.Issuer,
    quirks: Quirks,
    path: Literal["native", "prompt"] | None,
    notes: Notes,
) -> dict[str, Any]:
    """Return the body of a request.

    Contents come last, so that the body of the next turn begins with the same bytes.
    """
    writer = ContentWriter(request, home, quirks, notes)
    directive = (
        schema_directive(request.response_schema or {}, "gemini") if path == "prompt" else None
    )
    body: dict[str, Any] = {}
    if texts := [text for text in (writer.system, directive) if text]:
        body["systemInstruction"] = {"parts": [{"text": "\n\n".join(texts)}]}
    body |= _write_tools(request, quirks, notes)
    if request.server_tools:
        _add_tools(body, [_write_server_tool(tool) for tool in request.server_tools])
    schema = request.response_schema if path == "native" else None
    if config := _write_config(request.config, home, quirks, schema, notes):
        body["generationConfig"] = config
    _write_cache(body, request, notes)
    _add_extras(body, request.config.extras)
    _add_root(body, quirks.body)
    body["contents"] = writer.write()
    return body


def _write_cache(body: dict[str, Any], request: m.Request, notes: Notes) -> None:
    """Write the handle of cached contents, if the call has one.

    Cached contents include a system prompt and tools. The server rejects a request that refers to
    cached contents and has its own system prompt or tools, so these are dropped.
    """
    cache = read_cache(request)
    note_unplaced(cache, ("handle",), notes)
    if cache is None or cache.handle is None:
        return
    for name, path in (
        ("systemInstruction", "messages[0]"),
        ("tools", "tools"),
        ("toolConfig", "tool_choice"),
    ):
        if body.pop(name, None) is not None:
            notes.drop(path, "cached_part_dropped", "the cached contents have their own")
    body["cachedContent"] = cache.handle


def _add_extras(body: dict[str, Any], extras: Mapping[str, Any]) -> None:
    """Add the caller's extras to the root of the body; a dotted name is a path.

    The extra ``tools`` is appended to the tools of the body.

    Extras that belong to ``generationConfig`` are skipped, because they have been added to it.
    """
    for name in extras:
        if name in SETTINGS:
            continue
        head, *path = name.split(".")
        value = extras[name]
        if head == "contents":
            raise InvalidRequestError(
                "config.extras['contents'] contradicts a field that this call sets by itself"
            )
        if name == "tools" and isinstance(value, list):
            _add_tools(body, value)
        elif path:
            for part in reversed(path):
                value = {part: value}
            _join(body.setdefault(head, {}), value, name, len(path))
        else:
            merge_extras(body, {head: value})


def _join(ours: Any, theirs: Any, name: str, depth: int) -> None:
    """Merge nested fields of the extras into the body; reject a field that the codec also sets.

    Objects that both contain are merged, down to ``depth`` levels.
    """
    if not isinstance(ours, dict) or not isinstance(theirs, Mapping):
        raise InvalidRequestError(
            f"config.extras[{name!r}] contradicts a field that this call sets by itself"
        )
    for part, value in theirs.items():
        if depth > 1 or part in ours:
            _join(ours.setdefault(part, {}), value, name, depth - 1)
        else:
            ours[part] = ordered_json(value)


def structured_path(request: m.Request, quirks: Quirks) -> Literal["native", "prompt"]:
    """Return how the response schema is requested: in the wire's own field, or in the prompt."""
    in_words = quirks.structured == "prompt" or (
        request.tools and quirks.structured_with_tools == "prompt"
    )
    return "prompt" if in_words else "native"


def _write_config(
    config: m.RuntimeConfig,
    home: m.Issuer,
    quirks: Quirks,
    schema: Mapping[str, Any] | None,
    notes: Notes,
) -> dict[str, Any]:
    """Return ``generationConfig``: the caller's settings, the response schema, and extras."""
    written = write_settings(config, NAMES)
    written |= _write_reasoning(config, home, quirks, notes)
    if schema is not None:
        written["responseMimeType"] = "application/json"
        written["responseJsonSchema"] = ordered_json(schema)
    extras = {name: value for name, value in config.extras.items() if name in SETTINGS}
    note_raw_only(extras, notes, choices="candidateCount", logprobs="responseLogprobs")
    if "thinkingConfig" in written and isinstance(extras.get("thinkingConfig"), Mapping):
        # Thinking fields from the extras, such as ``includeThoughts``, are merged with the
        # reasoning setting. The call is rejected only if the two contradict each other.
        merge_extras(written["thinkingConfig"], extras.pop("thinkingConfig"))
    merge_extras(written, extras, lists=frozenset({"stopSequences"}))
    return written


def _write_reasoning(
    config: m.RuntimeConfig, home: m.Issuer, quirks: Quirks, notes: Notes
) -> dict[str, Any]:
    reasoning = config.reasoning
    if reasoning in quirks.effort_budgets:
        return {"thinkingConfig": {"thinkingBudget": quirks.effort_budgets[str(reasoning)]}}
    if reasoning == _DYNAMIC:
        return {"thinkingConfig": {"thinkingBudget": _DYNAMIC}}
    return reasoning_fields(config, quirks.reasoning, home, notes) or {}


def _write_tools(request: m.Request, quirks: Quirks, notes: Notes) -> dict[str, Any]:
    """Return the fields for the tools and the tool choice. Without tools, return no fields."""
    if not request.tools:
        if request.tool_choice is not None:
            # The server rejects a tool choice without tools.
            notes.rewrite(
                "tool_choice", "tool_choice_omitted", "without tools there is nothing to choose"
            )
        return {}
    written: dict[str, Any] = {
        "tools": [{"functionDeclarations": _declare(request.tools, quirks, notes)}]
    }
    if request.tool_choice is not None:
        written["toolConfig"] = {"functionCallingConfig": _write_choice(request.tool_choice)}
    return written


# For each server-side tool: its field name on this wire, and its default options.
_SERVER_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "web_search": ("googleSearch", {}),
    "code_execution": ("codeExecution", {}),
    "url_context": ("urlContext", {}),
    "file_search": ("fileSearch", {}),
    "computer_use": ("computerUse", {"environment": "ENVIRONMENT_BROWSER"}),
}


def _write_server_tool(tool: m.ServerTool) -> dict[str, Any]:
    name, fields = _SERVER_TOOLS.get(tool.name, (tool.name, {}))
    return {name: {**fields, **tool.options}}


def _add_tools(body: dict[str, Any], tools: Sequence[Any]) -> None:
    """Append tools to those of a body; each is sent as it is written."""
    body["tools"] = [*body.get("tools", ()), *[ordered_json(tool) for tool in tools]]


def _declare(tools: Sequence[m.Tool], quirks: Quirks, notes: Notes) -> list[dict[str, Any]]:
    declared = []
    for at, tool in enumerate(tools):
        entry: dict[str, Any] = {"name": tool.name, "description": tool.description}
        note_strict(tool, f"tools[{at}]", notes)
        if quirks.tool_schema == "parametersJsonSchema":
            entry["parametersJsonSchema"] = ordered_json(tool.parameters)
        else:
            parameters = project_schema(tool.parameters, f"tools[{at}].parameters", notes)
            # The server rejects an object schema without properties. A tool without a schema has
            # no arguments.
            if parameters.get("properties"):
                entry["parameters"] = ordered_json(parameters)
        declared.append(entry)
    return declared


def _write_choice(choice: m.ToolChoice) -> dict[str, Any]:
    if isinstance(choice, m.ForceTool):
        return {"mode": "ANY", "allowedFunctionNames": [choice.name]}
    return {"mode": _MODES[choice]}


def _add_root(body: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Add the fields of ``Quirks.body`` to a request; append its tools to the caller's tools."""
    for name in sorted(fields):
        if name == "tools" and isinstance(fields[name], list):
            _add_tools(body, fields[name])
        elif name in body or name == "contents":
            raise InvalidRequestError(
                f"quirks.body[{name!r}] contradicts a field that this call sets by itself"
            )
        else:
            body[name] = ordered_json(fields[name])
