"""The context of a running call: its idempotency key, its session, and its dependencies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec

from ..log import InvalidRecordError, ToolProgress
from ..log.payloads import encode_payload
from ..messages import new_ulid

Deps = TypeVar("Deps")
MAX_PROGRESS = 10_000
"""The maximum size of a progress report as JSON, in bytes."""


class ToolContext(Generic[Deps]):
    """The context of a tool call, passed to a parameter that is annotated with ``ToolContext``.

    ::

        @tool(side_effect="network")
        async def refund(order: str, context: ToolContext[Shop]) -> str:
            "Refund an order."
            return await context.deps.refund(order, idempotency_key=context.intent_id)

    The model does not see the parameter. ``intent_id`` is unique to the call and stays the same if
    the call runs again after a crash, so it is an idempotency key. ``attempt`` is 1, and one more
    each time the call runs again. ``deps`` is what the session received as ``deps``.
    """

    def __init__(
        self,
        intent_id: str,
        session: str,
        attempt: int = 1,
        deps: Deps = None,  # type: ignore[assignment]  # without a session there are none
        *,
        report: Callable[[Any], None] | None = None,
    ) -> None:
        self.intent_id = intent_id
        self.session = session
        self.attempt = attempt
        self.deps: Deps = deps
        self._report = report
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether the session no longer waits for this call: it was cancelled or timed out.

        A thread cannot be interrupted, so a function that runs for long checks this between steps.
        An ``async`` function is cancelled by ``asyncio``.
        """
        return self._cancelled.is_set()

    def report(self, progress: Any) -> None:
        """Record how far the call is, as any JSON value of up to 10,000 bytes.

        Any thread can call this. If reports arrive faster than the log stores them, the latest
        replaces those that still wait. The value is recorded as it is now. Raise ``ValueError``
        for a value that cannot be recorded.
        """
        try:
            _, data = encode_payload(ToolProgress(self.intent_id, "", progress))
        except InvalidRecordError as error:
            raise ValueError(f"progress: {error}") from error
        if len(data) > MAX_PROGRESS:
            raise ValueError(
                f"progress: has {len(data)} bytes as JSON; the limit is {MAX_PROGRESS} bytes"
            )
        if self._report is not None and not self.cancelled:
            # A report is written later, and the tool may have changed its value by then.
            self._report(msgspec.json.decode(data, type=ToolProgress).progress)

    def cancel(self) -> None:
        """Mark the call as cancelled. The session does this."""
        self._cancelled.set()


CONTEXT: ContextVar[ToolContext[Any] | None] = ContextVar("context", default=None)


def make_context() -> ToolContext[Any]:
    """Return the context of the running call, or a new one if no session runs it."""
    return CONTEXT.get() or ToolContext(f"tu_{new_ulid()}", "")


def is_context(hint: Any) -> bool:
    """Return whether a type hint is ``ToolContext``, ``ToolContext[...]``, or one of them or ``None``."""
    origin = get_origin(hint)
    if origin is Annotated:
        return is_context(get_args(hint)[0])
    if origin in (Union, UnionType):
        return any(is_context(each) for each in get_args(hint))
    return hint is ToolContext or origin is ToolContext


def call_environment() -> dict[str, str]:
    """Return the environment variables that identify the running call to a program."""
    context = CONTEXT.get()
    if context is None:
        return {}
    return {
        "DRAGOMAN_INTENT_ID": context.intent_id,
        "DRAGOMAN_SESSION_ID": context.session,
        "DRAGOMAN_ATTEMPT": str(context.attempt),
    }
