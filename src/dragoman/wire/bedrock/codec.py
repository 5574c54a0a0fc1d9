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
from ..errors import build_error
from ..lessons import is_about_field
from ..names import rename_calls
from ..readiness import get_json, read_success
from ..schema import schema_name
from ..urls import join_url
from .errors import ROWS, read_refusal
from .quirks import Quirks
from .reply import BedrockDecoder
from .request import structured_path, write_request

_JSON = {"content-type": "application/json", "accept": "application/json"}
_STREAM = {"content-type": "application/json", "accept": "application/vnd.amazon.eventstream"}
_NAMES_TOOL = re.compile(r"\btools?\b|toolChoice|toolConfig", re.IGNORECASE)
# A cross-region profile has a prefix before the model's name: a region, or "global".
_PROFILE = re.compile(
    r"^(global|us-gov|us|eu|apac|ap|jp|au|ca|sa)\.|:(application-)?inference-profile/"
)


class BedrockCodec(Endpoint[Quirks]):
    """The Converse wire for one model at one regional endpoint. The model is in the URL."""

    wire: ClassVar[str] = "bedrock"
    quirks_type = Quirks

    def __init__(
        self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any
    ) -> None:
        super().__init__(model, base_url, quirks, **settings)
        # join_url is called here, so that an invalid base URL raises an error early
        self._url = join_url(base_url, "")

    @classmethod
    def adapt(cls, quirks: Quirks, capabilities: Capabilities) -> Quirks:
        """Return the quirks, adapted to the known capabilities of a model.

        Structured output uses a forced tool, or the prompt if the model has no tools or no
        structured output.
        """
        quirks = cls.adapt_reasoning(quirks, capabilities)
        if capabilities.known("supports_images") is False:
            quirks = replace(quirks, result_media="omit")
        unable = (
            capabilities.known("supports_tools"),
            capabilities.known("supports_structured_output"),
        )
        return replace(quirks, structured="prompt") if False in unable else quirks

    def encode(self, request: Request) -> Encoded:
        """Encode a request as a ``POST``.

        Messages come last, so that the body of the next turn begins with the same bytes.
        """
        notes, quirks, home = Notes(), self.quirks_for(request), self.home(request)
        request = rename_calls(request, notes)
        path = structured_path(request, home, quirks)
        body = write_request(request, home, quirks, path, notes)
        verb, headers = ("converse-stream", _STREAM) if request.stream else ("converse", _JSON)
        url = join_url(self._url, f"/model/{quote(home.model or '', safe='')}/{verb}")
        return encode_post(url, body, notes, path, headers, request.native.get(self.wire))

    def decoder(self, request: Request, out: Assembler) -> BedrockDecoder:
        """Return a decoder for the reply, which is one body or a stream."""
        answer = None
        if structured_path(request, self.home(request), self.quirks_for(request)) == "tool":
            answer = schema_name(request.response_schema or {})
        return BedrockDecoder(request, out, answer=answer, keep_raw=self._keep_raw)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> ProviderError:
        """Return the error for a reply with an error status."""
        return build_error(status, headers, read_refusal(body, headers), ROWS, now)

    def authorise(self, key: str) -> dict[str, str]:
        """Return the header with the API key as a bearer token.

        With ``auth: {type: aws}`` requests are signed instead.
        """
        return {"authorization": f"Bearer {key}"}

    def learn(self, error: ProviderError, request: Request) -> BedrockCodec | None:
        """Return a codec that puts the schema into the prompt, if the forced tool was rejected."""
        said = error.provider_message or ""
        if error.status != 400 or not _NAMES_TOOL.search(said):
            return None
        if structured_path(request, self.home(request), self.quirks_for(request)) != "tool":
            return None
        return self.taught_structure(
            request, about_field=is_about_field(said), structured="prompt"
        )

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Look up the model or inference profile at the control plane, which is another host."""
        kind = "inference-profiles" if _PROFILE.search(self.model) else "foundation-models"
        root = self._url.replace("://bedrock-runtime.", "://bedrock.", 1)
        reply = yield get_json(join_url(root, f"/{kind}/{quote(self.model, safe='')}"))
        if reply.status == 404:
            raise InvalidModelError(
                f"the service does not have the model {self.model!r} here", status=404
            )
        read_success(self, reply)  # pyright: ignore[reportArgumentType] - it takes Self for an invariant
