"""Decode requests of the Gemini wire.

The model and the mode are in the path. If calls have no ids, a result belongs to the first call of
the same name that has no result yet. Both get an id that is derived from the position of the call.
"""

from __future__ import annotations

from typing import Any

from ...errors import InvalidRequestError, UnsupportedContentError
from ...messages import (
    Assistant,
    AssistantBlock,
    Audio,
    Continuity,
    Document,
    ForceTool,
    Image,
    Inline,
    Issuer,
    Message,
    Opaque,
    PromptCache,
    Request,
    RuntimeConfig,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Url,
    User,
    UserBlock,
)
from ...validate.fields import Fields
from ..fields import Losses, read_body, read_stops
from ..json import json_text
from ..seal import unseal
from ..server import Asked
from .names import to_camel, to_standard_base64
from .reply import read_medium
from .request import LEVELS, SETTINGS

_ISSUER = Issuer("gemini")
# The verb in the path decides whether the reply is streamed.
_VERBS = {"generateContent": False, "streamGenerateContent": True}
# Root fields that ``Request`` does not have. They become extras with unchanged values.
_ROOT = ("safetySettings", "labels", "serviceTier", "store")
_MODES: dict[str, ToolChoice] = {
    "AUTO": "auto",
    "ANY": "required",
    "NONE": "none",
    "VALIDATED": "auto",
}


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode a request. The model and the mode are in the URL path."""
    _, found, name = path.rpartition("/models/")
    model, _, verb = name.rpartition(":")
    if not found or not model or verb not in _VERBS:
        raise InvalidRequestError(
            "the path must end with models/NAME:generateContent or :streamGenerateContent"
        )
    # If the gateway has decoded the body, its field names are already in camel case.
    fields, losses = (
        read_body(to_camel(read_body(body).data) if isinstance(body, bytes) else body),
        Losses(),
    )
    messages = [*_read_system(fields), *_Reader().read(fields.inners("contents", required=True))]
    choice, allowed = _read_choice(fields)
    tools = [tool for tool in _read_tools(fields) if not allowed or tool.name in allowed]
    config, schema = _read_config(fields)
    fields.done()
    return Asked(
        Request(messages, tools, config, schema, choice, model, stream=_VERBS[verb]),
        losses.warnings,
    )


# --- reading settings of clients ---------------------------------------------------------------


def _read_config(fields: Fields) -> tuple[RuntimeConfig, dict[str, Any] | None]:
    inner = fields.inner("generationConfig") or Fields({}, "generationConfig")
    schema = inner.take("responseJsonSchema")
    if schema is not None:
        if not isinstance(schema, dict):
            inner.refuse("responseJsonSchema", "must be a JSON Schema")
        if inner.text("responseMimeType") != "application/json":
            inner.refuse("responseMimeType", "must be application/json with a schema")
    config = RuntimeConfig(
        inner.number("temperature"),
        inner.whole("maxOutputTokens"),
        inner.number("topP"),
        inner.whole("seed"),
        inner.number("frequencyPenalty"),
        inner.number("presencePenalty"),
        read_stops(inner, "stopSequences"),
        _read_thinking(inner),  # type: ignore[arg-type]
        _read_extras(fields, inner),
        _read_cache(fields),
    )
    return config, schema


def _read_extras(fields: Fields, inner: Fields) -> dict[str, Any]:
    """Return the request fields that become extras; their values stay unchanged.

    Call this function after all known settings have been read.
    """
    settings = {
        name if name in SETTINGS else f"generationConfig.{name}": value
        for name, value in inner.rest().items()
    }
    fields.take("model")  # a few clients repeat the model's name from the path in the body
    return settings | {
        name: value for name in _ROOT if (value := fields.take(name)) not in Fields.EMPTY
    }


def _read_cache(fields: Fields) -> PromptCache | None:
    handle = fields.text("cachedContent")
    return None if handle is None else PromptCache(auto=False, handle=handle)


def _read_thinking(inner: Fields) -> str | int | None:
    """Return the reasoning setting: a budget or a level.

    Other thinking fields become extras.
    """
    thinking = inner.inner("thinkingConfig")
    if thinking is None:
        return None
    budget, level = thinking.whole("thinkingBudget"), thinking.text("thinkingLevel")
    if level is not None and level.lower() not in LEVELS:
        thinking.refuse("thinkingLevel", f"must be one of {', '.join(LEVELS)}")
    if thinking.rest():
        inner.put("thinkingConfig", thinking.rest())
    if budget is not None:
        return "none" if budget == 0 else budget
    return None if level is None else level.lower()


def _read_tools(fields: Fields) -> list[Tool]:
    tools: list[Tool] = []
    for record in fields.inners("tools"):
        tools += [_read_tool(declared) for declared in record.inners("functionDeclarations")]
        # Server-side tools are rejected here; the gateway removes them from the body before it is
        # decoded.
        record.done()
    return tools


def _read_tool(record: Fields) -> Tool:
    name, described = record.need_text("name"), record.text("description") or ""
    schema = record.take("parametersJsonSchema") or record.take("parameters")
    record.done()
    if schema is None:
        return Tool(name, described)
    if not isinstance(schema, dict):
        record.refuse("parameters", "must be a JSON Schema")
    return Tool(name, described, _lower_types(schema))


def _lower_types(schema: Any) -> Any:
    """Return a schema with lower-case type names; this wire writes upper case, such as STRING."""
    if isinstance(schema, list):
        return [_lower_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) else _lower_types(value)
        for name, value in schema.items()
    }


def _read_choice(fields: Fields) -> tuple[ToolChoice | None, tuple[str, ...]]:
    """Return the tool choice, and the allowed tool names if they are limited."""
    record = fields.inner("toolConfig")
    inner = record.inner("functionCallingConfig") if record is not None else None
    if record is None or inner is None:
        return None, ()
    mode, names = inner.text("mode") or "AUTO", inner.texts("allowedFunctionNames") or ()
    inner.done()
    record.done()
    if mode not in _MODES:
        inner.refuse("mode", "must be AUTO, ANY, VALIDATED or NONE")
    if mode == "ANY" and len(names) == 1:
        return ForceTool(names[0]), ()
    return _MODES[mode], names


# --- reading the conversation of clients -------------------------------------------------------


def _read_system(fields: Fields) -> list[System]:
    record = fields.inner("systemInstruction")
    if record is None:
        return []
    record.take("role")
    texts = []
    for inner in record.inners("parts"):
        texts.append(inner.need_text("text"))
        _finish_part(inner)
    record.done()
    said = "".join(texts)
    return [System(said)] if said else []


class _Reader:
    """Read turns, and keep track of the calls that have no result yet."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, str]] = []  # the id and name of each call without a result
        self._count = 0

    def read(self, contents: list[Fields]) -> list[Message]:
        messages: list[Message] = []
        for record in contents:
            role, parts = record.text("role") or "user", record.inners("parts", required=True)
            record.done()
            if role == "model":
                messages.append(Assistant([self._said(part) for part in parts]))
            elif role in ("user", "function"):
                messages += self._user(parts)
            else:
                record.refuse("role", "must be user or model")
        return messages

    def _user(self, parts: list[Fields]) -> list[Message]:
        messages: list[Message] = []
        words: list[UserBlock] = []
        for record in parts:
            if "functionResponse" in record:
                if words:
                    messages.append(_user(words))
                    words = []
                messages.append(self._result(record))
            else:
                words.append(_read_block(record))
        return [*messages, _user(words)] if words or not messages else messages

    def _said(self, record: Fields) -> AssistantBlock:
        signature = record.text("thoughtSignature")
        state = None
        if signature:
            made, issuer = unseal(signature, "gemini")
            state = Continuity(made, issuer=issuer)
        if (call := record.inner("functionCall")) is not None:
            record.take("thought")
            record.done()
            return self._call(call, state)
        if "text" in record and not set(record.rest()) - {"text", "thought"}:
            text = record.need_text("text")
            return (
                Thinking(text, state or Continuity(issuer=_ISSUER))
                if record.flag("thought")
                else Text(text, state)
            )
        found = Continuity(issuer=_ISSUER) if state is None else state
        medium = read_medium(dict(record.data), found.signature or None, found.issuer)
        return medium or Opaque(record.data, Continuity(issuer=_ISSUER))

    def _call(self, call: Fields, state: Continuity | None) -> ToolCall:
        name, arguments, call_id = call.need_text("name"), call.take("args"), call.text("id")
        call.done()
        if not isinstance(arguments, dict | None):
            call.refuse("args", "must be an object")
        self._count += 1
        # Clients may omit the id. The client codec recognises a generated id by its form, and does
        # not send it to a provider of this wire.
        made = call_id or f"call_{self._count:026d}"
        self._waiting.append((made, name))
        return ToolCall(made, name, arguments or {}, state)

    def _result(self, record: Fields) -> ToolResult:
        inner = record.need_inner("functionResponse")
        _finish_part(record)
        name, given, response = inner.need_text("name"), inner.text("id"), inner.take("response")
        media = inner.inners("parts")
        inner.done()
        match = next(
            (
                each
                for each in self._waiting
                if each[0] == given or (given is None and each[1] == name)
            ),
            None,
        )
        if match is None:
            inner.refuse("name", "answers no call")
        self._waiting.remove(match)
        failed = isinstance(response, dict) and list(response) == ["error"]
        text = _response_text(response)
        blocks = [_read_block(part) for part in media]
        if not blocks:
            return ToolResult(match[0], text, failed)
        return ToolResult(match[0], [*([Text(text)] if text else []), *blocks], failed)


def _response_text(response: Any) -> str:
    """Return a function response as text.

    A response with one string, such as ``{"result": "..."}``, becomes that string; any other
    response becomes JSON.
    """
    if isinstance(response, dict) and len(response) == 1:
        only = response.get("result", response.get("error", response.get("output")))
        if isinstance(only, str):
            return only
    return json_text(response)


def _user(blocks: list[UserBlock]) -> User:
    only = blocks[0] if len(blocks) == 1 else None
    return User(only.text if isinstance(only, Text) else blocks)


def _finish_part(record: Fields) -> None:
    """Reject unknown fields, except ``thought: false``, which some SDKs write on every part."""
    if record.flag("thought"):
        record.refuse("thought", "can be true in a part of the model only")
    record.done()


def _read_block(record: Fields) -> UserBlock:
    block: UserBlock
    if "text" in record:
        block = Text(record.need_text("text"))
    elif (data := record.inner("inlineData")) is not None:
        kind, source = (
            data.need_text("mimeType"),
            Inline(to_standard_base64(data.need_text("data"))),
        )
        data.done()
        block = _read_medium(source, kind)
    elif (file := record.inner("fileData")) is not None:
        kind, place = file.text("mimeType") or "application/pdf", Url(file.need_text("fileUri"))
        file.done()
        block = _read_medium(place, kind)
    else:
        raise UnsupportedContentError(f"{record.where}: a part of this kind is not supported")
    _finish_part(record)
    return block


def _read_medium(source: Url | Inline, kind: str) -> Image | Document | Audio:
    if kind.startswith("image/"):
        return Image(source, kind)
    return Audio(source, kind) if kind.startswith("audio/") else Document(source, kind)
