"""The client codec of the Responses wire, for one model at one base URL."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from ...capabilities import Capabilities
from ...events import Assembler
from ...messages import Request
from ..codec import Decoder, HttpReply, HttpRequest, Notes
from ..counting import ask_below
from ..described import Description
from ..endpoint import (
    COMPACTION,
    LATE_SYSTEM,
    NO_COMPACTION,
    NO_TOOL_SEARCH,
    Endpoint,
    Place,
    Refusal,
    may_relax,
)
from ..openai import OpenAICodec, describe_entry
from ..openai import Quirks as OpenAIQuirks
from ..openai.codec import ORGANISATION
from ..reasoning import ReasoningStyle
from ..rules import CONCEPTS, HostedTools
from ..socket import SocketForm
from ..strict import strict_form
from .errors import ROWS, read_error_body
from .quirks import Quirks
from .reply import ResponsesDecoder
from .request import (
    ADDED,
    SETTINGS,
    ResponsesWriter,
    limits_search,
    needs_functions,
    omit_web_access,
)
from .upstream_socket import ResponsesSocketForm

# These patterns must not match the error "could not be verified". It also mentions encrypted
# content, but is about an item of the conversation.
_REFUSED = (
    r"(?:un(?:supported|known|recogni[sz]ed)|not (?:supported|permitted|allowed)|invalid|extra)"
)
_NAMES_INCLUDE = re.compile(
    r"encrypted[_ ]content\W{0,3} is not supported"
    rf"|{_REFUSED}.{{0,60}}\binclude\b|\binclude\b.{{0,60}}{_REFUSED}",
    re.IGNORECASE,
)
_NAMES_KIND = re.compile(
    r"\b(?:custom|namespaces?)\b.{0,80}(?:\btools?\b|not supported|expected)"
    r"|\btools?\b.{0,80}\b(?:custom|namespaces?)\b"
    r"|unknown tool type|'type' of tool must be",
    re.IGNORECASE,
)
_NAMES_FORMAT = re.compile(r"text\.format|response_format|json_schema", re.IGNORECASE)
_REFUSALS = (
    NO_TOOL_SEARCH,
    NO_COMPACTION,
    *LATE_SYSTEM,
    Refusal(
        re.compile(ADDED),
        {"additional_tools": False},
        detail="the endpoint refused tools in an input item: they are sent in the field tools",
        applies=lambda request, quirks, reason: _has_added(request.native.get("responses", {})),
    ),
    Refusal(
        _NAMES_KIND,
        {"tool_kinds": "functions"},
        detail="the endpoint refused a kind of tool: tools are sent as functions",
        applies=lambda request, quirks, reason: needs_functions(
            request.native.get("responses", {})
        ),
    ),
    Refusal(
        re.compile(r"external_web_access"),
        {"external_web_access": False},
        detail="the endpoint refused external_web_access: it is not sent",
        applies=lambda request, quirks, reason: limits_search(request, "responses"),
    ),
    Refusal(
        re.compile(r"prompt_cache_(breakpoint|options)"),
        {"cache_form": "retention"},
        detail="the endpoint refused breakpoints of the prompt cache: none is sent",
    ),
    Refusal(
        _NAMES_INCLUDE,
        {"encrypted_reasoning": False},
        detail="the endpoint refused encrypted reasoning: it is not asked for",
    ),
    Refusal(
        re.compile(r"invalid_function_parameters|invalid schema for function", re.IGNORECASE),
        {"strict_tools": False},
        detail="the endpoint refused a strict tool: tools are not strict",
        applies=lambda request, quirks, reason: any(
            strict_form(tool.parameters) for tool in request.tools
        ),
    ),
    Refusal(_NAMES_FORMAT, {"strict_schemas": False}, "native", applies=may_relax),
    Refusal(_NAMES_FORMAT, {"structured": "prompt"}, "native"),
)
_SOCKET = ResponsesSocketForm()
# The fields of a client that the codec replaces if the server takes functions alone.
_REPLACED = ("input", "instructions", "tools", "tool_choice")


class ResponsesCodec(Endpoint[Quirks]):
    """The Responses wire for one model at one base URL. Every call sends ``store: false``."""

    wire: ClassVar[str] = "responses"
    # the event "incomplete" ends a truncated reply
    end_marks = (b"response.completed", b"response.incomplete")
    route: ClassVar[str] = "/responses"
    version: ClassVar[str] = "/v1"
    messages_field = "input"
    setting_paths: ClassVar[Mapping[str, str]] = SETTINGS
    usual_reasoning = ReasoningStyle(effort="reasoning.effort", off={"reasoning.effort": "none"})
    reasoning_places: ClassVar[Mapping[str, str]] = {"reasoning_effort": "reasoning.effort"}
    ask_count = staticmethod(
        ask_below(
            "/input_tokens",
            [
                "model",
                "input",
                "instructions",
                "tools",
                "tool_choice",
                "text",
                "reasoning",
                "parallel_tool_calls",
                "truncation",
                "previous_response_id",
                "conversation",
            ],
        )
    )
    header_options = ORGANISATION
    concepts: ClassVar[Mapping[str, Place]] = {
        **{name: name for name in CONCEPTS},
        "json_mode": ("text.format", lambda _: {"type": "json_object"}),
        "verbosity": "text.verbosity",
    }
    hosted = HostedTools(
        {
            "web_search": "web_search",
            "web_search_preview": "web_search",
            "code_interpreter": "code_execution",
        },
        ("allowed_domains", "user_location", "search_context_size"),
        defaults={"external_web_access": True},
        nest_domains=True,
    )
    keep_alive = b'event: keepalive\ndata: {"type": "keepalive", "sequence_number": 3}\n\n'
    quirks_type = Quirks
    write_request = ResponsesWriter.write
    error_rows = ROWS
    read_error = staticmethod(read_error_body)
    refusals = _REFUSALS

    @classmethod
    def adapt(cls, quirks: Quirks, capabilities: Capabilities) -> Quirks:
        """Return the quirks, without encrypted reasoning if the model is known not to reason."""
        if capabilities.known("supports_thinking") is False:
            quirks = replace(quirks, encrypted_reasoning=False)
        return super().adapt(quirks, capabilities)

    def compaction(self, tokens: int | None) -> dict[str, Any] | None:
        if not self.quirks.compaction:
            return None
        limit = {} if tokens is None else {"compact_threshold": tokens}
        return {COMPACTION: [{"type": "compaction", **limit}]}

    def native_fields(self, request: Request) -> dict[str, Any]:
        """Return the native fields; move the tools of input items to the field ``tools``.

        The items stay where they are if the server takes them. If the server takes functions
        alone, the tools and the conversation are those that the codec writes.
        """
        native = super().native_fields(request)
        if self.quirks.tool_kinds == "functions" and needs_functions(native):
            return {name: value for name, value in native.items() if name not in _REPLACED}
        if self.quirks.additional_tools or not _has_added(native):
            return native
        items = []
        tools = [*(native.get("tools") or ())]
        for item in native["input"]:
            if _is_added(item):
                tools += [tool for tool in item.get("tools") or () if tool not in tools]
            else:
                items.append(item)
        return {**native, "tools": tools, "input": items}

    def prepare(self, request: Request, quirks: Quirks, notes: Notes) -> Request:
        """Return a request without what the server rejects, such as a field of a web search."""
        request = super().prepare(request, quirks, notes)
        if quirks.external_web_access:
            return request
        return omit_web_access(request, self.wire, notes)

    def may_choose(self, body: Mapping[str, Any]) -> bool:
        items = body["input"] if isinstance(body["input"], list) else ()
        # Codex sends tools as an item of the conversation too.
        return bool(body.get("tools")) or any(map(_is_added, items))

    @property
    def socket(self) -> SocketForm | None:
        """How requests are sent over a WebSocket; ``None`` if they are posted."""
        return _SOCKET if self.quirks.socket else None

    def make_decoder(self, request: Request, out: Assembler) -> Decoder:
        limit = request.config.max_tokens if self.quirks.silent_cut else None
        return ResponsesDecoder(request, out, limit=limit, keep_raw=self._keep_raw)

    def ready(self) -> Generator[HttpRequest, HttpReply, Description]:
        """Check readiness as on the openai wire, by the method that ``Quirks.readiness`` names."""
        quirks = OpenAIQuirks(readiness=self.quirks.readiness, any_model=self.quirks.any_model)
        chat = OpenAICodec(self.model, self.base_url, quirks)
        entry = yield from chat.check_ready(self)
        return describe_entry(entry, self.quirks.reasoning)


def _has_added(native: Mapping[str, Any]) -> bool:
    given = native.get("input")
    return isinstance(given, list) and any(map(_is_added, given))


def _is_added(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == ADDED
