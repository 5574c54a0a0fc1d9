"""Test that the log of a session is complete for any proposals, decisions and failures."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import OverloadedError, ProviderError
from dragoman.log import ContextProjected, SqliteLog
from dragoman.messages import Assistant, ToolResult
from dragoman.permission import Decision, Policy, Proposal, Rule, Verdict
from dragoman.replay import to_steps
from dragoman.session import Budget, DropOldToolResults, Session, Window, reduce_records
from dragoman.tools import ToolFailure, tool
from dragoman.validate import build_request, check_request

from ..listed import Listed, broken, speak
from .playing import call, check_evidence, propose

NAMES = ("look", "note", "fail", "lose", "forbidden", "odd", "unknown")
calls = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), max_size=4)
turns = st.lists(
    calls | st.sampled_from(["text", "error", "broken", "garbled"]), min_size=1, max_size=5
)


def make_tools(ran: list[int]) -> list[Any]:
    @tool(side_effect="read")
    async def look(n: int) -> str:
        ran.append(n)
        await asyncio.sleep(0)
        return f"saw {n}"

    @tool(side_effect="write")
    def note(n: int) -> dict[str, int]:
        ran.append(n)
        return {"n": n}

    @tool(side_effect="read")
    async def fail(n: int) -> None:
        ran.append(n)
        raise ValueError(n)

    @tool(side_effect="execute")
    async def lose(n: int) -> None:
        ran.append(n)
        raise ToolFailure("lost", "gone")

    @tool(side_effect="none")
    async def forbidden(n: int) -> None:
        raise AssertionError("it was denied")

    @tool(side_effect="none")
    async def odd(n: int) -> Any:
        ran.append(n)
        return float("inf") if n else object()

    return [look, note, fail, lose, forbidden, odd]


def answer(turn: Any, at: int) -> Any:
    if turn == "text":
        return f"Words {at}."
    if turn == "error":
        return OverloadedError("busy")
    if turn == "broken":
        return broken("Half a", OverloadedError("busy"))
    if turn == "garbled":
        return speak(
            lambda out: (out.tool_start(1, "c", "look"), out.tool_input(1, '{"n": ')),
            finish="tool_calls",
        )
    said = [call(name, call_id=f"c{place}", n=n) for place, (name, n) in enumerate(turn)]
    return propose(*said, words="Hm.") if said else ""


async def play(turns: list[Any], answer_yes: Any, window: int, folder: Path) -> None:
    ran: list[int] = []
    policy = Policy([Rule("allow", side_effect=["none", "read"]), Rule("deny", tool="forbidden")])
    provider = Listed(
        *[answer(turn, at) for at, turn in enumerate(turns)], "The end.", repeat=True
    )
    with SqliteLog(folder / "log.db") as log:
        session = Session(
            provider, make_tools(ran), policy, log, session_id="s1", approve=answer_yes,
            budget=Budget(steps=12),
            context=[DropOldToolResults(window=window, keep=1), Window()], corrections=1,
        )  # fmt: skip
        goal: str | None = "Go."
        for _ in range(8):
            try:
                await session.run(goal)
                break
            except ProviderError:
                goal = None  # the second run continues without a new goal
        records = list(log.read("s1"))
        assert log.verify().ok
    steps = check_evidence(records)
    assert len(ran) == sum("tool.started" in chain for chain in steps.values())
    assert not [step.notes for step in to_steps(records) if step.notes]
    state = reduce_records(records)
    assert state.messages == session.state.messages
    assert state.project("listed") == session.messages
    for projected in [
        record.payload for record in records if isinstance(record.payload, ContextProjected)
    ]:
        assert projected.left_out
    for request in provider.requests:
        check_request(build_request(request.messages, [], None, None, None, model="m"))
        asked = [c.id for m in request.messages if isinstance(m, Assistant) for c in m.tool_calls]
        # Call ids are unique, because some providers reject a repeated id.
        assert len(set(asked)) == len(asked)
        assert (
            asked == [m.tool_call_id for m in request.messages if isinstance(m, ToolResult)]
            or not asked
        )


@given(turns, st.sampled_from(["yes", "no", "edit"]), st.sampled_from([60, 120, 100_000]))
def test_evidence_in_the_log_of_any_run_is_complete(
    turns: list[Any], said: str, window: int
) -> None:
    """The runs differ in how much a context policy omits, and in whether an approver edits the
    proposals.
    """

    def decide(proposal: Proposal, verdict: Verdict) -> Decision:
        return Decision(said != "no", "ann", input={"n": 7} if said == "edit" else None)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(turns, decide, window, Path(folder)))
