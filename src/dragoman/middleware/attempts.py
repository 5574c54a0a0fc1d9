"""The one builder of call records.

An ``Attempt`` opens with the call, learns how the call goes, and makes the record of its start and
of its end. The middleware, the gateway, sessions, and the commands ``ask`` and ``chat`` all use
it, so that a call has the same fields in every record. ``tests/test_call_records.py`` checks that
no other module makes these records.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from ..calls import (
    IS_WORKER,
    STOP_REASONS,
    TURN,
    CallCompleted,
    CallFailed,
    CallRecord,
    CallStarted,
    find_stop_reason,
    price_usage,
    read_headers,
    redact,
)
from ..errors import MAX_MESSAGE, CallCancelledError, ErrorClass, ProviderError
from ..events import Event, MessageComplete, Response, Usage
from ..messages import Request, Thinking, ToolCall
from ..prices import Cost, PricedAs, Unpriced
from ..prices.billing import STATED
from ..provider import Model, Reply
from ..provider.call_log import ATTEMPT
from ..retrieval import Embeddings, EmbedRequest, Ranking, RerankRequest
from ..validate.quality import judge_calls
from .layer import RETRY_REASON, find_served, walk_served

log = logging.getLogger("dragoman")

CallEnd: TypeAlias = CallCompleted | CallFailed
Price: TypeAlias = Callable[[Usage, str], Any]


class PassedOn(Struct, frozen=True):
    """The answer to a request that a gateway passed on, which nothing here reads."""

    model: str | None = None


Answer: TypeAlias = MessageComplete | Response[Any] | Embeddings | Ranking

_DIFFER: set[str] = set()  # the models whose stated cost differs from the table: warn once
_ANSWERS = frozenset({MessageComplete, Embeddings, Ranking})
# the caller has cancelled the call, or closed its stream
_CANCELLATIONS = (asyncio.CancelledError, GeneratorExit, CallCancelledError)


class Spent(Struct, frozen=True):
    """What an attempt has used and cost, under the names of its record's fields."""

    provider: str
    is_complete: bool
    input_tokens: int | None
    output_tokens: int | None
    cached_input_tokens: int | None
    cache_creation_input_tokens: int | None
    cost_usd: Decimal | None
    cost_unknown: str | None
    tool_outcomes: Mapping[str, int]


Counted: TypeAlias = CallEnd | Spent


class Attempt:
    """One attempt to call a model, from its start to its end.

    Set ``reply`` as soon as there is one: it knows the usage, the headers, the model that serves
    the call, and the attempts before this one. Pass the events to ``hear``, or set ``answer`` to
    the complete answer. ``usage`` replaces the usage that the answer or the reply reports.
    ``stop`` notes when and how the attempt ended. The records are built from what is known when
    ``start`` and ``end`` are called, which may be later and in another thread.

    The cost is computed with ``price(usage, "provider:model")``, or by default with ``priced_as``
    of the provider that served the call. Records contain the messages and the reply only with
    ``include_content``.
    """

    __slots__ = (
        "_clock", "_include_content", "_price", "_request", "answer", "at", "began", "ended",
        "error", "first", "model", "reply", "usage",
    )  # fmt: skip

    def __init__(
        self,
        model: Model,
        request: Request | EmbedRequest | RerankRequest,
        *,
        price: Price | None = None,
        include_content: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        at: float | None = None,
    ) -> None:
        self.model = model
        self._request = request
        self._price = price
        self._include_content = include_content
        self._clock = clock
        self.reply: Reply | None = None
        self.answer: Answer | None = None
        self.usage: Usage | None = None
        self.error: BaseException | str | None = None
        self.at = time.time() if at is None else at
        self.began = clock()
        self.first: float | None = None
        self.ended: float | None = None

    # --- learning how the call goes

    def hear(self, events: Sequence[Event | Embeddings | Ranking]) -> None:
        """Note when the first events arrive, and keep the last one if it completes the answer."""
        if self.first is None:
            self.first = self._clock()
        if type(last := events[-1]) in _ANSWERS:
            self.answer = cast("Answer", last)

    def stop(self, error: BaseException | str | None = None) -> None:
        """Note that the attempt ends now, and why it failed, if it did.

        The error is an exception, or a description of the problem. A ``CancelledError`` or a
        ``GeneratorExit`` means that the caller cancelled the attempt.
        """
        self.ended = self._clock()
        self.error = error
        # Read the answered part of a failed request now: later, the enclosing call adds the usage
        # of its other requests to the error.
        partial = getattr(error, "response", None)
        if self.answer is None and isinstance(partial, Response | Embeddings | Ranking):
            self.answer = partial

    # --- making the records

    def start(self, estimate: int | None = None) -> CallStarted:
        """Return the record of the start; ``estimate`` is the number of input tokens.

        A group has not chosen a candidate yet, so the record has the models of all of them.
        """
        request = self._request
        model = self.model
        asked = request.model or model.model
        if asked == model.model:
            asked = "|".join(dict.fromkeys(each.model for each in walk_served(model))) or asked
        return CallStarted(
            estimated_input_tokens=estimate,
            is_worker=request.metadata.get(IS_WORKER) == "true",
            response_schema=getattr(request, "response_schema", None),
            tool_choice=getattr(request, "tool_choice", None),
            **self._describe(model.name, asked),
        )

    def end(self, **facts: Any) -> CallEnd:
        """Return the record of the end.

        ``facts`` are further fields; they take precedence over what the attempt has learned.
        """
        known: dict[str, Any] = {"latency_ms": self._since_start(self.ended)}
        if isinstance(self._request, Request):
            known["first_event_ms"] = self._since_start(self.first)
        known |= {**self._describe(*self.find_served()), **self.bill(), **_read_reply(self.reply)}
        known |= self._judge()
        return make_end(known | facts, self.answer, self.error, content=self._include_content)

    def spend(self) -> Spent:
        """Return what is counted if nothing is recorded; a record takes four times as long."""
        usage = self._find_usage()
        bill = None if usage == Usage() or usage.from_cache else self._find_cost(usage)[0]
        cost = None if bill is None else bill.total
        if usage.from_cache:
            cost = Decimal(0)
        return Spent(
            self.find_served()[0],
            _is_complete(self.answer, self.error),
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_input_tokens,
            usage.cache_creation_input_tokens,
            cost,
            bill.reason if isinstance(bill, Unpriced) else None,
            self._judge().get("tool_outcomes", {}),
        )

    def fail(self, error: ProviderError, wait: float | None = None) -> CallFailed:
        """Stop with an error, and return its record; ``wait`` is the pause before a retry."""
        self.stop(error)
        record = self.end(wait_seconds=wait)
        assert isinstance(record, CallFailed)
        return record

    @property
    def is_ended(self) -> bool:
        """Whether the history of the call has its end.

        A call that is cancelled in the pause after a failed attempt has ended with that failure.
        """
        history = self.reply.history if self.reply is not None else ()
        return bool(history) and is_ended(history)

    def finish(self) -> list[CallRecord | CallEnd]:
        """Return the records of the earlier attempts and of the end."""
        history = self.reply.history if self.reply is not None else ()
        return [*history] if self.is_ended else [*history, self.end()]

    def bill(self) -> dict[str, Any]:
        """Return the record fields for the usage so far and its cost."""
        usage = self._find_usage()
        if usage == Usage():
            return {}
        bill = price_usage(usage, *self._find_cost(usage))
        if usage.from_cache:  # it costs nothing, even if the price of the model is unknown
            bill |= {"cost_usd": Decimal(0), "cost_unknown": None}
        return bill

    def _find_cost(self, usage: Usage) -> tuple[Cost | Unpriced | None, str]:
        """Return the cost, if it can be computed, and the name under which the model is priced."""
        name, model = self.find_served()
        sold_as = find_served(self.model, name, model).priced_as
        if self._price is None:
            bill = _try(sold_as.cost, usage)
        else:
            bill = _try(self._price, usage, f"{name}:{model}")
        stated = usage.stated_cost_usd
        computed = bill
        if bill and bill.pricing_version == STATED:
            # The bill is the stated cost; compare it with its row, if that has a price.
            own = None if bill.row.unpriced else PricedAs(sold_as.model, bill.row)
            computed = None if own is None else _try(own.cost, usage)
        if not computed or stated is None or stated == computed.total:
            return bill, sold_as.model
        if sold_as.model not in _DIFFER:
            _DIFFER.add(sold_as.model)
            log.warning(
                "%s: the provider states a cost of $%f, and the price table gives $%f",
                sold_as.model, stated, computed.total,
            )  # fmt: skip
        return bill, sold_as.model

    def find_served(self) -> tuple[str, str]:
        """Return the names of the provider and the model that serve the call."""
        inner = self.model
        reply = self.reply
        if reply is None:
            return inner.name, self._request.model or inner.model
        return reply.provider or inner.name, reply.model or inner.model

    def _judge(self) -> dict[str, Any]:
        """Return the record field for the tool calls of the reply, if it has any."""
        request = self._request
        answer = self.answer
        error = self.error
        if not isinstance(request, Request) or not request.tools:
            return {}
        chat = answer if isinstance(answer, MessageComplete | Response) else None
        found = judge_calls(request, chat, error if isinstance(error, BaseException) else None)
        return {"tool_outcomes": found} if found else {}

    def _find_usage(self) -> Usage:
        if self.usage is not None:
            return self.usage
        reported = self.reply.usage if self.reply is not None else Usage()
        if self.answer is None:
            return reported
        # A reply that was cancelled after its end estimates the counts that it does not report.
        used = self.answer.usage
        return reported if used.output_tokens is None and reported.estimated else used

    def _since_start(self, moment: float | None) -> float | None:
        return None if moment is None else round((moment - self.began) * 1000, 3)

    def _describe(self, provider: str, model: str) -> dict[str, Any]:
        """Return the fields that both records of the attempt have."""
        request = self._request
        facts: dict[str, Any] = {
            "provider": provider,
            "model": model,
            "server": find_served(self.model, provider, model).server,
            "request_id": request.request_id,
            "at": self.at,
            "attempt": _read_number(request),
            "retry_reason": request.metadata.get(RETRY_REASON),
            "session_id": request.session_id,
            "turn_id": request.metadata.get(TURN),
        }
        if isinstance(request, Request):
            facts["stream"] = request.stream
            # omit the provider-specific extras, which may contain a key
            facts["config"] = replace(request.config, extras={})
            if self._include_content:
                facts["request"] = request
            return facts
        return facts | _describe_retrieval(request, content=self._include_content)


def is_ended(history: Sequence[CallRecord]) -> bool:
    """Return whether the last attempt in the history of a call has failed, and none followed."""
    calls = [each for each in history if isinstance(each, CallStarted | CallFailed)]
    return bool(calls) and isinstance(calls[-1], CallFailed)


def make_end(
    facts: dict[str, Any],
    answer: Answer | PassedOn | None,
    error: BaseException | str | None = None,
    *,
    content: bool = False,
) -> CallEnd:
    """Return the record of an attempt's end.

    It is a ``CallCompleted`` if there is no error and the answer is complete. ``facts`` are the
    other fields of the record, to which these are added.
    """
    reason = answer.finish_reason if isinstance(answer, MessageComplete | Response) else None
    model = answer.model if answer is not None else None
    if reason == "cancelled" and error is None:
        error = asyncio.CancelledError()
    if answer is not None and _is_complete(answer, error):
        facts |= _describe_answer(answer, content=content)
        return CallCompleted(finish_reason=reason, response_model=model, **facts)
    if isinstance(error, _CANCELLATIONS):
        # no model has answered
        reason = "cancelled"
        model = None
    facts |= _describe_failure(error, reason)
    facts["retry_count"] = facts.get("attempt", 0)
    return CallFailed(finish_reason=reason, response_model=model, **facts)


def _is_complete(answer: Answer | PassedOn | None, error: BaseException | str | None) -> bool:
    if answer is None or error is not None:
        return False
    if isinstance(answer, Embeddings | Ranking | PassedOn):
        return True
    return answer.finish_reason in STOP_REASONS


def _describe_answer(answer: Answer | PassedOn, *, content: bool) -> dict[str, Any]:
    if isinstance(answer, MessageComplete):
        blocks = answer.final_content
    elif isinstance(answer, Response):
        blocks = answer.message.content
    elif isinstance(answer, PassedOn):
        return {"stop_reason": "end_turn"}
    else:
        found: dict[str, Any] = {"stop_reason": "end_turn", "response_id": answer.response_id}
        if isinstance(answer, Embeddings):
            return found | {"dimensions": answer.dimensions}
        return found | {"result_count": len(answer.results)}
    kinds = [type(block) for block in blocks]
    return {
        "stop_reason": find_stop_reason(answer.finish_reason, answer.stop_sequence),
        "produced_tool_calls": kinds.count(ToolCall),
        "produced_thinking_blocks": kinds.count(Thinking),
        "content": tuple(blocks) if content else None,
    }


def _describe_failure(error: BaseException | str | None, reason: str | None) -> dict[str, Any]:
    """Return the fields for an error or, without one, for a reply that was not completed."""
    word: ErrorClass = "other"
    found: dict[str, Any] = {}
    if isinstance(error, ProviderError):
        word = error.error_class
        message = str(error)
        found = {"category": error.category, "status": error.status}
        found |= read_headers(error.headers) if error.headers else {}
    elif isinstance(error, _CANCELLATIONS):
        word = "cancelled"
        message = "the call was cancelled"
        found = {"category": "cancelled"}
    elif error is None:
        message = f"the reply ended with finish_reason {reason or 'error'!r}"
    else:
        message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return {
        "error_class": word, "error_message_redacted": redact(message[:MAX_MESSAGE]), **found
    }  # fmt: skip


def _describe_retrieval(request: EmbedRequest | RerankRequest, *, content: bool) -> dict[str, Any]:
    given: dict[str, Any]
    if isinstance(request, EmbedRequest):
        given = {"input_type": request.input_type, "dimensions": request.dimensions}
        facts: dict[str, Any] = {"operation": "embed", "input_count": len(request.texts)}
        texts: dict[str, Any] = {"texts": tuple(request.texts)}
    else:
        given = {"return_documents": request.return_documents}
        facts = {"operation": "rerank", "document_count": len(request.documents)}
        facts["top_k"] = request.top_k
        texts = {"query": request.query, "documents": tuple(request.documents)}
    facts["settings"] = {name: value for name, value in given.items() if value is not None}
    return facts | texts if content else facts


def _read_reply(reply: Reply | None) -> dict[str, Any]:
    """Return the fields that a reply knows: its headers, and the number of its last attempt."""
    if reply is None:
        return {}
    found = read_headers(reply.headers)
    for record in reversed(reply.history):
        if isinstance(record, CallStarted):
            return found | {"attempt": record.attempt, "retry_reason": record.retry_reason}
    return found


def _read_number(request: Request | EmbedRequest | RerankRequest) -> int:
    """Return the attempt's number, which ``Retry`` stores in the request's metadata."""
    number = str(request.metadata.get(ATTEMPT, "0"))
    return int(number) if number.isdecimal() else 0


def _try(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, or ``None`` if it raises.

    A record must not be lost because computing a price fails.
    """
    try:
        return function(*arguments)
    except Exception:
        name = getattr(function, "__name__", "it")
        log.warning("%s failed while a call was recorded", name, exc_info=True)
        return None
