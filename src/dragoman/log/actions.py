"""The payloads of tool calls and permissions: what became of an intent."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from ..messages import UserBlock

SideEffect: TypeAlias = Literal["none", "read", "write", "execute", "network"]


class ToolIntentValidated(Struct, frozen=True, omit_defaults=True):
    """An intent names an existing tool and has valid input.

    ``side_effect`` is the kind of effect that running the tool has.
    """

    intent_id: str
    tool_name: str
    side_effect: SideEffect
    paths: tuple[str, ...] = ()


class ToolIntentRejected(Struct, frozen=True, omit_defaults=True):
    """An intent cannot be run. This is neither a permission decision nor a failure of a tool."""

    intent_id: str
    tool_name: str
    problem: Literal["unknown_tool", "invalid_arguments"]
    detail: str = ""


class ToolIntentClosed(Struct, frozen=True, omit_defaults=True):
    """An intent ended without a result: it was open when the session stopped, or was abandoned.

    ``started`` is whether it had begun to run, in which case its effect is unknown; ``None`` in
    older records.
    """

    intent_id: str
    reason: str
    tool_name: str | None = None
    started: bool | None = None


class PermissionRequested(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A permission decision about an intent is needed.

    An ``attempt`` above 1 means that the call was interrupted, and whether it may run again.
    """

    intent_id: str
    tool_name: str
    reason: str = ""
    rule: str | None = None
    attempt: int = 1


class PermissionGranted(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An intent may run; ``by`` is the user or the rule that allowed it.

    Use ``actor="user"`` if a person allowed it. ``input`` is the input to run with, if the
    decision changed it. ``scope`` is what else the decision allows in the session: all calls of
    the tool, calls with the same paths, or commands that begin with ``prefix``. If an earlier such
    decision allowed this intent, ``rests_on`` is the intent that it was made about.
    """

    intent_id: str
    tool_name: str
    by: str
    rule: str | None = None
    reason: str = ""
    scope: Literal["once", "session", "path", "prefix"] = "once"
    prefix: str | None = None
    input: dict[str, Any] | None = None
    rests_on: str | None = None


class PermissionDenied(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An intent was denied permission to run. This is a decision, not an error."""

    intent_id: str
    tool_name: str
    by: str
    rule: str | None = None
    reason: str = ""


class PermissionAnswered(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Another process answered a permission request of a session; the session records the result.

    The record belongs to the session ``NAME.answers``, since only the process that runs a session
    writes to it. ``attempt`` is that of the request.
    """

    intent_id: str
    allowed: bool
    by: str
    reason: str = ""
    scope: Literal["once", "session", "path", "prefix"] = "once"
    prefix: str | None = None
    input: dict[str, Any] | None = None
    attempt: int = 1


class ToolAnswered(Struct, frozen=True, omit_defaults=True):
    """Another process gave the result of a call that runs outside of its session.

    Like ``permission.answered``, the record belongs to the session ``NAME.answers``. ``by`` is who
    gave it, if that is known.
    """

    intent_id: str
    content: str | tuple[UserBlock, ...]
    is_error: bool = False
    by: str = ""


class ToolStarted(Struct, frozen=True, omit_defaults=True):
    """A tool began to run with ``input``; ``context`` describes how (folder, sandbox, limits).

    ``external`` in the context means that the session does not run it, but waits for its result.
    """

    intent_id: str
    tool_name: str
    input: dict[str, Any]
    context: dict[str, Any] = field(default_factory=dict)


class ToolRestarted(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A call that was interrupted began to run again, with the same input and idempotency key.

    ``attempt`` is 2 for the first time that it runs again. The other fields are those of
    ``tool.started``, which a call has only once.
    """

    intent_id: str
    tool_name: str
    attempt: int
    input: dict[str, Any]
    context: dict[str, Any] = field(default_factory=dict)


class ToolProgress(Struct, frozen=True, omit_defaults=True):
    """A running tool reported how far it is, as any JSON value."""

    intent_id: str
    tool_name: str
    progress: Any


class SessionDelegated(Struct, frozen=True, omit_defaults=True):
    """A running tool call began another session, whose id is ``session``."""

    intent_id: str
    tool_name: str
    session: str


class ToolObserved(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a tool returned. An error that the tool returned is also an observation."""

    intent_id: str
    tool_name: str
    content: str | tuple[UserBlock, ...]
    is_error: bool = False
    truncated: bool = False
    exit_code: int | None = None
    duration_ms: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


class ToolFailed(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool could not be run to completion, so there is no observation."""

    intent_id: str
    tool_name: str
    kind: str
    message: str
    duration_ms: float | None = None
