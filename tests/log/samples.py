"""Provide a sample payload of every event type, and strategies that generate arbitrary payloads."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

import dragoman as d
from dragoman import log as logs
from dragoman.events import AssembledFrom, IntentSource

INTENT = d.ToolIntent(
    "tu_01", "call_1", "bash", {"command": "make test"}, '{"command": "make test"}',
    IntentSource("acme", "large", "r1", 1), AssembledFrom(3, 10, 90),
)  # fmt: skip
COMPLETED = logs.CallCompleted(
    model="large", provider="acme", stop_reason="tool_use", latency_ms=812.5, request_id="r1",
    input_tokens=1200,
    output_tokens=45, cached_input_tokens=1000, cache_creation_input_tokens=0, reasoning_tokens=12,
    cost_usd=Decimal("0.00475"), pricing_version="2026-11", produced_tool_calls=1,
    produced_thinking_blocks=1,
    finish_reason="tool_calls", response_model="large-2026", first_event_ms=210.0, attempt=1,
)  # fmt: skip
LOSS = d.LossWarning("dropped", "messages[1].content[0]", "thinking of another issuer")

_REPLY = d.Assistant(
    [
        d.Thinking("hm", d.Continuity("sig==", None, d.Issuer("anthropic", "acme", "large"))),
        d.Text("I will run the tests — ありがとう \x00 \U0001f600"),
        d.ToolCall("call_1", "bash", {"command": "make test"}),
    ]
)
_RECORDED = logs.MessageRecorded(_REPLY, "large", "acme", "r1", "tool_calls", (LOSS,), "msg_01",
                                 logs.Routing("manual", "acme:large", "the user asked"),
                                 d.Usage(1200, 45, 1000), Decimal("0.00475"), "2026-11", None,
                                 812.5, {"call_1": "tu_01"})  # fmt: skip
_STARTED = logs.CallStarted(model="large", provider="acme", request_id="r1",
                            estimated_input_tokens=1200,
                            config=d.RuntimeConfig(temperature=0.5, stop_sequences=["\n"]))  # fmt: skip
_FAILED = logs.CallFailed(model="large", provider="acme", error_class="rate_limit",
                          latency_ms=80.0, error_message_redacted="slow down", retry_count=1,
                          request_id="r1", status=429)  # fmt: skip
_PROJECTED = logs.ContextProjected("window", "share",
                                   (logs.LeftOut(3, 900), logs.LeftOut(5, 80, "gone")), 15000,
                                   9000, 16000, "Note", "01")  # fmt: skip
# The payloads of each type, by their actor and sensitivity, which follow the adapter contract where
# it defines them.
_GROUPS: dict[tuple[str, str], list[tuple[str, Any]]] = {
    ("user", "private"): [
        ("session.started", logs.SessionStarted("Fix the tests", "large", "acme", ("bash",),
                                                {"cwd": "/x"}, {"bash": "0" * 64})),
        ("message.recorded", logs.MessageRecorded(d.User("Hello"))),
        ("permission.answered", logs.PermissionAnswered("tu_01", True, "ann", "fine", "prefix",
                                                        "make", {"command": "make lint"})),
    ],
    ("agent", "private"): [
        ("message.recorded", _RECORDED),
        ("message.recorded",
         logs.MessageRecorded(d.Assistant("Hal"), finish_reason="error", in_context=False)),
        ("llm.call_started", _STARTED),
        ("llm.exchange_kept",
         logs.LlmExchangeKept("r1", "acme", "large", {"chunks": [{"x": None}]})),
        ("llm.exchange_kept", logs.LlmExchangeKept("r1", "acme", "large", problem="too long")),
        ("tool_intent.proposed", INTENT),
    ],
    ("agent", "pseudonymous"): [
        ("llm.call_completed", COMPLETED),
        ("llm.call_completed", logs.CallCompleted(model="large", provider="acme",
                                                  stop_reason="end_turn", latency_ms=1.0)),
        ("llm.call_failed", _FAILED),
    ],
    ("tool", "private"): [
        ("message.recorded",
         logs.MessageRecorded(d.ToolResult("call_1", "exit 1", is_error=True))),
        ("tool.started",
         logs.ToolStarted("tu_01", "bash", {"command": "pnpm test"}, {"cwd": "/x"})),
        ("tool.observed", logs.ToolObserved("tu_01", "bash", "Expected 4, received 5", True,
                                            False, 1, 912.0, {"stderr": "…"})),
        ("tool.observed", logs.ToolObserved("tu_01", "look", (d.Text("a"), d.Text("b")))),
        ("tool.failed",
         logs.ToolFailed("tu_01", "bash", "timeout", "still running after 60 s", 60000.0)),
    ],
    ("system", "private"): [
        ("session.resumed",
         logs.SessionResumed(7, ("tu_01",), "killed", changed_tools={"bash": "1" * 64})),
        ("session.finished", logs.SessionFinished("exhausted", "50 turns", 50)),
        ("turn.started", logs.TurnStarted(1, "large", "acme")),
        ("message.recorded", logs.MessageRecorded(d.System("Be terse."))),
        ("context.projected", _PROJECTED),
        ("context.summarised",
         logs.ContextSummarised("In short.", 3, 9, 4, "acme", "small", "r7")),
        ("tool_intent.validated",
         logs.ToolIntentValidated("tu_01", "edit", "write", ("src/x.py",))),
        ("tool_intent.rejected",
         logs.ToolIntentRejected("tu_01", "fly", "unknown_tool", "no such tool")),
        ("tool_intent.closed", logs.ToolIntentClosed("tu_01", "the process was killed", "bash")),
        ("permission.requested", logs.PermissionRequested("tu_01", "bash", "not in the rules")),
        ("permission.granted", logs.PermissionGranted("tu_01", "bash", "user", scope="session")),
        ("permission.denied",
         logs.PermissionDenied("tu_01", "bash", "rule", "no-reset", "destructive")),
        ("log.pruned",
         logs.LogPruned("s1", 3, "01A", "01B", "ab" * 32, datetime(2026, 1, 1, tzinfo=UTC))),
    ],
    ("system", "pseudonymous"): [
        ("model.swapped",
         logs.ModelSwapped("acme:large", "other:small", "the user asked", (LOSS,))),
        ("budget.exceeded",
         logs.BudgetExceeded("cost", Decimal("1.00"), Decimal("1.0425"), "USD")),
        ("routing.chosen", logs.RoutingChosen("b:small", "weighted: its turn by weight", "r1")),
        ("routing.switched",
         logs.RoutingSwitched("acme:large", "b:small", "rate_limit", "rate_limit", "r1")),
        ("routing.provider_unavailable",
         logs.ProviderUnavailable("acme", "provider_wide", "auth_error", ("large", "small"))),
        ("routing.provider_recovered",
         logs.ProviderRecovered("acme", "model_specific", 31.5, ("large",))),
    ],
}  # fmt: skip
# Each sample is (type, payload, actor, sensitivity).
SAMPLES: list[tuple[str, Any, str, str]] = [
    (kind, payload, *facts) for facts, group in _GROUPS.items() for kind, payload in group
]
WRITABLE = [payload for kind, payload, *_ in SAMPLES if kind != "log.pruned"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
payloads = st.sampled_from(WRITABLE) | st.builds(
    logs.ToolStarted, intent_id=texts, tool_name=texts,
    input=st.dictionaries(texts, values, max_size=4),
)  # fmt: skip
