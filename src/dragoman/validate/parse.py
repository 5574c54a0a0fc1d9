"""Read strings, plain records and chat-completion dictionaries into values.

No key is ignored: an unknown key is an error that names it, unless its value
is ``None`` or an empty list (SDKs dump every field they have).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from .. import messages as m
from ..errors import InvalidRequestError, UnsupportedContentError, cut, quote
from ..events import read_json
from .data_url import read_data_url
from .fields import Fields, describe_wrong_type, kind_of, suggest
from .structured import response_schema_of

MISPLACED = {
    "stream": "call .stream(...) in place of .complete(...)",
    "image": 'put it into the message: User("...", Image("photo.png"))',
    "images": 'put them into the message: User("...", Image("photo.png"))',
    "timeouts": "pass timeout= in seconds, or timeouts= to connect()",
    "retry": "wrap the provider in Retry(...), or pass retries= to connect()",
    "retries": "wrap the provider in Retry(...), or pass retries= to connect()",
    "max_retries": "wrap the provider in Retry(...), or pass retries= to connect()",
    "num_retries": "wrap the provider in Retry(...), or pass retries= to connect()",
    "budget": "wrap the provider in Spend(provider, usd=5)",
    "model": "pass the model's name to connect()",
    "api_key": "pass api_key= to connect()",
    "base_url": "pass base_url= to connect()",
    "response_format": "pass a type or a JSON Schema as response_schema=",
    "output_type": "pass a type or a JSON Schema as response_schema=",
    "stop": 'write stop_sequences=["..."]',
    "thinking": 'write reasoning="high", or a number of tokens',
    "reasoning_effort": 'write reasoning="high"',
    "max_completion_tokens": "write max_tokens=",
    "system_prompt": "write system=",
    "n": "gather() makes several calls",
    "schema": "pass a type or a JSON Schema as response_schema=",
    "json_mode": "pass a type or a JSON Schema as response_schema=",
    "functions": "pass them as tools=[...]",
    "user": 'pass metadata={"user": "..."} for the records, or extras={"user": "..."} to send it',
    "deps": "a Session passes deps= to its tools",
    "max_output_tokens": "write max_tokens=",
    "logprobs": 'pass extras={"logprobs": True}, and read reply.raw',
}
"""What people pass to ``complete`` who come from other libraries, and what to write instead."""

_MESSAGES = frozenset({m.System, m.User, m.Assistant, m.ToolResult})


def build_request(
    messages: Any,
    tools: Any = None,
    config: Any = None,
    response_schema: Any = None,
    tool_choice: Any = None,
    *,
    model: str = "",
    request_id: str | None = None,
    stream: bool = False,
    session_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    check_calls: bool = True,
    continues: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> m.Request:
    """Build a ``Request`` from the arguments of a call. ``settings`` override ``config``."""
    response_type = None
    if response_schema is not None and not isinstance(response_schema, Mapping):
        response_type = response_schema
        response_schema = response_schema_of(response_schema)
    elif response_schema is not None:
        response_schema = dict(response_schema)
    parsed = parse_messages(messages)
    asked = parse_config(config)
    tools, server_tools = _split_tools(tools)
    if settings:
        system, asked = apply_settings(asked, settings)
        parsed = parsed if system is None else (m.System(system), *parsed)
    # A client of the gateway may send -1, which some servers read as "no limit".
    if isinstance(asked.max_tokens, int) and asked.max_tokens < 1:
        raise InvalidRequestError("max_tokens must be at least 1")
    return m.Request(
        parsed,
        tools=parse_tools(tools),
        config=asked,
        response_schema=response_schema,
        tool_choice=parse_tool_choice(tool_choice),
        model=model,
        request_id=request_id or m.new_ulid(),
        stream=stream,
        session_id=session_id,
        metadata={} if metadata is None else dict(metadata),
        response_type=response_type,
        check_calls=check_calls,
        continues=continues,
        server_tools=server_tools,
    )


def _split_tools(tools: Any) -> tuple[Any, tuple[m.ServerTool, ...]]:
    """Return the caller's tools, and the server-side tools that the provider runs."""
    if not isinstance(tools, list | tuple):
        return tools, ()
    server_tools: list[m.ServerTool] = []
    own: list[Any] = []
    for at, tool in enumerate(tools):
        if type(tool) is m.Tool:
            own.append(tool)
        elif isinstance(tool, m.ServerTool):
            server_tools.append(tool)
        elif isinstance(tool, Mapping) and tool.get("type") == "server_tool":
            record = Fields(tool, f"tools[{at}]")
            record.allow("type", "name", "options")
            server_tools.append(
                m.ServerTool(record.need_text("name"), dict(record.get("options", dict, {})))
            )
        else:
            own.append(tool)
    return (own, tuple(server_tools)) if server_tools else (tools, ())


def apply_settings(
    config: m.RuntimeConfig, settings: Mapping[str, Any]
) -> tuple[str | None, m.RuntimeConfig]:
    """Return the system prompt and the configuration; ``settings`` override ``config``."""
    known = ("system", *m.RuntimeConfig.__struct_fields__)
    for name in settings:
        if name not in known:
            others = *known, "tools", "config", "response_schema", "tool_choice"
            hint = (
                MISPLACED.get(name)
                or suggest(name, others)
                or "provider-specific settings go into extras="
            )
            raise TypeError(f"{name!r} is not a setting; {hint}")
    given = dict(settings)
    system = given.pop("system", None)
    if system is not None and not isinstance(system, str):
        raise InvalidRequestError(f"system must be a string, not {type(system).__name__}")
    return system, parse_config({**msgspec.structs.asdict(config), **given}) if given else config


def parse_messages(messages: Any) -> Sequence[m.Message]:
    """Read a conversation: a string, or a sequence of values, records or chat-completion dicts."""
    if type(messages) is not list and type(messages) is not tuple:
        if isinstance(messages, str | m.UserBlock):
            return (m.User(messages),)
        if type(messages) in _MESSAGES:
            return (messages,)
        if isinstance(messages, Mapping | bytes) or not isinstance(messages, Sequence):
            hint = "; send it with send()" if isinstance(messages, m.Request) else ""
            if isinstance(messages, bytes):
                hint = "; decode text, or write User(Image(data)) around an image"
            raise InvalidRequestError(
                f"messages must be text or a list of messages, not {type(messages).__name__}{hint}"
            )
    if messages and type(messages[0]) not in _MESSAGES and _are_parts(messages):
        return (m.User(messages),)
    return tuple(
        [
            message if type(message) in _MESSAGES else _parse_message(message, f"messages[{at}]")
            for at, message in enumerate(messages)
        ]
    )


def _are_parts(messages: Sequence[Any]) -> bool:
    """Return whether this is one message: texts and blocks, and at least one block."""
    return all(isinstance(part, str | m.UserBlock) for part in messages) and not all(
        isinstance(part, str) for part in messages
    )


def _parse_message(message: Any, path: str) -> m.Message:
    if isinstance(message, str | m.UserBlock):
        raise InvalidRequestError(
            f"{path} must be a message, not {type(message).__name__}; write User(...) around it"
        )
    return read_message(Fields(message, path))


def parse_tools(tools: Any) -> tuple[m.Tool, ...]:
    """Read tools: values, plain records, or chat-completion dicts with a ``function`` inside."""
    if not tools:
        return ()
    if isinstance(tools, m.Tool | Mapping) or not isinstance(tools, Sequence):
        raise InvalidRequestError(f"tools must be a list of tools, not {type(tools).__name__}")
    if isinstance(tools, str):
        raise InvalidRequestError(
            "tools must be a list of tools, not a string; a system prompt is passed as system="
        )
    return tuple(
        [
            tool if isinstance(tool, m.Tool) else _parse_tool(tool, f"tools[{at}]")
            for at, tool in enumerate(tools)
        ]
    )


def _parse_tool(tool: Any, path: str) -> m.Tool:
    if isinstance(described := getattr(tool, "description", None), m.Tool):
        return described  # what @tool makes of a function
    if callable(tool) and not isinstance(tool, Mapping):
        try:
            return (
                m.Tool.from_model(tool) if isinstance(tool, type) else m.Tool.from_function(tool)
            )
        except (TypeError, NameError) as error:
            raise InvalidRequestError(f"{path} cannot be described as a tool: {error}") from error
    record = tool if isinstance(tool, Fields) else Fields(tool, path)
    kind = record.take("type")
    if (kind == "function" or not isinstance(kind, str)) and "function" in record:
        record.allow("type", "function")
        record = record.need_inner("function")
    record.allow("name", "description", "parameters", "type", "strict", "deferred", "external")
    parameters = record.take("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        record.refuse("parameters", "must be a JSON Schema object")
    made: dict[str, Any] = {} if parameters is None else {"parameters": dict(parameters)}
    return m.Tool(
        record.need_text("name"),
        record.text("description") or "",
        strict=record.flag("strict"),
        deferred=record.flag("deferred") or False,
        external=record.flag("external") or False,
        **made,
    )


def parse_config(config: Any) -> m.RuntimeConfig:
    """Read settings: a ``RuntimeConfig`` or a mapping of its fields."""
    if config is None:
        return m.NO_CONFIG
    if isinstance(config, m.RuntimeConfig):
        return config
    if not isinstance(config, Mapping):
        raise InvalidRequestError(
            f"config must be a RuntimeConfig or a mapping, not {type(config).__name__}"
        )
    for name in config:
        if name not in m.RuntimeConfig.__struct_fields__:
            hint = suggest(str(name), m.RuntimeConfig.__struct_fields__)
            hint = f"{hint} Other" if hint else "provider-specific"
            raise InvalidRequestError(
                f"config.{cut(str(name))} is not a setting; {hint} ones go into config.extras"
            )
    try:
        return msgspec.convert(dict(config), m.RuntimeConfig)
    except msgspec.ValidationError as error:
        if "`$.reasoning`" in str(error):
            raise InvalidRequestError(
                f"reasoning must be {', '.join(m.EFFORTS)}, or a number of tokens, not "
                f"{quote(config.get('reasoning'))}"
            ) from error
        raise InvalidRequestError(describe_wrong_type("config", config, error)) from error


def parse_tool_choice(choice: Any) -> m.ToolChoice | None:
    """Read ``"auto" | "required" | "none"``, a ``ForceTool``, or a forced tool as a dictionary."""
    if choice is None or isinstance(choice, m.ForceTool):
        return choice
    if isinstance(choice, str):
        if choice in ("auto", "required", "none"):
            return choice  # type: ignore[return-value]
        raise InvalidRequestError(
            f"tool_choice must be auto, required, none or a forced tool, not {quote(choice)}",
            advice=f"To force a tool, write ForceTool({quote(choice)}).",
        )
    record = Fields(choice, "tool_choice")
    if record.take("type") == "function":
        record.allow("type", "function")
        record = record.need_inner("function")
        record.allow("name")
    elif record.take("type") == "tool":
        record.allow("type", "name")
    else:
        raise InvalidRequestError(
            'tool_choice must be {"type": "tool", "name": ...} to force a tool'
        )
    return m.ForceTool(record.need_text("name"))


# --- reading messages from JSON ----------------------------------------------------------------


def read_message(record: Fields) -> m.Message:
    """Read a message in the form of a plain record or a chat-completion dictionary."""
    role = record.take("role")
    if not isinstance(role, str) or role not in _READERS:
        record.refuse("role", f"must be system, user, assistant or tool, not {quote(role)}")
    read, fields = _READERS[role]
    record.allow("role", "content", *fields)
    return read(record)


def _read_system(record: Fields) -> m.System:
    content = record.take("content")
    if content is not None and not isinstance(content, str):
        record.refuse(
            "content", f"must be a string, not {kind_of(content)}: a system message has no blocks"
        )
    return m.System(record.need_text("content"), read_mark(record))


def _read_user(record: Fields) -> m.User:
    return m.User(_read_content(record), cache=read_mark(record))


def _read_result(record: Fields) -> m.ToolResult:
    call_id = record.need_text("tool_call_id")
    failed = record.flag("is_error") or False
    content = _read_content(record)
    mark = read_mark(record)
    return m.ToolResult(call_id, content, is_error=failed, cache=mark)


def _read_content(record: Fields) -> str | list[m.UserBlock]:
    content = record.take("content")
    if isinstance(content, str):
        return content
    if content is None:
        record.refuse("content", "is required")
    return [_read_user_block(part) for part in record.inners("content")]


def _read_assistant(record: Fields) -> m.Assistant:
    thoughts = record.text("reasoning_content") or record.text("reasoning")
    content = record.take("content")
    refusal = record.text("refusal")
    blocks: list[m.AssistantBlock] = [m.Thinking(thoughts)] if thoughts else []
    if isinstance(content, str):
        blocks += [m.Text(content)] if content else []
    else:
        blocks += [_read_assistant_block(part) for part in record.inners("content")]
    if refusal:
        blocks.append(m.Text(refusal))
    return m.Assistant(
        blocks, tool_calls=[_read_tool_call(call) for call in record.inners("tool_calls")]
    )


# The mark for the provider's prompt cache: the name in our values, and the name that the anthropic
# wire and routers use.
_MARKS = ("cache", "cache_control")


def read_mark(record: Fields) -> bool:
    """Return whether a message or a block is marked for the provider's prompt cache."""
    if record.data.get("cache_control") is None and record.data.get("cache") is None:
        return False  # as in most messages
    given = record.inner("cache_control")
    if given is not None:
        if given.need_text("type") != "ephemeral":
            given.refuse("type", "must be ephemeral")
        if given.text("ttl") not in (None, "5m"):
            given.refuse("ttl", 'belongs into the setting cache: {"ttl": "1h"}')
        given.done()
    return record.flag("cache") or given is not None


# How a message of each role is read, and which fields it has besides role and content.
_READERS: dict[str, tuple[Callable[[Fields], m.Message], tuple[str, ...]]] = {
    "system": (_read_system, _MARKS),
    "developer": (_read_system, _MARKS),
    "user": (_read_user, _MARKS),
    "assistant": (_read_assistant, ("tool_calls", "reasoning_content", "reasoning", "refusal")),
    "tool": (_read_result, ("tool_call_id", "is_error", *_MARKS)),
}


# --- reading content blocks from JSON ----------------------------------------------------------


def _read_user_block(record: Fields) -> m.UserBlock:
    kind = record.take("type")
    if kind == "text":
        return _read_text(record)
    if kind == "image":
        return _read_image(record)
    if kind == "image_url":
        record.allow("type", "image_url", *_MARKS)
        return _read_image_url(record)
    if kind == "document":
        record.allow("type", "source", "media_type", "name", *_MARKS)
        media_type = record.get("media_type", str, "application/pdf")
        return m.Document(_read_source(record), media_type, record.text("name"), read_mark(record))
    if kind == "file":
        record.allow("type", "file", *_MARKS)
        return _read_file(record, record.need_inner("file"), read_mark(record))
    if kind == "audio":
        return _read_audio(record)
    if kind == "input_audio":
        record.allow("type", "input_audio", *_MARKS)
        return _read_input_audio(record.need_inner("input_audio"), read_mark(record))
    return _replace(record, kind, _misplaced(record, kind, _OF_ASSISTANTS, "a user or a tool"))


def _read_assistant_block(record: Fields) -> m.AssistantBlock:
    kind = record.take("type")
    if kind in ("text", "output_text"):
        return _read_text(record)
    if kind == "refusal":
        record.allow("type", "refusal")
        return m.Text(record.need_text("refusal"))
    if kind == "thinking":
        record.allow("type", "text", "thinking", "signature", "continuity")
        return m.Thinking(
            record.need_text("text" if "text" in record else "thinking"), _read_signed(record)
        )
    if kind == "redacted_thinking":
        record.allow("type", "data", "continuity")
        return m.RedactedThinking(record.need_text("data"), _read_continuity(record))
    if kind == "tool_call":
        return _read_tool_call(record)
    if kind == "opaque":
        record.allow("type", "data", "continuity")
        return m.Opaque(record.take("data"), _read_continuity(record))
    if kind == "audio":
        return _read_audio(record)
    # an image that a model generated has opaque state; a user's image has none
    if kind == "image" and "continuity" in record:
        return _read_image(record)
    return _replace(record, kind, _misplaced(record, kind, _OF_USERS, "the assistant"))


def _replace(record: Fields, kind: Any, error: Exception) -> m.Text:
    """Return the text that a lenient reader reads in place of content that cannot be read."""
    return m.Text(record.mend("type", kind, error))


_OF_USERS = frozenset({"image", "image_url", "document", "file", "input_audio"})
_OF_ASSISTANTS = frozenset(
    {"output_text", "refusal", "thinking", "redacted_thinking", "tool_call", "opaque"}
)


def _misplaced(record: Fields, kind: Any, elsewhere: frozenset[str], role: str) -> Exception:
    """Return the error for a block in the wrong role, without a type, or of an unknown type."""
    if not isinstance(kind, str):
        return record.fail(
            "is required" if kind is None else f"must be a string, not {kind_of(kind)}", "type"
        )
    if kind in elsewhere:
        return InvalidRequestError(
            f"{record.where}: content of type {quote(kind)} does not belong in a message of {role}"
        )
    return UnsupportedContentError(
        f"{record.where}: content of type {quote(kind)} is not supported"
    )


def _read_text(record: Fields) -> m.Text:
    record.allow("type", "text", "signature", "continuity", *_MARKS)
    return m.Text(record.need_text("text"), _read_signed(record), read_mark(record))


def _read_image(record: Fields) -> m.Image:
    record.allow("type", "source", "media_type", "detail", "continuity", *_MARKS)
    detail = record.choice("detail", m.DETAILS)
    mark = read_mark(record)
    state = _read_continuity(record)
    return m.Image(
        _read_source(record),
        record.text("media_type"),
        detail=detail,
        cache=mark,
        continuity=state,
    )


def _read_audio(record: Fields) -> m.Audio:
    record.allow("type", "source", "media_type", "transcript", "continuity", *_MARKS)
    state = _read_continuity(record)
    mark = read_mark(record)
    return m.Audio(
        _read_source(record),
        record.text("media_type"),
        transcript=record.text("transcript"),
        cache=mark,
        continuity=state,
    )


def _read_input_audio(record: Fields, mark: bool) -> m.Audio:
    record.allow("data", "format")
    kind = record.need_text("format")
    return m.Audio(
        m.Inline(record.need_text("data")), f"audio/{_AUDIO.get(kind, kind)}", cache=mark
    )


_AUDIO = {"mp3": "mpeg"}  # audio formats whose name differs from the media subtype


def _read_tool_call(record: Fields) -> m.ToolCall:
    inner = record
    if "function" in record:
        record.allow("id", "type", "function", "index", "signature", "continuity")
        inner = record.need_inner("function")
        inner.allow("name", "arguments")
    else:
        record.allow("id", "type", "name", "arguments", "signature", "continuity")
    return m.ToolCall(
        record.need_text("id"),
        inner.need_text("name"),
        _read_arguments(inner),
        _read_signed(record),
    )


def _read_arguments(record: Fields) -> dict[str, Any] | None:
    value = record.take("arguments")
    if isinstance(value, str):
        return _parse_arguments(record, value)
    if value is not None and not isinstance(value, Mapping):
        record.refuse("arguments", "must be an object")
    return None if value is None else dict(value)


def _parse_arguments(record: Fields, text: str) -> dict[str, Any] | None:
    if not text.strip():
        return {}
    try:
        value = read_json(text)
    except ValueError:
        problem = "is not JSON"
    else:
        if isinstance(value, dict):
            return value
        problem = "must be an object"
    made: dict[str, Any] = record.mend("arguments", text, record.fail(problem, "arguments"))
    return made


def _read_signed(record: Fields) -> m.Continuity | None:
    """Return the opaque state of a block, which may consist of only a signature."""
    signature = record.text("signature")
    state = _read_continuity(record)
    return m.Continuity(signature) if state is None and signature is not None else state


def _read_continuity(record: Fields) -> m.Continuity | None:
    state = record.take("continuity")
    if state is None or isinstance(state, m.Continuity):
        return state
    inner = record.need_inner("continuity")
    inner.allow(*m.Continuity.__struct_fields__)
    try:
        return msgspec.convert(state, m.Continuity)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{inner.where}: {error}") from error


def _read_source(record: Fields) -> m.Url | m.Inline:
    source = record.take("source")
    if isinstance(source, m.Url | m.Inline):
        return source
    inner = record.need_inner("source")
    kind = inner.take("type")
    if kind == "url":
        inner.allow("type", "url")
        return m.Url(inner.need_text("url"))
    if kind == "inline":
        inner.allow("type", "base64_data")
        return m.Inline(inner.need_text("base64_data"))
    if kind == "base64":  # a block of Anthropic's API
        raise inner.fail(
            "must be url or inline, not base64; write Image(data) or Document(data)", "type"
        )
    raise inner.fail("must be url or inline", "type")


def _read_image_url(record: Fields) -> m.Image:
    url = record.take("image_url")
    mark = read_mark(record)
    if isinstance(url, str):
        return m.Image(m.Url(url), cache=mark)
    inner = record.need_inner("image_url")
    inner.allow("url", "detail")
    return m.Image(
        m.Url(inner.need_text("url")), detail=inner.choice("detail", m.DETAILS), cache=mark
    )


def _read_file(part: Fields, record: Fields, mark: bool) -> m.Document | m.Text:
    if "file_id" in record:
        return _replace(part, "file", record.fail(f"{Fields.UNKNOWN}; send file_data", "file_id"))
    record.allow("filename", "file_data")
    found = read_data_url(record.need_text("file_data"))
    if found is None or found[0] is None:
        record.refuse("file_data", "must be a base64 data URL with a media type")
    return m.Document(m.Inline(found[1]), found[0], record.text("filename"), mark)
