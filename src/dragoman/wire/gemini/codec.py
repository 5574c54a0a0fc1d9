"""The client codec of this wire, for one model at one base URL."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, urlsplit

from ...errors import (
    InvalidModelError,
    InvalidRequestError,
    InvalidResponseError,
    ProviderError,
    cut,
)
from ...events import Assembler
from ...messages import Request
from ..codec import Encoded, Endpoint, HttpReply, HttpRequest, Notes, encode_post
from ..errors import build_error
from ..names import rename_calls
from ..readiness import get_json, read_success
from ..urls import join_url
from .errors import ROWS, read_refusal
from .quirks import Quirks
from .reply import GeminiDecoder
from .request import structured_path, write_request

_VERSION = re.compile(r"/v\d\w*(/|$)")
# Google documents this placeholder signature for calls that another model made.
_UNSIGNED = "skip_thought_signature_validator"


class GeminiCodec(Endpoint[Quirks]):
    """The Generate Content wire for one model at one base URL.

    A base URL without a version in its path gets ``/v1beta``. The model's name is sent only in the
    URL. The API key is sent in a header, never in the URL.
    """

    wire: ClassVar[str] = "gemini"
    quirks_type = Quirks

    def __init__(
        self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any
    ) -> None:
        super().__init__(model, base_url, quirks, **settings)
        # join_url is called here, so that an invalid base URL raises an error early
        join_url(base_url, "")
        parts = urlsplit(base_url)
        if {"key", "access_token"} & parse_qs(parts.query).keys():
            raise ValueError("base_url must not contain a key; pass api_key instead")
        self._version = "" if _VERSION.search(parts.path) else "/v1beta"

    def encode(self, request: Request) -> Encoded:
        """Encode a request as a ``POST``.

        Contents come last, so that the body of the next turn begins with the same bytes.
        """
        notes, quirks = Notes(), self.quirks_for(request)
        request = rename_calls(request, notes)
        home, path = self.home(request), structured_path(request, quirks)
        body = write_request(request, home, quirks, path, notes)
        verb = ":streamGenerateContent" if request.stream else ":generateContent"
        url = self.address(home.model or self.model, verb)
        if request.stream:
            url += "&alt=sse" if "?" in url else "?alt=sse"
        return encode_post(url, body, notes, path, native=request.native.get(self.wire))

    def decoder(self, request: Request, out: Assembler) -> GeminiDecoder:
        """Return a decoder for the reply, which is one body or a stream."""
        return GeminiDecoder(request, out, keep_raw=self._keep_raw)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> ProviderError:
        """Return the error for a reply with an error status."""
        return build_error(status, headers, read_refusal(body), ROWS, now)

    def authorise(self, key: str) -> dict[str, str]:
        """Return the header ``x-goog-api-key``."""
        return {"x-goog-api-key": key}

    def learn(self, error: ProviderError, request: Request) -> GeminiCodec | None:
        """Return a codec that avoids the optional field named in the error.

        The result is ``None`` if the error names no such field.
        """
        if error.status not in (400, 422, 500, 501):
            return None
        said = error.provider_message or ""
        if structured_path(request, self.quirks_for(request)) == "native" and _NAMES_SCHEMA.search(
            said
        ):
            if request.tools and _NAMES_PAIR.search(said):
                detail = (
                    "the endpoint rejected structured output with tools: "
                    "structured_with_tools='prompt'"
                )
                return self.taught(detail, structured_with_tools="prompt")
            about_field = bool(_NAMES_FIELD.search(said))
            return self.taught_structure(request, about_field=about_field, structured="prompt")
        changes = self._find_changes(said, request)
        if changes is None:
            return None
        [(name, value)] = changes.items()
        return self.taught(f"the endpoint refused a field: {name}={value!r}", **changes)

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

    # --- private methods of the gemini codec

    def _find_changes(self, said: str, request: Request) -> dict[str, Any] | None:
        quirks = self.quirks
        if request.tools and quirks.tool_schema != "parameters" and _NAMES_PARAMETERS.search(said):
            return {"tool_schema": "parameters"}
        if quirks.call_ids and _NAMES_ID.search(said):
            return {"call_ids": False}
        if quirks.placeholder_signature is None and _NAMES_SIGNATURE.search(said):
            return {"placeholder_signature": _UNSIGNED}
        return None

    def address(self, model: str, verb: str) -> str:
        """Return the URL of the model, followed by a verb such as ``:generateContent``."""
        return join_url(self.base_url, f"{self._version}/models/{_segment(model)}{verb}")


_NAMES_SCHEMA = re.compile(r"response_?json_?schema|response[_ ]?mime[_ ]?type", re.IGNORECASE)
# These patterns match errors about the field itself. An error such as "Unknown name \"$ref\" at
# 'generation_config.response_json_schema'" is about a schema.
_NAMES_FIELD = re.compile(
    r"unknown name \W*response|response_?json_?schema\W+(?:is )?(?:not supported|unsupported)"
    r"|mime[_ ]?type.{0,60}(?:unsupported|not supported)",
    re.IGNORECASE,
)
_NAMES_PAIR = re.compile(r"function calling with a response mime type", re.IGNORECASE)
_NAMES_PARAMETERS = re.compile(r"parameters_?json_?schema", re.IGNORECASE)
_NAMES_ID = re.compile(
    r"""unknown name \W*id\W+ at '?[^']*function_?(call|response)""", re.IGNORECASE
)
_NAMES_SIGNATURE = re.compile(r"missing a\W+thought_?signature", re.IGNORECASE)


def _segment(model: str) -> str:
    """Return the name of a model as one escaped path segment, without the prefix ``models/``."""
    name = model.removeprefix("models/")
    if not name.strip("."):  # a name that consists of dots would be resolved as a relative path
        raise InvalidRequestError(f"model: {cut(model)!r} is not the name of a model")
    return quote(name, safe="", errors="replace")
