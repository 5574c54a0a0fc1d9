"""Build the log records of a reply: the message with its costs, and the end of a lost call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from ..calls import (
    STOP_REASONS,
    CallCompleted,
    CallStarted,
    RoutingChosen,
    RoutingSwitched,
    count_usage,
)
from ..events import Response, ToolUseEnd, Usage
from ..log import MessageRecorded, Routing
from ..messages import Assistant, Message, ToolCall, ToolResult, new_ulid
from ..middleware import Fallback, walk
from ..middleware.attempts import Attempt, CallEnd, make_end

_COST = ("cost_usd", "pricing_version", "cost_unknown", "priced_as")
# The fields that the start of a call and its end have in common.
_SHARED = set(CallStarted.__struct_fields__) & set(CallCompleted.__struct_fields__)


def new_message_id() -> str:
    """Return a new message id."""
    return f"msg_{new_ulid()}"


def record_message(message: Message, key: str | None = None) -> MessageRecorded:
    """Return the record of a message that no model wrote; ``key`` is the key of a goal."""
    return MessageRecorded(message=message, message_id=new_message_id(), key=key)


def record_result(
    call: ToolCall, intent_id: str | None, content: Any, *, is_error: bool
) -> MessageRecorded:
    """Return the record of the tool result that the model receives for a call."""
    result = record_message(ToolResult(call.id, content, is_error=is_error))
    return replace(result, tool_ids={call.id: intent_id}) if intent_id else result


def make_message(
    attempt: Attempt,
    response: Response,
    calls: Sequence[ToolUseEnd],
    routing: Routing,
    *,
    in_context: bool = True,
) -> MessageRecorded:
    """Return the record of a reply: its id, model and cost, and the session's ids for its calls.

    ``routing`` is how the provider was chosen. If that is a fallback, the record lists the
    candidates that were skipped.
    """
    provider, model = attempt.find_served()
    history = attempt.reply.history if attempt.reply is not None else ()
    skipped = {each.from_: each.reason for each in history if isinstance(each, RoutingSwitched)}
    group = next((each for each in walk(attempt.model) if isinstance(each, Fallback)), None)
    if group is not None:
        chosen = f"{provider}:{model}"
        choices = [each.reason for each in history if isinstance(each, RoutingChosen)]
        reason = choices[-1] if choices else group.strategy.reason
        routing = Routing(
            mode="rule", chosen=chosen, reason=reason, passed_over=skipped, asked=routing.chosen
        )
    cost = attempt.bill()
    return MessageRecorded(
        message=response.message,
        model=model,
        provider=provider,
        request_id=response.request_id,
        finish_reason=response.finish_reason,
        warnings=response.warnings,
        message_id=new_message_id(),
        routing=routing,
        usage=response.usage,
        latency_ms=response.latency_ms,
        tool_ids={
            end.tool_use_id: end.intent.id if end.intent else f"tu_{new_ulid()}" for end in calls
        },
        in_context=in_context,
        paused=response.is_paused,
        **{name: cost.get(name) for name in _COST},
    )


def is_repeatable(response: Response) -> bool:
    """Return whether a reply with invalid calls can be sent back to the model.

    Each call must have a name, and an object as arguments.
    """
    calls = response.tool_calls
    return bool(calls) and all(call.name and isinstance(call.arguments, dict) for call in calls)


def end_lost_call(started: CallStarted, reply: MessageRecorded | None, problem: str) -> CallEnd:
    """Return the end of a call whose end was not recorded, for example because of a crash.

    ``reply`` is the recorded one. If it is complete, so is the call; otherwise the call has
    failed, and ``problem`` describes why.
    """
    facts: dict[str, Any] = {name: getattr(started, name) for name in _SHARED}
    if reply is None or reply.finish_reason is None:
        return make_end(facts, None, problem)
    facts |= {"provider": reply.provider or "", "model": reply.model or ""}
    facts["latency_ms"] = round(reply.latency_ms or 0.0, 3)
    if reply.usage is not None and reply.usage != Usage():
        facts |= count_usage(reply.usage) | {name: getattr(reply, name) for name in _COST}
    message = cast("Assistant", reply.message)
    answer: Response = Response(message, reply.finish_reason, usage=reply.usage or Usage())
    return make_end(facts, answer, None if answer.finish_reason in STOP_REASONS else problem)
