"""What a reply is on record: the calls' ends, and the message with all that a provider cannot know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from ..calls import CallCompleted, CallFailed, CallStarted, find_stop_reason, redact
from ..errors import ErrorClass, ProviderError
from ..events import Response, ToolUseEnd, Usage
from ..log import MessageRecorded, Routing
from ..messages import Assistant, Thinking, ToolCall, new_ulid
from ..prices import Cost, Unpriced

Price: TypeAlias = Callable[[Usage, str], "Cost | Unpriced"]


def new_message_id() -> str:
    """An id of ours for a message."""
    return f"msg_{new_ulid()}"


def make_message(
    response: Response,
    calls: Sequence[ToolUseEnd],
    routing: Routing,
    asked: tuple[str, str],
    price: Price,
    *,
    in_context: bool = True,
) -> MessageRecorded:
    """The message of a reply: its id, the choice of the model, the cost, and the names of its calls.

    ``asked`` is the provider and model that were asked; with a fallback, others may have answered.
    """
    provider = response.provider or asked[0]
    model = asked[1] if provider == asked[0] else response.model or asked[1]
    bill = price(response.usage, f"{provider}:{model}")
    return MessageRecorded(
        response.message,
        model,
        provider,
        response.request_id,
        response.finish_reason,
        response.warnings,
        new_message_id(),
        routing,
        response.usage,
        bill.total if isinstance(bill, Cost) else None,
        bill.pricing_version if isinstance(bill, Cost) else None,
        bill.reason if isinstance(bill, Unpriced) else None,
        response.latency_ms,
        {end.tool_use_id: end.intent.id if end.intent is not None else f"tu_{new_ulid()}" for end in calls},
        in_context,
    )


def is_repeatable(response: Response) -> bool:
    """Return whether a reply with invalid calls can be sent to a model again: their arguments are objects."""
    return bool(response.tool_calls) and all(isinstance(call.arguments, dict) for call in response.tool_calls)


def record_completed(said: MessageRecorded, attempt: int = 0, stop_sequence: str | None = None) -> CallCompleted:
    """Return the record of a call that ended, from the message it returned in its last ``attempt``."""
    usage = said.usage or Usage()
    kinds = [type(block) for block in cast("Assistant", said.message).content]
    return CallCompleted(
        model=said.model or "",
        provider=said.provider or "",
        request_id=said.request_id or "",
        attempt=attempt,
        stop_reason=find_stop_reason(said.finish_reason, stop_sequence),
        finish_reason=said.finish_reason,
        latency_ms=round(said.latency_ms or 0.0, 3),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_creation_input_tokens=usage.cache_creation_input_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        estimated=usage.estimated,
        cost_usd=said.cost_usd,
        pricing_version=said.pricing_version,
        produced_tool_calls=kinds.count(ToolCall),
        produced_thinking_blocks=kinds.count(Thinking),
    )


def record_failed(
    call: CallStarted, partial: Response | None, error: ProviderError | str | None, attempt: int = 0
) -> CallFailed:
    """Return the record of a call that failed in this ``attempt``; without an error, it was cancelled."""
    error_class: ErrorClass = "cancelled" if error is None else "other"
    message, status = error or "the call was cancelled", None
    if isinstance(error, ProviderError):
        error_class, message, status = error.error_class, str(error), error.status
    usage = partial.usage if partial is not None else Usage()
    return CallFailed(
        model=call.model,
        provider=call.provider,
        request_id=call.request_id,
        attempt=attempt,
        retry_count=attempt,
        error_class=error_class,
        error_message_redacted=redact(str(message)[:2000]),
        status=status,
        latency_ms=partial.latency_ms if partial is not None else None,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
    )
