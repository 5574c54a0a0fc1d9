"""Test Guard: nothing is released before its judges have allowed it, wherever the reply is cut."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dragoman as d
from dragoman import Guard, Observe, Retry, Verdict
from dragoman.calls import CallCompleted, CallFailed, GuardJudged
from dragoman.errors import BlockedError, OverloadedError
from dragoman.events import Event, check_events, encode_event
from dragoman.middleware import describe
from dragoman.middleware.guard import Action, Judge, Stage, Subject
from dragoman.wire import CODECS
from tests.listed import USAGE, Listed, broken, collect, reply, speak
from tests.waiting import PATIENCE, settle

from .test_wrapping import CASES, WHOLE, frames_of, open_case, places, read, sample, with_plain_ids

SECRET = "swordfish"
TOOL = d.Tool("open", parameters={"type": "object", "properties": {"key": {"type": "string"}}})
EVERY: tuple[Stage, ...] = ("request", "text", "intent", "reply")
STREAMED: tuple[Stage, ...] = ("text", "intent")


async def allow(subject: Subject) -> Action:
    return "allow"


async def refuse_secret(subject: Subject) -> Action:
    return "block" if SECRET in subject.text else "allow"


def say(*pieces: str) -> Callable[[Any], None]:
    def write(out: Any) -> None:
        for piece in pieces:
            out.text(piece)

    return write


def call(*pieces: str, name: str = "open", key: str = "c1") -> Callable[[Any], None]:
    def write(out: Any) -> None:
        out.tool_start(key, key, name)
        for piece in pieces:
            out.tool_input(key, piece)
        out.block_end(key)

    return write


async def stream(model: d.Provider, **more: Any) -> tuple[list[Event], Exception | None]:
    return await collect(aiter(model.stream("Hi", **more)))


def show(events: Sequence[Event]) -> str:
    """Return everything that a client can read in events."""
    return b"\n".join([encode_event(event) for event in events]).decode()


def verdicts(reply: Any) -> list[tuple[str, str]]:
    return [(each.stage, each.action) for each in reply.history if isinstance(each, GuardJudged)]


# --- what is released ---------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("on", [EVERY, STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", CODECS)
async def test_guard_that_allows_everything_changes_no_event(
    wire: str, on: tuple[Stage, ...]
) -> None:
    draw = random.Random(wire)
    for case in CASES[wire]:
        ends = [place for place in places(case) if place[2] is None]
        for place, chunks, _ in sample(ends, draw):
            bare = await read(open_case(case, chunks), case, None)
            guarded = await read(Guard(open_case(case, chunks), allow, on=on), case, None)
            if bare["events"] == [] or bare["error"] is not None:
                for seen in (bare, guarded):
                    seen["reply"][1] = None  # the raw bytes of a reply that did not end
            assert with_plain_ids(guarded) == with_plain_ids(bare), f"{wire}/{case}, {place}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("on", [EVERY, STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", CODECS)
async def test_guard_that_blocks_everything_releases_nothing_of_a_reply(
    wire: str, on: tuple[Stage, ...]
) -> None:
    async def block(subject: Subject) -> Action:
        return "allow" if subject.stage == "request" else "block"

    for case in CASES[wire]:
        seen = await read(Guard(open_case(case, [*frames_of(case)]), block, on=on), case, None)
        released = [msgspec.json.decode(event) for event in seen["events"]]
        # Encrypted thoughts, and signatures without a text, are released: no client can read them.
        content = [
            [block for block in each["final_content"] if block.get("text", "") or "name" in block]
            for each in released
            if "final_content" in each
        ]
        bare = await read(open_case(case, [*frames_of(case)]), case, None)
        said = bare["response"] is not None and bare["response"]["message"]["content"]
        if said:
            assert content in ([], [[]]), f"{wire}/{case}"
            assert seen["reply"][1] is None, f"{wire}/{case}"
            assert seen["error"] is not None
            assert seen["error"][0] == "BlockedError", f"{wire}/{case}"


@pytest.mark.exhaustive
@given(
    st.sampled_from(["text", "thinking", "name", "id", "argument", "key", "escaped", "nested"]),
    st.lists(st.integers(0, 60), max_size=8),
    st.sampled_from([EVERY, STREAMED, ("text", "intent", "reply")]),
    st.integers(len(SECRET), 40) | st.just("sentence"),
    st.text("abc .\n", max_size=60),
    st.booleans(),
)
@settings(max_examples=10_000 if WHOLE else 300, deadline=None)
def test_forbidden_text_never_leaves_wherever_it_is_cut(
    place: str,
    cuts: list[int],
    on: tuple[Stage, ...],
    window: Any,
    before: str,
    stream_it: bool,
) -> None:
    written = SECRET
    if place == "escaped":
        written = "".join([f"\\u{ord(letter):04x}" for letter in SECRET])
    if place in ("text", "thinking"):
        whole = before + SECRET + " and more."
    elif place == "key":
        whole = f'{{"{SECRET}": 1}}'
    elif place == "nested":
        whole = f'{{"key": "x", "more": [{{"deep": ["{SECRET}"]}}]}}'
    else:
        whole = f'{{"key": "{written if place in ("argument", "escaped") else "x"}"}}'
    at = sorted({min(cut, len(whole)) for cut in cuts})
    pieces = [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]

    def answer(out: Any) -> None:
        if place == "text":
            say(*pieces)(out)
        elif place == "thinking":
            for piece in pieces:
                out.thinking(piece)
        else:
            out.text(before)
            name = SECRET if place == "name" else "open"
            call(*pieces, name=name, key=SECRET if place == "id" else "c1")(out)

    model = Guard(Listed(speak(answer)), refuse_secret, on=on, window=window)

    async def run() -> tuple[list[Event], Any]:
        if stream_it:
            return await stream(model, tools=[TOOL], check_calls=False)
        try:
            await model.complete("Hi", tools=[TOOL], check_calls=False)
        except BlockedError as error:
            return [], error
        return [], None

    events, error = asyncio.run(run())
    if window == "sentence" and place in ("text", "thinking"):
        assert SECRET not in show(events)
    assert isinstance(error, BlockedError)
    assert SECRET not in show(events)
    for length in range(3, len(SECRET) + 1):  # not even the beginning of it
        assert SECRET[:length] not in show(events).replace("and more", ""), length
    assert SECRET not in f"{error!s} {error!r} {error.response}"
    if events:
        check_events(events)


async def test_stream_releases_text_in_windows_and_keeps_the_last_window_back() -> None:
    gate = asyncio.Event()
    pieces = [f"{number:02} " for number in range(20)]
    events = [*speak(say(*pieces))(d.Request([d.User("Hi")], model="m", stream=True))]
    model = Guard(Listed([*events[:-1], gate, events[-1]]), allow, on="text", window=10)
    heard = list[str]()

    async def listen() -> None:
        async for text in model.stream("Hi").text():
            heard.append(text)

    task = asyncio.create_task(listen())
    await settle()
    assert "".join(heard) == "".join(pieces[:16])  # 50 of 60 characters may leave
    gate.set()
    await task
    assert "".join(heard) == "".join(pieces)


async def test_answer_behind_a_thought_leaves_while_the_model_writes() -> None:
    gate = asyncio.Event()
    pieces = [f"{number:02} " for number in range(20)]

    def think(out: Any) -> None:
        for piece in pieces:
            out.thinking(piece)

    events = [*speak(think, say(*pieces))(d.Request([d.User("Hi")], model="m", stream=True))]
    read = 0

    async def judge(subject: Subject) -> Action:
        nonlocal read
        read += len(subject.text)
        return "allow"

    model = Guard(Listed([*events[:-1], gate, events[-1]]), judge, on="text", window=10)
    heard = list[str]()

    async def listen() -> None:
        async for text in model.stream("Hi").text():
            heard.append(text)

    task = asyncio.create_task(listen())
    await settle()
    assert "".join(heard) == "".join(pieces[:16])
    gate.set()
    await task
    assert "".join(heard) == "".join(pieces)
    assert read < 300  # of 120 characters: a window twice, and nothing more often


async def test_text_that_waits_for_other_content_is_not_judged_again_and_again() -> None:
    def write(out: Any) -> None:
        out.text("One.")
        for _ in range(300):
            out.thinking("What is next? ")

    read = 0

    async def judge(subject: Subject) -> Action:
        nonlocal read
        read += len(subject.text)
        return "allow"

    model = Guard(Listed(speak(write)), judge, on="text", window=20)
    assert (await collect(aiter(model.stream("Hi"))))[1] is None
    assert read < 3 * 300 * 14


@pytest.mark.parametrize("on", [EVERY, STREAMED], ids=["whole", "streamed"])
async def test_work_of_a_guard_grows_with_the_length_of_a_reply(on: tuple[Stage, ...]) -> None:
    async def count_steps(pieces: int) -> int:
        source = Guard(Listed(speak(say(*["ab"] * pieces))), allow, on=on)
        steps = 0

        def count(frame: Any, event: str, arg: Any) -> Any:
            nonlocal steps
            steps += event == "line"
            return count if "guard" in frame.f_code.co_filename else None

        before = sys.gettrace()
        sys.settrace(count)
        try:
            events, error = await collect(aiter(source.stream("Hi")))
        finally:
            sys.settrace(before)
        assert error is None
        assert len(events) >= pieces
        return steps

    assert await count_steps(800) < 6 * await count_steps(200)


async def test_stream_releases_whole_sentences() -> None:
    gate = asyncio.Event()
    pieces = ["One is fi", "rst. Two", " is second! Thr", "ee"]
    events = [*speak(say(*pieces))(d.Request([d.User("Hi")], model="m", stream=True))]
    model = Guard(Listed([*events[:-1], gate, events[-1]]), allow, on="text", window="sentence")
    heard = list[str]()

    async def listen() -> None:
        async for text in model.stream("Hi").text():
            heard.append(text)

    task = asyncio.create_task(listen())
    await settle()
    assert "".join(heard) == "One is first. Two"  # pieces of the provider leave whole
    gate.set()
    await task
    assert "".join(heard) == "".join(pieces)


async def test_tool_call_is_held_whole_until_it_is_judged() -> None:
    gate = asyncio.Event()
    asked = speak(call('{"key"', ': "x"}'), call("{}", key="c2"), finish="tool_calls")
    events = [*asked(d.Request([d.User("Hi")], tools=[TOOL], model="m", stream=True))]
    middle = next(at for at, each in enumerate(events) if isinstance(each, d.ToolUseEnd))
    model = Guard(Listed([*events[:middle], gate, *events[middle:]]), allow, on=STREAMED)
    heard = list[Event]()

    async def listen() -> None:
        async for event in model.stream("Hi", [TOOL]):
            heard.append(event)

    task = asyncio.create_task(listen())
    await settle()
    assert heard == []  # not even the start of the message
    gate.set()
    await task
    assert [encode_event(each) for each in heard] == [encode_event(each) for each in events]


# --- what a judge sees --------------------------------------------------------------------------


async def test_judge_sees_each_stage_whole() -> None:
    seen = list[Subject]()

    async def watch(subject: Subject) -> Action:
        seen.append(subject)
        return "allow"

    def think(out: Any) -> None:
        out.thinking("Hm.")

    inner = Listed(speak(think, say("One ", "river."), call('{"key":', ' "x"}')))
    await Guard(inner, watch).complete("Where?", [TOOL], system="Be brief.")
    request, intent, text, thinking, whole = seen
    assert request.stage == "request"
    assert request.text.splitlines()[:2] == ["Be brief.", "Where?"]
    assert "open" in request.text.splitlines()
    assert intent.stage == "intent"
    assert intent.text.splitlines() == ["open", "c1", "key", "x"]
    assert intent.tool_name == "open"
    assert intent.input == {"key": "x"}
    assert intent.intent is not None
    assert text.stage == "text"
    assert text.part == "text"
    assert text.text == "One river."
    assert thinking.stage == "text"
    assert thinking.part == "thinking"
    assert thinking.text == "Hm."
    assert whole.stage == "reply"
    assert [type(block).__name__ for block in whole.content] == ["Thinking", "Text", "ToolCall"]
    assert str(whole).splitlines() == ["Hm.", "One river.", "c1", "open", "key", "x"]
    assert all(subject.request.request_id == request.request.request_id for subject in seen)


async def test_malformed_call_is_judged_by_what_the_model_wrote() -> None:
    model = Guard(Listed(speak(call(f'{{"key": "{SECRET}'))), refuse_secret, on="intent")
    events, error = await stream(model, tools=[TOOL])
    assert isinstance(error, BlockedError)
    assert events == []


async def test_files_in_a_request_are_not_part_of_its_text() -> None:
    subjects = list[Subject]()

    async def watch(subject: Subject) -> Action:
        subjects.append(subject)
        return "allow"

    picture = d.Image(b"\x89PNG\r\n\x1a\n" + b"x" * 900, media_type="image/png")
    await Guard(Listed("Yes."), watch, on="request").complete([d.User(["See:", picture])])
    assert subjects[0].text.splitlines() == ["See:", "image/png"]


# --- verdicts -----------------------------------------------------------------------------------


async def test_blocked_request_is_not_sent() -> None:
    inner = Listed("Yes.")
    with pytest.raises(BlockedError) as caught:
        await Guard(inner, refuse_secret).complete(f"Say {SECRET}.")
    assert inner.requests == []
    assert "the guard withheld the request: a judge blocked it [blocked]" in str(caught.value)
    assert SECRET not in str(caught.value)


async def test_blocked_reply_keeps_its_usage_and_hides_its_raw_bytes() -> None:
    for case in CASES["openai"]:
        if case.is_stream or not case.reply:
            continue
        bare = await read(open_case(case, [case.reply]), case, None)
        if bare["response"] is None:
            continue

        async def block(subject: Subject) -> Action:
            return "block" if subject.stage == "reply" else "allow"

        seen = await read(Guard(open_case(case, [case.reply]), block), case, None)
        assert seen["error"][0] == "BlockedError"
        assert seen["error"][2]["usage"] == bare["response"]["usage"], str(case)
        assert seen["error"][2]["raw"] is None
        assert seen["reply"][0] == bare["reply"][0]
        assert seen["reply"][1] is None


@pytest.mark.parametrize("streams", [False, True])
async def test_refusal_takes_the_place_of_what_is_blocked(streams: bool) -> None:
    for words in (f"Say {SECRET}.", "Say it."):
        inner = Listed(SECRET)
        model = Guard(inner, refuse_secret, refusal="I cannot help with that.")
        if streams:
            async with model.stream(words) as events:
                heard = [event async for event in events]
            check_events(heard)
            answer = events.response
        else:
            answer = await model.complete(words)
        assert answer is not None
        assert answer.text == "I cannot help with that."
        assert answer.finish_reason == "content_filter"
        assert answer.finish_raw == "guard"
        assert answer.raw is None
        expected = USAGE if inner.requests else d.Usage()
        assert answer.usage == expected


async def test_block_after_released_text_ends_the_stream_after_it() -> None:
    pieces = ["Rivers are long. ", "The word is sword", "fish."]
    for refusal in (None, "No."):
        inner = Listed(speak(say(*pieces)))
        model = Guard(inner, refuse_secret, on="text", window=9, refusal=refusal)
        events, error = await stream(model)
        check_events(events)
        last = events[-1]
        assert isinstance(last, d.MessageComplete)
        released = "".join([each.text for each in events if isinstance(each, d.TextDelta)])
        assert released == pieces[0] + (refusal or "")
        if refusal is None:
            assert last.finish_reason == "error"
            assert isinstance(error, BlockedError)
            assert error.response is not None
            assert error.response.text == pieces[0]
            assert error.response.usage.input_tokens is not None
        else:
            assert last.finish_reason == "content_filter"
            assert error is None


async def test_flagged_content_is_released_and_on_record() -> None:
    async def flag(subject: Subject) -> Verdict:
        return Verdict("flag", code="pii")

    seen = list[Any]()
    model = Observe(Guard(Listed("Yes."), flag, on=("request", "reply")), seen.append)
    assert (await model.complete("Hi")).text == "Yes."
    await model.flush()
    judged = [each for each in seen if isinstance(each, GuardJudged)]
    assert [(each.stage, each.action, each.code) for each in judged] == [
        ("request", "flag", "pii"),
        ("reply", "flag", "pii"),
    ]
    assert judged[0].judge == "flag"
    assert len(judged[0].sha256) == 64
    assert judged[0].request_id == seen[-1].request_id
    assert isinstance(seen[-1], CallCompleted)


async def test_reason_of_a_judge_is_on_record_only_with_content() -> None:
    async def block(subject: Subject) -> Verdict:
        return Verdict("block", f"it says {subject.text}", code=f"not a {SECRET}")

    for include in (False, True):
        seen = list[Any]()
        guard = Guard(Listed(), block, include_content=include)
        model = Observe(guard, seen.append)
        with pytest.raises(BlockedError) as caught:
            await model.complete(SECRET)
        await model.flush()
        (judged,) = [each for each in seen if isinstance(each, GuardJudged)]
        assert judged.code is None  # a code is a word, because it is shown to clients
        assert (judged.reason is not None) is include
        assert caught.value.provider_code == "blocked"
        assert SECRET not in str(caught.value)


async def test_strictest_verdict_of_several_judges_counts() -> None:
    def answer(action: Action) -> Judge:
        async def judge(subject: Subject) -> Action:
            return action

        return judge

    mild = Guard(Listed("Yes."), [answer("allow"), answer("flag")], on="reply")
    assert (await mild.complete("Hi")).text == "Yes."
    with pytest.raises(BlockedError):
        await Guard(Listed("Yes."), [answer("flag"), answer("block")], on="reply").complete("Hi")
    nested = Guard(Guard(Listed("Yes."), answer("flag"), on="reply"), answer("block"), on="reply")
    reply = nested.open(d.Request([d.User("Hi")], model="m"))
    with pytest.raises(BlockedError):
        await reply.next()
    assert verdicts(reply) == [("reply", "flag"), ("reply", "block")]


async def test_version_that_quotes_what_was_judged_is_not_on_record() -> None:
    for version in (f"a {SECRET} key", SECRET * 1_000):
        reply = Guard(Listed("Yes."), give(version=version)).open(
            d.Request([d.User("Hi")], model="m")
        )
        while await reply.next():
            pass
        judged = [each for each in reply.history if isinstance(each, GuardJudged)]
        assert {each.version for each in judged} == {None}


# --- judges that fail ---------------------------------------------------------------------------


class Broken:
    """A judge with a name and a version, which fails."""

    name = "broken"
    version = "3"

    def __call__(self, subject: Subject) -> Action:
        raise RuntimeError(f"cannot read {subject.text}")


async def hang(subject: Subject) -> Action:
    await asyncio.Event().wait()
    return "allow"


def block_thread(subject: Subject) -> Action:
    threading.Event().wait()
    return "allow"


def answer_nonsense(subject: Subject) -> Any:
    return {"allow": True}


def answer_hugely(subject: Subject) -> Any:
    return "allow" * 1_000_000


def give(**fields: Any) -> Judge:
    async def judge(subject: Subject) -> Verdict:
        return Verdict("allow", **fields)

    return judge


async def cancel(subject: Subject) -> Action:
    raise asyncio.CancelledError


WRONG: list[dict[str, Any]] = [
    {"reason": 5},
    {"code": ["x"]},
    {"text": 5},
    {"version": 5},
    {"input": [1]},
    {"cost_usd": 0.5},
    {"cost_usd": Decimal("NaN")},
    {"cost_usd": Decimal("sNaN")},
    {"cost_usd": Decimal("Infinity")},
    {"cost_usd": Decimal("1e9999999")},
    {"cost_usd": Decimal("0e-9999999")},
    {"cost_usd": Decimal(-1)},
]


@pytest.mark.parametrize(
    ("judge", "code"),
    [
        (Broken(), "judge_failed"),
        (hang, "judge_late"),
        (block_thread, "judge_late"),
        (answer_nonsense, "judge_failed"),
        (answer_hugely, "judge_failed"),
        (cancel, "judge_failed"),
        *[(give(**fields), "judge_failed") for fields in WRONG],
    ],
    ids=["broken", "hang", "thread", "nonsense", "huge", "cancel", *map(str, WRONG)],
)
async def test_judge_that_fails_blocks_unless_the_guard_is_open(judge: Any, code: str) -> None:
    seconds = 0.02 if code == "judge_late" else PATIENCE
    with pytest.raises(BlockedError) as caught:
        await Guard(Listed("Yes."), judge, deadline=seconds).complete(SECRET)
    assert caught.value.provider_code == code
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None
    model = Guard(Listed("Yes."), judge, on="request", on_failure="open", deadline=seconds)
    reply = model.open(d.Request([d.User(SECRET)], model="m"))
    while await reply.next():
        pass
    (judged,) = [each for each in reply.history if isinstance(each, GuardJudged)]
    assert judged.action == "allow"
    assert judged.failed
    assert judged.code == code


async def test_cancelling_while_a_judge_waits_keeps_what_the_model_used() -> None:
    asked = asyncio.Event()

    async def judge(subject: Subject) -> Action:
        asked.set()
        await asyncio.Event().wait()
        return "allow"

    model = Guard(Listed("Yes."), judge, on="reply")
    events = model.stream("Hi")

    async def listen() -> list[Event]:
        return [event async for event in events]

    task = asyncio.create_task(listen())
    await asked.wait()
    await events.cancel()
    heard = await task
    assert events.response is not None
    assert events.response.finish_reason == "cancelled"
    assert events.response.text == ""
    assert events.response.usage == USAGE
    assert "Yes." not in show(heard)


# --- rewriting ----------------------------------------------------------------------------------


def mask(subject: Subject) -> Action | Verdict:
    if SECRET not in subject.text:
        return "allow"
    if subject.stage == "intent":
        return Verdict("rewrite", input={"key": "***"}, code="masked")
    if subject.stage == "request":
        return Verdict("rewrite", request=msgspec.structs.replace(
            subject.request, messages=(d.User("Say ***."),)
        ))  # fmt: skip
    return Verdict("rewrite", text=subject.text.replace(SECRET, "***"))


@pytest.mark.parametrize("streams", [False, True])
async def test_rewritten_reply_has_new_events_and_a_warning_for_each_change(streams: bool) -> None:
    def answer(out: Any) -> None:
        out.text(f"It is {SECRET[:4]}")
        out.text(f"{SECRET[4:]}.")
        call(f'{{"key": "{SECRET}"}}')(out)
        call("{}", key="c2")(out)

    inner = Listed(speak(answer, finish="tool_calls"))
    model = Guard(inner, mask, rewrites=("request", "text", "intent"))
    async with model.stream(f"Say {SECRET}.", [TOOL]) as events:
        heard = [event async for event in events]
    check_events(heard)
    response = events.response
    assert response is not None
    assert SECRET not in show(heard)
    assert inner.requests[0].messages == (d.User("Say ***."),)
    assert response.text == "It is ***."
    assert [each.arguments for each in response.tool_calls] == [{"key": "***"}, {}]
    ends = [each for each in heard if isinstance(each, d.ToolUseEnd)]
    assert [each.intent is not None for each in ends] == [True, True]
    assert ends[0].intent is not None
    assert ends[0].intent.raw_input_text == '{"key":"***"}'
    assert [warning.code for warning in response.warnings] == ["guard_rewrite"] * 2
    assert response.raw is None
    assert response.usage == USAGE


@pytest.mark.parametrize(
    ("verdict", "rewrites"),
    [
        (Verdict("rewrite", text="x"), ()),
        (Verdict("rewrite"), ("text", "intent")),
        (Verdict("rewrite", input={"key": 7}), ("text", "intent")),
    ],
    ids=["not allowed", "empty", "unlike the schema"],
)
async def test_rewrite_that_cannot_be_applied_blocks(
    verdict: Verdict, rewrites: tuple[Any, ...]
) -> None:
    async def judge(subject: Subject) -> Verdict:
        return verdict

    inner = Listed(speak(call('{"key": "x"}'), finish="tool_calls"))
    with pytest.raises(BlockedError):
        await Guard(inner, judge, on=STREAMED, rewrites=rewrites).complete("Hi", [TOOL])


async def test_rewritten_structured_answer_is_checked_again() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def change(subject: Subject) -> Action | Verdict:
        return Verdict("rewrite", text='{"n": 2}') if '"n": 1' in subject.text else "allow"

    def spoil(subject: Subject) -> Action | Verdict:
        return Verdict("rewrite", text='{"n": "x"}') if '"n": 1' in subject.text else "allow"

    inner = Listed(reply('{"n": 1}'), repeat=True)
    changed = Guard(inner, change, on="text", rewrites=["text"])
    assert (await changed.complete("Hi", response_schema=schema)).parsed == {"n": 2}
    spoilt = Guard(inner, spoil, on="text", rewrites=["text"])
    with pytest.raises(d.StructuredOutputError):
        await spoilt.complete("Hi", response_schema=schema)


# --- other layers and operations ----------------------------------------------------------------


async def test_attempts_before_the_reply_stay_in_the_history_in_order() -> None:
    inner = Retry(Listed(OverloadedError("busy"), "Yes."), backoff=lambda _: 0)
    model = Guard(inner, allow, on=("request", "reply"))
    reply = model.open(d.Request([d.User("Hi")], model="m"))
    while await reply.next():
        pass
    kinds = [type(each).__name__ for each in reply.history]
    assert kinds[0] == "GuardJudged"
    assert kinds[-1] == "GuardJudged"
    assert len([each for each in reply.history if isinstance(each, CallFailed)]) == 1
    assert len(reply.history) == len({id(each) for each in reply.history})


async def test_error_after_released_text_passes_with_its_part_of_the_reply() -> None:
    inner = Listed(broken("One. Two.", OverloadedError("busy")))
    events, error = await stream(Guard(inner, allow))
    check_events(events)
    assert isinstance(error, OverloadedError)
    assert error.response is not None
    assert error.response.text == "One. Two."
    inner = Listed(broken(f"One. {SECRET}", OverloadedError("busy")))
    events, error = await stream(Guard(inner, refuse_secret))
    assert events == []
    assert isinstance(error, BlockedError)


def test_describe_names_judges_and_stages() -> None:
    shown = describe(Guard(Listed(), [Broken(), allow], on=("intent", "text")))
    assert shown.splitlines()[0] == (
        "Guard(judge=['broken', 'allow'], on=['text', 'intent'], window=200, "
        "on_failure='closed', deadline=10.0)"
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"judge": []}, "give at least one judge"),
        ({"judge": 5}, "a judge must be a function, not int"),
        ({"on": "answer"}, "on lists some of request, text, intent, reply, not 'answer'"),
        ({"rewrites": ["reply"]}, "rewrites lists some of request, text, intent, not 'reply'"),
        ({"on": "text", "rewrites": ["intent"]}, "rewrites names a stage that on does not"),
        ({"window": 0}, "window must be a whole number from 1 to"),
        ({"window": "word"}, "window must be a whole number"),
        ({"deadline": 0}, "deadline must be a number from"),
        ({"on_failure": "ajar"}, "on_failure is 'closed' or 'open', not 'ajar'"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Guard(Listed(), **{"judge": allow, **settings})
