"""The client codec of this wire, for one model at one base URL."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from ...capabilities import Capabilities
from ...errors import ProviderError
from ...events import Assembler
from ...messages import Request
from ..codec import Encoded, Endpoint, HttpReply, HttpRequest, Notes, encode_post
from ..errors import build_error
from ..lessons import is_about_field
from ..names import rename_calls
from ..openai import OpenAICodec
from ..openai import Quirks as OpenAIQuirks
from ..strict import strict_form
from ..urls import join_url
from .errors import ROWS, read_error_body
from .quirks import Quirks
from .reply import ResponsesDecoder
from .request import structured_path, write_request


class ResponsesCodec(Endpoint[Quirks]):
    """The Responses wire for one model at one base URL. Every call sends ``store: false``."""

    wire: ClassVar[str] = "responses"
    quirks_type = Quirks

    def __init__(
        self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any
    ) -> None:
        super().__init__(model, base_url, quirks, **settings)
        self._url = join_url(base_url, "/responses", default="/v1")

    @classmethod
    def adapt(cls, quirks: Quirks, capabilities: Capabilities) -> Quirks:
        """Return the quirks, without encrypted reasoning if the model is known not to reason."""
        if capabilities.known("supports_thinking") is False:
            quirks = replace(quirks, encrypted_reasoning=False)
        return super().adapt(quirks, capabilities)

    def encode(self, request: Request) -> Encoded:
        """Encode a request as a ``POST``.

        The input comes last, so that the body of the next turn begins with the same bytes.
        """
        notes, quirks = Notes(), self.quirks_for(request)
        request = rename_calls(request, notes)
        path = structured_path(request, quirks)
        body = write_request(request, self.home(request), quirks, path, notes)
        return encode_post(self._url, body, notes, path, native=request.native.get(self.wire))

    def decoder(self, request: Request, out: Assembler) -> ResponsesDecoder:
        """Return a decoder for the reply, which is one body or a stream."""
        limit = request.config.max_tokens if self.quirks.silent_cut else None
        return ResponsesDecoder(request, out, limit=limit, keep_raw=self._keep_raw)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> ProviderError:
        """Return the error for a reply with an error status."""
        return build_error(status, headers, read_error_body(body), ROWS, now)

    def authorise(self, key: str) -> dict[str, str]:
        """Return the header with the key as a bearer token."""
        return {"authorization": f"Bearer {key}"}

    def learn(self, error: ProviderError, request: Request) -> ResponsesCodec | None:
        """Return a codec that omits the optional field named in the error.

        The fields are those for encrypted reasoning, strict decoding and ``text.format``. If the
        error names none of them, the result is ``None``.
        """
        said = f"{error.provider_message} {error.provider_code}"
        quirks = self.quirks_for(request)
        if error.status not in (400, 404, 422, 500, 501):
            return None
        if quirks.encrypted_reasoning and _NAMES_INCLUDE.search(said):
            return self.taught(
                "the endpoint refused encrypted reasoning: it is not asked for",
                encrypted_reasoning=False,
            )
        if self._has_strict_tools(request) and _NAMES_TOOL.search(said):
            return self.taught(
                "the endpoint refused a strict tool: tools are not strict", strict_tools=False
            )
        if structured_path(request, quirks) != "native" or not _NAMES_FORMAT.search(said):
            return None
        about_field = is_about_field(said)
        if (
            quirks.strict_schemas
            and not about_field
            and strict_form(request.response_schema or {})
        ):
            return self.taught_structure(request, about_field=False, strict_schemas=False)
        return self.taught_structure(request, about_field=about_field, structured="prompt")

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check readiness as on the openai wire, by the method that ``Quirks.readiness`` names."""
        quirks = OpenAIQuirks(readiness=self.quirks.readiness, any_model=self.quirks.any_model)
        yield from OpenAICodec(self.model, self.base_url, quirks).ready()

    # --- private methods of the responses codec

    def _has_strict_tools(self, request: Request) -> bool:
        return self.quirks.strict_tools and any(
            strict_form(tool.parameters) for tool in request.tools
        )


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
_NAMES_TOOL = re.compile(r"invalid_function_parameters|invalid schema for function", re.IGNORECASE)
_NAMES_FORMAT = re.compile(r"text\.format|response_format|json_schema", re.IGNORECASE)
