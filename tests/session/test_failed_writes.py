"""Test that a record which could not be written leaves the session as it was before."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dragoman.log import (
    LogRecord,
    LogStorageError,
    MemoryLog,
    MessageRecorded,
    ModelSwapped,
    SessionResumed,
)
from dragoman.messages import User
from dragoman.session import Session

from ..listed import Listed
from .playing import types


class FailingLog(MemoryLog):
    """A log that cannot write the next record of the class ``refused``."""

    refused: type | None = None

    async def append(self, session: str, payload: Any, **facts: Any) -> LogRecord:
        if self.refused is not None and type(payload) is self.refused:
            self.refused = None
            raise LogStorageError("the disk failed")
        return await super().append(session, payload, **facts)


def listed(name: str = "p") -> Listed:
    return Listed("Fine.", name=name, repeat=True)


def list_goals(session: Session) -> list[Any]:
    return [each.content for each in session.messages if isinstance(each, User)]


async def _queue(session: Session, log: FailingLog) -> None:
    session.follow_up("And more.")
    log.refused = SessionResumed
    with pytest.raises(LogStorageError):
        await session.run()
    await session.run()
    assert list_goals(session) == ["Go.", "And more."]


async def _queue_in_a_run(session: Session, log: FailingLog) -> None:
    await session.step("Next.")
    session.follow_up("And more.")
    log.refused = MessageRecorded
    with pytest.raises(LogStorageError):
        await session.run()
    await session.run()
    assert list_goals(session) == ["Go.", "Next.", "And more."]


async def _swap(session: Session, log: FailingLog) -> None:
    before = session.provider
    log.refused = ModelSwapped
    with pytest.raises(LogStorageError):
        await session.swap(listed("other"))
    assert session.provider is before
    await session.run("Again.")
    assert session.state.model == "p:m"


async def _place(session: Session, log: FailingLog) -> None:
    await session.run("Then.")
    first = next(
        record.seq
        for record in log.read(session.id)
        if record.type == "message.recorded" and record.data["message"]["role"] == "assistant"
    )
    again = await Session.resume(listed(), [], None, log, session.id, at=first)
    log.refused = SessionResumed
    with pytest.raises(LogStorageError):
        await again.run("Otherwise.")
    await again.run("Otherwise.")
    assert list_goals(again) == ["Go.", "Otherwise."]


@pytest.mark.parametrize("case", [_queue, _queue_in_a_run, _swap, _place])
async def test_failed_write_leaves_the_session_as_it_was(
    case: Callable[[Session, FailingLog], Awaitable[None]],
) -> None:
    log = FailingLog()
    session = Session(listed(), [], None, log, session_id="s")
    await session.run("Go.")
    await case(session, log)
    assert log.refused is None
    assert types(list(log.read("s")))[-1] == "session.finished"
