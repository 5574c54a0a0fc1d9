"""The records of an example session: an agent reads a failing test and fixes the code."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from dragoman.events import AssembledFrom, IntentSource, ToolIntent
from dragoman.log import (
    CallCompleted,
    CallFailed,
    CallStarted,
    EventLog,
    MessageRecorded,
    Payload,
    PermissionDenied,
    PermissionGranted,
    PermissionRequested,
    SessionFinished,
    SessionStarted,
    ToolIntentClosed,
    ToolObserved,
    ToolStarted,
    TurnStarted,
)
from dragoman.messages import Assistant, Text, Thinking, ToolCall, ToolResult, User

GOAL = "Find out why the tests fail and fix them"


MODEL: Any = {"model": "claude-sonnet-4-6", "provider": "anthropic"}


def intent(number: int, tool: str, arguments: dict[str, Any]) -> ToolIntent:
    return ToolIntent(
        f"tu_{number}", f"call_{number}", tool, arguments, "{}",
        IntentSource("anthropic", "claude-sonnet-4-6", f"r{number}", 1), AssembledFrom(3, 10, 90),
    )  # fmt: skip


def call(
    number: int, tokens: tuple[int, int, int], cost: str | None, stop: str = "tool_use"
) -> list[Payload]:
    """Return the records of a new turn and of its call to the model."""
    asked: dict[str, Any] = {**MODEL, "request_id": f"r{number}"}
    counts = dict(
        zip(("input_tokens", "output_tokens", "cached_input_tokens"), tokens, strict=True)
    )
    return [
        TurnStarted(number, **MODEL),
        CallStarted(**asked, estimated_input_tokens=tokens[0], stream=True),
        CallCompleted(
            **asked, **counts, stop_reason=stop, latency_ms=800.0 + number, produced_tool_calls=1,
            cost_usd=Decimal(cost) if cost else None, pricing_version="2026-11",
        ),  # type: ignore[arg-type]
    ]  # fmt: skip


def use(number: int, tool: str, arguments: dict[str, Any], words: str) -> list[Payload]:
    """Return the records of a message with text and a proposed tool call."""
    said = Assistant(
        [Thinking("Let me see."), Text(words), ToolCall(f"call_{number}", tool, arguments)],
    )
    return [
        MessageRecorded(said, "claude-sonnet-4-6", "anthropic", f"r{number}", "tool_calls"),
        intent(number, tool, arguments),
    ]


def observe(
    number: int, tool: str, arguments: dict[str, Any], content: str, **facts: Any
) -> list[Payload]:
    """Return the records of a tool run and of its result."""
    return [
        ToolStarted(f"tu_{number}", tool, arguments, {"sandbox": "bwrap"}),
        ToolObserved(f"tu_{number}", tool, content, duration_ms=12.5, **facts),
        MessageRecorded(
            ToolResult(f"call_{number}", content, is_error=facts.get("is_error", False))
        ),
    ]


TEST = {"command": "make test"}
EDIT = {"path": "add.py", "old": "a - b", "new": "a + b"}
REMOVE = {"command": "rm -rf /"}
STORY: list[Payload] = [
    SessionStarted(GOAL, "claude-sonnet-4-6", "anthropic", ("bash", "edit_file")),
    MessageRecorded(User(GOAL)),
    *call(1, (1200, 45, 0), "0.004275"),
    *use(1, "bash", TEST, "I will run the tests first."),
    PermissionGranted("tu_1", "bash", "policy", "bash: make *"),
    *observe(1, "bash", TEST, "expected 4, received 5\n", is_error=True, exit_code=1),
    *call(2, (1300, 60, 1100), "0.00183"),
    *use(2, "bash", REMOVE, "I will clear the disk."),
    PermissionDenied("tu_2", "bash", "policy", "bash: rm *", "removes files"),
    MessageRecorded(ToolResult("call_2", "denied: removes files", is_error=True)),
    CallFailed(
        **MODEL,
        request_id="r3",
        error_class="rate_limit",
        error_message_redacted="slow down",
        latency_ms=30.0,
        status=429,
    ),
    *call(3, (1500, 80, 1300), "0.00219"),
    *use(3, "edit_file", EDIT, "The sign is wrong."),
    PermissionRequested("tu_3", "edit_file", "writes a file", "write: ask"),
    PermissionGranted("tu_3", "edit_file", "user", reason="looks right"),
    *observe(3, "edit_file", EDIT, "1 replacement"),
    *call(4, (1600, 20, 1500), None, "end_turn"),
    MessageRecorded(
        Assistant("The tests are green."), "claude-sonnet-4-6", "anthropic", "r4", "stop"
    ),
    SessionFinished("completed", None, 4),
]
LEFT_OPEN: list[Payload] = [
    SessionStarted("Only look"),
    MessageRecorded(User("Only look")),
    *call(1, (100, 5, 0), None),
    *use(1, "bash", TEST, "Looking."),
    ToolIntentClosed("tu_1", "the session was killed", "bash"),
]


def tell(log: EventLog, session: str = "fix", story: list[Payload] | None = None) -> None:
    """Write the records of the example session to a log."""
    turn = None
    for payload in STORY if story is None else story:
        if isinstance(payload, TurnStarted):
            turn = f"t{payload.number}"
        actor: Any = (
            "user" if isinstance(payload, PermissionGranted) and payload.by == "user" else None
        )
        log.append_sync(session, payload, turn=turn, actor=actor)
