"""The caller's own shapes, read into values: strings, plain records, chat-completion dictionaries.

Nothing is skipped: a key that has no place in our values is an error that names it, unless its value
is ``None`` or an empty list (SDKs dump every field they have).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..errors import InvalidRequestError, UnsupportedContentError, cut, quote
from ..events import read_json
from ..messages import (
    NO_CONFIG,
    Assistant,
    AssistantBlock,
    Continuity,
    Document,
    ForceTool,
    Image,
    Inline,
    Message,
    Opaque,
    RedactedThinking,
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
    new_ulid,
)
from .structured import response_schema_of

_MESSAGES = frozenset({System, User, Assistant, ToolResult})
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)


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
    settings: Mapping[str, Any] | None = None,
) -> Request:
    """Read the arguments of a call into one ``Request``. ``settings`` go over ``config``."""
    if response_schema is not None:
        is_plain = isinstance(response_schema, Mapping)
        response_schema = dict(response_schema) if is_plain else response_schema_of(response_schema)
    said, asked = parse_messages(messages), parse_config(config)
    if settings:
        system, asked = _apply_settings(asked, settings)
        said = said if system is None else (System(system), *said)
    return Request(
        said,
        parse_tools(tools),
        asked,
        response_schema,
        parse_tool_choice(tool_choice),
        model,
        request_id or new_ulid(),
        stream,
        session_id,
        {} if metadata is None else dict(metadata),
    )


def _apply_settings(config: RuntimeConfig, settings: Mapping[str, Any]) -> tuple[str | None, RuntimeConfig]:
    """Return the system prompt and the settings with the keywords of a call over them."""
    known = ("system", *RuntimeConfig.__struct_fields__)
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, "tools", "config", "response_schema", "tool_choice"], 1)
            hint = f"; did you mean {near[0]}?" if near else "; provider-specific settings go into extras="
            raise TypeError(f"{name!r} is not a setting{hint}")
    given = dict(settings)
    system = given.pop("system", None)
    if system is not None and not isinstance(system, str):
        raise InvalidRequestError(f"system must be a string, not {type(system).__name__}")
    return system, parse_config({**msgspec.structs.asdict(config), **given}) if given else config


def parse_messages(messages: Any) -> Sequence[Message]:
    """Read a conversation: a string, or a sequence of values, plain records or chat-completion dicts."""
    if type(messages) is not list and type(messages) is not tuple:
        if isinstance(messages, str):
            return (User(messages),)
        if type(messages) in _MESSAGES:
            return (messages,)
        if isinstance(messages, Mapping) or not isinstance(messages, Sequence):
            raise InvalidRequestError(f"messages must be text or a list of messages, not {type(messages).__name__}")
    if _MESSAGES.issuperset(map(type, messages)):
        return tuple(messages)
    return tuple(
        [
            message if type(message) in _MESSAGES else _Record(message, f"messages[{at}]").message()
            for at, message in enumerate(messages)
        ]
    )


def parse_tools(tools: Any) -> tuple[Tool, ...]:
    """Read tools: values, plain records, or chat-completion dicts with a ``function`` inside."""
    if not tools:
        return ()
    if isinstance(tools, Tool | Mapping) or not isinstance(tools, Sequence):
        raise InvalidRequestError(f"tools must be a list of tools, not {type(tools).__name__}")
    return tuple([tool if type(tool) is Tool else _parse_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)])


def _parse_tool(tool: Any, path: str) -> Tool:
    if callable(tool) and not isinstance(tool, Mapping):
        try:
            return Tool.from_model(tool) if isinstance(tool, type) else Tool.from_function(tool)
        except (TypeError, NameError) as error:
            raise InvalidRequestError(f"{path} cannot be described as a tool: {error}") from error
    record = _Record(tool, path)
    if record.word("type", "function") == "function" and "function" in record.data:
        record.done("type", "function")
        record = _Record(record.data["function"], f"{path}.function")
    parameters = record.data.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequestError(f"{record.path}.parameters must be a JSON Schema object")
    # ``strict`` asks for constrained decoding, which we request by ourselves where a schema allows it.
    record.done("name", "description", "parameters", "type", "strict")
    made = (record.text("name"), record.text("description", ""))
    return Tool(*made) if parameters is None else Tool(*made, dict(parameters))


def parse_config(config: Any) -> RuntimeConfig:
    """Read settings: a ``RuntimeConfig`` or a mapping of its fields."""
    if config is None:
        return NO_CONFIG
    if isinstance(config, RuntimeConfig):
        return config
    if not isinstance(config, Mapping):
        raise InvalidRequestError(f"config must be a RuntimeConfig or a mapping, not {type(config).__name__}")
    for name in config:
        if name not in RuntimeConfig.__struct_fields__:
            raise InvalidRequestError(
                f"config.{cut(str(name))} is not a setting; provider-specific ones go into config.extras"
            )
    try:
        return msgspec.convert(dict(config), RuntimeConfig)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"config: {error}") from error


def parse_tool_choice(choice: Any) -> ToolChoice | None:
    """Read ``"auto" | "required" | "none"``, a ``ForceTool``, or either dictionary form of it."""
    if choice is None or isinstance(choice, ForceTool):
        return choice
    if isinstance(choice, str):
        if choice in ("auto", "required", "none"):
            return choice  # type: ignore[return-value]
        raise InvalidRequestError(f"tool_choice must be auto, required, none or a forced tool, not {quote(choice)}")
    record = _Record(choice, "tool_choice")
    if record.word("type", "") == "function":
        record.done("type", "function")
        inner = _Record(record.data.get("function"), "tool_choice.function")
        inner.done("name")
        return ForceTool(inner.text("name"))
    if record.word("type", "") != "tool":
        raise InvalidRequestError('tool_choice must be {"type": "tool", "name": ...} to force a tool')
    record.done("type", "name")
    return ForceTool(record.text("name"))


class _Record:
    """A mapping being read, with the path that errors name."""

    def __init__(self, data: Any, path: str) -> None:
        if not isinstance(data, Mapping):
            raise InvalidRequestError(f"{path} must be a mapping, not {type(data).__name__}")
        self.data = data
        self.path = path

    # fields

    def text(self, name: str, default: str | None = None) -> str:
        value = self.data.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise InvalidRequestError(f"{self.path}.{name} must be text")
        return value

    def word(self, name: str, default: str) -> str:
        value = self.data.get(name, default)
        return value if isinstance(value, str) else default

    def optional(self, name: str) -> str | None:
        return None if self.data.get(name) is None else self.text(name)

    def items(self, name: str) -> list[_Record]:
        value = self.data.get(name)
        if value is None:
            return []
        if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
            raise InvalidRequestError(f"{self.path}.{name} must be a list")
        return [_Record(item, f"{self.path}.{name}[{at}]") for at, item in enumerate(value)]

    def done(self, *known: str) -> None:
        """Refuse what this reader does not know, rather than drop it."""
        for name, value in self.data.items():
            if name not in known and value is not None and value != []:
                raise InvalidRequestError(
                    f"{self.path}.{cut(str(name))} has no place in a message; remove it or use extras"
                )

    # messages

    def message(self) -> Message:
        role = self.data.get("role")
        readers: dict[Any, Callable[[], Message]] = {
            "system": self._system,
            "developer": self._system,
            "user": self._user,
            "assistant": self._assistant,
            "tool": self._tool,
        }
        if not isinstance(role, str) or role not in readers:
            raise InvalidRequestError(f"{self.path}.role must be system, user, assistant or tool, not {quote(role)}")
        return readers[role]()

    def _system(self) -> System:
        self.done("role", "content")
        if isinstance(self.data.get("content"), str):
            return System(self.text("content"))
        return System("".join([part.system_part() for part in self.items("content")]))

    def _user(self) -> User:
        self.done("role", "content")
        return User(self._content())

    def _tool(self) -> ToolResult:
        self.done("role", "content", "tool_call_id", "is_error")
        failed = self.data.get("is_error") or False
        if not isinstance(failed, bool):
            raise InvalidRequestError(f"{self.path}.is_error must be true or false")
        return ToolResult(self.text("tool_call_id"), self._content(), failed)

    def _assistant(self) -> Assistant:
        reasoning = self.optional("reasoning_content") or self.optional("reasoning")
        self.done("role", "content", "tool_calls", "reasoning_content", "reasoning", "refusal")
        blocks: list[AssistantBlock] = [Thinking(reasoning)] if reasoning else []
        content = self.data.get("content")
        if isinstance(content, str):
            blocks += [Text(content)] if content else []
        else:
            blocks += [part.assistant_block() for part in self.items("content")]
        if refusal := self.optional("refusal"):
            blocks.append(Text(refusal))
        return Assistant(blocks, tool_calls=[call.tool_call() for call in self.items("tool_calls")])

    def _content(self) -> str | list[UserBlock]:
        content = self.data.get("content")
        if isinstance(content, str):
            return content
        if content is None:
            raise InvalidRequestError(f"{self.path}.content is missing")
        return [part.user_block() for part in self.items("content")]

    # blocks

    def system_part(self) -> str:
        self.done("type", "text")
        return self.text("text")

    def user_block(self) -> UserBlock:
        kind = self.data.get("type")
        if kind == "text":
            self.done("type", "text", "signature", "continuity")
            return Text(self.text("text"), self._continuity())
        if kind == "image":
            self.done("type", "source", "media_type", "detail")
            return Image(self._source(), self.optional("media_type"), self._detail(self.data.get("detail")))
        if kind == "image_url":
            return self._image_url()
        if kind == "document":
            self.done("type", "source", "media_type", "name")
            return Document(self._source(), self.text("media_type", "application/pdf"), self.optional("name"))
        if kind == "file":
            return self._file()
        raise UnsupportedContentError(f"{self.path}: content of type {quote(kind)} is not supported")

    def assistant_block(self) -> AssistantBlock:
        kind = self.data.get("type")
        if kind in ("text", "output_text"):
            self.done("type", "text", "signature", "continuity")
            return Text(self.text("text"), self._continuity())
        if kind == "refusal":
            self.done("type", "refusal")
            return Text(self.text("refusal"))
        if kind == "thinking":
            self.done("type", "text", "thinking", "signature", "continuity")
            return Thinking(self.text("text" if "text" in self.data else "thinking"), self._continuity())
        if kind == "redacted_thinking":
            self.done("type", "data", "continuity")
            return RedactedThinking(self.text("data"), self._continuity())
        if kind == "tool_call":
            return self.tool_call()
        if kind == "opaque":
            self.done("type", "data", "continuity")
            return Opaque(self.data.get("data"), self._continuity())
        raise UnsupportedContentError(f"{self.path}: content of type {quote(kind)} cannot be said by an assistant")

    def tool_call(self) -> ToolCall:
        if "function" in self.data:
            self.done("id", "type", "function", "index", "signature", "continuity")
            inner = _Record(self.data["function"], f"{self.path}.function")
            inner.done("name", "arguments")
        else:
            self.done("id", "type", "name", "arguments", "signature", "continuity")
            inner = self
        return ToolCall(self.text("id"), inner.text("name"), inner._arguments(), self._continuity())

    def _arguments(self) -> dict[str, Any] | None:
        value = self.data.get("arguments")
        if isinstance(value, str):
            try:
                value = read_json(value) if value.strip() else {}
            except ValueError as error:
                raise InvalidRequestError(f"{self.path}.arguments is not JSON") from error
        if value is not None and not isinstance(value, Mapping):
            raise InvalidRequestError(f"{self.path}.arguments must be an object")
        return None if value is None else dict(value)

    def _continuity(self) -> Continuity | None:
        state = self.data.get("continuity")
        if state is None:
            signature = self.optional("signature")
            return None if signature is None else Continuity(signature)
        if isinstance(state, Continuity):
            return state
        _Record(state, f"{self.path}.continuity").done(*Continuity.__struct_fields__)
        try:
            return msgspec.convert(state, Continuity)
        except msgspec.ValidationError as error:
            raise InvalidRequestError(f"{self.path}.continuity: {error}") from error

    def _source(self) -> Url | Inline:
        source = self.data.get("source")
        if isinstance(source, Url | Inline):
            return source
        record = _Record(source, f"{self.path}.source")
        if record.data.get("type") == "url":
            record.done("type", "url")
            return Url(record.text("url"))
        if record.data.get("type") == "inline":
            record.done("type", "base64_data")
            return Inline(record.text("base64_data"))
        raise InvalidRequestError(f"{record.path}.type must be url or inline")

    def _detail(self, detail: Any) -> Any:
        if detail not in (None, "auto", "low", "high"):
            raise InvalidRequestError(f"{self.path}.detail must be auto, low or high")
        return detail

    def _image_url(self) -> Image:
        self.done("type", "image_url")
        inner = self.data.get("image_url")
        if isinstance(inner, str):
            return Image(Url(inner))
        record = _Record(inner, f"{self.path}.image_url")
        record.done("url", "detail")
        return Image(Url(record.text("url")), detail=record._detail(record.data.get("detail")))

    def _file(self) -> Document:
        self.done("type", "file")
        record = _Record(self.data.get("file"), f"{self.path}.file")
        record.done("filename", "file_data")
        match = _DATA_URL.fullmatch(record.text("file_data"))
        if match is None:
            raise InvalidRequestError(f"{record.path}.file_data must be a base64 data URL")
        return Document(Inline(match[2]), match[1], record.optional("filename"))
