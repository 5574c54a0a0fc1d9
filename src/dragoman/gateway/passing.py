"""Pass requests on to APIs that have no wire here: ``/pass/NAME/...``.

The caller, the limits, the bill and the records are those of every other request. The API, its
methods and its paths come from ``models.yaml``, so that a client can reach nothing else. The
client's key stays here, the API's key is never returned, and a redirect is an error.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from starlette.datastructures import Headers

from ..errors import (
    AuthenticationError,
    InvalidRequestError,
    InvalidResponseError,
    ProviderError,
    RateLimitError,
    UnavailableError,
)
from ..middleware.attempts import Counted, PassedOn, make_end
from ..prices.results import EXACT
from ..registry.passing import PREFIX, PassThrough
from ..transport import HttpStream
from .access import Caller, Scope, Service
from .exchange import handle, identify
from .interruption import Receive
from .keys import hash_key
from .models import Models
from .open_pass import PATH, OpenPass
from .pass_usage import KeyMask, UnitReader
from .reading import Incoming
from .request_account import Account, ModelCall
from .unknown_paths import find_codec
from .writing import ReplyWriter, Send

# Other headers of the reply stay here: cookies, redirects, and those about the connection.
_RETURNED = (
    "cache-control", "content-disposition", "content-type", "etag", "last-modified", "retry-after",
)  # fmt: skip
_SEGMENT = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+")
# Servers decode these to a slash, a backslash, a dot, a percent sign or a control character, and
# may then read another path than the one that was checked.
_HIDDEN = re.compile(rb"%(?:2[ef5]|5c|[01][0-9a-f]|7f)", re.IGNORECASE)
_CLIMB = re.compile(rb"\.{1,2}(?:;.*)?")
_FOREIGN = ("cross-site", "same-site")


class PassHandler:
    """Handle the requests below ``/pass``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # The codec writes errors, in the form that the client's SDK expects.
        front = find_codec(PATH, Headers(scope=scope))
        return handle(self._service, front, scope, receive, send, self._answer)

    async def _answer(
        self, incoming: Incoming, writer: ReplyWriter, account: Account, models: Models
    ) -> None:
        """Identify the caller, check the request, and pass it on; note each step in ``account``."""
        service = self._service
        scope = incoming.scope
        account.wire = "pass"
        front = find_codec(PATH, Headers(scope=scope))
        presumed = scope["path"].removeprefix(PATH).partition("/")[0]
        key_scope = _move_key(scope, models.find_pass(presumed))
        caller = identify(service, front, key_scope, account)
        name, path = _split_path(scope)
        target = models.find_pass(name)
        _check_page(service, caller)
        _check_query(scope, caller)
        body = await incoming.receive_body(caller.headers, front, is_any=True)
        account.size = len(body)
        if target is None or not caller.may_use(PREFIX + name):
            raise InvalidRequestError(f"nothing is passed on at {PATH}{name} here", status=404)
        account.model = PREFIX + name
        query = bytes(scope.get("query_string", b""))
        request = target.make_request(scope["method"], path, query, caller.headers, body)
        key = target.find_key()
        caller = account.caller = service.find_limits(caller, tag=account.tag)
        settings = target.settings
        await account.admit_passed(settings.is_priced, settings.usd_per_request or Decimal(0))
        call = account.call = PassCall(settings, request.method, path)
        incoming.watch(service.bounds.reply_seconds)
        try:
            call.is_sent = True
            async with target.send(request, key) as reply:
                await _write(call, reply, KeyMask([key or ""]), account, writer)
        except asyncio.CancelledError:
            raise incoming.explain() from None
        finally:
            incoming.stop()
            incoming.release_body()


class PassCall(ModelCall):
    """A request that is passed on, and what is known of its reply."""

    is_sent = False
    status = 0  # of the API's reply; 0 until it begins
    is_complete = False
    units: Decimal | None = None

    def __init__(self, settings: PassThrough, method: str, path: str) -> None:
        self._settings = settings
        self._about = {"method": method, "path": path}

    @property
    def usage_path(self) -> str | None:
        """The path of the number of units in the reply."""
        return self._settings.usage_path

    def make_records(self, account: Account, seconds: float) -> Sequence[Counted]:
        settings = self._settings
        facts: dict[str, Any] = {
            "provider": "pass",
            "model": settings.name,
            "server": urlsplit(settings.base_url).netloc,
            "request_id": account.id,
            "at": round(time.time() - seconds, 6),
            "operation": "pass",
            "settings": self._about,
            "latency_ms": round(seconds * 1000, 3),
            "inbound": account.describe(),
            **self._find_cost(),
        }
        error: BaseException | None = account.error
        if error is None and not self.is_complete:
            error = asyncio.CancelledError()
        answer = PassedOn() if self.is_complete else None
        return [make_end(facts, answer, error)]

    def _find_cost(self) -> dict[str, Any]:
        """Return the cost as fields of a record.

        The API may bill a request whose reply the client did not wait for, but not one that it
        rejected.
        """
        settings = self._settings
        if not self.is_sent or self.status >= 400:
            return {}
        if not settings.is_priced:
            return {"cost_unknown": "models.yaml states no price"}
        cost = settings.usd_per_request
        if settings.usd_per_unit is None:
            return {"cost_usd": cost}
        if self.units is None:
            return {"cost_usd": cost, "cost_unknown": f"the reply has no {settings.usage_path}"}
        units = EXACT.multiply(settings.usd_per_unit, self.units)
        return {"cost_usd": EXACT.add(cost or Decimal(0), units)}


async def _write(
    call: PassCall, reply: HttpStream, mask: KeyMask, account: Account, writer: ReplyWriter
) -> None:
    """Write a reply as it arrives; settle its cost before its end."""
    call.status = reply.status
    if 300 <= reply.status < 400:
        raise InvalidResponseError(
            f"the server redirects with status {reply.status}, and a redirect is not followed"
        )
    headers = {
        name: mask.hide(value)
        for name, value in reply.headers.items()
        if name in _RETURNED or "ratelimit" in name
    }
    units = UnitReader(call.usage_path, headers.get("content-type", ""))
    await writer.begin(reply.status, headers)
    while data := await reply.receive():
        units.feed(data)
        if shown := mask.feed(data):
            await writer.write(shown)
    units.end()
    call.units = units.units
    call.is_complete = reply.status < 400
    if not call.is_complete:
        account.error = _name_failure(reply.status)
    await account.settle_early()
    await writer.end(mask.end())


def _name_failure(status: int) -> ProviderError:
    """Return the error that records have of a reply with an error status."""
    message = f"the server replied with status {status}"
    if status == 429:
        return RateLimitError(message, status=status)
    if status >= 500:
        return UnavailableError(message, status=status)
    return InvalidRequestError(message, status=status)


def _split_path(scope: Scope) -> tuple[str, str]:
    """Return the name and the path of a request, undecoded; raise an error if it is ambiguous."""
    raw = bytes(scope.get("raw_path") or scope["path"].encode())
    name, slash, rest = raw.removeprefix(PATH.encode()).partition(b"/")
    segments = [name, *(rest.split(b"/") if slash else [])]
    for at, segment in enumerate(segments):
        is_last = at == len(segments) - 1
        if not segment and is_last and at:
            continue  # a path may end with a slash
        if (
            not _SEGMENT.fullmatch(segment)
            or _HIDDEN.search(segment)
            or _CLIMB.fullmatch(unquote_to_bytes(segment))
            or not _is_text(unquote_to_bytes(segment))
        ):
            raise InvalidRequestError(
                "the path has an empty or relative segment, or an encoded character that servers "
                "read in different ways"
            )
    return name.decode("ascii"), (slash + rest).decode("ascii")


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:  # such as an overlong form of a slash
        return False


def _move_key(scope: Scope, target: OpenPass | None) -> Scope:
    """Return a request whose key is a bearer token, if it is in the header of the API's key.

    Clients of the API send their key, which is the gateway's, in the header that they know.
    """
    if target is None or target.settings.key_header == "authorization":
        return scope
    own = target.settings.key_header.encode()
    names = [name for name, _ in scope["headers"]]
    if own not in names or b"authorization" in names:
        return scope
    if names.count(own) > 1:
        raise InvalidRequestError(f"the header {own.decode()} is there twice")
    moved = [
        (b"authorization", b"Bearer " + value) if name == own else (name, value)
        for name, value in scope["headers"]
    ]
    return {**scope, "headers": moved}


def _check_query(scope: Scope, caller: Caller) -> None:
    """Raise an error if the URL, which is passed on, has the client's key."""
    if caller.key is None:
        return
    pairs = parse_qsl(bytes(scope.get("query_string", b"")).decode("latin-1"))
    if {hash_key(value) for _, value in pairs} & {caller.key.hash, caller.key.old_hash}:
        raise InvalidRequestError("the URL has the key of the gateway; send it in a header")


def _check_page(service: Service, caller: Caller) -> None:
    """Raise an error if a web page caused a request to a gateway without keys.

    A page can send a GET request without an Origin, such as for an image.
    """
    headers: Mapping[str, str] = caller.headers
    is_foreign = headers.get("sec-fetch-site") in _FOREIGN
    if caller.key is None and is_foreign and headers.get("origin") not in service.origins:
        raise AuthenticationError(
            "this gateway has no keys and answers to no web page", status=403
        )
