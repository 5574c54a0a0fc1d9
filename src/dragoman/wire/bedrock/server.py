"""The server side of Converse. A reply is a binary event stream or one body."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from ... import events as ev
from ...errors import ProviderError
from ...eventstream import encode_message
from ...messages import AssistantBlock, Audio, Image, RedactedThinking, Text, Thinking, ToolCall
from ..codec import HttpReply
from ..media import describe_medium
from ..rules import FieldTable
from ..seal import own_fields, seal_of
from ..server import (
    Asked,
    BodyEncoder,
    ReplyEncoder,
    ServerCodec,
    encode_json,
)
from ..server_errors import code_field, message_on, terms_of
from .reply import USAGE
from .server_request import TABLE, read_request

# --- writing replies for clients ---------------------------------------------------------------


class _StreamEncoder(ReplyEncoder):
    content_type = "application/vnd.amazon.eventstream"
    wire = "bedrock"

    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__(asked, created)
        self._index = -1
        self._open = ""  # the type of the open block

    def begin(self, event: ev.MessageStart) -> bytes:
        return _event("messageStart", {"role": "assistant"})

    def text(self, event: ev.TextDelta) -> bytes:
        return self._turn("text") + self._delta({"text": event.text}) if event.text else b""

    def call_start(self, event: ev.ToolUseStart) -> bytes:
        started = {"toolUse": {"toolUseId": event.tool_use_id, "name": event.tool_name}}
        opened = self._turn("call")
        place = {"start": started, "contentBlockIndex": self._index}
        return opened + _event("contentBlockStart", place)

    def call_input(self, event: ev.ToolUseInputDelta) -> bytes:
        return self._delta({"toolUse": {"input": event.partial_json}})

    def call_end(self, event: ev.ToolUseEnd) -> bytes:
        return self._turn("")

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        late = b"".join([self._late(block) for block in complete.final_content])
        stop = _event("messageStop", {"stopReason": self.finish_word(complete)})
        usage = {"usage": USAGE.write(complete.usage), "metrics": {"latencyMs": 0}}
        return late + self._turn("") + stop + _event("metadata", usage)

    def write_error(self, error: ProviderError) -> bytes:
        name = terms_of(error, "bedrock").kind
        headers = {":message-type": "exception", ":exception-type": name[:1].lower() + name[1:]}
        payload = encode_json(_error_record(error))
        return encode_message({**headers, ":content-type": "application/json"}, payload)

    def thinking(self, event: ev.ThinkingDelta) -> bytes:
        opened = self._turn("thinking")
        text = self._delta({"reasoningContent": {"text": event.text}}) if event.text else b""
        if event.signature is None:
            return opened + text
        return opened + text + self._delta({"reasoningContent": {"signature": event.signature}})

    def _late(self, block: AssistantBlock) -> bytes:
        """Return the events for a block that has no deltas, such as media.

        These events are sent at the end of the message.
        """
        if isinstance(block, RedactedThinking):
            opened = self._turn("") + self._turn("hidden")
            return opened + self._delta({"reasoningContent": _hidden(block)})
        if isinstance(block, Audio | Image):
            return self._turn("text") + self._delta({"text": describe_medium(block)})
        return b""

    def _turn(self, kind: str) -> bytes:
        """Switch to a block of type ``kind``; return the stop event of the previous block, if any.

        The new block gets no start event here, because on this wire only calls have one.
        """
        if kind == self._open and kind != "call":
            return b""
        ended = b""
        if self._open:
            ended = _event("contentBlockStop", {"contentBlockIndex": self._index})
        self._open = kind
        self._index += bool(kind)
        return ended

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("contentBlockDelta", {"delta": delta, "contentBlockIndex": self._index})


def _event(name: str, payload: dict[str, Any]) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return encode_message(headers, encode_json(payload))


def _hidden(block: RedactedThinking) -> dict[str, str]:
    return {"redactedContent": block.data}


class _BodyEncoder(BodyEncoder):
    wire = "bedrock"

    def hides_call(self, complete: ev.MessageComplete) -> bool:
        return self.has_unreadable_call(complete.final_content)

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        content = [each for block in complete.final_content for each in _write(block)]
        body = {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": self.finish_word(complete),
            "usage": USAGE.write(complete.usage),
            "metrics": {"latencyMs": 0},
        }
        return encode_json(body)


def _write(block: AssistantBlock) -> list[dict[str, Any]]:
    if isinstance(block, Text):
        if cited := own_fields(block, "bedrock").get("citations"):
            return [{"citationsContent": {"content": [{"text": block.text}], "citations": cited}}]
        return [{"text": block.text}]
    if isinstance(block, ToolCall):
        return [{"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.arguments}}]
    if isinstance(block, Thinking):
        signature = seal_of(block, "bedrock")
        signed = {} if signature is None else {"signature": signature}
        return [{"reasoningContent": {"reasoningText": {"text": block.text, **signed}}}]
    if isinstance(block, RedactedThinking):
        return [{"reasoningContent": _hidden(block)}]
    return [{"text": describe_medium(block)}] if isinstance(block, Audio | Image) else []


def _error_record(error: ProviderError) -> dict[str, Any]:
    return {"message": message_on(error, "bedrock"), **code_field(error)}


class BedrockServer(ServerCodec):
    """The server side of the Converse wire."""

    wire: ClassVar[str] = "bedrock"
    table: ClassVar[FieldTable] = TABLE
    paths = ("/model/{call:path}/converse", "/model/{call:path}/converse-stream")
    path_marks = ("/model/",)
    header_marks = ("amz-sdk-invocation-id",)
    request_id_header = "x-amzn-requestid"
    key_advice = "; set AWS_BEARER_TOKEN_BEDROCK to a key of this gateway, which cannot verify signed requests"
    read_request = staticmethod(read_request)
    stream_type = _StreamEncoder
    body_type = _BodyEncoder

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        return _error_record(error)

    def error(self, error: ProviderError) -> HttpReply:
        """Return an error reply: a message, and the name of the exception in a header."""
        reply = super().error(error)
        kind = terms_of(error, "bedrock").kind
        if reply.status == 404:
            kind = "ResourceNotFoundException"
        named = {"x-amzn-errortype": kind}
        return replace(reply, headers={**reply.headers, **named})
