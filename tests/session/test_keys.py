"""Test goals that have a key, and sessions that are opened by their name."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import OverloadedError
from dragoman.log import LogCorruptError, SqliteLog
from dragoman.messages import User
from dragoman.permission import Decision, Policy, Rule
from dragoman.session import Budget, Session

from ..listed import Listed
from .playing import ALL, call, check_evidence, look, note, of, propose, ran, types
from .test_resume import cut

ASK = Policy([Rule("allow", side_effect=["none", "read"])])


async def open_session(log: SqliteLog, *replies: Any, **settings: Any) -> Session:
    policy = settings.pop("policy", ALL)
    return await Session.open(
        Listed(*replies, name="p"), [look, note], policy, log, "s1", **settings
    )


def goals(log: SqliteLog) -> list[str]:
    messages = of(list(log.read("s1")), "message.recorded")
    return [each.message.text for each in messages if isinstance(each.message, User)]


async def test_goal_of_a_key_is_added_once_and_its_outcome_is_recorded(log: SqliteLog) -> None:
    session = await open_session(log, "One.", "Two.")
    first = await session.run("Go.", key="g1")
    assert first.text == "One."
    assert (await session.run("Go.", key="g1")) == first
    second = await session.run("On.", key="g2")
    assert second.text == "Two."
    again = await open_session(log)
    assert (await again.run("Go.", key="g1")).text == "One."
    assert (await again.run("On.", key="g2")) == second
    assert (await again.step("On.", key="g2")).outcome == second
    assert goals(log) == ["Go.", "On."]


async def test_goal_of_a_key_continues_after_an_error_of_the_provider(log: SqliteLog) -> None:
    session = await open_session(log, OverloadedError("busy"), "Done.")
    with pytest.raises(OverloadedError):
        await session.run("Go.", key="g1")
    assert (await session.run("Go.", key="g1")).text == "Done."
    assert goals(log) == ["Go."]


async def test_outcome_of_an_exhausted_goal_is_recorded(log: SqliteLog) -> None:
    reply = propose(call("look", word="a"))
    session = await open_session(log, reply, "Done.", budget=Budget(steps=1))
    assert (await session.run("Go.", key="g1")).outcome == "exhausted"
    again = await open_session(log)
    assert (await again.run("Go.", key="g1")).outcome == "exhausted"
    assert types(list(log.read("s1")))[-1] == "session.finished"


async def test_recorded_outcome_has_the_structured_answer(log: SqliteLog) -> None:
    class Sum(msgspec.Struct):
        total: int

    session = await open_session(log, "Three.", '{"total": 3}', output=Sum)
    assert (await session.run("Go.", key="g1")).output == Sum(3)
    again = await open_session(log, output=Sum)
    assert (await again.run("Go.", key="g1")).output == Sum(3)


async def test_waiting_goal_continues_under_its_key(log: SqliteLog) -> None:
    session = await open_session(log, propose(call("note", text="x")), approve="wait", policy=ASK)
    waiting = await session.run("Go.", key="g1")
    assert (await session.run("Go.", key="g1")).pending == waiting.pending
    await session.answer(waiting.pending[0].intent_id, Decision(True, "ann"))
    again = await open_session(log, "Done.", "More.", approve="wait", policy=ASK)
    assert (await again.run("Go.", key="g1")).text == "Done."
    assert ran == ["x"]
    assert goals(log) == ["Go."]


@pytest.mark.parametrize("key", ["g2", None])
async def test_results_of_calls_that_waited_come_before_the_next_goal(
    log: SqliteLog, key: str | None
) -> None:
    session = await open_session(
        log, propose(call("note", text="x")), "Done.", approve="wait", policy=ASK
    )
    waiting = await session.run("Go.", key="g1")
    await session.answer(waiting.pending[0].intent_id, Decision(True, "ann"))
    assert (await session.run("And?", key=key)).text == "Done."
    kinds = [each.message.role for each in session.state.messages]
    assert kinds == ["user", "assistant", "tool", "user", "assistant"]
    check_evidence(list(log.read("s1")))


LENGTH = 24


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("story") / "story.db"

    async def play(log: SqliteLog) -> None:
        session = await open_session(log, propose(call("note", text="c")), "Done.", "More.")
        await session.run("Go.", key="g1")
        await session.run("On.", key="g2")

    class Story:
        def __init__(self) -> None:
            self.path = path
            with SqliteLog(path) as log:
                asyncio.run(play(log))
                self.records = list(log.read("s1"))

    return Story()


def test_story_has_as_many_records_as_the_tests_expect(story: Any) -> None:
    assert len(story.records) == LENGTH


@pytest.mark.parametrize("length", range(1, LENGTH + 1))
async def test_job_can_be_repeated_after_each_of_its_records(
    length: int, tmp_path: Path, story: Any
) -> None:
    ran.clear()
    with cut(story, length, tmp_path / "cut.db") as log:
        for _ in range(2):
            session = await open_session(log, "Well.", "Well.")
            await session.run("Go.", key="g1")
            outcome = await session.run("On.", key="g2")
            assert outcome.outcome == "completed"
        assert goals(log) == ["Go.", "On."]
        assert ran == []
        assert log.verify().ok
        check_evidence(list(log.read("s1")))


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", 7])
async def test_key_is_a_short_printable_text(key: Any) -> None:
    with pytest.raises(ValueError, match="key: must be 1 to 255 printable characters"):
        await Session(Listed("x")).run("Go.", key=key)
    with pytest.raises(ValueError, match="key: belongs to a goal"):
        await Session(Listed("x")).run(key="g1")


async def test_open_reports_a_broken_chain_as_resume_does(tmp_path: Path, story: Any) -> None:
    path = tmp_path / "cut.db"
    cut(story, 9, path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE records SET payload = payload || ' ' WHERE seq = 4")
    connection.commit()
    connection.close()
    with SqliteLog(path) as log, pytest.raises(LogCorruptError):
        await open_session(log)


async def test_opened_session_takes_the_goal_as_a_message(log: SqliteLog) -> None:
    session = await open_session(log, "Done.")
    assert (await session.run(User("Go."), key="g1")).text == "Done."
