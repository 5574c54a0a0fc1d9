"""What a reply is on record: the calls' ends, and the message with all that a provider cannot know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from ..errors import ProviderError
from ..events import Response, ToolUseEnd, Usage
from ..log import LlmCallCompleted, LlmCallFailed, LlmCallStarted, MessageRecorded, Routing, StopReason
from ..messages import Assistant, Thinking, ToolCall, new_ulid
from ..middleware.observe import redact
from ..prices import Cost, Unpriced

Price: TypeAlias = Callable[[Usage, str], "Cost | Unpriced"]

STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "content_filter",
}


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


def can_be_said(response: Response) -> bool:
    """Could a reply with unsound calls be shown to the model again? Not if their arguments are unreadable."""
    return bool(response.tool_calls) and all(isinstance(call.arguments, dict) for call in response.tool_calls)


def record_completed(said: MessageRecorded, attempt: int = 0) -> LlmCallCompleted:
    """The end of a call, from the message it brought, which was that of the ``attempt`` of this number."""
    usage = said.usage or Usage()
    content = cast("Assistant", said.message).content
    return LlmCallCompleted(
        said.model or "",
        said.provider or "",
        STOP_REASONS[said.finish_reason or "stop"],
        round(said.latency_ms or 0.0, 3),
        said.request_id,
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
        usage.cache_creation_input_tokens,
        usage.reasoning_tokens,
        usage.estimated,
        said.cost_usd,
        said.pricing_version,
        sum(isinstance(block, ToolCall) for block in content),
        sum(isinstance(block, Thinking) for block in content),
        said.finish_reason,
        attempt=attempt,
    )


def record_failed(
    call: LlmCallStarted, partial: Response | None, error: ProviderError | str | None, attempt: int = 0
) -> LlmCallFailed:
    """The end of a call that failed in this ``attempt``, or, without an error, was cancelled."""
    word, message, status = "cancelled", "the call was cancelled", None
    if isinstance(error, ProviderError):
        word, message, status = error.error_class, str(error), error.status
    elif error is not None:
        word, message = "other", error
    usage = partial.usage if partial is not None else Usage()
    return LlmCallFailed(
        call.model,
        call.provider,
        word,  # type: ignore[arg-type]
        redact(message[:2000]),
        retry_count=attempt,
        latency_ms=partial.latency_ms if partial is not None else None,
        request_id=call.request_id,
        status=status,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        attempt=attempt,
    )
