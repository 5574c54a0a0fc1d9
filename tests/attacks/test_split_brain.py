"""If another process resumes a running session, an invoice is still paid only once."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

import dragoman as d
from dragoman import log as logs
from dragoman.events import Assembler
from dragoman.replay import read_steps
from dragoman.tools import ExecutableTool, tool

from ..session.playing import check_evidence, of, types

ALL = d.Policy([d.Rule("allow")])
STARTED = logs.SessionStarted(goal="Pay 4711.", model="m", provider="payer", tools=("pay",))
Open = Callable[..., logs.EventLog]


class Payer(d.Provider):
    """A model that repeats a payment until it is confirmed, as models do when the outcome is
    unknown.
    """

    name = "payer"
    model = "m"

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        out = Assembler(request_id=request.request_id, model="m", provider="payer")
        out.start()
        last = request.messages[-1]
        if isinstance(last, d.ToolResult) and "paid" in str(last.content):
            out.text("Done.")
            out.finish("stop")
        else:
            out.tool_start(0, "call_0", "pay")
            out.tool_input(0, '{"invoice": "4711"}')
            out.block_end(0)
            out.finish("tool_calls")
        for event in out.take():
            yield event


class Till:
    """A payment tool that waits until the test lets it finish, and counts its payments."""

    def __init__(self) -> None:
        self.payments = 0
        self.began = asyncio.Event()
        self.let = asyncio.Event()

        async def pay(invoice: str) -> str:
            """Pay an invoice."""
            self.payments += 1
            self.began.set()
            await self.let.wait()
            return "paid"

        self.tools: list[ExecutableTool] = [tool(side_effect="network")(pay)]


def open_other(log: logs.EventLog, open_store: Open) -> logs.EventLog:
    """Return the log as a second process uses it: with a new connection to PostgreSQL, or the same
    object for other stores.
    """
    return open_store() if isinstance(log, logs.PostgresLog) else log


async def test_resuming_a_running_session_is_rejected(open_store: Open) -> None:
    log = open_store()
    till = Till()
    running = asyncio.create_task(
        d.Session(Payer(), till.tools, ALL, log, session_id="s1").run("Pay 4711.")
    )
    await till.began.wait()
    with pytest.raises(logs.LogLockedError, match="'s1' is still running"):
        await d.Session.resume(Payer(), till.tools, ALL, open_other(log, open_store), "s1")
    till.let.set()
    assert (await running).outcome == "completed"
    assert till.payments == 1
    check_evidence(list(log.read("s1")))


async def test_running_a_session_that_another_process_runs_is_rejected(open_store: Open) -> None:
    log = open_store()
    till = Till()
    first = d.Session(Payer(), till.tools, ALL, log, session_id="s1")
    await first._journal.write(STARTED)  # noqa: SLF001 - the fenced process writes without its session
    second = await d.Session.resume(Payer(), till.tools, ALL, open_other(log, open_store), "s1")
    running = asyncio.create_task(first.run("Pay 4711."))
    await till.began.wait()
    with pytest.raises(logs.LogLockedError):
        await second.run()
    till.let.set()
    await running
    # The second process loaded a state that is out of date by now.
    with pytest.raises(logs.LogConflictError, match="continued elsewhere"):
        await second.run("Pay 4711.")
    assert till.payments == 1


async def test_takeover_of_a_session_stops_the_first_process(open_store: Open) -> None:
    log = open_store()
    first = Till()
    second = Till()
    running = asyncio.create_task(
        d.Session(Payer(), first.tools, ALL, log, session_id="s1").run("Pay 4711.")
    )
    await first.began.wait()
    other = open_other(log, open_store)
    again = await d.Session.resume(Payer(), second.tools, ALL, other, "s1", takeover=True)
    second.let.set()
    assert (await again.run()).outcome == "completed"
    first.let.set()
    with pytest.raises(logs.LogConflictError, match=r"tool\.observed was to follow"):
        await running
    records = list(log.read("s1"))
    [resumed] = of(records, "session.resumed")
    assert resumed.epoch == 2
    assert resumed.takeover is True
    check_evidence(records)  # checks that every intent has exactly one end
    assert [note for step in read_steps(log, "s1") for note in step.notes] == []
    assert log.verify().ok


async def test_process_that_lost_the_session_starts_no_tool(open_store: Open) -> None:
    """Another process continues the session after the permission is recorded and before the tool
    starts.
    """
    log = open_store()
    till = Till()
    other = open_other(log, open_store)

    def continue_elsewhere(record: logs.LogRecord) -> None:
        if record.type == "permission.granted":
            other.append_sync("s1", STARTED, expected=record.seq)

    session = d.Session(
        Payer(), till.tools, ALL, log, session_id="s1", on_record=continue_elsewhere
    )
    with pytest.raises(logs.LogConflictError, match=r"tool\.started was to follow"):
        await session.run("Pay 4711.")
    assert till.payments == 0
    assert "tool.started" not in types(list(log.read("s1")))


async def test_every_resumption_of_a_session_has_its_own_epoch(open_store: Open) -> None:
    log = open_store()
    till = Till()
    till.let.set()
    await d.Session(Payer(), till.tools, ALL, log, session_id="s1").run("Pay 4711.")
    for _ in range(2):
        again = await d.Session.resume(Payer(), till.tools, ALL, log, "s1")
        await again.run("Pay 4712.")
    assert [resumed.epoch for resumed in of(list(log.read("s1")), "session.resumed")] == [2, 3]
