"""Decode requests of the Gemini wire.

The model and the mode are in the path. If calls have no ids, a result belongs to the first call of
the same name that has no result yet. Both get an id that is derived from the position of the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from msgspec.structs import replace

from ... import messages as m
from ...errors import InvalidRequestError
from ..fields import open_body, read_body, split_results
from ..json import json_text
from ..losses import ClientRecord, OfferedTool, merge
from ..rules import (
    HINT,
    LOGPROBS,
    READ,
    TIER,
    TIER_IS_SET,
    FieldRule,
    FieldTable,
    hint,
    is_empty,
    mapped,
    refused,
)
from ..schema import schema_directive
from ..seal import Carried, Sealed, deliver, digest, has_state, read_thought, unseal
from ..server import Asked, gather
from ..settings import read_settings
from .names import to_camel, to_standard_base64
from .reply import read_medium
from .request import DYNAMIC, NAMES, SETTINGS

_ISSUER = m.Issuer("gemini")
# The verb in the path decides whether the reply is streamed.
_VERBS = {"generateContent": False, "streamGenerateContent": True, "countTokens": False}
_MODES: dict[str, m.ToolChoice] = {"AUTO": "auto", "ANY": "required", "NONE": "none"}
# Other wires have no mode for validated calls and need none: calls are always validated.
_USUAL_MODES = ("VALIDATED", "MODE_UNSPECIFIED")
_CONFIG = "generationConfig"
TABLE = FieldTable(
    {
        **dict.fromkeys(
            ("contents", "systemInstruction", "generationConfig", "tools", "toolConfig"), READ
        ),
        "safetySettings": hint("the model's wire has no filters to set"),
        "labels": HINT,
        "serviceTier": hint(
            TIER_IS_SET,
            opt_in=TIER,
            cheap=("flex", "FLEX", "SERVICE_TIER_FLEX", "standard", "STANDARD", "unspecified"),
        ),
        "store": hint("nothing is kept here between calls", False),
        "model": hint("the model is named by the path", always=True),
        "cachedContent": refused(
            "send the content itself, or ask a model of the same wire", held=True
        ),
    },
    ("contents", "systemInstruction"),
    {
        **{name: f"{_CONFIG}.{field}" for name, field in NAMES.items()},
        "top_k": "generationConfig.topK",
        "reasoning": "generationConfig.thinkingConfig",
        "json_mode": "generationConfig.responseMimeType",
        "parallel_tool_calls": "toolConfig",
    },
    {
        _CONFIG: {
            **dict.fromkeys((*NAMES.values(), "responseJsonSchema", "responseMimeType"), READ),
            "topK": mapped("top_k"),
            "candidateCount": hint("one candidate is returned for each call", 1, always=True),
            "responseModalities": refused("ask for TEXT only", ["TEXT"], ["text"]),
            "responseSchema": FieldRule("mapped", "it is sent as JSON Schema"),
            "thinkingConfig": FieldRule("mapped", "the budget or level is translated"),
            "responseLogprobs": LOGPROBS,
            "logprobs": LOGPROBS,
            "speechConfig": refused("ask for TEXT only"),
            "imageConfig": refused("ask for TEXT only"),
            "mediaResolution": hint(
                "the model decides how closely it looks", "MEDIA_RESOLUTION_UNSPECIFIED"
            ),
            "audioTimestamp": HINT,
            "enableAffectiveDialog": HINT,
            "enableEnhancedCivicAnswers": HINT,
            "routingConfig": hint("which model answers is decided here"),
            "modelSelectionConfig": hint("which model answers is decided here"),
        }
    },
    lambda path, name: name if name in SETTINGS else f"{path}.{name}",
)
_PART = refused("send text, images, files, calls and their responses")
_SERVER_TOOL = refused("offer functions of your own, or ask a model of the same wire")
_RESULT = hint("the model's wire has no schema of a result")
_TOOL = {
    "response": _RESULT,
    "responseJsonSchema": _RESULT,
    "behavior": FieldRule("hint", default=("BLOCKING", "UNSPECIFIED")),
}
_IN_WORDS = FieldRule("mapped", "it is asked for in words")


class _Record(ClientRecord):
    """Read an object; where the wire has a list, a client may send its only element."""

    rules: ClassVar = {"displayName": HINT}

    def inners(self, name: str, *, required: bool = False) -> Sequence[Self]:
        if isinstance(self.data.get(name), dict):
            self.data = {**self.data, name: [self.data[name]]}
        return super().inners(name, required=required)

    def elements(self, name: str, *, required: bool = False) -> list[Self]:
        """Return a reader for each object in a list, whose texts may be plain strings."""
        if isinstance(self.data.get(name), dict | str):
            self.data = {**self.data, name: [self.data[name]]}
        values = self.items(name, required=required) or ()
        return [
            self.enter(f"{name}[{at}]", {"text": value} if isinstance(value, str) else value)
            for at, value in enumerate(values)
        ]


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode a request. The model and the mode are in the URL path."""
    _, found, name = path.rpartition("/models/")
    model, _, verb = name.rpartition(":")
    if not found or not model or verb not in _VERBS:
        raise InvalidRequestError(
            "the path must end with models/NAME:generateContent or :streamGenerateContent"
        )
    fields = open_body(to_camel(read_body(body)), TABLE, _Record)
    messages = [*_read_system(fields), *_Reader().read(fields)]
    tools, choice = _read_tools(fields)
    config, schema = _read_config(fields)
    request = m.Request(
        messages,
        tools=tools,
        config=config,
        response_schema=schema,
        tool_choice=choice,
        model=model,
        stream=_VERBS[verb],
    )
    return gather(request, fields.losses)


def unwrap_count(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the request whose tokens are counted.

    The body contains the request either directly or in the field ``generateContentRequest``.
    """
    camel = to_camel(body)
    inner = camel.get("generateContentRequest")
    return inner if isinstance(inner, dict) else camel


# --- reading settings of clients ---------------------------------------------------------------


def _read_config(fields: _Record) -> tuple[m.RuntimeConfig, dict[str, Any] | None]:
    inner = fields.inner(_CONFIG) or fields.enter(_CONFIG, {})
    inner.sort(TABLE.inner[_CONFIG], ("thinkingConfig", "responseSchema"))
    _read_thinking(inner)
    handle = fields.data.get("cachedContent")
    config = m.RuntimeConfig(
        **read_settings(inner, NAMES),
        cache=m.PromptCache(auto=False, handle=handle) if isinstance(handle, str) else None,
    )
    return config, _read_format(inner)


def _read_thinking(inner: _Record) -> None:
    """Record the reasoning setting: a budget or a level."""
    name = "thinkingConfig"
    thinking = inner.take(name)
    losses = inner.losses
    if is_empty(thinking):
        return
    if not isinstance(thinking, dict):
        _leave(inner, name)
        return
    rest = dict(thinking)
    budget = rest.pop("thinkingBudget", None)
    level = rest.pop("thinkingLevel", None)
    own = {_CONFIG: {name: thinking}}
    extra = {_CONFIG: {name: rest}} if rest else {}
    if type(budget) is int and budget >= 0:
        losses.add_concept("reasoning", budget or "none", own, extra=extra)
    elif budget == DYNAMIC:
        # pi asks for it whatever its level is, if it does not know the model's name (pi-ai 0.73.1,
        # providers/google.js; 2026-11-19).
        losses.add_concept("reasoning", "medium", own, extra=extra)
    elif isinstance(level, str) and level.lower() in m.EFFORTS:
        losses.add_concept("reasoning", level.lower(), own, extra=extra)
    else:
        losses.add_concept("reasoning", None, own)


def _leave(inner: _Record, name: str) -> None:
    inner.leave(name, TABLE.inner[_CONFIG][name])
    inner.losses.keep_own(inner.at(name), inner.data[name])


def _read_format(inner: _Record) -> dict[str, Any] | None:
    """Return the schema of the answer; record any other format.

    A schema that does not describe an object is written into the prompt on other wires.
    """
    losses = inner.losses
    dialect, schema, kind = map(
        inner.take, ("responseSchema", "responseJsonSchema", "responseMimeType")
    )
    if isinstance(dialect, dict) and dialect:
        schema = to_json_schema(dialect)
        losses.keep_own(_CONFIG, {"responseSchema": dialect, "responseJsonSchema": None})
    elif not is_empty(dialect):
        _leave(inner, "responseSchema")
    if schema is None:
        if kind == "application/json":
            losses.add_concept("json_mode", True, {_CONFIG: {"responseMimeType": kind}})
        elif kind not in (None, "", "text/plain"):
            rule = refused("ask for application/json or text/plain")
            inner.leave("responseMimeType", rule)
            losses.keep_own(inner.at("responseMimeType"), kind)
        return None
    if not isinstance(schema, dict):
        inner.refuse("responseJsonSchema", "must be a JSON Schema")
    if schema.get("type") != "object" and not _is_object(schema):
        own = {"responseMimeType": kind or "application/json", "responseJsonSchema": schema}
        losses.own = merge({_CONFIG: own}, losses.own)
        inner.leave("responseSchema", _IN_WORDS, "schema_in_words")
        losses.directives.append(schema_directive(schema))
        return None
    if kind not in (None, "", "application/json"):
        inner.refuse("responseMimeType", "must be application/json with a schema")
    return schema


def _is_object(schema: Mapping[str, Any]) -> bool:
    return "type" not in schema and isinstance(schema.get("properties"), dict)


# --- reading tools of clients ------------------------------------------------------------------


def _read_tools(fields: _Record) -> tuple[list[m.Tool], m.ToolChoice | None]:
    tools: list[m.Tool] = []
    offered: list[tuple[str, OfferedTool]] = []
    for record in fields.inners("tools"):
        tools += [_read_tool(declared) for declared in record.inners("functionDeclarations")]
        offered += [
            (record.at(name), OfferedTool(name, value, {name: value}))
            for name, value in record.rest().items()
        ]
    for path, tool in offered:
        fields.losses.leave(path, _SERVER_TOOL, "server_tool_dropped", tool)
    return _read_choice(fields, tools)


def _read_tool(record: _Record) -> m.Tool:
    name = record.need_text("name")
    described = record.text("description") or ""
    schema = record.take("parametersJsonSchema")
    dialect = record.take("parameters")
    record.done(_TOOL)
    if not schema and dialect is None:
        return m.Tool(name, described)
    if not isinstance(schema or dialect, dict):
        record.refuse("parameters", "must be a JSON Schema")
    return m.Tool(name, described, parameters=schema or to_json_schema(dialect))


def to_json_schema(schema: Any) -> Any:
    """Convert a schema of this wire's dialect (upper-case types, ``nullable``) to JSON Schema."""
    if isinstance(schema, list):
        return [to_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for given, value in schema.items():
        name = _DIALECT.get(str(given), str(given))
        if name in _MAPS and isinstance(value, dict):
            made[name] = {key: to_json_schema(each) for key, each in value.items()}
        elif name in _VALUES:
            made[name] = value
        elif name == "type" and isinstance(value, str):
            made[name] = value.lower()
        elif name in _NUMBERS and isinstance(value, str) and value.isdecimal():
            made[name] = int(value)
        elif name not in ("nullable", "propertyOrdering"):
            made[name] = to_json_schema(value)
    if schema.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


_MAPS = ("properties", "$defs", "definitions", "patternProperties")  # from names to schemas
_VALUES = ("enum", "default", "example", "examples", "required", "const")  # not schemas
_NUMBERS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_DIALECT: dict[str, str] = {
    **{re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name): name for name in _NUMBERS},
    "any_of": "anyOf",
    "property_ordering": "propertyOrdering",
}


def _read_choice(fields: _Record, tools: list[m.Tool]) -> tuple[list[m.Tool], m.ToolChoice | None]:
    """Return the tools that the client allows, and the tool choice."""
    record = fields.inner("toolConfig")
    inner = record.inner("functionCallingConfig") if record is not None else None
    if record is not None:
        record.done()
    if inner is None:
        return tools, None
    mode = (inner.text("mode") or "AUTO").upper()
    names = inner.texts("allowedFunctionNames")
    inner.done()
    own = {"toolConfig": fields.data["toolConfig"]}
    if mode in _USUAL_MODES:
        fields.losses.own |= own
        mode = "AUTO"
    if mode not in _MODES:
        inner.refuse("mode", "must be AUTO, ANY, VALIDATED or NONE")
    if not names:
        return tools, _MODES[mode]
    if mode == "ANY" and len(names) == 1:
        return tools, m.ForceTool(names[0])
    fields.losses.own |= {**own, "tools": fields.data.get("tools")}
    return [tool for tool in tools if tool.name in names], _MODES[mode]


# --- reading the conversation of clients -------------------------------------------------------


def _read_system(fields: _Record) -> list[m.System]:
    given = fields.take("systemInstruction")
    if isinstance(given, str):
        return [m.System(given)] if given else []
    record = fields.inner("systemInstruction")
    if record is None:
        return []
    record.take("role")
    texts = []
    for inner in record.elements("parts"):
        texts.append(inner.need_text("text"))
        _finish_part(inner)
    record.done()
    text = "".join(texts)
    return [m.System(text)] if text else []


class _SignedThought(NamedTuple):
    """A part of a thought with a sealed signature, which may sign the parts before it, too."""

    text: str
    signature: str
    sealed: Sealed


_Part: TypeAlias = m.AssistantBlock | Carried | _SignedThought


def _join(parts: Sequence[_Part]) -> list[m.AssistantBlock]:
    """Return the blocks of a turn.

    A stream has several parts for one block, and its state comes with the last. Google expects the
    parts that have its signatures unchanged, so parts without state are joined, and those that a
    sealed state belongs to.
    """
    made: list[m.AssistantBlock | Carried] = []
    for part in parts:
        if isinstance(part, _SignedThought):
            made.append(_join_thought(made, part))
            continue
        if isinstance(part, Carried) and part.sealed.kind == "text":
            joined = _take_run(made, m.Text, None)
            made += [m.Text(joined)] if joined else []
        made.append(part)
    return _join_pieces(deliver(made))


def _join_pieces(blocks: Sequence[m.AssistantBlock]) -> list[m.AssistantBlock]:
    """Join texts, and thoughts, that follow one another and have no state.

    Google's SDKs keep the pieces of a streamed text, and servers reject a piece that is a space.
    """
    made: list[m.AssistantBlock] = []
    for block in blocks:
        last = made[-1] if made else None
        if (
            isinstance(block, m.Text | m.Thinking)
            and isinstance(last, m.Text | m.Thinking)
            and replace(last, text="") == replace(block, text="")
            and not has_state(block.continuity)
        ):
            made[-1] = replace(last, text=last.text + block.text)
        else:
            made.append(block)
    return made


def _join_thought(
    made: list[m.AssistantBlock | Carried], part: _SignedThought
) -> m.AssistantBlock | Carried:
    text = part.text
    sealed = part.sealed
    is_part = digest(text) != sealed.bound if sealed.bound else not text
    if sealed.kind == "thinking" and is_part:
        text = _take_run(made, m.Thinking, sealed.bound or None, text)
    return read_thought(text, part.signature, "gemini")


def _take_run(
    made: list[m.AssistantBlock | Carried], kind: type, bound: str | None, text: str = ""
) -> str:
    """Remove the last parts of a kind that have no state; return their text, with ``text`` last.

    Stop as soon as the text has the digest ``bound``.
    """
    while made and type(made[-1]) is kind and not (bound and digest(text) == bound):
        block: Any = made[-1]
        if has_state(block.continuity):
            break
        made.pop()
        text = block.text + text
    return text


class _Reader:
    """Read turns, and keep track of the calls that have no result yet."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, str]] = []  # the id and name of each call without a result
        self._count = 0
        self._named: set[Any] = set()  # names of functions with results in this turn

    def read(self, fields: _Record) -> list[m.Message]:
        messages: list[m.Message] = []
        turn: list[_Part] = []
        for record in fields.elements("contents", required=True):
            if turn and record.data.get("role") != "model":
                messages.append(m.Assistant(_join(turn)))
                turn = []
            if record.data.keys() == {"text"}:
                messages.append(m.User(record.need_text("text")))
                continue
            role = record.text("role") or "user"
            parts = record.elements("parts", required=True)
            record.done()
            if role == "model":
                # Google's SDKs keep each chunk of a stream as a content of its own.
                turn += [self._said(part) for part in parts]
            elif role in ("user", "function"):
                self._named = {_find_name(part) for part in parts}
                messages += split_results(
                    parts, lambda part: "functionResponse" in part, self._result, _read_block
                )
            else:
                record.refuse("role", "must be user or model")
        return [*messages, m.Assistant(_join(turn))] if turn else messages

    def _said(self, record: _Record) -> _Part:
        signature = record.text("thoughtSignature")
        sealed = unseal(signature)
        state = m.Continuity(signature, issuer=_ISSUER) if signature else None
        if sealed is not None:
            state = sealed.state
        if (call := record.inner("functionCall")) is not None:
            record.take("thought")
            record.done()
            return self._call(call, state)
        if "text" in record and not set(record.rest()) - {"text", "thought"}:
            text = record.need_text("text")
            is_thought = record.flag("thought")
            if sealed is not None and sealed.kind == "text":
                return m.Text(text, sealed.state) if text else Carried(sealed)
            if not is_thought:
                return m.Text(text, state)
            if sealed is not None:
                return _SignedThought(text, signature or "", sealed)
            return m.Thinking(text, state or m.Continuity(issuer=_ISSUER))
        found = m.Continuity(issuer=_ISSUER) if state is None else state
        medium = read_medium(dict(record.data), found.signature or None, found.issuer)
        return medium or m.Opaque(record.data, m.Continuity(issuer=_ISSUER))

    def _call(self, call: _Record, state: m.Continuity | None) -> m.ToolCall:
        name = call.need_text("name")
        arguments = call.take("args")
        call_id = call.text("id")
        call.done()
        if not isinstance(arguments, dict | None):
            call.refuse("args", "must be an object")
        self._count += 1
        # Clients may omit the id. The client codec recognises a generated id by its form, and does
        # not send it to a provider of this wire.
        made = call_id or f"call_{self._count:026d}"
        self._waiting.append((made, name))
        return m.ToolCall(made, name, arguments or {}, state)

    def _result(self, record: _Record) -> m.ToolResult:
        inner = record.need_inner("functionResponse")
        _finish_part(record)
        name = inner.need_text("name")
        given = inner.text("id")
        response = inner.take("response")
        media = inner.elements("parts")
        inner.done()
        match = self._find_call(given, name)
        if match is None:
            inner.refuse("name", "answers no call")
        self._waiting.remove(match)
        failed = isinstance(response, dict) and list(response) == ["error"]
        text = _response_text(response)
        blocks = [_read_block(part) for part in media]
        return m.ToolResult(match[0], text, *blocks, is_error=failed)

    def _find_call(self, given: str | None, name: str) -> tuple[str, str] | None:
        """Return the call that a result answers: by its id, its name, or its position.

        Semantic Kernel changes the name of a function in the calls that it sends back, but not in
        their results, and sends no ids.
        """
        waiting = self._waiting
        same_id = [call for call in waiting if call[0] == given]
        same_name = [call for call in waiting if call[1] == name]
        unnamed = [call for call in waiting if call[1] not in self._named]
        return next(iter([*same_id, *same_name, *unnamed]), None)


def _find_name(part: _Record) -> Any:
    inner = part.data.get("functionResponse")
    return inner.get("name") if isinstance(inner, dict) else None


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


def _finish_part(record: _Record) -> None:
    """Record unknown fields; some SDKs write ``thought: false`` on every part."""
    if record.flag("thought"):
        record.refuse("thought", "can be true in a part of the model only")
    record.done()


def _read_block(record: _Record) -> m.UserBlock:
    block: m.UserBlock
    if "text" in record:
        block = m.Text(record.need_text("text"))
    elif (data := record.inner("inlineData")) is not None:
        kind = data.need_text("mimeType")
        inline = to_standard_base64(data.need_text("data"))
        data.done()
        block = _read_medium(m.Inline(inline), kind)
    elif (file := record.inner("fileData")) is not None:
        kind = file.text("mimeType") or "application/pdf"
        place = m.Url(file.need_text("fileUri"))
        file.done()
        block = _read_medium(place, kind)
    else:
        return record.leave_part(_PART)
    _finish_part(record)
    return block


def _read_medium(source: m.Url | m.Inline, kind: str) -> m.Image | m.Document | m.Audio:
    if kind.startswith("image/"):
        return m.Image(source, kind)
    return m.Audio(source, kind) if kind.startswith("audio/") else m.Document(source, kind)
