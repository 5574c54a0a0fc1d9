"""Test the agent loop: what it sends, what it records, and in which order."""

import asyncio
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.errors import (
    AuthenticationError,
    ProviderError,
    RateLimitError,
)
from dragoman.log import LogFullError, SqliteLog
from dragoman.messages import Assistant, System, ToolCall, ToolResult, User
from dragoman.middleware import Fallback, Observe
from dragoman.permission import Decision, Policy, Rule
from dragoman.prices import Match, PriceRow, PriceTable, cost
from dragoman.replay import to_steps
from dragoman.session import Session, SessionError
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool

from ..listed import Clock, Listed, broken, reply, speak
from ..waiting import arrival, settle
from .playing import (
    ALL,
    anthropic_reply,
    call,
    check_evidence,
    look,
    note,
    of,
    over_wire,
    play,
    propose,
    ran,
    take_turn,
    types,
)  # fmt: skip

READING = Policy([Rule("allow", side_effect=["read"], name="reading")])
LOOK_AND_NOTE = propose(
    call("look", call_id="a", word="ox"), call("note", call_id="b", text="!"), words="Let me look."
)


async def test_records_of_a_run_match_the_documentation(log: SqliteLog) -> None:
    no = lambda proposal, verdict: Decision(False, "ann", reason="not today")
    session = Session(
        Listed(LOOK_AND_NOTE, "Done."), [look, note], READING, log, system="Be terse.", approve=no
    )
    outcome = await session.run("What is an ox?")
    assert outcome.outcome == "completed"
    assert outcome.text == "Done."
    assert outcome.spent.turns == 2
    records = list(log.read(session.id))
    page = (Path(dragoman.__file__).parents[2] / "docs/concepts/session.md").read_text()
    rows = re.findall(r"^(\d+)\. `([\w.]+)`(?: \((\d+)\))?", page, re.MULTILINE)
    assert len(rows) == 19
    ids = {record.id: str(record.seq) for record in records}
    drawn = [(str(r.seq), r.type, ids.get(r.parent or "", "")) for r in records[:19]]
    assert drawn == rows
    assert "records 4 to 18 have the turn `t1`" in page
    assert [r.turn for r in records[:19]] == [None] * 3 + ["t1"] * 15 + ["t2"]
    last = ["llm.call_started", "message.recorded", "llm.call_completed", "session.finished"]
    assert types(records[19:]) == last
    assert ran == ["ox"]
    assert log.verify().ok
    check_evidence(records)
    assert not [step.notes for step in to_steps(records) if step.notes]


@pytest.mark.parametrize("action", ["allow", "ask", "deny"])
def test_rule_with_a_path_is_refused_if_its_tools_name_no_paths(action: Any) -> None:
    provider = Listed()
    rule = Rule(action, tool="lo*", path="secrets/**", name="keep out")
    complaint = "the rule 'keep out' has a path, but look never names paths; use arguments instead"
    with pytest.raises(ValueError, match=f"^{complaint}$"):
        Session(provider, [look, note], Policy([rule]))
    Session(provider, [note], Policy([rule]))  # one policy may serve sessions with other tools
    Session(provider, [look], Policy([Rule(action, tool="lo*", arguments={"word": "secrets/*"})]))


async def test_each_record_has_its_actor_and_payload(log: SqliteLog) -> None:
    yes = lambda proposal, verdict: Decision(True, "ann", reason="go on", scope="session")
    provider = Listed(LOOK_AND_NOTE, "Done.")
    records = await play(log, provider, [look, note], policy=READING, approve=yes)
    by_rule, by_ann = [record for record in records if record.type == "permission.granted"]
    assert by_rule.actor == "system"
    assert by_rule.payload.by == "policy"
    assert by_rule.payload.rule == "reading"
    assert by_ann.actor == "user"
    assert by_ann.payload.by == "ann"
    assert by_ann.payload.reason == "go on"
    assert by_ann.payload.scope == "session"
    [first, _] = of(records, "tool_intent.validated")
    assert first.side_effect == "read"
    assert first.paths == ()
    [started, _] = of(records, "tool.started")
    assert started.input == {"word": "ox"}
    assert started.context == {"side_effect": "read", "timeout": 120.0, "output_limit": 30000}
    [begun] = of(records, "session.started")
    assert begun.goal == "Go."
    assert begun.provider == "listed"
    assert begun.model == "m"
    assert begun.tools == ("look", "note")
    assert [record.actor for record in records if record.type == "message.recorded"] == [
        "user", "agent", "tool", "tool", "agent",
    ]  # fmt: skip


async def test_no_tool_runs_before_its_record_is_on_disk(log: SqliteLog) -> None:
    seen: list[list[str]] = []

    @tool(side_effect="none")
    def peek() -> str:
        seen.append(types(list(log.read(session.id))))
        return ""

    session = Session(Listed(propose(call("peek")), "Done."), [peek], ALL, log)
    await session.run("Go.")
    assert seen[0][-3:] == ["tool_intent.validated", "permission.granted", "tool.started"]


@pytest.mark.parametrize("words", [["b"], ["a", "b"]])
async def test_session_stops_if_the_log_cannot_be_written(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    append = log.append

    async def refuse(name: str, payload: Any, **facts: Any) -> Any:
        if type(payload).__name__ == "ToolStarted" and payload.input == {"word": "b"}:
            raise LogFullError("no room")
        return await append(name, payload, **facts)

    monkeypatch.setattr(log, "append", refuse)
    calls = [call("look", call_id=word, word=word) for word in words]
    with pytest.raises(LogFullError):
        await play(log, Listed(propose(*calls), "Done."), [look])
    assert "b" not in ran


async def test_model_receives_only_messages_and_tool_descriptions(log: SqliteLog) -> None:
    provider = Listed(propose(call("look", word="ox"), words="Hm."), "Done.")
    config = dragoman.RuntimeConfig(temperature=0.5)
    session = Session(provider, [look], ALL, log, system="Be terse.", config=config)
    await session.run("What is an ox?")
    first, second = provider.requests
    assert list(first.messages) == [System("Be terse."), User("What is an ox?")]
    assert list(second.messages[2:]) == [
        Assistant("Hm.", tool_calls=[ToolCall("call_1", "look", {"word": "ox"})]),
        ToolResult("call_1", "ox: found"),
    ]
    assert list(second.tools) == [look.description]
    assert second.config.temperature == 0.5
    assert session.messages[-1] == Assistant("Done.")


async def test_recorded_message_contains_ids_routing_and_cost(log: SqliteLog) -> None:
    row = PriceRow(
        provider="listed", match=Match(equals=("m",)), input=Decimal(3), output=Decimal(15)
    )
    price = lambda usage, model: cost(usage, model, table=PriceTable((row,), version="v1"))
    session = Session(
        Listed(propose(call("look", word="ox")), "Done."), [look], ALL, log, price=price
    )
    await session.run("Go.")
    said = of(list(log.read(session.id)), "message.recorded")
    first = said[1]
    assert re.fullmatch(r"msg_[0-9A-Z]{26}", first.message_id)
    assert len({each.message_id for each in said}) == len(said)
    assert first.routing.mode == "default"
    assert first.routing.chosen == "listed:m"
    assert first.usage.input_tokens == 10
    assert first.provider == "listed"
    assert first.model == "m"
    [intent] = session.state.intents
    assert first.tool_ids == {"call_1": intent}
    assert re.fullmatch(r"tu_[0-9A-Z]{26}", intent)
    assert first.cost_usd == Decimal("0.000105")
    assert first.pricing_version == "v1"
    assert session.state.spent.cost_usd == Decimal("0.000210")


async def test_unknown_price_is_recorded_as_unknown_rather_than_zero(log: SqliteLog) -> None:
    session = Session(Listed("Done."), (), ALL, log)
    outcome = await session.run("Go.")
    [_, said] = of(list(log.read(session.id)), "message.recorded")
    assert said.cost_usd is None
    assert said.cost_unknown
    assert outcome.spent.cost_unknown is not None
    assert outcome.spent.cost_unknown.startswith("listed:m: no price for listed:m")


# --- concurrent tool calls ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effects", "together"), [(("read", "none"), True), (("read", "write"), False)]
)
async def test_tool_calls_run_concurrently_only_if_none_of_them_writes(
    log: SqliteLog, effects: Any, together: bool
) -> None:
    inside = 0
    most = 0

    both = asyncio.Event()

    async def slow() -> str:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 2:
            both.set()
        if together:
            await arrival(both.wait(), "the other call")
        else:
            await settle()  # another call that may run now begins
        inside -= 1
        return "x"

    tools = [
        tool(name=name, side_effect=effect)(slow)
        for name, effect in zip("ab", effects, strict=True)
    ]
    calls = propose(call("a", call_id="1"), call("b", call_id="2"))
    session = Session(Listed(calls, "Done."), tools, ALL, log)
    await session.run("Go.")
    assert most == (2 if together else 1)
    results = [message for message in session.messages if isinstance(message, ToolResult)]
    # Results are in the order of the proposals.
    assert [result.tool_call_id for result in results] == ["1", "2"]
    records = list(log.read(session.id))
    check_evidence(records)
    # The log shows it although a call may end before the other one has started.
    begun = [each.seq for each in records if each.type == "tool.started"]
    ended = [each.seq for each in records if each.type == "tool.observed"]
    assert len(begun) == len(ended) == 2
    assert (begun[1] < ended[0]) == together


# --- denied tool calls, and failures of tools and models ---------------------------------------


async def test_denied_call_is_recorded_as_a_decision_rather_than_a_tool_error(
    log: SqliteLog,
) -> None:
    provider = Listed(propose(call("note", text="rm -rf /")), "I may not.")
    policy = Policy([Rule("deny", tool="note", reason="no notes")])
    records = await play(log, provider, [note], policy=policy)
    assert ran == []
    assert not [record for record in records if record.type.startswith("tool.")]
    # The denied input stays on record.
    assert of(records, "tool_intent.proposed")[0].input == {"text": "rm -rf /"}
    [denied] = of(records, "permission.denied")
    assert denied.by == "policy"
    assert denied.reason == "no notes"
    assert provider.requests[1].messages[-1] == ToolResult(
        "call_1", "Not run: permission denied by policy: no notes"
    )


async def test_only_tools_that_change_nothing_run_without_a_policy(
    log: SqliteLog, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(side_effect="write")
    def keep(word: str) -> None:
        ran.append(word)

    def undeclared(word: str) -> None:
        """Have a side effect that is not declared."""
        ran.append(word)

    calls = propose(
        *[call(name, call_id=name, word=name) for name in ("look", "keep", "undeclared")]
    )
    tools = [look, keep, undeclared]
    outcome = await Session(Listed(calls, "Oh."), tools, None, log).run("Go.")
    assert ran == ["look"]
    assert list(outcome.denied) == of(list(log.read(outcome.session)), "permission.denied")
    assert [each.tool_name for each in outcome.denied] == ["keep", "undeclared"]
    for denied, warning in zip(outcome.denied, caplog.records, strict=True):
        assert denied.by == "nobody"
        assert denied.reason == "there is no policy that allows it, and no approver to ask"
        shown = f"call of {denied.tool_name} was denied: the session has no policy= that allows"
        assert shown in warning.getMessage()


async def test_tool_that_times_out_is_recorded_as_failed_without_a_result(log: SqliteLog) -> None:
    @tool(side_effect="read", timeout=0.01)
    async def hang() -> None:
        await asyncio.Event().wait()

    records = await play(log, Listed(propose(call("hang")), "Oh."), [hang])
    [failed] = of(records, "tool.failed")
    assert failed.kind == "timeout"
    assert failed.message == "still running after 0.01 s"
    assert not of(records, "tool.observed")
    assert of(records, "message.recorded")[-2].message.is_error


async def test_result_that_cannot_be_recorded_is_not_sent_to_the_model(log: SqliteLog) -> None:
    @tool(side_effect="read")
    def odd() -> Any:
        return dragoman.tools.Observation("fine", details={"x": float("nan")})

    [failed] = of(await play(log, Listed(propose(call("odd")), "Oh."), [odd]), "tool.failed")
    assert failed.kind == "unreadable"
    assert "cannot be recorded" in failed.message


async def test_provider_error_is_recorded_and_the_session_can_continue(log: SqliteLog) -> None:
    provider = Listed(broken("Half a", RateLimitError("slow down", status=429)), "Done.")
    session = Session(provider, [look], ALL, log)
    with pytest.raises(RateLimitError):
        await session.run("Go.")
    records = list(log.read(session.id))
    assert types(records)[-3:] == ["message.recorded", "llm.call_failed", "session.finished"]
    half = records[-3].payload
    assert half.message.text == "Half a"
    assert half.in_context is False
    assert half.finish_reason == "error"
    failed = records[-2].payload
    assert failed.error_class == "rate_limit"
    assert failed.status == 429
    assert records[-1].payload.outcome == "failed"
    assert not of(records, "tool.failed")
    assert (await session.run()).text == "Done."
    assert list(provider.requests[1].messages) == [User("Go.")]
    check_evidence(list(log.read(session.id)))


async def test_model_is_asked_again_after_an_invalid_tool_call(log: SqliteLog) -> None:
    def bad(out: Any) -> None:
        out.tool_start(1, "call_9", "look")
        out.tool_input(1, '{"word": "o')

    provider = Listed(
        speak(call("look", word="ox"), bad, finish="tool_calls"),
        propose(call("look", word="ass")),
        "Done.",
    )
    session = Session(provider, [look], ALL, log)
    assert (await session.run("Go.")).outcome == "completed"
    assert ran == ["ass"]  # if one call of a reply is invalid, none of its calls is run
    records = list(log.read(session.id))
    [failed] = of(records, "llm.call_failed")
    assert "not a JSON object" in failed.error_message_redacted
    [closed] = of(records, "tool_intent.closed")
    assert closed.reason == "another call of the same reply could not be used"
    [told] = provider.requests[1].messages[1:]
    assert "not a JSON object" in told.text  # type: ignore[union-attr]
    check_evidence(records)


@pytest.mark.parametrize(
    ("finish", "outcome"),
    [("stop", "completed"), ("length", "exhausted"), ("content_filter", "failed")],
)
async def test_finish_reason_of_the_last_reply_decides_the_outcome(
    log: SqliteLog, finish: str, outcome: str
) -> None:
    session = Session(Listed(reply("So.", finish=finish)), (), ALL, log)
    assert (await session.run("Go.")).outcome == outcome


async def test_empty_reply_is_not_sent_back_to_the_model(log: SqliteLog) -> None:
    provider = Listed("One.", speak(), "Three.")
    session = Session(provider, (), ALL, log)
    outcomes = [await session.run(goal) for goal in ("One?", "Two?", "Three?")]
    assert [outcome.outcome for outcome in outcomes] == ["completed"] * 3
    assert [outcome.text for outcome in outcomes] == ["One.", "", "Three."]
    sent = [User("One?"), Assistant("One."), User("Two?"), User("Three?")]
    assert list(provider.requests[2].messages) == sent


@pytest.mark.parametrize("finish", ["content_filter", "error", "cancelled"])
async def test_calls_of_a_filtered_or_failed_reply_are_not_run(
    log: SqliteLog, finish: str
) -> None:
    session = Session(Listed(speak(call("look", word="ox"), finish=finish)), [look], ALL, log)
    assert (await session.run("Go.")).outcome == "failed"
    assert ran == []
    records = list(log.read(session.id))
    [closed] = of(records, "tool_intent.closed")
    assert closed.reason == f"the reply ended with {finish}"
    check_evidence(records)


# --- model swaps and fallback in a session -----------------------------------------------------


async def test_model_swap_is_recorded_and_keeps_call_ids_unique(log: SqliteLog) -> None:
    one = Listed(propose(call("look", word="ox")), name="one", model="m1")
    two = Listed(propose(call("look", word="ass")), name="two", model="m2")
    session = Session(one, [look], ALL, log)
    await take_turn(session, "Go.")
    plan = await session.swap(two, "a second opinion")
    assert plan.target == "two:m2"
    await take_turn(session)
    one.answers.append("Done.")
    await session.swap(one, "and back")
    await take_turn(session)
    [first, second] = session.state.intents

    def sent_calls(request: dragoman.Request) -> list[str]:
        replies = [each for each in request.messages if isinstance(each, Assistant)]
        return [each.id for reply in replies for each in reply.tool_calls]

    # A tool call that another provider proposed is sent with the id that the session assigned.
    assert [sent_calls(request) for request in two.requests] == [[first]]
    last = one.requests[-1].messages
    assert sent_calls(one.requests[-1]) == ["call_1", second]
    assert [m.tool_call_id for m in last if isinstance(m, ToolResult)] == ["call_1", second]
    swapped = of(list(log.read(session.id)), "model.swapped")
    assert [(s.from_, s.to, s.reason) for s in swapped] == [
        ("one:m1", "two:m2", "a second opinion"),
        ("two:m2", "one:m1", "and back"),
    ]
    said = [each for each in of(list(log.read(session.id)), "message.recorded") if each.routing]
    assert [each.routing.mode for each in said] == ["default", "manual", "manual"]


async def test_model_swap_reports_losses_or_is_rejected(log: SqliteLog) -> None:
    thinking = lambda out: out.thinking("hm")
    session = Session(
        Listed(speak(thinking, call("look", word="ox"), finish="tool_calls")), [look], ALL, log
    )
    await session.step("Go.")
    small = over_wire(capabilities={"max_context_tokens": 1})
    with pytest.raises(dragoman.InvalidRequestError, match="do not fit its window of 1"):
        await session.swap(small)
    assert session.provider.name == "listed"
    await session.swap(over_wire())
    [swapped] = of(list(log.read(session.id)), "model.swapped")
    assert swapped.losses


@pytest.mark.parametrize("is_open", [True, False], ids=["in a turn", "between turns"])
async def test_model_swap_plans_what_the_next_request_sends(log: SqliteLog, is_open: bool) -> None:
    calls = propose(call("look", word="ox"), call("look", call_id="b", word="ass"))
    session = Session(Listed(calls, "It is an ox."), [look], ALL, log)
    await (session.step("Go.") if is_open else session.run("Go."))
    assert len(session.state.unanswered()) == 2 * is_open
    replies = [(200, {}, anthropic_reply(words)) for words in ("Done.", "More.")]
    second = over_wire(*replies, quirks={"prefill": False}, max_tokens=99)
    plan = await session.swap(second)
    assert [item.rule for item in plan.losses] == []
    assert len({item.path.partition("]")[0] for item in plan.items}) == 2 + 3 * (not is_open)
    outcome = await session.run(None if is_open else "And then?")
    assert outcome.text == "Done."
    records = list(log.read(session.id))
    [swapped] = of(records, "model.swapped")
    assert swapped.losses == ()
    assert of(records, "message.recorded")[-1].warnings == ()


async def test_observer_and_session_record_the_same_stop_reason(log: SqliteLog) -> None:
    stopped = reply("one, two", raw="stop_sequence", stop_sequence="three")
    observed: list[Any] = []
    provider = Observe(Listed(stopped), observed.append)
    [completed] = of(await play(log, provider), "llm.call_completed")
    await provider.close()
    assert completed.stop_reason == observed[-1].stop_reason == "stop_sequence"


async def test_availability_changes_are_recorded_with_their_call(log: SqliteLog) -> None:
    clock = Clock()
    bad = Listed(AuthenticationError("no"), "Done.", name="bad")
    session = Session(Fallback([bad, Listed("Done.", name="good")], clock=clock), (), ALL, log)
    await session.run("Go.")
    [down] = of(list(log.read(session.id)), "routing.provider_unavailable")
    assert down.provider == "bad"
    assert down.trigger_reason == "auth_error"
    clock.now += 301
    await session.run("Go on.")
    recovered = of(list(log.read(session.id)), "routing.provider_recovered")
    assert [each.provider for each in recovered] == ["bad"]


async def test_intents_have_unique_ids_even_if_a_provider_repeats_them(log: SqliteLog) -> None:
    calls = Answer(tool_calls=[Call("look", {"word": "ox"})])
    model = lambda: ScriptedProvider(calls, "Done.", seed=7)  # it repeats its ids in every run
    await Session(model(), [look], ALL, log, session_id="s1").run("First.")
    await (await Session.resume(model(), [look], ALL, log, "s1")).run("Second.")
    assert len(check_evidence(list(log.read("s1")))) == 2


# --- invalid use of a session, and failing subscribers -----------------------------------------


async def test_finished_session_needs_another_goal(log: SqliteLog) -> None:
    session = Session(Listed("One.", "Two."), (), ALL, log)
    await session.run("First.")
    with pytest.raises(SessionError, match="another goal"):
        await session.run()
    assert (await session.run("Second.")).text == "Two."
    records = list(log.read(session.id))
    assert types(records).count("session.resumed") == 1
    assert types(records).count("session.started") == 1


async def test_new_session_needs_a_goal_and_a_unique_id(log: SqliteLog) -> None:
    with pytest.raises(SessionError, match="needs a goal"):
        await Session(Listed(), (), ALL, log).run()
    with pytest.raises(ValueError, match="goal: is empty"):
        await Session(Listed(), (), ALL, log).run("")
    with pytest.raises(ValueError, match=r"tools\[0\]: int cannot be run"):
        Session(Listed(), [3], ALL, log)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="tools: two are named 'look'"):
        Session(Listed(), [look, look], ALL, log)
    await Session(Listed("Hi."), (), ALL, log, session_id="s1").run("Go.")
    with pytest.raises(SessionError, match="already; use Session"):
        await Session(Listed("Hi."), (), ALL, log, session_id="s1").run("Go.")


async def test_concurrent_runs_of_a_session_are_rejected(log: SqliteLog) -> None:
    gate = asyncio.Event()
    session = Session(Listed([gate]), (), ALL, log)
    running = asyncio.ensure_future(session.run("Go."))
    while not log.sessions() or session.state.call is None:
        await asyncio.sleep(0)
    others = [session.step(), session.close_open_intents("no"), session.swap(Listed())]
    for work in (session.run("Again."), *others):
        with pytest.raises(SessionError, match="running"):
            await work
    await session.cancel()
    assert (await running).outcome == "cancelled"


async def test_failing_subscribers_receive_every_event_and_do_not_affect_the_run(
    log: SqliteLog,
) -> None:
    heard: list[Any] = []

    def bad(event: Any) -> None:
        heard.append(event)
        raise RuntimeError("no")

    session = Session(Listed("Hello."), (), ALL, log, on_record=bad, on_event=bad)
    assert (await session.run("Go.")).text == "Hello."
    kinds = [event.type for event in heard]
    assert [kind for kind in kinds if kind == "text.delta"] == ["text.delta"] * 2
    assert "session.finished" in kinds


async def test_error_raised_before_a_request_is_sent_is_recorded(log: SqliteLog) -> None:
    session = Session(Listed(capabilities={"supports_tools": False}), [look], ALL, log)
    with pytest.raises(ProviderError):
        await session.run("Go.")
    assert types(list(log.read(session.id)))[-2:] == ["llm.call_failed", "session.finished"]


async def test_settings_of_a_session_may_be_a_mapping_and_are_checked_at_once() -> None:
    provider = Listed(reply("Done."))
    await Session(provider, config={"max_tokens": 9}).run("Go.")
    assert provider.requests[0].config.max_tokens == 9
    with pytest.raises(dragoman.InvalidRequestError, match=r"config.max_token is not a setting"):
        Session(provider, config={"max_token": 9})  # type: ignore[typeddict-unknown-key]
