"""The codecs of retrieval wires: one model at one address, described by a row of field names.

Like the codecs of ``dragoman.wire``, these are pure: no socket, no clock, no log. ``encode``
writes one request, ``decode`` reads its complete reply. A codec never splits a call into several
requests: its caller does. ``server`` reads requests and writes replies with the same rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

from msgspec import Struct, field

from ... import errors
from ...events import Usage
from ...wire.codec import Encoded, HttpReply, HttpRequest, Notes, encode_post
from ...wire.endpoint import read_quirks
from ...wire.errors import ErrorRow, build_error, read_failure, row
from ...wire.json import merge_extras
from ...wire.openai.errors import ROWS as CHAT_ROWS
from ...wire.openai.errors import inband_error
from ...wire.urls import join_url, root_of
from ..values import Embeddings, EmbedRequest, Operation, Ranking, RerankRequest
from ..vectors import from_little_endian
from . import reading

ROWS: tuple[ErrorRow, ...] = (
    # llama.cpp answers 500 to a text longer than its physical batch. Without this row, the request
    # would be retried.
    row("500", r"too large to process|physical batch size", errors.ContextOverflowError),
    # TEI's and vLLM's errors for a text longer than the context window
    row(
        "400 413 422",
        r"must have less than \d+ tokens|input is too long",
        errors.ContextOverflowError,
    ),
    row("424", r"", errors.UnavailableError),  # TEI answers 424 if its inference backend failed
    # llama.cpp answers 501 if it was started without --embeddings or --rerank.
    row("501", r"", errors.UnsupportedFeatureError),
    *CHAT_ROWS,
    row("404", r"", errors.InvalidModelError),
)
"""The rules that choose an error class for an error response: first those of retrieval servers,
then those of chat servers."""

JSON = {"content-type": "application/json", "accept": "application/json"}

Q = TypeVar("Q", bound=Struct)


class EmbedRow(Struct, frozen=True, kw_only=True):
    """The names that one wire has for the fields of an embedding request and its reply.

    ``types`` maps input types to the values of the field ``input_type``. ``sends`` are the quirks
    that are sent under their own names, ``fixed`` the fields that are always sent. ``reply`` is
    the type of the reply, and ``tokens`` the possible names of the token count in its usage. A
    server refuses a request with one of the flags ``cuts``, and drops ``hints``.
    """

    path: str
    at_root: bool = False  # whether the path follows the host rather than the base URL
    has_model: bool = True
    texts: str = "input"
    input_type: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    dimensions: str = "dimensions"
    sends: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    reply: Any = reading.ListedReply
    tokens: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


class RerankRow(Struct, frozen=True, kw_only=True):
    """The names that one wire has for the fields of a reranking request and its reply.

    ``top_k`` is ``None`` on a wire that ranks all documents, and ``returns`` on a wire that never
    returns them. With ``is_bare``, the reply may be a bare list, whose scores are named ``score``.
    """

    path: str
    at_root: bool = False
    has_model: bool = True
    documents: str = "documents"
    top_k: str | None = "top_n"
    returns: str | None = "return_documents"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    results: str = "results"
    is_bare: bool = False
    score: str = "relevance_score"
    echo: str = "document"
    usage: str = "usage"
    tokens: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ("truncation",)


class BatchQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for a server: the maximum number of texts or documents in a request."""

    batch_limit: int | None = None


class RetrievalCodec(ABC, Generic[Q]):
    """A codec for one wire, for one model at one address."""

    wire: ClassVar[str]
    operation: ClassVar[Operation]
    row: ClassVar[Any]
    quirks_type: type[Q]
    lists: ClassVar[frozenset[str]] = frozenset()  # the lists that ``extras`` extend
    batch_limit: ClassVar[int | None] = None
    """How many texts or documents one request of this wire may hold; ``None`` if there is no such
    limit.
    """

    def __init__(self, model: str, base_url: str, quirks: Q | None = None) -> None:
        self.model = model
        self.base_url = base_url
        self.quirks = self.quirks_type() if quirks is None else quirks
        self.url = self.locate(self.row.path)

    @classmethod
    def connect(cls, model: str, base_url: str, quirks: Any) -> Self:
        """Return a codec for an endpoint; ``quirks`` is a struct or a mapping of its fields."""
        return cls(model, base_url, read_quirks(quirks, cls.quirks_type))

    @property
    def limit(self) -> int | None:
        """The maximum number of texts or documents in a request; ``None`` if unlimited."""
        own: int | None = getattr(self.quirks, "batch_limit", None)
        return own or self.batch_limit

    @abstractmethod
    def encode(self, request: Any) -> Encoded:
        """Return the request as bytes, with notes on what this wire cannot express."""

    @abstractmethod
    def decode(self, reply: HttpReply, request: Any) -> Any:
        """Decode the complete reply to a request; raise ``InvalidResponseError`` if invalid."""

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check readiness: yield each request, receive its reply, and raise the first problem.

        By default, make a call that costs one token, for servers without a model list.
        """
        request = (
            EmbedRequest(texts=("?",))
            if self.operation == "embed"
            else RerankRequest(query="?", documents=("?",))
        )
        self.decode(self.need_success((yield self.encode(request).http)), request)

    def need_success(self, reply: HttpReply) -> HttpReply:
        """Return a reply; raise its error if it has an error status."""
        if reply.status >= 300:
            raise self.error(reply.status, reply.headers, reply.body)
        return reply

    def check_listed(
        self, reply: HttpReply, field: str, *wanted: str, problem: str | None = None
    ) -> None:
        """Raise an error if a description of the model lists other abilities than those it needs."""
        record = reading.read_any(self.need_success(reply).body)
        listed = record.get(field) if isinstance(record, dict) else None
        if isinstance(listed, list | dict) and listed and not {*map(str, listed)} & {*wanted}:
            problem = problem or f"the model {self.model!r} does not {self.operation}"
            raise errors.InvalidModelError(problem, status=reply.status)

    def locate(self, path: str) -> str:
        """Return the URL of a path of this wire."""
        if self.row.at_root:
            return join_url(root_of(self.base_url), path)
        return join_url(self.base_url, path, default="/v1")

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> errors.ProviderError:
        """Return the error for a reply that is not a success.

        ``now`` (epoch seconds) resolves dates in headers.
        """
        return build_error(status, headers, read_failure(body), ROWS, now)

    def inband_error(self, record: Any) -> errors.ProviderError | None:
        """Return the error that a reply with status 200 contains; ``None`` if it has no error."""
        found = record.get("error") if isinstance(record, dict) else None
        return inband_error(read_failure(record)) if found else None

    def authorise(self, key: str) -> dict[str, str]:
        """Return the header with the API key, which is a bearer token unless the quirks name it."""
        if (header := getattr(self.quirks, "key_header", None)) is not None:
            return {header: key}
        return {"authorization": f"Bearer {key}"}

    def name_model(self, request: Any) -> dict[str, Any]:
        """Return the field with the model's name, which servers of one model do not have."""
        return {"model": request.model or self.model} if self.row.has_model else {}

    def count(self, record: Any, headers: Mapping[str, str]) -> Usage:
        """Return the usage that a reply reports."""
        return reading.read_usage(record, *self.row.tokens)

    def post(self, body: dict[str, Any], request: Any, notes: Notes) -> Encoded:
        """Return a ``POST`` request whose body includes the caller's extras."""
        merge_extras(body, request.extras, lists=self.lists, where="extras")
        return encode_post(self.url, body, notes, None, JSON)


class EmbedCodec(RetrievalCodec[Q]):
    """A codec for a wire that embeds texts."""

    operation = "embed"
    row: ClassVar[EmbedRow]

    def encode(self, request: EmbedRequest) -> Encoded:
        row = self.row
        notes = Notes()
        body = self.name_model(request)
        kind = self.write_type(request, notes)
        if kind is not None and row.input_type is not None:
            body[row.input_type] = kind
        if request.dimensions is not None:
            body[row.dimensions] = request.dimensions
        body |= self.write_quirks()
        body |= {**row.fixed, row.texts: list(request.texts)}
        return self.post(body, request, notes)

    def write_type(self, request: EmbedRequest, notes: Notes) -> str | None:
        """Return the wire's value for the request's input type.

        A type that the wire lacks is rejected; if the wire has no types, the loss is recorded.
        """
        if request.input_type is None:
            return None
        types = self.row.types
        if not types:
            notes.drop(
                "input_type",
                "input_type_dropped",
                "this wire has no field for it; see prefixes of connect_embedder",
            )
            return None
        if request.input_type not in types:
            raise errors.InvalidRequestError(
                f"input_type must be one of {', '.join(types)} on this wire, not "
                f"{errors.quote(request.input_type)}"
            )
        return types[request.input_type]

    def write_quirks(self) -> dict[str, Any]:
        """Return the fields that the server's quirks set."""
        given = {name: getattr(self.quirks, name) for name in self.row.sends}
        return {name: value for name, value in given.items() if value not in (None, {})}

    def decode(self, reply: HttpReply, request: EmbedRequest) -> Embeddings:
        read = reading.read_typed(reply.body, self.row.reply, self.inband_error)
        if isinstance(read, list):  # TEI's replies have nothing but vectors
            read = reading.BareReply(vectors=read)
        rows: Sequence[reading.Vector] = read.find_vectors(len(request.texts))
        reading.check_count(len(rows), len(request.texts))
        return Embeddings(
            vectors=from_little_endian(*reading.pack_vectors(rows)),
            usage=self.count(read.usage, reply.headers),
            response_id=reading.read_name(read.id),
            model=reading.read_name(read.model),
        )


class RerankCodec(RetrievalCodec[Q]):
    """A codec for a wire that ranks documents by relevance."""

    operation = "rerank"
    row: ClassVar[RerankRow]

    def encode(self, request: RerankRequest) -> Encoded:
        row = self.row
        notes = Notes()
        body = self.name_model(request)
        if request.top_k is not None and row.top_k is not None:
            body[row.top_k] = request.top_k
        if row.returns is not None:
            body |= self.write_returns(request)
        elif request.return_documents:
            notes.drop(
                "return_documents", "return_documents_dropped", "this wire returns no documents"
            )
        body |= {**row.fixed, "query": request.query, row.documents: list(request.documents)}
        return self.post(body, request, notes)

    def write_returns(self, request: RerankRequest) -> dict[str, Any]:
        """Return the field that requests the documents; by default it is always sent."""
        return {str(self.row.returns): bool(request.return_documents)}

    def decode(self, reply: HttpReply, request: RerankRequest) -> Ranking:
        row = self.row
        record = reading.read_any(reply.body)
        if (error := self.inband_error(record)) is not None:
            raise error
        facts = record if isinstance(record, dict) else {}
        items = facts.get(row.results)
        score = row.score
        if isinstance(record, list) and row.is_bare:
            items = record
            score = "score"
        limit = request.top_k if row.top_k is not None else None
        results = reading.read_results(items, len(request.documents), limit, score, row.echo)
        best = sorted(results, key=lambda each: -each.relevance_score)[: request.top_k]
        return Ranking(
            results=tuple(best),
            usage=self.count(facts.get(row.usage), reply.headers),
            response_id=reading.read_name(facts.get("id")),
            model=reading.read_name(facts.get("model")),
        )
