"""Test dragoman.sync.Session: it blocks, streams, asks in the caller's thread and can be stopped."""

import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman import Budget, TextDelta, sync
from dragoman.log import SessionFinished
from dragoman.permission import Decision, Policy, Rule
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool

from ..waiting import PATIENCE

ASK = Policy([Rule("ask")])
CALL = Answer(tool_calls=[Call("depth", {"river": "Rhine"})])


@tool(side_effect="read")
def depth(river: str) -> int:
    """Return the depth of a river in metres."""
    return 25


def script(*answers: Any) -> sync.SyncProvider:
    return sync.SyncProvider(ScriptedProvider(*answers))


def find_end(session: sync.Session[Any]) -> str:
    *_, last = session.log.read(session.id)
    assert isinstance(last.payload, SessionFinished)
    return last.payload.outcome


def test_a_session_runs_until_its_outcome() -> None:
    with script(CALL, "It is 25 m deep.") as model:
        session = sync.Session(model, [depth], system="Be brief.", budget=Budget(steps=5))
        outcome = session.run("How deep is the Rhine?")
    assert outcome.outcome == "completed"
    assert outcome.text == "It is 25 m deep."
    assert session.messages[0].content == "Be brief."
    assert session.state.last_seq == len(list(session.log.read(session.id)))
    assert repr(session) == f"<sync <Session {session.id} sim:sim, log in memory>>"


def test_a_session_streams_what_the_model_writes() -> None:
    session = sync.Session(ScriptedProvider(CALL, "It is deep."), [depth])
    with session.stream("How deep is the Rhine?") as stream:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.outcome
        text = "".join([event.text for event in stream if isinstance(event, TextDelta)])
    assert text == stream.outcome.text == "It is deep."


def test_callbacks_run_in_the_thread_that_waits() -> None:
    here = threading.get_ident()
    seen: list[tuple[str, int]] = []
    other = script("inner")

    def approve(*_: Any) -> bool:
        seen.append((other.complete("Ask another model.").text, threading.get_ident()))
        return True

    session = sync.Session(
        script(CALL, "Done."),
        [depth],
        ASK,
        approve=approve,
        on_event=lambda event: seen.append(("event", threading.get_ident())),
        on_record=lambda record: seen.append(("record", threading.get_ident())),
    )
    assert session.run("How deep?").outcome == "completed"
    assert {name for name, _ in seen} == {"inner", "event", "record"}
    assert {thread for _, thread in seen} == {here}


@pytest.mark.parametrize("answer", [True, False, Decision(True, "Ada")])
def test_the_answer_of_the_approver_counts(answer: Any) -> None:
    session = sync.Session(script(CALL, "Done."), [depth], ASK, approve=lambda *_: answer)
    outcome = session.run("How deep?")
    assert bool(outcome.denied) is (answer is False)


def test_a_coroutine_function_may_approve() -> None:
    async def approve(*_: Any) -> bool:
        return True

    session = sync.Session(script(CALL, "Done."), [depth], ASK, approve=approve)
    assert session.run("How deep?").denied == ()


def test_an_approver_that_fails_denies_the_call(caplog: pytest.LogCaptureFixture) -> None:
    def approve(*_: Any) -> bool:
        raise LookupError("no terminal")

    session = sync.Session(script(CALL, "Done."), [depth], ASK, approve=approve)
    assert len(session.run("How deep?").denied) == 1
    assert "asking about depth failed: LookupError" in caplog.text


def test_callbacks_that_fail_do_not_end_the_session(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Any) -> None:
        raise LookupError("no screen")

    assert sync.Session(script("Done."), on_event=fail).run("Hi").outcome == "completed"
    assert "a callback of the session failed" in caplog.text


def test_leaving_the_stream_cancels_the_run() -> None:
    session = sync.Session(script(Answer("A long answer.", delay=60)))
    with session.stream("Hi"):
        pass
    assert find_end(session) == "cancelled"


def test_every_thread_that_reads_a_stream_sees_its_end() -> None:
    session = sync.Session(script("It is deep."))
    stream = session.stream("How deep is the Rhine?")
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.extend(stream), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    parts = [each.text for each in seen if isinstance(each, TextDelta)]
    assert sorted("".join(parts)) == sorted("It is deep."), "each part reaches one of the threads"
    assert list(stream) == []


def test_an_interrupt_of_a_callback_ends_the_run_and_is_raised() -> None:
    def approve(*_: Any) -> bool:
        raise KeyboardInterrupt

    session = sync.Session(script(CALL, "Done."), [depth], ASK, approve=approve)
    with pytest.raises(KeyboardInterrupt):
        session.run("How deep?")
    assert find_end(session) == "cancelled"


def test_a_session_continues_from_its_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with sync.Session.open(script("One."), None, None, path, "rivers") as session:
        assert session.step("Name a river.").outcome is not None
    with sync.Session.resume(script("Two."), None, None, path, "rivers") as again:
        again.follow_up("And another?")
        assert again.run("Name a lake.").text == "Two."
        assert again.id == "rivers"
    with sync.Session.fork(script("Three."), None, None, path, "rivers") as copy:
        assert copy.swap(ScriptedProvider("Four.")).refused is None
        assert copy.run("Name a sea.").text == "Four."


def test_a_session_that_waits_is_answered() -> None:
    session = sync.Session(script(CALL, "Done."), [depth], ASK, approve="wait")
    outcome = session.run("How deep?")
    (pending,) = outcome.pending
    session.answer(pending.intent_id, Decision(True, "Ada"))
    assert session.run().outcome == "completed"


def test_a_result_from_elsewhere_is_observed() -> None:
    @tool(side_effect="read", external=True)
    def measure(river: str) -> int:
        """Measure a river."""
        return 0

    call = Answer(tool_calls=[Call("measure", {"river": "Rhine"})])
    session = sync.Session(script(call, "Done."), [measure])
    (pending,) = session.run("How deep?").pending
    session.observe(pending.intent_id, "25")
    assert session.run().outcome == "completed"
    assert session.cancel() is False
