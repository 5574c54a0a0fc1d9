"""Gemini: ``:batchEmbedContents``.

It returns vectors in order, without usage, id or model.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, ClassVar

from msgspec import Struct

from ...errors import ProviderError
from ...wire.codec import Encoded, HttpReply, HttpRequest, Notes, encode_post
from ...wire.errors import build_error
from ...wire.gemini import GeminiCodec
from ...wire.gemini.errors import ROWS as CHAT_ROWS
from ...wire.gemini.errors import read_refusal
from ...wire.json import merge_extras
from ...wire.readiness import get_json
from ..values import EmbedRequest
from .codec import JSON, ROWS, BatchQuirks, EmbedCodec, EmbedRow
from .reading import EmbedReply, Vector


class _Vector(Struct, gc=False):
    values: list[float]


class _Reply(EmbedReply, kw_only=True, rename={"metadata": "usageMetadata"}):
    embeddings: list[_Vector]
    metadata: Any = None

    def __post_init__(self) -> None:
        self.usage = self.metadata

    def find_vectors(self, count: int) -> Sequence[Vector]:
        return [each.values for each in self.embeddings]


class GeminiEmbed(EmbedCodec[BatchQuirks]):
    """Encode and decode ``:batchEmbedContents`` for one model at one base URL.

    The task is sent as a field, which ``gemini-embedding-001`` reads; later models expect it as a
    prefix of each text (``prefixes`` of ``connect_embedder``). Vectors that are shorter than the
    full length are not normalised.
    """

    wire: ClassVar[str] = "gemini"
    quirks_type = BatchQuirks
    batch_limit = 100
    row = EmbedRow(
        path=":batchEmbedContents",
        input_type="taskType",
        types={
            "query": "RETRIEVAL_QUERY",
            "document": "RETRIEVAL_DOCUMENT",
            "similarity": "SEMANTIC_SIMILARITY",
            "classification": "CLASSIFICATION",
            "clustering": "CLUSTERING",
            "question_answering": "QUESTION_ANSWERING",
            "fact_verification": "FACT_VERIFICATION",
            "code_query": "CODE_RETRIEVAL_QUERY",
        },
        dimensions="outputDimensionality",
        reply=_Reply,
        tokens=("promptTokenCount",),
        hints=("title",),
    )

    def locate(self, path: str) -> str:
        self._chat = GeminiCodec(self.model, self.base_url)
        return self._chat.address(self.model, path)

    def encode(self, request: EmbedRequest) -> Encoded:
        model = (request.model or self.model).removeprefix("models/")
        notes = Notes()
        settings: dict[str, Any] = {"model": f"models/{model}"}
        task = self.write_type(request, notes)
        if task is not None:
            settings["taskType"] = task
        if request.dimensions is not None:
            settings[self.row.dimensions] = request.dimensions
        merge_extras(settings, request.extras, where="extras")
        items = [{**settings, "content": {"parts": [{"text": text}]}} for text in request.texts]
        url = self._chat.address(model, self.row.path)
        return encode_post(url, {"requests": items}, notes, None, JSON)

    def error(
        self, status: int, headers: Any, body: bytes, now: float | None = None
    ) -> ProviderError:
        return build_error(status, headers, read_refusal(body), (*CHAT_ROWS, *ROWS), now)

    def authorise(self, key: str) -> dict[str, str]:
        return self._chat.authorise(key)

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check that the model exists and can embed, by a free request for its description."""
        reply = yield get_json(self._chat.address(self.model, ""))
        wanted = ("embedContent", "batchEmbedContents")
        self.check_listed(reply, "supportedGenerationMethods", *wanted)
