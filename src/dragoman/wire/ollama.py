"""Ollama's own wire, ``POST /api/chat``, one JSON object a line.

It exists because the compatible API under ``/v1`` cannot set the context length and cuts long prompts in
silence: here ``num_ctx`` is a quirk of the endpoint. Thinking has a field of its own, and ``/api/ps`` tells
whether the model is in memory. Otherwise prefer ``/v1``, which more servers speak.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import (
    InvalidModelError,
    InvalidResponseError,
    ModelNotLoadedError,
    ProviderError,
    UnsupportedContentError,
    UnsupportedFeatureError,
)
from ..events import Assembler, FinishReason, Usage, read_json
from ..messages import (
    Assistant,
    Image,
    Inline,
    Message,
    Request,
    RuntimeConfig,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    UserBlock,
    join_system,
)
from ..sse import Frame, LineDecoder
from .codec import Decoder, Encoded, Endpoint, HttpReply, HttpRequest, Notes
from .conversation import note_state
from .errors import build_error, is_failure, read_failure
from .openai.errors import ROWS, inband_error
from .openai.request import schema_directive, write_tool
from .projection import merge_extras, root_of, sorted_json, to_bytes


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """What an endpoint of this wire is told with every call."""

    num_ctx: int | None = None
    """The context length to load the model with; without it the server's default holds, and cuts in silence."""

    keep_alive: str | None = None
    """How long the model stays in memory after a call, such as ``10m``."""

    structured: Literal["native", "prompt"] = "native"
    """Whether ``format`` with a JSON Schema works."""


class OllamaCodec(Endpoint[Quirks]):
    """The native wire for one model at one server."""

    wire: ClassVar[str] = "ollama"
    quirks_type = Quirks

    def __init__(self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any) -> None:
        super().__init__(model, base_url, quirks, **settings)
        self._root = root_of(base_url).removesuffix("/api")

    def encode(self, request: Request) -> Encoded:
        """The request as a ``POST``; settings first and messages last."""
        notes = Notes()
        path = None if request.response_schema is None else self.quirks.structured
        body: dict[str, Any] = {"model": request.model or self.model, "stream": request.stream}
        if self.quirks.keep_alive is not None:
            body["keep_alive"] = self.quirks.keep_alive
        if isinstance(request.config.reasoning, int):
            raise UnsupportedFeatureError("config.reasoning: this wire takes an effort, not a budget in tokens")
        if request.config.reasoning is not None:
            body["think"] = False if request.config.reasoning == "none" else request.config.reasoning
        if request.tools and request.tool_choice != "none":
            body["tools"] = [write_tool(tool) for tool in request.tools]
        if request.tool_choice not in (None, "auto", "none"):
            notes.drop("tool_choice", "tool_choice_dropped", "this wire cannot force a call")
        if path == "native":
            body["format"] = sorted_json(request.response_schema)
        options = _write_options(request.config, self.quirks)
        merge_extras(options, request.config.extras, lists=frozenset({"stop"}), coerce=True)
        if options:
            body["options"] = options
        body["messages"] = _write_messages(request, path, notes)
        headers = {"content-type": "application/json", "accept": "application/x-ndjson, application/json"}
        http = HttpRequest("POST", f"{self._root}/api/chat", headers, to_bytes(body))
        return Encoded(http, tuple(notes.items), notes.warnings, path)

    def decoder(self, request: Request, out: Assembler) -> OllamaDecoder:
        """A decoder for the reply, whole or streamed."""
        return OllamaDecoder(request, out, keep_raw=self._keep_raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None) -> ProviderError:
        """What a refusal means: this server says it in one sentence."""
        return build_error(status, headers, read_failure(body), ROWS, now)

    def authorise(self, key: str) -> dict[str, str]:
        """The key as a bearer token; a local server needs none."""
        return {"authorization": f"Bearer {key}"}

    def learn(self, error: ProviderError, request: Request) -> OllamaCodec | None:
        """Ask in words once a 400 has named ``format``."""
        said = error.provider_message or ""
        if error.status != 400 or request.response_schema is None or "format" not in said:
            return None
        if self.quirks.structured == "prompt":
            return None
        return self.taught(replace(self.quirks, structured="prompt"))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Is the model there, and is it in memory?"""
        tags = yield HttpRequest("GET", f"{self._root}/api/tags", {"accept": "application/json"})
        if not _lists(self._checked(tags), self.model):
            raise InvalidModelError(f"the server does not have the model {self.model!r}", status=tags.status)
        loaded = yield HttpRequest("GET", f"{self._root}/api/ps", {"accept": "application/json"})
        if not _lists(self._checked(loaded), self.model):
            raise ModelNotLoadedError("the server has the model and has not loaded it", status=loaded.status)

    def _checked(self, reply: HttpReply) -> Any:
        if reply.status >= 300:
            raise self.error(reply.status, reply.headers, reply.body)
        try:
            return read_json(reply.body)
        except ValueError as error:
            raise InvalidResponseError("the server's list of models is not JSON", status=reply.status) from error


def _lists(data: Any, model: str) -> bool:
    names = {model, f"{model}:latest"}
    models = data.get("models") if isinstance(data, dict) else None
    entries = [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []
    return any(entry.get("name") in names or entry.get("model") in names for entry in entries)


# --- writing a request ------------------------------------------------------------------------------

_OPTIONS = {
    "temperature": "temperature",
    "max_tokens": "num_predict",
    "top_p": "top_p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}


def _write_options(config: RuntimeConfig, quirks: Quirks) -> dict[str, Any]:
    options = {theirs: value for ours, theirs in _OPTIONS.items() if (value := getattr(config, ours)) is not None}
    if config.stop_sequences is not None:
        options["stop"] = list(config.stop_sequences)
    if quirks.num_ctx is not None:
        options["num_ctx"] = quirks.num_ctx
    return options


def _write_messages(request: Request, path: str | None, notes: Notes) -> list[dict[str, Any]]:
    system, rest = join_system(request.messages)
    directive = schema_directive(request.response_schema or {}) if path == "prompt" else None
    said = "\n\n".join([part for part in (system, directive) if part])
    written: list[dict[str, Any]] = [{"role": "system", "content": said}] if said else []
    names = _names(rest)
    for at, message in enumerate(rest, len(request.messages) - len(rest)):
        where = f"messages[{at}]"
        if isinstance(message, User):
            note_state(message, where, notes)
            written.append({"role": "user", **_write_content(message.content, where, notes)})
        elif isinstance(message, ToolResult):
            written.append(_write_result(message, names, where, notes))
        elif isinstance(message, Assistant) and (reply := _write_assistant(message, where, notes)) is not None:
            written.append(reply)
    return written


def _names(messages: Sequence[Message]) -> dict[str, str]:
    """Calls have no ids here: a result is matched by the tool's name and by its place."""
    return {call.id: call.name for message in messages if isinstance(message, Assistant) for call in message.tool_calls}


def _write_content(content: str | Sequence[UserBlock], path: str, notes: Notes) -> dict[str, Any]:
    if isinstance(content, str):
        return {"content": content}
    texts, images = [], []
    for at, block in enumerate(content):
        where = f"{path}.content[{at}]"
        if isinstance(block, Text):
            texts.append(block.text)
        elif isinstance(block, Image) and isinstance(block.source, Inline):
            images.append(block.source.base64_data)
            if block.detail is not None:
                notes.drop(f"{where}.detail", "detail_dropped", "this wire has no place for it")
        else:
            raise UnsupportedContentError(f"{where}: this wire takes text and inline images only")
    return {"content": "\n".join(texts), **({"images": images} if images else {})}


def _write_result(message: ToolResult, names: Mapping[str, str], path: str, notes: Notes) -> dict[str, Any]:
    if message.is_error:
        notes.rewrite(f"{path}.is_error", "is_error_dropped", "this wire cannot mark a result as an error", loss=True)
    note_state(message, path, notes)
    name = names[message.tool_call_id]
    return {"role": "tool", "tool_name": name, **_write_content(message.content, path, notes)}


def _write_assistant(message: Assistant, path: str, notes: Notes) -> dict[str, Any] | None:
    written: dict[str, Any] = {"role": "assistant", "content": message.text}
    calls = []
    for at, block in enumerate(message.content):
        where = f"{path}.content[{at}]"
        if isinstance(block, ToolCall):
            calls.append({"function": {"name": block.name, "arguments": sorted_json(block.arguments)}})
        elif isinstance(block, Text):
            if calls:
                notes.rewrite(where, "order_lost", "text after a tool call is sent before it on this wire", loss=True)
        elif isinstance(block, Thinking) and (block.continuity is None or block.continuity.replayable):
            written["thinking"] = written.get("thinking", "") + block.text
        else:
            notes.drop(where, f"{block.__struct_config__.tag}_dropped", "this wire has no place for it")
        if isinstance(block, Text | ToolCall | Thinking) and block.continuity is not None:
            notes.drop(f"{where}.continuity", "continuity_dropped", "opaque state of another issuer is not sent")
    if calls:
        written["tool_calls"] = calls
    if not calls and not written["content"] and "thinking" not in written:
        notes.drop(path, "message_dropped", "nothing of the message can be sent on this wire")
        return None
    return written


# --- reading a reply --------------------------------------------------------------------------------


class _Function(Struct):
    name: Any = None
    arguments: Any = None


class _Call(Struct):
    id: Any = None
    function: _Function | None = None


class _Message(Struct):
    content: Any = None
    thinking: Any = None
    tool_calls: list[_Call] | None = None


class _Line(Struct):
    model: Any = None
    message: _Message | None = None
    done: Any = None
    done_reason: Any = None
    prompt_eval_count: Any = None
    eval_count: Any = None
    error: Any = None


_lines = msgspec.json.Decoder(_Line)
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "load": "stop", "unload": "stop"}


class OllamaDecoder(Decoder):
    """Reads lines; a whole reply is a stream of one."""

    framing = LineDecoder

    def __init__(self, request: Request, out: Assembler, *, keep_raw: bool = True) -> None:
        super().__init__(request, out, keep_raw=keep_raw)
        self._calls = 0
        self._empty: int | None = None  # the call that has no arguments so far

    def frame(self, frame: Frame) -> None:
        try:
            line = _lines.decode(frame.data)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            line = msgspec.convert(read_json(frame.data), _Line)
        if line.error or (line.message is line.done is None and is_failure(frame.data)):
            self.out.fail(inband_error(read_failure(frame.data)))
            return
        if line.message is None and not line.done:
            raise InvalidResponseError("a line of the reply has no message")
        if not self.out.started:
            self.out.start(line.model if isinstance(line.model, str) else None)
        if line.message is not None:
            self._read(line.message)
        if line.done:
            self._finish(line)

    def body(self, data: bytes) -> None:
        raise InvalidResponseError("the reply is a page, not lines of JSON")

    def at_end(self) -> None:
        self.interrupted()

    def _read(self, message: _Message) -> None:
        if message.thinking or message.content or message.tool_calls:
            self._close_empty()
        if isinstance(message.thinking, str):
            self.out.thinking(message.thinking)
        if isinstance(message.content, str):
            self.out.text(message.content)
        for call in message.tool_calls or ():
            function = call.function or _Function()
            name = function.name if isinstance(function.name, str) else ""
            key, self._calls = self._calls, self._calls + 1
            self._close_empty()
            self.out.tool_start(key, call.id if isinstance(call.id, str) else None, name)
            arguments = function.arguments
            if arguments is None:
                self._empty = key
                continue
            written = arguments if isinstance(arguments, str) else bytes(sorted_json(arguments)).decode()
            self.out.tool_input(key, written)
            self.out.block_end(key)

    def _close_empty(self) -> None:
        """A call without arguments has none if something comes after it, or a good end."""
        if self._empty is not None:
            self.out.block_end(self._empty)
            self._empty = None

    def _finish(self, line: _Line) -> None:
        prompt, made = _count(line.prompt_eval_count), _count(line.eval_count)
        total = prompt + made if prompt is not None and made is not None else None
        self.out.usage(Usage(prompt, made, total_tokens=total))
        word = line.done_reason if isinstance(line.done_reason, str) and line.done_reason else None
        reason: FinishReason = "stop" if word is None else _FINISH.get(word, "error")
        if reason != "length":
            self._close_empty()
        # It says "stop" with calls, too [aa280a39-2f03790c].
        self.out.finish("tool_calls" if reason == "stop" and self._calls else reason, word)
        self.done = True


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
