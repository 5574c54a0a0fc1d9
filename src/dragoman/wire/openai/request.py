"""Encode requests of the openai wire, with workarounds for features that a server lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from ... import messages as m
from ...errors import UnsupportedContentError, quote
from ...validate.data_url import read_inline
from ..cache_marks import mark_end, mark_of, name_breakpoints, place_marks
from ..caching import has_marks, key_of, read_cache, write_key
from ..codec import Notes
from ..continuity import is_ours
from ..conversation import FieldWriter
from ..ids import IdMap
from ..json import json_text, merge_extras, ordered_json
from ..reasoning import merge_fields
from ..request import RequestWriter, split_system
from ..schema import closed_object
from ..seal import has_state
from ..settings import write_settings
from ..strict import choose_strict, schema_format, write_function
from ..urls import media_url
from .attachments import write_pictures
from .quirks import Quirks

SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
}


class ChatWriter(RequestWriter):
    """Write the body of a request, with workarounds for features that a server lacks."""

    def body(self) -> dict[str, Any]:
        request = self.request
        quirks = self.quirks
        notes = self.notes
        body: dict[str, Any] = {"model": self.home.model}
        directives: list[str] = []
        if request.tools or request.tool_choice is not None or request.response_schema is not None:
            directives = self._write_structure(body)
        reasons = self._write_config(body)
        if request.server_tools:
            for tool in self.server_tools({"web_search": {}}):
                # Models with built-in web search read their options from this field.
                body["web_search_options"] = tool
        cache = self._write_cache(body)
        if request.stream:
            body["stream"] = True
            if quirks.stream_usage:
                body["stream_options"] = {"include_usage": True}
        breaks = self._has_breakpoints()
        self.marks_cache = breaks or quirks.cache_control
        if breaks or (cache is None and quirks.cache_control):
            quirks = replace(quirks, cache_control=breaks)
        if quirks.reasoning_required and not reasons:
            quirks = replace(quirks, reasoning_required=False)
        written = _write_messages(request, self.home, quirks, directives, notes)
        if breaks:
            name_breakpoints(written, notes)
        elif cache is not None and quirks.cache_control:
            written = [
                {"role": "user", "content": each.content} if isinstance(each, m.User) else each
                for each in written
            ]
            place_marks({"messages": written}, replace(cache, ttl=None), notes)
        self._write_extras(body, written)
        body["messages"] = written
        return body

    def _has_breakpoints(self) -> bool:
        """Return whether the marks for the prompt cache become breakpoints."""
        return (
            self.quirks.cache_form == "breakpoints"
            and self.config.cache != "off"
            and has_marks(self.request)
        )

    def _write_cache(self, body: dict[str, Any]) -> m.PromptCache | None:
        """Write the settings of the prompt cache; return them unless the call has none."""
        quirks = self.quirks
        if self.request.config.cache is None and not quirks.cache_control:
            return None
        cache = read_cache(self.request)
        key = None
        if not quirks.cache_header:
            key = key_of(cache, self.request, auto_key=quirks.cache_key)
        body |= write_key(cache, self.notes, key=key, form=quirks.cache_form)
        return cache

    def _write_extras(self, body: dict[str, Any], written: list[Any]) -> None:
        """Merge the caller's extras, and add the fields that every request has."""
        if self.config.extras:
            # The messages are set before the extras are merged, so that an extra named
            # ``messages`` is found to contradict them. They are then moved to the end of the body.
            body["messages"] = written
            self.note_raw_only("n", "logprobs")
            lists = frozenset({"stop"})
            merge_extras(body, self.extras(), lists=lists, objects=_JOINED, coerce=True)
            del body["messages"]
        for name, value in self.quirks.body.items():
            body.setdefault(name, value)

    def _write_structure(self, body: dict[str, Any]) -> list[str]:
        """Write the tools and the response schema; return instructions for the system prompt.

        They are necessary if the server's fields for tools or for the schema cannot be used.
        """
        request = self.request
        quirks = self.quirks
        directives = []
        if coerces(request, quirks):
            body["response_format"] = _response_format(_calls_schema(request), strict=False)
            directives.append(_calls_directive(request.tools))
        elif quirks.tools == "native":
            if request.tools:
                tools = enumerate(request.tools)
                body["tools"] = [_write_tool(tool, at, self.notes) for at, tool in tools]
                if not quirks.parallel_tools:
                    body["parallel_tool_calls"] = False
            if request.tool_choice is not None:
                body["tool_choice"] = _write_tool_choice(request.tool_choice)
        if (schema := self.schema_for("native")) is not None:
            body["response_format"] = _response_format(schema, strict=quirks.strict_schemas)
        if (directive := self.directive()) is not None:
            directives.append(directive)
        return directives

    def _write_config(self, body: dict[str, Any]) -> bool:
        """Write the caller's settings into the body; return whether the model reasons."""
        quirks: Quirks = self.quirks
        reasons = quirks.reasons(self.config.reasoning)
        if not (quirks.unary_reasoning or self.request.stream) and reasons:
            why = "the model reasons in streams only, so reasoning is off in this reply"
            path = "config.reasoning"
            self.notes.rewrite(path, "reasoning_off", why, loss=self.config.reasoning is not None)
            self.config = replace(self.config, reasoning="off")
            reasons = False
        if self.config is m.NO_CONFIG:
            return reasons
        names = {**SETTINGS, "max_tokens": quirks.max_tokens_field, "seed": quirks.seed_field}
        body |= write_settings(self.config, names)
        if self.config.reasoning is not None:
            merge_fields(body, self.effort(lambda effort: {"reasoning_effort": effort}))
        return reasons


def structured_path(request: m.Request, quirks: Quirks) -> Literal["native", "prompt"]:
    """Return how the response schema is requested: in the wire's own field, or in the prompt."""
    # If tool calls are requested through a schema, that schema occupies ``response_format``, so
    # the caller's response schema is put into the prompt.
    in_prompt = (
        quirks.structured == "prompt"
        or (request.tools and quirks.structured_with_tools == "prompt")
        or (request.stream and quirks.structured_streamed == "prompt")
        or coerces(request, quirks)
    )
    return "prompt" if in_prompt else "native"


def coerces(request: m.Request, quirks: Quirks) -> bool:
    """Return whether tool calls are requested through a JSON Schema (``tools="schema"``)."""
    return quirks.tools == "schema" and bool(request.tools) and request.tool_choice != "none"


# Objects that may have fields from both the reasoning setting and the extras.
_JOINED = frozenset({"chat_template_kwargs", "reasoning"})


def _write_tool(tool: m.Tool, at: int, notes: Notes) -> dict[str, Any]:
    """Return a tool in the form of this wire. ``strict`` is sent only if the caller sets it."""
    strict, parameters = choose_strict(tool, f"tools[{at}]", notes)
    return write_function(tool, parameters, **({} if strict is None else {"strict": strict}))


def _write_tool_choice(choice: Any) -> Any:
    """Return the tool choice in the form of this wire."""
    return (
        {"type": "function", "function": {"name": choice.name}}
        if isinstance(choice, m.ForceTool)
        else choice
    )


def _response_format(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema_format(schema, strict=strict)}


def _write_messages(
    request: m.Request, home: m.Issuer, quirks: Quirks, directives: list[str], notes: Notes
) -> list[Any]:
    """Return the messages in the form of this wire; add the directives to the system prompt."""
    prompt, rest = split_system(request.messages, quirks.late_system)
    system, _ = m.join_system(prompt)
    if directives:
        system = "\n\n".join([system, *directives] if system else directives)
    leading: list[Any] = (
        [] if system is None else [{"role": quirks.system_role, "content": system}]
    )
    if quirks.cache_control and any(message.cache for message in prompt):
        mark_end(leading[0])
    plain = _write_plain(rest)
    if quirks.send_reasoning and quirks.reasoning_required:
        # The writer adds the field to the turns of the model.
        plain = [each if isinstance(each, m.User) else None for each in plain]
    if all(plain):
        return leading + plain
    return leading + _Writer(request, home, quirks, notes, plain).write()


def _write_plain(messages: Sequence[m.Message]) -> list[m.User | dict[str, Any] | None]:
    """Encode each message that consists of one text; return ``None`` for each other message.

    Nearly all messages of a long history are one text, and need none of the later steps.
    """
    plain: list[m.User | dict[str, Any] | None] = []
    for message in messages:
        if type(message) is m.User:
            # The JSON encoding of a ``User`` with a string already has the form of this wire.
            plain.append(message if type(message.content) is str and not message.cache else None)
            continue
        if type(message) is m.Assistant:
            content = message.content
            if (
                len(content) == 1
                and type(block := content[0]) is m.Text
                and block.continuity is None
            ):
                plain.append({"role": "assistant", "content": block.text})
                continue
        plain.append(None)
    return plain


class _Writer(FieldWriter):
    """Write a conversation that does not consist of texts alone."""

    with_state = (m.Text, m.ToolCall)

    def __init__(
        self, request: m.Request, home: m.Issuer, quirks: Quirks, notes: Notes, plain: list[Any]
    ) -> None:
        super().__init__(request, home, quirks, notes)
        self._plain = plain
        self._ids = IdMap(quirks.id_rule, self.messages)
        self._answered = {
            message.tool_call_id for message in self.messages if type(message) is m.ToolResult
        }

    def write(self) -> list[Any]:
        written = self.written
        for at, simple in enumerate(self._plain):
            message = self.messages[at]
            if simple is None:
                self.message(message, self.first + at)
            else:
                if self.media or self.late:
                    self.close_group(before=type(message))
                written.append(simple)
        self.close_group()
        return written

    def system_message(self, message: m.System, path: str) -> None:
        self.written.append({"role": self.quirks.system_role, "content": message.content})
        if self.quirks.cache_control and message.cache:
            mark_end(self.written[-1])

    # --- messages of users and tools

    def user(self, message: m.User, path: str) -> None:
        content: Any = message.content
        if not isinstance(content, str):
            parts = self.parts(content, path)
            if len(content) == 1 and type(content[0]) is m.Text:
                content = content[0].text
            elif self.quirks.cache_control:
                pairs = zip(parts, content, strict=True)
                content = [{**part, **mark_of(block)} for part, block in pairs]
            else:
                content = parts
        self.written.append({"role": "user", "content": content})
        if self.quirks.cache_control:
            _mark_message(self.written[-1], message)

    def part(self, block: m.UserBlock, path: str) -> dict[str, Any]:
        if isinstance(block, m.Text):
            return {"type": "text", "text": block.text}
        if isinstance(block, m.Image):
            image: dict[str, Any] = {"url": media_url(block)}
            if block.detail is not None:
                image["detail"] = block.detail
            return {"type": "image_url", "image_url": image}
        if isinstance(block, m.Audio):
            return {"type": "input_audio", "input_audio": _write_audio(block, path)}
        if read_inline(block) is None:
            raise UnsupportedContentError(f"{path}: this wire takes documents inline, not by URL")
        file = {"filename": block.name or "document", "file_data": media_url(block)}
        return {"type": "file", "file": file}

    def check_medium(self, block: m.Image | m.Document | m.Audio, path: str) -> None:
        if self.quirks.result_media is None and not isinstance(block, m.Image):
            why = "this model is not known to take it in a tool's result"
            raise UnsupportedContentError(f"{path}: {why}")
        super().check_medium(block, path)

    def id_of_result(self, message: m.ToolResult, at: int) -> str:
        return self._ids.get(message.tool_call_id, message.tool_call_id)

    def result(self, message: m.ToolResult, sent: str, at: int, path: str) -> None:
        content = message.content
        if not isinstance(content, str):
            content = "".join(self.result_texts(content, path))
        if self.quirks.tools == "schema":
            self.written.append({"role": "user", "content": f"The tool answered: {content}"})
        else:
            self.written.append({"role": "tool", "tool_call_id": sent, "content": content})
        if self.quirks.cache_control:
            _mark_message(self.written[-1], message)

    # --- messages of the model

    def id_of_call(self, block: m.ToolCall, at: int, index: int) -> str | None:
        return self._ids.get(block.id, block.id) if block.id in self._answered else None

    def call(self, block: m.ToolCall, sent: str, path: str) -> tuple[str, Any]:
        arguments = json_text(block.arguments)
        if self.quirks.tools == "schema":
            text = f'{{"tool": {json_text(block.name)}, "arguments": {arguments}}}'
            return "late_texts", text
        function = {"name": block.name, "arguments": arguments}
        call: dict[str, Any] = {"id": sent, "type": "function", "function": function}
        if is_ours(block.continuity, self.home) and (extra := _extra_of(block)):
            call["extra_content"] = ordered_json(extra)
        return "tool_calls", call

    def note_state(self, block: m.AssistantBlock, path: str) -> None:
        if not (_extra_of(block) and is_ours(block.continuity, self.home)):
            super().note_state(block, path)

    def text(self, block: m.Text, path: str) -> tuple[str, Any]:
        return "texts", block.text

    def thinking(self, block: m.Thinking, path: str) -> Any:
        state = block.continuity
        opaque = state.opaque if state is not None and self._is_returned(block) else None
        if opaque and isinstance(opaque, list):
            return "details", (block.text, [ordered_json(detail) for detail in opaque])
        # Thinking must be complete, and its opaque state, if any, must come from this wire.
        is_plain = state is None or (state.replayable and not has_state(state))
        if self.quirks.send_reasoning and (is_plain or (state and _is_record(state))):
            return "thoughts", block.text
        return self.drop(block, path)

    def opaque(self, block: m.Opaque, path: str) -> Any:
        if block.continuity is None or not _is_record(block.continuity):
            return self.drop(block, path)
        # Omitting the record of a tool that this server ran itself is not a loss.
        why = "it is for the reader; the server does not take it back"
        return self.drop(block, path, why, loss=False)

    def picture(self, block: m.Image, path: str) -> Any:
        return ("pictures", block) if self._is_returned(block) else self.drop(block, path)

    def _is_returned(self, block: m.AssistantBlock) -> bool:
        """Return whether the opaque state of a block is sent back to its issuer."""
        return bool(self.quirks.reasoning_details) and is_ours(block.continuity, self.home)

    def fields(self, parts: dict[str, list[Any]]) -> dict[str, Any] | None:
        texts = [*parts.get("texts", ()), *parts.get("late_texts", ())]
        if not texts and "tool_calls" not in parts and "pictures" not in parts:
            return None
        written: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
        # OpenRouter demands the text next to the details for models that demand it
        # (UKGovernmentBEIS/inspect_ai#4079, LibreChat#13366).
        details = parts.get("details", ())
        thoughts = [*parts.get("thoughts", ()), *(text for text, _ in details if text)]
        if self.quirks.send_reasoning is not None:
            self._write_thoughts(written, "".join(thoughts))
        if details:
            written["reasoning_details"] = [each for _, part in details for each in part]
        if "pictures" in parts:
            written["images"] = write_pictures(parts["pictures"])
        if "tool_calls" in parts:
            written["tool_calls"] = parts["tool_calls"]
        return written

    def turn(self, parts: list[Any], at: int, path: str) -> bool:
        if not self.quirks.reasoning_beside_text:
            parts = self._separate_thoughts(parts, path)
        is_written = super().turn(parts, at, path)
        if is_written and self.quirks.call_placeholder:
            calls = self.written[-1].get("tool_calls", ())
            if calls and not any("extra_content" in call for call in calls):
                calls[0]["extra_content"] = self.quirks.call_placeholder
                why = "the model demands state of these calls that they never had"
                self.notes.rewrite(path, "signature_placeholder", why)
        return is_written

    def _separate_thoughts(self, parts: list[Any], path: str) -> list[Any]:
        """Leave out the thinking of a turn with calls and text."""
        if not {"thoughts", "texts", "tool_calls"} <= {kind for kind, _ in parts}:
            return parts
        why = "the model's template takes either text or thinking next to calls"
        self.notes.drop(path, "thinking_dropped", why)
        return [part for part in parts if part[0] != "thoughts"]

    def _write_thoughts(self, written: dict[str, Any], thoughts: str) -> None:
        """Write the thinking of a turn in the place that ``Quirks.send_reasoning`` names."""
        if not thoughts and self.quirks.reasoning_required:
            thoughts = " "
        if not thoughts:
            return
        if self.quirks.send_reasoning != "content":
            written[self.quirks.send_reasoning] = thoughts
            return
        # Mistral: case openai/quirk-thinking-in-the-content
        thinking = [{"type": "text", "text": thoughts}]
        parts = [{"type": "thinking", "thinking": thinking, "closed": True}]
        if written["content"]:
            parts.append({"type": "text", "text": written["content"]})
        written["content"] = parts


def has_result_image(messages: Sequence[m.Message]) -> bool:
    """Return whether a tool result has an image."""
    return any(
        type(block) is m.Image
        for message in messages
        if type(message) is m.ToolResult and type(message.content) is not str
        for block in message.content
    )


def _mark_message(written: dict[str, Any], message: m.User | m.ToolResult) -> None:
    """Put a cache mark on the last part of a message, if the caller marked the message.

    A mark on a block counts as a mark on the message if the content is sent as one string.
    """
    blocks = () if isinstance(message.content, str) else message.content
    inside = isinstance(written["content"], str) and any(block.cache for block in blocks)
    if message.cache or inside:
        mark_end(written)


def _is_record(state: m.Continuity) -> bool:
    """Return whether opaque state is complete and came from this wire."""
    return state.replayable and state.issuer is not None and state.issuer.wire == "openai"


def _extra_of(block: m.AssistantBlock) -> Any:
    """Return the ``extra_content`` that a server attached to a call, if any.

    Gemini's signature is in it (case: openai/call-with-extra-content).
    """
    opaque = block.continuity.opaque if block.continuity is not None else None
    return opaque.get("extra_content") if isinstance(opaque, dict) else None


# The name that this wire uses for an audio format, by media type.
AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}


def _write_audio(block: m.Audio, path: str) -> dict[str, str]:
    found = read_inline(block)
    if found is None:
        raise UnsupportedContentError(f"{path}: this wire takes audio inline, not by URL")
    form = AUDIO_FORMATS.get((found[0] or "").lower())
    if form is None:
        raise UnsupportedContentError(
            f"{path}.media_type: this wire takes WAV and MP3, not {quote(found[0])}"
        )
    return {"data": found[1], "format": form}


# --- tool calls through a JSON Schema ----------------------------------------------------------


def _calls_schema(request: m.Request) -> dict[str, Any]:
    """Return a schema that allows calls of the tools and, unless a call is required, an answer."""
    chosen = request.tool_choice
    tools = [
        tool
        for tool in request.tools
        if not isinstance(chosen, m.ForceTool) or tool.name == chosen.name
    ]
    options = [
        closed_object(tool={"const": tool.name}, arguments=tool.parameters) for tool in tools
    ]
    if chosen in (None, "auto"):
        options.append(closed_object(answer={"type": "string"}))
    return options[0] if len(options) == 1 else {"anyOf": options}


def _calls_directive(tools: Sequence[m.Tool]) -> str:
    """Return the prompt instruction that asks the model for tool calls in JSON.

    It is for models whose chat template ignores tools.
    """
    listed = "\n".join(
        [
            f"- {tool.name}: {tool.description} Arguments: {json_text(tool.parameters)}"
            for tool in tools
        ]
    )
    return (
        f"You can use these tools:\n{listed}\n"
        'Reply with JSON only: {"tool": NAME, "arguments": {...}} to use a tool, '
        'or {"answer": TEXT} to answer without one.'
    )
