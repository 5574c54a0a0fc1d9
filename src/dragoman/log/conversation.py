"""The conversation of a session: every recorded message, and which of them are sent to the model.

Both are derived from the records alone. A ``context.projected`` record changes which messages are
sent, but removes no message; a ``session.resumed`` record with ``at`` returns to the conversation
as it was after the record ``at``.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ..messages import Message, ToolResult, User
from .payloads import ContextProjected, MessageRecorded, SessionResumed
from .record import LogRecord

# A number means that the conversation returned to its state after the record with that number.
_Change: TypeAlias = MessageRecorded | ContextProjected | int


class Sent(Struct, kw_only=True):
    """A recorded message that is sent to the model.

    ``instead`` replaces the content of a tool result; ``is_note`` marks a message that a context
    policy wrote.
    """

    seq: int
    recorded: MessageRecorded
    is_goal: bool = False
    is_note: bool = False
    instead: str | None = None
    # a model's name, and the estimated number of tokens of this message for that model
    measured: tuple[str, int] | None = None

    @property
    def message(self) -> Message:
        """The message as it is sent: with ``instead`` as its content, if that is set."""
        message = self.recorded.message
        if self.instead is None or not isinstance(message, ToolResult):
            return message
        return replace(message, content=self.instead)


class Conversation:
    """The messages of a session in order; ``entries`` are those that are sent to the model."""

    def __init__(self) -> None:
        self.messages: list[MessageRecorded] = []
        self.entries: list[Sent] = []
        self._history: list[tuple[int, _Change, bool]] = []

    def apply(self, record: LogRecord, payload: object) -> bool:
        """Process a record; return whether it changes the conversation."""
        if isinstance(payload, MessageRecorded):
            if payload.in_context:
                is_goal = isinstance(payload.message, User) and record.actor == "user"
                self.add(record.seq, payload, is_goal=is_goal)
            return payload.in_context
        if isinstance(payload, ContextProjected):
            self.project(record.seq, payload)
            return True
        if isinstance(payload, SessionResumed) and payload.at is not None:
            self.rewind(record.seq, payload.at)
            return True
        return False

    def add(self, seq: int, recorded: MessageRecorded, *, is_goal: bool) -> None:
        """Add a message; ``is_goal`` marks a message that the user wrote."""
        self._history.append((seq, recorded, is_goal))
        self._take(seq, recorded, is_goal)

    def project(self, seq: int, projected: ContextProjected) -> None:
        """Apply a projection: stop sending the messages that it leaves out."""
        self._history.append((seq, projected, False))
        self._take(seq, projected, False)

    def rewind(self, seq: int, at: int) -> None:
        """Restore the conversation as it was after the record ``at``.

        ``seq`` is the number of the record that orders the return to this state.
        """
        self._history.append((seq, at, False))
        self._take(seq, at, False)

    def list_changes(
        self, until: int | None = None
    ) -> list[tuple[int, MessageRecorded | ContextProjected, bool]]:
        """Return the messages and projections that make up the conversation.

        Each is returned with the number of its record and whether it is a goal of the user.
        """
        changes: list[tuple[int, MessageRecorded | ContextProjected, bool]] = []
        for seq, change, is_goal in self._history:
            if until is not None and seq > until:
                break
            if isinstance(change, int):
                changes = self.list_changes(change)
            else:
                changes.append((seq, change, is_goal))
        return changes

    def _take(self, seq: int, change: _Change, is_goal: bool) -> None:
        if isinstance(change, int):
            self.messages = []
            self.entries = []
            for each in self._history:
                if each[0] > change:
                    break
                self._take(*each)
        elif isinstance(change, MessageRecorded):
            self.messages.append(change)
            self.entries.append(Sent(seq=seq, recorded=change, is_goal=is_goal))
        else:
            self._leave_out(seq, change)

    def _leave_out(self, seq: int, projected: ContextProjected) -> None:
        gone = {each.seq: each for each in projected.left_out}
        kept: list[Sent] = []
        place: int | None = None  # index of the first message that is left out
        for entry in self.entries:
            found = gone.get(entry.seq)
            if found is None:
                kept.append(entry)
            elif found.instead is not None:
                kept.append(replace(entry, instead=found.instead, measured=None))
            elif place is None:
                place = len(kept)
        if projected.note is not None and place is not None:
            kept.insert(
                place,
                Sent(
                    seq=seq, recorded=MessageRecorded(message=User(projected.note)), is_note=True
                ),
            )
        self.entries = kept
