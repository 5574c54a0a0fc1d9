"""Provide a sample payload of every event type, and strategies that generate arbitrary payloads."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

import dragoman as d
from dragoman import log as logs
from dragoman.events import AssembledFrom, IntentSource

INTENT = d.ToolIntent(
    id="tu_01",
    provider_call_id="call_1",
    tool_name="bash",
    input={"command": "make test"},
    raw_input_text='{"command": "make test"}',
    source=IntentSource("acme", "large", "r1", 1),
    assembled_from=AssembledFrom(3, 10, 90),
)
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
_RECORDED = logs.MessageRecorded(
    message=_REPLY,
    model="large",
    provider="acme",
    request_id="r1",
    finish_reason="tool_calls",
    warnings=(LOSS,),
    message_id="msg_01",
    routing=logs.Routing(mode="manual", chosen="acme:large", reason="the user asked"),
    usage=d.Usage(1200, 45, cached_input_tokens=1000),
    cost_usd=Decimal("0.00475"),
    pricing_version="2026-11",
    cost_unknown=None,
    latency_ms=812.5,
    tool_ids={"call_1": "tu_01"},
)
_STARTED = logs.CallStarted(model="large", provider="acme", request_id="r1",
                            estimated_input_tokens=1200,
                            config=d.RuntimeConfig(temperature=0.5, stop_sequences=["\n"]))  # fmt: skip
_FAILED = logs.CallFailed(model="large", provider="acme", error_class="rate_limit",
                          latency_ms=80.0, error_message_redacted="slow down", retry_count=1,
                          request_id="r1", status=429)  # fmt: skip
_PROJECTED = logs.ContextProjected(
    rule="window",
    reason="share",
    left_out=(logs.LeftOut(3, 900), logs.LeftOut(5, 80, "gone")),
    tokens_before=15000,
    tokens_after=9000,
    window=16000,
    note="Note",
    summary="01",
)
# The payloads of each type, by their actor and sensitivity, which follow the adapter contract where
# it defines them.
_GROUPS: dict[tuple[str, str], list[tuple[str, Any]]] = {
    ("user", "private"): [
        (
            "session.started",
            logs.SessionStarted(
                goal="Fix the tests",
                model="large",
                provider="acme",
                tools=("bash",),
                metadata={"cwd": "/x"},
                tool_digests={"bash": "0" * 64},
            ),
        ),
        ("message.recorded", logs.MessageRecorded(message=d.User("Hello"))),
        (
            "permission.answered",
            logs.PermissionAnswered(
                intent_id="tu_01",
                allowed=True,
                by="ann",
                reason="fine",
                scope="prefix",
                prefix="make",
                input={"command": "make lint"},
            ),
        ),
    ],
    ("agent", "private"): [
        ("message.recorded", _RECORDED),
        (
            "message.recorded",
            logs.MessageRecorded(
                message=d.Assistant("Hal"), finish_reason="error", in_context=False
            ),
        ),
        ("llm.call_started", _STARTED),
        (
            "llm.exchange_kept",
            logs.LlmExchangeKept(
                request_id="r1", provider="acme", model="large", reply={"chunks": [{"x": None}]}
            ),
        ),
        (
            "llm.exchange_kept",
            logs.LlmExchangeKept(
                request_id="r1", provider="acme", model="large", problem="too long"
            ),
        ),
        ("tool_intent.proposed", INTENT),
    ],
    ("agent", "pseudonymous"): [
        ("llm.call_completed", COMPLETED),
        (
            "llm.call_completed",
            logs.CallCompleted(
                model="large", provider="acme", stop_reason="end_turn", latency_ms=1.0
            ),
        ),
        ("llm.call_failed", _FAILED),
    ],
    ("tool", "private"): [
        (
            "message.recorded",
            logs.MessageRecorded(message=d.ToolResult("call_1", "exit 1", is_error=True)),
        ),
        ("tool.answered", logs.ToolAnswered("tu_01", "shipped", is_error=True)),
        (
            "tool.started",
            logs.ToolStarted("tu_01", "bash", {"command": "pnpm test"}, {"cwd": "/x"}),
        ),
        (
            "tool.restarted",
            logs.ToolRestarted(
                intent_id="tu_01",
                tool_name="bash",
                attempt=2,
                input={"command": "ls"},
                context={"sandbox": "bwrap"},
            ),
        ),
        ("session.delegated", logs.SessionDelegated("tu_01", "ask_expert", "session_01")),
        ("tool.progress", logs.ToolProgress("tu_01", "bash", {"done": 3, "of": 9})),
        (
            "tool.observed",
            logs.ToolObserved(
                intent_id="tu_01",
                tool_name="bash",
                content="Expected 4, received 5",
                is_error=True,
                truncated=False,
                exit_code=1,
                duration_ms=912.0,
                details={"stderr": "…"},
            ),
        ),
        (
            "tool.observed",
            logs.ToolObserved(
                intent_id="tu_01", tool_name="look", content=(d.Text("a"), d.Text("b"))
            ),
        ),
        (
            "tool.failed",
            logs.ToolFailed(
                intent_id="tu_01",
                tool_name="bash",
                kind="timeout",
                message="still running after 60 s",
                duration_ms=60000.0,
            ),
        ),
    ],
    ("system", "private"): [
        (
            "session.resumed",
            logs.SessionResumed(
                after=7, open_intents=("tu_01",), reason="killed", changed_tools={"bash": "1" * 64}
            ),
        ),
        (
            "tools.changed",
            logs.ToolsChanged(
                definitions=(d.Tool("look"),), tool_digests={"look": "2" * 64}, removed=("bash",)
            ),
        ),
        ("session.finished", logs.SessionFinished("exhausted", "50 turns", 50)),
        ("turn.started", logs.TurnStarted(1, "large", "acme")),
        ("message.recorded", logs.MessageRecorded(message=d.System("Be terse."))),
        ("context.projected", _PROJECTED),
        (
            "context.summarised",
            logs.ContextSummarised(
                text="In short.",
                first=3,
                last=9,
                messages=4,
                provider="acme",
                model="small",
                request_id="r7",
            ),
        ),
        (
            "tool_intent.validated",
            logs.ToolIntentValidated("tu_01", "edit", "write", ("src/x.py",)),
        ),
        (
            "tool_intent.rejected",
            logs.ToolIntentRejected("tu_01", "fly", "unknown_tool", "no such tool"),
        ),
        ("tool_intent.closed", logs.ToolIntentClosed("tu_01", "the process was killed", "bash")),
        (
            "permission.requested",
            logs.PermissionRequested(
                intent_id="tu_01", tool_name="bash", reason="not in the rules", attempt=2
            ),
        ),
        (
            "permission.granted",
            logs.PermissionGranted(
                intent_id="tu_01",
                tool_name="bash",
                by="user",
                scope="session",
                rests_on="tu_00",
            ),
        ),
        (
            "permission.denied",
            logs.PermissionDenied(
                intent_id="tu_01",
                tool_name="bash",
                by="rule",
                rule="no-reset",
                reason="destructive",
            ),
        ),
        (
            "log.pruned",
            logs.LogPruned(
                session="s1",
                records=3,
                first_id="01A",
                last_id="01B",
                head="ab" * 32,
                before=datetime(2026, 1, 1, tzinfo=UTC),
            ),
        ),
        ("log.erased", logs.LogErased(session="s1", numbers=(2,), hashes=("ab" * 32,))),
        ("record.erased", logs.RecordErased(was="message.recorded")),
    ],
    ("system", "pseudonymous"): [
        (
            "model.swapped",
            logs.ModelSwapped("acme:large", "other:small", "the user asked", (LOSS,)),
        ),
        (
            "budget.exceeded",
            logs.BudgetExceeded(
                budget="cost", limit=Decimal("1.00"), used=Decimal("1.0425"), unit="USD"
            ),
        ),
        (
            "guard.judged",
            logs.GuardJudged(
                stage="intent",
                action="block",
                judge="rules",
                version="7",
                code="no-deletion",
                latency_ms=1.5,
                cost_usd=Decimal("0.001"),
                sha256="ab" * 32,
                characters=40,
                request_id="r1",
            ),
        ),
        ("routing.chosen", logs.RoutingChosen("b:small", "weighted: its turn by weight", "r1")),
        (
            "routing.switched",
            logs.RoutingSwitched(
                from_="acme:large",
                to="b:small",
                reason="rate_limit",
                error_class="rate_limit",
                request_id="r1",
            ),
        ),
        (
            "routing.provider_unavailable",
            logs.ProviderUnavailable("acme", "provider_wide", "auth_error", ("large", "small")),
        ),
        (
            "routing.provider_recovered",
            logs.ProviderRecovered("acme", "model_specific", 31.5, ("large",)),
        ),
    ],
}
# Each sample is (type, payload, actor, sensitivity).
SAMPLES: list[tuple[str, Any, str, str]] = [
    (kind, payload, *facts) for facts, group in _GROUPS.items() for kind, payload in group
]
OF_THE_LOG = ("log.pruned", "log.erased", "record.erased")
WRITABLE = [payload for kind, payload, *_ in SAMPLES if kind not in OF_THE_LOG]

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
