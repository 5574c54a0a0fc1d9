"""The client codec of the Gemini wire, for one model at one base URL."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, urlsplit

from ...errors import InvalidModelError, InvalidRequestError, InvalidResponseError, cut
from ...messages import Request
from ..codec import HttpReply, HttpRequest
from ..endpoint import Endpoint, Place, Refusal, StructuredPath
from ..readiness import check_call, get_json, read_success
from ..rules import HostedTools
from ..urls import join_url
from .counting import ask_count
from .errors import ROWS, read_refusal
from .quirks import Quirks
from .reply import GeminiDecoder
from .request import DYNAMIC, NAMES, GeminiWriter, structured_path

_VERSION = re.compile(r"/v\d\w*(/|$)")


# These patterns match errors about the field itself. An error such as "Unknown name \"$ref\" at
# 'generation_config.response_json_schema'" is about a schema.
_names_field = re.compile(
    r"unknown name \W*response|response_?json_?schema\W+(?:is )?(?:not supported|unsupported)"
    r"|mime[_ ]?type.{0,60}(?:unsupported|not supported)",
    re.IGNORECASE,
).search
_REFUSALS = (
    Refusal(
        re.compile("function calling with a response mime type", re.IGNORECASE),
        {"structured_with_tools": "prompt"},
        "native",
        "the endpoint rejected structured output with tools: structured_with_tools='prompt'",
        lambda request, quirks, reason: bool(request.tools),
    ),
    Refusal(
        re.compile(r"response_?json_?schema|response[_ ]?mime[_ ]?type", re.IGNORECASE),
        {"structured": "prompt"},
        "native",
    ),
    Refusal(
        re.compile(r"parameters_?json_?schema", re.IGNORECASE),
        {"tool_schema": "parameters"},
        applies=lambda request, quirks, reason: bool(request.tools),
    ),
    Refusal(
        re.compile(r"unknown name \W*id\W+ at '?[^']*function_?(call|response)", re.IGNORECASE),
        {"call_ids": False},
    ),
    Refusal(
        re.compile(r"enable \S*include_?server_?side_?tool_?invocations", re.IGNORECASE),
        {"server_invocations": True},
        applies=lambda request, quirks, reason: quirks.server_invocations is None,
    ),
    Refusal(
        re.compile(r"include_?server_?side_?tool_?invocations", re.IGNORECASE),
        {"server_invocations": False},
        applies=lambda request, quirks, reason: quirks.server_invocations is True,
    ),
    Refusal(
        re.compile(r"missing a\W+thought_?signature", re.IGNORECASE),
        # Google documents this placeholder signature for calls that another model made.
        {"placeholder_signature": "skip_thought_signature_validator"},
        applies=lambda request, quirks, reason: quirks.placeholder_signature is None,
    ),
)


class GeminiCodec(Endpoint[Quirks]):
    """The Generate Content wire for one model at one base URL.

    A base URL without a version in its path gets ``/v1beta``. The model's name is sent only in the
    URL. The API key is sent in a header, never in the URL.
    """

    key_header: ClassVar[str] = "x-goog-api-key"
    wire: ClassVar[str] = "gemini"
    base_mark = "v1beta"
    messages_field = "contents"
    reasoning_parent = "generationConfig"
    dynamic_budget = DYNAMIC
    setting_paths: ClassVar[Mapping[str, str]] = {
        name: f"generationConfig.{field}" for name, field in NAMES.items()
    }
    concepts: ClassVar[Mapping[str, Place]] = {
        "top_k": "generationConfig.topK",
        "json_mode": ("generationConfig.responseMimeType", lambda _: "application/json"),
    }
    ask_count = staticmethod(ask_count)
    hosted = HostedTools(
        {
            "googleSearch": "web_search",
            "codeExecution": "code_execution",
            "urlContext": "url_context",
        },
        renamed={"excludeDomains": "blocked_domains"},
    )
    quirks_type = Quirks
    decoder_type = GeminiDecoder
    write_request = GeminiWriter.write
    error_rows = ROWS
    read_error = staticmethod(read_refusal)
    refusing = (400, 422, 500, 501)
    refusals = _REFUSALS

    def __init__(
        self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any
    ) -> None:
        super().__init__(model, base_url, quirks, **settings)
        parts = urlsplit(base_url)
        if {"key", "access_token"} & parse_qs(parts.query).keys():
            raise ValueError("base_url must not contain a key; pass api_key instead")
        self._version = "" if _VERSION.search(parts.path) else "/v1beta"

    def structured_path(self, request: Request, quirks: Quirks) -> StructuredPath:
        return structured_path(request, quirks)

    @property
    def separates_tools(self) -> bool:
        # Before Gemini 3, and on Vertex AI (strands-agents/harness-sdk#3646, seen 2026-11-18).
        return self.quirks.server_invocations is not True

    def is_about_field(self, reason: str) -> bool:
        return _names_field(reason) is not None

    def url_for(self, request: Request) -> str:
        verb = ":streamGenerateContent" if request.stream else ":generateContent"
        url = self.address(request.model or self.model, verb)
        if not request.stream:
            return url
        return url + ("&alt=sse" if "?" in url else "?alt=sse")

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check that the model exists by requesting its description, which is free of charge."""
        reply = yield get_json(self.address(self.model, ""))
        record = read_success(self, reply)
        if not isinstance(record, dict):
            raise InvalidResponseError(
                "the model's record has an unknown form", status=reply.status
            )
        methods = record.get("supportedGenerationMethods")
        if isinstance(methods, list) and methods and "generateContent" not in methods:
            raise InvalidModelError(
                f"the model {self.model!r} does not generate content", status=reply.status
            )
        yield from check_call(self)

    def address(self, model: str, verb: str) -> str:
        """Return the URL of the model, followed by a verb such as ``:generateContent``."""
        return join_url(self.base_url, f"{self._version}/models/{_segment(model)}{verb}")


def _segment(model: str) -> str:
    """Return the name of a model as one escaped path segment, without the prefix ``models/``."""
    name = model.removeprefix("models/")
    if not name.strip("."):  # a name that consists of dots would be resolved as a relative path
        raise InvalidRequestError(f"model: {cut(model)!r} is not the name of a model")
    return quote(name, safe="", errors="replace")
