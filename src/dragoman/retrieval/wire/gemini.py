"""Gemini: ``:batchEmbedContents``.

It returns vectors in order, without usage, id or model.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from ...errors import InvalidModelError, ProviderError
from ...wire.codec import Encoded, HttpReply, HttpRequest, Notes, encode_post
from ...wire.errors import build_error
from ...wire.gemini import GeminiCodec
from ...wire.gemini.errors import ROWS as CHAT_ROWS
from ...wire.gemini.errors import read_refusal
from ...wire.json import merge_extras
from ...wire.readiness import get_json
from ..values import EmbedRequest
from .codec import JSON, ROWS, EmbedCodec, EmbedPart, choose_input_type
from .reading import check_count, pack_vectors, read_any, read_typed, read_usage

TASKS = {
    "query": "RETRIEVAL_QUERY",
    "document": "RETRIEVAL_DOCUMENT",
    "similarity": "SEMANTIC_SIMILARITY",
    "classification": "CLASSIFICATION",
    "clustering": "CLUSTERING",
    "question_answering": "QUESTION_ANSWERING",
    "fact_verification": "FACT_VERIFICATION",
    "code_query": "CODE_RETRIEVAL_QUERY",
}
"""The names of input types on this wire."""


class EmbedQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for an embedding server that uses the gemini wire.

    ``batch_limit`` is the maximum number of texts in a request; the default is 100.
    """

    batch_limit: int | None = None


class _Vector(Struct, gc=False):
    values: list[float]


class _Reply(Struct):
    embeddings: list[_Vector]
    usageMetadata: Any = None  # noqa: N815 - the wire's name


_decode = msgspec.json.Decoder(_Reply).decode


class GeminiEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``:batchEmbedContents`` for one model at one base URL.

    The task is sent as a field, which ``gemini-embedding-001`` reads; later models expect it as a
    prefix of each text (``prefixes`` of ``connect_embedder``). Vectors that are shorter than the
    full length are not normalised.
    """

    wire: ClassVar[str] = "gemini"
    quirks_type = EmbedQuirks
    batch_limit = 100

    def __init__(self, model: str, base_url: str, quirks: EmbedQuirks | None = None) -> None:
        super().__init__(model, base_url, quirks)
        self._chat = GeminiCodec(model, base_url)

    def encode(self, request: EmbedRequest) -> Encoded:
        model = (request.model or self.model).removeprefix("models/")
        settings: dict[str, Any] = {"model": f"models/{model}"}
        task = choose_input_type(request, TASKS)
        if task is not None:
            settings["taskType"] = task
        if request.dimensions is not None:
            settings["outputDimensionality"] = request.dimensions
        merge_extras(settings, request.extras, where="extras")
        items = [{**settings, "content": {"parts": [{"text": text}]}} for text in request.texts]
        return encode_post(
            self._chat.address(model, ":batchEmbedContents"),
            {"requests": items},
            Notes(),
            None,
            JSON,
        )

    def decode(self, reply: HttpReply, request: EmbedRequest) -> EmbedPart:
        read = read_typed(reply.body, _decode, self.inband_error)
        check_count(len(read.embeddings), len(request.texts))
        data, dimensions = pack_vectors([each.values for each in read.embeddings])
        return EmbedPart(data, dimensions, read_usage(read.usageMetadata, "promptTokenCount"))

    def error(
        self, status: int, headers: Any, body: bytes, now: float | None = None
    ) -> ProviderError:
        return build_error(status, headers, read_refusal(body), (*CHAT_ROWS, *ROWS), now)

    def authorise(self, key: str) -> dict[str, str]:
        return self._chat.authorise(key)

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check that the model exists and can embed, by a free request for its description."""
        reply = yield get_json(self._chat.address(self.model, ""))
        if reply.status >= 300:
            raise self.error(reply.status, reply.headers, reply.body)
        record = read_any(reply.body)
        methods = record.get("supportedGenerationMethods") if isinstance(record, dict) else None
        if (
            isinstance(methods, list)
            and methods
            and not {"embedContent", "batchEmbedContents"} & set(map(str, methods))
        ):
            raise InvalidModelError(
                f"the model {self.model!r} does not embed", status=reply.status
            )
