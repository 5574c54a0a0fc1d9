"""Encode requests of the Gemini wire: settings, tools and schema.

The module ``contents`` encodes the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from ... import messages as m
from ...errors import InvalidRequestError, UnsupportedFeatureError
from ...events import read_json
from ..json import entries_of, merge_extras, ordered_json
from ..request import PORTABLE, RequestWriter, join_texts
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
DECLARED = "functionDeclarations"  # the field of a tool that has functions
# the field that allows functions next to tools that the server runs
FLAG = "includeServerSideToolInvocations"
DYNAMIC = -1  # with the budget -1, the model decides how many tokens it uses for thinking
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
# the fields that cached contents have, and the parts of a request that they come from
_CACHED = {"systemInstruction": "messages[0]", "tools": "tools", "toolConfig": "tool_choice"}


class GeminiWriter(RequestWriter):
    """Write the body of a request; most settings are in the object ``generationConfig``."""

    instruction: ClassVar[str] = (
        "Answer with one JSON value and nothing around it. It must satisfy this JSON Schema:"
    )

    def body(self) -> dict[str, Any]:
        conversation = ContentWriter(self.request, self.home, self.quirks, self.notes)
        body: dict[str, Any] = {}
        if text := join_texts(conversation.system, self.directive()):
            body["systemInstruction"] = {"parts": [{"text": text}]}
        self._write_tools(body)
        if self.request.server_tools:
            tools = enumerate(self.request.server_tools)
            _add_tools(body, [self._write_server_tool(tool, at) for at, tool in tools])
        if config := self._write_config():
            body["generationConfig"] = config
        self._write_cache(body)
        _add_extras(body, self.config.extras)
        _add_root(body, self.quirks.body)
        if self.quirks.server_invocations:
            _include_invocations(body)
        body["contents"] = conversation.write()
        return body

    def _write_server_tool(self, tool: m.ServerTool, at: int) -> dict[str, Any]:
        if tool.name in PORTABLE and tool.name not in _SERVER_TOOLS:
            raise UnsupportedFeatureError(f"server_tools[{at}]: this wire has no {tool.name!r}")
        name, fields = _SERVER_TOOLS.get(tool.name, (tool.name, {}))
        fields = {**fields, **self.quirks.server_tools.get(tool.name, {})}
        return {name: {**fields, **tool.options}}

    def _write_tools(self, body: dict[str, Any]) -> None:
        """Write the tools and the tool choice."""
        tools = self.request.tools
        choice = self.request.tool_choice
        if tools:
            declared = [self._declare(tool, f"tools[{at}]") for at, tool in enumerate(tools)]
            body["tools"] = [{DECLARED: declared}]
        if choice is None:
            return
        if tools:
            body["toolConfig"] = {"functionCallingConfig": _write_choice(choice)}
        else:
            # The server rejects a tool choice without tools.
            why = "without tools there is nothing to choose"
            self.notes.rewrite("tool_choice", "tool_choice_omitted", why)

    def _declare(self, tool: m.Tool, path: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": tool.name, "description": tool.description}
        note_strict(tool, path, self.notes)
        if self.quirks.tool_schema == "parametersJsonSchema":
            entry["parametersJsonSchema"] = ordered_json(tool.parameters)
        else:
            parameters = project_schema(tool.parameters, f"{path}.parameters", self.notes)
            # The server rejects an object schema without properties. A tool without a schema has
            # no arguments.
            if parameters.get("properties"):
                entry["parameters"] = ordered_json(parameters)
        return entry

    def _write_config(self) -> dict[str, Any]:
        """Return ``generationConfig``: the caller's settings, the response schema, and extras."""
        written = write_settings(self.config, NAMES)
        written |= self._write_reasoning()
        if (schema := self.schema_for("native")) is not None:
            written["responseMimeType"] = "application/json"
            written["responseJsonSchema"] = ordered_json(schema)
        extras = {name: value for name, value in self.config.extras.items() if name in SETTINGS}
        self.note_raw_only("candidateCount", "responseLogprobs")
        if "thinkingConfig" in written and isinstance(extras.get("thinkingConfig"), Mapping):
            # Thinking fields from the extras, such as ``includeThoughts``, are merged with the
            # reasoning setting. The call is rejected only if the two contradict each other.
            merge_extras(written["thinkingConfig"], extras.pop("thinkingConfig"))
        merge_extras(written, extras, lists=frozenset({"stopSequences"}))
        return written

    def _write_reasoning(self) -> dict[str, Any]:
        amount = self.config.reasoning
        budgets = self.quirks.effort_budgets
        if amount in budgets:
            return {"thinkingConfig": {"thinkingBudget": budgets[str(amount)]}}
        if amount == DYNAMIC:
            return {"thinkingConfig": {"thinkingBudget": DYNAMIC}}
        return self.reasoning() or {}

    def _write_cache(self, body: dict[str, Any]) -> None:
        """Write the handle of cached contents, if the call has one.

        Cached contents include a system prompt and tools. The server rejects a request that refers
        to cached contents and has its own system prompt or tools, so these are dropped.
        """
        cache = self.cache("handle")
        if cache is None or cache.handle is None:
            return
        for name, path in _CACHED.items():
            if body.pop(name, None) is not None:
                why = "the cached contents have their own"
                self.notes.drop(path, "cached_part_dropped", why)
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


def _join(body: Any, extra: Any, name: str, depth: int) -> None:
    """Merge nested fields of the extras into the body; reject a field that the codec also sets.

    Objects that both contain are merged, down to ``depth`` levels.
    """
    if not isinstance(body, dict) or not isinstance(extra, Mapping):
        raise InvalidRequestError(
            f"config.extras[{name!r}] contradicts a field that this call sets by itself"
        )
    for part, value in extra.items():
        if depth > 1 or part in body:
            _join(body.setdefault(part, {}), value, name, depth - 1)
        else:
            body[part] = ordered_json(value)


def structured_path(request: m.Request, quirks: Quirks) -> Literal["native", "prompt"]:
    """Return how the response schema is requested: in the wire's own field, or in the prompt."""
    in_words = quirks.structured == "prompt" or (
        request.tools and quirks.structured_with_tools == "prompt"
    )
    return "prompt" if in_words else "native"


# For each server-side tool: its field name on this wire, and its default options.
_SERVER_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "web_search": ("googleSearch", {}),
    "code_execution": ("codeExecution", {}),
    "url_context": ("urlContext", {}),
    "file_search": ("fileSearch", {}),
    "computer_use": ("computerUse", {"environment": "ENVIRONMENT_BROWSER"}),
}


def _add_tools(body: dict[str, Any], tools: Sequence[Any]) -> None:
    """Append tools, unchanged, to the tools of a body."""
    body["tools"] = [*body.get("tools", ()), *[ordered_json(tool) for tool in tools]]


def _include_invocations(body: dict[str, Any]) -> None:
    """Let the model use functions next to tools that the server runs, if a body has both."""
    tools = [
        tool if isinstance(tool, dict) else read_json(bytes(tool))
        for tool in body.get("tools", ())
    ]
    kinds = {name for tool in entries_of(tools) for name in tool}
    choice = body.get("toolConfig", {})
    if DECLARED not in kinds or len(kinds) < 2 or not isinstance(choice, dict):
        return
    if choice.get("functionCallingConfig") == {"mode": "AUTO"}:
        choice["functionCallingConfig"] = {"mode": "VALIDATED"}
    body["toolConfig"] = {FLAG: True, **choice}


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
