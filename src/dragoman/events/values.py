"""The values that a reply consists of: events, usage, intents, and the complete response."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypeAlias,
    cast,
)

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import explain_attribute
from ..messages import (
    Assistant,
    AssistantBlock,
    Citation,
    Continuity,
    Image,
    Inline,
    LossWarning,
    ToolCall,
)
from ..messages.display import Display, Displayed, Passage, Table
from .intents import ToolIntent
from .sale import Bill, Sale, find_bill

if TYPE_CHECKING:  # type checkers bundle typing_extensions, so it need not be installed
    from typing_extensions import TypeVar

    Parsed = TypeVar("Parsed", default=Any)
else:
    from typing import TypeVar

    Parsed = TypeVar("Parsed")

FinishReason: TypeAlias = Literal[
    "stop", "length", "tool_calls", "content_filter", "error", "cancelled"
]
Problem: TypeAlias = Literal[
    "cancelled", "interrupted", "malformed", "unknown_tool", "invalid_arguments"
]


# The finish reason with which the anthropic wire pauses a long turn with server-side tools (case
# anthropic/pause-turn).
_PAUSES = frozenset({"pause_turn"})


# --- usage and responses --------------------------------------------------------------


class _Counts(Struct, frozen=True, omit_defaults=True):
    input_tokens: int | None = None
    output_tokens: int | None = None


class Usage(_Counts, frozen=True, omit_defaults=True, kw_only=True):
    """Token counts. ``None`` means that a count was not reported; it does not mean zero.

    On every wire, ``input_tokens`` counts all prompt tokens, including those that are read from or
    written to a cache. The other input fields count subsets of them, so no token is billed twice.
    ``stated_cost_usd`` is the cost that the provider itself reported. ``from_cache`` is set when a
    ``Cache`` returned the reply: no call was made, and the counts are zero. ``search_units`` is
    the unit that some rerankers bill instead of tokens. ``billed_input_tokens`` and
    ``billed_output_tokens`` are the counts that the provider bills, if it reports them separately;
    they exclude, for example, the provider's own prompt template. ``terms`` lists the terms of
    sale with rates of their own, such as ``service_tier:priority``, that the provider reports for
    the call; if it reports none, those that the request asked for.
    """

    cached_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    estimated: bool = False
    stated_cost_usd: Decimal | None = None
    from_cache: bool = False
    search_units: int | None = None
    billed_input_tokens: int | None = None
    billed_output_tokens: int | None = None
    terms: tuple[str, ...] = ()

    @property
    def prompt_tokens(self) -> int | None:
        """The value of ``input_tokens``, under the name that OpenArmature uses."""
        return self.input_tokens

    @property
    def completion_tokens(self) -> int | None:
        """The value of ``output_tokens``, under the name that OpenArmature uses."""
        return self.output_tokens


class StopDetails(Struct, frozen=True, omit_defaults=True):
    """Why a provider stopped or withheld a reply, as the provider reported it.

    ``category`` is a word for programs, such as ``cyber`` or ``SAFETY``; ``explanation`` is a text
    for people. Each is ``None`` if the provider did not send it.
    """

    category: str | None = None
    explanation: str | None = None


class Raw:
    """The bytes that the provider sent, decoded when ``value`` is read.

    In a reply that is written as JSON, ``{}`` replaces these bytes. After such a reply is read
    back, ``value`` is ``None``.
    """

    __slots__ = ("_pieces", "_value", "decode")

    # Because of this attribute, msgspec treats the class as a dataclass without fields and needs
    # no hooks to encode and decode a reply. A real dataclass would be slower, and would import the
    # module dataclasses.
    __dataclass_fields__: ClassVar[dict[str, Any]] = {}

    def __init__(self, pieces: Sequence[bytes], decode: Callable[[bytes], Any]) -> None:
        self.decode = decode
        self._pieces: Sequence[bytes] | None = pieces
        self._value: Any = None

    def __post_init__(self) -> None:
        """Initialise an instance that msgspec has decoded, since msgspec skips ``__init__``."""
        self._pieces = self._value = None

    @property
    def value(self) -> Any:
        """The parsed JSON.

        For a stream, the value is ``{"chunks": [...]}`` with further fields that summarise the
        reply.
        """
        if self._pieces is not None:
            self._value = self.decode(b"".join(self._pieces))
            self._pieces = None
        return self._value

    def peek(self) -> Any:
        """Return the JSON of the bytes received so far; more bytes may arrive later."""
        return self._value if self._pieces is None else self.decode(b"".join(self._pieces))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raw) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


class Billed(Protocol):
    """A reply that has a cost: a ``Response``, ``Embeddings`` or a ``Ranking``."""

    @property
    def usage(self) -> Usage:  # pyright: ignore[reportReturnType]
        """The token counts of the reply."""

    @property
    def sale(self) -> Sale | None:
        """The price that applies to the call."""

    @property
    def provider(self) -> str | None:
        """The name of the provider that answered."""

    @property
    def model(self) -> str | None:
        """The name of the model that answered."""


_OTHER_NAMES = {
    **dict.fromkeys(
        ("choices", "completion", "content", "output", "output_text", "candidates", "data"),
        "write reply.text, or reply.message.content for the blocks",
    ),
    "json": "write reply.parsed for the structured value, or reply.raw for the provider's JSON",
    "usage_metadata": "write reply.usage",
    "reasoning": "write reply.thinking",
    "reasoning_content": "write reply.thinking",
    "stop_reason": "write reply.finish_reason",
    "id": "write reply.request_id",
}


class _Answer(Struct, frozen=True):
    message: Assistant
    finish_reason: FinishReason


class Response(_Answer, Displayed, Generic[Parsed], frozen=True, kw_only=True):
    """A complete reply: the message, the finish reason, token counts, and the provider's own JSON.

    ``parsed`` is the structured value: an instance of the type given as ``response_schema``, or
    plain data for a JSON Schema. ``failed`` are the records (``CallFailed``) of the attempts
    before this reply, which ``Retry`` or ``Fallback`` made; their tokens may be billed too.
    ``stop_details`` is the provider's reason for a refusal or a filtered reply. ``native`` maps
    the name of the provider's wire to the fields of the reply that no other attribute has, in the
    form of that wire.
    """

    usage: Usage = Usage()
    finish_raw: str | None = None
    stop_sequence: str | None = None
    parsed: Parsed = None  # type: ignore[assignment]
    model: str | None = None
    provider: str | None = None
    request_id: str | None = None
    latency_ms: float | None = None
    warnings: tuple[LossWarning, ...] = ()
    structured_path: str | None = None
    kept: Raw | None = None
    sale: Sale | None = None
    failed: tuple[Any, ...] = ()
    stop_details: StopDetails | None = None
    native: dict[str, dict[str, Any]] = {}

    @property
    def total_usage(self) -> Usage:
        """The input and output tokens of this reply and of the attempts before it."""
        every = [self.usage, *self.failed]
        return Usage(
            sum([each.input_tokens or 0 for each in every]),
            sum([each.output_tokens or 0 for each in every]),
        )

    @property
    def cost(self) -> Bill:
        """What this reply cost, as ``dragoman.cost(reply)`` returns it.

        ``reply.cost.total`` is an amount in US dollars, or ``None`` if the price is not known.
        """
        return find_bill(self)

    @property
    def raw(self) -> Any:
        """The provider's reply as parsed JSON, unchanged; ``None`` if it was not kept."""
        return self.kept.value if self.kept is not None else None

    @property
    def cached(self) -> bool:
        """Whether a ``Cache`` returned this reply without a call."""
        return self.usage.from_cache

    @property
    def is_paused(self) -> bool:
        """Whether the provider paused a long turn; to continue the turn, send the reply back."""
        return self.finish_reason == "stop" and self.finish_raw in _PAUSES

    @property
    def text(self) -> str:
        """The text of the message."""
        return self.message.text

    @property
    def thinking(self) -> str:
        """The thinking in the message."""
        return self.message.thinking

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in the message."""
        return self.message.tool_calls

    @property
    def images(self) -> tuple[Image, ...]:
        """The images that the model generated."""
        return self.message.images

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The sources that the provider cites for the message's texts."""
        return self.message.citations

    if not TYPE_CHECKING:  # type checkers report these mistakes themselves

        def __getattr__(self, name):
            return explain_attribute(self, name, _OTHER_NAMES)

        def __getitem__(self, name):
            raise TypeError(f"a reply has attributes, not keys: write reply.text, not [{name!r}]")

    def _display(self) -> Display:
        counts = {
            "tokens in": self.usage.input_tokens,
            "tokens out": self.usage.output_tokens,
            "ms": None if self.latency_ms is None else round(self.latency_ms),
        }
        facts = [
            self.finish_reason,
            *[f"{count} {name}" for name, count in counts.items() if count is not None],
        ]
        passages = [Passage("thinking", self.thinking, folded=True), Passage("", self.text)]
        calls = [
            (call.name, msgspec.json.encode(call.arguments).decode()) for call in self.tool_calls
        ]
        warnings = [(warning.path, warning.detail) for warning in self.warnings]
        sources = [(each.media_type or "image/png", each.source) for each in self.images]
        return Display(
            f"{self.provider or '?'}:{self.model or '?'}",
            facts,
            [passage for passage in passages if passage.text],
            [Table(("tool", "arguments"), calls), Table(("not sent", "reason"), warnings)],
            [
                (media_type, source.base64_data)
                for media_type, source in sources
                if isinstance(source, Inline)
            ],
        )


# --- the events --------------------------------------------------------------------------------


class _Event(Struct, frozen=True):
    """The reply and the request that an event belongs to."""

    message_id: str
    request_id: str


class MessageStart(_Event, frozen=True, tag="message.start", gc=False, kw_only=True):
    """The provider began to answer.

    ``native`` are the fields of the provider's wire that arrived with the start of a stream.
    """

    model: str
    provider: str = ""
    role: Literal["assistant"] = "assistant"
    native: dict[str, dict[str, Any]] = {}
    type: ClassVar[Literal["message.start"]] = "message.start"


class TextDelta(_Event, frozen=True, tag="text.delta", gc=False, omit_defaults=True, kw_only=True):
    """A fragment of the text block at ``content_block_index``.

    The last fragment of a block also has the block's opaque state, if it has some.
    """

    content_block_index: int
    text: str
    continuity: Continuity | None = None
    type: ClassVar[Literal["text.delta"]] = "text.delta"


class ThinkingDelta(
    _Event, frozen=True, tag="thinking.delta", gc=False, omit_defaults=True, kw_only=True
):
    """A fragment of thinking; the last delta of a signed block also has its ``signature``.

    ``continuity`` is the opaque state of the block, which contains the signature. ``redacted`` is
    the data of a redacted thought, which has one delta without text.
    """

    content_block_index: int
    text: str
    signature: str | None = None
    continuity: Continuity | None = None
    redacted: str | None = None
    type: ClassVar[Literal["thinking.delta"]] = "thinking.delta"


class ToolUseStart(
    _Event, frozen=True, tag="tool.use_start", gc=False, omit_defaults=True, kw_only=True
):
    """The model began to propose a tool call.

    ``continuity`` is the opaque state of the call, if it arrived with the start of the call.
    """

    content_block_index: int
    tool_use_id: str
    tool_name: str
    continuity: Continuity | None = None
    type: ClassVar[Literal["tool.use_start"]] = "tool.use_start"


class ToolUseInputDelta(_Event, frozen=True, tag="tool.use_input_delta", gc=False, kw_only=True):
    """A literal fragment of a tool call's arguments, which cannot be parsed by itself."""

    content_block_index: int
    tool_use_id: str
    partial_json: str
    type: ClassVar[Literal["tool.use_input_delta"]] = "tool.use_input_delta"


class ToolUseEnd(_Event, frozen=True, tag="tool.use_end", kw_only=True):
    """The end of a tool call, with an ``intent`` or the ``problem`` that prevented one."""

    content_block_index: int
    tool_use_id: str
    final_input: dict[str, Any]
    intent: ToolIntent | None = None
    problem: Problem | None = None
    detail: str | None = None
    type: ClassVar[Literal["tool.use_end"]] = "tool.use_end"


class MessageComplete(_Event, frozen=True, tag="message.complete", kw_only=True):
    """The end of the reply. ``final_content`` is the complete and authoritative content.

    ``stop_details`` and ``native`` are described at ``Response``.
    """

    finish_reason: FinishReason
    final_content: tuple[AssistantBlock, ...] = ()
    usage: Usage = Usage()
    finish_raw: str | None = None
    stop_sequence: str | None = None
    model: str | None = None
    parsed: Any = None
    structured_path: str | None = None
    warnings: tuple[LossWarning, ...] = ()
    kept: Raw | None = None
    stop_details: StopDetails | None = None
    native: dict[str, dict[str, Any]] = {}
    type: ClassVar[Literal["message.complete"]] = "message.complete"


class UnknownEvent(Struct, frozen=True):
    """An event whose type this version does not know, with its data unchanged."""

    type: str
    data: dict[str, Any]


Event: TypeAlias = (
    MessageStart
    | TextDelta
    | ThinkingDelta
    | ToolUseStart
    | ToolUseInputDelta
    | ToolUseEnd
    | MessageComplete
)

_encoder = msgspec.json.Encoder()
_TYPES = frozenset(kind.type for kind in Event.__args__)


def encode_event(event: Event | UnknownEvent) -> bytes:
    """Write an event as JSON, without the raw bytes of the reply.

    An event of an unknown type is written as it was read.
    """
    if type(event) is MessageComplete and event.kept is not None:
        event = replace(event, kept=None)
    if type(event) is UnknownEvent:
        return _encoder.encode(event.data | {"type": event.type})
    return _encoder.encode(event)


@cache
def _event_decoder() -> msgspec.json.Decoder[Any]:
    """Return the event decoder, built on first use: most programs do not decode events."""
    return msgspec.json.Decoder(Event)


def decode_event(data: bytes | str) -> Event | UnknownEvent:
    """Read an event from JSON; an event of an unknown ``type`` becomes an ``UnknownEvent``."""
    try:
        return cast("Event", _event_decoder().decode(data))
    except msgspec.ValidationError:
        record = read_json(data)
        kind = record.get("type") if isinstance(record, dict) else None
        if not isinstance(kind, str) or kind in _TYPES:
            raise
        return UnknownEvent(kind, record)


# --- reading JSON as servers and models write it -----------------------------------------------

# Group 1 matches the escape of half a surrogate pair. The other alternatives match an escaped
# backslash or quote and a complete pair, so that they are skipped.
_HALF = r"[0-9a-fA-F]{2}"
_ESCAPES = re.compile(
    rf'\\["\\]|\\u[dD][89abAB]{_HALF}\\u[dD][c-fC-F]{_HALF}|(\\u[dD][89a-fA-F]{_HALF})'
)


def read_json(data: bytes | str) -> Any:
    """Decode JSON; damaged characters are replaced, but syntax errors raise ``ValueError``.

    Models emit halves of surrogate pairs, and servers forward damaged UTF-8. Both are replaced by
    U+FFFD, since they would otherwise cause an error here or when the text is encoded again.
    """
    # Raise the error outside of ``except``. Otherwise the decoder's exception, which quotes the
    # text, would stay attached to it as its context.
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        reason = None
    except RecursionError:
        reason = "nested too deeply"
    if reason is not None:
        raise ValueError(reason)
    return _read_damaged_json(data)


def _read_damaged_json(data: bytes | str) -> Any:
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    if "\\u" in text:
        text = _ESCAPES.sub(lambda match: "\\ufffd" if match[1] else match[0], text)
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_read_float)
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise ValueError(reason)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _read_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:100]} is out of range")
    return value


def read_object(text: str) -> dict[str, Any] | None:
    """Decode a JSON object; return ``None`` if the text is anything else."""
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# --- building a response from events -----------------------------------------------------------


def fold(
    events: Iterable[Event], latency_ms: float | None = None, sale: Sale | None = None
) -> Response:
    """Build the response from a complete sequence of events."""
    start: MessageStart | None = None
    complete: MessageComplete | None = None
    for event in events:
        if type(event) is MessageStart:
            start = event
        elif type(event) is MessageComplete:
            complete = event
    if complete is None:
        raise ValueError(
            "these events have no message.complete: the stream was not read to its end"
        )
    return make_response(start, complete, latency_ms, sale)


def make_response(
    start: MessageStart | None,
    complete: MessageComplete,
    latency_ms: float | None = None,
    sale: Sale | None = None,
    failed: tuple[Any, ...] = (),
) -> Response:
    """Build the response from the first and the last event of a message."""
    return Response(
        Assistant(complete.final_content),
        complete.finish_reason,
        usage=complete.usage,
        finish_raw=complete.finish_raw,
        stop_sequence=complete.stop_sequence,
        parsed=complete.parsed,
        model=complete.model,
        provider=(start.provider or None) if start else None,
        request_id=complete.request_id,
        latency_ms=latency_ms,
        warnings=complete.warnings,
        structured_path=complete.structured_path,
        kept=complete.kept,
        sale=sale,
        failed=failed,
        stop_details=complete.stop_details,
        native=complete.native,
    )
