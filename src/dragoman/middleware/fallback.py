"""Fallback and load balancing: try several providers in order, and report every switch."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from msgspec.structs import replace

from ..calls import ProviderRecovered, ProviderUnavailable, RoutingChosen, RoutingSwitched
from ..capabilities import UNKNOWN, Capabilities, Fact
from ..errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidModelError,
    ProviderError,
    QuotaExceededError,
    UnavailableError,
    UnsupportedContentError,
    UnsupportedFeatureError,
)
from ..events import Event, MessageComplete
from ..messages import Message, Request
from ..prices import PricedAs
from ..provider import LayerCall, Messages, Model, Provider, Reply
from ..provider.model import Kind, OfKind
from ..validate import find_refusal
from ..validate.quality import judge_calls
from ..wire import SwapPlan
from .attempts import Attempt, is_ended
from .availability import Admission, Availability
from .layer import Wrapper, notify, walk
from .strategy import HALF_LIFE, MIN_SAMPLE, SPARE, StrategyName, has_tools, make_strategy

log = logging.getLogger("dragoman")

# Errors that are not transient, but that may not occur with another candidate.
_CANDIDATE_ERRORS = (
    AuthenticationError,
    ContextOverflowError,
    InvalidModelError,
    QuotaExceededError,
    UnsupportedContentError,
    UnsupportedFeatureError,
)


RoutingEvent: TypeAlias = RoutingSwitched | ProviderUnavailable | ProviderRecovered


class NotConfigured(Provider):
    """A candidate whose API key, or whose entry in ``models.yaml``, is missing."""

    def __init__(self, name: str, model: str, detail: str) -> None:
        self.name = name
        self.model = model
        self.detail = detail

    def events(self, request: Request) -> AsyncIterator[Event]:
        raise self.error(request.request_id)

    async def ready(self) -> None:
        raise self.error(None)

    def error(self, request_id: str | None) -> AuthenticationError:
        """Return the error that every call to this candidate raises."""
        return AuthenticationError(
            f"not configured: {self.detail}",
            provider=self.name,
            model=self.model,
            request_id=request_id,
        )


class Fallback(Wrapper[Kind]):
    """Call the first candidate that can serve the request; switch only before the first event.

    ``strategy`` is the order in which candidates are tried: ``"fallback"`` (as given),
    ``"weighted"``, ``"least_busy"``, ``"lowest_latency"``, ``"cheapest"`` or
    ``"most_reliable"``; see ``dragoman.middleware.strategy``. ``weights`` applies to
    ``"weighted"`` and ``"least_busy"``, and 0 makes a candidate a spare, which is tried after all
    others with any strategy; ``half_life``, in seconds, applies to
    ``"lowest_latency"``, and ``min_sample``, a number of calls, to ``"most_reliable"``.

    A candidate is skipped if it is not configured, if the circuit breaker (``Availability``)
    considers it unavailable, or if it is known to lack a feature that the request uses. The next
    candidate is called if a candidate fails with a transient error, or because of its credentials,
    its quota, an unknown model, an unsupported feature or its context length. Other errors are
    raised at once, because an invalid request is invalid for every candidate.

    The candidates are providers, or embedders or rerankers that serve the same model, since
    vectors and scores of different models cannot be compared.

    ``on_event`` is called for every switch. It is also called for every change of availability,
    unless ``availability`` is given, which has its own ``on_event``. If all candidates fail, the
    last error is raised, and the other errors are its notes.
    """

    def __init__(
        self,
        candidates: Sequence[OfKind[Kind]],
        availability: Availability | None = None,
        on_event: Callable[[RoutingEvent], object] | None = None,
        *,
        name: str = "fallback",
        strategy: StrategyName = "fallback",
        weights: Sequence[float] | None = None,
        half_life: float = HALF_LIFE,
        min_sample: int = MIN_SAMPLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._candidates = _check_candidates(candidates)
        self.strategy = make_strategy(
            strategy, len(self._candidates), weights, clock=clock, half_life=half_life,
            min_sample=min_sample,
        )  # fmt: skip
        self._clock = clock
        self._missing = {each: _find_missing(each) for each in self._candidates}
        self.availability = availability or Availability(on_event, clock=clock)
        self._on_event = on_event
        self.name = name
        self.model = self._candidates[0].model
        self.operation = self._candidates[0].operation
        sizes = [getattr(each, "batch_size", None) for each in self._candidates]
        self.batch_size = min([size for size in sizes if size is not None], default=None)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """The limits that every candidate keeps: the smallest ones, with the candidate's name.

        A limit on output is unknown if one candidate's is. Features are not listed, because the
        first candidate that has them serves the request.
        """
        known = [(each.capabilities, _target(each)) for each in self._candidates]
        window = _find_least(known, "max_context_tokens")
        is_limited = all(each.known("max_output_tokens") is not None for each, _ in known)
        output = _find_least(known, "max_output_tokens") if is_limited else UNKNOWN
        return Capabilities(max_context_tokens=window, max_output_tokens=output)

    @property
    def searches_tools(self) -> bool:  # type: ignore[override]
        """Whether every candidate searches deferred tools."""
        return all(getattr(each, "searches_tools", False) for each in self._candidates)

    def check(self, request: Any) -> None:
        if request.operation != "chat" or self.operation != "chat":
            super().check(request)  # a chat is checked for each candidate when its turn comes

    def parts(self) -> tuple[Model, ...]:
        return self._candidates

    def settings(self) -> Mapping[str, Any]:
        shown = self.strategy.settings() if self.strategy.name != "fallback" else {}
        return {"name": self.name, **shown}

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        passed: list[tuple[Provider, str, ProviderError]] = []
        await self.availability.refresh()
        order = self._order(request)
        for number in order:
            candidate = self._candidates[number]
            served.reply = None  # the history has the usage of the previous candidate
            asked = replace(request, model=candidate.model) if candidate.model else request
            if passed:
                served.record(None, self._switch(passed[-1], candidate, request))
            refusal, admission = self._admit(candidate, asked)
            if refusal is None and admission is not None:
                attempt = Attempt(candidate, asked)
                if is_ended(served.history):
                    served.record(None, attempt.start())
                if self.strategy.name != "fallback":
                    why = self._explain(number, asked)
                    chosen = RoutingChosen(_target(candidate), why, request.request_id)
                    served.record(None, chosen)
                call = _Dispatched(self, number, asked, candidate.open(asked))
                served.reply = attempt.reply = call.reply
                try:
                    async with aclosing(call.reply):
                        while batch := await call.reply.next():
                            call.answer(batch)
                            yield batch
                    admission.succeed()
                    served.record(call.reply, *admission.changes)
                    return
                except ProviderError as error:
                    call.error = error
                    admission.fail(error)
                    if call.answered or not _is_worth_another(error):
                        _add_notes(error, passed)
                        served.record(call.reply, *admission.changes)
                        raise
                    call.failed = True
                    refusal = _error_name(error), error
                    # the failure of the last candidate is not recorded here, since it becomes the
                    # call's error
                    is_last = number == order[-1]
                    failed = () if is_last else (attempt.fail(error),)
                    served.record(call.reply, *failed, *admission.changes)
                finally:
                    admission.release()
                    call.end()
            assert refusal is not None
            passed.append((candidate, *refusal))
        candidate, _, last = passed.pop()
        if is_ended(served.history):  # the last candidate was skipped; its error ends the call
            asked = replace(request, model=candidate.model)
            served.record(None, Attempt(candidate, asked).start())
        _add_notes(last, passed)
        raise last

    def _switch(
        self, passed: tuple[Provider, str, ProviderError], candidate: Provider, request: Any
    ) -> RoutingSwitched:
        """Report that a call goes on with the next candidate, and return the event."""
        before, reason, failure = passed
        switch = RoutingSwitched(
            from_=_target(before),
            to=_target(candidate),
            reason=reason,
            error_class=failure.error_class,
            request_id=request.request_id,
        )
        log.info("%s", switch)
        notify("on_event", self._on_event, switch)
        return switch

    async def ready(self) -> None:
        """Check that at least one candidate is ready.

        If none is ready, raise the error of the last candidate, with the other errors as notes.
        """
        passed: list[tuple[Any, str, ProviderError]] = []
        for candidate in self._candidates:
            try:
                await candidate.ready()
                return
            except ProviderError as error:
                passed.append((candidate, _error_name(error), error))
        _, _, last = passed.pop()
        _add_notes(last, passed)
        raise last

    async def close(self) -> None:
        """Close every candidate, even if closing one fails; then raise the first error."""
        failures: list[Exception] = []
        for candidate in self._candidates:
            try:
                await candidate.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def estimate_input_tokens(
        self, messages: Messages, tools: Any = None, system_prompt: str | None = None
    ) -> int:
        return self._candidates[0].estimate_input_tokens(messages, tools, system_prompt)

    def compaction(self, tokens: int | None) -> dict[str, Any] | None:
        """Return the extras that compact a conversation, if every candidate has the same ones."""
        found = [candidate.compaction(tokens) for candidate in self._candidates]
        return found[0] if all(each == found[0] for each in found) else None

    def compacted_at(self, messages: Sequence[Message]) -> int:
        """Return the index of the last message with a compaction that every candidate can read."""
        return min(candidate.compacted_at(messages) for candidate in self._candidates)

    def plan(self, messages: Messages) -> SwapPlan:
        """Return the swap plan for the first candidate that accepts the conversation.

        If there is none, return the plan for the first candidate.
        """
        plans = [candidate.plan(messages) for candidate in self._candidates]
        accepted = [plan for plan in plans if plan.refused is None and plan.fits is not False]
        return next(iter(accepted), plans[0])

    # --- choosing a candidate to call

    def _order(self, request: Request) -> list[int]:
        """Return the indices of all candidates in the order in which they are tried.

        Unavailable candidates are included, so that skipping them is recorded.
        """
        eligible = [
            number
            for number, each in enumerate(self._candidates)
            if self._missing[each] is None
            and self.availability.reopens_in(each.name, each.model) == 0
        ]
        spares = self.strategy.spares
        balanced = [number for number in eligible if number not in spares]
        order = self.strategy.order(self._candidates, balanced, request)
        order += [number for number in eligible if number in spares]
        order += [number for number in range(len(self._candidates)) if number not in order]
        if self.strategy.name == "fallback":
            return sorted(order, key=lambda number: (number in spares, number))
        return order

    def _explain(self, number: int, request: Request) -> str:
        if number in self.strategy.spares:
            return SPARE
        return self.strategy.explain(number, request)

    def _find_seller(self) -> PricedAs:
        """Return the price of the group.

        If one candidate has no known price, the price of the group is unknown, since any candidate
        may answer.
        """
        sold = [candidate.priced_as for candidate in self._candidates]
        return next((each for each in sold if each.find_problem() is not None), sold[0])

    def _admit(
        self, candidate: Provider, request: Request
    ) -> tuple[tuple[str, ProviderError] | None, Admission | None]:
        """Return why to skip a candidate, or the circuit breaker's permission to call it."""
        missing = self._missing[candidate]
        if missing is not None:
            return ("not_configured", missing.error(request.request_id)), None
        admission = self.availability.admit(candidate.name, candidate.model)
        refusal: tuple[str, ProviderError] | None = None
        if admission is None:
            wait = self.availability.reopens_in(candidate.name, candidate.model)
            trigger = self.availability.trigger(candidate.name, candidate.model)
            error = UnavailableError(
                f"not asked for now, after {trigger}", retry_after=wait or None
            )
            refusal = "provider_unavailable", error
        elif self.operation == "chat":
            refusal = _find_unsupported(candidate, request)
            if refusal is not None:
                admission.release()
        if refusal is not None:
            refusal[1].attribute(candidate.name, candidate.model, request.request_id)
        return refusal, admission


class _Dispatched:
    """A call in flight to a candidate.

    This object reports the start, the first event and the end of the call to the strategy, and
    which of the reply's tool calls are faulty.
    """

    __slots__ = (
        "_began", "_last", "_number", "_owner", "_request", "answered", "error", "failed", "reply",
    )  # fmt: skip

    def __init__(self, owner: Fallback, number: int, request: Any, reply: Reply) -> None:
        self._owner = owner
        self._number = number
        self._request = request
        self._last: Any = None
        self._began = owner._clock()
        self.error: ProviderError | None = None
        self.reply = reply
        self.answered = False
        self.failed = False
        owner.strategy.began(number)

    def answer(self, batch: Sequence[Event]) -> None:
        """Report the first event of the call to the strategy; keep the last event."""
        self._last = batch[-1]
        if not self.answered:
            self.answered = True
            self._owner.strategy.answered(self._number, self._owner._clock() - self._began)

    def end(self) -> None:
        """Report the end of the call to the strategy."""
        seconds = self._owner._clock() - self._began
        strategy = self._owner.strategy
        strategy.ended(self._number, seconds, failed=self.failed)
        if strategy.name == "most_reliable" and has_tools(self._request):
            last = self._last if isinstance(self._last, MessageComplete) else None
            strategy.judged(self._number, judge_calls(self._request, last, self.error))


def _check_candidates(candidates: Any) -> tuple[Provider, ...]:
    if isinstance(candidates, Model):
        raise ValueError("Fallback: candidates must be a list of providers, not one provider")
    given: tuple[Any, ...] = tuple(candidates)
    if not given:
        raise ValueError("Fallback: candidates is empty; give at least one provider")
    seen: set[str] = set()
    for at, candidate in enumerate(given):
        place = f"Fallback: candidates[{at}]"
        if not isinstance(candidate, Model):
            raise ValueError(f"{place} must be a Provider, not {type(candidate).__name__}")
        first = given[0]
        if candidate.operation != first.operation:
            raise ValueError(f"{place} does not {first.operation}")
        if candidate.operation != "chat" and candidate.model != first.model:
            raise ValueError(
                f"{place} is {candidate.model!r} and candidates[0] {first.model!r}; vectors and "
                "scores of different models cannot be compared"
            )
        if _target(candidate) in seen:
            raise ValueError(
                f"{place} is {_target(candidate)}, which is in the list before it; give two "
                "servers of one model different names with connect(name=...)"
            )
        seen.add(_target(candidate))
    return given


def _find_missing(candidate: Model) -> NotConfigured | None:
    return next((layer for layer in walk(candidate) if isinstance(layer, NotConfigured)), None)


def _target(provider: Model) -> str:
    return f"{provider.name}:{provider.model}"


def _find_unsupported(candidate: Provider, request: Request) -> tuple[str, ProviderError] | None:
    """Return a reason code and an error if the candidate is known not to support the request.

    Otherwise return ``None``.
    """
    if any(isinstance(layer, Fallback) for layer in walk(candidate)):
        return None  # a group checks its own candidates
    known = candidate.capabilities
    estimate = None
    if known.known("max_context_tokens") is not None:
        estimate = candidate.estimate_input_tokens(request.messages, request.tools)
    refusal = find_refusal(request, known, estimate)
    if refusal is None and request.stream and known.known("supports_streaming") is False:
        return "unsupported_feature", UnsupportedFeatureError("this model is known not to stream")
    return refusal


def _find_least(known: Sequence[tuple[Capabilities, str]], name: str) -> Fact:
    """Return the smallest known value of a limit; ``by`` names the candidate that has it."""
    facts = [replace(getattr(each, name), by=target) for each, target in known]
    found = [fact for fact in facts if fact.value is not None]
    return min(found, key=lambda fact: fact.value) if found else UNKNOWN


def _is_worth_another(error: ProviderError) -> bool:
    return error.transient or isinstance(error, _CANDIDATE_ERRORS)


def _error_name(error: ProviderError) -> str:
    """Return the kind of an error; if the kind is unknown, return the error class."""
    return error.kind if error.kind != "unknown" else error.error_class


def _add_notes(error: ProviderError, passed: Sequence[tuple[Any, str, ProviderError]]) -> None:
    for candidate, reason, earlier in passed:
        error.add_note(f"before that, {_target(candidate)}: {reason}: {earlier}")
