"""The interface of a retrieval wire: a codec for one model at one address.

Like the codecs of ``dragoman.wire``, these are pure: no socket, no clock, no log. ``encode``
writes one request, ``decode`` reads its complete reply. A codec never splits a call into several
requests: its caller does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from msgspec import Struct

from ...errors import (
    ContextOverflowError,
    InvalidModelError,
    InvalidRequestError,
    ProviderError,
    UnavailableError,
    UnsupportedFeatureError,
    quote,
)
from ...events import Usage
from ...wire.codec import Encoded, HttpReply, HttpRequest, Notes, encode_post
from ...wire.endpoint import read_quirks
from ...wire.errors import Row, build_error, read_failure, row
from ...wire.json import merge_extras
from ...wire.openai.errors import ROWS as CHAT_ROWS
from ...wire.openai.errors import inband_error
from ..values import EmbedRequest, Ranked, RerankRequest

ROWS: tuple[Row, ...] = (
    # llama.cpp answers 500 to a text longer than its physical batch. Without this row, the request
    # would be retried.
    row("500", r"too large to process|physical batch size", ContextOverflowError),
    # TEI's and vLLM's errors for a text longer than the context window
    row("400 413 422", r"must have less than \d+ tokens|input is too long", ContextOverflowError),
    row("424", r"", UnavailableError),  # TEI answers 424 if its inference backend failed
    # llama.cpp answers 501 if it was started without --embeddings or --rerank.
    row("501", r"", UnsupportedFeatureError),
    *CHAT_ROWS,
    row("404", r"", InvalidModelError),
)
"""The rules that choose an error class for an error response: first those of retrieval servers,
then those of chat servers."""

JSON = {"content-type": "application/json", "accept": "application/json"}

Q = TypeVar("Q", bound=Struct)
RequestT = TypeVar("RequestT", EmbedRequest, RerankRequest)


class EmbedPart(Struct, frozen=True):
    """The reply to one request: the vectors as little-endian float32, one after the other."""

    data: bytes
    dimensions: int
    usage: Usage = Usage()
    response_id: str | None = None
    model: str | None = None


class RankPart(Struct, frozen=True):
    """The reply to one request: its results in the order in which the server sent them."""

    results: tuple[Ranked, ...]
    usage: Usage = Usage()
    response_id: str | None = None
    model: str | None = None


class RetrievalCodec(ABC, Generic[Q, RequestT]):
    """A codec for one wire, for one model at one address."""

    wire: ClassVar[str]
    quirks_type: type[Q]
    batch_limit: ClassVar[int | None] = None
    """How many texts or documents one request of this wire may hold; ``None`` if there is no such
    limit.
    """

    def __init__(self, model: str, base_url: str, quirks: Q | None = None) -> None:
        self.model = model
        self.base_url = base_url
        self.quirks = self.quirks_type() if quirks is None else quirks

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
    def encode(self, request: RequestT) -> Encoded:
        """Return the request as bytes, with notes on what this wire cannot express."""

    @abstractmethod
    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check readiness: yield each request, receive its reply, and raise the first problem."""

    @abstractmethod
    def decode(self, reply: HttpReply, request: RequestT) -> Any:
        """Decode the complete reply to a request; raise ``InvalidResponseError`` if invalid."""

    def try_call(self, request: RequestT) -> Generator[HttpRequest, HttpReply, None]:
        """Check readiness with a call that costs one token, for servers without a model list."""
        reply = yield self.encode(request).http
        if reply.status >= 300:
            raise self.error(reply.status, reply.headers, reply.body)
        self.decode(reply, request)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> ProviderError:
        """Return the error for a reply that is not a success.

        ``now`` (epoch seconds) resolves dates in headers.
        """
        return build_error(status, headers, read_failure(body), ROWS, now)

    def inband_error(self, record: Any) -> ProviderError | None:
        """Return the error that a reply with status 200 contains; ``None`` if it has no error."""
        found = record.get("error") if isinstance(record, dict) else None
        return inband_error(read_failure(record)) if found else None

    def authorise(self, key: str) -> dict[str, str]:
        """Return the headers that carry the API key."""
        return {"authorization": f"Bearer {key}"}

    def post(
        self,
        url: str,
        body: dict[str, Any],
        request: RequestT,
        notes: Notes,
        lists: frozenset[str] = frozenset(),
    ) -> Encoded:
        """Return a ``POST`` request whose body includes the caller's extras."""
        merge_extras(body, request.extras, lists=lists, where="extras")
        return encode_post(url, body, notes, None, JSON)


class EmbedCodec(RetrievalCodec[Q, EmbedRequest]):
    """A codec for a wire that embeds texts."""

    @abstractmethod
    def decode(self, reply: HttpReply, request: EmbedRequest) -> EmbedPart:
        """Decode the complete reply to a request; raise ``InvalidResponseError`` if invalid."""


class RerankCodec(RetrievalCodec[Q, RerankRequest]):
    """A codec for a wire that ranks documents by relevance."""

    @abstractmethod
    def decode(self, reply: HttpReply, request: RerankRequest) -> RankPart:
        """Decode the complete reply to a request; raise ``InvalidResponseError`` if invalid."""


def choose_input_type(request: EmbedRequest, words: Mapping[str, str]) -> str | None:
    """Return the wire's name for the request's input type; reject a type that the wire lacks."""
    if request.input_type is None:
        return None
    if request.input_type not in words:
        known = ", ".join(words)
        raise InvalidRequestError(
            f"input_type must be one of {known} on this wire, not {quote(request.input_type)}"
        )
    return words[request.input_type]


def drop_input_type(request: EmbedRequest, notes: Notes) -> None:
    """Record the loss of the input type on a wire that has no field for it."""
    if request.input_type is not None:
        notes.drop(
            "input_type",
            "input_type_dropped",
            "this wire has no field for it; see prefixes of connect_embedder",
        )
