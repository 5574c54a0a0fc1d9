"""The client codec of this wire, for one model at one base URL."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from msgspec.structs import replace

from ...capabilities import Capabilities
from ...errors import InvalidModelError, ProviderError
from ...events import Assembler
from ...messages import Request
from ..codec import Encoded, Endpoint, HttpReply, HttpRequest, Notes, encode_post
from ..errors import build_error, read_failure
from ..lessons import is_about_field
from ..names import rename_calls
from ..readiness import get_json, read_success
from ..urls import join_url, root_of
from .errors import ROWS
from .quirks import Quirks
from .reply import CohereDecoder
from .request import structured_path, write_request

_NAMES_FORMAT = re.compile(r"response_format|json_schema|json_object|schema", re.IGNORECASE)


class CohereCodec(Endpoint[Quirks]):
    """The v2 chat wire for one model at one base URL. The URL may end with the API version."""

    wire: ClassVar[str] = "cohere"
    quirks_type = Quirks

    def __init__(
        self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any
    ) -> None:
        super().__init__(model, base_url, quirks, **settings)
        # join_url is called here, so that an invalid base URL raises an error early
        join_url(base_url, "")
        self._root = root_of(base_url)

    @classmethod
    def adapt(cls, quirks: Quirks, capabilities: Capabilities) -> Quirks:
        """Return the quirks, adapted to the known capabilities of a model."""
        quirks = cls.adapt_reasoning(quirks, capabilities)
        if capabilities.known("supports_structured_output") is False:
            quirks = replace(quirks, structured="prompt")
        return quirks

    def encode(self, request: Request) -> Encoded:
        """Encode a request as a ``POST``.

        Messages come last, so that the body of the next turn begins with the same bytes.
        """
        notes, quirks = Notes(), self.quirks_for(request)
        request = rename_calls(request, notes)
        path = structured_path(request, quirks)
        body = write_request(request, self.home(request), quirks, path, notes)
        return encode_post(
            f"{self._root}/v2/chat", body, notes, path, native=request.native.get(self.wire)
        )

    def decoder(self, request: Request, out: Assembler) -> CohereDecoder:
        """Return a decoder for the reply, which is one body or a stream."""
        return CohereDecoder(request, out, keep_raw=self._keep_raw)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> ProviderError:
        """Return the error for a reply with an error status."""
        return build_error(status, headers, read_failure(body), ROWS, now)

    def authorise(self, key: str) -> dict[str, str]:
        """Return the header with the key as a bearer token."""
        return {"authorization": f"Bearer {key}"}

    def learn(self, error: ProviderError, request: Request) -> CohereCodec | None:
        """Return a codec with the schema in the prompt, if ``response_format`` was rejected."""
        said = error.provider_message or ""
        if error.status not in (400, 422) or not _NAMES_FORMAT.search(said):
            return None
        if structured_path(request, self.quirks_for(request)) != "native":
            return None
        return self.taught_structure(
            request, about_field=is_about_field(said), structured="prompt"
        )

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check that the model exists and has a chat endpoint."""
        reply = yield get_json(f"{self._root}/v1/models/{quote(self.model, safe='')}")
        if reply.status == 404:
            raise InvalidModelError(
                f"the server does not have the model {self.model!r}", status=404
            )
        data = read_success(self, reply)  # pyright: ignore[reportArgumentType] - it takes Self for an invariant
        uses = data.get("endpoints") if isinstance(data, dict) else None
        if isinstance(uses, list) and uses and "chat" not in uses:
            raise InvalidModelError(
                f"the model {self.model!r} is not served for chat", status=reply.status
            )
