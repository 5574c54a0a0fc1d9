"""Report calls as OpenTelemetry spans and metrics, following the conventions for generative AI.

``dragoman.session.SessionTelemetry`` adds the spans of agents and tools.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from ..calls import CallCompleted, CallFailed
from ..errors import advise_import
from ..messages import Assistant, Message, System, Text, Thinking, ToolCall, ToolResult
from .observe import CallEvent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

# The conventions still change, so all names are defined in this table. The package
# opentelemetry-semantic-conventions still uses ``cache_creation``, which
# semantic-conventions-genai has renamed to ``cache_write`` (pull request 440).
NAMES = {
    "operation": "gen_ai.operation.name",
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "stop_sequences": "gen_ai.request.stop_sequences",
    "stream": "gen_ai.request.stream",
    "reasoning": "gen_ai.request.reasoning.level",
    "response_model": "gen_ai.response.model",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "first_event": "gen_ai.response.time_to_first_chunk",
    "dimensions": "gen_ai.embeddings.dimension.count",
    "response_id": "gen_ai.response.id",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_creation_input_tokens": "gen_ai.usage.cache_write.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "session_id": "gen_ai.conversation.id",
    "input_messages": "gen_ai.input.messages",
    "output_messages": "gen_ai.output.messages",
    "system": "gen_ai.system_instructions",
    "token_type": "gen_ai.token.type",
    "error": "error.type",
    "status": "http.response.status_code",
    "request_id": "dragoman.request_id",
    "attempt": "dragoman.attempt",
    "retry_reason": "dragoman.retry_reason",
    "token_usage": "gen_ai.client.token.usage",
    "duration": "gen_ai.client.operation.duration",
    "first_chunk": "gen_ai.client.operation.time_to_first_chunk",
    "next_chunk": "gen_ai.client.operation.time_per_output_chunk",
    "tool_duration": "gen_ai.execute_tool.duration",
    "agent_duration": "gen_ai.invoke_agent.duration",
    "address": "server.address",
    "port": "server.port",
    "agent": "gen_ai.agent.name",
    "tool": "gen_ai.tool.name",
    "tool_type": "gen_ai.tool.type",
    "tool_description": "gen_ai.tool.description",
    "call_id": "gen_ai.tool.call.id",
    "call_arguments": "gen_ai.tool.call.arguments",
    "call_result": "gen_ai.tool.call.result",
    "outcome": "dragoman.outcome",
}
"""Dragoman's attribute and metric names, mapped to those of OpenTelemetry's conventions."""

OPERATIONS = {"chat": "chat", "embed": "embeddings", "rerank": "rerank"}
"""Each operation's name in OpenTelemetry's conventions, which do not name reranking yet."""

_SETTINGS = (
    "max_tokens", "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty",
    "stop_sequences",
)  # fmt: skip
_COUNTS = (
    "input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens",
    "reasoning_tokens",
)  # fmt: skip
_SESSIONS = 1000  # maximum number of sessions whose parent span is kept
_IDENTITY = ("session_id", "request_id", "attempt", "retry_reason")

# The bucket boundaries that the conventions require.
_TOKEN_BOUNDS = [float(4**power) for power in range(14)]
_SECOND_BOUNDS = [0.01 * 2**power for power in range(14)]
_AGENT_BOUNDS = [0.1 * 2**power for power in range(13)]


class OpenTelemetry:
    """A subscriber for ``Observe`` that records a span for each attempt, and metrics.

    The metrics are the tokens and the duration of attempts and, of streams, the time to the first
    chunk and between chunks. By default, the global tracer and
    meter providers are used. A span is a child of the span that was current when the call began.
    It contains messages only if ``Observe`` includes content.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        # Import opentelemetry only here: it is optional, and the import takes a tenth of a second.
        with advise_import("OpenTelemetry needs the API package: pip install 'dragoman[otel]'"):
            from opentelemetry import metrics, trace
        self._kind = trace.SpanKind.CLIENT
        self._failed = trace.StatusCode.ERROR
        self._parents: OrderedDict[str, Context] = OrderedDict()
        self.tracer = trace.get_tracer("dragoman", tracer_provider=tracer_provider)
        meter = metrics.get_meter("dragoman", meter_provider=meter_provider)
        self._tokens = meter.create_histogram(
            NAMES["token_usage"],
            unit="{token}",
            description="Tokens in and out of a call.",
            explicit_bucket_boundaries_advisory=_TOKEN_BOUNDS,
        )
        self._durations = {
            name: meter.create_histogram(
                NAMES[name],
                unit="s",
                description=text,
                explicit_bucket_boundaries_advisory=bounds,
            )
            for name, text, bounds in (
                ("duration", "How long a call took.", _SECOND_BOUNDS),
                ("first_chunk", "Time from the request to the first chunk.", _SECOND_BOUNDS),
                ("next_chunk", "Time between two chunks of a stream.", _SECOND_BOUNDS),
                ("tool_duration", "How long a tool ran.", _SECOND_BOUNDS),
                ("agent_duration", "How long an agent ran.", _AGENT_BOUNDS),
            )
        }

    def adopt(self, session_id: str, parent: Context) -> None:
        """Make the current span of a context the parent of all calls of a session.

        Calls may be reported after the session has ended, so the parents of the last 1000 sessions
        are kept.
        """
        self._parents[session_id] = parent
        self._parents.move_to_end(session_id)
        while len(self._parents) > _SESSIONS:
            self._parents.popitem(last=False)

    def __call__(self, event: CallEvent) -> None:
        """Record a span and metrics for an attempt that has ended."""
        if not isinstance(event, CallCompleted | CallFailed):
            return
        common = _common(event)
        began = int(event.at * 1e9)
        span = self.tracer.start_span(
            f"{OPERATIONS[event.operation]} {event.model}",
            context=self._parents.get(event.session_id or ""),
            kind=self._kind,
            attributes=common | _attributes(event),
            start_time=began,
        )
        if isinstance(event, CallFailed):
            span.set_status(self._failed, event.error_message_redacted)
        span.end(began + int((event.latency_ms or 0.0) * 1e6))
        self._measure(event, common)

    def time(self, name: str, seconds: float, facts: dict[str, Any]) -> None:
        """Record a duration; ``name`` and the names of ``facts`` are keys of ``NAMES``."""
        attributes = {NAMES[key]: value for key, value in facts.items() if value is not None}
        self._durations[name].record(seconds, attributes)

    def time_chunks(self, event: CallCompleted | CallFailed, pauses: Sequence[float]) -> None:
        """Record the seconds between the chunks of a reply; ``Observe`` calls this."""
        common = _common(event)
        for pause in pauses:
            self._durations["next_chunk"].record(pause, common)

    def _measure(self, event: CallCompleted | CallFailed, common: dict[str, Any]) -> None:
        if isinstance(event, CallCompleted) and event.response_model:
            common = {**common, NAMES["response_model"]: event.response_model}
        failed = {NAMES["error"]: event.error_class} if isinstance(event, CallFailed) else {}
        self._durations["duration"].record((event.latency_ms or 0.0) / 1000, common | failed)
        if event.stream and event.first_event_ms is not None:
            self._durations["first_chunk"].record(event.first_event_ms / 1000, common | failed)
        for kind, count in (("input", event.input_tokens), ("output", event.output_tokens)):
            if count is not None:
                self._tokens.record(count, {**common, NAMES["token_type"]: kind})


@cache
def _read_provider_names() -> dict[str, str]:
    """Return the rows of ``catalog/telemetry.json``, which is read on first use."""
    from importlib.resources import files  # lazy import: slow, needed only for telemetry

    data = files("dragoman").joinpath("catalog", "telemetry.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, str])


def find_provider_name(vendor: str) -> str:
    """Return a vendor's name in the conventions; by default it is the name in the catalogue."""
    return _read_provider_names().get(vendor, vendor)


def _common(event: CallCompleted | CallFailed) -> dict[str, Any]:
    common: dict[str, Any] = {
        NAMES["operation"]: OPERATIONS[event.operation],
        NAMES["provider"]: find_provider_name(event.provider),
        NAMES["model"]: event.model,
    }
    if event.server is not None:
        at = urlsplit(f"//{event.server}")
        common |= {NAMES["address"]: at.hostname, NAMES["port"]: at.port}
    return common


def _attributes(event: CallCompleted | CallFailed) -> dict[str, Any]:
    """Return the attributes that only spans have, not metrics; unknown values are omitted."""
    config = event.config
    facts = {name: getattr(config, name) for name in _SETTINGS}
    facts |= {name: getattr(event, name, None) for name in (*_COUNTS, *_IDENTITY)}
    facts["reasoning"] = config.reasoning if isinstance(config.reasoning, str) else None
    facts["stream"] = True if event.stream else None
    if event.stream and event.first_event_ms is not None:
        facts["first_event"] = event.first_event_ms / 1000
    if isinstance(event, CallFailed):
        facts |= {"error": event.error_class, "status": event.status}
    else:
        finish = (event.finish_reason,) if event.operation == "chat" else None
        facts |= {"response_model": event.response_model, "finish_reasons": finish}
        facts |= {"response_id": event.response_id, "dimensions": event.dimensions}
    facts |= _content(event)
    return {NAMES[name]: value for name, value in facts.items() if value is not None}


def _content(event: CallCompleted | CallFailed) -> dict[str, str]:
    if event.request is None:
        return {}
    messages = event.request.messages
    parts = {
        "system": [
            {"type": "text", "content": each.content}
            for each in messages
            if isinstance(each, System)
        ],
        "input_messages": [_message(each) for each in messages if not isinstance(each, System)],
    }
    if isinstance(event, CallCompleted) and event.content is not None:
        parts["output_messages"] = [
            {**_message(Assistant(event.content)), "finish_reason": event.finish_reason}
        ]
    return {name: msgspec.json.encode(value).decode() for name, value in parts.items() if value}


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, ToolResult):
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.text}
        return {"role": "tool", "parts": [part]}
    role = "assistant" if isinstance(message, Assistant) else "user"
    if isinstance(message.content, str):
        return {"role": role, "parts": [{"type": "text", "content": message.content}]}
    return {"role": role, "parts": [_part(block) for block in message.content]}


def _part(block: Any) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "content": block.text}
    if isinstance(block, Thinking):
        return {"type": "reasoning", "content": block.text}
    if isinstance(block, ToolCall):
        return {
            "type": "tool_call",
            "id": block.id,
            "name": block.name,
            "arguments": block.arguments,
        }
    # Record only the type of images, documents and opaque state, which would add megabytes to a
    # span.
    return {"type": type(block).__name__.lower()}
