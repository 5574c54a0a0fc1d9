"""Chat Completions, server side: read requests, write replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...errors import ProviderError
from ...events import (
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    Usage,
)
from ...messages import AssistantBlock, Text, Thinking, ToolCall
from ..codec import HttpReply
from ..losses import FieldTable
from ..server import (
    Asked,
    BodyEncoder,
    ReplyEncoder,
    ServerCodec,
    bearer_token,
    data_frame,
    encode_json,
    known,
    total_tokens,
)
from ..server_errors import headers_of, message_on, status_of, terms_of
from .other_parts import write_other_parts
from .server_request import TABLE, read_request


class OpenAIServer(ServerCodec):
    """The server side of the Chat Completions wire."""

    wire: ClassVar[str] = "openai"
    table: ClassVar[FieldTable] = TABLE

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> Asked:
        """Decode the body of a request."""
        return read_request(body)

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """Return an encoder for the reply, which is one body or a stream."""
        if asked.request.stream:
            return _StreamEncoder(asked, created)
        return BodyEncoder(lambda reply, complete: _write_body(reply, complete, created))

    def error(self, error: ProviderError) -> HttpReply:
        """Return an error as status, headers and body."""
        return HttpReply(
            status_of(error), headers_of(error), encode_json({"error": error_record(error)})
        )

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Return the client's bearer token."""
        return bearer_token(headers)


# --- writing replies for clients ---------------------------------------------------------------

_DONE = b"data: [DONE]\n\n"


class _StreamEncoder(ReplyEncoder):
    content_type = "text/event-stream"

    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__()
        self._created = created
        self._with_usage = asked.stream_usage
        self._head: dict[str, Any] = {}
        self._index = -1  # the index of the open call

    def begin(self, event: MessageStart) -> bytes:
        self._head = {
            "id": _reply_id(event.message_id),
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": event.model,
        }
        self.frame_text(self._chunk({"content": "\0"}))
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, event: TextDelta) -> bytes:
        return self.write_text(event)

    def thinking(self, event: ThinkingDelta) -> bytes:
        return self._chunk({"reasoning_content": event.text}) if event.text else b""

    def call_start(self, event: ToolUseStart) -> bytes:
        self._index += 1
        function = {"name": event.tool_name, "arguments": ""}
        return self._call({"id": event.tool_use_id, "type": "function", "function": function})

    def call_input(self, event: ToolUseInputDelta) -> bytes:
        return self._call({"function": {"arguments": event.partial_json}})

    def call_end(self, event: ToolUseEnd) -> bytes:
        is_empty = event.intent is not None and self.calls[-1].is_blank
        return self._call({"function": {"arguments": "{}"}}) if is_empty else b""

    def write_end(self, complete: MessageComplete) -> bytes:
        other = write_other_parts(complete.final_content)
        late = self._chunk(other) if other else b""
        return late + self._chunk({}, self.finish_word(complete, "openai")) + self._usage() + _DONE

    def write_error(self, error: ProviderError) -> bytes:
        return self._usage() + data_frame({"error": error_record(error)})

    def _usage(self) -> bytes:
        usage = (
            _write_usage(self.complete.usage)
            if self.complete is not None and self._with_usage
            else {}
        )
        return data_frame({**self._head, "choices": [], "usage": usage}) if usage else b""

    def _call(self, call: dict[str, Any]) -> bytes:
        return self._chunk({"tool_calls": [{"index": self._index, **call}]})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return data_frame({**self._head, "choices": [choice]})


def _write_message(reply: BodyEncoder, blocks: Sequence[AssistantBlock]) -> dict[str, Any]:
    """Return the message of a reply that is one body."""
    first = blocks[0] if len(blocks) == 1 else None
    if type(first) is Text and first.continuity is None:  # as in most replies
        return {"role": "assistant", "content": first.text}
    names = [block.name for block in blocks if isinstance(block, ToolCall)]
    calls = [
        {
            "id": call.end.tool_use_id,
            "type": "function",
            "function": {"name": name, "arguments": call.arguments},
        }
        for name, call in zip(names, reply.calls, strict=True)
    ]
    text = "".join([block.text for block in blocks if isinstance(block, Text)])
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
    if thoughts := "".join([block.text for block in blocks if isinstance(block, Thinking)]):
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message | write_other_parts(blocks)


def _write_body(reply: BodyEncoder, complete: MessageComplete, created: int) -> bytes:
    message = _write_message(reply, complete.final_content)
    finish = reply.finish_word(complete, "openai")
    usage = _write_usage(complete.usage)
    body = {
        "id": _reply_id(complete.message_id),
        "object": "chat.completion",
        "created": created,
        "model": reply.model,
        "choices": [
            {
                "index": 0,
                "message": {**message, "refusal": None},
                "logprobs": None,
                "finish_reason": finish,
            }
        ],
        **({"usage": usage} if usage else {}),
    }
    return encode_json(body)


def _reply_id(message_id: str) -> str:
    return "chatcmpl-" + message_id.removeprefix("msg_")


def _write_usage(usage: Usage) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    if usage.input_tokens is not None:
        counts["prompt_tokens"] = usage.input_tokens
    if usage.output_tokens is not None:
        counts["completion_tokens"] = usage.output_tokens
    if (total := total_tokens(usage)) is not None:
        counts["total_tokens"] = total
    if usage.cached_input_tokens is not None or usage.cache_creation_input_tokens is not None:
        counts["prompt_tokens_details"] = known(
            cached_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_creation_input_tokens,
        )
    if usage.reasoning_tokens is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return counts


# --- writing errors for clients ----------------------------------------------------------------


def error_record(error: ProviderError) -> dict[str, Any]:
    """Return an error in the form of this wire. Streams and bodies use the same form."""
    terms = terms_of(error, "openai")
    message = message_on(error, "openai")
    return {"message": message, "type": terms.kind, "param": None, "code": terms.code}
