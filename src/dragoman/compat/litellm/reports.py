"""Functions that are called after each call, as ``success_callback`` and ``failure_callback``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from .calls import CustomStreamWrapper, complete
from .exceptions import OpenAIError
from .names import find_name
from .records import ModelResponseStream, stream_chunk_builder

Callback = Callable[[dict[str, Any], Any, datetime, datetime], Any]
"""Called with the parameters of a call, its reply, and the times of its start and its end.

The model has the vendor's name for it, without the provider.
"""

log = logging.getLogger("dragoman")


def check_callbacks(name: str, value: Any) -> None:
    """Raise ``AttributeError`` for a callback that is not a function, such as a service's name."""
    if not isinstance(value, list | tuple) or not all(callable(each) for each in value):
        raise AttributeError(
            f"{name} must be a list of functions; dragoman.Observe and OpenTelemetry report calls "
            "to other services"
        )


async def complete_observed(
    model: str,
    messages: Any,
    given: Mapping[str, Any],
    on_success: Sequence[Callback],
    on_failure: Sequence[Callback],
) -> Any:
    """Call a chat model, and the functions for its success or its failure."""
    began = datetime.now()
    named = find_name(str(model), given.get("custom_llm_provider"))
    name = model if named is None else named.model
    facts = {"model": name, "messages": messages, **given}
    try:
        reply = await complete(model, messages, given)
    except OpenAIError as error:
        await _call_each(on_failure, {**facts, "exception": error}, None, began)
        raise
    if not isinstance(reply, CustomStreamWrapper):
        await _report(on_success, facts, reply, began)
        return reply
    if not on_success and not on_failure:
        return reply
    return CustomStreamWrapper(_observe(reply, facts, began, on_success, on_failure))


async def _observe(
    stream: CustomStreamWrapper,
    facts: dict[str, Any],
    began: datetime,
    on_success: Sequence[Callback],
    on_failure: Sequence[Callback],
) -> AsyncGenerator[ModelResponseStream]:
    chunks: list[ModelResponseStream] = []
    try:
        async for chunk in stream:
            chunks.append(chunk)
            yield chunk
    except OpenAIError as error:
        await _call_each(on_failure, {**facts, "exception": error}, None, began)
        raise
    finally:
        await stream.aclose()
    reply = stream_chunk_builder(chunks)
    reply.note_as(chunks[-1])
    await _report(on_success, facts, reply, began)


async def _report(
    functions: Sequence[Callback], facts: dict[str, Any], reply: Any, began: datetime
) -> None:
    found = {"model": reply.find_model(facts["model"]), "response_cost": reply.find_cost()}
    await _call_each(functions, {**facts, **found}, reply, began)


async def _call_each(
    functions: Sequence[Callback], facts: dict[str, Any], reply: Any, began: datetime
) -> None:
    """Call functions in turn; log the error of one that fails, and call the others."""
    for function in functions:
        try:
            result = function(facts, reply, began, datetime.now())
            if inspect.isawaitable(result):
                await result
        except Exception:
            log.exception("the callback %r failed", function)
