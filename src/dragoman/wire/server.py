"""The interface of the server side of a wire: read requests, write replies and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import (
    CallCancelledError,
    MalformedToolCallError,
    ProviderError,
    StructuredOutputError,
    UnsupportedFeatureError,
)
from ..events import (
    Event,
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    read_object,
)
from ..messages import AssistantBlock, Continuity, LossWarning, Request, ServerTool, Text, ToolCall
from .codec import HttpReply
from .fields import take_cache
from .finish import NO_WORDS, FinishWords
from .headers import HeaderRule, bearer_token
from .listing import ListedModel, describe_model
from .losses import ConceptValue, Leftover, Losses, OfferedTool, describe_left, merge
from .request_schema import FREE, RequestSchema
from .rules import NO_BETAS, NO_TABLE, Betas, FieldTable, sort_betas
from .seal import has_state
from .server_errors import NO_TERMS, ErrorTerms, headers_of, status_of, terms_of
from .socket import SocketCodec
from .usage import UsageMap


class Asked(Struct, frozen=True, kw_only=True):
    """A decoded request, and what the client's body contains beyond the fields of ``Request``."""

    request: Request
    left: tuple[Leftover, ...] = ()
    """The parts of the body that ``request`` does not represent."""
    concepts: Mapping[str, ConceptValue] = {}
    """Settings for which ``Request`` has no field, by the name of the concept."""
    own: Mapping[str, Any] = {}
    """Fields to send if the model uses the client's wire."""
    directives: tuple[str, ...] = ()
    """Instructions to add to the prompt if the model uses another wire."""
    client: Mapping[str, Any] = {}
    """The body as the client wrote it."""
    table: FieldTable = NO_TABLE
    """The fields of the client's wire."""
    betas: Betas = NO_BETAS
    """The betas that the client names in a header; without their betas, some fields are lost."""
    headers: Mapping[str, str] = {}
    """Headers to send if the model uses the client's wire."""
    stream_usage: bool = True
    """Whether the client requests usage at the end of a stream."""
    echo: dict[str, Any] = {}
    """The request fields that the reply repeats, on wires that do this."""
    custom: frozenset[str] = frozenset()
    """The names of tools whose input is free text, on wires with such tools. The model gets a
    function with the parameter ``input`` instead.
    """
    grouped: Mapping[str, tuple[str, str]] = {}
    """The tools in namespaces, on wires with namespaces. The model gets a function for each such
    tool. This mapping leads from the function's name to the namespace and the tool's name.
    """

    @property
    def warnings(self) -> tuple[LossWarning, ...]:
        """A warning for each part of the body that is lost even on the client's own wire."""
        lost = [concept for concept, setting in self.concepts.items() if setting.extra is None]
        names = self.table.names
        why = "a request has no such setting"
        dropped = [LossWarning(f"{each}_dropped", names.get(each, each), why) for each in lost]
        return (*describe_left(self.left), *dropped)

    @property
    def has_more(self) -> bool:
        """Whether anything in the client's body is missing in ``request``."""
        more = self.left or self.concepts or self.own or self.directives
        return bool(more) or self.betas is not NO_BETAS or bool(self.headers)

    def with_extras(self) -> Request:
        """Return the request with the client's further settings, for a provider of its wire.

        A setting for which ``Request`` has no field becomes an extra.
        """
        if not self.has_more:
            return self.request
        config = self.request.config
        extras = self.table.find_unread(self.own)
        searches = self._searches()
        for left in self.left:
            if left.rule.always and left.rule.effect == "refused":
                raise UnsupportedFeatureError(f"{left.path}: {left.rule.what}")
            if left.rule.always or left.rule.held or left.tool in searches:
                continue
            if left.tool is not None and left.roots == ("tools",):
                extras["tools"] = [*extras.get("tools", ()), left.tool.record]
            elif left.roots == (left.path,):
                extras[left.path] = self.client[left.path]
            elif not left.roots:
                path, _, name = left.path.partition(".")
                extras = merge(extras, {path: {name: self.own[path].get(name)}})
        for concept, setting in self.concepts.items():
            if concept == "reasoning" and setting.extra is not setting.own:
                config = replace(config, reasoning=setting.value)
            extras = merge(extras, setting.extra or {})
        for path in self.table.inner:
            inner = extras.pop(path, {})
            extras |= {self.table.extra_name(path, name): each for name, each in inner.items()}
        if (cache := take_cache(extras)) is not None:
            config = replace(config, cache=cache)
        hosted = [ServerTool("tool_search", tool.record) for tool in searches]
        made = replace(self.request, config=replace(config, extras=extras))
        return replace(made, server_tools=(*made.server_tools, *hosted))

    def _searches(self) -> list[OfferedTool]:
        """Return the searches of deferred tools that the client offers."""
        return [left.tool for left in self.left if left.tool and left.tool.is_search]


def gather(request: Request, losses: Losses, **facts: Any) -> Asked:
    """Return a decoded request with the fields and losses that its reader has recorded."""
    if not (losses.left or losses.concepts or losses.own):
        return Asked(request=request, client=losses.client, table=losses.table, **facts)
    return Asked(
        request=request,
        left=tuple(losses.left),
        concepts=losses.concepts,
        own=losses.own,
        directives=tuple(losses.directives),
        client=losses.client,
        table=losses.table,
        custom=frozenset(losses.custom),
        grouped=losses.grouped,
        **facts,
    )


class ModelQuestion(NamedTuple):
    """A request about a model that is answered without calling the model."""

    model: str
    write: Callable[[Capabilities, int], bytes]
    """Return the reply, given what is known of the model and the time in epoch seconds."""


class ServerCodec(ABC):
    """The server side of one wire. A codec opens no socket, reads no clock and does not log."""

    wire: ClassVar[str]
    terms: ClassVar[ErrorTerms] = NO_TERMS
    """The terms of the wire for each class of errors."""
    headers: ClassVar[Mapping[str, HeaderRule]] = {}
    """The headers that only clients of this wire send, and what happens to them."""
    table: ClassVar[FieldTable]
    """The fields of a request, and what happens to those that ``Request`` does not have."""
    schema: ClassVar[RequestSchema] = RequestSchema(FREE)
    """What the gateway's OpenAPI document states about requests."""
    paths: ClassVar[tuple[str, ...]]
    """The paths that clients post requests to; ``{call:path}`` stands for any text."""
    other_paths: ClassVar[tuple[str, ...]] = ()
    """The paths of requests that count tokens or ask about a model; the simulator has none."""
    pages: ClassVar[Mapping[str, Callable[[Sequence[ListedModel], str], dict[str, Any]]]] = {}
    """Further pages by path: functions of the served models and the server's version."""
    base_path: ClassVar[str] = ""
    """The path of the base URL that clients of the wire are given."""
    path_marks: ClassVar[tuple[str, ...]] = ()
    """Parts of paths by which the wire of any request is recognised, for example of an error."""
    header_marks: ClassVar[tuple[str, ...]] = ()
    """Headers by which the wire of a request is recognised if its path has no mark of a wire."""
    request_id_header: ClassVar[str | None] = None
    """The header of a reply in which clients expect the id of the request."""
    accepts_forms: ClassVar[bool] = False
    """Whether clients send bodies without the media type of JSON."""
    has_url_keys: ClassVar[bool] = False
    """Whether clients may send their key in the query of the URL."""
    key_advice: ClassVar[str] = ""
    """What a client must do if its key is missing or unknown."""
    mentions_json: ClassVar[bool] = False
    """Whether a client that requests JSON without a schema must mention JSON in the prompt."""
    keeps_responses: ClassVar[bool] = False
    """Whether a request may refer to earlier responses that the server keeps."""
    socket: ClassVar[SocketCodec | None] = None
    """What clients send on a WebSocket at ``paths``, if they may open one."""
    state_place: ClassVar[str | None] = None
    """Where a model of the wire has the state of its reasoning: in the ``signature`` of a thought,
    in another field of a thought, or in its first ``call``. Some wires have no such state.
    """
    binding_field: ClassVar[str] = "prefix_mismatch_behavior"
    """The field of ``block_binding`` that states what happens to thinking whose prefix changed."""
    returns_state: ClassVar[bool] = True
    """Whether the clients of this wire send the state of earlier turns back."""
    key_header: ClassVar[str] = ""
    """The header in which clients send their key, if not as a bearer token."""
    read_request: ClassVar[Callable[..., Asked]]
    """Decode the body of a request, given its path."""
    beta_header: ClassVar[str] = ""
    """The header in which clients name the betas that they opt in to, if the wire has one."""
    safe_betas: ClassVar[tuple[str, ...]] = ()
    """Patterns of the betas that a gateway sends on by default, to models of the same wire."""
    version_header: ClassVar[tuple[str, str]] = ("", "")
    """The header in which clients name the version of the wire, and the version of the codec."""
    stream_type: ClassVar[type[ReplyEncoder]]
    body_type: ClassVar[type[ReplyEncoder]]

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> Asked:
        """Decode a request body. On some wires the URL ``path`` contains the model and the mode.

        A field that ``Request`` does not have is recorded in the result. An invalid request raises
        ``InvalidRequestError`` or ``UnsupportedContentError``.
        """
        return self.read_request(body, path)

    def list_problems(
        self, body: Mapping[str, Any], quirks: Any, *, reasons: bool, known: Collection[str]
    ) -> Iterator[str]:
        """Yield what a server with these quirks refuses in a body, as an error text.

        ``reasons`` is whether the model reasons, and ``known`` the fields that the server accepts,
        if it rejects all others. Only the strict simulator refuses requests by this method;
        what ``decode`` rejects is not yielded.
        """
        return iter(())

    def show_dropped(self, body: Mapping[str, Any], dropped: Collection[int]) -> dict[str, Any]:
        """Return the fields of a reply that name the thoughts which the server dropped from a body.

        ``dropped`` has their numbers. The replies of most wires have no such field.
        """
        return {}

    @abstractmethod
    def error_body(self, error: ProviderError) -> dict[str, Any]:
        """Return the body of the reply for an error."""

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """Return an encoder for the reply, which is one body or a stream.

        ``created`` is the reply's time in epoch seconds.
        """
        kind = self.stream_type if asked.request.stream else self.body_type
        return kind(asked, created)

    def error(self, error: ProviderError) -> HttpReply:
        """Return the reply for an error that occurs before the first event is sent."""
        status = terms_of(error, self.terms).status or status_of(error)
        return HttpReply(status, headers_of(error), encode_json(self.error_body(error)))

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Return the client's key from ``headers``, whose names are in lower case."""
        return headers.get(self.key_header) or bearer_token(headers)

    def list_betas(self, headers: Mapping[str, str], fields: Mapping[str, Any]) -> list[str]:
        """Return the names of the betas in the headers and the body of a request."""
        names = headers.get(self.beta_header, "").split(",")
        return [name.strip() for name in names if name.strip()]

    def read_betas(
        self,
        headers: Mapping[str, str],
        allowed: Sequence[str] = ("default",),
        fields: Mapping[str, Any] | None = None,
    ) -> Betas:
        """Return the betas that a client opts in to, sorted by a list of allowed patterns."""
        return sort_betas(self.list_betas(headers, fields or {}), allowed, self.safe_betas)

    def list_models(self, models: Sequence[ListedModel]) -> dict[str, Any]:
        """Return the list of served models, with the openai and the anthropic fields."""
        data = [self.show_model(model) for model in models]
        first, last = (models[0].name, models[-1].name) if models else (None, None)
        facts = {"has_more": False, "first_id": first, "last_id": last}
        return {"object": "list", "data": data, **facts}

    def show_model(self, model: ListedModel) -> dict[str, Any]:
        """Return the description of one model."""
        return describe_model(model)

    def fit_stream(self, encoder: ReplyEncoder, query: str) -> ReplyEncoder:
        """Return an encoder for the form of stream that the query of the URL requests."""
        return encoder

    def is_count(self, path: str) -> bool:
        """Return whether a request to this path asks for the number of its tokens."""
        return False

    def unwrap(self, fields: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return the fields of the request that a body contains, in the form for ``decode``."""
        return fields

    def write_count(self, count: int) -> bytes:
        """Return the reply to a request that asks for the number of its tokens."""
        return encode_json({"input_tokens": count})

    def read_question(self, body: bytes, path: str) -> ModelQuestion | None:
        """Return the question if a request is about a model only, otherwise ``None``."""
        return None


class ReplyEncoder(ABC):
    """Encode one reply, event by event.

    Call ``feed()`` with each event in order, then ``end()``, or ``fail()`` with the error that was
    raised. In a streamed reply, each call returns the bytes to send. In a reply with one body,
    ``feed()`` returns no bytes, and the last call returns the complete body.

    A tool call that failed validation (unknown tool, arguments that are not JSON) is sent as the
    model wrote it, so that the client can detect the error. The reply fails if the client could
    not detect the error, if the reply was truncated, or if the wire cannot express the call,
    because it requires an object and the input is not one. A streamed reply then ends with an
    error event; in a reply with one body, the last call raises the error, and the caller passes it
    to ``ServerCodec.error``.
    """

    content_type: str = "text/event-stream"
    wire: ClassVar[str]
    finish: ClassVar[FinishWords] = NO_WORDS

    def __init__(self, asked: Asked, created: int = 0) -> None:
        self.asked = asked
        self.created = created
        self.start: MessageStart | None = None
        self.complete: MessageComplete | None = None
        # the validation error of a reply that was written completely: a tool call or the text is
        # invalid, which the client can detect
        self.unsound: ProviderError | None = None
        self.calls: list[CallFacts] = []  # tool calls that have ended
        self.tool_name = ""  # the tool of the open call
        self._input: list[str] = []  # input fragments of the open call
        # the name by which the client knows the model, if it differs from the provider's name
        self.served_model = ""
        self.is_own = True  # whether the model is of the client's wire, as far as is known
        # returns the seconds since the request; the gateway sets it, since codecs read no clock
        self.elapsed: Callable[[], float] = float
        self._thoughts: dict[int, list[str]] = {}  # thoughts by content_block_index
        self._stateful: set[int] = set()  # the blocks whose opaque state has arrived
        self.text_block = -1  # the content_block_index of the text that ``before_text`` frames
        self.before_text = self.after_text = b""

    def feed(self, event: Event) -> bytes:
        """Return the bytes to send for one event; record what later events or the end need."""
        # These types have a metaclass, so ``isinstance`` takes four times as long as ``type`` if
        # it returns false: 6 µs more for the events of a short reply.
        if type(event) is TextDelta:
            text = event.text
            if event.continuity is not None:
                self._stateful.add(event.content_block_index)
            elif text and event.content_block_index == self.text_block:
                return self.before_text + encode_json(text) + self.after_text
            return self.text(event)
        if type(event) is ToolUseInputDelta:
            self._input.append(event.partial_json)
            return self.call_input(event)
        if type(event) is ThinkingDelta:
            self._thoughts.setdefault(event.content_block_index, []).append(event.text)
            return self.thinking(event)
        if type(event) is ToolUseStart:
            self._input = []
            self.tool_name = event.tool_name
            if event.continuity is not None:
                self._stateful.add(event.content_block_index)
            return self.call_start(event)
        if type(event) is ToolUseEnd:
            self.calls.append(CallFacts(event, self.tool_name, "".join(self._input)))
            return self.call_end(event)
        if type(event) is MessageStart:
            self.start = event
            return self.begin(event)
        assert type(event) is MessageComplete
        self.complete = event
        return b""

    # --- methods for single events, which a wire overrides if it streams the event

    def begin(self, event: MessageStart) -> bytes:
        """Write the start of the reply."""
        return b""

    def text(self, event: TextDelta) -> bytes:
        """Write the first text of a block; ``write_text`` frames this text and later ones."""
        return b""

    def thinking(self, event: ThinkingDelta) -> bytes:
        """Write thinking."""
        return b""

    def call_start(self, event: ToolUseStart) -> bytes:
        """Write the start of a tool call."""
        return b""

    def call_input(self, event: ToolUseInputDelta) -> bytes:
        """Write a fragment of a call's input."""
        return b""

    def call_end(self, event: ToolUseEnd) -> bytes:
        """Write the end of a tool call."""
        return b""

    def frame_text(self, frame: bytes) -> None:
        """Set the frame of text, which is encoded with a NUL character as its text.

        Most frames of a stream differ only in their text, so the other bytes are encoded once.
        """
        self.before_text, _, self.after_text = frame.rpartition(b'"\\u0000"')

    def write_text(self, event: TextDelta) -> bytes:
        """Return text in its frame; later text of the same block uses the same frame."""
        self.text_block = event.content_block_index
        return self.before_text + encode_json(event.text) + self.after_text

    def end(self) -> bytes:
        """Return the bytes that end a complete reply."""
        assert self.complete is not None
        if self.complete.finish_reason == "cancelled":
            return self.write_error(CallCancelledError("the call was cancelled"))
        return self.write_end(self.complete)

    def fail(self, error: ProviderError) -> bytes:
        """Return the bytes that end a reply for which an error was raised."""
        complete = self.complete
        if complete is None or not self._is_visible(error, complete) or self.hides_call(complete):
            return self.write_error(error)
        self.unsound = error
        return self.end()

    @abstractmethod
    def write_end(self, complete: MessageComplete) -> bytes:
        """Write the end of a reply that is complete and that the wire can express."""

    @abstractmethod
    def write_error(self, error: ProviderError) -> bytes:
        """Write the error that ends a failed reply; if the reply is one body, raise the error."""

    def hides_call(self, complete: MessageComplete) -> bool:
        """Return whether the reply has a tool call that the wire cannot express."""
        return False

    def has_unreadable_call(self, blocks: Sequence[AssistantBlock]) -> bool:
        """Return whether a reply has a tool call whose input is not an object."""
        return any(isinstance(block, ToolCall) and block.arguments is None for block in blocks)

    def read_thought(self, block: int) -> str:
        """Return the text of the thought at a content_block_index."""
        return "".join(self._thoughts.get(block, ()))

    def late_states(self, complete: MessageComplete) -> list[Text | ToolCall]:
        """Return the texts and calls whose opaque state did not arrive with their events."""
        return [
            block
            for at, block in enumerate(complete.final_content)
            if isinstance(block, Text | ToolCall)
            and at not in self._stateful
            and has_state(block.continuity)
        ]

    def usage_record(self, counts: UsageMap) -> dict[str, Any]:
        """Return the token counts of a reply that has ended; without counts, an empty record."""
        return {} if self.complete is None else counts.write(self.complete.usage)

    @property
    def model(self) -> str:
        """The client's name of the model that answers; empty if it is not known yet."""
        if self.served_model:
            return self.served_model
        known = self.complete.model if self.complete is not None else None
        return known or (self.start.model if self.start is not None else "")

    def _is_visible(self, error: ProviderError, complete: MessageComplete) -> bool:
        """Return whether a client that validates the reply itself would find the same error."""
        if isinstance(error, StructuredOutputError):
            return True
        failed = [call for call in self.calls if call.end.problem is not None]
        # A malformed call looks valid to the client if its input is a complete object (more input
        # arrived after the call had ended), or is empty, which clients read as ``{}``.
        hidden = [
            call
            for call in failed
            if call.end.problem == "malformed"
            and (
                read_object(call.text) is not None
                or (call.is_blank and complete.finish_reason != "length")
            )
        ]
        return isinstance(error, MalformedToolCallError) and bool(failed) and not hidden

    def finish_word(self, complete: MessageComplete) -> str:
        """Return the wire's term for the finish reason.

        The provider's own term is returned if this wire has the same term with the same meaning.
        Otherwise the first term of the wire with that meaning is returned.
        """
        raw = complete.finish_raw
        reason = complete.finish_reason
        if reason == "error" and isinstance(self.unsound, MalformedToolCallError):
            # The original finish reason is sent, because the client can detect the invalid call
            # itself.
            reason = self.finish.written.get(raw or "", "tool_calls")
        return self.finish.choose(reason, raw, is_own=self.is_own)


class CallFacts(NamedTuple):
    """A tool call that has ended, and its input as the model wrote it."""

    end: ToolUseEnd
    name: str
    text: str

    @property
    def is_blank(self) -> bool:
        """Whether the call's input is empty or only whitespace."""
        return not self.text.strip()

    @property
    def is_object(self) -> bool:
        """Whether the call's input is a complete object, though perhaps of an invalid call."""
        problem = self.end.problem
        return self.end.intent is not None or problem in ("unknown_tool", "invalid_arguments")

    @property
    def arguments(self) -> str:
        """The call's input as JSON text; ``{}`` for a complete call without input."""
        return self.text + "{}" if self.is_blank and self.is_object else self.text


class BodyEncoder(ReplyEncoder):
    """Encode a reply as one body, which ``write_end`` builds from the recorded events."""

    content_type = "application/json"

    def write_error(self, error: ProviderError) -> bytes:
        raise error

    def function_calls(self) -> list[dict[str, Any]]:
        """Return the tool calls of the reply in the form that several wires share."""
        return [
            {
                "id": call.end.tool_use_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.calls
        ]


# --- functions that the encoders of all wires share --------------------------------------------


def state_of(event: ThinkingDelta) -> Continuity | None:
    """Return the opaque state that a fragment of a thought has.

    A custom provider may set only the signature.
    """
    if event.continuity is None and event.signature is not None:
        return Continuity(event.signature)
    return event.continuity


encode_json = msgspec.json.Encoder().encode

# U+2028, U+2029 and U+0085: some clients split a stream of lines at them, too.
_LINE_ENDS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def escape_line_ends(data: bytes) -> bytes:
    """Escape the characters of JSON texts that end a line in Unicode, but not in JSON."""
    for raw, escaped in _LINE_ENDS:
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def data_frame(data: dict[str, Any]) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + encode_json(data) + b"\n\n"


def named_frame(data: dict[str, Any]) -> bytes:
    """Return a server-sent event that is named by its ``type``."""
    return b"event: " + str(data["type"]).encode() + b"\ndata: " + encode_json(data) + b"\n\n"
