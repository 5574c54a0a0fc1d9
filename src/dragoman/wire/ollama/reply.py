"""Decode replies of the ollama wire: one JSON object per line."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from ...errors import InvalidResponseError
from ...events import Assembler
from ...messages import Request
from ..codec import Decoder
from ..errors import is_failure, read_failure
from ..json import read_as, string_of
from ..openai.errors import inband_error
from ..sse import Frame, LineDecoder
from ..usage import UsageMap
from .finish import FINISH


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
USAGE = UsageMap({"input_tokens": "prompt_eval_count", "output_tokens": "eval_count"})


class OllamaDecoder(Decoder):
    """Decode replies of the ollama wire. A reply that is not streamed is a stream of one line."""

    framing = LineDecoder
    finish_words = FINISH.read

    def __init__(self, request: Request, out: Assembler, *, keep_raw: bool = True) -> None:
        super().__init__(request, out, keep_raw=keep_raw)
        self._calls = 0

    def frame(self, frame: Frame) -> None:
        line = read_as(_lines, frame.data)
        if line.error or (line.message is line.done is None and is_failure(frame.data)):
            self.out.fail(inband_error(read_failure(frame.data)))
            return
        if line.message is None and not line.done:
            raise InvalidResponseError("a line of the reply has no message")
        if not self.out.started:
            self.start(line.model)
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
            self.release_end()
        if isinstance(message.thinking, str):
            self.out.thinking(message.thinking)
        if isinstance(message.content, str):
            self.out.text(message.content)
        for call in message.tool_calls or ():
            function = call.function or _Function()
            self.release_end()
            self.start_call(self._calls, call.id, function.name)
            self.end_call(self._calls, function.arguments)
            self._calls += 1

    def _finish(self, line: _Line) -> None:
        self.out.usage(USAGE.read(asdict(line)))
        word = string_of(line.done_reason) or None
        reason = self.reason_for(word)  # Ollama sends "stop" even if the reply has tool calls
        if reason != "length":
            self.release_end()
        self.out.finish(reason, word)
        self.done = True
