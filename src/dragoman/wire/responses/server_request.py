"""Decode requests of the Responses wire: the settings and the conversation.

Consecutive items that the model wrote become one assistant message. Opaque items stay unchanged,
for an endpoint of this wire.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...errors import InvalidRequestError, UnsupportedContentError, quote
from ...events import read_object
from ...messages import (
    DETAILS,
    EFFORTS,
    Assistant,
    AssistantBlock,
    Continuity,
    Document,
    Image,
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
    Url,
    User,
    UserBlock,
)
from ...validate import parse_tool_choice
from ...validate.fields import Fields
from ..fields import Losses, read_body, read_key, read_media_url, read_schema
from ..seal import read_opaque, read_sealed
from ..server import Asked
from .echo import write_echo
from .output import read_picture

_ISSUER = Issuer("responses")
_STATE = ("previous_response_id", "conversation", "background", "prompt")
_ENCRYPTED = "reasoning.encrypted_content"


def read_request(body: bytes | dict[str, Any]) -> Asked:
    """Decode the body of a request."""
    fields, losses = read_body(body), Losses()
    model, stream = fields.need_text("model"), fields.flag("stream") or False
    for name in _STATE:
        if fields.rest().get(name):
            fields.refuse(name, "cannot be used: nothing is kept here between calls")
    if fields.flag("store"):
        losses.drop("store", "store_dropped", "nothing is kept here between calls")
    messages = [*_read_instructions(fields), *_read_input(fields)]
    tools = _read_tools(fields, losses)
    choice = _read_choice(fields)
    schema = _read_format(fields, losses)
    config = _read_config(fields, losses)
    request = Request(messages, tools, config, schema, choice, model, stream=stream)
    # If the body is decoded already, the gateway may have changed it. Then the gateway itself
    # repeats the original fields in the reply.
    return Asked(
        request, losses.warnings, echo=write_echo(fields.data) if isinstance(body, bytes) else {}
    )


# --- reading settings of clients ---------------------------------------------------------------


def _read_config(fields: Fields, losses: Losses) -> RuntimeConfig:
    _ignore_defaults(fields)
    reasoning = fields.inner("reasoning") or Fields({}, "reasoning")
    effort = reasoning.choice("effort", EFFORTS)
    losses.drop_fields(
        reasoning,
        ("summary", "generate_summary"),
        "which thoughts are shown is a setting of the endpoint",
    )
    reasoning.done()
    return RuntimeConfig(
        fields.number("temperature"),
        fields.whole("max_output_tokens"),
        fields.number("top_p"),
        reasoning=effort,
        cache=read_key(fields),
        extras=fields.rest(),
    )


def _ignore_defaults(fields: Fields) -> None:
    """Ignore fields whose values request the default behaviour."""
    include = [wanted for wanted in fields.items("include") or () if wanted != _ENCRYPTED]
    if include:
        fields.put("include", include)
    if fields.rest().get("truncation") == "disabled":
        fields.take("truncation")
    options = fields.inner("stream_options")
    if options is not None:
        options.flag("include_obfuscation")
        options.done()


def _read_tools(fields: Fields, losses: Losses) -> list[Tool]:
    tools: list[Tool] = []
    theirs: list[Any] = []
    for record in fields.inners("tools"):
        if record.text("type") != "function":
            theirs.append(record.data)
            continue
        strict = record.flag("strict")
        name, described, schema = (
            record.need_text("name"),
            record.text("description"),
            record.take("parameters"),
        )
        if schema is not None and not isinstance(schema, dict):
            record.refuse("parameters", "must be a JSON Schema")
        record.done()
        made = {} if schema is None else {"parameters": schema}
        tools.append(Tool(name, described or "", strict=strict, **made))
    if theirs:
        fields.put("tools", theirs)
    return tools


def _read_choice(fields: Fields) -> Any:
    choice = fields.take("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        record = Fields(choice, "tool_choice")
        record.take("type")
        name = record.need_text("name")
        record.done()
        choice = {"type": "tool", "name": name}
    return parse_tool_choice(choice)


def _read_format(fields: Fields, losses: Losses) -> dict[str, Any] | None:
    text = fields.inner("text")
    if text is None:
        return None
    form = text.take("format")
    schema = None
    inner = Fields(form or {}, "text.format")
    kind = inner.text("type")
    if kind == "json_schema":
        inner.flag("strict")
        losses.drop_fields(
            inner, ["description"], "the description inside the schema is sent, this one is not"
        )
        name = inner.need_text("name")
        schema = read_schema(inner.take("schema"), name, "text.format.schema", losses)
        inner.done()
    elif kind not in (None, "text"):
        text.put("format", form)
    if text.rest():
        fields.put("text", text.rest())
    return schema


# --- reading input items of clients ------------------------------------------------------------


def _read_instructions(fields: Fields) -> list[System]:
    said = fields.text("instructions")
    return [System(said)] if said else []


def _read_input(fields: Fields) -> list[Message]:
    given = fields.take("input")
    if isinstance(given, str):
        return [User(given)]
    if not isinstance(given, list):
        fields.refuse("input", "must be text or a list of items")
    messages: list[Message] = []
    turn: list[AssistantBlock] = []
    for at, item in enumerate(given):
        read = _read_item(Fields(item, f"input[{at}]"), item)
        if isinstance(read, list):
            turn += read
            continue
        if turn:
            messages.append(Assistant(turn))
            turn = []
        messages.append(read)
    return [*messages, Assistant(turn)] if turn else messages


def _read_item(record: Fields, item: dict[str, Any]) -> Message | list[AssistantBlock]:
    """Return an input item as a message, or as blocks of the current assistant turn."""
    kind = record.text("type") or "message"
    if kind == "message":
        return _read_message(record)
    if kind == "function_call":
        return [_read_call(record)]
    if kind == "function_call_output":
        return _read_result(record)
    if kind == "reasoning":
        channels = [item.get("summary"), item.get("content")]
        parts = [part for channel in channels if isinstance(channel, list) for part in channel]
        texts = [
            part["text"]
            for part in parts
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        return [Thinking("\n\n".join(texts), Continuity(opaque=item, issuer=_ISSUER))]
    if kind == "item_reference":
        raise InvalidRequestError(
            f"{record.at('type')}: an item cannot be referred to, nothing is kept here"
        )
    if kind == "opaque" and isinstance(item.get("issuer"), dict):
        return [read_opaque(record)]
    if (picture := read_picture(item, _ISSUER)) is None:
        return [Opaque(item, Continuity(issuer=_ISSUER))]
    if item.get("continuity") is not None:  # an image from another wire, which the gateway sealed
        state = read_sealed(item["continuity"], Continuity, record.at("continuity"))
        picture = replace(picture, continuity=state)
    return [picture]


def _read_message(record: Fields) -> Message | list[AssistantBlock]:
    role, content = record.need_text("role"), record.take("content")
    if not isinstance(content, str | list):
        record.refuse("content", "must be text or a list of parts")
    record.take("id")
    record.take("status")
    if role == "assistant":
        phase = record.take("phase")
        record.done()
        return _read_said(content, record.at("content"), phase)
    record.done()
    if role in ("system", "developer"):
        return System(
            content if isinstance(content, str) else "".join(_texts(content, record.at("content")))
        )
    if role != "user":
        record.refuse("role", "must be user, assistant, system or developer")
    return User(
        content if isinstance(content, str) else _read_parts(content, record.at("content"))
    )


def _texts(content: list[Any], path: str) -> list[str]:
    blocks = _read_parts(content, path)
    if not all(isinstance(block, Text) for block in blocks):
        raise UnsupportedContentError(f"{path}: instructions are text only")
    return [block.text for block in blocks if isinstance(block, Text)]


def _read_said(content: str | list[Any], path: str, phase: Any) -> list[AssistantBlock]:
    parts = [{"type": "output_text", "text": content}] if isinstance(content, str) else content
    blocks: list[AssistantBlock] = []
    for at, part in enumerate(parts):
        record = Fields(part, f"{path}[{at}]")
        kind = record.need_text("type")
        if kind == "refusal":
            blocks.append(Text(record.need_text("refusal")))
            record.done()
            continue
        if kind != "output_text":
            raise UnsupportedContentError(
                f"{record.at('type')}: content of type {quote(kind)} is not supported"
            )
        text = record.need_text("text")
        own = {"annotations": record.take("annotations"), "phase": phase}
        record.take("logprobs")
        record.done()
        state = {name: value for name, value in own.items() if value}
        blocks.append(Text(text, Continuity(opaque=state, issuer=_ISSUER) if state else None))
    return blocks


def _read_call(record: Fields) -> ToolCall:
    call_id, name, text = (
        record.need_text("call_id"),
        record.need_text("name"),
        record.need_text("arguments"),
    )
    arguments = read_object(text) if text.strip() else {}
    if arguments is None:
        record.refuse("arguments", "is not a JSON object")
    record.take("id")
    record.take("status")
    own = record.rest()
    return ToolCall(
        call_id, name, arguments, Continuity(opaque=own, issuer=_ISSUER) if own else None
    )


def _read_result(record: Fields) -> ToolResult:
    call_id, output = record.need_text("call_id"), record.take("output")
    record.take("id")
    record.take("status")
    record.done()
    if isinstance(output, str):
        return ToolResult(call_id, output)
    if not isinstance(output, list):
        record.refuse("output", "must be text or a list of parts")
    return ToolResult(call_id, _read_parts(output, record.at("output")))


def _read_parts(content: list[Any], path: str) -> list[UserBlock]:
    return [_read_part(Fields(part, f"{path}[{at}]")) for at, part in enumerate(content)]


def _read_part(record: Fields) -> UserBlock:
    kind = record.need_text("type")
    block: UserBlock
    if kind in ("input_text", "output_text", "text"):
        block = Text(record.need_text("text"))
    elif kind == "input_image":
        source, media_type = read_media_url(record.need_text("image_url"))
        block = Image(source, media_type, record.choice("detail", DETAILS))
    elif kind == "input_file":
        block = _read_file(record)
    else:
        raise UnsupportedContentError(
            f"{record.at('type')}: content of type {quote(kind)} is not supported"
        )
    record.done()
    return block


def _read_file(record: Fields) -> Document:
    name, url = record.text("filename"), record.text("file_url")
    if url is not None:
        return Document(Url(url), name=name)
    source, media_type = read_media_url(record.need_text("file_data"))
    if media_type is None:
        record.refuse("file_data", "must be a base64 data URL")
    return Document(source, media_type, name)
