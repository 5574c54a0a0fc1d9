"""Test the scripted provider: rules select answers, faults apply, and any script gives a valid
stream.
"""

import asyncio
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.sim import Answer, Call, Fault, RequestMatch, Script, ScriptedProvider, ScriptRule

from ..listed import Clock, collect

TOOLS = [d.Tool("search"), d.Tool("read")]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_last_scripted_answer_is_repeated_for_further_calls() -> None:
    model = ScriptedProvider(d.RateLimitError("slow", retry_after=2.0), "one", Answer("two"))
    with pytest.raises(d.RateLimitError) as caught:
        await model.complete("a")
    assert caught.value.retry_after == 2.0
    assert caught.value.provider == "sim"
    assert caught.value.model == "sim"
    assert caught.value.request_id == model.requests[0].request_id
    assert [(await model.complete("a")).text for _ in range(3)] == ["one", "two", "two"]
    assert len(model.requests) == 4


async def test_scripted_error_is_copied_for_every_call() -> None:
    given = d.StructuredOutputError(
        "wrong", output_content="{", retry_after=2.0, headers={"x-request-id": "r"}
    )
    given.add_note("from the start")
    model = ScriptedProvider(given)
    raised: list[d.StructuredOutputError] = []
    for number in range(2):
        with pytest.raises(d.StructuredOutputError) as caught:
            await model.complete("Hello", request_id=f"r{number}")
        caught.value.add_note("of this call")
        raised.append(caught.value)
    assert [error.request_id for error in raised] == ["r0", "r1"]
    for error in raised:
        assert error.message == "wrong"
        assert error.output_content == "{"
        assert error.retry_after == 2.0
        assert error.__notes__ == ["from the start", "of this call"]
        assert error.headers == given.headers
    assert given.request_id is None
    assert given.provider is None
    assert given.__notes__ == ["from the start"]


async def test_content_blocks_of_a_scripted_answer_arrive_in_order() -> None:
    said = [
        d.Thinking("so ", d.Continuity("signed")),
        Call("search", {"q": "Ä"}, "c1"),
        d.RedactedThinking("xx"),
        d.Text("and now"),
        Call("read", {"n": [1]}, "c2"),
        d.Opaque({"kind": "own"}),
    ]
    model = ScriptedProvider(Answer(content=said, usage=d.Usage(7, 3), stop_sequence="END"))
    stream = model.stream("x", tools=TOOLS)
    events = [event async for event in stream]
    d.check_events(events)
    reply = stream.response
    assert reply is not None
    content = reply.message.content
    found = [type(block) for block in content]
    assert found == [d.Thinking, d.ToolCall, d.RedactedThinking, d.Text, d.ToolCall, d.Opaque]
    assert isinstance(content[0], d.Thinking)
    assert content[0].continuity is not None
    assert content[0].continuity.signature == "signed"
    assert [(call.id, call.arguments) for call in reply.tool_calls] == [
        ("c1", {"q": "Ä"}),
        ("c2", {"n": [1]}),
    ]
    facts = (reply.finish_reason, reply.usage, reply.stop_sequence)
    assert facts == ("tool_calls", d.Usage(7, 3), "END")


async def test_token_usage_is_counted_unless_the_script_gives_it() -> None:
    counted = (
        await ScriptedProvider(Answer("four words and more", thinking="hm")).complete("hello")
    ).usage
    assert counted.input_tokens
    assert counted.output_tokens
    assert counted.reasoning_tokens
    assert counted.total_tokens == counted.input_tokens + counted.output_tokens
    assert (
        await ScriptedProvider(Answer("x", usage=d.Usage())).complete("hello")
    ).usage == d.Usage()


CONVERSATION = (
    d.System("You are Terse."),
    d.User("first"),
    d.Assistant("ok"),
    d.User("the WEATHER in Bern"),
)
AFTER_TOOL = (
    d.User("go"),
    d.Assistant(tool_calls=[d.ToolCall("a", "search", {}), d.ToolCall("b", "search", {})]),
    d.ToolResult("a", "sunny"),
    d.ToolResult("b", "rainy"),
)
MATCHES: list[tuple[RequestMatch, tuple[Any, ...], dict[str, Any], bool]] = [
    (RequestMatch(), CONVERSATION, {}, True),
    (RequestMatch(text="weather"), CONVERSATION, {}, True),
    (RequestMatch(text="first"), CONVERSATION, {}, False),
    (RequestMatch(pattern=r"in \w+$"), CONVERSATION, {}, True),
    (RequestMatch(pattern=r"^in"), CONVERSATION, {}, False),
    (RequestMatch(system="terse"), CONVERSATION, {}, True),
    (RequestMatch(system="terse"), AFTER_TOOL, {}, False),
    (RequestMatch(turn=2), CONVERSATION, {}, True),
    (RequestMatch(turn=1), CONVERSATION, {}, False),
    (RequestMatch(tool_result="SUNNY"), AFTER_TOOL, {}, True),
    (RequestMatch(tool_result="rainy"), AFTER_TOOL, {}, True),
    (RequestMatch(tool_result="snow"), AFTER_TOOL, {}, False),
    (RequestMatch(tool_result=""), CONVERSATION, {}, False),
    (RequestMatch(tools=["search"]), CONVERSATION, {"tools": TOOLS}, True),
    (RequestMatch(tools=["search", "write"]), CONVERSATION, {"tools": TOOLS}, False),
    (RequestMatch(model="sim-*"), CONVERSATION, {"model": "sim-2"}, True),
    (RequestMatch(model="sim-*"), CONVERSATION, {"model": "other"}, False),
    (RequestMatch(schema=True), CONVERSATION, {"response_schema": SCHEMA}, True),
    (RequestMatch(schema=True), CONVERSATION, {}, False),
    (RequestMatch(stream=True), CONVERSATION, {"stream": False}, False),
    (RequestMatch(where=lambda request: len(request.messages) == 4), CONVERSATION, {}, True),
    (RequestMatch(text="weather", turn=1), CONVERSATION, {}, False),
]


@pytest.mark.parametrize(("match", "messages", "facts", "fits"), MATCHES)
def test_rules_match_requests_by_their_fields(
    match: RequestMatch, messages: tuple[Any, ...], facts: dict[str, Any], fits: bool
) -> None:
    assert match.fits(d.Request(messages, **facts)) is fits


async def test_error_for_an_unmatched_request_lists_the_rules_without_the_prompt() -> None:
    model = ScriptedProvider(
        ScriptRule("a", RequestMatch(text="xylophone"), name="about x"),
        ScriptRule("b", RequestMatch(text="zebra")),
    )
    with pytest.raises(d.InvalidRequestError, match=r"no rule .* tried about x, rule 2") as caught:
        await model.complete("my secret wish")
    assert "secret" not in str(caught.value)


async def test_scripted_rule_answers_a_limited_number_of_times() -> None:
    model = ScriptedProvider(ScriptRule("once", times=1), ScriptRule("twice", times=2), "after")
    found = [(await model.complete("a")).text for _ in range(4)]
    assert found == ["once", "twice", "twice", "after"]


async def test_random_choices_of_a_script_depend_only_on_the_seed() -> None:
    async def run(seed: int) -> list[str]:
        model = ScriptedProvider(ScriptRule("heads", chance=0.5), "tails", seed=seed)
        return [(await model.complete("a")).text for _ in range(40)]

    first = await run(1)
    assert first == await run(1)
    assert first != await run(2)
    assert 8 < first.count("heads") < 32


async def test_the_same_seed_gives_the_same_events_with_their_ids() -> None:
    async def run(seed: int) -> list[Any]:
        model = ScriptedProvider(Answer("a b", tool_calls=[Call("search")]), seed=seed)
        return [event async for event in model.stream("x", tools=TOOLS, request_id="R")]

    assert await run(3) == await run(3)
    assert await run(3) != await run(4)


async def test_two_calls_never_share_an_id() -> None:
    model = ScriptedProvider("a")
    heard = [await collect(model.stream("x")) for _ in range(20)]
    assert len({events[0].message_id for events, _ in heard}) == 20


STATUSES = [
    (Fault(status=429, retry_after=7), d.RateLimitError),
    (Fault(status=503, message="busy"), d.UnavailableError),
    (Fault(status=529), d.OverloadedError),
    (Fault(error="OverloadedError", message="too much"), d.OverloadedError),
    (Fault(status=400, code="bad"), d.InvalidRequestError),
]


@pytest.mark.parametrize(("fault", "kind"), STATUSES)
async def test_scripted_rejections_are_raised_before_any_event(
    fault: Fault, kind: type[d.ProviderError]
) -> None:
    events, error = await collect(ScriptedProvider(ScriptRule("never", fault=fault)).stream("x"))
    assert events == []
    assert type(error) is kind
    assert isinstance(error, d.ProviderError)
    assert error.status == fault.status
    assert error.retry_after == fault.retry_after
    assert error.request_id


async def test_an_error_after_some_pieces_ends_the_message_and_is_raised() -> None:
    fault = Fault(error="StreamInterruptedError", after=3)
    model = ScriptedProvider(ScriptRule(Answer("one two three four"), fault=fault))
    events, error = await collect(model.stream("x"))
    d.check_events(events)
    assert isinstance(error, d.StreamInterruptedError)
    reply = d.fold(events)
    assert reply.text == "one two three"
    assert reply.finish_reason == "error"
    assert error.response.text == "one two three"


async def test_fault_scripted_after_the_last_piece_occurs_at_the_end() -> None:
    model = ScriptedProvider(ScriptRule("one", fault=Fault(error="OverloadedError", after=99)))
    events, error = await collect(model.stream("x"))
    assert d.fold(events).finish_reason == "error"
    assert isinstance(error, d.OverloadedError)


async def test_scripted_delays_are_applied() -> None:
    clock = Clock()
    answer = Answer("one two three", delay=5, pace=0.5)
    model = ScriptedProvider(ScriptRule(answer, fault=Fault(stall=9, after=2)), sleep=clock.sleep)
    assert (await model.complete("x")).text == "one two three"
    assert clock.slept[:4] == [5, 0.5, 9, 0.5]


async def test_stalled_reply_can_be_cancelled() -> None:
    model = ScriptedProvider(ScriptRule("one two", fault=Fault(stall=math.inf, after=1)))
    stream = model.stream("x")
    heard = [await anext(stream), await anext(stream)]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert await stream.cancel()
    heard += [await waiting, *[event async for event in stream]]
    d.check_events(heard)
    assert stream.response is not None
    assert stream.response.text == "one"
    assert stream.response.finish_reason == "cancelled"
    task = asyncio.ensure_future(model.complete("x", request_id="R"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert await model.cancel("R")
    with pytest.raises(d.CallCancelledError):
        await task


async def test_malformed_arguments_never_become_an_intent() -> None:
    model = ScriptedProvider(Answer(tool_calls=[Call("search", '{"q": ')]))
    with pytest.raises(d.MalformedToolCallError):
        await model.complete("x", tools=TOOLS)


async def test_scripted_structured_output_is_validated() -> None:
    model = ScriptedProvider('{"n": 3}', '{"n": "three"}')
    reply = await model.complete("x", response_schema=SCHEMA)
    assert reply.parsed == {"n": 3}
    assert reply.structured_path == "native"
    with pytest.raises(d.StructuredOutputError):
        await model.complete("x", response_schema=SCHEMA)


async def test_an_answer_can_be_a_function_of_the_request() -> None:
    model = ScriptedProvider(ScriptRule(lambda request: request.messages[-1].text[::-1]))  # type: ignore[union-attr]
    assert (await model.complete("abc")).text == "cba"


WRONG: list[tuple[Any, str]] = [
    (lambda: Answer("a", content=[d.Text("b")]), "content excludes"),
    (lambda: Answer(finish="done"), "finish must be one of"),  # type: ignore[arg-type]
    (lambda: Answer(pace=-1), "pace must be a number of at least 0"),
    (lambda: Answer(delay=math.nan), "delay must be"),
    (lambda: Answer(piece=0), "piece must be"),
    (lambda: Fault(status=200), "status must be"),
    (lambda: Fault(error="OopsError"), "error must name a class"),
    (lambda: Fault(cut_at=-1), "cut_at must be a whole number of at least 0"),
    (lambda: Fault(duplicate=0), "duplicate must be a whole number of at least 1"),
    (lambda: Fault(status=500, error="OverloadedError", after=1), "'status' is sent before"),
    (lambda: RequestMatch(pattern="("), "pattern is not a regular expression"),
    (lambda: RequestMatch(turn=0), "turn must be a whole number of at least 1"),
    (lambda: ScriptRule(times=0), "times must be"),
    (lambda: ScriptRule(chance=1.5), "chance must be"),
    (
        lambda: ScriptedProvider(3),
        "a rule is a ScriptRule, an Answer, a string or an error, not int",
    ),  # type: ignore[arg-type]
    (lambda: ScriptedProvider("a", capabilities={"supports_everything": True}), "unknown name"),
]


@pytest.mark.parametrize(("make", "complaint"), WRONG)
def test_error_names_an_invalid_value_of_a_script(make: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()


# --- random scripts, and the documented script -------------------------------------------------

WORDS = st.text(max_size=30)
CALLS = st.builds(
    Call,
    st.sampled_from(["search", "read", "unknown"]),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)
    | st.text(max_size=8),
    st.none() | st.sampled_from(["c1", "c2"]),
)
SAID = (
    st.builds(d.Text, WORDS)
    | st.builds(d.Thinking, WORDS)
    | st.builds(d.RedactedThinking, WORDS)
    | CALLS
)
ERRORS = st.sampled_from(
    ["OverloadedError", "StreamInterruptedError", "AuthenticationError", "TimedOutError"]
)
ANSWERS = st.builds(
    Answer,
    content=st.lists(SAID, max_size=5),
    finish=st.none()
    | st.sampled_from(["stop", "length", "tool_calls", "content_filter", "error", "cancelled"]),
    piece=st.none() | st.integers(1, 5),
    usage=st.none()
    | st.just(d.Usage())
    | st.builds(d.Usage, st.integers(0, 9), st.integers(0, 9)),
)
FAULTS = st.none() | st.builds(
    Fault, error=st.none() | ERRORS, after=st.integers(0, 12), stall=st.none() | st.just(1)
)
RULES = st.lists(
    st.builds(
        ScriptRule,
        ANSWERS,
        fault=FAULTS,
        times=st.none() | st.just(1),
        chance=st.sampled_from([0.0, 0.5, 1.0]),
    ),
    max_size=3,
)


@given(RULES, st.integers(0, 99), st.booleans())
async def test_any_script_gives_a_valid_stream_or_one_error(
    rules: list[ScriptRule], seed: int, structured: bool
) -> None:
    script = Script(rules, seed=seed)
    model = ScriptedProvider.from_script(script, sleep=Clock().sleep)
    schema = SCHEMA if structured else None
    for _ in range(2):
        stream = model.stream("x", tools=TOOLS, response_schema=schema)
        events, error = await collect(stream)
        d.check_events(events)
        assert error is None or isinstance(error, d.ProviderError)
        assert events or error is not None
        if events:
            assert stream.response is not None
            assert (d.fold(events).finish_reason == "error") <= (error is not None or rules != [])


def test_documented_script_fields_exist(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/simulate.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    exec(compile(example, "simulate.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Hello.\n{'q': 'Rhine'}")


def test_documented_script_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/simulate.md").read_text()
    (tmp_path / "script.yaml").write_text(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    assert len(ScriptedProvider.from_file(tmp_path / "script.yaml").rules) == 4
