"""The HTTP client: requests and replies over a connection pool.

Each transport has one pool, which belongs to the event loop that first uses it. Redirects are not
followed, a request is sent only once, the size of every body is limited, and cancelling a call
closes its socket at once.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import cache, lru_cache, partial
from typing import Literal

from ..errors import (
    KEPT_HEADERS,
    InvalidRequestError,
    InvalidResponseError,
    NetworkError,
    ProviderError,
    StreamInterruptedError,
    TimedOutError,
    keep_headers,
    without_frames,
)
from ..wire.codec import HttpRequest
from ..wire.socket import SocketForm
from .body import ACCEPTED, Inflater
from .clock import Clock, Timeouts
from .connect import Address, Certificate, Dialer, Proxy, find_proxy, make_context, parse_url
from .connection import ClientConnection, FramingError, read_fields
from .contract import HttpStream, Secret, Transport
from .pool import Pool
from .socket import IdleSockets, SocketExchange, identify, make_handshake, make_key

# Reading decompressed bytes does not yield to the event loop. After this many bytes the transport
# yields, so that deadlines take effect and other tasks run.
_TURN = 128 * 1024
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSENDABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_FRAMING = ("content-length", "transfer-encoding", "connection")
_MALFORMED = "the request could not be sent: the address or a header is malformed"
_LIMIT = 64 * 1024


class HttpTransport(Transport):
    """HTTP/1.1 on asyncio and llhttp.

    ``proxy`` is a URL, ``"env"`` for the proxy in the environment variables (never used for
    loopback), or ``None``. ``ca`` is a file of certificate authorities, ``"system"`` for those of
    the operating system (extra ``truststore``), or an ``ssl.SSLContext``; revocation lists in the
    file are applied. ``cert`` is a client certificate: one file with certificate and key, or two
    files, with an optional password. ``uds`` is the path of a Unix socket to which all requests
    are sent. ``connections`` limits the open connections to one origin; further calls wait until
    their connect deadline.
    """

    def __init__(
        self,
        *,
        proxy: str | None = "env",
        ca: str | ssl.SSLContext | None = None,
        cert: Certificate | None = None,
        uds: str | None = None,
        connections: int | None = None,
    ) -> None:
        if connections is not None and connections < 1:
            raise ValueError(f"connections must be at least 1 or None, not {connections!r}")
        if isinstance(ca, ssl.SSLContext) and cert is not None:
            raise ValueError("cert: load the certificate into the SSLContext that ca is")
        self._proxy: Proxy | None = None
        self._uses_environment = proxy == "env" and uds is None
        if proxy is not None and proxy != "env":
            if uds is not None:
                raise ValueError("proxy: a Unix socket is not reached through a proxy")
            try:
                self._proxy = Proxy(proxy)
            except NetworkError as error:
                raise ValueError(f"proxy: {error.message}") from None
        context = ca if isinstance(ca, ssl.SSLContext) else None
        if context is None and (ca is not None or cert is not None):
            context = make_context(ca if isinstance(ca, str) else None, cert)
        self._dialer = Dialer(context, uds)
        self._connections = connections
        # the proxies that environment variables set, by origin
        self._proxies: dict[str, Proxy | None] = {}
        self._pool: Pool | None = None
        self._sockets = IdleSockets()
        self._closed = False

    def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> AbstractAsyncContextManager[HttpStream]:
        return _Exchange(
            self,
            request,
            credentials,
            Clock(asyncio.get_running_loop(), timeouts, stream=stream),
            stream,
        )

    def send_over_socket(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        form: SocketForm,
        *,
        stream: bool = False,
    ) -> AbstractAsyncContextManager[HttpStream]:
        self.open_pool()
        key = make_key()
        clock = Clock(asyncio.get_running_loop(), timeouts, stream=stream)
        asked = make_handshake(request, key)
        return SocketExchange(
            request,
            form,
            _Exchange(self, asked, credentials, clock, stream, upgrades=True),
            key,
            self._sockets,
            identify(request, credentials),
            clock,
        )

    async def close(self) -> None:
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if pool.loop is not asyncio.get_running_loop():
            pool.drop()
            return
        self._sockets.close()
        pool.close(ConnectionAbortedError("the transport was closed"))
        for _ in range(4):  # asyncio closes sockets in the next iterations of the event loop
            if not pool.sizes[0]:
                break
            await asyncio.sleep(0)

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool is not None:
            pool.drop()

    def open_pool(self) -> Pool:
        """Return the connection pool; create it on the first call, for the current event loop."""
        if self._closed:
            raise InvalidRequestError("this provider is closed", advice="Call connect() again.")
        loop = asyncio.get_running_loop()
        if self._pool is None:
            self._pool = Pool(loop, self._connections)
        elif self._pool.loop is not loop:
            raise RuntimeError(
                "this provider belongs to another event loop; connect() again in this one, or use "
                "dragoman.sync"
            )
        return self._pool

    def proxy_for(self, target: Address) -> Proxy | None:
        """Return the proxy for a URL; the environment variables are read once for each origin."""
        if not self._uses_environment:
            return self._proxy
        if target.origin not in self._proxies:
            self._proxies[target.origin] = find_proxy(target)
        return self._proxies[target.origin]

    async def dial(
        self, pool: Pool, key: str, target: Address, proxy: Proxy | None, clock: Clock, ahead: int
    ) -> ClientConnection:
        """Open a connection; raise ``TimedOutError`` if a deadline passes before it is open."""
        which, when = clock.connect_by()
        deadline = asyncio.timeout_at(when)
        try:
            async with deadline:
                return await pool.open(
                    key, partial(self._dialer.dial, target, proxy), ahead or _LIMIT
                )
        except TimeoutError as error:
            if not deadline.expired():
                raise NetworkError(
                    f"the server at {target.origin} cannot be reached"
                ) from without_frames(error)
            if which != "connect":
                clock.expired = which
                raise clock.expiry() from None
            via = f" through the proxy {proxy.origin}" if proxy is not None else ""
            message = f"no connection to {target.origin}{via} within the connect deadline"
            raise TimedOutError(message, which="connect") from None


class _Exchange(HttpStream):
    """One HTTP request and its reply, as an asynchronous context manager."""

    def __init__(
        self,
        transport: HttpTransport,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        clock: Clock,
        stream: bool,
        *,
        upgrades: bool = False,
    ) -> None:
        self._transport = transport
        self._request = request
        self._credentials = credentials
        self._clock = clock
        self._stream = stream
        # llama.cpp announces keep-alive but closes the connection after a stream, so a request on
        # the same connection would fail. Therefore a connection without TLS is not reused after a
        # stream; a new one is cheap.
        self._single = upgrades or (stream and request.url.startswith("http:"))
        self._upgrades = upgrades
        self._option: Literal["close", "upgrade", ""] = "close" if self._single else ""
        if upgrades:
            self._option = "upgrade"
        self._pool: Pool | None = None  # set while the exchange is open
        self._connection: ClientConnection | None = None
        # The head of the reply as bytes, decoded on first use.
        self._head = bytearray()
        self._inflater: Inflater | None = None
        # number of decompressed bytes since the last yield to the event loop
        self._unpaused = 0

    async def __aenter__(self) -> HttpStream:
        transport = self._transport
        request = self._request
        clock = self._clock
        target = _read_target(request.url)
        proxy = transport.proxy_for(target)
        pool = self._pool = transport.open_pool()
        ahead = 0
        if self._stream:
            pool.streams += 1
            ahead = pool.share()
        key = target.origin if proxy is None else f"{target.origin} {proxy.origin}"
        if self._upgrades:
            key += " socket"  # idle WebSockets do not count for the limit of other connections
        try:
            connection = None if self._single else pool.take(key)
            if connection is None:
                connection = await transport.dial(
                    pool, key, target, proxy, clock, ahead if self._single else 0
                )
            self._connection = connection
            connection.upgrades = self._upgrades
            # The API key is added inside the call expression, so that no local variable and no
            # traceback contains it.
            connection.send(
                _encode_head(
                    request,
                    target,
                    self._credentials,
                    proxy,
                    stream=self._stream,
                    option=self._option,
                ),
                request.body,
                limit=ahead or _LIMIT,
            )
            clock.start(connection.close, connection.alarm)
            if connection.state == "head":
                await connection.wait()
        except ValueError as error:
            self._close()
            raise NetworkError(_MALFORMED) from without_frames(error)
        except BaseException:
            self._close()
            raise
        clock.reading = False
        if not connection.status:
            failed = self._explain(connection, target, proxy)
            self._close()
            raise failed from connection.failure
        self.status = connection.status
        self._head = connection.head
        if connection.encoding not in ("", "identity"):
            self._inflater = Inflater(connection.encoding)
        return self

    def detach(self) -> ClientConnection:
        """Return the connection, which this exchange does not close any more."""
        connection, self._connection = self._connection, None
        assert connection is not None
        pool, self._pool = self._pool, None
        if pool is not None and self._stream:
            pool.streams -= 1
        return connection

    def _explain(
        self, connection: ClientConnection, target: Address, proxy: Proxy | None
    ) -> ProviderError:
        """Return the error for a missing reply.

        The message contains only the origin of the URL, since the rest may contain a key.
        """
        if self._clock.expired is not None:
            connection.failure = None
            return self._clock.expiry()
        via = f" through the proxy {proxy.origin}" if proxy is not None else ""
        if isinstance(connection.failure, FramingError):
            without_frames(connection.failure)
            return InvalidResponseError(f"what {target.origin} answered{via} is not valid HTTP")
        return NetworkError(f"the connection to {target.origin}{via} was lost before the reply")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        connection = self._connection
        pool = self._pool
        if kind is None and connection is not None and pool is not None and not self._single:
            self._connection = None
            self._clock.stop()
            # the last, empty HTTP chunk arrives shortly after the event that ends a stream
            connection.drain()
            if connection.state != "drain":
                pool.release(connection)
        self._close()

    def __del__(self) -> None:
        # The caller has dropped the stream without closing it. Its timer would keep the socket
        # open until a deadline.
        if self._pool is None:
            return
        clock = self._clock
        if self._connection is None or clock.loop.is_closed() or clock.is_in_loop():
            self._close()
        else:  # another thread dropped the stream, as with dragoman.sync
            with suppress(RuntimeError):  # another thread may have just closed the event loop
                clock.loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        self._clock.stop()
        if self._stream:
            pool.streams -= 1
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        return read_fields(self._head.decode("latin-1").split("\r\n")[1:])

    def keep_headers(self, secrets: Iterable[str] = ()) -> dict[str, str]:
        # Hosted APIs send about 20 fields. Most are not kept, and are not decoded.
        lines = _kept_lines().findall(self._head.decode("latin-1"))
        return keep_headers(read_fields(lines), secrets)

    def touch(self) -> None:
        self._clock.touch()

    async def receive(self) -> bytes:
        connection = self._connection
        if connection is None:
            return b""
        clock = self._clock
        clock.reading = True
        try:
            if self._inflater is not None:
                return await self._receive_inflated(connection, self._inflater)
            if not connection.pieces and connection.state == "body":
                await connection.wait()
        finally:
            clock.reading = False
        is_here = connection.pieces and clock.expired is None
        received = connection.take() if is_here else self._take(connection)
        self.over = connection.state == "done"
        return received

    def _take(self, connection: ClientConnection) -> bytes:
        """Return the body bytes received so far; return no bytes at the end of the reply.

        If the reply was interrupted, raise the error.
        """
        if self._clock.expired is not None:
            raise self._clock.expiry()
        if connection.pieces:
            return connection.take()
        if connection.state == "done":
            return b""
        lost = StreamInterruptedError("the connection was lost in the middle of the reply")
        raise lost from connection.failure and without_frames(connection.failure)

    async def _receive_inflated(self, connection: ClientConnection, inflater: Inflater) -> bytes:
        if self._unpaused > _TURN:
            self._unpaused = 0
            await asyncio.sleep(0)
            if self._clock.expired is not None:
                raise self._clock.expiry()
        while not (data := inflater.read()):
            if not connection.pieces and connection.state == "body":
                await connection.wait()
            if not (packed := self._take(connection)):
                inflater.finish()
                self.over = True
                return b""
            inflater.feed(packed)
        self._unpaused += len(data)
        return data


def _read_target(url: str) -> Address:
    try:
        return parse_url(url)
    except ValueError:
        pass
    # raised outside of ``except``, without a cause: the cause would contain the URL, which may
    # have a key
    raise NetworkError(_MALFORMED)


@cache
def _kept_lines() -> re.Pattern[str]:
    """Return the regular expression for the reply headers to keep, compiled on first use."""
    return re.compile(rf"\r\n((?:{KEPT_HEADERS}):[^\r]*)", re.IGNORECASE)


@lru_cache(maxsize=256)
def _field_name(name: str) -> str:
    """Return a header name in lower case; reject invalid names and headers that define framing."""
    if not _NAME.fullmatch(name) or (lower := name.lower()) in _FRAMING:
        raise ValueError("the name of a header cannot be sent")
    return lower


@lru_cache(maxsize=256)
def _encode_fields(
    method: str,
    target: str,
    host: str,
    encoding: str,
    headers: tuple[tuple[str, str], ...],
    keys: tuple[str, ...],
) -> str:
    """Return the constant part of a request's head: all but the credentials and the length."""
    fields = {"host": host, "user-agent": "dragoman", "accept": "*/*", "accept-encoding": encoding}
    fields |= {_field_name(name): value for name, value in headers}
    for name in keys:
        fields.pop(_field_name(name), None)
    return "\r\n".join([f"{method} {target} HTTP/1.1", *map(_field, fields, fields.values())])


def _field(name: str, value: str) -> str:
    if _UNSENDABLE.search(value):
        raise ValueError("the value of a header cannot be sent")
    return f"{name}: {value}"


def _encode_head(
    request: HttpRequest,
    target: Address,
    credentials: Mapping[str, Secret],
    proxy: Proxy | None,
    *,
    stream: bool,
    option: Literal["close", "upgrade", ""],
) -> bytes:
    is_absolute = proxy is not None and not target.is_tls
    lines = [
        _encode_fields(
            request.method,
            target.origin + target.path if is_absolute else target.path,
            target.authority,
            # compression saves little in a stream, and the data could expand a thousandfold
            "identity" if stream else ACCEPTED,
            tuple(request.headers.items()),
            tuple(credentials),
        )
    ]
    lines += [_field(_field_name(name), key.reveal() or "") for name, key in credentials.items()]
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {len(request.body)}")
    if option:
        lines.append(f"connection: {option}")
    if is_absolute and proxy is not None and proxy.authorization:
        lines.append(f"proxy-authorization: {proxy.authorization.reveal()}")
    return "\r\n".join([*lines, "", ""]).encode()
