"""The only file that opens a socket to a provider.

One pool per transport, owned by the event loop that first used it. No redirect is followed, no
request is sent twice, every body is bounded, and giving up closes the socket at once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit
from weakref import WeakSet

from msgspec import Struct

from .errors import (
    Deadline,
    InvalidResponseError,
    NetworkError,
    ProviderError,
    StreamInterruptedError,
    TimedOutError,
    without_frames,
)
from .wire.codec import HttpReply, HttpRequest
from .wire.urls import is_loopback

if TYPE_CHECKING:
    import aiohttp

__all__ = ["FixtureTransport", "HttpStream", "HttpTransport", "Secret", "Timeouts", "Transport"]

# How much one stream, and all of a transport together, may run ahead of their readers. The HTTP library's own
# 64 KiB (it keeps twice that, and the kernel as much again) is most of what a stream costs where there are many.
_AHEAD_EACH = 32 * 1024
_AHEAD_ALL = 256 * 1024
_AHEAD_LEAST = 4 * 1024
# Bytes that were buffered are read without a pause, also those that a few compressed ones became. After so many
# the event loop gets a turn, so that deadlines fire and other tasks run.
_TURN = 128 * 1024
# A compressed stream gains little and can hide a gigabyte in a megabyte.
_STREAM_HEADERS = {"accept-encoding": "identity"}
# How many times its compressed size a reply may have, from a turn's worth of bytes on. JSON reaches 30.
MAX_RATIO = 100
# An error page is never read further than this.
MAX_ERROR_BODY = 1024 * 1024
_PROXY = "Check the variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY."


class Timeouts(Struct, frozen=True):
    """Four deadlines in seconds; ``None`` turns one off.

    ``connect`` bounds reaching the server. ``first_event`` and ``idle`` bound a stream: the wait for
    its first event and for each next one, counting events that say something (keep-alive comments
    do not reset the clock) and only while the caller is waiting. ``total`` bounds the whole call.
    """

    connect: float | None = 10.0
    first_event: float | None = 300.0
    idle: float | None = 120.0
    total: float | None = 600.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise ValueError(f"timeouts.{name} must be a positive number of seconds or None, not {value!r}")


class Secret:
    """A key that does not show itself."""

    __slots__ = ("_value",)

    def __init__(self, value: str | None) -> None:
        self._value = value

    def reveal(self) -> str | None:
        """The key itself; for the one place that sends it."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "Secret(hidden)" if self._value else "Secret(None)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled")


class HttpStream(ABC):
    """A reply whose head has arrived."""

    status: int
    headers: Mapping[str, str]
    over: bool = False
    """Is it known that all of the body was received? A shortcut: ``receive`` has nothing more then."""

    @abstractmethod
    async def receive(self) -> bytes:
        """More of the body as it comes, already decompressed; nothing at its end."""

    def touch(self) -> None:  # noqa: B027
        """Something was said and handled; the idle clock starts anew."""

    async def read(self, limit: int = MAX_ERROR_BODY) -> bytes:
        """The body, or its first ``limit`` bytes."""
        pieces: list[bytes] = []
        size = 0
        while size < limit and (chunk := await self.receive()):
            pieces.append(chunk)
            size += len(chunk)
        return b"".join(pieces)[:limit]


class Transport(ABC):
    """Sends requests."""

    @abstractmethod
    def send(
        self, request: HttpRequest, credentials: Mapping[str, Secret], timeouts: Timeouts, *, stream: bool = False
    ) -> AbstractAsyncContextManager[HttpStream]:
        """Send and wait for the head of the reply; leaving the context closes whatever is still open."""

    async def exchange(self, request: HttpRequest, credentials: Mapping[str, Secret], timeouts: Timeouts) -> HttpReply:
        """Send a small question and read the whole answer."""
        async with self.send(request, credentials, timeouts) as reply:
            return HttpReply(reply.status, reply.headers, await reply.read())

    async def close(self) -> None:  # noqa: B027
        """Close the pool."""


class HttpTransport(Transport):
    """HTTP/1.1 over aiohttp.

    ``proxy`` is a URL, ``"env"`` for what the environment says (never for loopback), or ``None``;
    ``ca`` is a file of certificate authorities, or an ``ssl.SSLContext``.
    """

    def __init__(self, *, proxy: str | None = "env", ca: str | ssl.SSLContext | None = None) -> None:
        # Imported when a transport is made, not with the package: it costs a quarter of a second of CPU.
        import aiohttp

        self._aiohttp = aiohttp
        self._proxy = proxy
        if proxy is not None and proxy != "env":
            try:
                _check_proxy(proxy)
            except NetworkError as error:
                raise ValueError(f"proxy: {error.message}") from None
        self._ssl: ssl.SSLContext | bool = True
        if ca is not None:
            self._ssl = ca if isinstance(ca, ssl.SSLContext) else ssl.create_default_context(cafile=ca)
        self._sessions: dict[bool, aiohttp.ClientSession] = {}  # by whether a connection serves once
        self._limits: dict[float | None, aiohttp.ClientTimeout] = {}
        self._ahead = _ReadAhead()
        self._watched: WeakSet[Any] = WeakSet()  # connections with a callback on their end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def send(
        self, request: HttpRequest, credentials: Mapping[str, Secret], timeouts: Timeouts, *, stream: bool = False
    ) -> AbstractAsyncContextManager[HttpStream]:
        # llama.cpp says keep-alive and closes after a stream: the next request would be lost. Without
        # TLS a new connection costs next to nothing, so a streamed one is not used again.
        single = stream and request.url.startswith("http:")
        clock = _Clock(asyncio.get_running_loop(), timeouts, stream=stream)
        return _Exchange(self, request, credentials, clock, stream, single)

    async def close(self) -> None:
        self._closed = True
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            if self._loop is asyncio.get_running_loop():
                await session.close()
            else:
                _drop(session)

    def __del__(self) -> None:
        for session in getattr(self, "_sessions", {}).values():
            _drop(session)

    def _open(self, url: str, *, single: bool) -> aiohttp.ClientSession:
        if self._closed:
            raise RuntimeError("this provider is closed; connect() again")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                "this provider belongs to another event loop; connect() again in this one, or use dragoman.sync"
            )
        if single not in self._sessions:
            self._sessions[single] = self._make_session(url, single=single)
        return self._sessions[single]

    def _make_session(self, url: str, *, single: bool) -> aiohttp.ClientSession:
        # Shorter than the server's own patience, or a request meets a closing door: uvicorn, node and
        # llama.cpp wait 5 s, the load balancers in front of hosted APIs a minute.
        patience: dict[str, Any] = {"keepalive_timeout": 50.0 if url.startswith("https:") else 4.0}
        connector = self._aiohttp.TCPConnector(
            limit=0,
            ssl=self._ssl,
            **({"force_close": True, "socket_factory": self._ahead.open_socket} if single else patience),
        )
        return self._aiohttp.ClientSession(
            connector=connector,
            cookie_jar=self._aiohttp.DummyCookieJar(),
            trust_env=False,
            headers={"user-agent": "dragoman"},
        )

    def _connecting(self, seconds: float | None) -> aiohttp.ClientTimeout:
        """The one deadline that is left to the HTTP library."""
        limit = self._limits.get(seconds)
        if limit is None:
            limit = self._limits[seconds] = self._aiohttp.ClientTimeout(total=None, connect=seconds)
        return limit

    def _proxy_for(self, url: str) -> str | None:
        if self._proxy != "env":
            return self._proxy
        if is_loopback(urlsplit(url).hostname or ""):
            return None
        # Loaded when it is needed: with it come http.client, email and most of a package's import time.
        from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

        parts = urlsplit(url)
        host = parts.hostname or ""
        proxies = getproxies_environment()
        proxy = None if proxy_bypass_environment(host, proxies) else proxies.get(parts.scheme) or proxies.get("all")
        if proxy is not None:
            _check_proxy(proxy)
        return proxy

    def _translate(self, error: BaseException, clock: _Clock, url: str) -> ProviderError:
        """Return what a failure below HTTP means. Of the URL only the origin is named: its query may hold a key."""
        aiohttp = self._aiohttp
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            return clock.expiry()
        if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
            return NetworkError("the request could not be sent: the address or a header is malformed")
        where, proxy = _origin_of(url), self._proxy_for(url)
        via = f" through the proxy {_origin_of(proxy)}" if proxy else ""
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return TimedOutError(f"no connection to {where}{via} within the connect deadline", which="connect")
        if isinstance(error, aiohttp.ClientHttpProxyError):
            refused = NetworkError(f"the proxy {_origin_of(proxy or '')} refused to connect to {where}", advice=_PROXY)
            refused.status = error.status
            return refused
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            return NetworkError(f"the proxy {_origin_of(proxy or '')} to {where} cannot be reached", advice=_PROXY)
        broken: Any = aiohttp.http_exceptions.HttpProcessingError  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(error, aiohttp.ClientResponseError | broken):
            return InvalidResponseError(f"what {where} answered{via} is not valid HTTP")
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            return NetworkError(f"the certificate of {where} was refused{via}, or TLS failed")
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return NetworkError(f"the host name of {where} cannot be resolved")
        if isinstance(error, aiohttp.ClientConnectorError | ConnectionRefusedError):
            unreached = NetworkError(f"the server at {where} cannot be reached{via}")
            unreached.is_unreached = True
            return unreached
        return NetworkError(f"the connection to {where}{via} was lost before the reply")


class _ReadAhead:
    """How much the streams of one transport may run ahead of their readers: the more there are, the less each."""

    def __init__(self) -> None:
        self.streams = 0  # now open

    def share(self) -> int:
        """The bytes for one more."""
        return max(_AHEAD_LEAST, min(_AHEAD_EACH, _AHEAD_ALL // max(1, self.streams)))

    def open_socket(self, address: Any) -> socket.socket:
        """A socket for one stream, whose server is held back early: the kernel's usual buffer is 128 KiB and more."""
        family, kind, protocol, *_ = address
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * self.share())
        return opened


def _origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, without credentials, path and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@lru_cache(maxsize=64)
def _check_proxy(url: str) -> None:
    """Refuse a proxy that does not speak HTTP: sent in plain text, the key would go to a server that is not meant."""
    scheme, found, _ = url.partition("://")
    if found and scheme.lower() not in ("http", "https"):
        raise NetworkError(f"the proxy is a {scheme[:20]} URL; only http and https proxies are supported")


def _fail_reader(content: aiohttp.StreamReader, error: type[Exception], _: asyncio.Future[None] | None) -> None:
    """Wake the reader of a connection that was closed before the end of the reply."""
    if not content.is_eof() and content.exception() is None:
        content.set_exception(error("the connection is closed"))


def _retrieve_exception(closed: asyncio.Future[None]) -> None:
    """Read the exception of a closed connection; asyncio logs those that were never retrieved."""
    if not closed.cancelled():
        closed.exception()


def _drop(session: aiohttp.ClientSession) -> None:
    """Close the sockets of a session whose loop is not ours to wait in."""
    connector = session.connector
    session.detach()
    if connector is not None and not connector.closed:
        connector._close()  # the part of close() that needs no waiting


class _Exchange(HttpStream):
    """One request and its reply."""

    def __init__(
        self,
        transport: HttpTransport,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        clock: _Clock,
        stream: bool,
        single: bool,
    ) -> None:
        self._transport = transport
        self._request = request
        self._credentials = credentials
        self._clock = clock
        self._stream = stream
        self._single = single
        self._counted = False
        self._unpaused = 0  # bytes that were received since the event loop had a turn
        self._response: aiohttp.ClientResponse | None = None
        self._closed: asyncio.Future[None] | None = None  # done when the connection is gone
        self._on_closed: Callable[[asyncio.Future[None]], None] | None = None
        self.touch = clock.touch  # type: ignore[method-assign]

    async def __aenter__(self) -> HttpStream:
        transport, request, clock = self._transport, self._request, self._clock
        aiohttp = transport._aiohttp
        proxy = transport._proxy_for(request.url)
        session = transport._open(request.url, single=self._single)
        if self._stream:
            transport._ahead.streams += 1
            self._counted = True
        clock.start()
        try:
            # The key is merged inside the call, so that it is in no local variable of ours.
            self._response = await session.request(
                request.method,
                request.url,
                data=request.body or None,
                headers={
                    **(_STREAM_HEADERS if self._stream else {}),
                    **request.headers,
                    **{name: key.reveal() or "" for name, key in self._credentials.items()},
                },
                allow_redirects=False,
                proxy=proxy,
                timeout=transport._connecting(clock.timeouts.connect),
                read_bufsize=transport._ahead.share() if self._stream else None,
            )
        except asyncio.CancelledError:
            self._close()
            if clock.absorb():
                raise clock.expiry() from None
            raise
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            self._close()
            raise transport._translate(error, clock, request.url) from without_frames(error)
        self.status = self._response.status
        self.headers = self._response.headers
        self._content = self._response.content
        clock.watch(self._response)
        self._watch(self._response)
        return self

    def _watch(self, response: aiohttp.ClientResponse) -> None:
        """Fail the reader when the connection is closed.

        The HTTP library does not wake the reader when it closes a connection itself: because the pool is
        closed, or because chunks are not framed as they should be. The reader would wait for its deadline.
        """
        protocol = response.connection.protocol if response.connection is not None else None
        if protocol is None:
            return  # all has been received
        self._on_closed = partial(_fail_reader, response.content, self._transport._aiohttp.ClientPayloadError)
        self._closed = protocol.closed
        if self._closed is None:
            self._on_closed(None)
        else:
            self._closed.add_done_callback(self._on_closed)
            if protocol not in self._transport._watched:
                self._transport._watched.add(protocol)
                self._closed.add_done_callback(_retrieve_exception)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None and not self._single and not self.over:
                await self._drain()
        finally:
            self._close()

    def __del__(self) -> None:
        # A stream that was dropped rather than closed. The timer would keep its socket open until it fires.
        loop = self._clock._loop
        if self._response is None or loop.is_closed() or asyncio._get_running_loop() is loop:
            self._close()
        else:  # dropped in another thread, as streams of dragoman.sync are
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._clock.stop()
        if self._closed is not None and self._on_closed is not None:
            self._closed.remove_done_callback(self._on_closed)
            self._closed = None
        if self._counted:
            self._transport._ahead.streams -= 1
            self._counted = False
        if self._response is not None:
            self._response.close()  # gives a connection whose body was read to the end back to the pool
            self._response = None

    async def receive(self) -> bytes:
        clock = self._clock
        clock.reading = True
        try:
            if self._unpaused > _TURN:
                self._unpaused = 0
                await asyncio.sleep(0)
                if clock.expired is not None:
                    raise clock.expiry()
                self._check_ratio()
            # Not ``read(n)``: that raises the bound of what the HTTP library reads ahead to n.
            received = await self._content.readany()
            self._unpaused += len(received)
            self.over = self._content.at_eof()
            return received
        except (self._transport._aiohttp.ClientError, OSError) as error:
            if clock.expired is not None:
                raise clock.expiry() from None
            lost = StreamInterruptedError("the connection was lost in the middle of the reply")
            raise lost from without_frames(error)
        finally:
            clock.reading = False

    def _check_ratio(self) -> None:
        packed = self._content.total_compressed_bytes  # None if the body is not compressed
        if packed is not None and self._content.total_bytes > MAX_RATIO * packed + _TURN:
            raise InvalidResponseError(f"the reply has more than {MAX_RATIO} times its compressed size")

    async def _drain(self) -> None:
        """Read past the end mark, so that the connection can serve again.

        Servers write the last, empty HTTP chunk a moment after their end mark. Some keep the
        connection open for seconds; those lose it.
        """
        content = self._content
        if content.is_eof() or content.exception() is not None:
            return
        try:
            async with asyncio.timeout(0.05):
                while await content.readany():
                    pass
        except (TimeoutError, self._transport._aiohttp.ClientError, OSError):
            pass


class _Clock:
    """The deadlines of one call: one timer, however many chunks.

    What runs out before the head of the reply is there cancels the waiting task, which takes the
    cancellation back as ``asyncio.timeout`` does; later it closes the connection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeouts: Timeouts, *, stream: bool) -> None:
        self.timeouts = timeouts
        self.reading = False
        self.expired: Deadline | None = None
        self._loop = loop
        self._stream = stream
        self._began = self._touched = loop.time()
        self._received = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._response: aiohttp.ClientResponse | None = None

    def start(self) -> None:
        """Begin to watch this task wait for the head of the reply."""
        self._task = asyncio.current_task()
        self._others = self._task.cancelling() if self._task is not None else 0
        self._schedule()

    def absorb(self) -> bool:
        """Return whether the clock alone cancelled the task, and take that cancellation back."""
        return self.expired is not None and self._task is not None and self._task.uncancel() <= self._others

    def watch(self, response: aiohttp.ClientResponse) -> None:
        """Go on with the body."""
        self._task = None
        self._response = response

    def touch(self) -> None:
        self._touched = self._loop.time()
        if not self._received:
            self._received = True
            self.stop()
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def expiry(self) -> TimedOutError:
        which = self.expired or "total"
        seconds = getattr(self.timeouts, which)
        return TimedOutError(f"the {which} deadline of {seconds} s passed", which=which)

    def _next(self) -> tuple[Deadline, float | None]:
        limits = self.timeouts
        which: Deadline = "total"
        when = None if limits.total is None else self._began + limits.total
        if self._stream:
            seconds = limits.idle if self._received else limits.first_event
            if seconds is not None:
                sooner = (self._touched if self._received else self._began) + seconds
                if when is None or sooner <= when:
                    which, when = "idle" if self._received else "first_event", sooner
        return which, when

    def _schedule(self) -> None:
        _, when = self._next()
        if when is not None:
            self._timer = self._loop.call_at(when, self._check)

    def _check(self) -> None:
        which, when = self._next()
        now = self._loop.time()
        if when is not None and when <= now:
            if which != "total" and not self.reading and self._response is not None:
                self._touched, self._received = now, True  # the caller is busy, the provider is not to blame
            else:
                self.expired = which
                if self._response is not None:
                    self._response.close()
                elif self._task is not None:
                    self._task.cancel()
                return
        self._schedule()


class FixtureTransport(Transport):
    """Answers from a list, for tests: each entry a status, headers and the chunks of a body.

    A chunk that is an exception is raised in its place. What was sent is in ``requests``.
    """

    def __init__(self, *replies: tuple[int, Mapping[str, str], Iterable[bytes | Exception]]) -> None:
        self._replies = list(replies)
        self.requests: list[HttpRequest] = []

    @asynccontextmanager
    async def send(
        self, request: HttpRequest, credentials: Mapping[str, Secret], timeouts: Timeouts, *, stream: bool = False
    ) -> AsyncIterator[HttpStream]:
        self.requests.append(request)
        if not self._replies:
            raise NetworkError("the fixture has no more replies")
        yield _FixtureReply(*self._replies.pop(0))


class _FixtureReply(HttpStream):
    def __init__(self, status: int, headers: Mapping[str, str], body: Iterable[bytes | Exception]) -> None:
        self.status = status
        self.headers = headers
        self._body = [chunk for chunk in body if chunk != b""]

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        chunk = self._body.pop(0) if self._body else b""
        if isinstance(chunk, Exception):
            raise chunk
        return chunk
