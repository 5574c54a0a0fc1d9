"""Test resuming a session after each of its records: no effect happens twice, no intent stays open."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from dragoman.log import LogCorruptError, SqliteLog
from dragoman.messages import Assistant, ToolResult
from dragoman.session import Session, SessionError, reduce_records
from dragoman.validate import build_request, check_request

from ..listed import Listed
from .playing import ALL, call, check_evidence, look, note, of, propose, ran, types


def script() -> Listed:
    return Listed(
        propose(
            call("look", call_id="1", word="a"), call("look", call_id="2", word="b"), words="Hm."
        ),
        propose(call("note", call_id="1", text="c"), call("look", call_id="2", word="d")),
        "Done.",
        name="p",
    )


class Story:
    """Hold the log of a complete run; the tests use copies that end after one of its records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with SqliteLog(path) as log:
            asyncio.run(Session(script(), [look, note], ALL, log, session_id="s1").run("Go."))
            self.records = list(log.read("s1"))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story") / "story.db")


def cut(story: Story, length: int, path: Path) -> SqliteLog:
    """Return a copy of the log in which the session stops after ``length`` records."""
    source = sqlite3.connect(story.path)
    target = sqlite3.connect(path)
    source.backup(target)
    target.execute("DELETE FROM records WHERE seq > ?", (length,))
    target.commit()
    target.close()
    source.close()
    return SqliteLog(path)


LENGTH = 39


def test_complete_run_writes_as_many_records_as_the_tests_expect(story: Story) -> None:
    assert len(story.records) == LENGTH


@pytest.mark.parametrize("length", range(1, LENGTH))
async def test_session_can_be_resumed_after_each_of_its_records(
    length: int, tmp_path: Path, story: Story
) -> None:
    ran.clear()
    with cut(story, length, tmp_path / "cut.db") as log:
        before = list(log.read("s1"))
        opened = reduce_records(before).open_intents
        dangling = [kept.intent.id for kept in opened]
        again = [kept for kept in opened if kept.started and kept.intent.tool_name == "look"]
        provider = Listed("And so on.", name="p")
        session = await Session.resume(provider, [look, note], ALL, log, "s1")
        outcome = await session.run()
        assert outcome.text == ("Done." if length >= LENGTH - 2 else "And so on.")
        records = list(log.read("s1"))
        assert log.verify().ok
        # A call that only reads runs again, with the other calls of its reply; no other call runs.
        continued = opened if again else []
        assert sorted(ran) == sorted(kept.input["word"] for kept in continued)
        assert {it.intent_id for it in of(records, "tool.restarted")} == {
            kept.intent.id for kept in again
        }
        steps = check_evidence(records)
        [resumed] = of(records, "session.resumed")
        assert resumed.after == length
        assert list(resumed.open_intents) == dangling
        assert sorted(each.intent_id for each in of(records, "tool_intent.closed")) == sorted(
            [] if again else dangling
        )
        assert all(chain.count("tool.started") <= 1 for chain in steps.values())
        for asked in provider.requests:
            check_request(build_request(asked.messages, [], None, None, None, model="m"))


async def test_resumed_session_sends_results_and_marks_uncertain_calls(
    tmp_path: Path, story: Story
) -> None:
    async def results(name: str, kind: str, tool_name: str) -> list[str]:
        """Return the tool results that are sent if the session stops at the first such record."""
        found = [r.seq for r in story.records if r.type == kind and tool_name in str(r.data)]
        with cut(story, found[0], tmp_path / name) as log:
            provider = Listed("Well.", name="p")
            await (await Session.resume(provider, [look, note], ALL, log, "s1")).run()
        return [m.text for m in provider.requests[0].messages if isinstance(m, ToolResult)]

    found = await results("cut.db", "tool_intent.validated", "look")
    assert found == ["Not run: the session ended before this came to an end"] * 2
    later = await results("later.db", "tool.started", "note")
    assert later[-2].startswith("Interrupted, and what it did is not known")


async def test_session_state_can_be_rebuilt_from_the_log(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        session = Session(script(), [look, note], ALL, log, session_id="s1")
        for _ in range(3):
            await session.step("Go." if not log.sessions() else None)
            read = reduce_records(log.read("s1"))
            assert read.messages == session.state.messages
            assert read.spent == session.state.spent
            assert list(read.intents) == list(session.state.intents)
            assert read.intents == session.state.intents
            for name in ("p", "another"):
                assert read.project(name) == session.state.project(name)
                for intent in read.intents:
                    told = read.ids.to_provider(name, intent)
                    assert told == session.state.ids.to_provider(name, intent)
                    assert read.ids.to_intent(name, told) == intent


async def test_session_with_a_broken_chain_cannot_be_resumed(tmp_path: Path, story: Story) -> None:
    path = tmp_path / "cut.db"
    cut(story, 20, path).close()
    connection = sqlite3.connect(path)
    connection.execute(
        "UPDATE records SET payload = replace(payload, 'ox', 'ax') || ' ' WHERE seq = 7"
    )
    connection.commit()
    connection.close()
    with SqliteLog(path) as log, pytest.raises(LogCorruptError, match="cannot resume session"):
        await Session.resume(Listed("x"), [], ALL, log, "s1")


async def test_unknown_session_cannot_be_resumed(tmp_path: Path) -> None:
    with (
        SqliteLog(tmp_path / "log.db") as log,
        pytest.raises(SessionError, match="there is no session 's9'"),
    ):
        await Session.resume(Listed("x"), [], ALL, log, "s9")


async def test_resuming_with_another_provider_is_recorded(tmp_path: Path, story: Story) -> None:
    with cut(story, LENGTH, tmp_path / "cut.db") as log:
        other = Listed("Well.", name="other", model="x")
        session = await Session.resume(other, [look, note], ALL, log, "s1")
        await session.run("And?")
        said = of(list(log.read("s1")), "message.recorded")[-1]
        assert said.routing.mode == "manual"
        assert "another provider than p:m" in said.routing.reason
        calls = [
            c.id
            for m in other.requests[0].messages
            if isinstance(m, Assistant)
            for c in m.tool_calls
        ]
        # The calls are sent with the ids that the session assigned.
        assert calls == list(session.state.intents)
        assert types(list(log.read("s1")))[-1] == "session.finished"


async def test_open_intents_can_be_closed_without_running_them(
    tmp_path: Path, story: Story
) -> None:
    ran.clear()
    proposed = next(r.seq for r in story.records if r.type == "llm.call_completed")
    with cut(story, proposed, tmp_path / "cut.db") as log:
        session = await Session.resume(Listed("Well."), [look, note], ALL, log, "s1")
        dangling = tuple([kept.intent.id for kept in session.state.open_intents])
        assert len(dangling) == 2
        assert await session.close_open_intents("nobody needs it any more") == dangling
        assert await session.close_open_intents("again") == ()
        records = list(log.read("s1"))
        check_evidence(records)
        assert types(records)[proposed:] == ["tool_intent.closed"] * 2 + ["message.recorded"] * 2
        assert [m.text for m in session.messages if isinstance(m, ToolResult)] == [
            "Not run: nobody needs it any more"
        ] * 2
        assert (await session.run()).text == "Well."
        assert ran == []


@pytest.mark.parametrize(
    ("kind", "started"), [("tool.started", True), ("tool_intent.validated", False)]
)
async def test_closed_intent_records_whether_its_tool_had_started(
    kind: str, started: bool, tmp_path: Path, story: Story
) -> None:
    length = [
        record.seq
        for record in story.records
        if record.type == kind and record.data["tool_name"] == "note"
    ][-1]
    with cut(story, length, tmp_path / "log.db") as log:
        session = await Session.resume(Listed("Done.", name="p"), [look, note], ALL, log, "s1")
        await session.run()
        closed = of(list(log.read("s1")), "tool_intent.closed")
        assert closed[0].tool_name == "note"
        assert closed[0].started is started
