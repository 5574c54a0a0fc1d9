"""Encode requests of the Responses wire; ``items`` encodes the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...errors import UnsupportedFeatureError, quote
from ...messages import ForceTool, Request, ServerTool, System, Tool
from ..cache_marks import mark_end, name_breakpoints
from ..caching import key_of, read_cache, write_key
from ..codec import Notes
from ..json import merge_extras, ordered_json
from ..reasoning import merge_fields
from ..request import RequestWriter, join_texts
from ..settings import write_settings
from ..strict import choose_strict, schema_format
from .items import ItemWriter
from .quirks import Quirks

SETTINGS = {"max_tokens": "max_output_tokens", "temperature": "temperature", "top_p": "top_p"}
SERVER_TOOLS: dict[str, dict[str, Any]] = {
    "web_search": {"type": "web_search"},
    "code_execution": {"type": "code_interpreter", "container": {"type": "auto"}},
    "file_search": {"type": "file_search"},
    "computer_use": {"type": "computer_use_preview"},
    "tool_search": {"type": "tool_search"},
}
ADDED = "additional_tools"  # the type of input items that contain tools
ACCESS = "external_web_access"  # whether a web search may open pages, or read cached ones alone
_STATE = ("previous_response_id", "conversation", "background")
# Kinds of a client's tools and items; a server that takes functions alone gets functions for them.
_REWRITTEN = frozenset({"function", "custom", "namespace", "tool_search"})
_REWRITTEN_ITEMS = frozenset(
    {
        "apply_patch_call", "custom_tool_call", "custom_tool_call_output", "local_shell_call",
        "shell_call",
    }
)  # fmt: skip


def list_records(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list from a client."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def list_tools(native: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools of a client's request: those of the field, then those of input items."""
    tools = list_records(native.get("tools"))
    for item in list_records(native.get("input")):
        if item.get("type") == ADDED:
            tools += [tool for tool in list_records(item.get("tools")) if tool not in tools]
    return tools


def needs_functions(native: Mapping[str, Any]) -> bool:
    """Return whether a client's request has tools or calls that only some servers know."""
    return any(tool.get("type") in ("custom", "namespace") for tool in list_tools(native)) or any(
        item.get("type") in _REWRITTEN_ITEMS or "namespace" in item
        for item in list_records(native.get("input"))
    )


def limits_search(request: Request, wire: str) -> bool:
    """Return whether a tool of a request states which pages the web search may read."""
    tools = list_tools(request.native.get(wire, {}))
    options = [tool.options for tool in request.server_tools]
    return any(ACCESS in fields for fields in (*tools, *options))


def omit_web_access(request: Request, wire: str, notes: Notes) -> Request:
    """Return a request whose tools do not state which pages the web search may read.

    A search that may read cached pages alone is left out, since the server would open live ones.
    """
    if not limits_search(request, wire):
        return request
    native = dict(request.native.get(wire, {}))
    if isinstance(native.get("tools"), list):
        native["tools"] = _omit_access(native["tools"], notes)
    if isinstance(native.get("input"), list):
        native["input"] = [
            {**item, "tools": _omit_access(item["tools"], notes)} if _has_tools(item) else item
            for item in native["input"]
        ]
    tools = []
    for tool in request.server_tools:
        for options in _omit_access([tool.options], notes):
            tools.append(ServerTool(tool.name, options))
    changed = {**request.native, wire: native} if native else request.native
    return replace(request, native=changed, server_tools=tuple(tools))


def _has_tools(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and item.get("type") == ADDED
        and isinstance(item.get("tools"), list)
    )


def _omit_access(tools: Sequence[Any], notes: Notes) -> list[Any]:
    """Return tools without the field, and without those that may read cached pages alone."""
    kept = []
    for tool in tools:
        if not isinstance(tool, dict) or ACCESS not in tool:
            kept.append(tool)
        elif tool[ACCESS] is False:
            why = f"the server has no {ACCESS}, and its web search would open live pages"
            notes.drop("tools", "hosted_tool_dropped", why)
        else:
            kept.append({name: value for name, value in tool.items() if name != ACCESS})
    return kept


class ResponsesWriter(RequestWriter):
    """Write the body of a request; the conversation is in the field ``input``."""

    def body(self) -> dict[str, Any]:
        conversation = ItemWriter(self.request, self.home, self.quirks, self.notes)
        body: dict[str, Any] = {"model": self.home.model, "store": False}
        if instructions := join_texts(conversation.system, self.directive()):
            body["instructions"] = instructions
        self._write_structure(body)
        settings = write_settings(self.config, SETTINGS)
        self._write_reasoning(body)
        body |= settings
        cache = read_cache(self.request)
        key = key_of(cache, self.request, auto_key=self.quirks.cache_key)
        body |= write_key(cache, self.notes, key=key, form=self.quirks.cache_form)
        if self.request.stream:
            body["stream"] = True
        body["input"] = conversation.write()
        self.marks_cache = conversation.marks
        if conversation.marks:
            self._move_instructions(body, conversation.leading)
            name_breakpoints(body["input"], self.notes)
        self._add_extras(body)
        body["input"] = body.pop("input")
        return body

    def _move_instructions(self, body: dict[str, Any], leading: Sequence[System]) -> None:
        """Send the system prompt as a message if it is marked, as ``instructions`` has no parts."""
        if any(each.cache for each in leading):
            text = {"type": "input_text", "text": body.pop("instructions")}
            message = {"type": "message", "role": "developer", "content": [text]}
            mark_end(message)
            body["input"] = [message, *body["input"]]

    def _write_structure(self, body: dict[str, Any]) -> None:
        request = self.request
        quirks = self.quirks
        if request.tools:
            tools = enumerate(request.tools)
            body["tools"] = [_write_tool(tool, at, quirks, self.notes) for at, tool in tools]
            if not quirks.parallel_tools:
                body["parallel_tool_calls"] = False
        if request.server_tools:
            server_tools = self.server_tools(SERVER_TOOLS, lambda name: {"type": name})
            body["tools"] = [*body.get("tools", ()), *server_tools]
        native = request.native.get(self.home.wire, {})
        if quirks.tool_kinds == "functions" and needs_functions(native):
            self._rewrite_tools(body, native)
        if request.tool_choice is not None:
            body["tool_choice"] = _write_tool_choice(request.tool_choice)
        if (schema := self.schema_for("native")) is not None:
            form = schema_format(schema, strict=quirks.strict_schemas)
            body["text"] = {"format": {"type": "json_schema", **form}}

    def _rewrite_tools(self, body: dict[str, Any], native: Mapping[str, Any]) -> None:
        """Offer a client's hosted tools next to the functions that replace its other tools."""
        hosted = [tool for tool in list_tools(native) if tool.get("type") not in _REWRITTEN]
        if hosted:
            body["tools"] = [*body.get("tools", ()), *hosted]
        why = "the server takes functions alone: other tools and their calls are sent as such"
        self.notes.rewrite("tools", "tools_sent_as_functions", why)

    def _write_reasoning(self, body: dict[str, Any]) -> None:
        if self.config.reasoning is not None:
            merge_fields(body, self.effort(lambda effort: {"reasoning": {"effort": effort}}))
        if self.quirks.reasoning_summary is not None:
            merge_fields(body, {"reasoning": {"summary": self.quirks.reasoning_summary}})
        if self.quirks.encrypted_reasoning:
            body["include"] = ["reasoning.encrypted_content"]

    def _add_extras(self, body: dict[str, Any]) -> None:
        """Merge the caller's extras into the codec's fields; the ``include`` lists are joined."""
        extras = self.extras()
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
        **({"defer_loading": True} if tool.deferred else {}),
    }


def _write_tool_choice(choice: Any) -> Any:
    """Return the tool choice in the form of this wire."""
    return {"type": "function", "name": choice.name} if isinstance(choice, ForceTool) else choice
