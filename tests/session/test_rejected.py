"""Test that an unusable call is recorded as an intent and a rejection, for every provider."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.events import Assembler
from dragoman.log import MemoryLog, SqliteLog
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool
from dragoman.wire import SERVER_CODECS

from ..listed import Listed, reply, speak
from .playing import ALL, call, check_evidence, of, play, propose, served, types

CONFIG = d.RuntimeConfig(max_tokens=100)
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("look", {"word": "ox"}),
    ("rm_rf", {"path": "/"}),
    ("look", {"word": 7}),
]


@tool(side_effect="read")
def look(word: str) -> str:
    """Look up a word."""
    return f"{word}: an animal"


def say_calls(out: Assembler) -> None:
    for at, (name, arguments) in enumerate(CALLS):
        call(name, call_id=f"call_{at}", **arguments)(out)


class Strict(d.Provider):
    """Act as a custom provider that always validates calls, even if the request disables that."""

    name = "strict"
    model = "m"

    def __init__(self) -> None:
        self._inner = Listed(propose(say_calls), "Done.")

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        async for event in self._inner.events(replace(request, check_calls=True)):
            yield event


def simulated() -> d.Provider:
    calls = [Call(name, arguments, f"call_{at}") for at, (name, arguments) in enumerate(CALLS)]
    return ScriptedProvider(Answer(tool_calls=calls), "Done.")


KINDS: dict[str, Callable[[], d.Provider]] = {
    **{
        wire: lambda wire=wire: served(wire, propose(say_calls), reply("Done."))
        for wire in sorted(SERVER_CODECS)
    },  # type: ignore[misc]
    "sim": simulated,
    "checked by the assembler": lambda: Listed(propose(say_calls), "Done."),
    "checked by itself": Strict,
    "retry": lambda: d.Retry(simulated()),
    "fallback": lambda: d.Fallback([simulated(), Listed("never asked")]),
}
STEPS = ["tool_intent.proposed", "tool_intent.rejected"]


@pytest.mark.parametrize("kind", KINDS)
async def test_records_of_rejected_calls_are_the_same_for_every_provider(kind: str) -> None:
    records = await play(MemoryLog(), KINDS[kind](), [look], config=CONFIG)
    assert [each for each in types(records) if each != "llm.exchange_kept"] == [
        "session.started", "message.recorded", "turn.started", "llm.call_started",
        *["tool_intent.proposed"] * 3, "message.recorded", "llm.call_completed",
        "tool_intent.validated", *["tool_intent.rejected"] * 2, "permission.granted",
        "tool.started", "tool.observed",
        *["message.recorded"] * 3, "turn.started", "llm.call_started", "message.recorded",
        "llm.call_completed",
        "session.finished",
    ]  # fmt: skip
    steps = list(check_evidence(records).values())
    assert [chain[-1] for chain in steps[:1]] == ["tool.observed"]
    assert steps[1:] == [STEPS, STEPS]
    proposed = of(records, "tool_intent.proposed")
    assert [(intent.tool_name, intent.input) for intent in proposed] == CALLS
    rejected = [(each.tool_name, each.problem) for each in of(records, "tool_intent.rejected")]
    assert rejected == [("rm_rf", "unknown_tool"), ("look", "invalid_arguments")]
    reply = of(records, "message.recorded")[1]
    assert reply.finish_reason == "tool_calls"
    assert reply.in_context is True
    results = [each.message for each in of(records, "message.recorded")[2:5]]
    assert [result.is_error for result in results] == [False, True, True]
    assert results[0].content == "ox: an animal"
    assert results[1].content == "Not run: there is no tool named 'rm_rf'"
    assert "word" in results[2].text


@pytest.mark.parametrize("corrections", [0, 1, 4])
async def test_number_of_times_a_model_may_correct_its_calls_is_configurable(
    log: SqliteLog, corrections: int
) -> None:
    session = d.Session(
        Listed(propose(call("fly")), repeat=True), [look], ALL, log, corrections=corrections
    )
    with pytest.raises(d.MalformedToolCallError, match="there is no tool named 'fly'") as caught:
        await session.run("Go.")
    records = list(log.read(session.id))
    assert len(of(records, "tool_intent.rejected")) == corrections + 1
    assert caught.value.response.tool_calls[0].name == "fly"
    assert of(records, "session.finished")[0].outcome == "failed"
    check_evidence(records)


async def test_reply_with_a_valid_call_resets_the_number_of_corrections(log: SqliteLog) -> None:
    bad = propose(call("fly"))
    good = propose(call("look", word="ox"), call("fly", call_id="2"))
    session = d.Session(Listed(bad, bad, good, bad, bad, "Done."), [look], ALL, log)
    assert (await session.run("Go.")).outcome == "completed"


async def test_complete_raises_an_error_for_an_invalid_tool_call() -> None:
    for provider in (simulated(), Listed(propose(say_calls))):
        with pytest.raises(d.MalformedToolCallError):
            await provider.complete("Go.", [look.description])


async def test_a_call_without_a_name_never_becomes_an_intent(log: SqliteLog) -> None:
    records = await play(log, Listed(speak(call(""), finish="tool_calls"), "Done."), [look])
    assert of(records, "session.finished")[0].outcome == "completed"
    assert not of(records, "tool_intent.proposed")


async def test_a_stream_that_does_not_check_calls_reports_all_of_them_as_intents() -> None:
    stream = simulated().stream("Go.", [look.description], check_calls=False)
    ends = [event async for event in stream if isinstance(event, d.ToolUseEnd)]
    assert [end.problem for end in ends] == [None, None, None]
    assert stream.response.finish_reason == "tool_calls"
