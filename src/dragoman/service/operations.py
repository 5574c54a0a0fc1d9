"""The operations of a service of sessions: their paths, their bodies, and what they do."""

from __future__ import annotations

from ..gateway.operations import Operation
from ..trace.approval import GivenDecision
from .ag_ui import RunInput
from .bodies import GivenResult, NewGoal, NewSession
from .ui_messages import ChatInput

_SESSION = "/v1/sessions/{name}"

OPERATIONS = [
    Operation(
        method="GET", path="/v1/agents", handler="list_agents",
        summary="The agents that a session can run with.",
    ),
    Operation(
        method="POST", path="/v1/sessions", handler="start", body=NewSession, status=201, also=200,
        summary="Start a session with a goal; a key makes the request repeatable.",
    ),
    Operation(
        method="GET", path="/v1/sessions", handler="list_sessions",
        query=("limit", "after", "status", "agent", "owner"),
        summary="The sessions of the caller, the newest first, a page at a time.",
    ),
    Operation(
        method="GET", path="/v1/questions", handler="list_questions",
        query=("limit", "after", "state"),
        summary="What sessions wait for, or who answered what: the queue of questions.",
    ),
    Operation(
        method="GET", path=f"{_SESSION}", handler="show",
        summary="A session: its state, its last text, what it spent and what it waits for.",
    ),
    Operation(
        method="GET", path=f"{_SESSION}/events", handler="send_events",
        query=("after", "follow"), media_type="text/event-stream",
        summary="The records of a session as server-sent events; Last-Event-ID resumes the stream.",
    ),
    Operation(
        method="POST", path=f"{_SESSION}/goals", handler="add_goal", body=NewGoal, status=202,
        summary="Give a session that has ended another goal.",
    ),
    Operation(
        method="POST", path=f"{_SESSION}/decisions/{{intent}}", handler="decide",
        body=GivenDecision,
        summary="Decide about a tool call; the first decision counts, and is returned.",
    ),
    Operation(
        method="POST", path=f"{_SESSION}/results/{{intent}}", handler="observe", body=GivenResult,
        summary="Give the result of a tool call that runs elsewhere; the first result counts.",
    ),
    Operation(
        method="POST", path=f"{_SESSION}/cancel", handler="cancel",
        summary="Stop a session, whether it runs or waits.",
    ),
]  # fmt: skip
_STREAM = "text/event-stream"
CHATS = [
    Operation(
        method="POST", path="/v1/agents/{name}/ag-ui", handler="run_ag_ui", body=RunInput,
        media_type=_STREAM, summary="A run of an agent as events of AG-UI; a thread is a session.",
    ),
    Operation(
        method="POST", path="/v1/agents/{name}/ui-messages", handler="run_chat", body=ChatInput,
        media_type=_STREAM, summary="A run of an agent as a UI message stream; a chat is a session.",
    ),
    Operation(
        method="GET", path="/v1/agents/{name}/ui-messages/{chat}/stream", handler="resume_chat",
        media_type=_STREAM, also=204,
        summary="The run of a chat that is in progress, from its beginning.",
    ),
]  # fmt: skip
