"""The account of a request: what the metrics, the ledger, the access log and the event log get.

Each failed attempt of a call before the last has one ``CallFailed``; the last attempt has one
``CallCompleted`` or ``CallFailed``. Each record has ``inbound``, which describes the client's
request. The tokens and the cost in the ledger are the sums of these records.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import replace

from ..calls import CallNote, CallStarted, GuardJudged, Inbound, RoutingSwitched
from ..errors import CallCancelledError, ProviderError, RateLimitError
from ..events import MessageComplete, Usage
from ..messages import Assistant, LossWarning, Message, Request, new_ulid
from ..middleware.attempts import Attempt, CallEnd, Counted, Spent
from ..middleware.ratelimit import estimate_texts
from ..middleware.spend import expect_cost
from ..prices.results import EXACT
from ..provider import Provider, Reply
from ..wire import Asked
from ..wire.policy import Translated
from .access import Caller, Service
from .call_log import hide_messages
from .keys import Key
from .ledger_writer import CallLease
from .lost_reasoning import LOST
from .sums import KEY_LIMIT
from .usage_book import LostReasoning, UsageBook, UsageRow

access = logging.getLogger("dragoman.access")

# A body with more bytes than this is parsed in a thread, and its tokens are estimated only
# roughly.
LARGE = 256 * 1024
_BYTES_PER_TOKEN = 4
# Agents allow replies of 32,000 tokens and more, and few replies have as many as this.
_MOST_EXPECTED = 4096
_NOBODY = Caller({}, None)
_MAX_WARNINGS = 50  # maximum number of warnings that the access log shows for one request


class ModelCall(ABC):
    """The call of a model for a request, with everything known about it so far."""

    warnings: tuple[LossWarning, ...] = ()

    @abstractmethod
    def make_records(self, account: Account, seconds: float) -> Sequence[Counted]:
        """Return a record for each attempt; if calls are not recorded, what each has spent."""


class Account:
    """What is known of a request until it ends: who asked for what, and what became of it.

    The stages of a request note here what has to be recorded if a later stage fails.
    ``settle_early`` writes the cost of its call to the ledger, and ``close`` writes everything
    else, once.
    """

    span: Any = None  # the request's OpenTelemetry span
    caller = _NOBODY
    size = 0  # size of the request's body in bytes
    request: Request | None = None
    model = ""  # the name by which the client requested a model that it may use
    warnings: tuple[LossWarning, ...] = ()
    lease: CallLease | None = None
    call: ModelCall | None = None
    status = 0  # 0 until the reply begins
    length = 0  # number of bytes sent to the client
    error: ProviderError | None = None
    # whether the client got the reply that caused the error as a complete one
    is_passed_on = False
    user = ""  # the user that the client named, if its key allows this
    tag = ""
    conversation = ""  # the session of the event log that a call of the playground belongs to
    _id: str | None = None
    # The records that the ledger has counted, and the error at that time: the call may still fail
    # while the last bytes of its reply are sent.
    _settled: tuple[Sequence[Counted], ProviderError | None] | None = None

    def __init__(self, service: Service, wire: str) -> None:
        self._service = service
        self.wire = wire
        self.began = time.perf_counter()

    @property
    def id(self) -> str:
        """The id of the request; a request that was not decoded gets one when it is needed."""
        if self._id is None:
            self._id = new_ulid()
        return self._id

    def note_request(self, asked: Asked) -> Asked:
        """Note a decoded request; return it with the id that was already sent, if there is one."""
        if self._id is None:
            self._id = asked.request.request_id
        elif self._id != asked.request.request_id:
            asked = replace(asked, request=replace(asked.request, request_id=self._id))
        self.request = asked.request
        return asked

    async def admit(
        self, model: Any, request: Any, asked: Translated | None = None, *, is_free: bool = False
    ) -> None:
        """Count the call of a model against the limits of its key, user, team and tag.

        A key with a budget reserves the expected cost of ``request``, unless it is free. Raise an
        error if a limit is reached.
        """
        self.caller = self._service.find_limits(self.caller, self.user, self.tag)
        key = self.caller.limited
        if key is not None:
            usd = Decimal(0)
            if key.has_budget and not is_free:
                usd = expect_usd(model, request, self.size)
            self.lease = await self._service.lease(key, model, asked, usd)

    async def admit_passed(self, is_priced: bool, usd: Decimal) -> None:
        """Count a request that is passed on against the same limits; ``usd`` is its expected cost."""
        self.caller = self._service.find_limits(self.caller, self.user, self.tag)
        if self.caller.limited is not None:
            self.lease = await self._service.lease_passed(self.caller.limited, is_priced, usd)

    async def settle_early(self) -> None:
        """Write the cost of the call to the ledger before the end of the reply is sent.

        If the cost were written later, a client could send its next request as soon as the reply
        ends, and another worker would admit that request although the budget is exhausted.
        """
        key = self.caller.limited
        if key is None or not key.has_budget or self._settled is not None:
            return
        records = self._make_records(time.perf_counter() - self.began)
        self._settled = records, self.error
        usage, money = add_up(records)
        lease, self.lease = self.lease, None
        await self._service.ledger.settle_and_wait(lease, key, _count_tokens(usage), money)

    def close(self) -> None:
        """Count the finished request and write its log records."""
        call = self.call
        seconds = time.perf_counter() - self.began
        metrics = self._service.metrics
        metrics.count(self.wire, self.model, self.status)
        metrics.warn(self.wire, self.losses)
        records = self._make_records(seconds)
        provider = records[-1].provider if records else ""
        first = call.first if isinstance(call, ChatCall) else None
        metrics.time(self.model, provider, request=seconds, first_event=first)
        metrics.use(self.model, self.caller.owner, records)
        if records and records[-1].is_complete:
            self._service.models.note_answer(self.model)
        if isinstance(call, ChatCall) and call.reply.history:
            metrics.switch(self.model, find_switches(call.reply))
            metrics.judge(self.model, find_verdicts(call.reply))
        if self.is_recorded or self._service.usage is not None or self.caller.limited is not None:
            self._record(records, seconds)

    @property
    def is_recorded(self) -> bool:
        """Whether the records of the request are written anywhere, not only counted."""
        service = self._service
        return (
            service.calls is not None
            or service.tracing is not None
            or access.isEnabledFor(logging.INFO)
        )

    @property
    def losses(self) -> tuple[LossWarning, ...]:
        """What the translation and the call have lost so far; a stream may lose more later."""
        return self.warnings if self.call is None else self.warnings + self.call.warnings

    def describe(self) -> Inbound:
        """Return the part of a call record that describes the request and its HTTP reply."""
        return Inbound(
            wire=self.wire,
            key=self.caller.owner or None,
            name=self.model or None,
            status=self.status,
            bytes=self.length,
            warnings=tuple(
                [f"{warning.code} {warning.path}" for warning in self.losses[:_MAX_WARNINGS]]
            ),
            error=self._find_category(),
        )

    # --- private methods

    def _find_category(self) -> str | None:
        """Return the category of the error in the reply, or ``key_limit`` for a limit of a key."""
        if self.error is None or self.is_passed_on:
            return None
        is_own = self.call is None and isinstance(self.error, RateLimitError)
        return KEY_LIMIT if is_own else self.error.category

    def _record(self, counted: Sequence[Counted], seconds: float) -> None:
        """Write the records of a request to all logs and ledgers."""
        service = self._service
        records = _list_records(counted)
        call = self.call if isinstance(self.call, ChatCall) else None
        notes = [] if call is None else call.list_notes()
        session = ""
        if service.calls is not None and records:
            messages = () if call is None else call.list_messages()
            start = None
            if call is not None and service.calls.include_content:
                start = call.start(records[0].at)
            session = service.calls.put(records, notes, messages, self.conversation, start)
        usage, money = add_up(counted)
        tokens = _count_tokens(usage)
        if self.caller.limited is not None and (self.lease or tokens):
            self._settle(self.caller.limited, tokens, money)
        if service.tracing is not None and self.span is not None:
            facts = {
                "http.response.status_code": self.status,
                "dragoman.model": self.model or None,
                "dragoman.key": self.caller.owner or None,
                "dragoman.request_id": self.id,
            }
            service.tracing.end(self.span, facts, records)
        # the model is empty if the request was rejected before its model was known
        if service.usage is not None and self.model:
            row = self._make_row(counted, seconds, usage, money, session)
            self._count_usage(service.usage, row)
        if access.isEnabledFor(logging.INFO):
            lines: list[Any] = [*notes, *hide_messages(records)]
            for line in lines or [self._describe_refusal(seconds)]:
                access.info("%s", msgspec.json.encode(line).decode())

    def _count_usage(self, book: UsageBook, row: UsageRow) -> None:
        """Add the request to the statistics, and to those that lost reasoning if it did."""
        book.count(row)
        if any(warning.code == LOST for warning in self.warnings):
            book.note_loss(LostReasoning(row.at, row.key, self.wire, row.model, row.session))

    def _make_row(
        self,
        counted: Sequence[Counted],
        seconds: float,
        usage: Usage,
        money: Decimal,
        session: str,
    ) -> UsageRow:
        is_unpriced = any(
            each.cost_unknown is not None
            or (each.cost_usd is None and (each.input_tokens or each.output_tokens))
            for each in counted
        )
        status = self.status or 499
        error = self.describe().error or ""
        if status == 499 or (counted and not counted[-1].is_complete):
            error = error or CallCancelledError.category  # only the client leaves no error
        return UsageRow(
            at=int((time.time() - seconds) * 1000),
            id=self.id,
            key=self.caller.owner,
            model=self.model,
            status=499 if error and status < 400 else status,
            error=error,
            input=usage.input_tokens or 0,
            output=usage.output_tokens or 0,
            usd=money,
            unpriced=int(is_unpriced),
            latency=round(seconds * 1000),
            session=session,
            user=self.user or self.caller.user,
            team=self.caller.team,
            tag=self.tag,
            vendor=counted[-1].provider if counted else "",
        )

    def _settle(self, key: Key, tokens: int, money: Decimal) -> None:
        """Release the lease, and count the usage that the ledger has not counted yet.

        The usage can change between ``settle_early`` and the end of the request.
        """
        if self._settled is not None:
            usage, paid = add_up(self._settled[0])
            tokens -= _count_tokens(usage)
            money = EXACT.subtract(money, paid)
        self._service.ledger.settle(self.lease, key, tokens, money)

    def _make_records(self, seconds: float) -> Sequence[Counted]:
        """Return one record for each attempt of the call; an empty list if no model was called."""
        if self.call is None:
            return []
        if self._settled is None or self._settled[1] is not self.error:
            return self.call.make_records(self, seconds)
        # Reuse what the ledger has counted: computing the prices again would be slow.
        if not self.is_recorded:
            return self._settled[0]
        records = _list_records(self._settled[0])
        *earlier, last = [replace(each, inbound=self.describe()) for each in records]
        return [*earlier, replace(last, latency_ms=round(seconds * 1000, 3))]

    def _describe_refusal(self, seconds: float) -> dict[str, Any]:
        """Return the access log line of a request that did not call a model."""
        return {
            "type": "gateway.request",
            "at": round(time.time() - seconds, 6),
            "latency_ms": round(seconds * 1000, 3),
            "inbound": self.describe(),
            **({} if self.request is None else {"request_id": self.request.request_id}),
        }


class ChatCall(ModelCall):
    """The call of a chat model: its request, its reply, and the events that have arrived."""

    first: float | None = None  # seconds from the request to the first event
    complete: MessageComplete | None = None

    def __init__(self, provider: Provider, request: Request) -> None:
        self.provider = provider
        self.request = request
        self.reply: Reply = provider.open(request)

    @property
    def warnings(self) -> tuple[LossWarning, ...]:  # type: ignore[override]
        return self.reply.warnings

    def list_notes(self) -> list[CallNote]:
        """Return the switches of the call and the verdicts on it, in order."""
        return [each for each in self.reply.history if isinstance(each, CallNote)]

    def list_messages(self) -> list[Message]:
        """Return the messages of the request and of the reply."""
        messages = [*self.request.messages]
        if self.complete is not None and self.complete.final_content:
            messages.append(Assistant(self.complete.final_content))
        return messages

    def start(self, at: float) -> CallStarted | None:
        """Return the record of the start, with the tools, if the request has tools or a schema."""
        request = self.request
        if not request.tools and request.response_schema is None:
            return None
        return replace(Attempt(self.provider, request, at=at).start(), definitions=request.tools)

    def make_records(self, account: Account, seconds: float) -> Sequence[Counted]:
        attempt = Attempt(self.provider, self.request, at=round(time.time() - seconds, 6))
        attempt.reply = self.reply
        attempt.answer = self.complete
        attempt.began = 0.0
        attempt.first = self.first
        attempt.ended = seconds
        attempt.usage = self._find_usage(account)
        attempt.error = account.error
        if self.complete is None:
            attempt.error = attempt.error or CallCancelledError("the client hung up", advice="")
        elif account.is_passed_on:
            attempt.error = None
            if self.complete.finish_reason == "error":
                attempt.answer = replace(self.complete, finish_reason="tool_calls")
        if not account.is_recorded:
            counted: list[Counted] = [*self.reply.failed]
            if not attempt.is_ended:
                counted.append(attempt.spend())
            return counted
        inbound = account.describe()
        failed: list[CallEnd] = [replace(each, inbound=inbound) for each in self.reply.failed]
        return failed if attempt.is_ended else [*failed, attempt.end(inbound=inbound)]

    def _find_usage(self, account: Account) -> Usage:
        """Return the reply's token usage, or an estimate if the provider did not report it."""
        usage = self.reply.usage
        request = self.request
        is_known = usage.input_tokens is not None and usage.output_tokens is not None
        if is_known or self.first is None:
            return usage
        asked = usage.input_tokens
        # for long requests assume four bytes per token, since a better estimate takes seconds
        if asked is None and account.size > LARGE:
            asked = account.size // _BYTES_PER_TOKEN
        elif asked is None:
            asked = self.provider.estimate_input_tokens(request.messages, request.tools)
        written = max(usage.output_tokens or 0, account.length // 100)
        return replace(
            usage, input_tokens=asked, output_tokens=written, total_tokens=None, estimated=True
        )


def expect_usd(model: Any, request: Any, size: int) -> Decimal:
    """Return the expected cost of a request with ``size`` bytes; 0 if a price is not known."""
    if not isinstance(request, Request):
        tokens = size // _BYTES_PER_TOKEN if size > LARGE else estimate_texts(request)
        found = expect_cost(model, request, tokens, 0)
        return found if isinstance(found, Decimal) else Decimal(0)
    tokens = size // _BYTES_PER_TOKEN
    if size <= LARGE:
        tokens = model.estimate_input_tokens(request.messages, request.tools)
    longest = request.config.max_tokens or _MOST_EXPECTED
    found = expect_cost(model, request, tokens, min(longest, _MOST_EXPECTED))
    return found if isinstance(found, Decimal) else Decimal(0)


def find_switches(reply: Reply) -> list[RoutingSwitched]:
    """Return the switches from one model to another that a call has made so far, in order."""
    return [each for each in reply.history if isinstance(each, RoutingSwitched)]


def find_verdicts(reply: Reply) -> list[GuardJudged]:
    """Return the verdicts of the judges of a guard so far, in order."""
    return [each for each in reply.history if isinstance(each, GuardJudged)]


def add_up(records: Sequence[Counted]) -> tuple[Usage, Decimal]:
    """Return the total token usage and the total cost of some call records."""
    money = Decimal(0)
    for record in records:
        money = EXACT.add(money, record.cost_usd or Decimal(0))
    asked = sum([record.input_tokens or 0 for record in records])
    return Usage(asked, sum([record.output_tokens or 0 for record in records])), money


def _list_records(counted: Sequence[Counted]) -> list[CallEnd]:
    return [each for each in counted if not isinstance(each, Spent)]


def _count_tokens(usage: Usage) -> int:
    return (usage.input_tokens or 0) + (usage.output_tokens or 0)
