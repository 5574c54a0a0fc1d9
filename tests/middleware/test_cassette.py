"""Test Record: recorded events are replayed, misses are explained, and no secret reaches a
cassette.
"""

import asyncio
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.middleware import CassetteError, CassetteMiss, request_key
from dragoman.validate import build_request
from tests.listed import Clock, Listed, broken, collect, reply, speak
from tests.rows import read_table
from tests.waiting import PATIENCE

from .conftest import ERRORS

TOOL = d.Tool("add", "", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ANSWERS = {
    "text": (reply("héllo\u2028wörld\n"), {}),
    "thinking and a call": (
        speak(
            lambda out: (
                out.thinking("hm"),
                out.attach(d.Thinking, "sig=="),
                out.tool_start(0, "c1", "add"),
                out.tool_input(0, '{"n"'),
                out.tool_input(0, ": 1}"),
            ),
            usage=d.Usage(
                1,
                2,
                cached_input_tokens=3,
                cache_creation_input_tokens=4,
                reasoning_tokens=5,
                total_tokens=6,
                estimated=True,
            ),
            finish="tool_calls",
            raw="tool_use",
        ),
        {"tools": [TOOL]},
    ),
    "structured": (reply('{"n": 3}'), {"response_schema": SCHEMA}),
    "structured and wrong": (reply('{"n": "x"}'), {"response_schema": SCHEMA}),
    "length": (reply("cut", finish="length", stop_sequence="x"), {}),
    "broken off": (broken("half", d.StreamInterruptedError("cut", provider_message="oops")), {}),
    "refused": (
        d.RateLimitError("slow", status=429, retry_after=2.5, headers={"retry-after": "2.5"}),
        {},
    ),
    "silence": (d.TimedOutError("too long", which="first_event"), {}),
}


def request(text: Any = "hi", **facts: Any) -> Any:
    return build_request(text, model="m", **facts)


def without_ids(event: Any) -> Any:
    plain = msgspec.to_builtins(event)
    plain.pop("request_id")
    plain.pop("kept", None)
    if plain.get("intent"):
        plain["intent"]["source"].pop("request_id")
    return plain


# --- replaying recorded calls ------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", ANSWERS)
async def test_recorded_events_are_replayed(tmp_path: Path, case: str, stream: bool) -> None:
    answer, facts = ANSWERS[case]
    path = tmp_path / "c.jsonl"
    inner = Listed(answer)
    recorded, failed = await collect(d.Record(inner, path).events(request(stream=stream, **facts)))
    again = request(stream=stream, **facts)
    played, failed_again = await collect(d.Record(Listed(), path).events(again))
    assert [without_ids(event) for event in played] == [without_ids(event) for event in recorded]
    assert [type(event) for event in played] == [type(event) for event in recorded]
    assert {event.request_id for event in played} <= {again.request_id}
    intents = [event.intent for event in played if isinstance(event, d.ToolUseEnd)]
    assert all(intent and intent.source.request_id == again.request_id for intent in intents)
    d.check_events(played)
    assert type(failed_again) is type(failed)
    if isinstance(failed, d.ProviderError) and isinstance(failed_again, d.ProviderError):
        assert failed_again.request_id == again.request_id
        assert str(failed_again) == str(failed)


def every_error() -> list[d.ProviderError]:
    facts = {
        "status": 418, "provider": "p", "model": "m", "request_id": "old",
        "provider_code": "teapot", "provider_message": "short and stout",
        "headers": {"x-request-id": "abc", "retry-after": "7", "authorization": "never kept"},
        "retry_after": 7.0,
    }  # fmt: skip
    more: dict[Any, dict[str, Any]] = {
        d.TimedOutError: {"which": "idle"},
        d.StructuredOutputError: {
            "response_schema": {"type": "object"}, "output_content": "not json",
            "error_message": "what is wrong", "finish_reason": "stop", "usage": d.Usage(1, 2),
        },
    }  # fmt: skip
    return [kind("what happened", **facts, **more.get(kind, {})) for kind in ERRORS]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
async def test_recorded_errors_are_replayed(tmp_path: Path, error: d.ProviderError) -> None:
    error.quotable = False
    await collect(d.Record(Listed(error), tmp_path / "c").events(request()))
    again = request()
    _, played = await collect(d.Record(Listed(), tmp_path / "c").events(again))
    assert type(played) is type(error)
    assert {**vars(played), "request_id": "old"} == vars(error)
    assert played.request_id == again.request_id  # type: ignore[union-attr]


async def test_custom_error_class_is_replayed_as_its_base(tmp_path: Path) -> None:
    class OddError(d.UnavailableError):
        pass

    await collect(d.Record(Listed(OddError("odd")), tmp_path / "c").events(request()))
    _, played = await collect(d.Record(Listed(), tmp_path / "c").events(request()))
    assert type(played) is d.UnavailableError


async def test_replayed_error_has_the_partial_reply(tmp_path: Path) -> None:
    answer, _ = ANSWERS["broken off"]
    await collect(d.Record(Listed(answer), tmp_path / "c").events(request()))
    with pytest.raises(d.StreamInterruptedError) as caught:
        await d.Record(Listed(model="m"), tmp_path / "c").complete("hi")
    assert caught.value.response is not None
    assert caught.value.response.text == "half"


async def test_repeated_call_replays_its_recordings_in_order(tmp_path: Path) -> None:
    clock = Clock()

    def stack(*answers: Any) -> d.Retry:
        return d.Retry(d.Record(Listed(*answers), tmp_path / "c"), clock=clock, sleep=clock.sleep)

    first = stack(d.UnavailableError("1"), d.UnavailableError("2"), "third", "fourth")
    assert [(await first.complete("hi")).text for _ in range(2)] == ["third", "fourth"]
    second = stack()
    assert [(await second.complete("hi")).text for _ in range(2)] == ["third", "fourth"]
    assert len(clock.slept) == 4
    with pytest.raises(CassetteMiss, match="recorded 4 times and is made once more"):
        await second.complete("hi")


@pytest.mark.parametrize(
    ("timing", "reading", "slept"),
    [
        (False, 0.0, []),
        (True, 0.0, [0.5, 0.25, 0.25]),
        (True, 0.125, [0.5, 0.125, 0.125]),  # the time that a slow reader takes is not added
    ],
)
async def test_timing_is_recorded_and_replayed_on_request(
    tmp_path: Path, timing: bool, reading: float, slept: list[float]
) -> None:
    clock = Clock()

    def slow(asked: Any) -> Any:
        for event, pause in zip(reply("hi")(asked), (0.5, 0.25, 0.25, 0), strict=True):
            clock.now += pause
            yield event

    await collect(d.Record(Listed(slow), tmp_path / "c", clock=clock).events(request()))
    playing = Clock()
    model = d.Record(
        Listed(), tmp_path / "c", replay_timing=timing, clock=playing, sleep=playing.sleep
    )
    async for _ in model.events(request()):
        playing.now += reading
    assert playing.slept == pytest.approx(slept)


# --- modes of a cassette -----------------------------------------------------------------------


async def test_once_mode_records_the_first_call_and_replays_later_ones(tmp_path: Path) -> None:
    inner = Listed("first", "second")
    assert (await d.Record(inner, tmp_path / "c").complete("hi")).text == "first"
    assert (await d.Record(inner, tmp_path / "c").complete("hi")).text == "first"
    assert len(inner.requests) == 1
    with pytest.raises(CassetteMiss):
        await d.Record(inner, tmp_path / "c").complete("something else")
    assert len(inner.requests) == 1


async def test_replay_mode_sends_no_requests(tmp_path: Path) -> None:
    inner = Listed("never asked")
    with pytest.raises(CassetteMiss, match="there is no call on this cassette"):
        await d.Record(inner, tmp_path / "missing", "replay").complete("hi")
    assert inner.requests == []
    assert not (tmp_path / "missing").exists()


async def test_record_mode_replaces_repeated_calls_and_keeps_other_recordings(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c"
    old = d.Record(Listed("a1", "a2", "b1"), path)
    for text in ("a", "a", "b"):
        await old.complete(text)
    new = d.Record(Listed("a3", "a4"), path, "record")
    for _ in range(2):
        await new.complete("a")
    played = d.Record(Listed(), path, "replay")
    assert [(await played.complete(text)).text for text in ("a", "a", "b")] == ["a3", "a4", "b1"]
    with pytest.raises(CassetteMiss):
        await played.complete("a")


async def test_off_mode_passes_calls_through(tmp_path: Path) -> None:
    assert (await d.Record(Listed("x"), tmp_path / "c", "off").complete("hi")).text == "x"
    assert list(tmp_path.iterdir()) == []


async def test_readiness_check_is_forwarded_except_in_replay_mode(tmp_path: Path) -> None:
    for mode, asks in (("record", True), ("once", True), ("off", True), ("replay", False)):
        model = d.Record(Listed(d.UnavailableError("down")), tmp_path / "c", mode)  # type: ignore[arg-type]
        if asks:
            with pytest.raises(d.UnavailableError):
                await model.ready()
        else:
            await model.ready()


async def test_incomplete_call_is_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = d.Record(Listed("hello", ZeroDivisionError("bug")), tmp_path / "c")
    source = model.events(request(stream=True))
    await source.__anext__()
    with caplog.at_level(logging.INFO, "dragoman"):
        await source.aclose()  # type: ignore[attr-defined]
    assert "is not recorded" in caplog.text
    _, error = await collect(model.events(request()))
    assert isinstance(error, ZeroDivisionError)
    assert not (tmp_path / "c").exists()


async def test_call_is_recorded_even_if_the_reader_stops_at_the_last_event(tmp_path: Path) -> None:
    model = d.Record(Listed(ANSWERS["structured and wrong"][0]), tmp_path / "c")
    source = model.events(request(response_schema=SCHEMA))
    async for event in source:
        if isinstance(event, d.MessageComplete):
            break
    await source.aclose()  # type: ignore[attr-defined]
    again = d.Record(Listed(), tmp_path / "c")
    _, error = await collect(again.events(request(response_schema=SCHEMA)))
    assert isinstance(error, d.StructuredOutputError)


# --- cassette keys and unrecorded requests -----------------------------------------------------


def test_cassette_key_depends_only_on_what_changes_the_reply() -> None:
    base = request("hi", config={"temperature": 1.0})
    same = [
        request("hi", config=d.RuntimeConfig(temperature=1)),
        request("hi", config={"temperature": 1.0}, request_id="another"),
        msgspec.structs.replace(base, metadata={"dragoman.attempt": "2"}, session_id="s"),
    ]
    other = [
        request("ho", config={"temperature": 1.0}), request("hi", config={"temperature": 0.9}),
        request("hi"), request("hi", config={"temperature": 1.0}, stream=True),
        request("hi", config={"temperature": 1.0}, tools=[TOOL]),
        request("hi", config={"temperature": 1.0}, response_schema=SCHEMA),
        msgspec.structs.replace(base, model="another"),
    ]  # fmt: skip
    assert {request_key(each) for each in same} == {request_key(base)}
    assert len({request_key(each) for each in [base, *other]}) == 1 + len(other)


@given(
    st.dictionaries(
        st.text(max_size=5), st.integers() | st.text(max_size=5), min_size=2, max_size=6
    )
)
def test_cassette_key_does_not_depend_on_the_order_of_settings(extras: dict[str, Any]) -> None:
    turned = dict(reversed(extras.items()))
    assert request_key(request(config=d.RuntimeConfig(extras=extras))) == request_key(
        request(config=d.RuntimeConfig(extras=turned))
    )


async def test_error_for_an_unrecorded_request_shows_the_nearest_recorded_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c"
    model = d.Record(Listed("x", repeat=True), path)
    for text in ("What is the time?", "Name a river in France.", "Another question altogether?"):
        await model.complete(
            [d.User(text), d.Assistant("ok"), d.User("go on")], config={"temperature": 0.25}
        )
    messages = [d.User("Name a river in Spain."), d.Assistant("ok"), d.User("go on")]
    with pytest.raises(CassetteMiss) as caught:
        await d.Record(Listed(), path).complete(messages, config={"temperature": 0.25})
    shown = str(caught.value)
    assert str(path) in shown
    assert 'mode="record"' in shown
    assert '-      "content": "Name a river in France.",' in shown
    assert '+      "content": "Name a river in Spain.",' in shown
    assert "question" not in shown
    assert "temperature" not in shown
    assert caught.value.key == request_key(
        build_request(messages, config={"temperature": 0.25}, model="m")
    )
    assert not isinstance(caught.value, d.ProviderError)


async def test_error_for_an_unrecorded_request_omits_image_data(tmp_path: Path) -> None:
    first, second = [
        [d.User([d.Image(d.Inline(letter * 100_000), "image/png")])] for letter in "AB"
    ]
    await d.Record(Listed("x"), tmp_path / "c").complete(first)
    with pytest.raises(CassetteMiss) as caught:
        await d.Record(Listed(), tmp_path / "c").complete(second)
    assert len(str(caught.value)) < 5000


# --- the cassette file -------------------------------------------------------------------------


async def test_cassette_is_readable_text(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "c.jsonl"
    await d.Record(Listed(reply("hello")), path, clock=Clock()).complete("hi")
    lines = [msgspec.json.decode(line) for line in path.read_text().splitlines()]
    assert lines[0] == {"cassette": 1}
    assert lines[1]["key"] == request_key(request())
    assert lines[1]["request"]["messages"] == [{"role": "user", "content": "hi"}]
    types = [line["event"]["type"] for line in lines[2:-1]]
    assert types == ["message.start", "text.delta", "text.delta", "message.complete"]
    assert lines[-1] == {"at": 0, "end": None}
    assert [entry.name for entry in path.parent.iterdir()] == ["c.jsonl"]


CANARY = "sk-canary-0123456789abcdef"


NAMED = [
    "api_key", "apiKey", "x-api-key", "API Key", "client_secret", "password", "Authorization",
    "credentials", "token",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
async def test_values_of_secret_fields_are_hidden_and_not_compared(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "c"
    make = lambda secret: request(
        config={"extras": {name: secret, "deep": [{name: [secret, 12345678]}], "top_k": 5}}
    )
    await collect(d.Record(Listed("ok"), path, "record").events(make("hunter2")))
    text = path.read_text()
    assert "hunter2" not in text
    assert "12345678" not in text
    assert '"top_k":5' in text
    # The value of a hidden field does not affect matching, so a cassette cannot be used to guess
    # the secret.
    for secret in ("hunter2", "hunter3"):
        heard, error = await collect(d.Record(Listed(), path, "replay").events(make(secret)))
        assert error is None
        assert heard[-1].final_content[0].text == "ok"  # type: ignore[union-attr]


async def test_hidden_secrets_in_messages_still_distinguish_requests(tmp_path: Path) -> None:
    path = tmp_path / "c"
    called = lambda secret: request(
        [
            d.User("Log in."),
            d.Assistant(tool_calls=[d.ToolCall("c", "add", {"password": secret})]),
            d.ToolResult("c", "ok"),
        ]
    )
    await collect(d.Record(Listed("ok"), path, "record").events(called("hunter2")))
    assert "hunter2" not in path.read_text()
    assert (await collect(d.Record(Listed(), path, "replay").events(called("hunter2"))))[1] is None
    with pytest.raises(CassetteMiss) as caught:  # the cassette does not contain this conversation
        await d.Record(Listed(), path, "replay").events(called("hunter3")).__anext__()  # type: ignore[attr-defined]
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    "extras",
    [{"max_tokens": 5}, {"eos_token": "</s>"}, {"prompt_cache_key": "abcd"}, {"secret": {}}],
)
def test_settings_whose_names_resemble_secrets_are_part_of_the_cassette_key(
    extras: dict[str, Any],
) -> None:
    assert request_key(request(config={"extras": extras})) != request_key(
        request(config={"extras": {}})
    )
    name, value = next(iter(extras.items()))
    if not isinstance(value, dict):
        other = request(config={"extras": {name: f"{value}!"}})
        assert request_key(request(config={"extras": extras})) != request_key(other)


async def test_cassette_stores_the_reply_unchanged(tmp_path: Path) -> None:
    said = f"the key is {CANARY}, and Bearer abcdefgh12345678"
    await collect(d.Record(Listed(said), tmp_path / "c").events(request()))
    heard, _ = await collect(d.Record(Listed(), tmp_path / "c").events(request()))
    assert heard[-1].final_content[0].text == said  # type: ignore[union-attr]
    d.check_events(heard)


async def test_api_key_in_the_error_of_a_custom_provider_is_hidden(tmp_path: Path) -> None:
    error = d.UnavailableError(
        f"told {CANARY}", provider_message=f"and {CANARY}", provider_code=CANARY
    )
    await collect(d.Record(Listed(error), tmp_path / "c").events(request(f"my key is {CANARY}")))
    assert CANARY not in (tmp_path / "c").read_text()
    _, played = await collect(
        d.Record(Listed(), tmp_path / "c").events(request(f"my key is {CANARY}"))
    )
    assert str(played).startswith("told [hidden]")


async def test_concurrent_calls_are_recorded_completely(tmp_path: Path) -> None:
    path = tmp_path / "c"

    def slowly(asked: Any) -> Any:
        gate = asyncio.Event()
        asyncio.get_running_loop().call_soon(gate.set)
        for event in reply(asked.messages[0].content)(asked):
            yield event
            yield gate

    models = [d.Record(Listed(slowly, repeat=True), path) for _ in range(3)]
    texts = [f"call {number}" for number in range(30)]
    await asyncio.gather(*[models[at % 3].complete(text) for at, text in enumerate(texts)])
    played = d.Record(Listed(), path, "replay")
    for text in texts:
        assert (await played.complete(text)).text == text


async def test_two_processes_can_record_to_one_cassette(tmp_path: Path) -> None:
    script = """
        import asyncio, sys
        from dragoman.middleware import Record
        from tests.listed import Listed

        async def main():
            model = Record(Listed("x", repeat=True), sys.argv[1], "record")
            for number in range(20):
                await model.complete(f"{sys.argv[2]} {number}")

        asyncio.run(main())
    """
    path = tmp_path / "c"
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(path), name], cwd=root
        )
        for name in ("one", "two")
    ]
    assert [process.wait(PATIENCE) for process in running] == [0, 0]
    played = d.Record(Listed(), path, "replay")
    for name in ("one", "two"):
        for number in range(20):
            assert (await played.complete(f"{name} {number}")).text == "x"


async def test_failed_write_keeps_the_old_cassette(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c"
    model = d.Record(Listed("x", "y"), path, "record")
    await model.complete("one")
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        await model.complete("two")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(("text", "match"), read_table("error_locates_a_damaged_cassette_line"))
async def test_error_locates_a_damaged_cassette_line(
    tmp_path: Path, text: str, match: str
) -> None:
    (tmp_path / "c").write_text(text)
    _, error = await collect(d.Record(Listed(), tmp_path / "c").events(request()))
    assert type(error) is CassetteError
    assert re.search(match, str(error))


async def test_opaque_provider_state_is_part_of_the_cassette_key(tmp_path: Path) -> None:
    state = d.Continuity("sig", {"a": [1, 2.5]}, d.Issuer("anthropic", "v", "m"))
    messages = [d.User("a"), d.Assistant([d.Thinking("t", state)]), d.User("b")]
    await d.Record(Listed("x"), tmp_path / "c").complete(messages)
    assert (await d.Record(Listed(), tmp_path / "c").complete(messages)).text == "x"
    with pytest.raises(CassetteMiss):
        await d.Record(Listed(), tmp_path / "c").complete(
            [d.User("a"), d.Assistant([d.Thinking("t")]), d.User("b")]
        )


@pytest.mark.parametrize("mode", ["all", "", None])
def test_error_names_an_unknown_cassette_mode(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(ValueError, match="mode must be one of replay, record, once, off"):
        d.Record(Listed(), tmp_path / "c", mode)
