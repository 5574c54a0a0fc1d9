"""Retrieval wires, server side: read requests of clients, write answers and errors.

The gateway and the simulator use these. An unknown field is rejected by name; a hint that changes
neither vectors nor scores is dropped and reported.
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
from ...wire.fields import Losses, read_body
from ...wire.server import bearer_token
from ...wire.server_errors import headers_of, message_of, status_of
from ..check import build_embed_request, build_rerank_request
from ..values import Embeddings, EmbedRequest, Operation, Ranking, RerankRequest
from .gemini import TASKS

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

    wire: ClassVar[str]
    operation: ClassVar[Operation] = "embed"

    @abstractmethod
    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        """Read a request, given as bytes or JSON values; an error names the invalid field."""

    @abstractmethod
    def encode(self, answer: Any, asked: AskedRetrieval, model: str) -> HttpReply:
        """Return the reply to a client that requested the model by the name ``model``."""

    def error(self, error: ProviderError) -> HttpReply:
        """Return the reply that reports an error."""
        return SERVER_CODECS[self.wire].error(error)

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Return the API key that the client sent; ``headers`` have lower-case names."""
        return SERVER_CODECS[self.wire].key(headers)


class OpenAIEmbedServer(RetrievalServer):
    """The server side of OpenAI's ``/v1/embeddings``."""

    wire: ClassVar[str] = "openai"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields, losses = read_body(body), Losses()
        model = fields.need_text("model")
        encoding = fields.choice("encoding_format", ("float", "base64"))
        losses.drop_fields(fields, ("user",), _HINT)
        request = build_embed_request(
            _read_texts(fields, "input"),
            input_type=fields.text("input_type"),
            dimensions=fields.whole("dimensions"),
            model=model,
        )
        fields.done()
        return AskedRetrieval(request, losses.warnings, {"encoding_format": encoding})

    def encode(self, answer: Embeddings, asked: AskedRetrieval, model: str) -> HttpReply:
        vectors = write_vectors(answer, as_base64=asked.form.get("encoding_format") == "base64")
        data = [
            {"object": "embedding", "index": at, "embedding": row}
            for at, row in enumerate(vectors)
        ]
        tokens = answer.usage.input_tokens
        usage = (
            {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
            if tokens is not None
            else {}
        )
        return HttpReply(
            200, _JSON, _encode({"object": "list", "data": data, "model": model, **usage})
        )


class VoyageEmbedServer(OpenAIEmbedServer):
    """The server side of ``/v1/embeddings`` as Voyage and Jina define it.

    The settings have other names than OpenAI's, and usage has only a total.
    """

    wire: ClassVar[str] = "voyage"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields, losses = read_body(body), Losses()
        model = fields.need_text("model")
        _refuse_cut(fields, "truncation", "truncate")
        encoding = fields.choice("encoding_format", ("base64",)) or fields.choice(
            "embedding_type", ("float", "base64")
        )
        task = fields.choice("task", ("retrieval.query", "retrieval.passage"))
        kind = fields.choice("input_type", ("query", "document"))
        request = build_embed_request(
            _read_texts(fields, "input"),
            input_type=kind
            or {"retrieval.query": "query", "retrieval.passage": "document"}.get(task or ""),
            dimensions=fields.whole("output_dimension") or fields.whole("dimensions"),
            model=model,
        )
        fields.done()
        return AskedRetrieval(request, losses.warnings, {"encoding_format": encoding})

    def error(self, error: ProviderError) -> HttpReply:
        return _write_error(error, {"detail": message_of(error)})

    def key(self, headers: Mapping[str, str]) -> str | None:
        return bearer_token(headers)


class OllamaEmbedServer(RetrievalServer):
    """The server side of Ollama's ``/api/embed``, and of the older ``/api/embeddings``."""

    wire: ClassVar[str] = "ollama"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields, losses = read_body(body), Losses()
        model, is_old = fields.need_text("model"), path.endswith("/embeddings")
        if fields.flag("truncate"):
            losses.drop("truncate", "truncate_dropped", _NO_CUT)
        losses.drop_fields(fields, ("options", "keep_alive"), "the model's server decides it")
        texts = [fields.need_text("prompt")] if is_old else _read_texts(fields, "input")
        request = build_embed_request(texts, dimensions=fields.whole("dimensions"), model=model)
        fields.done()
        return AskedRetrieval(request, losses.warnings, {"old": is_old})

    def encode(self, answer: Embeddings, asked: AskedRetrieval, model: str) -> HttpReply:
        if asked.form.get("old"):
            return HttpReply(200, _JSON, _encode({"embedding": answer.vectors[0].tolist()}))
        durations = {"total_duration": round((answer.latency_ms or 0.0) * 1e6), "load_duration": 0}
        record = {"model": model, "embeddings": answer.vectors.tolist(), **durations}
        if answer.usage.input_tokens is not None:
            record["prompt_eval_count"] = answer.usage.input_tokens
        return HttpReply(200, _JSON, _encode(record))


class GeminiEmbedServer(RetrievalServer):
    """The server side of Gemini's ``:embedContent`` and ``:batchEmbedContents``."""

    wire: ClassVar[str] = "gemini"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields = read_body(body)
        model, _, verb = path.rpartition("/models/")[2].rpartition(":")
        is_batch = verb == "batchEmbedContents"
        items = fields.items("requests", required=True) or () if is_batch else (fields.data,)
        read = [
            _GeminiItem(Fields(item, f"requests[{at}]" if is_batch else ""))
            for at, item in enumerate(items)
        ]
        if not read:
            raise InvalidRequestError("requests is empty")
        if len({(each.task, each.dimensions) for each in read}) > 1:
            raise InvalidRequestError(
                "requests must have one taskType and one outputDimensionality"
            )
        request = build_embed_request(
            [each.text for each in read],
            input_type=read[0].task,
            dimensions=read[0].dimensions,
            model=model.removeprefix("models/"),
        )
        warnings = tuple([warning for each in read for warning in each.warnings])
        return AskedRetrieval(request, warnings, {"batch": is_batch})

    def encode(self, answer: Embeddings, asked: AskedRetrieval, model: str) -> HttpReply:
        rows = [{"values": row} for row in answer.vectors.tolist()]
        record: dict[str, Any] = (
            {"embeddings": rows} if asked.form.get("batch") else {"embedding": rows[0]}
        )
        if answer.usage.input_tokens is not None:
            record["usageMetadata"] = {"promptTokenCount": answer.usage.input_tokens}
        return HttpReply(200, _JSON, _encode(record))


class _GeminiItem:
    """One text of a client's Gemini request, with the settings for this text."""

    def __init__(self, fields: Fields) -> None:
        losses = Losses()
        fields.take("model")
        task = fields.text("taskType")
        self.task = next((name for name, word in TASKS.items() if word == task), None)
        if task not in (None, "TASK_TYPE_UNSPECIFIED") and self.task is None:
            fields.refuse("taskType", f"must be one of {', '.join(TASKS.values())}")
        self.dimensions = fields.whole("outputDimensionality")
        losses.drop_fields(fields, ("title",), _HINT)
        content = Fields(fields.take("content"), fields.at("content"))
        content.take("role")
        parts = content.items("parts", required=True) or ()
        self.text = "".join(
            [
                Fields(part, content.at(f"parts[{at}]")).need_text("text")
                for at, part in enumerate(parts)
            ]
        )
        self.warnings = losses.warnings
        content.done()
        fields.done()


class CohereEmbedServer(RetrievalServer):
    """The server side of Cohere's ``/v2/embed``."""

    wire: ClassVar[str] = "cohere"
    _TYPES: ClassVar[dict[str, str]] = {
        "search_document": "document",
        "search_query": "query",
        "classification": "classification",
        "clustering": "clustering",
    }

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields, losses = read_body(body), Losses()
        model = fields.need_text("model")
        kinds = fields.texts("embedding_types") or ("float",)
        if set(kinds) - {"float", "base64"}:
            fields.refuse("embedding_types", "may have float and base64 here")
        if (fields.text("truncate") or "NONE") != "NONE":
            losses.drop("truncate", "truncate_dropped", _NO_CUT)
        losses.drop_fields(fields, ("priority",), _HINT)
        request = build_embed_request(
            _read_texts(fields, "texts"),
            input_type=self._TYPES.get(fields.choice("input_type", tuple(self._TYPES)) or ""),
            dimensions=fields.whole("output_dimension"),
            model=model,
        )
        fields.done()
        return AskedRetrieval(request, losses.warnings, {"types": kinds})

    def encode(self, answer: Embeddings, asked: AskedRetrieval, model: str) -> HttpReply:
        assert isinstance(asked.request, EmbedRequest)
        found = {
            kind: write_vectors(answer, as_base64=kind == "base64") for kind in asked.form["types"]
        }
        units = (
            {"input_tokens": answer.usage.input_tokens}
            if answer.usage.input_tokens is not None
            else {}
        )
        record = {
            "id": answer.response_id or asked.request.request_id,
            "embeddings": found,
            "texts": list(asked.request.texts),
            "meta": {"api_version": {"version": "2"}, "billed_units": units},
            "response_type": "embeddings_by_type",
        }
        return HttpReply(200, _JSON, _encode(record))

    def error(self, error: ProviderError) -> HttpReply:
        return _write_error(error, {"id": error.request_id or "", "message": message_of(error)})

    def key(self, headers: Mapping[str, str]) -> str | None:
        return bearer_token(headers)


class RerankServer(RetrievalServer):
    """The server side of ``/v1/rerank`` and ``/v2/rerank`` (Cohere, Jina and vLLM).

    If a client requests the documents and the model's server omits them, they are copied from the
    request.
    """

    wire: ClassVar[str] = "cohere"
    operation: ClassVar[Operation] = "rerank"
    results: ClassVar[str] = "results"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields, losses = read_body(body), Losses()
        model = fields.need_text("model")
        _refuse_cut(fields, "truncation")
        losses.drop_fields(
            fields, ("max_tokens_per_doc", "max_chunks_per_doc", "priority"), _NO_CUT
        )
        returns = fields.flag("return_documents")
        request = build_rerank_request(
            fields.need_text("query"),
            _read_documents(fields, "documents"),
            top_k=fields.whole("top_n") or fields.whole("top_k"),
            return_documents=returns,
            model=model,
        )
        fields.done()
        return AskedRetrieval(request, losses.warnings, {"returns": bool(returns)})

    def encode(self, answer: Ranking, asked: AskedRetrieval, model: str) -> HttpReply:
        assert isinstance(asked.request, RerankRequest)
        usage, given = answer.usage, asked.request.documents
        rows: list[dict[str, Any]] = []
        for each in answer.results:
            row: dict[str, Any] = {"index": each.index, "relevance_score": each.relevance_score}
            if asked.form.get("returns"):
                row["document"] = {
                    "text": given[each.index] if each.document is None else each.document
                }
            rows.append(row)
        units = {"search_units": usage.search_units} if usage.search_units is not None else {}
        tokens = {"total_tokens": usage.input_tokens} if usage.input_tokens is not None else {}
        record = {
            "id": answer.response_id or asked.request.request_id,
            "model": model,
            self.results: rows,
            "meta": {"api_version": {"version": "2"}, "billed_units": units},
            **({"usage": tokens} if tokens else {}),
        }
        return HttpReply(200, _JSON, _encode(record))

    def error(self, error: ProviderError) -> HttpReply:
        return _write_error(error, {"id": error.request_id or "", "message": message_of(error)})

    def key(self, headers: Mapping[str, str]) -> str | None:
        return bearer_token(headers)


class VoyageRerankServer(RerankServer):
    """The server side of ``/v1/rerank`` as Voyage defines it: the results are under ``data``."""

    wire: ClassVar[str] = "voyage"
    results: ClassVar[str] = "data"


class TeiEmbedServer(RetrievalServer):
    """The server side of TEI's ``/embed``. A TEI server has only one model."""

    wire: ClassVar[str] = "tei"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields = read_body(body)
        _refuse_cut(fields, "truncate")
        request = build_embed_request(
            _read_texts(fields, "inputs"),
            input_type=fields.text("prompt_name"),
            dimensions=fields.whole("dimensions"),
        )
        fields.done()
        return AskedRetrieval(request)

    def encode(self, answer: Embeddings, asked: AskedRetrieval, model: str) -> HttpReply:
        tokens = answer.usage.input_tokens
        headers = _JSON if tokens is None else {**_JSON, "x-compute-tokens": str(tokens)}
        return HttpReply(200, headers, _encode(answer.vectors.tolist()))

    def error(self, error: ProviderError) -> HttpReply:
        return _write_error(error, {"error": message_of(error), "error_type": error.category})

    def key(self, headers: Mapping[str, str]) -> str | None:
        return bearer_token(headers)


class TeiRerankServer(TeiEmbedServer):
    """The server side of TEI's ``/rerank``. A TEI server has only one model."""

    operation: ClassVar[Operation] = "rerank"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> AskedRetrieval:
        fields = read_body(body)
        _refuse_cut(fields, "truncate")
        returns = fields.flag("return_text")
        request = build_rerank_request(
            fields.need_text("query"), _read_documents(fields, "texts"), return_documents=returns
        )
        fields.done()
        return AskedRetrieval(request, (), {"returns": bool(returns)})

    def encode(self, answer: Any, asked: AskedRetrieval, model: str) -> HttpReply:
        assert isinstance(asked.request, RerankRequest)
        rows: list[dict[str, Any]] = []
        for each in answer.results:
            row: dict[str, Any] = {"index": each.index, "score": each.relevance_score}
            if asked.form.get("returns"):
                row["text"] = (
                    asked.request.documents[each.index] if each.document is None else each.document
                )
            rows.append(row)
        return HttpReply(200, _JSON, _encode(rows))


def write_vectors(answer: Embeddings, *, as_base64: bool) -> list[Any]:
    """Return the vectors for a JSON reply: lists of numbers, or base64 of their float32 bytes."""
    if not as_base64:
        return answer.vectors.tolist()
    data, size = answer.vectors.tobytes(), answer.dimensions * 4
    return [base64.b64encode(data[at : at + size]).decode() for at in range(0, len(data), size)]


def _write_error(error: ProviderError, record: dict[str, Any]) -> HttpReply:
    return HttpReply(status_of(error), headers_of(error), _encode(record))


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
