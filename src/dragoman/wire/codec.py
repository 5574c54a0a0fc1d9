"""The interface of a wire's client side: ``Codec``, and ``Decoder`` for bodies and streams."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

from msgspec import Struct

from ..capabilities import Capabilities
from ..errors import (
    InvalidResponseError,
    ProviderError,
    StreamInterruptedError,
    quote,
    without_frames,
)
from ..events import Assembler, Event, FinishReason, Raw, read_json
from ..messages import LossWarning, Request
from .described import Description
from .eventstream import EventStreamDecoder, EventStreamError
from .json import reply_text, string_of, to_bytes
from .sse import BARE, Frame, LineDecoder, SseDecoder
from .terms import read_terms

# Largest body, in bytes. Text replies are far smaller; the limit bounds the memory that a hostile
# server can use.
MAX_BODY = 16 * 1024 * 1024
MAX_EVENTS = 2_000_000
# An error for an unreadable reply contains at most this many bytes of the reply.
MAX_KEPT = 16 * 1024
# Largest number of lines in a stream. It is higher than the number of events, because comments and
# empty lines are lines too.
MAX_LINES = 4 * MAX_EVENTS
# Largest number of objects and lists in one body or event. An empty object has two bytes in a
# body, but takes hundreds of bytes of memory once it is decoded.
MAX_CONTAINERS = 500_000
# Largest stream, in bytes. The limit is higher than for a body, because a stream sends each
# fragment of text inside an event with about a hundred bytes of JSON.
MAX_STREAM = 1024 * 1024 * 1024


# Received chunks are joined until they have this many bytes. Each bytes object has 33 bytes of
# overhead, and a stream has tens of thousands of chunks.
_PAGE = 4096
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_BOM = b"\xef\xbb\xbf"
Framing: TypeAlias = SseDecoder | LineDecoder | EventStreamDecoder


class HttpRequest(Struct, frozen=True):
    """An HTTP request without credentials, which the provider adds when it sends the request."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    url: str
    headers: dict[str, str]
    body: bytes = b""


class HttpReply(Struct, frozen=True):
    """A complete HTTP reply, for exchanges that are not streamed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


HINTS = frozenset({"detail_dropped"})
"""The codes of losses that are only hints: ``on_loss="reject"`` does not apply to them."""


class Note(Struct, frozen=True, kw_only=True):
    """How one part of a request was rewritten or dropped, because the wire cannot express it."""

    outcome: Literal["rewritten", "dropped"]
    code: str
    path: str
    detail: str
    loss: bool


class Notes(Struct, eq=False):
    """Collect notes on the parts that a codec rewrites or drops; losses become warnings."""

    items: list[Note] = []

    def drop(self, path: str, code: str, detail: str) -> None:
        """Record that a part of the request is not sent."""
        self.items.append(Note(outcome="dropped", code=code, path=path, detail=detail, loss=True))

    def rewrite(self, path: str, code: str, detail: str, *, loss: bool = False) -> None:
        """Record that a part is sent in another form.

        ``loss`` means that the other form has less information.
        """
        self.items.append(
            Note(outcome="rewritten", code=code, path=path, detail=detail, loss=loss)
        )

    @property
    def warnings(self) -> tuple[LossWarning, ...]:
        """A warning for each note that is a loss."""
        if not self.items:
            return ()
        return tuple(
            [LossWarning(note.code, note.path, note.detail) for note in self.items if note.loss]
        )


Questions: TypeAlias = Generator[HttpRequest, HttpReply, int | None]
"""Requests that count tokens: yield each, receive its reply, and return the count, if any."""


class _Encoded(Struct, frozen=True):
    http: HttpRequest
    notes: tuple[Note, ...] = ()


class Encoded(_Encoded, frozen=True, kw_only=True):
    """An encoded request, and notes on the parts that were rewritten or dropped.

    ``terms`` are the terms of sale that the request asks for, by kind.
    """

    warnings: tuple[LossWarning, ...] = ()
    structured_path: Literal["native", "tool", "prompt"] | None = None
    terms: Mapping[str, str] = {}


JSON_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}


def encode_post(
    url: str,
    body: dict[str, Any],
    notes: Notes,
    path: Literal["native", "tool", "prompt"] | None,
    headers: Mapping[str, str] = JSON_HEADERS,
) -> Encoded:
    """Return a body as a ``POST`` request with its encoding notes."""
    return Encoded(
        HttpRequest("POST", url, dict(headers), to_bytes(body)),
        tuple(notes.items),
        warnings=notes.warnings,
        structured_path=path,
        terms=read_terms(body),
    )


class Codec(Protocol):
    """One wire, for one model at one address. A codec does no I/O and reads no clock."""

    wire: ClassVar[str]

    @classmethod
    def connect(
        cls,
        model: str,
        base_url: str,
        quirks: Any,
        capabilities: Capabilities,
        *,
        vendor: str | None = None,
        keep_raw: bool = True,
    ) -> Self:
        """Return a codec for an endpoint, given its quirks and the model's known capabilities."""
        ...

    @property
    def issuer_vendor(self) -> str | None:
        """The vendor whose opaque state this endpoint issues and accepts."""

    def encode(self, request: Request) -> Encoded:
        """Encode a request; the same request always gives the same bytes."""
        ...

    def decoder(self, request: Request, out: Assembler) -> Decoder:
        """Return a decoder that reads the reply to ``request`` and calls the assembler ``out``."""
        ...

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> ProviderError:
        """Return the error for a reply with an error status.

        ``now`` (epoch seconds) resolves dates in headers.
        """
        ...

    def authorise(self, key: str) -> dict[str, str]:
        """Return the headers that contain the API key."""
        ...

    def ready(self) -> Generator[HttpRequest, HttpReply, Description | None]:
        """Check that the model can answer; return what the server states about it, if anything.

        Yield each request, receive its reply, and raise an error for the first problem.
        """
        ...

    def learn(self, error: ProviderError, request: Request) -> Codec | None:
        """Return a codec that avoids the field that the error names.

        Return ``None`` if the error names no field that the codec can avoid.
        """


class Decoder(ABC):
    """Decode a reply, a stream of events or one body, by calling methods of an ``Assembler``.

    The first byte of the reply shows whether it is a stream or a body. The request and the content
    type do not show this: servers answer a streaming request with a JSON error or a complete body,
    and label event streams as JSON. A decoding error ends the message and is stored in ``error``;
    no exception escapes.
    """

    framing: ClassVar[type[Framing]] = SseDecoder
    finish_words: ClassVar[Mapping[str, FinishReason]] = {}
    """The meaning of each term of the wire for the reason why a reply ended."""

    def __init__(self, request: Request, out: Assembler, *, keep_raw: bool = True) -> None:
        self.out = out
        self.done = False
        self.several = False  # whether the request asks for several choices
        self.held: Any = None  # the key of a call whose end is not reported yet
        self._asked_for_stream = request.stream
        self._keep_raw = keep_raw
        self._kept: list[bytes] = []
        self._size = 0
        self._frames = 0
        self._sse: Framing | None = None
        self._is_body = False
        self._head = b""  # the first bytes of the reply, without leading white space
        if keep_raw:
            out.kept = Raw(self._kept, _decode_body)

    @property
    def error(self) -> ProviderError | None:
        """The error to raise once the events are delivered, if any."""
        return self.out.error

    def feed(self, chunk: bytes) -> list[Event]:
        """Decode the next bytes of the reply; return the events that they complete."""
        if self.done:
            return []
        try:
            self._take(chunk)
        # Every reply, however malformed, must end in events or in a ProviderError.
        except Exception as error:
            self._broken(error)
        return self._take_events()

    def end(self) -> list[Event]:
        """End the reply; return the events that close the message."""
        if not self.done:
            try:
                self._over()
            except Exception as error:
                self._broken(error)
            self.done = True
        return self._take_events()

    def fail(self, error: ProviderError) -> list[Event]:
        """End the reply with a transport error; return the events that close the message."""
        self.done = True
        self.out.fail(error)
        return self._take_events()

    # --- methods that each wire implements

    @abstractmethod
    def frame(self, frame: Frame) -> None:
        """Decode one event of a stream."""

    @abstractmethod
    def body(self, data: bytes) -> None:
        """Decode a complete body."""

    @abstractmethod
    def at_end(self) -> None:
        """Finish the message, or fail, when a stream ends without an end mark."""

    def facts(self) -> dict[str, Any]:
        """Return a stream's finish reason and usage, which ``raw`` contains next to ``chunks``."""
        return {}

    # --- methods that the decoders of all wires share

    def lose(self, code: str, path: str, detail: str) -> None:
        """Add a warning about a dropped part of the reply, once for each warning code."""
        if all(warning.code != code for warning in self.out.warnings):
            self.out.warnings = (*self.out.warnings, LossWarning(code, path, detail))

    def lose_choice(self, path: str) -> None:
        """Add a warning that the reply has a second choice, which is dropped.

        If the request asked for several choices, the encoder has already added this warning.
        """
        if not self.several:
            self.lose("choices_dropped", path, "a reply has one choice; the others are in raw")

    def reason_for(self, word: str | None) -> FinishReason:
        """Return the finish reason from the term of the wire; an unknown term means an error.

        Some servers send the term for a usual end although the reply has a call (case:
        anthropic/call-with-end-turn), or the term for calls although it has none.
        """
        reason: FinishReason = "stop" if word is None else self.finish_words.get(word, "error")
        if reason not in ("stop", "tool_calls"):
            return reason
        return "tool_calls" if self.out.has_calls else "stop"

    def start(self, model: Any = None) -> None:
        """Start the message, unless it has started; some servers announce it twice."""
        if not self.out.started:
            self.out.start(model if isinstance(model, str) else None)

    def start_call(
        self, key: Any, call_id: Any, name: Any, signature: str | None = None, opaque: Any = None
    ) -> None:
        """Start a call; an id or a name that is not a string is ignored.

        ``signature`` and ``opaque`` are the opaque state that arrived with the start of the call.
        """
        known = call_id if isinstance(call_id, str) else None
        self.out.tool_start(key, known, string_of(name), signature, opaque)

    def end_call(self, key: Any, arguments: Any) -> None:
        """End a call whose arguments arrived complete, as an object or as text, or not at all."""
        if arguments is None:
            self.hold_end(key)
            return
        text = arguments if isinstance(arguments, str) else reply_text(arguments)
        self.out.tool_input(key, text)
        self.out.block_end(key)

    def hold_end(self, key: Any) -> None:
        """Report the end of a call without input later.

        If the reply continues or ends normally, the input is ``{}``. If the token limit truncates
        the reply here, the input is unknown.
        """
        self.release_end()
        self.held = key

    def release_end(self) -> None:
        """Report the end of a call without input as complete: the reply continued or ended."""
        if self.held is not None:
            self.out.block_end(self.held)
            self.held = None

    def interrupted(self) -> None:
        """Fail the message, because the stream ended before its end mark."""
        self.out.fail(StreamInterruptedError("the reply ended before it was finished"))

    def _take(self, chunk: bytes) -> None:
        sse = self._sse
        if self._keep_raw or sse is None:
            _keep(self._kept, chunk)
        size = self._size = self._size + len(chunk)
        if len(self._head) < 12 and not self._is_body:
            self._head = (self._head + chunk).lstrip()[:12]
        limit = MAX_BODY if sse is None else MAX_STREAM
        if size > limit:
            raise InvalidResponseError(f"the reply is longer than {limit} bytes")
        if sse is None:
            chunk = self._start_stream()
            sse = self._sse
            if sse is None:
                return
        # Each object has at least one byte, so a shorter stream cannot have too many objects.
        may_be_crowded = size > MAX_CONTAINERS
        out = self.out
        frames = sse.feed(chunk)
        self._frames += len(frames)
        for frame in frames:
            if frame.event in _WITHOUT_CONTENT and _lacks_content(frame):
                continue
            out.offset = frame.offset
            if may_be_crowded:
                _refuse_crowded(frame.data)
            self.frame(frame)
            if self.done or out.complete is not None or out.error is not None:
                self.done = True
                return
        if self._frames > MAX_EVENTS or sse.lines > MAX_LINES:
            what = f"{MAX_EVENTS} events" if self._frames > MAX_EVENTS else f"{MAX_LINES} lines"
            raise InvalidResponseError(f"the stream has more than {what}")

    def _start_stream(self) -> bytes:
        """Return the bytes received so far if they are known to be a stream, otherwise ``b""``."""
        head = self._head.removeprefix(_BOM).lstrip()
        if self._is_body or not head or (len(head) < len(_BOM) and _BOM.startswith(head)):
            return b""
        self._is_body = head[:1] in (b"<" if self.framing is LineDecoder else b"{[<")
        if self._is_body:
            return b""
        self._sse = self.framing()
        # The caller may read ``raw`` before the stream ends, so its decoder is set now.
        if self.out.kept is not None:
            show = _decode_line if self._is_line else _decode_stream
            self.out.kept.decode = partial(show, self.framing, {})
        arrived = b"".join(self._kept)
        if not self._keep_raw:
            self._kept.clear()
        return arrived

    def _over(self) -> None:
        if self._sse is not None:
            self._over_stream(self._sse)
        elif self._is_body:
            data = b"".join(self._kept)
            _refuse_crowded(data)
            self.body(_unmarked(data))
        elif self._asked_for_stream:
            # vLLM and llama-cpp-python send status 200 with an empty body when generation fails.
            self.interrupted()
        else:
            raise InvalidResponseError("the reply is empty")

    def _over_stream(self, sse: Framing) -> None:
        for frame in sse.end():
            self._frames += 1
            if frame.event in _WITHOUT_CONTENT and _lacks_content(frame):
                continue
            self.out.offset = frame.offset
            # The last event may be truncated by the end of the stream. A body is not a stream.
            is_body = self._is_line and not self.out.started
            with nullcontext() if is_body else suppress(ValueError):
                self.frame(frame)
            if self.done or self.out.complete is not None or self.out.error is not None:
                return
        head = self._head.removeprefix(_BOM)
        # The check of the first bytes is only for text streams. The decoder of binary streams
        # verifies checksums, and a binary stream that ends within its first message counts as
        # interrupted.
        may_be_cut = self.framing is EventStreamDecoder and self._asked_for_stream
        if (
            not self._frames
            and not may_be_cut
            and not any(field.startswith(head[: len(field)]) for field in _FIELDS)
        ):
            raise InvalidResponseError("the reply is neither JSON nor an event stream")
        if self.framing is LineDecoder and not self.out.started and head[:1] != b"{":
            raise InvalidResponseError("the reply is not lines of JSON")
        self.at_end()

    def _broken(self, error: Exception) -> None:
        self.done = True
        if not isinstance(error, ProviderError):
            cause = error
            reason = f"the reply cannot be read: {_reason(error)}"
            error = InvalidResponseError(_describe_page(self._kept) or reason)
            error.__cause__ = without_frames(cause)  # they refer to the reply and to this decoder
        if error.body_text is None and self._kept:
            error.keep_body(b"".join(self._kept[: MAX_KEPT // _PAGE])[:MAX_KEPT])
        self.out.fail(error)

    def _take_events(self) -> list[Event]:
        if self.done and self._sse is not None and self.out.kept is not None:
            # A plain function is stored, because a bound method would keep the decoder in memory
            # as long as ``raw`` exists.
            show = _decode_line if self._is_line else _decode_stream
            self.out.kept.decode = partial(show, self.framing, self.facts())
        return self.out.take()

    @property
    def _is_line(self) -> bool:
        """Whether the reply should be one JSON object, on a wire whose streams are lines."""
        return self.framing is LineDecoder and not self._asked_for_stream


def _keep(kept: list[bytes], chunk: bytes) -> None:
    if kept and len(kept[-1]) + len(chunk) <= _PAGE:
        kept[-1] += chunk
    else:
        kept.append(chunk)


def _describe_page(kept: Sequence[bytes]) -> str | None:
    """Return a description of a web page, as a login page or a wrong address sends."""
    head = b"".join(kept[:1]).removeprefix(_BOM).lstrip()
    if not head.startswith(b"<"):
        return None
    found = re.search(rb"(?is)<title[^<>]{0,200}>([^<>]{1,200})</title", head[:20_000])
    title = " ".join(found[1].decode("utf-8", "replace").split()) if found is not None else ""
    return f"an HTML page came instead of a reply{title and f', with the title {quote(title)}'}"


def _refuse_crowded(data: bytes) -> None:
    if len(data) > MAX_CONTAINERS and data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise InvalidResponseError(f"the reply has more than {MAX_CONTAINERS} objects and lists")


_WITHOUT_CONTENT = frozenset({BARE, b"ping", b"keepalive"})


def _lacks_content(frame: Frame) -> bool:
    """Return whether a frame has no content.

    A keep-alive has no content, and neither has a JSON object outside an event, unless it is an
    error.
    """
    return (
        b'"error"' not in frame.data
        if frame.event == BARE
        else not frame.data.lstrip().startswith(b"{")
    )


def _decode_body(data: bytes) -> Any:
    return _read_or_show(_unmarked(data))


def _decode_line(framing: type[Framing], facts: dict[str, Any], data: bytes) -> Any:
    """Return the JSON of a body; a server may send several lines although one was requested."""
    try:
        return read_json(_unmarked(data))
    except ValueError:
        return _decode_stream(framing, facts, data)


def _decode_stream(framing: type[Framing], facts: dict[str, Any], data: bytes) -> Any:
    # The decoder gets no length limit here, because ``raw`` shows even an event that was too long
    # to decode.
    sse = framing(len(data) + 1)
    try:
        frames = [*sse.feed(data), *sse.end()]
    except EventStreamError:  # a binary message has a wrong checksum
        return {"chunks": [data.decode("utf-8", "replace")], **facts}
    chunks = [
        _read_or_show(frame.data) for frame in frames if frame.data.strip() not in (b"", b"[DONE]")
    ]
    return {"chunks": chunks, **facts}


def _unmarked(body: bytes) -> bytes:
    return body.strip().removeprefix(_BOM)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _read_or_show(data: bytes) -> Any:
    try:
        return read_json(data)
    except ValueError:
        return data.decode("utf-8", "replace")
