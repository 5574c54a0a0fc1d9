"""The client codec of Ollama's native wire."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar

from ...errors import InvalidModelError, ModelNotLoadedError, ProviderError
from ...events import Assembler
from ...messages import Request
from ..codec import Encoded, Endpoint, HttpReply, HttpRequest, Notes, encode_post
from ..errors import build_error, read_failure
from ..lessons import is_about_field
from ..names import rename_calls
from ..openai.errors import ROWS
from ..readiness import entries_of, get_json, read_success
from ..urls import join_url, root_of
from .quirks import Quirks
from .reply import OllamaDecoder
from .request import write_request

_HEADERS = {"content-type": "application/json", "accept": "application/x-ndjson, application/json"}


class OllamaCodec(Endpoint[Quirks]):
    """Ollama's native wire for one model at one server."""

    wire: ClassVar[str] = "ollama"
    quirks_type = Quirks

    def __init__(
        self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any
    ) -> None:
        super().__init__(model, base_url, quirks, **settings)
        # join_url is called here, so that an invalid base URL raises an error early
        join_url(base_url, "")
        self._root = root_of(base_url).removesuffix("/api")

    def encode(self, request: Request) -> Encoded:
        """Encode a request as a ``POST``.

        Messages come last, so that the body of the next turn begins with the same bytes.
        """
        notes, quirks = Notes(), self.quirks_for(request)
        request = rename_calls(request, notes)
        path = None if request.response_schema is None else quirks.structured
        body = write_request(request, self.home(request), quirks, path, notes)
        return encode_post(
            f"{self._root}/api/chat", body, notes, path, _HEADERS, request.native.get(self.wire)
        )

    def decoder(self, request: Request, out: Assembler) -> OllamaDecoder:
        """Return a decoder for the reply, which is one body or a stream."""
        return OllamaDecoder(request, out, keep_raw=self._keep_raw)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> ProviderError:
        """Return the error for a reply with an error status."""
        return build_error(status, headers, read_failure(body), ROWS, now)

    def authorise(self, key: str) -> dict[str, str]:
        """Return the header with the key as a bearer token; a local server needs no key."""
        return {"authorization": f"Bearer {key}"}

    def learn(self, error: ProviderError, request: Request) -> OllamaCodec | None:
        """Return a codec that puts the response schema into the prompt.

        The result is ``None`` unless the error is a 400 that names ``format``.
        """
        said = error.provider_message or ""
        if error.status != 400 or request.response_schema is None or "format" not in said:
            return None
        if self.quirks_for(request).structured == "prompt":
            return None
        return self.taught_structure(
            request, about_field=is_about_field(said), structured="prompt"
        )

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check that the server has the model and has loaded it into memory."""
        tags = yield get_json(f"{self._root}/api/tags")
        if not _lists(read_success(self, tags), self.model):
            raise InvalidModelError(
                f"the server does not have the model {self.model!r}", status=tags.status
            )
        loaded = yield get_json(f"{self._root}/api/ps")
        if not _lists(read_success(self, loaded), self.model):
            raise ModelNotLoadedError(
                "the server has the model and has not loaded it", status=loaded.status
            )


def _lists(data: Any, model: str) -> bool:
    names = {model, f"{model}:latest"}
    entries = entries_of(data.get("models") if isinstance(data, dict) else None)
    return any(entry.get("name") in names or entry.get("model") in names for entry in entries)
