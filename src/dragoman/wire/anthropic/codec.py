"""The client codec of the anthropic wire, for one model at one base URL."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from operator import not_
from typing import Any, ClassVar, Self
from urllib.parse import quote, urlsplit

from msgspec.structs import replace

from ...capabilities import Capabilities
from ...errors import InvalidModelError, InvalidResponseError, ProviderError, cut
from ...events import Assembler
from ...messages import Issuer, Request
from ..codec import Codec, HttpReply, HttpRequest, Notes, Questions
from ..continuity import find_compaction
from ..counting import ask_below
from ..described import Description
from ..endpoint import (
    COMPACTION,
    NO_COMPACTION,
    NO_TOOL_SEARCH,
    Endpoint,
    Place,
    Refusal,
    StructuredPath,
    adapt_calls,
    adapt_reasoning,
)
from ..errors import read_failure
from ..json import entries_of
from ..readiness import check_call, get_json, read_success, serves_one_model
from ..rules import HostedTools
from ..urls import join_url
from .betas import COMPACT, HEADER, TOOL_BETAS, VERSION
from .described import describe_model
from .errors import ROWS
from .quirks import Quirks
from .refusals import REFUSALS
from .reply import AnthropicDecoder
from .request import SERVER_TOOLS, SETTINGS, MessagesWriter, structured_path
from .thinking import BINDING

_ask_below = ask_below(
    "/count_tokens",
    ["model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"],
)


def _ask_count(codec: Codec, sent: HttpRequest, model: str) -> Questions:
    """Count a request's input tokens; Google Cloud serves models of this wire without a count."""
    if not sent.url.endswith("/messages"):
        return None
    return (yield from _ask_below(codec, sent, model))


class AnthropicCodec(Endpoint[Quirks]):
    """The Messages wire for one model at one base URL.

    The wire requires ``max_tokens``. If the caller sets no limit, the model's
    ``max_output_tokens`` is sent.
    """

    wire: ClassVar[str] = "anthropic"
    end_marks = (b"message_stop",)
    setting_paths: ClassVar[Mapping[str, str]] = SETTINGS
    concepts: ClassVar[Mapping[str, Place]] = {
        "top_k": "top_k",
        "parallel_tool_calls": ("tool_choice.disable_parallel_tool_use", not_),
        "user": "metadata.user_id",
    }
    beside_parallel: ClassVar[Mapping[str, Any]] = {"tool_choice": {"type": "auto"}}
    needs_max_tokens = True
    hosted = HostedTools(
        {
            "web_search": "web_search",
            "code_execution": "code_execution",
            "web_fetch": "url_context",
        },
        ("allowed_domains", "blocked_domains", "user_location", "max_uses"),
    )
    joined_header = HEADER
    ask_count = staticmethod(_ask_count)
    key_header: ClassVar[str] = "x-api-key"
    header_options: ClassVar[Mapping[str, str]] = {"anthropic_beta": HEADER, "beta": HEADER}
    keep_alive = b'event: ping\ndata: {"type": "ping"}\n\n'
    quirks_type = Quirks
    error_rows = ROWS
    refusals = (
        NO_TOOL_SEARCH,
        NO_COMPACTION,
        *REFUSALS,
        # "The `content[].thinking` in the thinking mode must be passed back to the API"
        # (leookun/cursor-byok#276); "reasoning_content is missing in assistant tool call message"
        # (NousResearch/hermes-agent#14018)
        Refusal(
            re.compile(
                r"thinking.{0,40}must be passed back|reasoning_content is missing", re.IGNORECASE
            ),
            {"unsigned_thinking": True, "reasoning_required": True, "reasons_unasked": True},
        ),
        Refusal(
            re.compile(
                # "The compiled grammar is too large", for a schema with dozens of optional fields
                # (anthropics/anthropic-sdk-python#1185; claude-code#55539; seen 2026-11-18)
                r"output_config|output[_ ]format|json_schema|structured output"
                r"|compiled grammar is too large",
                re.IGNORECASE,
            ),
            {"structured": "tool"},
            "native",
        ),
        Refusal(
            re.compile(r"\btools?\b|tool_choice|input_schema", re.IGNORECASE),
            {"structured": "prompt"},
            "tool",
        ),
    )

    def __init__(
        self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any
    ) -> None:
        super().__init__(model, base_url, quirks, **settings)
        if not self.quirks.raw_predict:
            self.url = _address(base_url, "/messages")

    @classmethod
    def adapt(cls, quirks: Quirks, capabilities: Capabilities) -> Quirks:
        """Return the quirks, adapted to the known capabilities of a model.

        A model without native structured output gets a forced tool, and a model without tools gets
        an instruction in the prompt.
        """
        quirks = adapt_calls(adapt_reasoning(quirks, capabilities), capabilities)
        if capabilities.known("supports_images") is False:
            quirks = replace(quirks, result_media="omit")
        if (
            capabilities.known("supports_structured_output") is not False
            or quirks.structured != "native"
        ):
            return quirks
        has_tools = capabilities.known("supports_tools") is not False
        return replace(quirks, structured="tool" if has_tools else "prompt")

    def prepare(self, request: Request, quirks: Quirks, notes: Notes) -> Request:
        writer = MessagesWriter(request, self.home(request), quirks, None, notes)
        return super().prepare(writer.finish_turn(), quirks, notes)

    def structured_path(self, request: Request, quirks: Quirks) -> StructuredPath:
        return structured_path(request, self.home(request), quirks)

    def reasons(self, request: Request, quirks: Quirks) -> bool:
        return MessagesWriter(
            request, self.home(request), quirks, None, Notes()
        ).requests_thinking()

    def write_request(
        self, request: Request, home: Issuer, quirks: Quirks, path: Any, notes: Notes
    ) -> dict[str, Any]:
        for name in self._name_betas(request):
            if name in quirks.refused_betas:
                notes.drop(f"{HEADER}[{cut(name)}]", "beta_dropped", "the endpoint refused it")
        writer = MessagesWriter(request, home, quirks, path, notes)
        writer.limit = self.max_output_tokens
        body = writer.body()
        if not quirks.raw_predict:
            return body
        del body["model"]
        return {"anthropic_version": _RAW_VERSION, **body}

    def url_for(self, request: Request) -> str:
        if not self.quirks.raw_predict:
            return self.url
        model = quote(request.model or self.model, safe="@.-_")
        verb = ":streamRawPredict" if request.stream else ":rawPredict"
        return join_url(self.base_url, f"/models/{model}{verb}")

    def headers_for(self, request: Request) -> dict[str, str]:
        refused = self.quirks.refused_betas
        named = [name for name in self._name_betas(request) if name not in refused]
        headers = {HEADER: ",".join(named)} if named else {}
        # Hosts with an address of their own for each model read the version from the body.
        given = (
            {} if self.quirks.raw_predict else request.native.get(self.wire, {}).get("headers", {})
        )
        return {**_HEADERS, **headers, **given}

    def _name_betas(self, request: Request) -> list[str]:
        quirks = self.quirks_for(request)
        types: list[Any] = []
        for each in request.server_tools:
            form = {**SERVER_TOOLS.get(each.name, {}), **quirks.server_tools.get(each.name, {})}
            types.append(each.options.get("type", form.get("type")))
        own = [TOOL_BETAS[kind] for kind in types if kind in TOOL_BETAS]
        if MessagesWriter(request, self.home(request), quirks, None, Notes()).binds():
            own.append(BINDING)
        asked = "compact_" in str(request.config.extras.get(COMPACTION))
        if asked or find_compaction(request.messages, self.home(request)) is not None:
            own.append(COMPACT)
        return [*dict.fromkeys([*request.native.get(self.wire, {}).get("betas", ()), *own])]

    def learn(self, error: ProviderError, request: Request) -> Self | None:
        """Return a codec that avoids the betas or the optional field that the error names."""
        refused = _find_refused_betas(error.provider_message or "")
        known = self.quirks.refused_betas
        if refused is None or error.status != 400 or BINDING in refused:
            return super().learn(error, request)  # the switch of this beta is a field, too
        named = [name for name in self._name_betas(request) if name not in known]
        if refused:  # an error without names is about some of them, so none is sent again
            named = [name for name in named if name in refused]
        if not named:
            return None
        detail = f"the endpoint refused betas: {cut(', '.join(named))}"
        return self.taught(detail, refused_betas=(*known, *named)[-_MOST_BETAS:])

    def native_fields(self, request: Request) -> dict[str, Any]:
        fields = super().native_fields(request)
        return {name: value for name, value in fields.items() if name not in ("betas", "headers")}

    def compaction(self, tokens: int | None) -> dict[str, Any] | None:
        if not self.quirks.compaction or (tokens is not None and tokens < _LEAST_TRIGGER):
            return None
        edit: dict[str, Any] = {"type": "compact_20260112"}
        if tokens is not None:
            edit["trigger"] = {"type": "input_tokens", "value": tokens}
        return {COMPACTION: {"edits": [edit]}}

    def make_decoder(self, request: Request, out: Assembler) -> AnthropicDecoder:
        answer = self.answer_tool(request)
        return AnthropicDecoder(request, out, answer=answer, keep_raw=self._keep_raw)

    def ready(self) -> Generator[HttpRequest, HttpReply, Description]:
        """Look the model up by name; if the server has no such route, look in its model list.

        A 404 that names the model means that the model does not exist. Any other 404 means that
        the server lacks the route (llama.cpp, vLLM), so its model list is requested. A server
        without a model list cannot confirm the model, which is an error.
        """
        reply = yield self._get(f"/models/{quote(self.model, safe='')}")
        if reply.status == 404 and self.model not in read_failure(reply.body).message:
            reply = yield self._get("/models")
            if reply.status == 404:
                raise InvalidModelError(
                    "the server has no model list, so it cannot confirm the model", status=404
                )
            entry = _find_model(self._read(reply), self.model)
        else:
            entry = self._read(reply)
        description = describe_model(entry, self.quirks.reasoning)
        yield from check_call(self)
        return description

    # --- private methods of the anthropic codec

    def _get(self, path: str) -> HttpRequest:
        return get_json(_address(self.base_url, path), _VERSION)

    def _read(self, reply: HttpReply) -> dict[str, Any]:
        data = read_success(self, reply)  # pyright: ignore[reportArgumentType] - it takes Self for an invariant
        if not isinstance(data, dict):
            raise InvalidResponseError(
                "the server's answer about its models has an unknown form", status=reply.status
            )
        return data


# Google Cloud names the betas that it does not know, Bedrock does not.
_UNKNOWN_BETAS = re.compile(
    r"unexpected value\(s\) ([\w.,`'\" -]{1,400})|(invalid beta flag)", re.IGNORECASE
)
_MOST_BETAS = 64  # largest number of refused betas that a codec remembers


def _find_refused_betas(message: str) -> list[str] | None:
    """Return the betas that an error names; ``None`` if it is not about betas."""
    found = _UNKNOWN_BETAS.search(message)
    if found is None or (found[1] and HEADER not in message):
        return None
    return re.findall(r"[\w.-]{3,200}", (found[1] or "").partition(" for the ")[0])


_LEAST_TRIGGER = 50_000  # tokens; the server refuses to compact a shorter conversation
_VERSION = {VERSION[0]: VERSION[1]}
_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    **_VERSION,
}
# Google Cloud documents this value for the field anthropic_version.
_RAW_VERSION = "vertex-2023-10-16"


def _address(base_url: str, path: str) -> str:
    """Return the URL of an API path; the base URL may or may not end with the version."""
    versioned = re.search(r"/v\d\w*/?$", urlsplit(base_url).path)
    return join_url(base_url, path if versioned else f"/v1{path}")


def _find_model(data: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """Return the entry of a model list that describes a model; raise an error without one."""
    known = entries_of(data.get("data"))
    entry = next((entry for entry in known if entry.get("id") == model), None)
    if entry is None and not serves_one_model(known):
        raise InvalidModelError(f"the server does not list the model {model!r}", status=200)
    return entry or {}
