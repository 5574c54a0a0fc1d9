"""End a call after a time that its caller has set, in whatever layer the call is then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from msgspec.structs import replace

from ..errors import TimedOutError
from ..events import Event, MessageComplete, MessageStart, make_response
from ..messages import Request
from .reply import LayerCall, Reply, WrappedReply

_MOST_SECONDS = 1e6


def open_within(provider: Any, request: Request, seconds: float | None) -> Reply:
    """Return the reply to a request, which ends with ``TimedOutError`` after some seconds.

    The time begins with the first read of the reply, and includes the attempts of ``Retry`` and
    the candidates of a ``Fallback``.
    """
    if seconds is None:
        reply: Reply = provider.open(request)
        return reply
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= _MOST_SECONDS:
        raise ValueError(f"timeout must be a number of seconds above 0, not {seconds!r}")
    serve = partial(_serve, provider, seconds)
    return WrappedReply(request, provider.name, provider.model, serve)


async def _serve(
    provider: Any, seconds: float, request: Request, call: LayerCall
) -> AsyncGenerator[list[Event], None]:
    deadline = asyncio.get_running_loop().time() + seconds
    reply = call.reply = provider.open(request)
    start: MessageStart | None = None
    async with aclosing(reply):
        while True:
            limit = asyncio.timeout_at(deadline)
            try:
                async with limit:
                    batch = await reply.next()
            except TimeoutError:
                if not limit.expired():  # a provider of the user's own raised it
                    raise
                break
            if not batch:
                return
            if start is None and type(batch[0]) is MessageStart:
                start = batch[0]
            yield batch
        error = TimedOutError(
            f"the call took longer than its timeout of {seconds:g} s",
            which="total",
            provider=reply.provider,
            model=reply.model,
            request_id=request.request_id,
            advice="Try again, or allow more time with timeout=.",
        )
        closing = _end(reply.cancel())
        if closing:
            error.response = make_response(start, closing[-1], failed=reply.failed)  # type: ignore[arg-type]
        if start is not None:
            yield closing
        raise error


def _end(closing: list[Event]) -> list[Event]:
    """Return the events that close a cancelled message as those that close a failed one."""
    if not closing or type(closing[-1]) is not MessageComplete:
        return []
    return [*closing[:-1], replace(closing[-1], finish_reason="error")]
