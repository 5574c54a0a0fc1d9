"""Encode requests of the anthropic wire: settings, tools, system prompt and response schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from ... import messages as m
from ...errors import InvalidRequestError, UnsupportedFeatureError
from ..cache_marks import mark_of, place_marks
from ..codec import Notes
from ..json import merge_extras, ordered_json
from ..reasoning import is_off
from ..request import join_texts
from ..schema import schema_name
from ..settings import write_settings
from .conversation import TurnWriter
from .quirks import Quirks
from .schema import fits_format, project_format, project_input, project_strict
from .thinking import ThinkingWriter, bind, choose_display

_Path = Literal["native", "tool", "prompt"]
SERVER_TOOLS: dict[str, dict[str, Any]] = {
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "code_execution": {"type": "code_execution_20250825", "name": "code_execution"},
    "url_context": {"type": "web_fetch_20250910", "name": "web_fetch"},
    "computer_use": {"type": "computer_20250124", "name": "computer"},
    "tool_search": {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
}
SETTINGS = {name: name for name in ("max_tokens", "temperature", "top_p", "stop_sequences")}
# A toolset, such as ``computer_toolset_20260801``, has these fields alone (SDK 2.10).
_OF_TOOLSETS = ("type", "configs", "cache_control")
_OBJECTS = frozenset({"thinking"})


class MessagesWriter(ThinkingWriter):
    """Write the body of a request: settings, tools, system prompt and response schema."""

    quirks: Quirks  # pyright: ignore[reportIncompatibleVariableOverride]
    # The model's output limit, if known. It is sent if the caller sets no ``max_tokens``, which
    # the wire requires.
    limit: int | None = None
    instruction: ClassVar[str] = (
        "Answer with one JSON value and nothing else: no code fences, no comment. It must satisfy:"
    )

    def body(self) -> dict[str, Any]:
        conversation = TurnWriter(self.request, self.home, self.quirks, self.notes)
        conversation.silent_from = self.silent_from()
        conversation.needs_thought = self.quirks.reasoning_required and self.requests_thinking()
        body: dict[str, Any] = {"model": self.home.model, **self._settings()}
        body |= self.thinking(body.get("max_tokens"))
        cache = self.cache("ttl", default=self.quirks.cache == "auto")
        self._write_structure(body)
        self._write_system(body, conversation.leading, conversation.system)
        if self.request.stream:
            body["stream"] = True
        body["messages"] = conversation.write()
        place_marks(body, cache, self.notes, prefix=self.quirks.cache == "system+tools")
        self._add_extras(body)
        if self.binds():
            bind(body)
        body["messages"] = body.pop("messages")
        return body

    def _settings(self) -> dict[str, Any]:
        """Return the caller's settings, with the limit that the wire requires."""
        settings = write_settings(self.config, SETTINGS)
        if "max_tokens" in settings or "max_tokens" in self.config.extras:
            return settings
        limit = self.quirks.max_tokens if self.limit is None else self.limit
        if limit is None:
            raise InvalidRequestError(
                "config.max_tokens: this wire requires it, and the model's limit is not known"
            )
        return {"max_tokens": limit, **settings}

    def thinking(self, room: int | None) -> dict[str, Any]:
        """Return the reasoning setting: a budget in tokens, an effort, or no thinking."""
        reasoning = self.config.reasoning
        fields = self.reasoning(room)
        if fields is not None:
            choose_display(fields, self.config.extras)
            return fields
        if reasoning is None:
            return {}
        if is_off(reasoning):
            return {"thinking": {"type": "disabled"}}
        if type(reasoning) is not int:
            raise UnsupportedFeatureError(
                "config.reasoning: this model is not known to take an effort; give a budget in "
                "tokens, or quirks.reasoning"
            )
        if reasoning < 0:
            raise InvalidRequestError("config.reasoning: a budget in tokens cannot be negative")
        return {"thinking": {"type": "enabled", "budget_tokens": reasoning}}

    def reasoning_fields(self) -> dict[str, Any]:
        return self.thinking(self.config.max_tokens)

    def _write_structure(self, body: dict[str, Any]) -> None:
        """Write the tools and the response schema."""
        if (schema := self.schema_for("native")) is not None:
            form = ordered_json(project_format(schema, self.notes))
            written = {"format": {"type": "json_schema", "schema": form}}
            body["output_config"] = {**body.get("output_config", {}), **written}
        if (schema := self.schema_for("tool")) is not None:
            _answer_tool(body, schema, self.notes)
            return
        self._write_tools(body)
        if self.request.server_tools:
            server_tools = self.server_tools(SERVER_TOOLS, lambda name: {"type": name})
            fitted = [self._fit_toolset(tool, at) for at, tool in enumerate(server_tools)]
            body["tools"] = [*body.get("tools", ()), *fitted]

    def _fit_toolset(self, tool: dict[str, Any], at: int) -> dict[str, Any]:
        """Return a server tool; leave out the options that a toolset does not have."""
        kind = tool["type"]  # a type that the caller chose is encoded already
        if not isinstance(kind, str) or "_toolset_" not in kind:
            return tool
        # A toolset has no name of its own: its tools have names.
        for name in sorted(tool.keys() - {*_OF_TOOLSETS, "name"}):
            why = f"{kind} does not have this option"
            self.notes.drop(f"server_tools[{at}].options.{name}", "tool_option_dropped", why)
        return {name: value for name, value in tool.items() if name in _OF_TOOLSETS}

    def _write_tools(self, body: dict[str, Any]) -> None:
        """Write the tools and the tool choice."""
        choice = self.request.tool_choice
        offered = enumerate(self.request.tools)
        tools = [_write_tool(tool, self.notes, f"tools[{at}]") for at, tool in offered]
        if tools:
            body["tools"] = tools
        if tools and not self.quirks.parallel_tools and choice != "none":
            written = _write_tool_choice(choice or "auto")
            body["tool_choice"] = {**written, "disable_parallel_tool_use": True}
        elif choice is not None and (tools or "tools" in self.config.extras):
            body["tool_choice"] = _write_tool_choice(choice)
        elif choice is not None:
            why = "there is no tool to choose, and the wire refuses a choice"
            self.notes.rewrite("tool_choice", "tool_choice_omitted", why)

    def _write_system(
        self, body: dict[str, Any], leading: Sequence[m.System], system: str | None
    ) -> None:
        """Write the system prompt as a string, or as blocks if a message is marked for caching."""
        directive = self.directive()
        if any(message.cache for message in leading):
            blocks = [
                {"type": "text", "text": message.content, **mark_of(message)}
                for message in leading
            ]
            blocks += [{"type": "text", "text": directive}] if directive else []
            body["system"] = blocks
        elif text := join_texts(system, directive):
            body["system"] = text

    def _add_extras(self, body: dict[str, Any]) -> None:
        """Merge the caller's extras into the fields that the codec sets.

        The lists ``stop_sequences`` and ``tools`` are joined, with the codec's values first, so
        extras can add a server-side tool. ``thinking`` is merged, so extras can add fields to it
        and choose ``display``. ``stream: false`` is ignored. If the codec sets any other field,
        the extra must have the same value, or the call is rejected. All other extras are sent
        unchanged.
        """
        extras = self.extras()
        extra_tools = extras.get("tools")
        if (
            "tools" in body
            and isinstance(extra_tools, list | tuple)
            and all(isinstance(tool, Mapping) for tool in extra_tools)
        ):
            body["tools"] = [*body["tools"], *[ordered_json(tool) for tool in extra_tools]]
            del extras["tools"]
        merge_extras(body, extras, lists=frozenset({"stop_sequences"}), objects=_OBJECTS)


def structured_path(request: m.Request, home: m.Issuer, quirks: Quirks) -> _Path:
    """Return how the schema is requested: by the wire's field, a forced tool, or the prompt."""
    schema = request.response_schema or {}
    if quirks.structured == "native" and fits_format(schema):
        return "native"
    tools = bool(request.tools or request.server_tools) or "tools" in request.config.extras
    if quirks.structured == "prompt" or quirks.forced_tools == "no" or tools:
        return "prompt"
    writer = MessagesWriter(request, home, quirks, None, Notes())
    return "prompt" if writer.requests_thinking() else "tool"


def _write_tool(tool: m.Tool, notes: Notes, path: str) -> dict[str, Any]:
    written: dict[str, Any] = {"name": tool.name}
    if tool.description:
        written["description"] = tool.description
    if tool.deferred:
        written["defer_loading"] = True
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
