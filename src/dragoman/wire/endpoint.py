"""The base class of codecs: a model, its address, and what a wire does with requests and errors.

A wire describes itself by class attributes: how it writes a request, which decoder reads a reply,
which rows classify an error, and which quirk avoids a field that a server refused.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import ProviderError
from ..events import Assembler, read_json
from ..messages import (
    ForceTool,
    Issuer,
    LossWarning,
    Request,
    ServerTool,
    System,
    join_system,
)
from .beliefs import find_beliefs, paths_of_reasoning, vendor_of
from .canonical import sort_request
from .codec import JSON_HEADERS, Decoder, Encoded, Notes, Questions, encode_post
from .errors import ErrorRow, Failure, build_error, read_failure
from .json import dict_of, dig, plain_value, put_over
from .lessons import MAX_LESSONS, Lesson, changes_for, digest_of, is_about_field
from .names import has_refused_tool, map_names, project_names
from .native_reasoning import remove_reasoning, settle_reasoning
from .quirks import WireQuirks, list_types
from .reasoning import NOT_REASONING, ReasoningStyle
from .refused import change_style, find_settings
from .rules import NO_HOSTED, HostedTools
from .schema import schema_name
from .settings import drop_refused, keep_first
from .strict import strict_form
from .urls import join_url, root_of

StructuredPath: TypeAlias = Literal["native", "tool", "prompt"]
Place: TypeAlias = str | tuple[str, Callable[[Any], Any]]
"""The path of a field in a body, optionally with a function that converts the value."""
S = TypeVar("S", bound=Struct)
Q = TypeVar("Q", bound=WireQuirks)
E = TypeVar("E", bound="Endpoint[Any]")


def read_quirks(quirks: Any, kind: type[S]) -> S:
    """Return quirks of class ``kind``: from an instance, a mapping, or ``None`` (the defaults)."""
    if quirks is None:
        return kind()
    if isinstance(quirks, kind):
        return quirks
    try:
        return msgspec.convert(dict(quirks), kind)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise ValueError(f"quirks: {error}") from error


def _names_changed(before: Struct, after: Struct) -> list[str]:
    """Return the names of the fields that differ between two structs of one class."""
    names = after.__struct_fields__
    return [name for name in names if getattr(before, name) != getattr(after, name)]


class Refusal(Struct, frozen=True):
    """The words by which a server refuses a field, and the quirks that avoid this field.

    A row with ``path`` is about structured output, and applies to requests whose schema is sent in
    that way. ``applies`` gets the request, its quirks and the error text.
    """

    words: re.Pattern[str]
    changes: dict[str, Any]
    path: StructuredPath | None = None
    detail: str | None = None
    applies: Callable[[Request, Any, str], bool] | None = None


NOT_DEFERRED = LossWarning(
    "deferral_dropped",
    "tools",
    "the model's server has no tool search: all tools are sent; a session would search them",
)


def offers_search(request: Request) -> bool:
    """Return whether a request offers a tool search of the provider."""
    return any(tool.name.startswith("tool_search") for tool in request.server_tools)


COMPACTION = "context_management"  # the field of the wires whose providers compact

NO_TOOL_SEARCH = Refusal(
    re.compile(r"tool[ _]search|defer_loading", re.IGNORECASE),
    {"tool_search": False},
    detail="the endpoint refused tool search: all tools are sent",
    applies=lambda request, quirks, reason: any(tool.deferred for tool in request.tools),
)


NO_COMPACTION = Refusal(
    re.compile(r"context_management|compact_", re.IGNORECASE),
    {"compaction": False},
    detail="the endpoint refused to compact the conversation: it is sent as it is",
    applies=lambda request, quirks, reason: COMPACTION in request.config.extras,
)


def has_late_system(request: Request) -> bool:
    """Return whether a request has a system message after the system prompt."""
    _, rest = join_system(request.messages)
    return any(type(message) is System for message in rest)


LATE_SYSTEM = (
    # vLLM and llama.cpp with Qwen: "System message must be at the beginning"
    # (vllm-project/vllm#44505, ggml-org/llama.cpp#27367); MiniMax: "chat content has invalid
    # message role: system" (BigPizzaV3/CodexPlusPlus#410); Mistral: "Unexpected role 'system'
    # after role 'assistant'"; a server of the Responses wire: "System messages are not allowed"
    # (router-for-me/CLIProxyAPI#4092); all seen 2026-11-19
    Refusal(
        re.compile(
            r"system messages? (?:must be|are not allowed)|invalid message role: system"
            r"|unexpected role\W{1,3}(?:system|developer)\b",
            re.IGNORECASE,
        ),
        {"late_system": "user"},
        detail="the endpoint refused a late system message: the user's role is used",
        applies=lambda request, quirks, reason: (
            quirks.late_system == "in_place" and has_late_system(request)
        ),
    ),
    # Mistral: "Unexpected role 'user' after role 'tool'" (yetone/avante.nvim#2695, 2025-09)
    Refusal(
        re.compile(r"unexpected role\W{1,3}user\W{1,3}after role\W{1,3}tool", re.IGNORECASE),
        {"late_system": "first"},
        detail="the endpoint refused a message after the results: instructions come first",
        applies=lambda request, quirks, reason: has_late_system(request),
    ),
)


def may_relax(request: Request, quirks: Any, reason: str) -> bool:
    """Return whether strict decoding of the schema can be turned off to avoid an error."""
    return not is_about_field(reason) and strict_form(request.response_schema or {}) is not None


def adapt_calls(quirks: Q, capabilities: Capabilities) -> Q:
    """Return quirks that turn parallel tool calls off if the model does not support them."""
    if capabilities.known("supports_parallel_tool_calls") is False and hasattr(
        quirks, "parallel_tools"
    ):
        return replace(quirks, parallel_tools=False)
    return quirks


def adapt_reasoning(quirks: Q, capabilities: Capabilities) -> Q:
    """Return quirks that turn reasoning settings off if the model is known not to reason."""
    if capabilities.known("supports_thinking") is False and quirks.reasoning is None:
        return replace(quirks, reasoning=NOT_REASONING)
    return quirks


class Endpoint(ABC, Generic[Q]):
    """Base class of codecs: a model, its address, and the quirks of the server at this address."""

    wire: ClassVar[str]
    route: ClassVar[str] = ""  # the path of the API after the base URL
    key_header: ClassVar[str] = "authorization"
    list_path: ClassVar[str] = ""  # where a server lists its models, if not at ``models``
    common_list_path: ClassVar[str] = ""  # where every server of the wire lists them, if elsewhere
    probe_path: ClassVar[str] = ""  # what only servers of this wire answer
    base_mark: ClassVar[str] = ""  # what only base URLs of this wire contain
    stream_media: ClassVar[str] = "text/event-stream"  # the media type of a stream
    end_marks: ClassVar[Sequence[bytes]] = ()  # one of these is at the end of a stream
    version: ClassVar[str] = ""  # what precedes ``route`` if the base URL has no path
    messages_field: ClassVar[str] = "messages"  # what has the conversation in a body
    quirks_type: type[Q]
    decoder_type: ClassVar[Callable[..., Decoder]]
    write_request: ClassVar[Callable[..., dict[str, Any]]]
    error_rows: ClassVar[Sequence[ErrorRow]]
    read_error: ClassVar[Callable[..., Failure]] = staticmethod(read_failure)
    # A 404, 500 or 501 may name a field too: servers answer so to a route or a grammar they lack.
    refusing: ClassVar[Sequence[int]] = (400, 404, 422, 500, 501)
    refusals: ClassVar[Sequence[Refusal]] = ()
    # The fields of settings that several wires have under other names; the gateway writes them.
    concepts: ClassVar[Mapping[str, Place]] = {}
    # The path in the body of each setting of ``RuntimeConfig`` that the wire has. The gateway
    # omits the others.
    setting_paths: ClassVar[Mapping[str, str]] = {}
    # Where the wire has the fields of reasoning that other wires of a model family share with it:
    # the object that they are in, and the paths that differ.
    reasoning_root: ClassVar[str] = ""
    reasoning_places: ClassVar[Mapping[str, str]] = {}
    # The object of the body that has the fields of reasoning, if they are not at its root.
    reasoning_parent: ClassVar[str] = ""
    # The budget with which the model decides how much it thinks, if the wire has one.
    dynamic_budget: ClassVar[int | None] = None
    # How an amount of reasoning is sent to a model of an unknown family.
    usual_reasoning: ClassVar[ReasoningStyle | None] = None
    # The fields that a limit to one tool call also needs if the request chooses no tool.
    beside_parallel: ClassVar[Mapping[str, Any]] = {}
    needs_max_tokens: ClassVar[bool] = False  # whether the wire requires a limit of the reply
    hosted: ClassVar[HostedTools] = NO_HOSTED
    # The capabilities without which a response schema is requested in the prompt.
    schemas_need: ClassVar[Sequence[str]] = ("supports_structured_output",)
    # Ask the server to count the input tokens of an encoded request, if it can.
    ask_count: ClassVar[Callable[..., Questions] | None] = None
    # The options of an adapter in ``models.yaml`` that are sent as headers.
    header_options: ClassVar[Mapping[str, str]] = {}
    # The header of a request to which configured values are added instead of replacing it.
    joined_header: ClassVar[str] = ""
    # The bytes that a server may send between two events to keep a connection open.
    keep_alive: ClassVar[bytes] = b": keep-alive\n\n"

    def __init__(
        self,
        model: str,
        base_url: str,
        quirks: Q | None = None,
        *,
        vendor: str | None = None,
        keep_raw: bool = True,
        max_output_tokens: int | None = None,
    ) -> None:
        self.model = model
        self.base_url = base_url
        # The quirks before the beliefs about the model are applied, and the names of those that
        # no belief may change.
        self._plain = self.quirks_type() if quirks is None else quirks
        self.stated = frozenset(_names_changed(self.quirks_type(), self._plain))
        self.issuer_vendor = vendor
        self.max_output_tokens = max_output_tokens
        self._keep_raw = keep_raw
        self.lessons: tuple[Lesson, ...] = ()
        # an invalid base URL raises an error here, not at the first call
        self.url = join_url(base_url, getattr(quirks, "chat_path", self.route), self.version)
        self.root = root_of(base_url)
        self.quirks = self.believed(model)

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
        adapted = cls.adapt(read_quirks(quirks, cls.quirks_type), capabilities)
        codec = cls(model, base_url, adapted, vendor=vendor, keep_raw=keep_raw)
        codec.max_output_tokens = capabilities.known("max_output_tokens")
        if isinstance(quirks, Mapping):
            # A quirk that is set to its default value is set, too.
            codec.stated |= quirks.keys()
            codec.quirks = codec.believed(model)
        return codec

    def believed(self, model: str) -> Q:
        """Return the quirks for a model: those that were set, and what is believed of the rest."""
        vendor = self.issuer_vendor or vendor_of(self.base_url)
        types = list_types(self.quirks_type)
        changes: dict[str, Any] = {}
        for name, value in find_beliefs(self.wire, vendor, model).items():
            if name in types and name not in self.stated:
                changes[name] = msgspec.convert(value, types[name])
        style: ReasoningStyle | None = changes.get("reasoning")
        if style is not None:
            changes["reasoning"] = style.placed(self.reasoning_root, self.reasoning_places)
        return replace(self._plain, **changes) if changes else self._plain

    @classmethod
    def adapt(cls, quirks: Q, capabilities: Capabilities) -> Q:
        """Return the quirks, adapted to the known capabilities of a model."""
        quirks = adapt_reasoning(quirks, capabilities)
        if capabilities.known("supports_images") is False:
            quirks = replace(quirks, result_media="omit")
        if any(capabilities.known(name) is False for name in cls.schemas_need):
            quirks = replace(quirks, structured="prompt")
        return adapt_calls(quirks, capabilities)

    def home(self, request: Request) -> Issuer:
        """Return the issuer that answers a request.

        Opaque state is sent only to the issuer that it came from.
        """
        return Issuer(self.wire, self.issuer_vendor, request.model or self.model)

    def quirks_for(self, request: Request) -> Q:
        """Return the endpoint's quirks, as changed by rejections of the request's response schema."""
        quirks = self.quirks
        if request.model and request.model != self.model:
            quirks = self.believed(request.model)
        changes = changes_for(self.lessons, request.response_schema) if self.lessons else None
        return replace(quirks, **changes) if changes else quirks

    def taught(self, detail: str, schema: Mapping[str, Any] | None = None, **changes: Any) -> Self:
        """Return a copy of the codec with changed quirks.

        The change applies to one response schema, or to every request if no schema is given.
        """
        lesson = Lesson(detail, changes, None if schema is None else digest_of(schema))
        codec = copy(self)
        codec.lessons = (*self.lessons, lesson)[-MAX_LESSONS:]
        if schema is None:
            codec._plain = replace(self._plain, **changes)
            codec.stated = self.stated | changes.keys()
            codec.quirks = codec.believed(codec.model)
        return codec

    # --- the methods of a codec that the wires share

    @property
    def searches_tools(self) -> bool:
        """Whether the provider searches deferred tools, so that only the found ones are loaded."""
        return getattr(self.quirks, "tool_search", False)

    @property
    def separates_tools(self) -> bool:
        """Whether the model rejects functions next to tools that the server runs."""
        return False

    def compaction(self, tokens: int | None) -> dict[str, Any] | None:
        """Return the extras with which the provider compacts a conversation of ``tokens``.

        The result is ``None`` if the provider cannot do so.
        """
        return None

    def structured_path(self, request: Request, quirks: Any) -> StructuredPath:
        """Return how the response schema of a request is requested."""
        path: StructuredPath = quirks.structured
        return path

    def url_for(self, request: Request) -> str:
        """Return the URL that a request is sent to."""
        return self.url

    def headers_for(self, request: Request) -> dict[str, str]:
        """Return the headers of a request, without credentials."""
        return JSON_HEADERS

    def native_fields(self, request: Request) -> dict[str, Any]:
        """Return the fields of the body that override those that the codec writes."""
        return request.native.get(self.wire, {})

    def encode(self, request: Request) -> Encoded:
        """Encode a request as a ``POST``.

        Messages come last, so that the body of the next turn begins with the same bytes.
        """
        notes = Notes()
        quirks = self.quirks_for(request)
        if request.native:
            request = settle_reasoning(
                request,
                self.wire,
                quirks.reasoning,
                _list_reasoning(self),
                self.reasoning_parent,
            )
        request = self.prepare(request, quirks, notes)
        if quirks.canonical:
            request = sort_request(request)
        path = None
        if request.response_schema is not None:
            path = self.structured_path(request, quirks)
        body = self.write_request(request, self.home(request), quirks, path, notes)
        if native := self.native_fields(request):
            body = put_over(body, native)
        if plain_value(body.get("tool_choice")) in ("auto", "none") and not self.may_choose(body):
            _omit_choice(body, notes)
        refused = quirks.refused_settings
        if quirks.refused_while_reasoning and self.reasons(request, quirks):
            refused = {**quirks.refused_while_reasoning, **refused}
        if refused:
            drop_refused(body, refused, places_of(self), notes)
        if quirks.one_setting_of:
            keep_first(body, quirks.one_setting_of, places_of(self), notes)
        return encode_post(self.url_for(request), body, notes, path, self.headers_for(request))

    def prepare(self, request: Request, quirks: Q, notes: Notes) -> Request:
        """Return a request without what the model or its server is known to reject."""
        if quirks.forced_tools != "yes" and request.tool_choice not in (None, "auto", "none"):
            request = _unforce(request, quirks, notes, reasons=self.reasons(request, quirks))
            if request.native and request.config.reasoning == "off":
                request = remove_reasoning(
                    request, self.wire, _list_reasoning(self), self.reasoning_parent
                )
        if request.tools:
            if has_refused_tool(request, quirks.name_rule):
                request = project_names(request, quirks.name_rule, notes)
            if [tool for tool in request.tools if tool.deferred]:
                request = _defer(request, notes, searches=self.searches_tools)
        if COMPACTION in request.config.extras and getattr(quirks, "compaction", None) is False:
            request = _keep_whole(request, notes)
        return request

    def reasons(self, request: Request, quirks: Q) -> bool:
        """Return whether the model reasons in its answer to a request.

        Extras and the fields of a client of the wire may turn reasoning off, too.
        """
        off = quirks.reasoning.off if quirks.reasoning is not None else None
        given = {**request.config.extras, **request.native.get(self.wire, {})}
        if self.reasoning_parent:
            given = dict_of(given.get(self.reasoning_parent))
        if off and all(dig(given, *path.split(".")) == value for path, value in off.items()):
            return False
        return quirks.reasons(request.config.reasoning)

    def may_choose(self, body: Mapping[str, Any]) -> bool:
        """Return whether the server accepts the tool choice ``auto`` or ``none`` of a body."""
        return True

    def answer_tool(self, request: Request) -> str | None:
        """Return the name of the tool that structured output is requested by, if any."""
        schema = request.response_schema
        quirks = self.quirks_for(request)
        if schema is None:
            return None
        if self.structured_path(self.prepare(request, quirks, Notes()), quirks) != "tool":
            return None
        return schema_name(schema)

    def decoder(self, request: Request, out: Assembler) -> Decoder:
        """Return a decoder for the reply, which is one body or a stream.

        Calls in the reply have the names of the request's tools, even if others were sent.
        """
        if request.tools and has_refused_tool(request, self.quirks.name_rule):
            names = map_names(request, self.quirks.name_rule)
            out.tool_names = {sent: name for name, sent in names.items()}
        return self.make_decoder(request, out)

    def make_decoder(self, request: Request, out: Assembler) -> Decoder:
        """Return a decoder for a reply whose tools have the names that were sent."""
        return self.decoder_type(request, out, keep_raw=self._keep_raw)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> ProviderError:
        """Return the error for a reply with an error status."""
        return build_error(status, headers, self.read_error(body), self.error_rows, now)

    def authorise(self, key: str) -> dict[str, str]:
        """Return the header with the key, which is a bearer token in the header ``authorization``."""
        header = getattr(self.quirks, "key_header", None) or self.key_header
        return {header: f"Bearer {key}" if header == "authorization" else key}

    def learn(self, error: ProviderError, request: Request) -> Self | None:
        """Return a codec that avoids the optional field named in the error.

        The first row of ``refusals`` that fits the error decides; if none fits, the optional
        setting that the error names is no longer sent. The result is ``None`` if there is no such
        setting, or if the quirks avoid the field already.
        """
        if error.status not in self.refusing:
            return None
        reason = f"{error.provider_message} {error.provider_code}"
        quirks = self.quirks_for(request)
        path = None
        if request.response_schema is not None:
            path = self.structured_path(self.prepare(request, quirks, Notes()), quirks)
        for row in self.refusals:
            if (
                row.path in (None, path)
                and row.words.search(reason)
                and any(getattr(quirks, name) != value for name, value in row.changes.items())
                and (row.applies is None or row.applies(request, quirks, reason))
            ):
                return _avoid(self, row, request, reason)
        return _omit_setting(self, error, request, quirks)

    def is_about_field(self, reason: str) -> bool:
        """Return whether an error is about the field for structured output, not a schema."""
        return is_about_field(reason)


# --- learning from errors ----------------------------------------------------------------------

C = TypeVar("C", bound=Endpoint[Any])


def _avoid(codec: C, row: Refusal, request: Request, reason: str) -> C:
    """Return a codec that avoids the field that a row of ``refusals`` is about."""
    ways = ", ".join([f"{name}={value!r}" for name, value in row.changes.items()])
    if row.path is None or row.detail is not None:
        detail = row.detail or f"the endpoint refused a field: {ways}"
        return codec.taught(detail, **row.changes)
    if codec.is_about_field(reason):
        return codec.taught(f"the endpoint refused structured output: {ways}", **row.changes)
    schema = request.response_schema or {}
    detail = f"the endpoint refused the schema {schema_name(schema)}: {ways}"
    return codec.taught(detail, schema, **row.changes)


def _omit_setting(
    codec: C, error: ProviderError, request: Request, quirks: WireQuirks
) -> C | None:
    """Return a codec that does not send the optional setting that an error refuses, if any."""
    if error.status not in (400, 422):
        return None
    amount = request.config.reasoning
    style = quirks.reasoning or codec.usual_reasoning
    if amount is not None and style is not None:
        changed = change_style(error, style, amount)
        if changed is not None:
            detail = "the endpoint refused an amount of reasoning: the nearest is sent"
            if not changed.reasons:
                detail = "the endpoint refused a setting for reasoning: none is sent"
            return codec.taught(detail, reasoning=changed)
    kept = {"json_mode", "max_tokens"} if codec.needs_max_tokens else {"json_mode"}
    places = {name: path for name, path in places_of(codec).items() if name not in kept}
    named = find_settings(error, places)
    body = read_json(codec.encode(request).http.body) if named else {}
    for setting in named:
        if dig(body, *places[setting].split(".")) is not None:
            refused = {**quirks.refused_settings, setting: None}
            detail = f"the endpoint refused {places[setting]}: it is not sent"
            return codec.taught(detail, refused_settings=refused)
    return None


def places_of(codec: Endpoint[Any]) -> dict[str, str]:
    """Return the path in a body of each optional setting that the wire has."""
    places = {
        name: place if isinstance(place, str) else place[0]
        for name, place in codec.concepts.items()
    }
    return {**places, **codec.setting_paths}


def _list_reasoning(codec: Endpoint[Any]) -> Collection[str]:
    """Return the paths of all fields of reasoning that a wire has."""
    places = tuple(codec.reasoning_places.items())
    return paths_of_reasoning(codec.wire, codec.reasoning_root, places)


# --- requests that are changed before they are written -----------------------------------------


def _unforce(request: Request, quirks: WireQuirks, notes: Notes, *, reasons: bool) -> Request:
    """Return a request that forces no tool, or that does not reason, as the model demands."""
    if quirks.forced_tools == "not_reasoning":
        if not reasons:
            return request
        if quirks.reasoning is not None and quirks.reasoning.off is not None:
            why = "the model cannot be forced to call a tool while it reasons, so it does not"
            notes.rewrite("config.reasoning", "reasoning_off", why, loss=True)
            return replace(request, config=replace(request.config, reasoning="off"))
    why = "the model cannot be forced to call a tool, so it decides by itself"
    notes.rewrite("tool_choice", "tool_choice_relaxed", why, loss=True)
    return replace(request, tool_choice="auto")


def _omit_choice(body: dict[str, Any], notes: Notes) -> None:
    """Remove the tool choice of a body without tools.

    xAI answers "A tool_choice was set on the request but no tools were specified", and Codex sends
    such a request when it compacts (farion1231/cc-switch#3640, jlcodes99/cockpit-tools#1727).
    """
    del body["tool_choice"]
    why = "without tools there is nothing to choose"
    notes.rewrite("tool_choice", "tool_choice_omitted", why)


def _defer(request: Request, notes: Notes, *, searches: bool) -> Request:
    """Offer the provider's tool search for deferred tools; without one, defer no tool."""
    if not searches:
        lost = NOT_DEFERRED
        notes.rewrite(lost.path, lost.code, lost.detail, loss=True)
        return replace(request, tools=[replace(tool, deferred=False) for tool in request.tools])
    forced = request.tool_choice.name if isinstance(request.tool_choice, ForceTool) else None
    tools = [replace(t, deferred=t.deferred and t.name != forced) for t in request.tools]
    request = replace(request, tools=tools)
    if offers_search(request):
        return request
    return replace(request, server_tools=(*request.server_tools, ServerTool("tool_search")))


def _keep_whole(request: Request, notes: Notes) -> Request:
    """Return a request that does not ask the provider to compact the conversation."""
    why = "the endpoint refused it: the conversation is sent as it is"
    notes.drop(f"config.extras[{COMPACTION!r}]", "compaction_dropped", why)
    extras = {name: each for name, each in request.config.extras.items() if name != COMPACTION}
    return replace(request, config=replace(request.config, extras=extras))
