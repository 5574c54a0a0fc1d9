"""The records of an example session: an agent reads a failing test and fixes the code."""

from decimal import Decimal
from typing import Any

import dragoman as d
from dragoman import log as logs
from dragoman.events import AssembledFrom, IntentSource

GOAL = "Find out why the tests fail and fix them"


MODEL: Any = {"model": "claude-sonnet-4-6", "provider": "anthropic"}


def intent(number: int, tool: str, arguments: dict[str, Any]) -> d.ToolIntent:
    return d.ToolIntent(
        id=f"tu_{number}",
        provider_call_id=f"call_{number}",
        tool_name=tool,
        input=arguments,
        raw_input_text="{}",
        source=IntentSource("anthropic", "claude-sonnet-4-6", f"r{number}", 1),
        assembled_from=AssembledFrom(3, 10, 90),
    )


def call(
    number: int, tokens: tuple[int, int, int], cost: str | None, stop: str = "tool_use"
) -> list[logs.Payload]:
    """Return the records of a new turn and of its call to the model."""
    asked: dict[str, Any] = {**MODEL, "request_id": f"r{number}"}
    counts = dict(
        zip(("input_tokens", "output_tokens", "cached_input_tokens"), tokens, strict=True)
    )
    return [
        logs.TurnStarted(number, **MODEL),
        logs.CallStarted(**asked, estimated_input_tokens=tokens[0], stream=True),
        logs.CallCompleted(
            **asked, **counts, stop_reason=stop, latency_ms=800.0 + number, produced_tool_calls=1,
            cost_usd=Decimal(cost) if cost else None, pricing_version="2026-11",
        ),  # type: ignore[arg-type]
    ]  # fmt: skip


def use(number: int, tool: str, arguments: dict[str, Any], words: str) -> list[logs.Payload]:
    """Return the records of a message with text and a proposed tool call."""
    said = d.Assistant(
        [d.Thinking("Let me see."), d.Text(words), d.ToolCall(f"call_{number}", tool, arguments)],
    )
    return [
        logs.MessageRecorded(
            message=said,
            model="claude-sonnet-4-6",
            provider="anthropic",
            request_id=f"r{number}",
            finish_reason="tool_calls",
        ),
        intent(number, tool, arguments),
    ]


def observe(
    number: int, tool: str, arguments: dict[str, Any], content: str, **facts: Any
) -> list[logs.Payload]:
    """Return the records of a tool run and of its result."""
    return [
        logs.ToolStarted(f"tu_{number}", tool, arguments, {"sandbox": "bwrap"}),
        logs.ToolObserved(
            intent_id=f"tu_{number}", tool_name=tool, content=content, duration_ms=12.5, **facts
        ),
        logs.MessageRecorded(
            message=d.ToolResult(f"call_{number}", content, is_error=facts.get("is_error", False))
        ),
    ]


TEST = {"command": "make test"}
EDIT = {"path": "add.py", "old": "a - b", "new": "a + b"}
REMOVE = {"command": "rm -rf /"}
STORY: list[logs.Payload] = [
    logs.SessionStarted(
        goal=GOAL, model="claude-sonnet-4-6", provider="anthropic", tools=("bash", "edit_file")
    ),
    logs.MessageRecorded(message=d.User(GOAL)),
    *call(1, (1200, 45, 0), "0.004275"),
    *use(1, "bash", TEST, "I will run the tests first."),
    logs.PermissionGranted(intent_id="tu_1", tool_name="bash", by="policy", rule="bash: make *"),
    *observe(1, "bash", TEST, "expected 4, received 5\n", is_error=True, exit_code=1),
    *call(2, (1300, 60, 1100), "0.00183"),
    *use(2, "bash", REMOVE, "I will clear the disk."),
    logs.PermissionDenied(
        intent_id="tu_2", tool_name="bash", by="policy", rule="bash: rm *", reason="removes files"
    ),
    logs.MessageRecorded(message=d.ToolResult("call_2", "denied: removes files", is_error=True)),
    logs.CallFailed(
        **MODEL,
        request_id="r3",
        error_class="rate_limit",
        error_message_redacted="slow down",
        latency_ms=30.0,
        status=429,
    ),
    *call(3, (1500, 80, 1300), "0.00219"),
    *use(3, "edit_file", EDIT, "The sign is wrong."),
    logs.PermissionRequested(
        intent_id="tu_3", tool_name="edit_file", reason="writes a file", rule="write: ask"
    ),
    logs.PermissionGranted(
        intent_id="tu_3", tool_name="edit_file", by="user", reason="looks right"
    ),
    *observe(3, "edit_file", EDIT, "1 replacement"),
    *call(4, (1600, 20, 1500), None, "end_turn"),
    logs.MessageRecorded(
        message=d.Assistant("The tests are green."),
        model="claude-sonnet-4-6",
        provider="anthropic",
        request_id="r4",
        finish_reason="stop",
    ),
    logs.SessionFinished("completed", None, 4),
]
LEFT_OPEN: list[logs.Payload] = [
    logs.SessionStarted(goal="Only look"), logs.MessageRecorded(message=d.User("Only look")),
    *call(1, (100, 5, 0), None), *use(1, "bash", TEST, "Looking."),
    logs.ToolIntentClosed("tu_1", "the session was killed", "bash"),
]  # fmt: skip


def tell(
    log: logs.EventLog, session: str = "fix", story: list[logs.Payload] | None = None
) -> None:
    """Write the records of the example session to a log."""
    turn = None
    for payload in STORY if story is None else story:
        if isinstance(payload, logs.TurnStarted):
            turn = f"t{payload.number}"
        actor: Any = (
            "user"
            if isinstance(payload, logs.PermissionGranted) and payload.by == "user"
            else None
        )
        log.append_sync(session, payload, turn=turn, actor=actor)
