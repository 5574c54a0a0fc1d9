"""Retry failed calls. Only this module repeats a call with the same model and the same key."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from msgspec.structs import replace

from ..errors import CallCancelledError, InvalidRequestError, ProviderError, StructuredOutputError
from ..events import Event, MessageComplete, fold
from ..messages import Assistant, Message, Request, RuntimeConfig, User
from ..provider import LayerCall
from ..provider.call_log import ATTEMPT
from ..provider.model import Kind, OfKind
from ..validate import parse_config, to_instance
from ..validate.fields import accept_other_names
from .attempts import Attempt
from .layer import RETRY_REASON, Middleware, Wrapper, check_number, notify, walk

log = logging.getLogger("dragoman")

MAX_RETRIES = 100
MAX_RETRY_AFTER = 60.0
MAX_BACKOFF = 30.0
MAX_SECONDS = 1e9  # the maximum of all time settings: longer than any call, and safe for timers


class Retry(Wrapper[Kind], Middleware[Kind]):
    """Retry a call after a transient failure, at most ``max_retries`` times.

    A call is retried if the error is ``transient``; a function ``classifier(error)`` can decide
    otherwise. The delay is 1 s, doubled for each further retry, with a random deviation of 25 %,
    and at most 30 s; ``backoff(attempt_index)`` replaces it. If the error has ``retry_after``
    (from a Retry-After header), that delay is used, or the error is raised at once if it exceeds
    60 s. A call is not retried if the delay would end more than ``deadline`` seconds after its
    start.

    If all attempts fail, ``retry_count`` of the raised error is the number of retries.

    After the first event was delivered to the caller, a call is not retried. With ``reask`` or
    ``classifier``, ``complete()`` holds the events back until the attempt has ended, so that an
    invalid reply can be retried. ``stream()`` delivers events at once and raises the error.

    ``reask(error)`` returns a text that asks the model to correct a reply. It is called if a call
    fails with ``StructuredOutputError``, even if the reply satisfies the schema and violates only
    the type's own validators. The retry sends the conversation, the model's answer and that text.
    ``per_attempt_override`` lists settings for the first retry, the second, and so on; the last
    entry applies to all further retries. ``on_retry(error, attempt_index, wait)`` is called before
    each retry; an exception that it raises does not end the call.
    """

    @accept_other_names(
        {"retries": "max_retries"},
        {"max_attempts": "write max_retries=, which does not count the first attempt"},
    )
    def __init__(
        self,
        provider: OfKind[Kind],
        max_retries: int = 2,
        backoff: Callable[[int], float] | None = None,
        classifier: Callable[[ProviderError], bool] | None = None,
        on_retry: Callable[[ProviderError, int, float], object] | None = None,
        per_attempt_override: Sequence[RuntimeConfig | Mapping[str, Any]] | None = None,
        reask: Callable[[StructuredOutputError], str] | None = None,
        deadline: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(provider)
        if any(isinstance(layer, Retry) for layer in walk(self.inner)):
            raise ValueError("Retry: remove the inner Retry; the attempts of two would multiply")
        check_number("Retry", "max_retries", max_retries, most=MAX_RETRIES, whole=True)
        if deadline is not None:
            check_number("Retry", "deadline", deadline, least=0.001, most=MAX_SECONDS)
        _check_functions(backoff=backoff, classifier=classifier, on_retry=on_retry, reask=reask)
        self._overrides = _read_overrides(per_attempt_override)
        if self.operation != "chat" and (reask is not None or self._overrides):
            raise ValueError("Retry: reask and per_attempt_override are settings of chats")
        given = classifier is not None or reask is not None
        self._may_hold = given and self.operation == "chat"
        self._max_retries = max_retries
        self._backoff = backoff
        self._classifier = classifier
        self._on_retry = on_retry
        self._reask = reask
        self._deadline = deadline
        self._clock = clock
        self._sleep = sleep
        self._random = random

    def settings(self) -> Mapping[str, Any]:
        given = {
            "max_retries": self._max_retries,
            "backoff": self._backoff,
            "classifier": self._classifier,
            "on_retry": self._on_retry,
            "per_attempt_override": len(self._overrides) or None,
            "reask": self._reask,
            "deadline": self._deadline,
        }
        return {name: value for name, value in given.items() if value is not None}

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        call = _RetriedCall(request, self._clock())
        hold = (
            self._may_hold
            and not request.stream
            and (self._classifier is not None or request.response_schema is not None)
        )
        while True:
            visible = False
            failure: ProviderError | None = None
            wait: float | None = None
            served.attempt = call.attempt
            asked = self._make_request(call)
            attempt = Attempt(self.inner, asked)
            if call.attempt:
                served.record(None, attempt.start())
            served.reply = attempt.reply = reply = self.inner.open(asked)
            served.held = []
            try:
                async with aclosing(reply):
                    while batch := await reply.next():
                        if hold:
                            attempt.hear(batch)
                            served.held += batch
                        else:
                            visible = True
                            yield batch
                    _check_type(served.held, asked)
            except ProviderError as error:
                failure = error
                error.retry_count = call.attempt
                wait = None if visible else self._decide(error, call.attempt, call.began)
            if failure is None or wait is None:
                if held := served.held:
                    served.held = []
                    yield held
                if failure is None:
                    return
                raise failure
            served.record(reply, attempt.fail(failure, wait))
            served.reply = None  # its usage is in the history, even if the wait is cancelled
            await self._prepare(failure, call, wait)

    # --- private methods of the retry middleware

    def _make_request(self, call: _RetriedCall) -> Any:
        """Return the request for the current attempt, with the attempt's number and settings."""
        request = call.request
        metadata = {**request.metadata, ATTEMPT: str(call.attempt)}
        if call.reason is not None:
            metadata[RETRY_REASON] = call.reason
        if self.operation != "chat":
            return replace(request, metadata=metadata)
        config = request.config
        if call.attempt and self._overrides:
            config = _merge(config, self._overrides[min(call.attempt, len(self._overrides)) - 1])
        return replace(request, messages=call.messages, config=config, metadata=metadata)

    def _decide(self, error: ProviderError, attempt: int, began: float) -> float | None:
        """Return the delay before the next attempt; ``None`` if the call must not be retried."""
        if not self._may_help(error):
            return None
        if attempt >= self._max_retries:
            if attempt:
                error.add_note(f"gave up after {attempt + 1} attempts")
            return None
        wait = self._wait(error, attempt)
        if wait is None:
            error.add_note(
                f"not tried again: the provider asks for a wait of {error.retry_after:g} s"
            )
            return None
        if self._deadline is not None and self._clock() - began + wait > self._deadline:
            error.add_note(f"not tried again: the deadline of {self._deadline:g} s would pass")
            return None
        return wait

    def _may_help(self, error: ProviderError) -> bool:
        if isinstance(error, CallCancelledError):
            return False
        if self._asks_again(error):
            return True
        return bool(self._classifier(error)) if self._classifier is not None else error.transient

    def _asks_again(self, error: ProviderError) -> bool:
        """Return whether the model is asked to correct a reply that caused this error."""
        return self._reask is not None and isinstance(error, StructuredOutputError)

    def _wait(self, error: ProviderError, attempt: int) -> float | None:
        asked = error.retry_after
        if asked is not None and not math.isnan(asked):
            return max(0.0, asked) if asked <= MAX_RETRY_AFTER else None
        if self._asks_again(error):
            return 0.0  # do not wait, since the server works and only the reply was invalid
        if self._backoff is not None:
            wait = self._backoff(attempt)
            check_number("Retry", f"backoff({attempt})", wait, most=MAX_SECONDS)
            return float(wait)
        jitter = 0.75 + 0.5 * self._random()
        return min(MAX_BACKOFF, min(MAX_BACKOFF, 2.0**attempt) * jitter)

    async def _prepare(self, error: ProviderError, call: _RetriedCall, wait: float) -> None:
        """Prepare the next attempt, call ``on_retry``, and wait for the delay."""
        if self._asks_again(error):
            call.ask_again(error, self._reask)
        else:
            call.reason = "transient"
        log.info(
            "%s/%s %s: attempt %d failed (%s); the next in %.2f s",
            self.name,
            self.model,
            call.request.request_id,
            call.attempt + 1,
            error.error_class,
            wait,
        )
        notify("on_retry", self._on_retry, error, call.attempt, wait)
        call.attempt += 1
        if wait > 0:
            await self._sleep(wait)


class _RetriedCall:
    """The state of a call between attempts.

    Changes are made to this object, so that the caller's request stays unchanged.
    """

    def __init__(self, request: Any, began: float) -> None:
        self.request = request
        self.began = began
        self.attempt = 0
        self.messages: Sequence[Message] = getattr(request, "messages", ())
        self.reason: Literal["transient", "reask"] | None = None

    def ask_again(self, error: Any, build: Any) -> None:
        """Append the model's answer and a text that asks for a correction to the conversation."""
        text = build(error)
        if not isinstance(text, str) or not text:
            raise ValueError(f"Retry: reask must return the text to send, not {text!r}") from error
        added: tuple[Message, ...] = (User(text),)
        if error.output_content:
            # Do not send an empty answer back: every server rejects empty assistant messages.
            added = (Assistant(error.output_content), *added)
        self.messages = (*self.messages, *added)
        self.reason = "reask"


def _check_type(events: list[Event], request: Request) -> None:
    """Raise ``StructuredOutputError`` if a complete reply does not match its response type."""
    if events and request.response_type is not None and type(events[-1]) is MessageComplete:
        to_instance(fold([events[0], events[-1]]), request)


def _merge(base: RuntimeConfig, over: RuntimeConfig) -> RuntimeConfig:
    """Return the settings ``base``, overridden by the settings ``over``.

    A field or an extra that is ``None`` in ``over`` keeps its value from ``base``.
    """
    names = [name for name in RuntimeConfig.__struct_fields__ if name != "extras"]
    changes = {name: value for name in names if (value := getattr(over, name)) is not None}
    extras = {name: value for name, value in over.extras.items() if value is not None}
    return replace(base, **changes, extras={**base.extras, **extras})


def _read_overrides(overrides: Any) -> tuple[RuntimeConfig, ...]:
    if overrides is None:
        return ()
    if isinstance(overrides, str | Mapping | RuntimeConfig) or not isinstance(overrides, Sequence):
        raise ValueError(
            "Retry: per_attempt_override must be a list of settings, one a retry, not "
            f"{type(overrides).__name__}"
        )
    read = []
    for at, each in enumerate(overrides):
        try:
            read.append(parse_config(each))
        except InvalidRequestError as error:
            raise ValueError(f"Retry: per_attempt_override[{at}]: {error.message}") from None
    return tuple(read)


def _check_functions(**functions: Any) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise ValueError(f"Retry: {name} must be a function, not {function!r}")
        if inspect.iscoroutinefunction(function):
            raise ValueError(f"Retry: {name} must be a plain function, not a coroutine function")
