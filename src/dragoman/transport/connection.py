"""One HTTP/1.1 connection: the protocol, its parser and backpressure.

The parser is llhttp in its strict mode. A connection has these states:

========  ==================================  ========  =====================================================
state     what happens                        next      effect
========  ==================================  ========  =====================================================
idle      ``send``                            head      the request is written
idle      bytes on a new connection           head      a reply before the request (503 of a full server)
idle      bytes on a used connection          closed    unexpected; the pool drops the connection
idle      end of file                         closed    the pool drops the connection
head      a 1xx head other than 101           head      it is skipped
head      101, if ``upgrades``                upgraded  ``status`` and ``head`` are set
head      any other 101, an invalid head      closed    ``failure`` is a ``FramingError``
head      too long a head                     closed    ``failure`` is a ``FramingError``
head      a head with a body to follow        body      ``status`` and ``head`` are set
head      a head without a body               done      ``status`` and ``head`` are set
head      end of file                         closed    ``failure`` is an ``OSError``
body      bytes of the body                   body      they are kept; from ``limit`` bytes on, reading pauses
body      the end, by its framing             done
body      end of file, if that is the end     done      with TLS only after ``close_notify``
body      any other end of file               closed    ``failure`` is an ``OSError``
body      invalid chunk, too long a trailer   closed    ``failure`` is a ``FramingError``
body      ``drain``                           drain     what arrives is dropped
drain     the end, by its framing             done      the pool takes the connection back
drain     too late, too much, end of file     closed
done      ``rest``                            idle      only if ``is_reusable``
done      more bytes                          done      the connection is not reusable any more
upgraded  bytes                               upgraded  ``on_upgraded`` gets them
upgraded  end of file                         closed    ``failure`` is an ``OSError``
any       ``close``, ``fail``, reset          closed
========  ==================================  ========  =====================================================

``_ends_at_eof`` decides which heads are accepted; ``tests/transport/test_framing.py`` has a case
for each rule.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from .clock import Alarm

# The maximum size of a reply's head, trailers or chunk extensions, in bytes. Hosted APIs send
# heads of 2 to 4 KiB.
MAX_HEAD = 64 * 1024
# The HTTP body normally ends right after a stream's last event. If more bytes than this follow, or
# if the end takes longer, the connection is closed instead of reused.
_DRAIN_BYTES = 64 * 1024
_DRAIN_SECONDS = 0.05

# The header lines that define the framing of a body. llhttp has already checked the syntax: a
# space before the colon or a folded line is rejected. The first letters come before the
# alternatives, since the search is then a quarter faster.
_FRAMING = re.compile(
    r"\n([ct](?:ontent-encoding|ontent-length|ransfer-encoding):[^\r]*)", re.IGNORECASE
)
# A larger body is written separately from the head, since copying it would cost more than a second
# system call.
JOINED_BODY = 64 * 1024
# If the read-ahead limit is smaller than this, the kernel's receive buffer is made small too.
_USUAL_LIMIT = 64 * 1024

State = Literal["idle", "head", "body", "drain", "done", "upgraded", "closed"]


class FramingError(Exception):
    """Raised when the received bytes are not an acceptable HTTP/1.1 reply."""


class Owner(Protocol):
    """The methods of the pool that a connection calls."""

    def handle_loss(self, connection: ClientConnection) -> None:
        """Remove a connection whose socket is closed from the pool."""

    def handle_drain(self, connection: ClientConnection) -> None:
        """Return a connection to the pool after the rest of its reply was discarded."""


class ClientConnection(asyncio.BufferedProtocol):
    """One connection to a server, which handles one request at a time.

    The event loop reads into ``buffer``. All connections of a pool share one buffer, since its
    content is parsed before the next read. ``transport`` is ``None`` after the socket is closed.
    """

    __slots__ = (
        "_arriving", "_awaited", "_buffer", "_held", "_interim", "_loop", "_owner", "_parser",
        "_paused", "_poll",
        "_timer", "_unframed", "_until_eof", "_used", "_waiter", "alarm", "encoding", "expires",
        "failure", "head",
        "is_reusable", "key", "limit", "on_body", "on_upgraded", "pieces", "state", "status",
        "transport", "upgrades", "without_body",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Owner, key: str, buffer: memoryview
    ) -> None:
        self.key = key
        self.state: State = "idle"
        self.status = 0
        self.head = bytearray()  # the status line and header fields of the reply, unchanged
        self.encoding = ""  # the content-encoding of the body
        self.pieces: list[bytes] = []  # the parser appends to this list, so it is never replaced
        self.on_body = self.pieces.append
        self.failure: Exception | None = None
        self.is_reusable = True
        self.without_body = False  # true for CONNECT, whose reply ends after its head
        self.upgrades = False  # whether the request asks for another protocol
        self.on_upgraded = self.on_body
        self.limit = len(buffer)
        self.expires = 0.0
        self.alarm = Alarm(loop)
        self._loop = loop
        self._owner = owner
        self._buffer = buffer
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._awaited: State = "idle"
        self._timer: asyncio.TimerHandle | None = None
        self._held = 0  # number of bytes in ``pieces``
        self._arriving = bytearray()  # the part of the head that has arrived so far
        # bytes received since the head or the last body bytes, such as chunk framing
        self._unframed = 0
        self._interim = False
        self._paused = False
        self._poll: Callable[[], object] | None = None
        self._until_eof = False
        self._used = False

    # --- methods that the exchange calls

    def send(self, head: bytes, body: bytes, *, limit: int) -> None:
        """Write a request and start to receive its reply.

        ``limit`` is the number of bytes that may be buffered before reading pauses.
        """
        self.limit = limit
        self._used = True
        if self.state == "idle":
            self._begin()
        if self.transport is not None:
            if len(body) > JOINED_BODY:
                self.transport.write(head)
                self.transport.write(body)
            else:
                self.transport.write(head + body)

    def wait(self) -> asyncio.Future[None]:
        """Return a future that is done when body bytes have arrived or the state has changed."""
        self._awaited = self.state
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def now(self) -> float:
        """Return the time of the event loop."""
        return self._loop.time()

    def take(self) -> bytes:
        """Remove and return the body bytes that are buffered; resume reading if it was paused."""
        pieces = self.pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._held = 0
        if self._paused:
            self._paused = False
            if self.transport is not None:
                self.transport.resume_reading()
        return data

    def drain(self) -> None:
        """Read and discard a short remainder of the body, so that the connection can be reused."""
        if self.pieces:
            self.take()
        if self.state == "body":
            self.state = "drain"
            self._timer = self._loop.call_later(_DRAIN_SECONDS, self.close)

    def rest(self) -> bool:
        """Make the connection idle after a reply; return ``False`` if it cannot be reused.

        If this method returns ``False``, the pool closes the connection.
        """
        transport = self.transport
        if (
            self.state != "done"
            or not self.is_reusable
            or transport is None
            or transport.is_closing()
        ):
            return False
        if transport.get_write_buffer_size():
            # the server replied before it received the complete request, so the connection is
            # unusable
            return False
        self.pieces.clear()
        self._held = 0
        self.state = "idle"
        return True

    def is_healthy(self) -> bool:
        """Return whether an idle connection is still open at both ends."""
        transport = self.transport
        if self.state != "idle" or transport is None or transport.is_closing():
            return False
        if self._poll is None:
            link = transport.get_extra_info("socket")
            self._poll = _make_poll(link.fileno() if link is not None else -1)
        return not self._poll()

    def close(self) -> None:
        """Close the socket at once."""
        self.fail(ConnectionAbortedError("the connection was closed"))

    def fail(self, error: Exception) -> None:
        """Close the socket at once.

        The reader receives the bytes that have arrived, and then ``error``.
        """
        if self.state != "closed":
            self.state = "closed"
            self.failure = error
            self.wake()
        if self._timer is not None:
            self._timer.cancel()
        self.alarm.cancel()
        if self.transport is not None:
            # this fails if the event loop is already closed; collection closes the socket then
            with suppress(RuntimeError):
                self.transport.abort()

    def shut_down(self) -> None:
        """Close an idle connection; over TLS, send ``close_notify`` and do not await a reply."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
        self._loop.call_soon(self.close)

    # --- methods that the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        link: socket.socket | None = transport.get_extra_info("socket")
        if link is not None and link.family != getattr(socket, "AF_UNIX", None):
            # Enable TCP keep-alive: a model may take minutes to answer, and a NAT drops idle
            # connections without notice.
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self.limit < _USUAL_LIMIT:
                # Use a small receive buffer, so that backpressure reaches the server early. The
                # default size is at least 128 KiB.
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * self.limit)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        parser = self._parser
        if self.state == "upgraded":
            self.on_upgraded(bytes(self._buffer[:nbytes]))
            return
        if self.state == "idle":
            if self._used:
                self.close()
                return
            self._begin()
            self.is_reusable = False
        if parser is None or self.state == "closed":
            return
        self._unframed += nbytes
        data = self._buffer[:nbytes]
        pieces = self.pieces
        count = len(self.pieces)
        if self.state == "head":
            self._arriving += data
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._handle_invalid(
                error.__context__ if isinstance(error.__context__, FramingError) else error
            )
        else:
            if len(pieces) > count:
                self._unframed = 0
                self._held += sum(map(len, pieces[count:]))
            if self._unframed > MAX_HEAD and self.state in ("head", "body", "drain"):
                self._handle_invalid(
                    FramingError("the head, the trailers or a chunk's extensions are too long")
                )
        self._update()

    def _update(self) -> None:
        """Wake the reader, pause reading (backpressure) or stop draining, as needed."""
        state = self.state
        if self._waiter is not None and (self.pieces or state != self._awaited):
            self.wake()
        if state == "body":
            if self._held >= self.limit and not self._paused and self.transport is not None:
                self._paused = True
                self.transport.pause_reading()
        elif self._timer is not None:  # the rest of the reply is being discarded
            if state == "done":
                self._timer.cancel()
                self._timer = None
                self._owner.handle_drain(self)
            elif self._held > _DRAIN_BYTES:
                self.close()

    def eof_received(self) -> None:
        if self.state == "body" and self._until_eof and not _is_truncated(self.transport):
            self.state = "done"
            self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.state in ("head", "body", "drain", "upgraded"):
            self.failure = exc or ConnectionResetError("the server closed the connection")
        if self.state != "done":
            self.state = "closed"
        self.is_reusable = False
        # Drop these references to break the reference cycle between connection and parser.
        self._poll = self._parser = self.transport = None
        if self._timer is not None:
            self._timer.cancel()
        self.alarm.cancel()
        self.wake()
        self._owner.handle_loss(self)

    # --- methods that the HTTP parser calls

    def on_message_begin(self) -> None:
        if self.state != "head":
            raise FramingError("bytes follow the reply")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        # llhttp skips empty lines before a head, and accepts only an empty line as its end.
        head, _, rest = self._arriving.lstrip(b"\r\n").partition(b"\r\n\r\n")
        if 100 <= status < 200:
            if status == 101:
                self._upgrade(head, rest)
                return
            self._interim = True
            self._arriving = rest
            return
        if len(head) > MAX_HEAD:
            raise FramingError("the headers of the reply are too long")
        self.head = head
        self._arriving = bytearray()
        fields = read_fields(_FRAMING.findall(head.decode("latin-1")))
        self.encoding = fields.get("content-encoding", "").lower()
        self._until_eof = _ends_at_eof(self._parser.get_http_version(), status, fields)
        self.is_reusable = self.is_reusable and self._parser.should_keep_alive()
        self.status = status
        self._unframed = 0
        self.state = "body"
        if self.without_body:
            self.is_reusable = False
            self.state = "done"

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif self.state != "upgraded":
            self.state = "done"

    # --- framing of replies

    def _begin(self) -> None:
        self.state = "head"
        self.status = 0
        self.head = bytearray()
        self._arriving = bytearray()
        self._unframed = 0
        self._until_eof = False

    def _upgrade(self, head: bytearray, rest: bytearray) -> None:
        if not self.upgrades:
            raise FramingError("the server changes the protocol, which was not asked for")
        self.head = head
        self.is_reusable = False
        self.status = 101
        self.state = "upgraded"
        if rest:
            self.on_upgraded(bytes(rest))

    def _handle_invalid(self, error: BaseException) -> None:
        if self.state == "upgraded":
            return  # the parser stops after such a head
        if self.state in ("done", "closed"):
            # the reply is complete, but more bytes follow it, so the connection cannot be reused
            self.is_reusable = False
        else:
            self.fail(error if isinstance(error, FramingError) else FramingError(str(error)))

    def wake(self) -> None:
        """Resolve the future that ``wait`` returned."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def read_fields(lines: Iterable[str]) -> dict[str, str]:
    """Return header fields by their lower-case names; join repeated fields with a comma."""
    read: dict[str, str] = {}
    for line in lines:
        name, _, text = line.partition(":")
        name = name.lower()
        read[name] = f"{read[name]}, {text.strip()}" if name in read else text.strip()
    return read


def _ends_at_eof(version: str, status: int, fields: Mapping[str, str]) -> bool:
    """Return whether the body ends when the server closes the connection (RFC 9112, section 6.3).

    Raise ``FramingError`` if the head is invalid although llhttp accepts it. ``fields`` are those
    that define the framing.
    """
    if version not in ("1.1", "1.0"):
        raise FramingError(f"the version of HTTP is {version}")
    if status < 100:
        raise FramingError(f"the status is {status}")
    if "transfer-encoding" not in fields:
        return "content-length" not in fields and status not in (204, 304)
    if fields["transfer-encoding"].lower() != "chunked":
        raise FramingError("the transfer coding is not chunked")
    return False


def _is_truncated(transport: asyncio.Transport | None) -> bool:
    """Return whether TLS ended without ``close_notify``, so the body may be truncated."""
    link: ssl.SSLObject | None = (
        transport.get_extra_info("ssl_object") if transport is not None else None
    )
    if link is None:
        return False
    try:
        return bool(link.read(1))
    except ssl.SSLZeroReturnError:
        return False
    except ssl.SSLError:
        return True


def _make_poll(fd: int) -> Callable[[], object]:
    """Return a function that checks whether a socket has unread bytes, has ended or has failed."""
    if fd < 0:
        return lambda: True
    if not hasattr(select, "poll"):  # select.poll does not exist on Windows
        return lambda: select.select([fd], [], [], 0)[0]
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return partial(poll.poll, 0)
