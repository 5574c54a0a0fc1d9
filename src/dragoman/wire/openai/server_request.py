"""Decode requests of the Chat Completions wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from ... import messages as m
from ...errors import UnsupportedContentError
from ...validate import parse_tool_choice, parse_tools
from ...validate.data_url import read_inline
from ...validate.parse import read_message
from ..fields import open_body, read_body, read_schema
from ..json import dig, string_of
from ..losses import ClientRecord, Losses, OfferedTool
from ..rules import (
    CACHE,
    CONCEPTS,
    HELD_CACHE,
    HINT,
    LOGPROBS,
    READ,
    FieldRule,
    FieldTable,
    hint,
    is_empty,
    mapped,
    refused,
)
from ..server import Asked, gather
from ..settings import read_settings
from .request import SETTINGS
from .state import ReturnedState

_SEARCH = refused("search with a tool of your own, or ask a model of the same wire")
_SPELLINGS = ("reasoning", "thinking", "enable_thinking", "chat_template_kwargs")
TABLE = FieldTable(
    {
        **dict.fromkeys(
            ("model", "messages", "stream", "stream_options", "tools", "tool_choice"), READ
        ),
        **dict.fromkeys(("response_format", "max_completion_tokens", "reasoning_effort"), READ),
        **dict.fromkeys(SETTINGS.values(), READ),
        "random_seed": READ,  # the name of the seed in Mistral's clients (mistralai 3.7.0, 2026-11)
        "n": hint("one choice is returned for each call", 1, always=True),
        **CONCEPTS,
        "verbosity": mapped("verbosity", "medium"),
        "top_k": mapped("top_k"),
        "min_p": mapped("min_p", 0),
        "repetition_penalty": mapped("repeat_penalty", 1),
        "repeat_penalty": mapped("repeat_penalty", 1),
        "store": hint("nothing is kept of a chat completion", False),
        "metadata": HINT,
        "logit_bias": hint("the model's wire cannot weigh single tokens"),
        "prediction": hint("it only makes the answer faster"),
        "logprobs": LOGPROBS,
        "top_logprobs": LOGPROBS,
        "modalities": refused("ask for text only", ["text"]),
        "audio": refused("ask for text only"),
        "web_search_options": FieldRule(
            "mapped", "the model's server searches; it is refused if the server cannot"
        ),
        "functions": refused("use tools, its newer name"),
        "function_call": refused("use tool_choice, its newer name"),
        "reasoning": FieldRule("mapped", "the effort or budget is translated"),
        "thinking": FieldRule("mapped", "the switch is translated"),
        "enable_thinking": FieldRule("mapped", "the switch is translated"),
        "chat_template_kwargs": FieldRule("mapped", "enable_thinking is translated"),
    },
    ("messages",),
    {"stop_sequences": "stop", "reasoning": "reasoning_effort", "json_mode": "response_format"},
)
# the marks that Dragoman's messages represent
_MARKS = ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"})
_PART = refused("send text, images or files")
_WRAPPED = hint("the text is not a JSON object, and is sent inside one")
_REWRITTEN = hint("it is sent as a call of a function")


class _Record(ClientRecord):
    """Read a message, a part of one, or a tool."""

    rules: ClassVar = {"name": hint("the model's wire has no names of participants")}

    def allow(self, *names: str) -> None:
        if (mark := self.data.get("cache_control")) is not None:
            is_held = mark in _MARKS and "cache_control" in names
            if not is_held:
                self.data = {**self.data, "cache_control": None}
            if mark:
                self.leave("cache_control", HELD_CACHE if is_held else CACHE)
        super().allow(*names)

    def choice(self, name: str, choices: Any) -> Any:
        if name == "detail" and self.data.get(name) not in (None, *m.DETAILS):
            self.leave(name)
            return None
        return super().choice(name, choices)

    def mend(self, name: str, value: Any, error: Exception) -> Any:
        if name == "arguments":
            return wrap_arguments(value, self.at(name), self.losses)
        if isinstance(error, UnsupportedContentError) or value == "file":
            return self.leave_part(_PART).text
        raise error


def wrap_arguments(text: str, path: str, losses: Losses) -> dict[str, Any]:
    """Return an object with the text of a tool call's arguments, which is not a JSON object."""
    losses.leave(path, _WRAPPED, "arguments_rewritten")
    return {"arguments": text}


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode the body of a request."""
    fields = open_body(read_body(body), TABLE, _Record, (*_SPELLINGS, "web_search_options"))
    losses = fields.losses
    model = fields.need_text("model")
    stream = fields.flag("stream") or False
    records = [_rewrite(record) for record in fields.inners("messages", required=True)]
    messages = tuple(map(_read, records))
    if not fields.rest():  # as in many requests
        return gather(m.Request(messages, model=model, stream=stream), losses, stream_usage=False)
    usage = _read_stream_options(fields, stream)
    schema = _read_format(fields)
    tools, choice = _read_tools(fields)
    config = _read_config(fields) if fields.rest() else m.NO_CONFIG
    request = m.Request(
        messages,
        tools=tools,
        config=config,
        response_schema=schema,
        tool_choice=choice,
        model=model,
        stream=stream,
    )
    return gather(request, losses, stream_usage=usage)


# --- reading messages of clients ---------------------------------------------------------------


def _read(record: _Record) -> m.Message:
    state = ReturnedState.take(record)
    message = read_message(record)
    return inline_media(message) if state is None else state.restore(message)


def _rewrite(record: _Record) -> _Record:
    """Convert the forms of a message that ``read_message`` does not read.

    Many clients send a system message as a list of texts. A call of a custom tool becomes a call
    of a function.
    """
    role = record.data.get("role")
    content = record.data.get("content")
    if role in ("system", "developer") and isinstance(content, list):
        record.data = {**record.data, "content": _join_texts(record)}
    if role == "assistant" and isinstance(content, list):
        record.data = {**record.data, "content": [_rewrite_thought(part) for part in content]}
    calls = record.data.get("tool_calls")
    if isinstance(calls, list) and any(map(_is_custom, calls)):
        made = [
            _rewrite_call(call, f"{record.at('tool_calls')}[{at}]", record.losses)
            for at, call in enumerate(calls)
        ]
        record.data = {**record.data, "tool_calls": made}
    return record


def _join_texts(record: _Record) -> str:
    texts = []
    for part in record.inners("content"):
        kind = part.take("type")
        part.allow("type", "text", "cache_control")
        if kind in (None, "text"):
            texts.append(part.need_text("text"))
        else:
            error = UnsupportedContentError(f"{part.where}: a system message has texts only")
            texts.append(part.mend("type", kind, error))
    return "".join(texts)


def _rewrite_thought(part: Any) -> Any:
    """Return a part of the model's content; join the thinking that Mistral's clients send back.

    It is a list of texts: ``{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}``.
    """
    texts = part.get("thinking") if isinstance(part, dict) else None
    if not isinstance(texts, list):
        return part
    joined = "".join([string_of(dig(each, "text")) for each in texts])
    return {"type": "thinking", "thinking": joined}


def _is_custom(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and call.get("type") == "custom"
        and isinstance(call.get("custom"), dict)
    )


def _rewrite_call(call: Any, path: str, losses: Losses) -> Any:
    if not _is_custom(call):
        return call
    losses.leave(path, _REWRITTEN, "custom_call_rewritten")
    custom = call["custom"]
    function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    return {"id": call.get("id"), "type": "function", "function": function}


def inline_media(message: m.Message) -> m.Message:
    """Return a message with its ``data:`` URLs decoded.

    Other wires need the data and the media type separately.
    """
    if not isinstance(message, m.User) or isinstance(message.content, str):
        return message
    return replace(message, content=tuple([_inline(block) for block in message.content]))


def _inline(block: m.UserBlock) -> m.UserBlock:
    found = read_inline(block) if isinstance(block, m.Image) else None
    if found is None or found[0] is None:
        return block
    return replace(block, source=m.Inline(found[1]), media_type=found[0])


# --- reading tools and settings of clients -----------------------------------------------------


def _read_tools(fields: _Record) -> tuple[tuple[m.Tool, ...], m.ToolChoice | None]:
    losses = fields.losses
    search = fields.take("web_search_options")
    if search is not None:
        tool = OfferedTool("web_search_options", search, {})
        losses.leave("web_search_options", _SEARCH, tool=tool)
    records = []
    for record in fields.inners("tools"):
        if record.data.get("type", "function") == "function":
            records.append(record)
        else:
            rule = refused("give the tool as a function")
            losses.leave(record.where, rule, "tool_dropped")
    tools = parse_tools(records)
    choice = fields.take("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools")
        return read_allowed(fields, tools, inner if isinstance(inner, dict) else choice)
    return tools, parse_tool_choice(choice)


def read_allowed(
    fields: ClientRecord, tools: tuple[m.Tool, ...], choice: Mapping[str, Any]
) -> tuple[tuple[m.Tool, ...], m.ToolChoice]:
    """Return the tools that a tool choice of type ``allowed_tools`` allows, and its mode.

    Other wires cannot restrict the choice to some of the offered tools.
    """
    listed = choice.get("tools") if isinstance(choice.get("tools"), list) else []
    names = [name_of(tool) for tool in listed or ()]
    losses = fields.losses
    losses.own |= {"tool_choice": fields.data["tool_choice"]}
    if "tools" in fields:
        losses.own["tools"] = fields.data["tools"]
    allowed = tuple([tool for tool in tools if tool.name in names])
    return allowed, "required" if choice.get("mode") == "required" else "auto"


def name_of(tool: Any) -> Any:
    """Return the name of a tool, which may be nested in the field ``function``."""
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function")
    return inner.get("name") if isinstance(inner, dict) else tool.get("name")


def _read_stream_options(fields: _Record, stream: bool) -> bool:
    options = fields.inner("stream_options")
    if options is None or not stream:
        return False
    wanted = options.flag("include_usage") or False
    # This option pads chunks against side-channel attacks; our server never sends such padding.
    options.flag("include_obfuscation")
    options.done()
    return wanted


def _read_format(fields: _Record) -> dict[str, Any] | None:
    inner = fields.inner("response_format")
    if inner is None:
        return None
    kind = inner.take("type")
    asked = inner.data.get("json_schema")
    if kind == "json_object":
        own = {"response_format": fields.data["response_format"]}
        fields.losses.add_concept("json_mode", True, own)
    elif kind == "json_schema" and isinstance(asked, dict):
        asked = inner.need_inner("json_schema")
        # ignored, because the client codecs set ``strict`` if the schema allows it
        asked.flag("strict")
        name = asked.need_text("name")
        schema = read_schema(asked.take("schema") or {}, name, asked.at("schema"), fields.losses)
        asked.done()
        return schema
    elif kind != "text":
        fields.leave("response_format", refused("use json_schema or json_object"))
    return None


def _read_config(fields: _Record) -> m.RuntimeConfig:
    settings = read_settings(fields, SETTINGS)
    for name, other in (("max_tokens", "max_completion_tokens"), ("seed", "random_seed")):
        value = fields.whole(other)
        if value is not None and settings[name] not in (None, value):
            fields.refuse(name, f"contradicts {other}, another name of it")
        settings[name] = settings[name] if value is None else value
    return m.RuntimeConfig(**settings, reasoning=_read_reasoning(fields))


def _read_reasoning(fields: _Record) -> m.Effort | None:
    """Return the effort; record the other fields for reasoning, which differ between servers."""
    effort = fields.text("reasoning_effort")
    losses = fields.losses
    if effort is not None and effort not in m.EFFORTS:
        leave_effort(losses, {"reasoning_effort": effort})
    given = {name: value for name in _SPELLINGS if not is_empty(value := fields.take(name))}
    wanted = _read_amount(given) if given else None
    if wanted is None:
        for name in given:
            fields.leave(name, TABLE.rules[name])
    elif effort is None:
        is_exact = list(given) == ["reasoning"] and len(given["reasoning"]) == 1
        extra = {} if is_exact and wanted != "medium" else given
        losses.add_concept("reasoning", wanted, given, extra=extra)
    else:
        losses.own |= given
    return next((each for each in m.EFFORTS if each == effort), None)


def leave_effort(losses: Losses, own: Mapping[str, Any]) -> None:
    """Record an effort that Dragoman has no name for."""
    losses.add_concept("reasoning", None, own)


def _read_amount(given: Mapping[str, Any]) -> str | int | None:
    """Return the effort or the budget that the fields of a server or a router request."""
    reasoning, thinking, switch, options = map(given.get, _SPELLINGS)
    if isinstance(reasoning, dict):
        effort = reasoning.get("effort")
        budget = reasoning.get("max_tokens")
        if effort in m.EFFORTS or (type(budget) is int and budget > 0):
            return effort or budget
        switch = reasoning.get("enabled", switch)
    if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "disabled"):
        switch = thinking["type"] == "enabled"
    if isinstance(options, dict) and set(options) == {"enable_thinking"}:
        switch = options["enable_thinking"]
    if not isinstance(switch, bool):
        return None
    return "medium" if switch else "none"
