"""The codec: one model at one address."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

from msgspec.structs import replace

from ...capabilities import Capabilities
from ...errors import ProviderError
from ...events import Assembler
from ...messages import Issuer, Request, join_system
from ..codec import Encoded, Endpoint, HttpReply, HttpRequest, Notes
from ..errors import build_error
from ..openai import OpenAICodec
from ..openai import Quirks as OpenAIQuirks
from ..openai.request import is_strict, schema_directive
from ..projection import join_url, to_bytes
from .errors import ROWS, read_error_body
from .items import write_input
from .quirks import Quirks
from .reply import ResponsesDecoder
from .request import add_extras, text_format, write_config, write_tool, write_tool_choice


class ResponsesCodec(Endpoint[Quirks]):
    """The Responses wire for one model at one base URL. Every call says ``store: false``."""

    wire: ClassVar[str] = "responses"
    quirks_type = Quirks

    def __init__(self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any) -> None:
        super().__init__(model, base_url, quirks, **settings)
        self._url = join_url(base_url, "/responses", default="/v1")

    @classmethod
    def adapt(cls, quirks: Quirks, capabilities: Capabilities) -> Quirks:
        """Ask for encrypted reasoning only where there may be reasoning."""
        if capabilities.known("supports_thinking") is False:
            quirks = replace(quirks, encrypted_reasoning=False)
        return super().adapt(quirks, capabilities)

    def encode(self, request: Request) -> Encoded:
        """The request as a ``POST``; settings first and input last, so that a longer turn extends the bytes."""
        notes = Notes()
        path = self._structured_path(request)
        model = request.model or self.model
        system, rest = join_system(request.messages)
        body: dict[str, Any] = {"model": model, "store": False}
        self._write_structure(body, request, path, system)
        write_config(body, request.config, self.quirks)
        if request.stream:
            body["stream"] = True
        first = len(request.messages) - len(rest)
        body["input"] = write_input(rest, first, Issuer(self.wire, self.issuer_vendor, model), self.quirks, notes)
        add_extras(body, request)
        body["input"] = body.pop("input")
        return Encoded(
            HttpRequest("POST", self._url, dict(_JSON), to_bytes(body)),
            tuple(notes.items),
            notes.warnings,
            path,
        )

    def decoder(self, request: Request, out: Assembler) -> ResponsesDecoder:
        """A decoder for the reply, whole or streamed."""
        limit = request.config.max_tokens if self.quirks.silent_cut else None
        return ResponsesDecoder(request, out, limit=limit, keep_raw=self._keep_raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None) -> ProviderError:
        """What a refusal means."""
        return build_error(status, headers, read_error_body(body), ROWS, now)

    def authorise(self, key: str) -> dict[str, str]:
        """The key as a bearer token."""
        return {"authorization": f"Bearer {key}"}

    def learn(self, error: ProviderError, request: Request) -> ResponsesCodec | None:
        """Ask without encrypted reasoning, strict tools or ``text.format`` once a 400 has named it."""
        said = f"{error.provider_message} {error.provider_code}"
        quirks = self.quirks
        if error.status not in (400, 404, 422, 500, 501):
            return None
        if quirks.encrypted_reasoning and _NAMES_INCLUDE.search(said):
            quirks = replace(quirks, encrypted_reasoning=False)
        elif self._has_strict_tools(request) and _NAMES_TOOL.search(said):
            quirks = replace(quirks, strict_tools=False)
        elif self._structured_path(request) == "native" and _NAMES_FORMAT.search(said):
            quirks = replace(quirks, structured="prompt")
        else:
            return None
        return self.taught(quirks)

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """The servers are those of the openai wire, and so are the questions; see ``Quirks.readiness``."""
        quirks = OpenAIQuirks(readiness=self.quirks.readiness, any_model=self.quirks.any_model)
        yield from OpenAICodec(self.model, self.base_url, quirks).ready()

    # inside

    def _structured_path(self, request: Request) -> Literal["native", "prompt"] | None:
        return None if request.response_schema is None else self.quirks.structured

    def _has_strict_tools(self, request: Request) -> bool:
        return self.quirks.strict_tools and any(is_strict(tool.parameters) for tool in request.tools)

    def _write_structure(self, body: dict[str, Any], request: Request, path: str | None, system: str | None) -> None:
        schema = request.response_schema
        said = [system] if system else []
        if schema is not None and path == "prompt":
            said.append(schema_directive(schema))
        if said:
            body["instructions"] = "\n\n".join(said)
        if request.tools:
            body["tools"] = [write_tool(tool, self.quirks) for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = write_tool_choice(request.tool_choice)
        if schema is not None and path == "native":
            body["text"] = text_format(schema)


_JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}

# "could not be verified" also speaks of encrypted content, and is about an item of the conversation.
_REFUSED = r"(?:un(?:supported|known|recogni[sz]ed)|not (?:supported|permitted|allowed)|invalid|extra)"
_NAMES_INCLUDE = re.compile(
    rf"encrypted[_ ]content\W{{0,3}} is not supported|{_REFUSED}.{{0,60}}\binclude\b|\binclude\b.{{0,60}}{_REFUSED}",
    re.IGNORECASE,
)
_NAMES_TOOL = re.compile(r"invalid_function_parameters|invalid schema for function", re.IGNORECASE)
_NAMES_FORMAT = re.compile(r"text\.format|response_format|json_schema", re.IGNORECASE)
