"""The Gemini wire, server side: read requests, write replies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import parse_qs

from ... import events as ev
from ... import messages as m
from ...errors import MalformedToolCallError, ProviderError
from ..headers import BILLED, KEY, PROGRAM, TIMEOUT, HeaderRule
from ..json import dig, known
from ..listing import ListedModel
from ..media import describe_medium
from ..request_schema import FREE, LIST, RequestSchema, body_of
from ..rules import FieldTable
from ..seal import (
    is_foreign,
    is_from,
    seal,
    seal_call,
    seal_hidden,
    seal_opaque,
    seal_text,
    sign_thought,
)
from ..server import (
    Asked,
    BodyEncoder,
    ReplyEncoder,
    ServerCodec,
    data_frame,
    encode_json,
    escape_line_ends,
    state_of,
)
from ..server_errors import code_of, message_on, status_of, terms_of
from .finish import FINISH
from .reply import USAGE, write_picture
from .request import DECLARED, FLAG
from .server_errors import TERMS
from .server_request import TABLE, read_request, unwrap_count

# --- writing replies for clients ---------------------------------------------------------------


class _Encoder(ReplyEncoder):
    wire = "gemini"
    finish = FINISH

    def hides_call(self, complete: ev.MessageComplete) -> bool:
        return complete.finish_reason != "length" and self.has_unreadable_call(
            complete.final_content
        )

    def finish_word(self, complete: ev.MessageComplete) -> str:
        # This wire has no term for calls, whether they can be read or not.
        is_unsound = isinstance(self.unsound, MalformedToolCallError)
        is_cut = complete.finish_reason == "length"
        if is_unsound and not is_cut and complete.finish_raw not in self.finish.written:
            return "STOP"
        called = complete.finish_reason == "tool_calls"
        return "STOP" if called else super().finish_word(complete)

    def chunk(self, parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
        """Return a chunk, which is also the form of a body."""
        assert self.start is not None
        # Google's SDKs drop a whole exchange from the history of a chat if one of its chunks has
        # no parts (google-genai 3.0.0, ``chats._validate_content``, seen 2026-11-18). Google ends
        # its own streams with an empty text.
        content = {"parts": parts or [{"text": ""}], "role": "model"}
        candidate: dict[str, Any] = {"content": content, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        chunk = {
            "modelVersion": self.model,
            "responseId": self.start.message_id,
            "candidates": [candidate],
        }
        usage = self.usage_record(USAGE)
        return {**chunk, "usageMetadata": usage} if usage else chunk


class _StreamEncoder(_Encoder):
    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__(asked, created)
        self._texts: set[int] = set()  # the text blocks of which a fragment was sent
        self._state: m.Continuity | None = None  # the opaque state of the open call
        # the state of another wire, of the open text or thought, which is sent at its end
        self._foreign: m.Continuity | None = None
        self._open = -1  # the content_block_index of the open text or thought
        self._is_thought = False

    # Google's SDK for Python splits a stream at these characters (google-genai 3.0.0, 2026-11-19).
    def feed(self, event: ev.Event) -> bytes:
        return escape_line_ends(super().feed(event))

    def end(self) -> bytes:
        return escape_line_ends(super().end())

    def begin(self, event: ev.MessageStart) -> bytes:
        # Nothing is sent before the first part, because clients create an empty block for an empty
        # chunk.
        self.frame_text(data_frame(self.chunk([{"text": "\0"}])))
        return b""

    def text(self, event: ev.TextDelta) -> bytes:
        signed = self._enter(event.content_block_index)
        state = event.continuity
        if event.text:
            self._texts.add(event.content_block_index)
        if is_foreign(state, "gemini"):
            self._foreign = state
            self._is_thought = False
            state = None
        if state is None:
            return signed + self.write_text(event) if event.text else signed
        part = _write_text(event.text, state, alone=False)
        return signed if part is None else signed + data_frame(self.chunk([part]))

    def thinking(self, event: ev.ThinkingDelta) -> bytes:
        signed = self._enter(event.content_block_index)
        if event.redacted is not None:
            part = _write_hidden(event.redacted, event.continuity)
            return signed + data_frame(self.chunk([part]))
        state = state_of(event)
        if is_foreign(state, "gemini"):
            self._foreign = state
            self._is_thought = True
            state = None
        written = _write_thought(event.text, sign_thought(event.text, state, "gemini"))
        return signed + data_frame(self.chunk([written])) if written is not None else signed

    def _enter(self, block: int) -> bytes:
        """Note the block that an event belongs to; return the state of the block before it.

        The sealed state of a text or a thought is sent at its end, and signs all of its parts.
        """
        if block == self._open:
            return b""
        state, self._foreign = self._foreign, None
        last, self._open = self._open, block
        if self._is_thought:
            token = sign_thought(self.read_thought(last), state, "gemini")
            return b"" if token is None else data_frame(self.chunk([_carrier(token)]))
        part = _write_text("", state, alone=last not in self._texts)
        return b"" if part is None else data_frame(self.chunk([part]))

    def call_start(self, event: ev.ToolUseStart) -> bytes:
        self._state = event.continuity
        return self._enter(event.content_block_index)

    def call_end(self, event: ev.ToolUseEnd) -> bytes:
        # A call is sent when it is complete, because its input is an object on this wire.
        arguments = event.final_input if self.calls[-1].is_object else None
        part = _write_call(event.tool_use_id, self.tool_name, arguments, self._state)
        return data_frame(self.chunk([part]))

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        # Media and opaque parts are known only at the end of the message.
        blocks = complete.final_content
        late = [each for each in blocks if isinstance(each, m.Opaque | m.Audio | m.Image)]
        parts = [*_write_parts(late), *map(_carry, self.late_states(complete))]
        signed = self._enter(-1)
        return signed + data_frame(self.chunk(parts, self.finish_word(complete)))

    def write_error(self, error: ProviderError) -> bytes:
        usage = data_frame(self.chunk([])) if self.usage_record(USAGE) else b""
        return usage + data_frame({"error": _error_record(error)})


class _BodyEncoder(_Encoder, BodyEncoder):
    def write_end(self, complete: ev.MessageComplete) -> bytes:
        parts = _write_parts(complete.final_content)
        return encode_json(self.chunk(parts, self.finish_word(complete)))


class _ArrayEncoder(ReplyEncoder):
    """Write a stream as one JSON array, for clients that do not request server-sent events.

    The elements are the events that another encoder produces.
    """

    content_type = "application/json; charset=UTF-8"

    def __init__(self, inner: ReplyEncoder) -> None:
        super().__init__(inner.asked, inner.created)
        self._inner = inner
        self._is_open = False

    # Google's SDK for Python splits a stream at these characters (google-genai 3.0.0, 2026-11-19).
    def feed(self, event: ev.Event) -> bytes:
        return self._write(self._inner.feed(event))

    def end(self) -> bytes:
        return self._close(self._inner.end())

    def fail(self, error: ProviderError) -> bytes:
        last = self._close(self._inner.fail(error))
        self.unsound = self._inner.unsound
        return last

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        return self._close(self._inner.write_end(complete))

    def write_error(self, error: ProviderError) -> bytes:
        return self._close(self._inner.write_error(error))

    def _write(self, frames: bytes) -> bytes:
        written = b""
        for frame in frames.split(b"\n\n"):
            if frame:
                written += (b",\r\n" if self._is_open else b"[") + frame.removeprefix(b"data: ")
                self._is_open = True
        return written

    def _close(self, frames: bytes) -> bytes:
        written = self._write(frames)
        return written + (b"]" if self._is_open else b"[]")


def _write_parts(blocks: Sequence[m.AssistantBlock]) -> list[dict[str, Any]]:
    return [part for block in blocks if (part := _write_part(block)) is not None]


def _write_part(block: m.AssistantBlock) -> dict[str, Any] | None:
    if isinstance(block, m.Text):
        return _write_text(block.text, block.continuity, alone=not block.text)
    if isinstance(block, m.Thinking):
        signature = sign_thought(block.text, block.continuity, "gemini")
        return _write_thought(block.text, signature)
    if isinstance(block, m.RedactedThinking):
        return _write_hidden(block.data, block.continuity)
    if isinstance(block, m.ToolCall):
        return _write_call(block.id, block.name, block.arguments, block.continuity)
    if isinstance(block, m.Opaque):
        is_own = isinstance(block.data, dict) and is_from(block, "gemini")
        own: dict[str, Any] = block.data
        return own if is_own else _write_thought("", seal_opaque(block))
    if isinstance(block, m.Image):
        return _write_picture(block)
    if isinstance(block, m.Audio) and isinstance(block.source, m.Inline):
        return {"inlineData": {"mimeType": block.media_type, "data": block.source.base64_data}}
    return None


def _write_picture(block: m.Image) -> dict[str, Any]:
    if isinstance(block.source, m.Url):
        return {"text": describe_medium(block)}
    state = block.continuity
    if state is None or not is_foreign(state, "gemini"):
        return write_picture(block)
    signature = seal("thinking", state)
    inline = {"mimeType": block.media_type, "data": block.source.base64_data}
    return {"inlineData": inline, "thoughtSignature": signature}


def _write_thought(text: str, signature: str | None) -> dict[str, Any] | None:
    if not text and signature is None:
        return None
    return {"text": text, "thought": True, **_signed(signature)}


def _write_hidden(data: str, state: m.Continuity | None) -> dict[str, Any]:
    return _carrier(seal_hidden(data, state))


def _write_text(text: str, state: m.Continuity | None, *, alone: bool) -> dict[str, Any] | None:
    token = seal_text(state, "gemini", alone=alone) or _own_signature(state)
    return {"text": text, **_signed(token)} if text or token else None


def _own_signature(state: m.Continuity | None) -> str | None:
    return None if state is None or is_foreign(state, "gemini") else state.signature


def _signed(signature: str | None) -> dict[str, str]:
    return {} if signature is None else {"thoughtSignature": signature}


def _carry(block: m.Text | m.ToolCall) -> dict[str, Any]:
    """Return a thought that carries the state of a call or a text that was sent before."""
    state = block.continuity or m.Continuity()
    if isinstance(block, m.ToolCall):
        return _carrier(seal("call", state, block.id))
    return _carrier(seal("text", state))


def _carrier(token: str) -> dict[str, Any]:
    """Return a thought without text that carries sealed state."""
    return {"text": "", "thought": True, "thoughtSignature": token}


def _write_call(
    call_id: str, name: str, arguments: dict[str, Any] | None, state: m.Continuity | None
) -> dict[str, Any]:
    call: dict[str, Any] = {"id": call_id, "name": name}
    if arguments is None:
        # The rest of this call is never sent, which shows the client that the call is truncated.
        return {"functionCall": {**call, "willContinue": True}}
    token = seal_call(call_id, state, "gemini") or _own_signature(state)
    return {"functionCall": {**call, "args": arguments}, **_signed(token)}


# --- writing errors for clients ----------------------------------------------------------------


# For these HTTP statuses, the status name does not depend on the error class.
_STATUSES = {403: "PERMISSION_DENIED", 404: "NOT_FOUND", 503: "UNAVAILABLE"}


_ERROR_INFO = (
    "type.googleapis.com/google.rpc.ErrorInfo"  # the type that has machine-readable codes
)


def _error_record(error: ProviderError) -> dict[str, Any]:
    status = status_of(error)
    code = code_of(error)
    record = {
        "code": status,
        "message": message_on(error, TERMS),
        "status": _STATUSES.get(status, terms_of(error, TERMS).kind),
    }
    if code is not None:
        record["details"] = [{"@type": _ERROR_INFO, "reason": code}]
    return record


# The headers that only clients of this wire send.
HEADERS: Mapping[str, HeaderRule] = {
    "x-goog-api-key": KEY,
    "x-goog-api-client": PROGRAM,
    "x-goog-user-project": BILLED,
    "x-server-timeout": TIMEOUT,
}


class GeminiServer(ServerCodec):
    """The server side of the Gemini wire."""

    wire: ClassVar[str] = "gemini"
    terms = TERMS
    headers = HEADERS
    state_place = "call"
    table: ClassVar[FieldTable] = TABLE
    schema = RequestSchema(
        body_of(
            "contents",
            contents=LIST,
            systemInstruction=FREE,
            generationConfig=FREE,
            tools=LIST,
        ),
        methods=("generateContent", "streamGenerateContent", "countTokens"),
    )
    paths = (
        "/v1beta/models/{call:path}",
        "/v1/models/{call:path}",
        "/v1/projects/{call:path}",
        "/v1beta1/{call:path}",
    )
    base_path = "/v1beta"
    # Gemini CLI removes thoughts from its history, and their signatures with them.
    returns_state: ClassVar[bool] = False
    path_marks = ("/v1beta",)
    header_marks = ("x-goog-api-key", "x-goog-api-client")
    read_request = staticmethod(read_request)
    stream_type = _StreamEncoder
    body_type = _BodyEncoder
    has_url_keys: ClassVar[bool] = True
    key_header: ClassVar[str] = "x-goog-api-key"

    def list_problems(
        self, body: Mapping[str, Any], quirks: Any, *, reasons: bool, known: Collection[str]
    ) -> Iterator[str]:
        """Yield whether the field of combined tools is missing, or unknown to the server.

        Gemini's API demands it since Gemini 3 (ag2ai/ag2#3145), and Vertex AI does not know it
        (strands-agents/harness-sdk#3646).
        """
        included = dig(body, "toolConfig", FLAG)
        kinds = {name for tool in body.get("tools", ()) for name in tool}
        is_mixed = DECLARED in kinds and len(kinds) > 1
        if included is not None and quirks.server_invocations is False:
            yield f"Invalid JSON payload received. Unknown name \"{FLAG}\" at 'tool_config'"
        elif is_mixed and quirks.server_invocations and not included:
            yield (
                "Please enable tool_config.include_server_side_tool_invocations to use Built-in "
                "tools with Function calling."
            )

    def list_models(self, models: Sequence[ListedModel]) -> dict[str, Any]:
        return {"models": [self.show_model(model) for model in models]}

    def show_model(self, model: ListedModel) -> dict[str, Any]:
        methods = ["generateContent", "streamGenerateContent", "countTokens"]
        if model.is_known_to("embeddings"):
            methods = ["embedContent", "batchEmbedContents"]
        return known(
            name=f"models/{model.name}",
            displayName=model.name,
            supportedGenerationMethods=methods,
            inputTokenLimit=model.window,
            outputTokenLimit=model.longest_reply,
            thinking=model.is_known_to("thinking"),
        )

    def fit_stream(self, encoder: ReplyEncoder, query: str) -> ReplyEncoder:
        """Return an encoder for a JSON array, unless the query asks for server-sent events."""
        values = parse_qs(query)
        is_sse = values.get("alt", values.get("$alt")) == ["sse"]
        return encoder if is_sse else _ArrayEncoder(encoder)

    def is_count(self, path: str) -> bool:
        return path.endswith(":countTokens")

    def unwrap(self, fields: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return the fields; a request to count tokens may be nested in an object."""
        return unwrap_count(fields) if self.is_count(path) else fields

    def write_count(self, count: int) -> bytes:
        return encode_json({"totalTokens": count})

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        return {"error": _error_record(error)}
