"""Identify the caller of a request by its key, and keep the limits of the gateway and of keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

from msgspec import Struct, field
from msgspec.structs import replace
from starlette.routing import BaseRoute

from ..errors import (
    AuthenticationError,
    BillingError,
    InvalidModelError,
    InvalidRequestError,
    OverloadedError,
    QuotaExceededError,
    UnsupportedContentError,
)
from ..messages import Request, Url
from ..middleware.layer import walk
from ..middleware.translation import ResolvedModel
from ..provider import Model
from ..registry import Registry
from ..transport.connect import is_loopback
from ..wire import ServerCodec
from ..wire.policy import Translated
from ..wire.terms import list_asked
from .background import Background
from .call_log import CallLog
from .keys import Key, KeyRing
from .keystore import KeyStore
from .ledger import KeyBudget
from .ledger_writer import CallLease, LedgerWriter
from .lost_reasoning import ReasoningWatch
from .metrics import Metrics
from .models import Models
from .operations import Operation
from .people import People, Person
from .recent_responses import RecentResponses
from .store import ResponseStore
from .tracing import Tracing
from .usage_book import UsageBook
from .webhooks import WebhookSender
from .worker_metrics import MetricsFolder

if TYPE_CHECKING:
    from .login import LogIn  # its library is an extra
    from .tokens import Tokens

Scope = MutableMapping[str, Any]

# Headers for authentication and framing. A request that repeats one of them is rejected, since a
# proxy in front may use the other value (request smuggling).
_SINGLE = frozenset(
    ["authorization", "x-api-key", "x-goog-api-key", "content-length", "content-type", "host"]
)
# seconds by which a lease outlasts the reply timeout, so that the end of the call can be recorded
_SPARE = 60.0
RECENT_BYTES = 256 * 1024 * 1024


class Bounds(Struct, frozen=True):
    """The limits for the clients of a gateway process: bytes, seconds, requests, connections.

    Only ``dragoman serve`` enforces ``head_bytes`` and the fields after it; other ASGI servers
    have limits of their own.
    """

    body_bytes: int = 8 * 1024 * 1024
    body_seconds: float = 30.0
    # maximum total size of the bodies that are being received or decoded
    bodies_bytes: int = 256 * 1024 * 1024
    reply_seconds: float = 900.0
    in_flight: int = 10_000
    head_bytes: int = 64 * 1024
    head_seconds: float = 15.0
    headers: int = 100
    trailer_bytes: int = 8 * 1024
    pipelined: int = 8  # maximum number of requests queued on one connection
    # timeout for a slow reader: every 64 KiB of a reply must be read within this many seconds
    write_seconds: float = 20.0
    connections: int = 4096
    connections_per_peer: int = 2048
    containers: int = 500_000  # maximum number of objects and lists in the JSON of one body
    messages: int = 10_000
    blocks: int = 20_000  # maximum number of content blocks in all messages together
    tools: int = 1_000
    # whether images and documents may be URLs that the upstream server fetches
    media_urls: bool = True

    def check_body(self, body: bytes) -> None:
        """Reject a body whose number of JSON objects and lists makes parsing too expensive."""
        if len(body) > self.containers and body.count(b"{") + body.count(b"[") > self.containers:
            raise InvalidRequestError(
                f"the body has more than {self.containers} objects and lists", status=413
            )

    def check_request(self, request: Request) -> None:
        """Reject a request with too many messages, blocks or tools, or forbidden media URLs."""
        blocks = sum(
            [len(each.content) for each in request.messages if not isinstance(each.content, str)]
        )
        if len(request.messages) > self.messages:
            raise _too_many(self.messages, "messages")
        if len(request.tools) > self.tools:
            raise _too_many(self.tools, "tools")
        if blocks > self.blocks:
            raise _too_many(self.blocks, "blocks")
        if not self.media_urls:
            self._check_media(request)

    def _check_media(self, request: Request) -> None:
        for at, message in enumerate(request.messages):
            blocks = () if isinstance(message.content, str) else message.content
            for index, block in enumerate(blocks):
                source = getattr(block, "source", None)
                if isinstance(source, Url) and source.url[:5].lower() != "data:":
                    path = f"messages[{at}].content[{index}]"
                    raise UnsupportedContentError(
                        f"{path}: this gateway accepts media inline, not as a URL"
                    )


def _too_many(limit: int, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"the request has more than {limit} {what}", status=413)


def read_headers(scope: Scope) -> dict[str, str]:
    """Return the headers by lower-case name, with the values of a repeated header joined.

    Reject a request that repeats a critical header.
    """
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    headers = dict(pairs)
    if len(headers) < len(pairs):
        for name in headers:
            values = [value for other, value in pairs if other == name]
            if len(values) > 1 and name in _SINGLE:
                raise InvalidRequestError(f"the header {name} is there twice")
            headers[name] = ", ".join(values)
    return headers


class Caller(Struct, frozen=True):
    """Who sent a request: its headers by lower-case name, and its key if the gateway has keys."""

    headers: Mapping[str, str]
    key: Key | None
    limited: Key | None = None
    """The same key, if it has limits."""

    @property
    def owner(self) -> str:
        """The id of the key, to which stored responses belong; empty without a key."""
        return "" if self.key is None else self.key.id

    @property
    def user(self) -> str:
        """The user to whom the key belongs; empty if there is none."""
        return "" if self.key is None else self.key.user or ""

    @property
    def team(self) -> str:
        """The team to which the key belongs; empty if there is none."""
        return "" if self.key is None else self.key.team or ""

    @property
    def drops(self) -> bool:
        """Whether fields that would be lost are dropped instead of rejecting the request."""
        return self.key is not None and self.key.on_loss == "drop"

    @property
    def refuses_losses(self) -> bool:
        """Whether a request is rejected if a part of it would be lost."""
        return self.key is not None and self.key.on_loss == "reject"

    def may_use(self, name: str) -> bool:
        """Return whether the key allows a model of this name; without keys, all are allowed."""
        return self.key is None or self.key.allows(name)

    def check_model(self, name: str) -> None:
        """Raise ``InvalidModelError`` if the key may not use a model.

        Unknown names have the same message, so that clients cannot find out which models exist.
        """
        if self.key is not None and not self.key.allows(name):
            raise InvalidModelError("no model of this name is served here")


def resolve_model(models: Models, caller: Caller, name: str) -> ResolvedModel:
    """Return the model of this name; raise ``InvalidModelError`` if the caller may not use it."""
    caller.check_model(name)
    served = models.resolve(name)
    provider = models.guard(models.add_cache(models.find(served), served), served, caller.key)
    return ResolvedModel(served, provider, models.find_upstream(served))


class SessionService(Protocol):
    """A service of sessions, which a gateway serves only if it is given one.

    A gateway runs no tools. ``dragoman.service.Sessions`` is such a service.
    """

    operations: Sequence[Operation]

    def routes(self, service: Service, /) -> Sequence[BaseRoute]:
        """Return the routes of the service, for a gateway in this state."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run the service until the end of the block."""
        ...

    async def read_page(self, person: Person | None, query: Mapping[str, str], /) -> Any:
        """Return the queue of questions for the web page."""
        ...

    async def answer_page(self, person: Person | None, body: bytes, /) -> Any:
        """Record an answer that was given on the web page."""
        ...


class Service(Struct, kw_only=True, eq=False):
    """The state that all routes share: the models, the keys and the counters."""

    models: Models
    keys: KeyRing | None
    ledger: LedgerWriter
    # false if several workers run without a shared ledger, which cannot count a key's limits
    counts: bool
    bounds: Bounds
    calls: CallLog | None
    metrics: Metrics = field(default_factory=Metrics)
    # the folder of metrics files, set only if there are several workers
    gathering: MetricsFolder | None = None
    draining: bool = False
    # true after SIGTERM: /ready then fails, so that load balancers stop sending requests, but
    # requests are still served
    leaving: bool = False
    drain_delay: float = 0.0
    # a function that opens the configured models again
    reload: Callable[[], Models] | None = None
    config: Path | None = None  # the file with the models; they are reloaded when it changes
    config_stamp: tuple[int, int, int] | None = None  # of the file when it was read
    open_ready: bool  # whether /ready can be requested without a key
    # opens the separate port for /ready; closed after the last reply of a drain
    side_port: Callable[[], AbstractAsyncContextManager[None]] | None = None
    held_bytes: int = 0  # size of all bodies that are being received or decoded
    store: ResponseStore | None
    # what clients can continue on the connection of a WebSocket
    recent: RecentResponses = field(default_factory=lambda: RecentResponses(RECENT_BYTES))
    reasoning: ReasoningWatch = field(default_factory=ReasoningWatch)
    background: Background | None
    usage: UsageBook | None
    tokens: Tokens | None = None  # callers with tokens of identity providers
    people: People | None  # who may open the pages with data
    login: LogIn | None = None  # people who log in to the pages at an identity provider
    # opens the models of a vendor whose key is stored on the page; only ``dragoman ui`` sets it
    registry: Registry | None = None
    tracing: Tracing | None
    sessions: SessionService | None = None
    webhooks: WebhookSender
    live: set[Any] = field(default_factory=set)  # the requests in progress
    # origins of web pages that may call the gateway from a browser
    origins: frozenset[str]
    url_keys: bool | None
    # patterns of the betas that are sent on to models of the client's wire
    betas: Sequence[str]
    check_host: bool  # whether a gateway without keys rejects web pages and other machines

    def _find_key(
        self, scope: Scope, headers: Mapping[str, str], front: ServerCodec
    ) -> str | None:
        """Return the key that a client presents.

        Clients of the Gemini wire may send the key in the URL, but only from this machine or if
        the operator allows it, because proxies write URLs to their logs.
        """
        found = front.key(headers)
        if found is not None or not front.has_url_keys or self.url_keys is False:
            return found
        client = scope.get("client")
        if self.url_keys is None and (client is None or not is_loopback(client[0])):
            return None
        values = parse_qs(bytes(scope.get("query_string", b"")).decode("latin-1")).get("key", [])
        return values[0] if len(values) == 1 else None

    def identify(self, scope: Scope, headers: Mapping[str, str], front: ServerCodec) -> Caller:
        """Return the caller of a request; raise ``AuthenticationError`` if access is denied."""
        if self.keys is not None or self.tokens is not None:
            presented = self._find_key(scope, headers, front)
            key = None if self.keys is None else self.keys.find(presented)
            if key is None and self.tokens is not None:
                key = self.tokens.find(presented)
                self.check_user(key)
            if key is None:
                raise AuthenticationError(f"the key is missing or unknown{front.key_advice}")
            return self.find_limits(Caller(headers, key))
        self.check_origin(headers)
        return Caller(headers, None)

    def check_user(self, key: Key | None) -> None:
        """Raise ``AuthenticationError`` if the access of a key's user was withdrawn."""
        source = None if self.keys is None else self.keys.source
        withdrawn = source.withdrawn if isinstance(source, KeyStore) else ()
        if key is not None and key.user in withdrawn:
            raise AuthenticationError("the access of this user was withdrawn", status=403)

    def find_limits(self, caller: Caller, user: str = "", tag: str = "") -> Caller:
        """Return a caller with the limits of a request, which may name a user and a tag."""
        key = caller.key
        if key is None:
            return caller
        if self.keys is not None:
            key = self.keys.apply_budgets(key, user, tag)
        limited = key if key.is_limited else None
        return caller if limited is caller.limited else replace(caller, limited=limited)

    async def prepare(self, scope: Scope) -> None:
        """Read the keys that the token of a request needs; see ``Tokens``."""
        if self.tokens is None:
            return
        for name, value in scope["headers"]:
            if name in (b"authorization", b"x-api-key", b"x-goog-api-key"):
                await self.tokens.prepare(value.decode("latin-1").rpartition(" ")[2])

    def find_person(self, headers: Mapping[str, str]) -> Person | None:
        """Return the person whose key a request has, if the gateway knows any."""
        return None if self.people is None else self.people.find(headers)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Raise ``AuthenticationError`` if a web page or another machine sent the request."""
        # Protect against CSRF and DNS rebinding: a gateway without keys serves local programs, not
        # web pages. A web page can make its host name resolve to the gateway's address and post
        # requests from scripts, but those requests have the page's host name in Host or Origin.
        if self.check_host and not _is_local(headers.get("host", "")):
            raise AuthenticationError(
                "this gateway has no keys and answers to its loopback address only", status=403
            )
        if headers.get("origin") in self.origins:
            return
        if (
            self.check_host
            and "origin" in headers
            and not _is_local(_ORIGIN.sub("", headers["origin"], count=1))
        ):
            raise AuthenticationError(
                "this gateway has no keys and answers to no web page", status=403
            )

    async def check_readiness(self) -> tuple[str, Mapping[str, str]]:
        """Return the state of the gateway, and the problems by model name.

        The state is ``ready``, ``degraded`` if some models have problems, ``not ready`` if all
        have, or ``draining``. A load balancer keeps a gateway that is degraded: every gateway has
        the same models, so an outage of one vendor would stop all of them.
        """
        if self.draining or self.leaving:
            return "draining", {}
        problems = await self.models.problems()
        if problems is None:
            return "not ready", {}
        if not problems:
            return "ready", problems
        return "degraded" if len(problems) < self.models.checked else "not ready", problems

    def gather_metrics(self) -> Metrics:
        """Return the counters of all workers."""
        return self.metrics if self.gathering is None else self.gathering.gather()

    async def read_budgets(self, only: Key | None = None) -> list[KeyBudget]:
        """Return what is left of all budgets, or of those that limit one key."""
        ring = KeyRing() if self.keys is None else self.keys
        if only is None:
            return await self.ledger.read_budgets(ring.list_budgets())
        return await self.ledger.read_budgets(ring.apply_budgets(only).limits)

    async def find_exhausted(self, keys: Sequence[Key]) -> dict[str, list[str]]:
        """Return the names of the budgets of which nothing is left, by the id of each key."""
        if self.keys is None:
            return {}
        limits = {key.id: self.keys.apply_budgets(key).limits for key in keys}
        wanted = {each.name: each for budgets in limits.values() for each in budgets}
        found = await self.ledger.read_budgets([*wanted.values()]) if wanted else []
        over = {f"{each.account}:{each.period}" for each in found if each.left <= 0}
        return {
            key: [each.name for each in budgets if each.name in over]
            for key, budgets in limits.items()
        }

    def can_count(self, key: Key) -> bool:
        """Return whether a key's limits are counted across all workers.

        Return true for a key without limits.
        """
        has_rates = key.has_rates and self.ledger.limits is None
        return self.counts or not (key.has_budget or has_rates)

    def _check_counted(self, key: Key) -> None:
        # the operator may have added limits that workers without a shared ledger cannot count
        if not self.can_count(key):
            raise QuotaExceededError(
                "this key has limits, and the gateway's workers have no shared ledger to count "
                "them in"
            )

    async def lease(
        self, key: Key, model: Model, asked: Translated | None = None, usd: Decimal = Decimal(0)
    ) -> CallLease | None:
        """Count a call against its key's limits; raise an error if a limit is reached.

        The request ``asked`` of a chat model may ask for terms of sale with a price of their own.
        ``usd`` is the expected cost, which is reserved until the call ends.
        """
        self._check_counted(key)
        if key.has_budget and model.priced_as.find_problem() is not None:
            # clients retry after a used-up quota, and a missing price does not come by waiting
            raise BillingError(
                "this model has no known price, so this key's budget cannot be kept; "
                "the operator can set priced_as in models.yaml",
                advice="",
            )
        if key.has_budget and asked is not None and (terms := list_asked(asked.request)):
            _check_terms(model, terms)
        return await self.ledger.admit(key, self.bounds.reply_seconds + _SPARE, usd)

    async def lease_passed(self, key: Key, is_priced: bool, usd: Decimal) -> CallLease | None:
        """Count a request that is passed on against its key's limits, as ``lease`` does."""
        self._check_counted(key)
        if key.has_budget and not is_priced:
            raise BillingError(
                "no price is stated for this API, so this key's budget cannot be kept; the operator "
                "can set usd_per_request or usage_path in models.yaml",
                advice="",
            )
        return await self.ledger.admit(key, self.bounds.reply_seconds + _SPARE, usd)

    def hold(self, size: int) -> None:
        """Reserve memory for a body, or reject the body; ``release`` frees the memory."""
        if self.held_bytes + size > max(self.bounds.bodies_bytes, self.bounds.body_bytes):
            raise OverloadedError(
                "the gateway is receiving too many large requests", retry_after=1
            )
        self.held_bytes += size

    def release(self, size: int) -> None:
        """Free memory that ``hold`` reserved."""
        self.held_bytes -= size


def _check_terms(model: Model, terms: tuple[str, ...]) -> None:
    """Raise ``BillingError`` if the price of a service tier that a request names is unknown."""
    for part in walk(model):
        problem = part.priced_as.find_problem(terms) if len([*walk(part)]) == 1 else None
        if problem is not None:
            raise BillingError(
                f"this key's budget cannot be kept: {problem}; leave the tier out, or the operator "
                "can add its price to the price table",
                advice="",
            )


_ORIGIN = re.compile("^https?://")
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9.-]{1,253}))(?::[0-9]{0,5})?")


def _is_local(authority: str) -> bool:
    """Return whether a ``host[:port]`` is a loopback address."""
    found = _AUTHORITY.fullmatch(authority)
    return found is not None and is_loopback(found[1] or found[2])
