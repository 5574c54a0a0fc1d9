"""A transport over aiohttp, for what only aiohttp has: SOCKS proxies and custom connectors.

This transport needs the extra ``aiohttp``. It behaves like ``HttpTransport``; the tests in
``tests/transport`` run against both.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakSet

from ..errors import (
    InvalidResponseError,
    NetworkError,
    ProviderError,
    StreamInterruptedError,
    TimedOutError,
    without_frames,
)
from ..wire.codec import HttpRequest
from . import body
from .clock import Alarm, Clock, Timeouts
from .connect import Proxy, find_proxy, parse_url
from .contract import HttpStream, Secret, Transport
from .pool import PLAIN_SECONDS, TLS_SECONDS, share_ahead

if TYPE_CHECKING:
    import aiohttp

# Reading buffered or decompressed bytes does not yield to the event loop. After this many bytes
# the transport yields, so that deadlines take effect and other tasks run.
_TURN = 128 * 1024
# Streams are requested without compression: it saves little, and a compressed megabyte can expand
# to a gigabyte.
_STREAM_HEADERS = {"accept-encoding": "identity"}
_PROXY = "Check the variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY."


class AiohttpTransport(Transport):
    """HTTP/1.1 over aiohttp.

    ``proxy`` is a URL, ``"env"`` for the proxy in the environment variables (never used for
    loopback), or ``None``; ``ca`` is a file of certificate authorities, or an ``ssl.SSLContext``.
    ``connector`` is a function that returns the connector to use instead of aiohttp's
    ``TCPConnector``, for example one of ``aiohttp_socks``; then ``proxy`` and ``ca`` are ignored.
    """

    def __init__(
        self,
        *,
        proxy: str | None = "env",
        ca: str | ssl.SSLContext | None = None,
        connector: Callable[[], aiohttp.BaseConnector] | None = None,
    ) -> None:
        # Import aiohttp only here, since the import takes a quarter of a second of CPU time.
        try:
            import aiohttp
        except ImportError as error:
            raise ImportError(
                "AiohttpTransport needs the extra: pip install 'dragoman[aiohttp]'"
            ) from error

        self._aiohttp = aiohttp
        self._connector = connector
        self._proxy = proxy if connector is None else None
        if self._proxy is not None and proxy != "env":
            try:
                Proxy(self._proxy)
            except NetworkError as error:
                raise ValueError(f"proxy: {error.message}") from None
        self._ssl: ssl.SSLContext | bool = True
        if ca is not None:
            self._ssl = (
                ca if isinstance(ca, ssl.SSLContext) else ssl.create_default_context(cafile=ca)
            )
        # two sessions: for connections that are used only once, and for connections that are
        # reused
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._limits: dict[float | None, aiohttp.ClientTimeout] = {}
        self._streams = 0  # number of open streams
        # connections with a callback that reads the exception of the closed connection
        self._watched: WeakSet[Any] = WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> AbstractAsyncContextManager[HttpStream]:
        # llama.cpp announces keep-alive but closes the connection after a stream, so a request on
        # the same connection would fail. Therefore a connection without TLS is not reused after a
        # stream; a new one is cheap.
        single = stream and request.url.startswith("http:")
        clock = Clock(asyncio.get_running_loop(), timeouts, stream=stream)
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
                "this provider belongs to another event loop; connect() again in this one, or use "
                "dragoman.sync"
            )
        if single not in self._sessions:
            self._sessions[single] = self._make_session(url, single=single)
        return self._sessions[single]

    def _make_session(self, url: str, *, single: bool) -> aiohttp.ClientSession:
        patience: dict[str, Any] = {
            "keepalive_timeout": TLS_SECONDS if url.startswith("https:") else PLAIN_SECONDS
        }
        once: dict[str, Any] = {"force_close": True, "socket_factory": self._open_socket}
        make = self._connector or partial(
            self._aiohttp.TCPConnector, limit=0, ssl=self._ssl, **(once if single else patience)
        )
        return self._aiohttp.ClientSession(
            connector=make(),
            cookie_jar=self._aiohttp.DummyCookieJar(),
            trust_env=False,
            headers={"user-agent": "dragoman"},
        )

    def _connecting(self, seconds: float | None) -> aiohttp.ClientTimeout:
        """Return the connect timeout for aiohttp; the ``Clock`` enforces the other deadlines."""
        limit = self._limits.get(seconds)
        if limit is None:
            limit = self._limits[seconds] = self._aiohttp.ClientTimeout(
                total=None, connect=seconds
            )
        return limit

    def _proxy_for(self, url: str) -> str | None:
        if self._proxy != "env":
            return self._proxy
        found = find_proxy(parse_url(url))
        return found.url if found is not None else None

    def _open_socket(self, address: Any) -> socket.socket:
        """Return a socket with a small receive buffer, so that backpressure reaches the server."""
        family, kind, protocol, *_ = address
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * share_ahead(self._streams))
        return opened

    def _translate(self, error: BaseException, clock: Clock, url: str) -> ProviderError:
        """Return the error for a network failure.

        The message contains only the origin of the URL, since the query may contain a key.
        """
        aiohttp = self._aiohttp
        if isinstance(error, TimeoutError) and not isinstance(
            error, aiohttp.ConnectionTimeoutError
        ):
            return clock.expiry()
        if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
            return NetworkError(
                "the request could not be sent: the address or a header is malformed"
            )
        where, proxy = _origin_of(url), self._proxy_for(url)
        via = f" through the proxy {_origin_of(proxy)}" if proxy else ""
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return TimedOutError(
                f"no connection to {where}{via} within the connect deadline", which="connect"
            )
        if isinstance(error, aiohttp.ClientHttpProxyError):
            refused = NetworkError(
                f"the proxy {_origin_of(proxy or '')} refused to connect to {where}", advice=_PROXY
            )
            refused.status = error.status
            return refused
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            return NetworkError(
                f"the proxy {_origin_of(proxy or '')} to {where} cannot be reached", advice=_PROXY
            )
        broken: Any = aiohttp.http_exceptions.HttpProcessingError  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(error, aiohttp.ClientResponseError | broken):
            return InvalidResponseError(f"what {where} answered{via} is not valid HTTP")
        if isinstance(
            error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError
        ):
            return NetworkError(f"the certificate of {where} was refused{via}, or TLS failed")
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return NetworkError(f"the host name of {where} cannot be resolved")
        if isinstance(error, aiohttp.ClientConnectorError | ConnectionRefusedError):
            unreached = NetworkError(f"the server at {where} cannot be reached{via}")
            unreached.is_unreached = True
            return unreached
        return NetworkError(f"the connection to {where}{via} was lost before the reply")


def _origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, without credentials, path and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


def _fail_reader(
    content: aiohttp.StreamReader, error: type[Exception], _: asyncio.Future[None] | None
) -> None:
    """Raise an error in the reader if the connection was closed before the end of the reply."""
    if not content.is_eof() and content.exception() is None:
        content.set_exception(error("the connection is closed"))


def _retrieve_exception(closed: asyncio.Future[None]) -> None:
    """Read the exception of a closed connection, since asyncio logs unread exceptions."""
    if not closed.cancelled():
        closed.exception()


def _drop(session: aiohttp.ClientSession) -> None:
    """Close the sockets of a session that belongs to another event loop."""
    connector = session.connector
    session.detach()
    if connector is not None and not connector.closed:
        connector._close()  # close the sockets; the public ``close`` would also wait


class _Exchange(HttpStream):
    """One HTTP request and its reply, as an asynchronous context manager."""

    def __init__(
        self,
        transport: AiohttpTransport,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        clock: Clock,
        stream: bool,
        single: bool,
    ) -> None:
        self._transport = transport
        self._request = request
        self._credentials = credentials
        self._clock = clock
        self._alarm = Alarm(clock.loop)
        self._stream = stream
        self._single = single
        self._counted = False
        self._unpaused = 0  # bytes received since control was last returned to the event loop
        self._response: aiohttp.ClientResponse | None = None
        # aiohttp's future that is done when the connection is closed
        self._closed: asyncio.Future[None] | None = None
        self._on_closed: Callable[[asyncio.Future[None]], None] | None = None

    async def __aenter__(self) -> HttpStream:
        transport, request, clock = self._transport, self._request, self._clock
        aiohttp = transport._aiohttp
        proxy = transport._proxy_for(request.url)
        session = transport._open(request.url, single=self._single)
        if self._stream:
            transport._streams += 1
            self._counted = True
        task = asyncio.current_task()
        others = task.cancelling() if task is not None else 0
        if task is not None:
            clock.start(partial(_cancel, task), self._alarm)
        failed: ProviderError | None = None
        try:
            # The API key is added inside the call expression, so that no local variable and no
            # traceback contains it.
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
                read_bufsize=share_ahead(transport._streams) if self._stream else None,
            )
        except asyncio.CancelledError:
            self._close()
            # If only the clock has cancelled the task, raise a timeout error, as
            # ``asyncio.timeout`` does.
            if clock.expired is not None and task is not None and task.uncancel() <= others:
                raise clock.expiry() from None
            raise
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            self._close()
            failed = transport._translate(error, clock, request.url)
            # Drop the cause of a proxy error: it contains the URL of the proxy with its password.
            failed.__cause__ = (
                None if isinstance(error, aiohttp.ClientResponseError) else without_frames(error)
            )
        if self._response is None or failed is not None:
            raise failed or RuntimeError("there is no reply")
        self.status = self._response.status
        self.headers = self._response.headers
        self._content = self._response.content
        clock.reading = False
        clock.start(self._response.close, self._alarm)
        self._watch(self._response)
        return self

    def _watch(self, response: aiohttp.ClientResponse) -> None:
        """Raise an error in the reader of the reply when the connection is closed.

        If aiohttp itself closes a connection, because the pool is closed or the chunked framing is
        invalid, it does not wake the reader, which would then wait until its deadline.
        """
        protocol = response.connection.protocol if response.connection is not None else None
        if protocol is None:
            return  # aiohttp has already released the connection, so the body is complete
        self._on_closed = partial(
            _fail_reader, response.content, self._transport._aiohttp.ClientPayloadError
        )
        self._closed = protocol.closed
        if self._closed is None:
            self._on_closed(None)
        else:
            self._closed.add_done_callback(self._on_closed)
            if protocol not in self._transport._watched:
                self._transport._watched.add(protocol)
                self._closed.add_done_callback(_retrieve_exception)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            if kind is None and not self._single and not self.over:
                await self._drain()
        finally:
            self._close()

    def __del__(self) -> None:
        # The caller has dropped the stream without closing it. Its timer would keep the socket
        # open until a deadline.
        loop = self._clock.loop
        if self._response is None or loop.is_closed() or self._clock.is_in_loop():
            self._close()
        else:  # the stream was dropped in another thread, which happens with dragoman.sync
            with suppress(RuntimeError):  # the event loop may have been closed by now
                loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._clock.stop()
        self._alarm.cancel()
        if self._closed is not None and self._on_closed is not None:
            self._closed.remove_done_callback(self._on_closed)
            self._closed = None
        if self._counted:
            self._transport._streams -= 1
            self._counted = False
        if self._response is not None:
            # this returns the connection to the pool if the body was read to its end
            self._response.close()
            self._response = None

    def touch(self) -> None:
        self._clock.touch()

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
            # Do not use ``read(n)``: it raises the limit of aiohttp's read-ahead buffer to n
            # bytes.
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
        # The compressed size, or None if the body is not compressed.
        packed = self._content.total_compressed_bytes
        if (
            packed is not None
            and self._content.total_bytes > body.MAX_RATIO * packed + body.RATIO_FREE
        ):
            raise InvalidResponseError(
                f"the reply has more than {body.MAX_RATIO} times its compressed size"
            )

    async def _drain(self) -> None:
        """Read to the end of the HTTP body, so that the connection can be reused.

        Servers write the last, empty HTTP chunk shortly after the event that ends the stream. If a
        server takes longer, its connection is closed instead.
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
