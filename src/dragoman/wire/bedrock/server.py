"""The server side of Converse. A reply is a binary event stream or one body."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from ... import events as ev
from ...errors import ProviderError
from ...messages import (
    AssistantBlock,
    Audio,
    Continuity,
    Image,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
)
from ..anthropic.server import list_blank_texts
from ..codec import HttpReply
from ..eventstream import MEDIA_TYPE, encode_message
from ..headers import ATTEMPT, PROGRAM, SIGNED, HeaderRule
from ..json import dict_of, dig, entries_of, list_of
from ..media import describe_medium
from ..request_schema import FREE, LIST, MESSAGES, RequestSchema, body_of
from ..rules import FieldTable
from ..seal import hide, own_fields, seal_call, seal_opaque, seal_text, sign_thought
from ..server import (
    Asked,
    BodyEncoder,
    ReplyEncoder,
    ServerCodec,
    encode_json,
    state_of,
)
from ..server_errors import code_field, message_on, terms_of
from .finish import FINISH
from .reply import MORE, USAGE
from .request import DROPPED, NAMED
from .server_errors import TERMS
from .server_request import TABLE, read_request

# --- writing replies for clients ---------------------------------------------------------------


class _StreamEncoder(ReplyEncoder):
    content_type = MEDIA_TYPE
    wire = "bedrock"
    finish = FINISH

    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__(asked, created)
        self._index = -1
        self._open = ""  # the type of the open block
        self._has_input = False  # whether the input of the open call has begun
        self._block = -1  # the content_block_index of the open text or thought
        self._state: Continuity | None = None  # the opaque state of the open block

    def begin(self, event: ev.MessageStart) -> bytes:
        return _event("messageStart", {"role": "assistant"})

    def text(self, event: ev.TextDelta) -> bytes:
        is_new = event.content_block_index != self._block
        if is_new and not event.text:
            return self._carry(seal_text(event.continuity, "bedrock", alone=True))
        opened = self._enter("text", event.content_block_index)
        self._state = event.continuity or self._state
        return opened + self._delta({"text": event.text}) if event.text else opened

    def call_start(self, event: ev.ToolUseStart) -> bytes:
        self._has_input = False
        carried = self._carry(seal_call(event.tool_use_id, event.continuity, "bedrock"))
        started = {"toolUse": {"toolUseId": event.tool_use_id, "name": event.tool_name}}
        opened = self._turn("call")
        place = {"start": started, "contentBlockIndex": self._index}
        return carried + opened + _event("contentBlockStart", place)

    def call_input(self, event: ev.ToolUseInputDelta) -> bytes:
        # Clients parse the joined input, or take an empty one as an object without fields.
        if not self._has_input and not event.partial_json.strip():
            return b""
        self._has_input = True
        return self._delta({"toolUse": {"input": event.partial_json}})

    def call_end(self, event: ev.ToolUseEnd) -> bytes:
        return self._turn("")

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        late = self._turn("")
        blocks = complete.final_content
        late += b"".join([self._late(each, blocks[:at]) for at, each in enumerate(blocks)])
        late += b"".join([self._carry(_seal_part(each)) for each in self.late_states(complete)])
        own = complete.native.get("bedrock", {})
        stop = _event("messageStop", {"stopReason": self.finish_word(complete), **own})
        usage = {"usage": USAGE.write(complete.usage), "metrics": {"latencyMs": 0}}
        return late + self._turn("") + stop + _event("metadata", usage)

    def write_error(self, error: ProviderError) -> bytes:
        return write_exception(error)

    def thinking(self, event: ev.ThinkingDelta) -> bytes:
        if event.redacted is not None:
            return self._hide(hide(event.redacted, event.continuity, "bedrock"))
        opened = self._enter("thinking", event.content_block_index)
        self._state = state_of(event) or self._state
        text = self._delta({"reasoningContent": {"text": event.text}}) if event.text else b""
        return opened + text

    def _hide(self, data: str) -> bytes:
        """Write redacted thinking."""
        opened = self._turn("") + self._turn("hidden")
        return opened + self._delta({"reasoningContent": {"redactedContent": data}})

    def _carry(self, token: str | None) -> bytes:
        """Write a thought without text that carries the sealed state of a text or a call."""
        if token is None:
            return b""
        opened = self._turn("") + self._turn("carrier")
        return opened + self._sign(token) + self._turn("")

    def _sign(self, signature: str) -> bytes:
        return self._delta({"reasoningContent": {"signature": signature}})

    def _late(self, block: AssistantBlock, before: Sequence[AssistantBlock]) -> bytes:
        """Return the events for a block that has no deltas, such as media.

        These events are sent at the end of the message.
        """
        if isinstance(block, Opaque):
            return self._hide(seal_opaque(block, before))
        if isinstance(block, Audio | Image):
            return self._turn("text") + self._delta({"text": describe_medium(block)})
        return b""

    def _turn(self, kind: str) -> bytes:
        """Switch to a block of type ``kind``; return the stop event of the previous block, if any.

        The new block gets no start event here, because on this wire only calls have one.
        """
        if kind == self._open and kind != "call":
            return b""
        ended = self._end() if self._open else b""
        self._open = kind
        self._block = -1
        self._index += bool(kind)
        return ended

    def _enter(self, kind: str, block: int) -> bytes:
        """Switch to the text or thought with this content_block_index."""
        if block == self._block:
            return b""
        ended = self._turn("") + self._turn(kind)
        self._block = block
        return ended

    def _end(self) -> bytes:
        """Return the events that end the open block, with its opaque state."""
        state, self._state = self._state, None
        stop = _event("contentBlockStop", {"contentBlockIndex": self._index})
        if self._open == "thinking":
            signature = sign_thought(self.read_thought(self._block), state, "bedrock")
            return stop if signature is None else self._sign(signature) + stop
        cited = own_fields(state, "bedrock").get("citations", ())
        deltas = b"".join([self._delta({"citation": each}) for each in cited])
        if (token := seal_text(state, "bedrock", alone=False)) is not None:
            self._open = ""
            stop += self._carry(token)
        return deltas + stop

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("contentBlockDelta", {"delta": delta, "contentBlockIndex": self._index})


def _event(name: str, payload: dict[str, Any]) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return encode_message(headers, encode_json(payload))


class _BodyEncoder(BodyEncoder):
    wire = "bedrock"
    finish = FINISH

    def hides_call(self, complete: ev.MessageComplete) -> bool:
        return self.has_unreadable_call(complete.final_content)

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        blocks = complete.final_content
        content: list[dict[str, Any]] = []
        for at, block in enumerate(blocks):
            content += _write_all(block, blocks[:at])
        body = {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": self.finish_word(complete),
            "usage": USAGE.write(complete.usage),
            "metrics": {"latencyMs": 0},
            **complete.native.get("bedrock", {}),
        }
        return encode_json(body)


def _write_all(block: AssistantBlock, before: Sequence[AssistantBlock]) -> list[dict[str, Any]]:
    """Return a block, and the thought that carries its opaque state, if it needs one.

    A call follows the state that it carries, a text leads it.
    """
    if isinstance(block, Opaque):
        return [{"reasoningContent": {"redactedContent": seal_opaque(block, before)}}]
    written = _write(block)
    token = _seal_part(block)
    if token is None:
        return written
    carrier = {"reasoningContent": {"reasoningText": {"text": "", "signature": token}}}
    return [carrier, *written] if isinstance(block, ToolCall) else [*written, carrier]


def _seal_part(block: AssistantBlock) -> str | None:
    if isinstance(block, ToolCall):
        return seal_call(block.id, block.continuity, "bedrock")
    if isinstance(block, Text):
        return seal_text(block.continuity, "bedrock", alone=not block.text)
    return None


def _write(block: AssistantBlock) -> list[dict[str, Any]]:
    if isinstance(block, Text) and not block.text:
        return []
    if isinstance(block, Text):
        if cited := own_fields(block.continuity, "bedrock").get("citations"):
            return [{"citationsContent": {"content": [{"text": block.text}], "citations": cited}}]
        return [{"text": block.text}]
    if isinstance(block, ToolCall):
        return [{"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.arguments}}]
    if isinstance(block, Thinking):
        signature = sign_thought(block.text, block.continuity, "bedrock")
        signed = {} if signature is None else {"signature": signature}
        thought = {"reasoningContent": {"reasoningText": {"text": block.text, **signed}}}
        return [thought] if block.text or signed else []
    if isinstance(block, RedactedThinking):
        data = hide(block.data, block.continuity, "bedrock")
        return [{"reasoningContent": {"redactedContent": data}}]
    return [{"text": describe_medium(block)}] if isinstance(block, Audio | Image) else []


def error_record(error: ProviderError) -> dict[str, Any]:
    """Return the body of the reply for an error."""
    return {"message": message_on(error, TERMS), **code_field(error)}


def write_exception(error: ProviderError) -> bytes:
    """Return the message that ends a failed stream."""
    name = terms_of(error, TERMS).kind
    headers = {":message-type": "exception", ":exception-type": name[:1].lower() + name[1:]}
    payload = encode_json(error_record(error))
    return encode_message({**headers, ":content-type": "application/json"}, payload)


def name_exception(reply: HttpReply, error: ProviderError) -> HttpReply:
    """Return an error reply with the name of the exception in a header."""
    kind = terms_of(error, TERMS).kind
    if reply.status == 404:
        kind = "ResourceNotFoundException"
    return replace(reply, headers={**reply.headers, "x-amzn-errortype": kind})


# The headers that only clients of this wire send.
HEADERS: Mapping[str, HeaderRule] = {
    "amz-sdk-invocation-id": PROGRAM,
    "amz-sdk-request": ATTEMPT,
    "x-amz-date": SIGNED,
    "x-amz-security-token": SIGNED,
}


class BedrockServer(ServerCodec):
    """The server side of the Converse wire."""

    wire: ClassVar[str] = "bedrock"
    terms = TERMS
    headers = HEADERS
    state_place = "signature"
    binding_field = "mismatch_behavior"
    table: ClassVar[FieldTable] = TABLE
    schema = RequestSchema(
        body_of("messages", messages=MESSAGES, system=LIST, inferenceConfig=FREE, toolConfig=FREE)
    )
    paths = ("/model/{call:path}/converse", "/model/{call:path}/converse-stream")
    path_marks = ("/model/",)
    header_marks = ("amz-sdk-invocation-id",)
    request_id_header = "x-amzn-requestid"
    key_advice = "; set AWS_BEARER_TOKEN_BEDROCK to a key of this gateway, which cannot verify signed requests"
    read_request = staticmethod(read_request)
    stream_type = _StreamEncoder
    body_type = _BodyEncoder

    def show_dropped(self, body: Mapping[str, Any], dropped: Collection[int]) -> dict[str, Any]:
        """Return the field that names the thoughts, if the request asks for it."""
        if not dropped or DROPPED not in list_of(body.get(NAMED)):
            return {}
        places = [
            f"messages.{at}.content.{place}"
            for at, message in enumerate(body["messages"])
            for place, block in enumerate(entries_of(message["content"]))
            if dig(block, "reasoningContent", "reasoningText") is not None
        ]
        reason = {"type": "thinking_dropped", "reason": "prefix_binding_mismatch"}
        named = [{**reason, "path": places[at]} for at in dropped]
        return {MORE: {"input_transformations": named}}

    def list_problems(
        self, body: Mapping[str, Any], quirks: Any, *, reasons: bool, known: Collection[str]
    ) -> Iterator[str]:
        """Yield blank texts, and unknown fields of ``block_binding`` (vercel/ai#20728)."""
        yield from list_blank_texts(body)
        binding = dig(body, "additionalModelRequestFields", "thinking", "block_binding")
        for name in dict_of(binding):
            if name != self.binding_field:
                yield f"thinking.adaptive.block_binding.{name}: Extra inputs are not permitted"

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        return error_record(error)

    def error(self, error: ProviderError) -> HttpReply:
        """Return an error reply: a message, and the name of the exception in a header."""
        return name_exception(super().error(error), error)
