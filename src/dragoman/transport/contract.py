"""The interface of a transport: send a request once, return the reply as it arrives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

from ..errors import UnsupportedFeatureError, keep_headers
from ..wire.codec import HttpReply, HttpRequest
from ..wire.socket import SocketForm
from .clock import Timeouts

# The maximum number of bytes that are read of an error body.
MAX_ERROR_BODY = 1024 * 1024


class Secret:
    """A secret that ``repr`` and ``str`` do not show."""

    __slots__ = ("_value",)

    def __init__(self, value: str | None) -> None:
        self._value = value

    def reveal(self) -> str | None:
        """Return the secret in plain text, so that it can be sent."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "Secret(hidden)" if self._value else "Secret(None)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled")


class HttpStream(ABC):
    """A reply whose status and headers have arrived; the body is received in pieces."""

    status: int
    headers: Mapping[str, str]
    """The header fields. ``HttpTransport`` writes names in lower case and joins repeated fields
    with a comma.
    """
    over: bool = False
    """Whether the body is known to be complete, so that ``receive`` returns no more bytes."""

    def keep_headers(self, secrets: Iterable[str] = ()) -> dict[str, str]:
        """Return the header fields that records of calls contain, without secrets."""
        return keep_headers(self.headers, secrets)

    @abstractmethod
    async def receive(self) -> bytes:
        """Wait for more of the body and return it, decompressed; return no bytes at its end."""

    def touch(self) -> None:  # noqa: B027
        """Restart the idle deadline, since the caller has received and handled an event."""

    async def read(self, limit: int = MAX_ERROR_BODY) -> bytes:
        """Return at most the first ``limit`` bytes of the body."""
        pieces: list[bytes] = []
        size = 0
        while size < limit and (chunk := await self.receive()):
            pieces.append(chunk)
            size += len(chunk)
        return b"".join(pieces)[:limit]


class Transport(ABC):
    """An HTTP client: sends each request once and returns its reply as it arrives."""

    @abstractmethod
    def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> AbstractAsyncContextManager[HttpStream]:
        """Return a context manager that sends a request once and waits for the reply's head.

        When the context ends, the connection is closed or returned to the pool.
        """

    def send_over_socket(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        form: SocketForm,
        *,
        stream: bool = False,
    ) -> AbstractAsyncContextManager[HttpStream]:
        """Return the same as ``send``, for a request that is a message on a WebSocket.

        The WebSocket may have answered earlier requests with the same address and headers. The
        events of the reply are passed on as server-sent events.
        """
        raise UnsupportedFeatureError(f"{type(self).__name__} opens no WebSockets")

    async def exchange(
        self, request: HttpRequest, credentials: Mapping[str, Secret], timeouts: Timeouts
    ) -> HttpReply:
        """Send a small request and read the complete reply."""
        async with self.send(request, credentials, timeouts) as reply:
            return HttpReply(reply.status, reply.headers, await reply.read())

    async def close(self) -> None:  # noqa: B027
        """Close the connection pool."""
