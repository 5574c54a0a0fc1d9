"""Encode requests of this wire, with workarounds for features that a server lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from ...errors import InvalidRequestError, UnsupportedContentError, UnsupportedFeatureError, quote
from ...messages import (
    NO_CONFIG,
    Assistant,
    AssistantBlock,
    Audio,
    Continuity,
    ForceTool,
    Image,
    Inline,
    Issuer,
    Message,
    Opaque,
    Request,
    RuntimeConfig,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
    UserBlock,
    join_system,
)
from ...reasoning import merge_fields
from ..caching import read_cache, write_key
from ..codec import Note, Notes
from ..continuity import drop_state, is_ours, note_state
from ..extras import note_raw_only
from ..ids import IdMap
from ..json import json_text, merge_extras, ordered_json
from ..media import fit_result, transcribe
from ..names import rename_calls
from ..reasoning import reasoning_fields
from ..schema import schema_directive, schema_name
from ..server_tools import write_server_tools
from ..strict import choose_strict, strict_form
from ..urls import media_url
from .marks import mark_end, mark_message, mark_part, place_marks
from .other_parts import write_pictures
from .quirks import Quirks


def write_request(
    request: Request,
    home: Issuer,
    quirks: Quirks,
    path: Literal["native", "prompt"] | None,
    notes: Notes,
) -> dict[str, Any]:
    """Return the body of a request.

    Messages come last, so that the body of the next turn begins with the same bytes.

    ``home`` is the issuer that receives the request; only opaque state that it issued is sent.
    ``path`` selects where the response schema is sent: ``native`` (its own field) or ``prompt``.
    """
    body: dict[str, Any] = {"model": home.model}
    messages = request.messages
    if request.tools or request.tool_choice is not None or request.response_schema is not None:
        _write_structure(body, request, quirks, path, notes)
        messages = _add_directives(request, quirks, path)
    _write_config(body, request.config, home, quirks, notes)
    if request.server_tools:
        for tool in write_server_tools(request.server_tools, {"web_search": {}}, None):
            # Models with built-in web search read their options from this field.
            body["web_search_options"] = tool
    cache = None
    if request.config.cache is not None or quirks.cache_control:
        cache = read_cache(request)
        body |= write_key(cache, request, notes, auto_key=quirks.cache_key)
    if request.stream:
        body["stream"] = True
        if quirks.stream_usage:
            body["stream_options"] = {"include_usage": True}
    if cache is None and quirks.cache_control:
        quirks = replace(quirks, cache_control=False)
    if messages is not request.messages:
        request = replace(request, messages=messages)
    written = _write_messages(request, quirks, notes, home if quirks.reasoning_details else None)
    if cache is not None and quirks.cache_control:
        place_marks(written, notes, auto=cache.auto)
    if request.config.extras:
        # The messages are set before the extras are merged, so that an extra named ``messages`` is
        # found to contradict them. They are then moved to the end of the body.
        body["messages"] = written
        note_raw_only(request.config.extras, notes, choices="n", logprobs="logprobs")
        _add_extras(body, request)
        del body["messages"]
    body["messages"] = written
    return body


def structured_path(request: Request, quirks: Quirks) -> Literal["native", "prompt"] | None:
    """Return how the response schema is requested: in the wire's own field, or in the prompt."""
    if request.response_schema is None:
        return None
    # If tool calls are requested through a schema, that schema occupies ``response_format``, so
    # the caller's response schema is put into the prompt.
    return "prompt" if quirks.structured == "prompt" or coerces(request, quirks) else "native"


def coerces(request: Request, quirks: Quirks) -> bool:
    """Return whether tool calls are requested through a JSON Schema (``tools="schema"``)."""
    return quirks.tools == "schema" and bool(request.tools) and request.tool_choice != "none"


def _write_structure(
    body: dict[str, Any], request: Request, quirks: Quirks, path: str | None, notes: Notes
) -> None:
    if coerces(request, quirks):
        body["response_format"] = _response_format(_calls_schema(request), strict=False)
    elif quirks.tools == "native":
        if request.tools:
            body["tools"] = [_write_tool(tool, at, notes) for at, tool in enumerate(request.tools)]
            if not quirks.parallel_tools:
                body["parallel_tool_calls"] = False
        if request.tool_choice is not None:
            body["tool_choice"] = _write_tool_choice(request.tool_choice)
    if path == "native" and request.response_schema is not None:
        schema = request.response_schema
        body["response_format"] = _response_format(schema, strict=quirks.strict_schemas)


def _add_directives(request: Request, quirks: Quirks, path: str | None) -> Sequence[Message]:
    """Return the messages, with instructions for tool calls and the response schema if necessary.

    The instructions are added to the system prompt if the server's fields for tools or for the
    schema cannot be used.
    """
    directives = []
    if coerces(request, quirks):
        directives.append(_calls_directive(request.tools))
    if path == "prompt" and request.response_schema is not None:
        directives.append(schema_directive(request.response_schema))
    if not directives:
        return request.messages
    system, rest = join_system(request.messages)
    return (System("\n\n".join([*([system] if system else []), *directives])), *rest)


def _write_config(
    body: dict[str, Any], config: RuntimeConfig, home: Issuer, quirks: Quirks, notes: Notes
) -> None:
    """Write the caller's settings into the body, under the names of this wire."""
    if config is NO_CONFIG:
        return
    for name in ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty"):
        if (value := getattr(config, name)) is not None:
            body[name] = value
    if config.max_tokens is not None:
        body[quirks.max_tokens_field] = config.max_tokens
    if config.stop_sequences is not None:
        body["stop"] = list(config.stop_sequences)
    fields = reasoning_fields(config, quirks.reasoning, home, notes)
    if fields is not None:
        merge_fields(body, fields)
    elif isinstance(config.reasoning, str):
        body["reasoning_effort"] = "none" if config.reasoning == "off" else config.reasoning
    elif config.reasoning is not None:
        raise UnsupportedFeatureError(
            "config.reasoning: this wire takes an effort; a budget in tokens needs "
            "quirks.reasoning for this model"
        )


# Objects that may have fields from both the reasoning setting and the extras.
_JOINED = frozenset({"chat_template_kwargs", "reasoning"})


def _add_extras(body: dict[str, Any], request: Request) -> None:
    """Merge the caller's extras into the fields that the codec sets."""
    extras = request.config.extras
    if "stream" in extras and not request.stream:
        if extras["stream"] is not False:
            raise InvalidRequestError(
                "config.extras['stream'] contradicts this call; use stream() to stream"
            )
        extras = {name: value for name, value in extras.items() if name != "stream"}
    merge_extras(body, extras, lists=frozenset({"stop"}), objects=_JOINED, coerce=True)


def _write_tool(tool: Tool, at: int, notes: Notes) -> dict[str, Any]:
    """Return a tool in the form of this wire. ``strict`` is sent only if the caller sets it."""
    strict, parameters = choose_strict(tool, f"tools[{at}]", notes)
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    function["parameters"] = ordered_json(parameters)
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def _write_tool_choice(choice: Any) -> Any:
    """Return the tool choice in the form of this wire."""
    return (
        {"type": "function", "function": {"name": choice.name}}
        if isinstance(choice, ForceTool)
        else choice
    )


def _response_format(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return the field that requests a response schema.

    Strict decoding is requested if it is enabled and the schema allows it.
    """
    form = strict_form(schema) if strict else None
    written = ordered_json(schema if form is None else form)
    inner = {"name": schema_name(schema), "schema": written, "strict": form is not None}
    return {"type": "json_schema", "json_schema": inner}


def _write_messages(
    request: Request, quirks: Quirks, notes: Notes, home: Issuer | None = None
) -> list[Any]:
    """Return the messages in the form of this wire. Opaque state is sent back only to ``home``."""
    messages = request.messages
    system, rest = join_system(messages)
    first = len(messages) - len(rest)
    written: list[Any] = (
        [] if system is None else [{"role": quirks.system_role, "content": system}]
    )
    if quirks.cache_control and any(
        type(message) is System and message.cache for message in messages[:first]
    ):
        mark_end(written[0])
    plain = _write_plain(rest)
    if all(plain):
        return written + plain
    messages = rename_calls(request, notes).messages
    links = _Links(messages, quirks, home)
    for at, simple in enumerate(plain, first):
        message = messages[at]
        if links.media and type(message) is not ToolResult:
            written.append(links.take_media())
        if simple is not None:
            written.append(simple)
            continue
        if (one := _write_message(message, f"messages[{at}]", quirks, links, notes)) is not None:
            if quirks.cache_control:
                mark_message(one, message)
            written.append(one)
    if links.media:
        written.append(links.take_media())
    return written


def _write_plain(messages: Sequence[Message]) -> list[User | dict[str, Any] | None]:
    """Encode each message that consists of one text; return ``None`` for each other message.

    Nearly all messages of a long history are one text, and need none of the later steps.
    """
    plain: list[User | dict[str, Any] | None] = []
    for message in messages:
        if type(message) is User:
            # The JSON encoding of a ``User`` with a string already has the form of this wire.
            plain.append(message if type(message.content) is str and not message.cache else None)
            continue
        if type(message) is Assistant:
            content = message.content
            if (
                len(content) == 1
                and type(block := content[0]) is Text
                and block.continuity is None
            ):
                plain.append({"role": "assistant", "content": block.text})
                continue
        plain.append(None)
    return plain


class _Links:
    """The data that encoding a message needs: call ids, answered calls, and the target issuer.

    It also collects the media of tool results, which are sent after the results.
    """

    def __init__(self, messages: Sequence[Message], quirks: Quirks, home: Issuer | None) -> None:
        self.home = home
        self.ids = IdMap(quirks.id_rule, messages)
        self.answered = {
            message.tool_call_id for message in messages if type(message) is ToolResult
        }
        self.media: list[dict[str, Any]] = []

    def take_media(self) -> dict[str, Any]:
        """Return the user message with the media of the preceding tool results."""
        media, self.media = self.media, []
        return {"role": "user", "content": media}


def _write_message(
    message: Message, path: str, quirks: Quirks, links: _Links, notes: Notes
) -> dict[str, Any] | None:
    if type(message) is User:
        return _write_user(message, path, quirks, notes)
    if type(message) is Assistant:
        return _write_assistant(message, path, quirks, links, notes)
    if type(message) is ToolResult:
        return _write_result(message, path, quirks, links, notes)
    raise InvalidRequestError(f"{path}: a system message may only lead the conversation")


def _write_user(message: User, path: str, quirks: Quirks, notes: Notes) -> dict[str, Any]:
    blocks = message.content
    if isinstance(blocks, str):
        return {"role": "user", "content": blocks}
    note_state(message, path, notes)
    if len(blocks) == 1 and type(blocks[0]) is Text:
        return {"role": "user", "content": blocks[0].text}
    parts = [_write_block(block, f"{path}.content[{at}]") for at, block in enumerate(blocks)]
    if quirks.cache_control:
        parts = [mark_part(part, block) for part, block in zip(parts, blocks, strict=True)]
    return {"role": "user", "content": parts}


def _write_block(block: UserBlock, path: str) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Image):
        image: dict[str, Any] = {"url": media_url(block)}
        if block.detail is not None:
            image["detail"] = block.detail
        return {"type": "image_url", "image_url": image}
    if isinstance(block, Audio):
        return {"type": "input_audio", "input_audio": _write_audio(block, path)}
    if isinstance(block.source, Inline):
        return {
            "type": "file",
            "file": {"filename": block.name or "document", "file_data": media_url(block)},
        }
    raise UnsupportedContentError(f"{path}: this wire takes documents inline, not by URL")


# The name that this wire uses for an audio format, by media type.
AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}


def _write_audio(block: Audio, path: str) -> dict[str, str]:
    if not isinstance(block.source, Inline):
        raise UnsupportedContentError(f"{path}: this wire takes audio inline, not by URL")
    form = AUDIO_FORMATS.get((block.media_type or "").lower())
    if form is None:
        raise UnsupportedContentError(
            f"{path}.media_type: this wire takes WAV and MP3, not {quote(block.media_type)}"
        )
    return {"data": block.source.base64_data, "format": form}


def _write_assistant(
    message: Assistant, path: str, quirks: Quirks, links: _Links, notes: Notes
) -> dict[str, Any] | None:
    texts, thoughts, calls, details, pictures = _sort_blocks(message, path, quirks, links, notes)
    if not texts and not calls and not pictures:
        notes.drop(path, "message_dropped", "nothing of the message can be sent on this wire")
        return None
    if quirks.tools == "schema":
        texts += [_call_text(call) for call in calls]
    written: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    if thoughts and quirks.send_reasoning:
        written[quirks.send_reasoning] = "".join(thoughts)
    if details:
        written["reasoning_details"] = details
    if pictures:
        written["images"] = write_pictures(pictures)
    if calls and quirks.tools == "native":
        written["tool_calls"] = calls
    return written


_Sorted: TypeAlias = tuple[list[str], list[str], list[dict[str, Any]], list[Any], list[Image]]


def _sort_blocks(
    message: Assistant, path: str, quirks: Quirks, links: _Links, notes: Notes
) -> _Sorted:
    """Return the parts of a message, grouped by kind; note the blocks that cannot be expressed."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    details: list[Any] = []
    pictures: list[Image] = []
    for at, block in enumerate(message.content):
        where = f"{path}.content[{at}]"
        if type(block) is Text:
            if calls:
                notes.rewrite(
                    where,
                    "order_lost",
                    "text after a tool call is sent before it on this wire",
                    loss=True,
                )
            texts.append(block.text)
        elif type(block) is ToolCall and block.id in links.answered:
            if block.id in links.ids:
                notes.rewrite(
                    where,
                    "id_projected",
                    "the wire does not take this id; call and result get another",
                )
            calls.append(_write_call(block, links.ids))
        elif type(block) is ToolCall:
            # A call without a result, from a cancelled turn, is not sent, because hosted servers
            # reject any conversation that contains such a call.
            notes.drop(
                where, "dangling_call_dropped", "no result answers it, and the wire demands one"
            )
        elif type(block) is Thinking and (kept := _details_of(block, links.home)):
            details += kept
        elif type(block) is Thinking and quirks.send_reasoning and _may_return(block):
            thoughts.append(block.text)
        elif (
            type(block) is Image
            and links.home is not None
            and is_ours(block.continuity, links.home)
        ):
            pictures.append(block)
        elif type(block) is Audio:
            texts += [said] if (said := transcribe(block, where, notes)) else []
        else:
            _drop_block(block, where, notes)
        if type(block) in (Text, ToolCall) and block.continuity is not None:
            drop_state(
                block.continuity,
                "openai",
                where,
                notes,
                "opaque state of another issuer is not sent",
            )
    return texts, thoughts, calls, details, pictures


def _details_of(block: Thinking, home: Issuer | None) -> list[Any]:
    """Return the reasoning details of a thinking block, if the request goes to its issuer."""
    state = block.continuity
    if (
        state is None
        or home is None
        or not is_ours(state, home)
        or not isinstance(state.opaque, list)
    ):
        return []
    return [ordered_json(detail) for detail in state.opaque]


def _drop_block(block: AssistantBlock, path: str, notes: Notes) -> None:
    """Report a block that is not sent.

    Omitting the record of a tool that this server ran itself is not a loss.
    """
    state = block.continuity
    is_record = (
        type(block) is Opaque and state is not None and state.replayable and _is_of_wire(state)
    )
    why = (
        "it is for the reader; the server does not take it back"
        if is_record
        else "this wire has no place for it"
    )
    notes.items.append(
        Note("dropped", f"{block.__struct_config__.tag}_dropped", path, why, loss=not is_record)
    )


def _is_of_wire(state: Continuity) -> bool:
    return state.issuer is not None and state.issuer.wire == "openai"


def _may_return(block: Thinking) -> bool:
    """Return whether a thinking block may be sent back.

    It must be complete, and its opaque state, if any, must come from this wire.
    """
    state = block.continuity
    return state is None or (state.replayable and _is_of_wire(state))


def _write_call(call: ToolCall, ids: IdMap) -> dict[str, Any]:
    arguments = json_text(call.arguments)
    return {
        "id": ids[call.id],
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _write_result(
    message: ToolResult, path: str, quirks: Quirks, links: _Links, notes: Notes
) -> dict[str, Any]:
    ids = links.ids
    if isinstance(message.content, str):
        content = message.content
    else:
        fitted = fit_result(
            message, path, notes, _write_block, omit=quirks.result_media != "after"
        )
        note_state(fitted, path, notes)
        places = [(block, f"{path}.content[{at}]") for at, block in enumerate(fitted.content)]
        content = "".join([_write_part(*place, links, notes) for place in places])
    if message.is_error:
        notes.rewrite(
            f"{path}.is_error",
            "is_error_dropped",
            "this wire cannot mark a result as an error",
            loss=True,
        )
    if message.tool_call_id in ids:
        notes.rewrite(f"{path}.tool_call_id", "id_projected", "as in the call it answers")
    if quirks.tools == "schema":
        return {"role": "user", "content": f"The tool answered: {content}"}
    return {"role": "tool", "tool_call_id": ids[message.tool_call_id], "content": content}


def _write_part(block: Any, path: str, links: _Links, notes: Notes) -> str:
    """Return a block of a tool result as text.

    A medium becomes a numbered placeholder, and the medium itself is sent in the next message.
    """
    if isinstance(block, Text):
        return block.text
    name = f"{block.__struct_config__.tag} {len(links.media) // 2 + 1}"
    links.media += [{"type": "text", "text": f"[{name}]"}, _write_block(block, path)]
    notes.rewrite(
        path,
        f"{block.__struct_config__.tag}_moved",
        "sent as a message of the user after the results",
    )
    return f"[{name}: in the message after the results]"


# --- tool calls through a JSON Schema ----------------------------------------------------------


def _calls_schema(request: Request) -> dict[str, Any]:
    """Return a schema that allows calls of the tools and, unless a call is required, an answer."""
    chosen = request.tool_choice
    tools = [
        tool
        for tool in request.tools
        if not isinstance(chosen, ForceTool) or tool.name == chosen.name
    ]
    options: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"tool": {"const": tool.name}, "arguments": tool.parameters},
            "required": ["tool", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    if chosen in (None, "auto"):
        answer = {"answer": {"type": "string"}}
        options.append(
            {
                "type": "object",
                "properties": answer,
                "required": ["answer"],
                "additionalProperties": False,
            }
        )
    return options[0] if len(options) == 1 else {"anyOf": options}


def _calls_directive(tools: Sequence[Tool]) -> str:
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


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return f'{{"tool": {json_text(function["name"])}, "arguments": {function["arguments"]}}}'
