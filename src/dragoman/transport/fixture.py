"""A transport for tests that replies from a list instead of opening a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from ..errors import NetworkError
from ..wire.codec import HttpRequest
from .clock import Timeouts
from .contract import HttpStream, Secret, Transport


class FixtureTransport(Transport):
    """Reply to requests from a list; each entry is a status, headers and the chunks of a body.

    If a chunk is an exception, the exception is raised. ``requests`` contains the requests that
    were sent.
    """

    def __init__(
        self, *replies: tuple[int, Mapping[str, str], Iterable[bytes | Exception]]
    ) -> None:
        self._replies = list(replies)
        self.requests: list[HttpRequest] = []

    @asynccontextmanager
    async def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> AsyncIterator[HttpStream]:
        self.requests.append(request)
        if not self._replies:
            raise NetworkError("the fixture has no more replies")
        yield _FixtureReply(*self._replies.pop(0))


class _FixtureReply(HttpStream):
    def __init__(
        self, status: int, headers: Mapping[str, str], body: Iterable[bytes | Exception]
    ) -> None:
        self.status = status
        self.headers = headers
        self._body = [chunk for chunk in body if chunk != b""]

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        chunk = self._body.pop(0) if self._body else b""
        if isinstance(chunk, Exception):
            raise chunk
        return chunk
