"""The interface of a batch API: submit requests, poll the state, download answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from ...errors import InvalidResponseError
from ...messages import Request, RuntimeConfig, User
from ...provider import HttpProvider
from ...wire import Encoded, HttpRequest
from ...wire.codec import MAX_BODY


class KeyedRequest(Struct, frozen=True):
    """One request of a batch, encoded for the wire, and the key that identifies its answer."""

    key: str
    encoded: Encoded

    @property
    def body(self) -> msgspec.Raw:
        """The body of the request, as JSON."""
        return msgspec.Raw(self.encoded.http.body)


class KeyedAnswer(Struct, frozen=True):
    """The answer to one request: a status and a body, identified by a key or a position.

    ``lost`` is set if the batch expired or was cancelled before the request was answered.
    """

    key: str | None
    place: int = 0
    status: int = 200
    body: bytes = b""
    lost: Literal["expired", "cancelled"] | None = None


class Progress(Struct, frozen=True):
    """The state of a batch at its provider.

    ``refusal`` is the reason why the provider rejected the batch, if it did. ``record`` is the
    API's reply.
    """

    is_over: bool
    state: str
    refusal: str | None = None
    record: Any = None


class BatchApi(ABC):
    """One provider's batch API. It uses the API key and the address of that provider."""

    max_rows: ClassVar[int] = 10_000
    max_bytes: ClassVar[int] = 16_000_000
    discount: ClassVar[Decimal] = Decimal("0.5")
    """The price of a call in a batch, as a fraction of its usual price.

    All three providers charge half the price, according to their documentation.
    """

    def __init__(self, provider: HttpProvider) -> None:
        self.provider = provider
        sample = Request((User("x"),), config=RuntimeConfig(max_tokens=1), model=provider.model)
        self.call = provider.codec.encode(sample).http
        self.url = self.call.url

    @abstractmethod
    async def submit(self, tag: str, requests: Sequence[KeyedRequest]) -> str:
        """Send requests as one batch named ``tag`` and return the id that the provider assigns."""

    @abstractmethod
    async def poll(self, batch_id: str) -> Progress:
        """Return the state of a batch."""

    @abstractmethod
    async def cancel(self, batch_id: str) -> None:
        """Ask the provider to stop a batch; finished answers can still be downloaded."""

    @abstractmethod
    def download(self, batch_id: str, progress: Progress) -> AsyncIterator[KeyedAnswer]:
        """Yield the answers of a batch that has ended."""

    # --- HTTP requests for subclasses

    async def post(self, url: str, body: Any, content_type: str = "application/json") -> Any:
        """Send JSON or bytes in a POST request and return the JSON of the reply."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self._exchange(
            HttpRequest("POST", url, {**self.call.headers, "content-type": content_type}, data)
        )

    async def get(self, url: str) -> Any:
        """Send a GET request to an address and return the JSON of the reply."""
        return await self._exchange(HttpRequest("GET", url, self._headers()))

    async def lines(self, url: str) -> AsyncIterator[Any]:
        """Download JSON lines from an address and yield each line as it arrives."""
        rest = bytearray()
        async for chunk in self.provider.fetch(HttpRequest("GET", url, self._headers())):
            rest += chunk
            if b"\n" in chunk:
                *whole, rest = rest.split(b"\n")
                for line in whole:
                    if line.strip():
                        yield _decode(line)
            _check_size(rest)
        if rest.strip():
            yield _decode(rest)

    def _headers(self) -> dict[str, str]:
        return {name: value for name, value in self.call.headers.items() if name != "content-type"}

    async def _exchange(self, question: HttpRequest) -> Any:
        found = bytearray()
        async for chunk in self.provider.fetch(question):
            found += chunk
            _check_size(found)
        return _decode(found or b"{}")


def _check_size(data: bytearray) -> None:
    if len(data) > MAX_BODY:
        raise InvalidResponseError(f"the batch API sent a record of more than {MAX_BODY:,} bytes")


def _decode(data: bytes | bytearray) -> Any:
    try:
        found = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidResponseError(
            "the batch API answered with something that is not a JSON object"
        )
    return found


def read_text(record: Any, *names: str) -> str:
    """Return the string at a path in a record; raise ``InvalidResponseError`` if it is missing."""
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    if not isinstance(record, str) or not record:
        raise InvalidResponseError(f"the batch API answered without {'.'.join(names)}")
    return record
