"""Retrieval wires, server side: read requests of clients, write answers and errors.

The gateway and the simulator use these. They read and write the fields that the codecs' rows name.
An unknown field is rejected by name; a hint that changes neither vectors nor scores is dropped and
reported.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, field

from ...errors import InvalidRequestError, ProviderError
from ...messages import LossWarning
from ...validate.fields import Fields
from ...wire import SERVER_CODECS, HttpReply
from ...wire.fields import read_body
from ...wire.headers import bearer_token
from ...wire.losses import Losses
from ...wire.rules import NO_TABLE, FieldTable
from ...wire.server_errors import headers_of, message_of, status_of
from ..check import build_embed_request, build_rerank_request
from ..values import Embeddings, EmbedRequest, Operation, Ranking, RerankRequest
from . import EMBED_CODECS, RERANK_CODECS
from .codec import EmbedRow, RerankRow

_JSON = {"content-type": "application/json"}
_encode = msgspec.json.Encoder().encode
_HINT = "a hint that changes nothing here"
_NO_CUT = "texts that are too long are refused here, never cut"


class AskedRetrieval(Struct, frozen=True):
    """A client's decoded request, the dropped fields, and the requested form of the answer."""

    request: EmbedRequest | RerankRequest
    warnings: tuple[LossWarning, ...] = ()
    form: Mapping[str, Any] = field(default_factory=dict)


class RetrievalServer(ABC):
    """The server side of one operation of a wire. Pure: no socket, no clock, no log."""

    wire: str
    operation: ClassVar[Operation]
    codecs: ClassVar[Mapping[str, Any]]
    # what the gateway asks of every server codec; see ``ServerCodec``
    table: ClassVar[FieldTable] = NO_TABLE
    request_id_header: ClassVar[str | None] = None
    accepts_forms: ClassVar[bool] = False
    has_url_keys: ClassVar[bool] = False
    key_advice: ClassVar[str] = ""

    def __init__(self, wire: str | None = None) -> None:
        self.wire = wire or self.wire
        self.row = self.codecs[self.wire].row

    @abstractmethod
    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        """Read a request, given as bytes or JSON values; an error names the invalid field."""

    @abstractmethod
    def encode(self, answer: Any, asked: AskedRetrieval, model: str) -> HttpReply:
        """Return the reply to a client that requested the model by the name ``model``."""

    def error(self, error: ProviderError) -> HttpReply:
        """Return the reply that reports an error."""
        if self.wire in SERVER_CODECS:
            return SERVER_CODECS[self.wire].error(error)
        message = message_of(error)
        record = {"detail": message}  # Voyage and Jina
        if self.wire == "tei":
            record = {"error": message, "error_type": error.category}
        return HttpReply(status_of(error), headers_of(error), _encode(record))

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Return the API key that the client sent; ``headers`` have lower-case names."""
        if self.wire in SERVER_CODECS:
            return SERVER_CODECS[self.wire].key(headers)
        return bearer_token(headers)


class EmbedServer(RetrievalServer):
    """The server side of a wire that embeds."""

    wire = "openai"
    operation = "embed"
    codecs = EMBED_CODECS
    row: EmbedRow

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields = Fields(read_body(body))
        losses = Losses()
        row = self.row
        model = fields.need_text("model") if row.has_model else ""
        _refuse_cut(fields, *row.cuts)
        losses.drop_fields(fields, row.hints, _HINT)
        form = self.read_form(fields, losses)
        request = build_embed_request(
            _read_texts(fields, row.texts),
            input_type=self.read_type(fields),
            dimensions=fields.whole(row.dimensions),
            model=model,
        )
        fields.done()
        return AskedRetrieval(request, losses.warnings, form)

    def read_form(self, fields: Fields, losses: Losses) -> dict[str, Any]:
        """Read the fields that describe the form of the answer."""
        named = [name for name in self.row.sends if name in ("encoding_format", "embedding_type")]
        return {"encoding_format": fields.choice(named[0], ("float", "base64")) if named else None}

    def read_type(self, fields: Fields) -> str | None:
        """Read the input type.

        A wire without types of its own, such as TEI's with its prompts, accepts any.
        """
        types = {word: name for name, word in self.row.types.items()}
        name = self.row.input_type or "input_type"
        return types.get(fields.choice(name, tuple(types)) or "") if types else fields.text(name)

    def encode(self, answer: Embeddings, asked: AskedRetrieval, model: str) -> HttpReply:
        vectors = write_vectors(answer, as_base64=asked.form.get("encoding_format") == "base64")
        tokens = answer.usage.input_tokens
        if not self.row.has_model:
            headers = _JSON if tokens is None else {**_JSON, "x-compute-tokens": str(tokens)}
            return HttpReply(200, headers, _encode(vectors))
        data = [
            {"object": "embedding", "index": at, "embedding": row}
            for at, row in enumerate(vectors)
        ]
        record: dict[str, Any] = {"object": "list", "data": data, "model": model}
        if tokens is not None:
            record["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
        return HttpReply(200, _JSON, _encode(record))


class OllamaEmbedServer(EmbedServer):
    """The server side of Ollama's ``/api/embed``, and of the older ``/api/embeddings``."""

    wire = "ollama"
    accepts_forms: ClassVar[bool] = True

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        if not path.endswith("/embeddings"):
            return super().decode(body, path)
        fields = Fields(read_body(body))
        given = {**fields.data, "input": fields.need_text("prompt")}
        del given["prompt"]
        return msgspec.structs.replace(super().decode(given), form={"old": True})

    def read_form(self, fields: Fields, losses: Losses) -> dict[str, Any]:
        if fields.flag("truncate"):
            losses.drop("truncate", "truncate_dropped", _NO_CUT)
        losses.drop_fields(fields, self.row.sends, "the model's server decides it")
        return {}

    def encode(self, answer: Embeddings, asked: AskedRetrieval, model: str) -> HttpReply:
        if asked.form.get("old"):
            return HttpReply(200, _JSON, _encode({"embedding": answer.vectors[0].tolist()}))
        durations = {"total_duration": round((answer.latency_ms or 0.0) * 1e6), "load_duration": 0}
        record = {"model": model, "embeddings": answer.vectors.tolist(), **durations}
        if answer.usage.input_tokens is not None:
            record["prompt_eval_count"] = answer.usage.input_tokens
        return HttpReply(200, _JSON, _encode(record))


class GeminiEmbedServer(EmbedServer):
    """The server side of Gemini's ``:embedContent`` and ``:batchEmbedContents``."""

    wire = "gemini"
    has_url_keys: ClassVar[bool] = True

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields = Fields(read_body(body))
        losses = Losses()
        model, _, verb = path.rpartition("/models/")[2].rpartition(":")
        is_batch = verb == "batchEmbedContents"
        items = fields.items("requests", required=True) or () if is_batch else (fields.data,)
        read = [
            self._read_item(Fields(item, f"requests[{at}]" if is_batch else ""), losses)
            for at, item in enumerate(items)
        ]
        if not read:
            raise InvalidRequestError("requests is empty")
        if len({(kind, dimensions) for _, kind, dimensions in read}) > 1:
            raise InvalidRequestError(
                "requests must have one taskType and one outputDimensionality"
            )
        request = build_embed_request(
            [text for text, _, _ in read],
            input_type=read[0][1],
            dimensions=read[0][2],
            model=model.removeprefix("models/"),
        )
        return AskedRetrieval(request, losses.warnings, {"batch": is_batch})

    def _read_item(self, fields: Fields, losses: Losses) -> tuple[str, str | None, int | None]:
        """Return one text of a client's request, its input type and its dimensions."""
        fields.take("model")
        is_untyped = fields.take("taskType") == "TASK_TYPE_UNSPECIFIED"
        kind = None if is_untyped else self.read_type(fields)
        dimensions = fields.whole(self.row.dimensions)
        losses.drop_fields(fields, self.row.hints, _HINT)
        content = Fields(fields.take("content"), fields.at("content"))
        content.take("role")
        parts = content.inners("parts", required=True)
        text = "".join([part.need_text("text") for part in parts])
        content.done()
        fields.done()
        return text, kind, dimensions

    def encode(self, answer: Embeddings, asked: AskedRetrieval, model: str) -> HttpReply:
        rows = [{"values": row} for row in answer.vectors.tolist()]
        record: dict[str, Any] = (
            {"embeddings": rows} if asked.form.get("batch") else {"embedding": rows[0]}
        )
        if answer.usage.input_tokens is not None:
            record["usageMetadata"] = {"promptTokenCount": answer.usage.input_tokens}
        return HttpReply(200, _JSON, _encode(record))


class CohereEmbedServer(EmbedServer):
    """The server side of Cohere's ``/v2/embed``."""

    wire = "cohere"

    def read_form(self, fields: Fields, losses: Losses) -> dict[str, Any]:
        kinds = fields.texts("embedding_types") or ("float",)
        if set(kinds) - {"float", "base64"}:
            fields.refuse("embedding_types", "may have float and base64 here")
        if (fields.text("truncate") or "NONE") != "NONE":
            losses.drop("truncate", "truncate_dropped", _NO_CUT)
        return {"types": kinds}

    def encode(self, answer: Embeddings, asked: AskedRetrieval, model: str) -> HttpReply:
        assert isinstance(asked.request, EmbedRequest)
        found = {
            kind: write_vectors(answer, as_base64=kind == "base64") for kind in asked.form["types"]
        }
        tokens = answer.usage.input_tokens
        units = {} if tokens is None else {"input_tokens": tokens}
        record = {
            "id": answer.response_id or asked.request.request_id,
            "embeddings": found,
            "texts": list(asked.request.texts),
            "meta": {"api_version": {"version": "2"}, "billed_units": units},
            "response_type": "embeddings_by_type",
        }
        return HttpReply(200, _JSON, _encode(record))


class RerankServer(RetrievalServer):
    """The server side of ``/v1/rerank`` and ``/v2/rerank`` (Cohere, Jina, vLLM, Voyage and TEI).

    If a client requests the documents and the model's server omits them, they are copied from the
    request.
    """

    wire = "cohere"
    operation = "rerank"
    codecs = RERANK_CODECS
    row: RerankRow

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields = Fields(read_body(body))
        losses = Losses()
        row = self.row
        model = fields.need_text("model") if row.has_model else ""
        _refuse_cut(fields, *row.cuts)
        hints = ("max_tokens_per_doc", "max_chunks_per_doc", "priority")
        losses.drop_fields(fields, hints, _NO_CUT)
        returns = fields.flag(row.returns or "return_documents")
        request = build_rerank_request(
            fields.need_text("query"),
            _read_documents(fields, row.documents),
            top_k=fields.whole("top_n") or fields.whole("top_k"),
            return_documents=returns,
            model=model,
        )
        fields.done()
        return AskedRetrieval(request, losses.warnings, {"returns": bool(returns)})

    def encode(self, answer: Ranking, asked: AskedRetrieval, model: str) -> HttpReply:
        assert isinstance(asked.request, RerankRequest)
        row = self.row
        usage = answer.usage
        given = asked.request.documents
        results: list[dict[str, Any]] = []
        for each in answer.results:
            result: dict[str, Any] = {"index": each.index, row.score: each.relevance_score}
            if asked.form.get("returns"):
                text = given[each.index] if each.document is None else each.document
                result[row.echo] = text if row.echo == "text" else {"text": text}
            results.append(result)
        if not row.results:
            return HttpReply(200, _JSON, _encode(results))
        units = {"search_units": usage.search_units} if usage.search_units is not None else {}
        tokens = {"total_tokens": usage.input_tokens} if usage.input_tokens is not None else {}
        record = {
            "id": answer.response_id or asked.request.request_id,
            "model": model,
            row.results: results,
            "meta": {"api_version": {"version": "2"}, "billed_units": units},
            **({"usage": tokens} if tokens else {}),
        }
        return HttpReply(200, _JSON, _encode(record))


_OLLAMA = OllamaEmbedServer()
_GEMINI = GeminiEmbedServer()
_RERANK = RerankServer()
RETRIEVAL_SERVERS: Mapping[str, RetrievalServer] = {
    "/v1/embeddings": EmbedServer(),
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/rerank": _RERANK,
    "/v2/embed": CohereEmbedServer(),
    "/api/embed": _OLLAMA,
    "/api/embeddings": _OLLAMA,
    "/v1beta/models/{call:path}:embedContent": _GEMINI,
    "/v1beta/models/{call:path}:batchEmbedContents": _GEMINI,
    "/v1/models/{call:path}:embedContent": _GEMINI,
    "/v1/models/{call:path}:batchEmbedContents": _GEMINI,
}
"""The server for each path that clients post requests to; ``{call:path}`` stands for any text."""


def write_vectors(answer: Embeddings, *, as_base64: bool) -> list[Any]:
    """Return the vectors for a JSON reply: lists of numbers, or base64 of their float32 bytes."""
    if not as_base64:
        return answer.vectors.tolist()
    data = answer.vectors.tobytes()
    size = answer.dimensions * 4
    return [base64.b64encode(data[at : at + size]).decode() for at in range(0, len(data), size)]


def _read_texts(fields: Fields, name: str) -> list[str]:
    """Read one text or a list of texts.

    Token numbers are rejected: the model's vocabulary may differ.
    """
    value = fields.take(name)
    if value is None:
        fields.refuse(name, "is required")
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        fields.refuse(name, "must be a string or a list of strings")
    if any(isinstance(text, int | list) for text in texts):
        fields.refuse(
            name, "must be text here, not the numbers of tokens; turn this off in the client"
        )
    return texts


def _read_documents(fields: Fields, name: str) -> list[Any]:
    """Read documents: strings, or objects with a ``text``."""
    items = fields.items(name, required=True) or ()
    return [item.get("text") if isinstance(item, Mapping) else item for item in items]


def _refuse_cut(fields: Fields, *names: str) -> None:
    for name in names:
        if fields.flag(name):
            fields.refuse(name, f"must be false: {_NO_CUT}")
