"""The client codec of the bedrock wire, for one model at one base URL."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import ClassVar
from urllib.parse import quote

from ...errors import InvalidModelError, ProviderError
from ...events import Assembler
from ...messages import Request
from ..anthropic.refusals import REFUSALS
from ..codec import HttpReply, HttpRequest, Notes
from ..endpoint import Endpoint, Place, Refusal, StructuredPath
from ..errors import build_error
from ..eventstream import MEDIA_TYPE
from ..readiness import check_call, get_json, read_success
from ..urls import join_url
from .errors import ROWS, read_refusal
from .quirks import Quirks
from .reply import BedrockDecoder
from .request import SETTINGS, ConverseWriter, structured_path

# A cross-region profile has a prefix before the model's name: a region, or "global".
_PROFILE = re.compile(
    r"^(global|us-gov|us|eu|apac|ap|jp|au|ca|sa)\.|:(application-)?inference-profile/"
)


class BedrockCodec(Endpoint[Quirks]):
    """The Converse wire for one model at one regional endpoint. The model is in the URL."""

    wire: ClassVar[str] = "bedrock"
    end_marks = (b"messageStop", b"metadata")
    stream_media = MEDIA_TYPE
    list_path = "/foundation-models"
    setting_paths: ClassVar[Mapping[str, str]] = {
        name: f"inferenceConfig.{field}" for name, field in SETTINGS.items()
    }
    reasoning_root = "additionalModelRequestFields"
    concepts: ClassVar[Mapping[str, Place]] = {"top_k": "additionalModelRequestFields.top_k"}
    quirks_type = Quirks
    write_request = ConverseWriter.write
    # structured output uses a forced tool
    schemas_need = ("supports_tools", "supports_structured_output")
    refusing = (400,)
    refusals = (
        *REFUSALS,
        Refusal(
            re.compile(
                r"output_?config|textFormat|output[_ ]format|json_schema|structured output|grammar",
                re.IGNORECASE,
            ),
            {"structured": "tool"},
            "native",
        ),
        Refusal(
            re.compile(r"\btools?\b|toolChoice|toolConfig", re.IGNORECASE),
            {"structured": "prompt"},
            "tool",
        ),
    )

    def prepare(self, request: Request, quirks: Quirks, notes: Notes) -> Request:
        writer = ConverseWriter(request, self.home(request), quirks, None, notes)
        return super().prepare(writer.finish_turn(), quirks, notes)

    def structured_path(self, request: Request, quirks: Quirks) -> StructuredPath:
        return structured_path(request, self.home(request), quirks)

    def reasons(self, request: Request, quirks: Quirks) -> bool:
        return ConverseWriter(
            request, self.home(request), quirks, None, Notes()
        ).requests_thinking()

    def url_for(self, request: Request) -> str:
        verb = "converse-stream" if request.stream else "converse"
        return join_url(self.url, f"/model/{quote(request.model or self.model, safe='')}/{verb}")

    def headers_for(self, request: Request) -> dict[str, str]:
        kind = "vnd.amazon.eventstream" if request.stream else "json"
        return {"content-type": "application/json", "accept": f"application/{kind}"}

    def make_decoder(self, request: Request, out: Assembler) -> BedrockDecoder:
        answer = self.answer_tool(request)
        return BedrockDecoder(request, out, answer=answer, keep_raw=self._keep_raw)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> ProviderError:
        return build_error(status, headers, read_refusal(body, headers), ROWS, now)

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Look up the model or inference profile at the control plane, which is another host."""
        kind = "inference-profiles" if _PROFILE.search(self.model) else "foundation-models"
        root = self.url.replace("://bedrock-runtime.", "://bedrock.", 1)
        reply = yield get_json(join_url(root, f"/{kind}/{quote(self.model, safe='')}"))
        if reply.status == 404:
            raise InvalidModelError(
                f"the service does not have the model {self.model!r} here", status=404
            )
        read_success(self, reply)  # pyright: ignore[reportArgumentType] - it takes Self for an invariant
        yield from check_call(self)
