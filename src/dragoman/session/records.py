"""Build the log records of a reply: the end of the call, and the message with its costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from ..calls import (
    CallCompleted,
    CallFailed,
    CallStarted,
    count_usage,
    find_stop_reason,
    price_usage,
    read_headers,
    redact,
)
from ..errors import ErrorClass, ProviderError
from ..events import Response, ToolUseEnd, Usage
from ..log import MessageRecorded, Routing
from ..messages import Assistant, Thinking, ToolCall, new_ulid
from ..middleware.layer import find_served
from ..prices import Cost, Unpriced
from ..provider import Provider, Reply

Price: TypeAlias = Callable[[Usage, str], "Cost | Unpriced"]


def new_message_id() -> str:
    """Return a new message id."""
    return f"msg_{new_ulid()}"


def make_message(
    response: Response,
    calls: Sequence[ToolUseEnd],
    routing: Routing,
    served: tuple[str, str],
    price: dict[str, Any],
    *,
    in_context: bool = True,
) -> MessageRecorded:
    """Return the record of a reply: its id, model and cost, and the session's ids for its calls.

    ``served`` are the provider and model that answered; with a fallback, others may have been
    called first. ``price`` has the record fields for the cost.
    """
    return MessageRecorded(
        response.message,
        served[1],
        served[0],
        response.request_id,
        response.finish_reason,
        response.warnings,
        new_message_id(),
        routing,
        response.usage,
        latency_ms=response.latency_ms,
        tool_ids={
            end.tool_use_id: end.intent.id if end.intent else f"tu_{new_ulid()}" for end in calls
        },
        in_context=in_context,
        paused=response.is_paused,
        **{name: price.get(name) for name in _COST},
    )


def make_worker_message(
    response: Response, provider: Provider, price: dict[str, Any]
) -> MessageRecorded:
    """Return the record of a reply to an internal call, such as a summary.

    The message is not part of the conversation.
    """
    routing = Routing("default", f"{provider.name}:{provider.model}")
    return make_message(
        response, (), routing, (provider.name, provider.model), price, in_context=False
    )


def find_served_by(provider: Provider, reply: Reply) -> tuple[str, str]:
    """Return the names of the provider and the model that sent a reply."""
    return reply.provider or provider.name, reply.model or provider.model


def price_reply(
    provider: Provider, reply: Reply, usage: Usage, price: Price | None
) -> dict[str, Any]:
    """Return the record fields for the usage and the cost of a reply."""
    name, model = find_served_by(provider, reply)
    sold_as = find_served(provider, name, model).priced_as
    bill = price(usage, f"{name}:{model}") if price is not None else sold_as.cost(usage)
    return price_usage(usage, bill, sold_as.model)


def is_repeatable(response: Response) -> bool:
    """Return whether a reply with invalid calls can be sent back to the model.

    Each call must have a name, and an object as arguments.
    """
    calls = response.tool_calls
    return bool(calls) and all(call.name and isinstance(call.arguments, dict) for call in calls)


def record_completed(
    said: MessageRecorded, response: Response | None = None, reply: Reply | None = None
) -> CallCompleted:
    """Return the record of a completed call, built from the recorded message.

    ``response`` and ``reply`` are ``None`` after a crash, when only the message is left.
    """
    kinds = [type(block) for block in cast("Assistant", said.message).content]
    stop_sequence = response.stop_sequence if response is not None else None
    return CallCompleted(
        **_end_fields(said, response),
        model=said.model or "",
        provider=said.provider or "",
        request_id=said.request_id or "",
        attempt=reply.attempt if reply is not None else 0,
        stop_reason=find_stop_reason(said.finish_reason, stop_sequence),
        latency_ms=round(said.latency_ms or 0.0, 3),
        produced_tool_calls=kinds.count(ToolCall),
        produced_thinking_blocks=kinds.count(Thinking),
        **(read_headers(reply.headers) if reply is not None else {}),
    )


def record_failed(
    call: CallStarted,
    error: ProviderError | str | None,
    said: MessageRecorded | None = None,
    response: Response | None = None,
    reply: Reply | None = None,
    used: Mapping[str, Any] = MappingProxyType({}),
) -> CallFailed:
    """Return the record of a call that failed or, without an ``error``, was cancelled.

    ``said``, ``response`` and ``reply`` are the parts that were received; they are billed even
    though the call failed. ``used`` has the fields for the usage and its cost if no message was
    received.
    """
    error_class: ErrorClass = "cancelled" if error is None else "other"
    message, status = error or "the call was cancelled", None
    if isinstance(error, ProviderError):
        error_class, message, status = error.error_class, str(error), error.status
    latency = said.latency_ms if said is not None else None
    attempt = reply.attempt if reply is not None else 0
    headers = error.headers if isinstance(error, ProviderError) else {}
    return CallFailed(
        **(_end_fields(said, response) if said is not None else used),
        model=(reply.model if reply is not None else None) or call.model,
        provider=(reply.provider if reply is not None else None) or call.provider,
        **read_headers(headers),
        request_id=call.request_id,
        attempt=attempt,
        retry_count=attempt,
        error_class=error_class,
        error_message_redacted=redact(str(message)[:2000]),
        category=error.category if isinstance(error, ProviderError) else None,
        status=status,
        latency_ms=round(latency, 3) if latency is not None else None,
    )


_COST = ("cost_usd", "pricing_version", "cost_unknown", "priced_as")


def _end_fields(said: MessageRecorded, response: Response | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"finish_reason": said.finish_reason}
    if response is not None:
        fields["response_model"] = response.model
    if said.usage is None or said.usage == Usage():
        return fields
    return {**fields, **count_usage(said.usage), **{name: getattr(said, name) for name in _COST}}
