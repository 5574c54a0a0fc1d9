"""Encode requests of the bedrock wire.

Turns follow the rules of the anthropic wire, so its writer arranges the conversation: it pairs
calls with results, makes ids legal, and selects the thinking to send back. Each block is then
converted to Converse, where a block has one field, named after its type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from ... import messages as m
from ...errors import UnsupportedContentError, quote
from ...validate.data_url import read_inline
from ..anthropic.conversation import TurnWriter
from ..anthropic.quirks import Quirks as TurnRules
from ..anthropic.schema import fits_format, project_format, project_strict
from ..anthropic.thinking import BINDING, ThinkingWriter, bind, choose_display
from ..cache_marks import mark_of, place_marks
from ..codec import Notes
from ..json import json_text, merge_extras, ordered_json
from ..openai.request import AUDIO_FORMATS
from ..schema import schema_name
from ..settings import write_settings
from .quirks import Quirks

_Path = Literal["native", "tool", "prompt"]
SETTINGS = {
    "max_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop_sequences": "stopSequences",
}
IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
DOCUMENTS = {
    "application/pdf": "pdf",
    "text/plain": "txt",
    "text/markdown": "md",
    "text/html": "html",
    "text/csv": "csv",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}
AUDIO = {
    **AUDIO_FORMATS,
    "audio/aac": "aac",
    "audio/flac": "flac",
    "audio/mp4": "m4a",
    "audio/x-m4a": "m4a",
    "audio/ogg": "ogg",
    "audio/opus": "opus",
    "audio/pcm": "pcm",
    "audio/webm": "webm",
}
# Names of the tools that Amazon's own models run. The names of other tools are sent unchanged.
SERVER_TOOLS = {
    "web_search": {"name": "nova_grounding"},
    "code_execution": {"name": "nova_code_interpreter"},
}
_MORE = "additionalModelRequestFields"
NAMED = "additionalModelResponseFieldPaths"  # the fields of the model that the reply shall have
DROPPED = "/input_transformations"  # which thinking the server removed
_OBJECTS = frozenset({"inferenceConfig", _MORE, "outputConfig", "thinking", "toolConfig"})


def structured_path(request: m.Request, home: m.Issuer, quirks: Quirks) -> _Path:
    """Return how the schema is requested: by the wire's field, a forced tool, or the prompt."""
    if quirks.structured == "native" and fits_format(request.response_schema or {}):
        return "native"
    tools = request.tools or request.server_tools or "toolConfig" in request.config.extras
    if quirks.structured == "prompt" or quirks.forced_tools == "no" or tools:
        return "prompt"
    writer = ConverseWriter(request, home, quirks, None, Notes())
    return "prompt" if writer.requests_thinking() else "tool"


class ConverseWriter(ThinkingWriter):
    """Write the body of a request."""

    quirks: Quirks  # pyright: ignore[reportIncompatibleVariableOverride]
    root = _MORE

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {}
        if settings := write_settings(self.config, SETTINGS):
            body["inferenceConfig"] = settings
        body |= self.reasoning_fields()
        if (schema := self.schema_for("native")) is not None:
            body["outputConfig"] = {"textFormat": self._text_format(schema)}
        cache = self.cache("ttl", default=self.quirks.cache == "auto")
        drawn = self._draw()
        place_marks(drawn, cache, self.notes, prefix=self.quirks.cache == "system+tools")
        self._write_tools(body, drawn["tools"])
        if drawn["system"]:
            body["system"] = [each for block in drawn["system"] for each in _write_block(block)]
        merge_extras(body, self.config.extras, objects=_OBJECTS)
        if self.binds():
            self._bind(body)
        body["messages"] = [_write_turn(turn) for turn in drawn["messages"]]
        return body

    def reasoning_fields(self) -> dict[str, Any]:
        fields = self.reasoning(self.config.max_tokens) or {}
        choose_display(self.inner(fields), self.inner(self.config.extras))
        return fields

    def _text_format(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema in the form of the wire, which has it as JSON text."""
        form = json_text(ordered_json(project_format(schema, self.notes)))
        named = {"name": schema_name(schema), "schema": form}
        return {"type": "json_schema", "structure": {"jsonSchema": named}}

    def _bind(self, body: dict[str, Any]) -> None:
        """Ask the server to drop thinking whose prefix has changed.

        Bedrock has the beta in the body. The form is that of its Messages API, which has a name of
        its own for the field and answers "Extra inputs are not permitted" to Anthropic's name
        (vercel/ai#20728; docs.aws.amazon.com/bedrock, claude-messages-thinking-block-binding; seen
        2026-11-19); for Converse it is not documented. A reply of Converse has the fields of the
        model's own reply that the request names; a field that the model lacks is ignored
        (docs.aws.amazon.com/bedrock, API_runtime_Converse, additionalModelResponseFieldPaths).
        """
        fields = body.setdefault(_MORE, {})
        bind(fields, "mismatch_behavior")
        betas = [*fields.get("anthropic_beta", ()), BINDING]
        fields["anthropic_beta"] = list(dict.fromkeys(betas))
        body[NAMED] = list(dict.fromkeys([*body.get(NAMED, ()), DROPPED]))

    def _draw(self) -> dict[str, Any]:
        """Return tools, system prompt and turns in the anthropic wire's form.

        Cache breakpoints are added to this form before it is converted to Converse.
        """
        request = self.request
        notes = self.notes
        quirks = self.quirks
        rules = TurnRules(
            result_media=quirks.result_media,
            cache=quirks.cache,
            name_rule=quirks.name_rule,
            prefill=quirks.prefill,
            late_system=quirks.late_system,
        )
        conversation = _Writer(request, self.home, rules, notes)
        conversation.silent_from = self.silent_from()
        tools = [_write_tool(tool, f"tools[{at}]", notes) for at, tool in enumerate(request.tools)]
        if (schema := self.schema_for("tool")) is not None:
            about = "Give your whole answer as the input of this tool."
            tool = m.Tool(schema_name(schema), about, parameters=dict(schema))
            tools = [_write_tool(tool, "response_schema", notes)]
        system = [
            {"type": "text", "text": each.content, **mark_of(each)}
            for each in conversation.leading
        ]
        if (directive := self.directive()) is not None:
            system.append({"type": "text", "text": directive})
        server_tools = self.server_tools(SERVER_TOOLS, lambda name: {"name": name})
        tools += [{"systemTool": tool} for tool in server_tools]
        return {"tools": tools, "system": system, "messages": conversation.write()}

    def _write_tools(self, body: dict[str, Any], tools: list[dict[str, Any]]) -> None:
        """Write the tools and the tool choice.

        The wire has no tool choice "none", so a request with that choice is sent without tools.
        """
        choice = self.request.tool_choice
        if self.path == "tool":
            choice = m.ForceTool(tools[0]["toolSpec"]["name"])
        elif choice == "none" and tools:
            why = "the wire cannot forbid a call; no tool is sent"
            self.notes.rewrite("tool_choice", "tools_omitted", why)
            return
        if tools:
            listed = [each for tool in tools for each in _split_mark(tool)]
            chosen = {} if choice is None else {"toolChoice": _write_choice(choice)}
            body["toolConfig"] = {"tools": listed, **chosen}
        elif choice is not None:
            why = "there is no tool to choose"
            self.notes.rewrite("tool_choice", "tool_choice_omitted", why)


def _write_tool(tool: m.Tool, path: str, notes: Notes) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": tool.name}
    if tool.description:
        spec["description"] = tool.description
    # Recorded exchanges with strict tools exist only for Claude, so its schema subset is used for
    # all models.
    schema = project_strict(tool, notes, path)
    if schema is not None:
        spec["strict"] = True
    written = ordered_json(tool.parameters if schema is None else schema)
    return {"toolSpec": {**spec, "inputSchema": {"json": written}}}


def _write_choice(choice: m.ToolChoice) -> dict[str, Any]:
    if isinstance(choice, m.ForceTool):
        return {"tool": {"name": choice.name}}
    return {"any" if choice == "required" else "auto": {}}


# --- writing content blocks of users and tools -------------------------------------------------


class _Writer(TurnWriter):
    """Write turns in the anthropic wire's form.

    Images, documents and audio are already encoded for Converse, in the field ``converse``.
    """

    def part(self, block: m.UserBlock, path: str) -> dict[str, Any]:
        if isinstance(block, m.Text):
            return super().part(block, path)
        if isinstance(block, m.Audio):
            return {"type": "medium", "converse": {"audio": _write_medium(block, AUDIO, path)}}
        if isinstance(block, m.Image):
            made: dict[str, Any] = {"image": _write_medium(block, IMAGES, path)}
        else:
            name = self._document_name(block, path)
            made = {"document": {"name": name, **_write_medium(block, DOCUMENTS, path)}}
        return {"type": "medium", "converse": made, **mark_of(block)}

    def _document_name(self, block: m.Document, path: str) -> str:
        given = block.name or "document"
        name = re.sub(r"[^A-Za-z0-9 ()\[\]-]+", "-", given).strip("-")[:200] or "document"
        if name != given:
            why = "the wire takes letters, digits and hyphens"
            self.notes.rewrite(f"{path}.name", "name_projected", why)
        return name


def _write_medium(
    block: m.Image | m.Document | m.Audio, kinds: Mapping[str, str], path: str
) -> dict[str, Any]:
    kind, data = read_inline(block) or (block.media_type, None)
    word = kinds.get(kind or "")
    if word is None:
        formats = ", ".join(dict.fromkeys(kinds.values()))
        raise UnsupportedContentError(
            f"{path}: this wire takes {formats}, not {quote(kind or '')}"
        )
    if data is not None:
        return {"format": word, "source": {"bytes": data}}
    if isinstance(block.source, m.Url) and block.source.url.startswith("s3://"):
        return {"format": word, "source": {"s3Location": {"uri": block.source.url}}}
    raise UnsupportedContentError(f"{path}: this wire takes media inline, or from S3")


# --- converting turns of the Messages API to Converse ------------------------------------------


def _write_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    content = turn["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {
        "role": turn["role"],
        "content": [each for block in blocks for each in _write_block(block)],
    }


def _split_mark(block: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a block, followed by a cache point if the block has a cache mark."""
    mark = block.pop("cache_control", None)
    if mark is None:
        return [block]
    kept = {"ttl": mark["ttl"]} if "ttl" in mark else {}
    return [block, {"cachePoint": {"type": "default", **kept}}]


def _write_block(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = dict(block)
    mark = {"cache_control": fields.pop("cache_control")} if "cache_control" in fields else {}
    try:
        return _split_mark({**_convert(fields.pop("type"), fields), **mark})
    except (KeyError, TypeError):
        # Opaque data that no reply of this wire contains is sent unchanged; the server may reject
        # it.
        return [dict(block)]


def _convert(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    if kind == "medium":
        made: dict[str, Any] = fields["converse"]
        return made
    if kind == "text":
        if citations := fields.get("citations"):
            return {
                "citationsContent": {"content": [{"text": fields["text"]}], "citations": citations}
            }
        return {"text": fields["text"]}
    if kind == "tool_use":
        return {
            "toolUse": {
                "toolUseId": fields["id"],
                "name": fields["name"],
                "input": fields["input"],
            }
        }
    if kind == "tool_result":
        return {"toolResult": _convert_result(fields)}
    if kind == "thinking":
        text = {"text": fields["thinking"], "signature": fields["signature"]}
        return {"reasoningContent": {"reasoningText": text}}
    if kind == "redacted_thinking":
        return {"reasoningContent": {"redactedContent": fields["data"]}}
    if "input" in fields:  # a server-side tool call whose input arrived in fragments
        return {kind: {**fields[kind], "input": fields["input"]}}
    return {kind: fields[kind]}


def _convert_result(fields: dict[str, Any]) -> dict[str, Any]:
    content = fields.get("content", "")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    written = [_convert(block["type"], block) for block in blocks]
    status = {"status": "error"} if fields.get("is_error") else {}
    return {"toolUseId": fields["tool_use_id"], "content": written, **status}
