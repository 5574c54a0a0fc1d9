"""The client codec of Ollama's native wire."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, ClassVar

from ...errors import InvalidModelError, ModelNotLoadedError
from ...messages import Request
from ..codec import JSON_HEADERS, HttpReply, HttpRequest
from ..endpoint import Endpoint, Place, Refusal
from ..json import dig, entries_of
from ..openai.errors import ROWS
from ..readiness import check_call, get_json, read_success
from ..sse import JSON_LINES
from .quirks import Quirks
from .reply import OllamaDecoder
from .request import SETTINGS, OllamaWriter

_HEADERS = {**JSON_HEADERS, "accept": "application/x-ndjson, application/json"}


class OllamaCodec(Endpoint[Quirks]):
    """Ollama's native wire for one model at one server."""

    wire: ClassVar[str] = "ollama"
    end_marks = (b'"done":true',)
    stream_media = JSON_LINES
    list_path = "/api/tags"
    # Ollama has this list too; other servers that use Ollama's wire have no other.
    common_list_path = "/v1/models"
    probe_path = "/api/version"
    setting_paths: ClassVar[Mapping[str, str]] = {
        name: f"options.{field}" for name, field in SETTINGS.items()
    }
    concepts: ClassVar[Mapping[str, Place]] = {
        "top_k": "options.top_k",
        "min_p": "options.min_p",
        "repeat_penalty": "options.repeat_penalty",
        "json_mode": ("format", lambda _: "json"),
    }
    quirks_type = Quirks
    decoder_type = OllamaDecoder
    write_request = OllamaWriter.write
    error_rows = ROWS
    refusing = (400,)
    refusals = (Refusal(re.compile("format"), {"structured": "prompt"}, "native"),)

    def __init__(
        self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any
    ) -> None:
        super().__init__(model, base_url, quirks, **settings)
        self.root = self.root.removesuffix("/api")

    def url_for(self, request: Request) -> str:
        return f"{self.root}/api/chat"

    def headers_for(self, request: Request) -> dict[str, str]:
        return _HEADERS

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check that the server has the model and has loaded it into memory."""
        tags = yield get_json(f"{self.root}/api/tags")
        if not _lists(read_success(self, tags), self.model):
            raise InvalidModelError(
                f"the server does not have the model {self.model!r}", status=tags.status
            )
        loaded = yield get_json(f"{self.root}/api/ps")
        if not _lists(read_success(self, loaded), self.model):
            raise ModelNotLoadedError(
                "the server has the model and has not loaded it", status=loaded.status
            )
        yield from check_call(self)


def _lists(data: Any, model: str) -> bool:
    names = {model, f"{model}:latest"}
    entries = entries_of(dig(data, "models"))
    return any(entry.get("name") in names or entry.get("model") in names for entry in entries)
