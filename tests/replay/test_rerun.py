"""Test repeating a recorded run: with recorded tools nothing is executed, whichever model proposes
the calls.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import Struct

import dragoman as d
from dragoman.cli import main
from dragoman.cli.errors import EXIT_CODES
from dragoman.log import MemoryLog, SessionStarted, SqliteLog, ToolIntentClosed, ToolStarted
from dragoman.permission import Decision
from dragoman.replay import compare_runs, describe, read_steps, to_steps
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer
from dragoman.tools import ToolFailure, tool

from ..listed import Listed
from ..session.playing import call, check_evidence, of, propose
from ..story import LEFT_OPEN, tell

POLICY = d.Policy([d.Rule("deny", tool="erase", reason="no"), d.Rule("allow")])
ran: list[str] = []


@tool(side_effect="read")
def look(word: str) -> str:
    """Look up a word."""
    ran.append(word)
    return f"{word}: {len(ran)}"


@tool(side_effect="write")
def write(word: str) -> str:
    """Add a word to the notes."""
    ran.append(word)
    return f"written {len(ran)}"


@tool(side_effect="execute")
def erase(word: str) -> str:
    """Delete a word from the notes."""
    raise AssertionError("it was denied")


@tool(side_effect="execute")
async def crash(word: str) -> str:
    """Raise an error."""
    ran.append(word)
    raise ToolFailure("lost", "gone")


TOOLS = [look, write, erase, crash]


@pytest.fixture(autouse=True)
def clear() -> None:
    ran.clear()


def script() -> list[Any]:
    return [
        propose(call("look", call_id="1", word="ox"), call("look", call_id="2", word="ox")),
        propose(call("write", call_id="1", word="a"), call("erase", call_id="2", word="b")),
        propose(call("crash", call_id="1", word="c")),
        "Done.",
    ]


async def record(log: Any, **settings: Any) -> str:
    session = d.Session(
        Listed(*script()), TOOLS, POLICY, log, session_id="first", system="Be brief.", **settings
    )
    assert (await session.run("Go.")).outcome == "completed"
    return session.id


async def test_recorded_tools_return_recorded_results_and_run_nothing() -> None:
    log = MemoryLog()
    await record(log)
    before = list(ran)
    tools = d.recorded_tools(log, "first")
    assert [each.name for each in tools] == ["look", "write", "erase", "crash"]
    assert [each.description for each in tools] == [each.description for each in TOOLS]
    assert {each.side_effect for each in tools} == {"none"}
    look_again, write_again, erase_again, crash_again = tools
    seen = [(await look_again.execute({"word": "ox"})).content for _ in range(4)]
    # The last result of a reading tool may be returned repeatedly.
    assert seen == ["ox: 1", "ox: 2", "ox: 2", "ox: 2"]
    assert (await write_again.execute({"word": "a"})).content == "written 3"
    for each, word, why in (
        (write_again, "a", "never ran"),  # the result of a writing tool is returned only once
        (write_again, "z", "never ran"),
        (erase_again, "b", "never ran"),  # this call was denied, so it has no result
        (crash_again, "c", "gone"),
    ):
        with pytest.raises(ToolFailure, match=why):
            await each.execute({"word": word})
    assert ran == before


async def test_rerun_with_recorded_tools_equals_the_recorded_run() -> None:
    log = MemoryLog()
    await record(log)
    before = list(ran)
    session = d.Session(
        d.ReplayProvider(log, "first"),
        d.recorded_tools(log, "first"),
        POLICY,
        log,
        session_id="second",
        system="Be brief.",
    )
    assert (await session.run("Go.")).outcome == "completed"
    assert ran == before
    check_evidence(list(log.read("second")))
    changed = compare_runs(read_steps(log, "first"), read_steps(log, "second"))
    places = {
        where.path.partition(".")[0].partition("[")[0]
        for change in changed
        for where in change.where
    }
    # A recorded tool differs from the original only in these fields.
    assert places <= {"side_effect", "context", "definitions", "tool_digests"}


async def test_recorded_tool_finds_an_edited_call_by_its_proposed_or_edited_input() -> None:
    log = MemoryLog()
    asking = d.Policy()
    provider = Listed(propose(call("write", word="a")), "Done.")
    edited = Decision(True, "ann", input={"word": "b"})
    await d.Session(
        provider, TOOLS, asking, log, session_id="first", approve=lambda p, v: edited
    ).run("Go.")
    for word, other in (("a", "b"), ("b", "a")):
        again = {each.name: each for each in d.recorded_tools(log, "first")}
        assert (await again["write"].execute({"word": word})).content == "written 1"
        with pytest.raises(ToolFailure, match="never ran"):  # it was one run
            await again["write"].execute({"word": other})


async def test_recorded_tools_accept_any_input_if_no_definitions_were_recorded() -> None:
    log = MemoryLog()
    tell(log, "fix")
    again = {each.name: each for each in d.recorded_tools(log, "fix")}
    assert (await again["bash"].execute({"command": "make test"})).exit_code == 1
    with pytest.raises(ToolFailure, match="never ran"):
        await again["bash"].execute({"command": "rm -rf /"})


async def test_run_with_shortened_context_can_be_replayed_without_shortening() -> None:
    log = MemoryLog()
    context = d.DropOldToolResults(window=1_500, keep=1, share=0.5, target=0.3)

    @tool(side_effect="read")
    def read(n: int) -> str:
        """Return a long page."""
        return "many words " * 120

    answers = [propose(call("read", call_id=f"c{n}", n=n)) for n in range(6)]
    session = d.Session(
        Listed(*answers, "Done."),
        [read],
        d.Policy([d.Rule("allow")]),
        log,
        session_id="a",
        context=context,
    )
    await session.run("Go.")
    assert of(list(log.read("a")), "context.projected")
    for number, again in enumerate((context, None)):
        name = f"b{number}"
        session = d.Session(
            d.ReplayProvider(log, "a"),
            d.recorded_tools(log, "a"),
            None,
            log,
            session_id=name,
            context=again,
        )
        assert (await session.run("Go.")).text == "Done."


# --- rerunning a session with another model ----------------------------------------------------


def same(*, last: str = "Done.", word: str = "a", turned: bool = False) -> ScriptedProvider:
    changes = [Call("write", {"word": word}), Call("erase", {"word": "b"})]
    return ScriptedProvider(
        Answer(tool_calls=[Call("look", {"word": "ox"}), Call("look", {"word": "ox"})]),
        Answer("Hm.", tool_calls=changes[::-1] if turned else changes),
        Answer(tool_calls=[Call("crash", {"word": "c"})]),
        last,
    )


@pytest.mark.parametrize(
    ("model", "turn", "shown"),
    [
        (same(), None, "does the same in all 4 turns"),
        (same(turned=True), None, "does the same in all 4 turns"),
        (same(last="Ready."), 4, "+ answers: Ready."),
        (same(word="z"), 2, '+ write {"word": "z"}, erase {"word": "b"}'),
        (ScriptedProvider("Nothing to do."), 1, "+ answers: Nothing to do."),
    ],
)
async def test_another_model_can_rerun_a_recorded_session(
    model: ScriptedProvider, turn: int | None, shown: str, tmp_path: Path
) -> None:
    place = tmp_path / "log.db"
    with SqliteLog(place) as log:
        await record(log)
    before = list(ran)
    # Create a new provider, because a scripted provider remembers which of its rules were used.
    model = ScriptedProvider(*model.rules)
    with SimServer(model) as server:
        address = ["--base-url", server.base_urls["openai"]]
        words = ["replay", "first", "--log", str(place), "--rerun", "sim", *address]
        result = await asyncio.to_thread(CliRunner().invoke, main, words)
        assert result.exit_code == (EXIT_CODES["runs_differ"] if turn else 0), result.output
        assert shown in result.stdout
    if turn:
        assert f"differs in turn {turn}" in result.stdout
    assert ran == before


def test_a_session_without_a_goal_cannot_be_rerun(tmp_path: Path) -> None:
    place = tmp_path / "log.db"
    with SqliteLog(place) as log:
        log.append_sync("empty", SessionStarted(goal="Go"))
    result = CliRunner().invoke(
        main, ["replay", "empty", "--log", str(place), "--rerun", "m", "--base-url", "http://x"]
    )
    assert result.exit_code == 2
    assert "has no goal to repeat" in result.stderr


# --- titles of the steps -----------------------------------------------------------------------


def test_closed_call_is_described_as_started_or_as_not_run() -> None:
    log = MemoryLog()
    begun = [*LEFT_OPEN[:-1], ToolStarted("tu_1", "bash", {"command": "make test"}), LEFT_OPEN[-1]]
    tell(log, "begun", begun)
    tell(log, "look", LEFT_OPEN)
    assert (
        list(to_steps(log.read("begun")))[-1].title
        == "closed bash after it had begun to run, and what it did is not known: the session was"
        " killed"
    )
    assert (
        list(to_steps(log.read("look")))[-1].title
        == "closed bash without running: the session was killed"
    )
    alone = log.append_sync("x", ToolIntentClosed("tu_1", "killed", "bash"))
    assert describe(alone) == "closed bash: killed"
    told = log.append_sync("x", ToolIntentClosed("tu_1", "killed", "bash", True))
    assert "begun to run" in describe(told)


class City(Struct):
    name: str


def propose_writes(*words: str) -> list[Any]:
    return [propose(call("write", word=word)) for word in words]


async def change(proposal: Any, verdict: Any) -> Decision:
    """Deny "no", run the first "edit" with another input, and allow everything else."""
    if proposal.input["word"] == "no":
        return Decision(False, "ann", reason="not now")
    is_changed = proposal.input["word"] == "edit" and "edited" not in ran
    changed = {"word": "edited"} if is_changed else None
    return Decision(True, "ann", input=changed)


@pytest.mark.parametrize(
    ("answers", "policy", "output"),
    [
        ([*propose_writes("edit", "edit", "a"), "Done."], d.Policy([]), None),
        ([*propose_writes("no", "a"), "Done."], d.Policy([]), None),
        ([*propose_writes("a", "b"), "Done."], d.Policy([d.Rule("deny", reason="no")]), None),
        (
            [*propose_writes("a"), "Bern.", '{"x": 1}', '{"name": "Bern"}'],
            d.Policy([d.Rule("allow")]),
            City,
        ),
    ],
    ids=["edited", "denied by a person", "denied by a rule", "corrected"],
)
async def test_recipe_repeats_a_run_without_executing_tools(
    answers: list[Any], policy: d.Policy, output: Any
) -> None:
    log = MemoryLog()
    ran.clear()
    first = d.Session(Listed(*answers), TOOLS, policy, log, approve=change, output=output)
    outcome = await first.run("Go.")
    before = list(ran)
    provider = d.ReplayProvider(log, first.id)
    second = d.Session(provider, d.recorded_tools(log, first.id), None, MemoryLog(), output=output)
    again = await second.run("Go.")
    assert again.text == outcome.text
    assert again.parsed == outcome.parsed
    assert again.outcome == outcome.outcome
    assert [each.message for each in second.state.messages] == [
        each.message for each in first.state.messages
    ]
    assert provider.remaining == 0
    assert ran == before
