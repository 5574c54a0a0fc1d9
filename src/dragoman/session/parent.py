"""What a session that a tool call runs inherits from the session of this call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from ..log import CalledBy, SessionDelegated
from ..permission import Decision, Gate, Proposal, Verdict
from .budget import SharedBudget
from .journal import Journal
from .outcome import SessionError
from .state import IntentState

MAX_DEPTH = 4
"""How deep sessions may be nested in tool calls."""
MAX_SUBSESSIONS = 100
"""How many sessions the calls of one session may run."""
_T = TypeVar("_T")


@dataclass(eq=False, kw_only=True)
class ParentCall:
    """The running call of a session, in which another session runs."""

    kept: IntentState
    journal: Journal
    gate: Gate
    account: SharedBudget
    waits: bool
    depth: int
    linked: set[str]  # the sessions that the calls of the parent have run
    stays_open: Callable[[], bool]  # whether what the parent does now continues in its next run
    deps: Any = None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    @property
    def reference(self) -> CalledBy:
        """The reference that the first record of the sub-session has."""
        return CalledBy(self.journal.session, self.kept.intent.id)

    def check_depth(self) -> None:
        """Raise ``SessionError`` if a session in this call would be nested too deeply."""
        if self.depth >= MAX_DEPTH:
            raise SessionError(f"sessions are nested more than {MAX_DEPTH} deep")

    async def link(self, session: str) -> None:
        """Record that a session runs in this call; raise ``SessionError`` if there are too many."""
        if session in self.kept.children:
            return
        self.linked.update(self.journal.state.list_children())
        if len(self.linked) >= MAX_SUBSESSIONS:
            raise SessionError(f"the session has run {MAX_SUBSESSIONS} others; that is the limit")
        self.linked.add(session)
        intent = self.kept.intent
        delegated = SessionDelegated(intent.id, intent.tool_name, session)
        writing = self.journal.write(delegated, parent=self.kept.record, turn=self.kept.turn)
        await self._run(writing)

    async def ask(self, proposal: Proposal, verdict: Verdict) -> Decision:
        """Ask the approver of the parent about a call of the session below."""
        return await self._run(self.gate.ask(proposal, verdict, once=True))

    async def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run work in the parent's event loop; a synchronous session below has another one."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


PARENT: ContextVar[ParentCall | None] = ContextVar("parent", default=None)
