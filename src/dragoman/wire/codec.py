"""What a wire is to the rest of the package: a codec, and a decoder that serves body and stream alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import InvalidResponseError, ProviderError, StreamInterruptedError, without_frames
from ..events import Assembler, Event, Raw, read_json
from ..messages import Issuer, LossWarning, Request
from ..reasoning import NOT_REASONING
from ..sse import BARE, Frame, LineDecoder, SseDecoder
from .json import put_over, to_bytes
from .lessons import MAX_LESSONS, Lesson, changes_for, digest_of
from .schema import schema_name

# A reply of text never comes near this; it bounds what a hostile or broken server can make us hold.
MAX_BODY = 16 * 1024 * 1024
MAX_EVENTS = 2_000_000
# Of a reply that cannot be read: how much of it the error keeps, in bytes.
MAX_KEPT = 16 * 1024
MAX_LINES = 4 * MAX_EVENTS  # a comment or an empty line makes no event
# Objects and lists in one body or event. Small ones are cheap to send and take hundreds of bytes each.
MAX_CONTAINERS = 500_000
# Of a stream: much more than of a body, since each word comes with some hundred bytes around it.
MAX_STREAM = 1024 * 1024 * 1024


# A chunk that is kept by itself takes 33 bytes more than it has, and servers send them by the ten thousand.
_PAGE = 4096
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_BOM = b"\xef\xbb\xbf"


class HttpRequest(Struct, frozen=True):
    """What to send. It holds no key: credentials are added by whoever sends it."""

    method: Literal["GET", "POST"]
    url: str
    headers: dict[str, str]
    body: bytes = b""


class HttpReply(Struct, frozen=True):
    """A whole reply, for exchanges that are not decoded as they arrive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Note(Struct, frozen=True):
    """What became of one part of a request that could not go over the wire as it is."""

    outcome: Literal["rewritten", "dropped"]
    code: str
    path: str
    detail: str
    loss: bool


class Notes:
    """Collects notes while a codec encodes; losses among them become warnings."""

    def __init__(self) -> None:
        self.items: list[Note] = []

    def drop(self, path: str, code: str, detail: str) -> None:
        """Something is not sent."""
        self.items.append(Note("dropped", code, path, detail, loss=True))

    def rewrite(self, path: str, code: str, detail: str, *, loss: bool = False) -> None:
        """Something is sent in another form; ``loss`` if that form says less."""
        self.items.append(Note("rewritten", code, path, detail, loss))

    @property
    def warnings(self) -> tuple[LossWarning, ...]:
        """The losses."""
        return tuple([LossWarning(note.code, note.path, note.detail) for note in self.items if note.loss])


class Encoded(Struct, frozen=True):
    """A request ready to send, and what became of the parts that did not fit."""

    http: HttpRequest
    notes: tuple[Note, ...] = ()
    warnings: tuple[LossWarning, ...] = ()
    structured_path: Literal["native", "tool", "prompt"] | None = None


_JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def encode_post(
    url: str,
    body: dict[str, Any],
    notes: Notes,
    path: Literal["native", "tool", "prompt"] | None,
    headers: Mapping[str, str] = _JSON,
    native: Mapping[str, Any] | None = None,
) -> Encoded:
    """Return a body as a ``POST``, with the notes made while it was written; ``native`` goes over its fields."""
    if native:
        body = put_over(body, native)
    return Encoded(HttpRequest("POST", url, dict(headers), to_bytes(body)), tuple(notes.items), notes.warnings, path)


Q = TypeVar("Q", bound=Struct)


def read_quirks(quirks: Any, kind: type[Q]) -> Q:
    """The quirks of a wire from its struct, a mapping of its fields, or nothing."""
    if quirks is None:
        return kind()
    if isinstance(quirks, kind):
        return quirks
    try:
        return msgspec.convert(dict(quirks), kind)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise ValueError(f"quirks: {error}") from error


class Endpoint(Generic[Q]):
    """What a codec is built from, for a wire to build on: a model, an address, and the address's quirks."""

    wire: ClassVar[str]
    quirks_type: type[Q]

    def __init__(
        self,
        model: str,
        base_url: str,
        quirks: Q | None = None,
        *,
        vendor: str | None = None,
        keep_raw: bool = True,
        lessons: tuple[Lesson, ...] = (),
    ) -> None:
        self.model = model
        self.base_url = base_url
        self.quirks = self.quirks_type() if quirks is None else quirks
        self.issuer_vendor = vendor
        self._keep_raw = keep_raw
        self.lessons = lessons

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
        """A codec for an endpoint: its quirks, and what is known of the model."""
        adapted = cls.adapt(read_quirks(quirks, cls.quirks_type), capabilities)
        return cls(model, base_url, adapted, vendor=vendor, keep_raw=keep_raw)

    @classmethod
    def adapt(cls, quirks: Q, capabilities: Capabilities) -> Q:
        """Return the quirks for a model of which something is known."""
        quirks = cls.adapt_reasoning(quirks, capabilities)
        if capabilities.known("supports_images") is False:
            quirks = replace(quirks, result_media="omit")
        if capabilities.known("supports_structured_output") is False:
            quirks = replace(quirks, structured="prompt")
        return cls.adapt_calls(quirks, capabilities)

    @staticmethod
    def adapt_calls(quirks: Q, capabilities: Capabilities) -> Q:
        """Return the quirks for a model that is known not to make several calls in one turn."""
        if capabilities.known("supports_parallel_tool_calls") is False and hasattr(quirks, "parallel_tools"):
            return replace(quirks, parallel_tools=False)
        return quirks

    @staticmethod
    def adapt_reasoning(quirks: Q, capabilities: Capabilities) -> Q:
        """Return the quirks for a model that is known not to reason: nothing is asked of it."""
        if capabilities.known("supports_thinking") is False and getattr(quirks, "reasoning", None) is None:
            return replace(quirks, reasoning=NOT_REASONING)
        return quirks

    def home(self, request: Request) -> Issuer:
        """Return who answers a request: opaque state made by it may go back to it."""
        return Issuer(self.wire, self.issuer_vendor, request.model or self.model)

    def quirks_for(self, request: Request) -> Q:
        """Return the quirks of the endpoint, with what has been learned about the response schema of a request."""
        changes = changes_for(self.lessons, request.response_schema) if self.lessons else None
        return replace(self.quirks, **changes) if changes else self.quirks

    def taught(self, detail: str, schema: Mapping[str, Any] | None = None, **changes: Any) -> Self:
        """Return the same codec with other quirks, for one response schema or for every request."""
        lesson = Lesson(detail, changes, None if schema is None else digest_of(schema))
        quirks = replace(self.quirks, **changes) if schema is None else self.quirks
        return type(self)(
            self.model,
            self.base_url,
            quirks,
            vendor=self.issuer_vendor,
            keep_raw=self._keep_raw,
            lessons=(*self.lessons, lesson)[-MAX_LESSONS:],
        )

    def taught_structure(self, request: Request, *, about_field: bool, **changes: Any) -> Self:
        """Return the same codec that asks for structured output another way: for every schema, or for this one.

        A refusal is about the endpoint only if it says so; a schema that is refused leaves the others alone.
        """
        ways = ", ".join([f"{name}={value!r}" for name, value in changes.items()])
        if about_field:
            return self.taught(f"the endpoint refused structured output: {ways}", **changes)
        schema = request.response_schema or {}
        return self.taught(f"the endpoint refused the schema {schema_name(schema)}: {ways}", schema, **changes)


class Codec(Protocol):
    """One wire, for one model at one address. Pure: no socket, no sleep, no clock, no log."""

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
        """A codec for an endpoint: its quirks, and what is known of the model."""
        ...

    @property
    def issuer_vendor(self) -> str | None:
        """The vendor whose opaque state this endpoint makes and takes back."""

    def encode(self, request: Request) -> Encoded:
        """The request as bytes: same request, same bytes."""
        ...

    def decoder(self, request: Request, out: Assembler) -> Decoder:
        """A decoder for the reply to ``request``, speaking through ``out``."""
        ...

    def error(self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None) -> ProviderError:
        """What a reply that is not a success means. ``now`` (epoch seconds) resolves dates in headers."""
        ...

    def authorise(self, key: str) -> dict[str, str]:
        """The headers that carry the key."""
        ...

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """The questions to ask the server, one by one; raises what is not right."""
        ...

    def learn(self, error: ProviderError, request: Request) -> Codec | None:
        """A codec that avoids what the server just refused, if the request can be said another way."""


class Decoder(ABC):
    """Feeds a reply to an ``Assembler``, whether it comes as a stream of events or as one body.

    Which of the two it is shows in the first byte, not in what was asked for or in the content type:
    servers answer a streaming request with a JSON error or a whole completion, and label event
    streams as JSON. Any failure to read ends the message and is kept in ``error``; nothing escapes.
    """

    framing: ClassVar[type[SseDecoder | LineDecoder]] = SseDecoder

    def __init__(self, request: Request, out: Assembler, *, keep_raw: bool = True) -> None:
        self.out = out
        self.done = False
        self._asked_for_stream = request.stream
        self._keep_raw = keep_raw
        self._kept: list[bytes] = []
        self._size = 0
        self._frames = 0
        self._sse: SseDecoder | LineDecoder | None = None
        self._is_body = False
        self._head = b""  # the first bytes that mean something
        if keep_raw:
            out.kept = Raw(self._kept, _decode_body)

    @property
    def error(self) -> ProviderError | None:
        """What the caller must be told once the events are delivered, if anything."""
        return self.out.error

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes of the reply; return the events they complete."""
        if self.done:
            return []
        try:
            self._take(chunk)
        except Exception as error:  # whatever a server sends must end in our error tree
            self._broken(error)
        return self._take_events()

    def end(self) -> list[Event]:
        """The reply is over; return the events that end it."""
        if not self.done:
            try:
                self._over()
            except Exception as error:
                self._broken(error)
            self.done = True
        return self._take_events()

    def fail(self, error: ProviderError) -> list[Event]:
        """The reply broke off for a reason outside the wire; return the events that end it."""
        self.done = True
        self.out.fail(error)
        return self._take_events()

    # for the wire to write

    @abstractmethod
    def frame(self, frame: Frame) -> None:
        """One event of a stream."""

    @abstractmethod
    def body(self, data: bytes) -> None:
        """A whole reply in one body."""

    @abstractmethod
    def at_end(self) -> None:
        """The stream is over without an end mark: finish the message or fail."""

    def facts(self) -> dict[str, Any]:
        """The terminal facts of a stream that ``raw`` shows beside its chunks."""
        return {}

    # inside

    def interrupted(self) -> None:
        """The stream ended before the wire's end mark."""
        self.out.fail(StreamInterruptedError("the reply ended before it was finished"))

    def _take(self, chunk: bytes) -> None:
        if self._keep_raw or self._sse is None:
            if self._kept and len(self._kept[-1]) + len(chunk) <= _PAGE:
                self._kept[-1] += chunk
            else:
                self._kept.append(chunk)
        self._size += len(chunk)
        limit = MAX_BODY if self._sse is None else MAX_STREAM
        if self._size > limit:
            raise InvalidResponseError(f"the reply is longer than {limit} bytes")
        if len(self._head) < 12 and not self._is_body:
            self._head = (self._head + chunk).lstrip()[:12]
        if self._sse is None:
            chunk = self._start_stream()
        if self._sse is None:
            return
        for frame in self._sse.feed(chunk):
            self._frames += 1
            if frame.event in _ASIDES and _is_aside(frame):
                continue
            self.out.offset = frame.offset
            if len(frame.data) > MAX_CONTAINERS:
                _refuse_crowded(frame.data)
            self.frame(frame)
            if self.done or self.out.complete is not None or self.out.error is not None:
                self.done = True
                return
        if self._frames > MAX_EVENTS or self._sse.lines > MAX_LINES:
            what = f"{MAX_EVENTS} events" if self._frames > MAX_EVENTS else f"{MAX_LINES} lines"
            raise InvalidResponseError(f"the stream has more than {what}")

    def _start_stream(self) -> bytes:
        """Return what has arrived of a stream, once it is known to be one."""
        if self._is_body or not self._sniff():
            return b""
        arrived = b"".join(self._kept)
        if not self._keep_raw:
            self._kept.clear()
        return arrived

    def _sniff(self) -> bool:
        """Is it a stream? Undecided while only white space or half a byte order mark has come."""
        head = self._head.removeprefix(_BOM).lstrip()
        if not head or (len(head) < len(_BOM) and _BOM.startswith(head)):
            return False
        self._is_body = head[:1] in (b"<" if self.framing is LineDecoder else b"{[<")
        if not self._is_body:
            self._sse = self.framing()
            if self.out.kept is not None:  # somebody may look at what there is of a stream that never ends
                self.out.kept.decode = partial(_decode_stream, self.framing, {})
        return not self._is_body

    def _over(self) -> None:
        if self._sse is not None:
            self._over_stream(self._sse)
        elif self._is_body:
            data = b"".join(self._kept)
            _refuse_crowded(data)
            self.body(_unmarked(data))
        elif self._asked_for_stream:
            self.interrupted()  # 200 and no byte: vLLM and llama-cpp-python do this when they give up
        else:
            raise InvalidResponseError("the reply is empty")

    def _over_stream(self, sse: SseDecoder | LineDecoder) -> None:
        for frame in sse.end():
            self._frames += 1
            if frame.event in _ASIDES and _is_aside(frame):
                continue
            self.out.offset = frame.offset
            with suppress(ValueError):  # cut off in the middle: what there is of it says nothing
                self.frame(frame)
            if self.done or self.out.complete is not None or self.out.error is not None:
                return
        head = self._head.removeprefix(_BOM)
        if not self._frames and not any(field.startswith(head[: len(field)]) for field in _FIELDS):
            raise InvalidResponseError("the reply is neither JSON nor an event stream")
        self.at_end()

    def _broken(self, error: Exception) -> None:
        self.done = True
        if not isinstance(error, ProviderError):
            cause, error = error, InvalidResponseError(f"the reply cannot be read: {_reason(error)}")
            error.__cause__ = without_frames(cause)
        if error.body_text is None and self._kept:
            error.keep_body(b"".join(self._kept[: MAX_KEPT // _PAGE])[:MAX_KEPT])
        self.out.fail(error)

    def _take_events(self) -> list[Event]:
        if self.done and self._sse is not None and self.out.kept is not None:
            # Not a method of ours: what is kept of the reply would keep all that was needed to read it.
            self.out.kept.decode = partial(_decode_stream, self.framing, self.facts())
        return self.out.take()


def _refuse_crowded(data: bytes) -> None:
    if len(data) > MAX_CONTAINERS and data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise InvalidResponseError(f"the reply has more than {MAX_CONTAINERS} objects and lists")


_ASIDES = frozenset({BARE, b"ping", b"keepalive"})


def _is_aside(frame: Frame) -> bool:
    """Is it nothing that is said: a bare object that is no error, or a sign of life that is no JSON?"""
    return b'"error"' not in frame.data if frame.event == BARE else not frame.data.lstrip().startswith(b"{")


def _decode_body(data: bytes) -> Any:
    return _read_or_show(_unmarked(data))


def _decode_stream(framing: type[SseDecoder | LineDecoder], facts: dict[str, Any], data: bytes) -> Any:
    sse = framing(len(data) + 1)  # what was too long to be read is shown all the same
    frames = [*sse.feed(data), *sse.end()]
    chunks = [_read_or_show(frame.data) for frame in frames if frame.data.strip() not in (b"", b"[DONE]")]
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
