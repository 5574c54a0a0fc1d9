"""The client codec of the cohere wire, for one model at one base URL."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import ClassVar
from urllib.parse import quote

from msgspec.structs import replace

from ...capabilities import Capabilities
from ...errors import InvalidModelError
from ...messages import Request
from ..codec import HttpReply, HttpRequest
from ..endpoint import Endpoint, Place, Refusal, StructuredPath, adapt_reasoning
from ..json import dig, list_of
from ..readiness import check_call, get_json, read_success
from .errors import ROWS
from .quirks import Quirks
from .reply import CohereDecoder
from .request import SETTINGS, CohereWriter, structured_path

_NAMES_FORMAT = re.compile(r"response_format|json_schema|json_object|schema", re.IGNORECASE)


class CohereCodec(Endpoint[Quirks]):
    """The v2 chat wire for one model at one base URL. The URL may end with the API version."""

    wire: ClassVar[str] = "cohere"
    end_marks = (b"message-end",)
    list_path = "/v1/models"
    setting_paths: ClassVar[Mapping[str, str]] = SETTINGS
    concepts: ClassVar[Mapping[str, Place]] = {
        "top_k": "k",
        "json_mode": ("response_format", lambda _: {"type": "json_object"}),
    }
    quirks_type = Quirks
    decoder_type = CohereDecoder
    write_request = CohereWriter.write
    error_rows = ROWS
    refusing = (400, 422)
    refusals = (Refusal(_NAMES_FORMAT, {"structured": "prompt"}, "native"),)

    @classmethod
    def adapt(cls, quirks: Quirks, capabilities: Capabilities) -> Quirks:
        quirks = adapt_reasoning(quirks, capabilities)
        if quirks.result_media is None and capabilities.known("supports_images"):
            quirks = replace(quirks, result_media="after")
        if capabilities.known("supports_structured_output") is False:
            quirks = replace(quirks, structured="prompt")
        return quirks

    def structured_path(self, request: Request, quirks: Quirks) -> StructuredPath:
        return structured_path(request, quirks)

    def url_for(self, request: Request) -> str:
        return f"{self.root}/v2/chat"

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check that the model exists and has a chat endpoint."""
        reply = yield get_json(f"{self.root}/v1/models/{quote(self.model, safe='')}")
        if reply.status == 404:
            raise InvalidModelError(
                f"the server does not have the model {self.model!r}", status=404
            )
        data = read_success(self, reply)  # pyright: ignore[reportArgumentType] - it takes Self for an invariant
        uses = list_of(dig(data, "endpoints"))
        if uses and "chat" not in uses:
            raise InvalidModelError(
                f"the model {self.model!r} is not served for chat", status=reply.status
            )
        yield from check_call(self)
