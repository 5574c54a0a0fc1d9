"""The stage that reads a request: its body arrives within limits and is decoded."""

from __future__ import annotations

import asyncio
import re
from asyncio import to_thread
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ..errors import InvalidRequestError, OverloadedError
from ..wire import Asked, ServerCodec
from ..wire.fields import read_body
from ..wire.headers import read_version
from ..wire.policy import decode_portable
from ..wire.rules import NO_BETAS
from ..wire.seal import holds_sealed
from .access import Bounds, Caller, Scope, Service
from .interruption import GoneError, Interruption, Receive
from .request_account import LARGE

T = TypeVar("T")
_LENGTH = re.compile("[0-9]{1,19}")


class Incoming(Interruption):
    """A request that is being received: its body, and its client, which may disconnect."""

    _size = 0  # size of the body, once it is complete
    _held = 0  # how many bytes of the shared memory budget the body has reserved

    def __init__(self, service: Service, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        self._service = service
        self.scope = scope
        self.path: str = scope["path"]

    async def receive_body(
        self, headers: Mapping[str, str], front: ServerCodec, *, is_any: bool = False
    ) -> bytes:
        """Return the body; raise an error if the gateway rejects it or it arrives too late.

        The body must be JSON, unless ``is_any``.
        """
        bounds = self._service.bounds
        _check_head(self._service, headers, front, is_any=is_any)
        self.set_timeout(bounds.body_seconds)
        pieces: list[bytes] = []
        more = True
        try:
            while more:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                piece = message.get("body", b"")
                if self._held + len(piece) > bounds.body_bytes:
                    raise _reject_length(bounds)
                self._service.hold(len(piece))
                self._held += len(piece)
                pieces.append(piece)
                more = message.get("more_body", False)
        except asyncio.CancelledError:
            if not self.undo():
                raise
            raise InvalidRequestError(
                f"no complete body within {bounds.body_seconds:g} seconds", status=408
            ) from None
        finally:
            self.clear_timeout()
        self._size = self._held
        return b"".join(pieces)

    def release_body(self) -> None:
        """Free the memory that the body reserved; a second call has no effect."""
        if self._held:
            self._service.release(self._held)
            self._held = 0

    def close(self) -> None:
        """Free what the request has reserved, and its timer."""
        self.release_body()
        self._alarm.cancel()

    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function, in a thread if the body is large enough to block the event loop."""
        if self._size > LARGE:
            return await to_thread(function, *arguments)
        return function(*arguments)


def _check_head(
    service: Service, headers: Mapping[str, str], front: ServerCodec, *, is_any: bool
) -> None:
    """Raise an error if the gateway is too busy, or the body's type or length is not allowed."""
    if service.draining:
        raise OverloadedError("the gateway is shutting down", retry_after=1)
    if service.metrics.in_flight > service.bounds.in_flight:
        raise OverloadedError("the gateway has too many requests under way", retry_after=1)
    if headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequestError("the body must not have a content-encoding", status=415)
    if not is_any and not _is_json(headers, front):
        raise InvalidRequestError("content-type must be application/json", status=415)
    length = headers.get("content-length", "0")
    # Some ASGI servers do not validate Content-Length, and ``int`` accepts more than HTTP allows.
    if not _LENGTH.fullmatch(length):
        raise InvalidRequestError("content-length must be a number of bytes")
    if int(length) > service.bounds.body_bytes:
        raise _reject_length(service.bounds)


def _reject_length(bounds: Bounds) -> InvalidRequestError:
    return InvalidRequestError(f"the body is longer than {bounds.body_bytes} bytes", status=413)


def _is_json(headers: Mapping[str, str], front: ServerCodec) -> bool:
    """Return whether a body is declared as JSON.

    A web page can send other media types to any address without a preflight request (CSRF), but
    not JSON. Some clients of Ollama (curl -d, litellm) send no media type or that of an HTML form,
    and Ollama accepts their requests. The gateway accepts them on the Ollama wire too, unless the
    headers show that a browser sent the request.
    """
    given = headers.get("content-type", "")
    if given == "application/json":
        return True
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or not front.accepts_forms:
        return kind == "application/json"
    is_page = any(
        name in headers for name in ("origin", "referer", "sec-fetch-site", "sec-fetch-mode")
    )
    return kind in ("", "application/x-www-form-urlencoded") and not is_page


class ReadRequest(Struct, frozen=True):
    """A decoded request, and whether its native fields may be sent to a model of its wire."""

    asked: Asked
    is_native: bool


def parse_body(body: bytes, bounds: Bounds) -> dict[str, Any]:
    """Return the fields of a body."""
    bounds.check_body(body)
    return read_body(body)


def decode_request(
    body: bytes,
    fields: Mapping[str, Any],
    path: str,
    front: ServerCodec,
    service: Service,
    caller: Caller,
) -> ReadRequest:
    """Decode the fields of a body, to which earlier items may have been added."""
    asked = decode_portable(front, dict(front.unwrap(fields, path)), path)
    if (betas := front.read_betas(caller.headers, service.betas, fields)) is not NO_BETAS:
        asked = replace(asked, betas=betas)
    if version := read_version(caller.headers, *front.version_header):
        asked = replace(asked, headers=version)
    service.bounds.check_request(asked.request)
    return ReadRequest(asked, not holds_sealed(body))
