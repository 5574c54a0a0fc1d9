"""Count a request's tokens on the model's server; if that fails, estimate them with a warning."""

from __future__ import annotations

import asyncio
import contextlib

from msgspec.structs import replace

from ..errors import ProviderError
from ..messages import LossWarning, Request
from ..middleware import Guard
from ..middleware.layer import walk
from ..provider import HttpProvider, Provider

_SECONDS = 20.0
_ESTIMATED = LossWarning(
    "count_estimated", "input", "the model's server does not count; this is an estimate"
)


async def count_input(provider: Provider, request: Request) -> tuple[int, tuple[LossWarning, ...]]:
    """Return the number of input tokens of a request, and a warning if it is an estimate."""
    for part in walk(provider):
        if isinstance(part, Guard):
            break  # its judges have not seen the request, so it is not sent
        if isinstance(part, HttpProvider):
            # an estimate is more useful to the client than an error
            with contextlib.suppress(ProviderError, TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    count = await part.count_input_tokens(replace(request, model=part.model))
                if count is not None:
                    return count, ()
            break  # a model may have fallback servers; only the first is asked to count the tokens
    work = provider.estimate_input_tokens
    return await asyncio.to_thread(work, request.messages, request.tools), (_ESTIMATED,)
