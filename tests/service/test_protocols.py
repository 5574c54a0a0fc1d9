"""Test the protocols of user interfaces: what a run becomes in each, and what their requests mean."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.events import MessageStart, TextDelta, ThinkingDelta
from dragoman.log import EventLog, LogRecord, MemoryLog
from dragoman.service.ag_ui import RunEvents
from dragoman.service.narration import Narrator, RunEnded
from dragoman.service.ui_messages import SessionChunks
from dragoman.session import Session
from tests.listed import Listed, speak
from tests.session.playing import call, propose, ran

from .serving import (
    ASK,
    LOOK,
    PAY,
    SHIP,
    TOOLS,
    Client,
    client_of,
    make_agent,
    make_app,
    service,
)

THINK = speak(lambda out: out.thinking("Let me see."), lambda out: out.text("It is done."))


def ask(text: str, run: str = "r1", **more: Any) -> dict[str, Any]:
    """Return the input of a run of AG-UI."""
    message = {"id": f"m-{run}", "role": "user", "content": text}
    base = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return {"threadId": "t", "runId": run, "messages": [message], **base, **more}


def say(text: str, number: int = 1, **more: Any) -> dict[str, Any]:
    """Return the request of a chat with a message of the user."""
    parts = [{"type": "text", "text": text}]
    message = {"id": f"m{number}", "role": "user", "parts": parts}
    return {"id": "c", "messages": [message], "trigger": "submit-message", **more}


def kinds(events: list[Any]) -> list[str]:
    """Return the types of events, each repetition once."""
    found = [event if isinstance(event, str) else event["type"] for event in events]
    return [kind for at, kind in enumerate(found) if at == 0 or found[at - 1] != kind]


async def test_run_of_ag_ui_has_its_steps_text_reasoning_calls_and_results() -> None:
    async with client_of(make_app({"main": make_agent(LOOK, THINK)})) as client:
        status, events = await client.stream("/agents/main/ag-ui", ask("Find x."))
        assert status == 200
    assert kinds(events) == [
        "RUN_STARTED", "STEP_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END",
        "TOOL_CALL_RESULT", "STEP_FINISHED", "STEP_STARTED", "REASONING_START",
        "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "STEP_FINISHED", "RUN_FINISHED",
    ]  # fmt: skip
    deltas = [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert "".join(deltas) == "It is done."
    assert events[-1]["outcome"] == {"type": "success"}
    assert events[-1]["usage"][0]["inputTokens"] == 20
    assert json.loads(events[3]["delta"]) == {"word": "x"}
    result = next(event for event in events if event["type"] == "TOOL_CALL_RESULT")
    assert result["content"] == "x: found"


async def test_interrupt_of_ag_ui_is_answered_by_the_next_run() -> None:
    async with service(PAY) as client:
        _, first = await client.stream("/agents/main/ag-ui", ask("Pay."))
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        assert interrupt["reason"] == "tool_approval"
        assert interrupt["metadata"]["input"] == {"amount": 7}
        assert interrupt["responseSchema"]["required"] == ["approved"]
        answer = {
            "interruptId": interrupt["id"],
            "status": "resolved",
            "payload": {"approved": True, "input": {"amount": 3}},
        }
        status, second = await client.stream(
            "/agents/main/ag-ui", ask("Pay.", "r2", messages=[], resume=[answer])
        )
        assert status == 200
        assert second[-1]["outcome"] == {"type": "success"}
        assert "TOOL_CALL_RESULT" in kinds(second)
        assert "TOOL_CALL_START" not in kinds(second)
        status, _ = await client.stream(
            "/agents/main/ag-ui", ask("Pay.", "r3", messages=[], resume=[answer])
        )
        assert status == 409
    assert ran == [3]


@pytest.mark.parametrize(
    ("entry", "outcome"),
    [
        ({"status": "cancelled"}, "denied"),
        ({"status": "resolved", "payload": False}, "denied"),
        ({"status": "resolved", "payload": {"approved": False, "reason": "no"}}, "denied"),
        ({"status": "resolved", "payload": True}, "paid"),
        ({"status": "resolved", "payload": {"yes": 1}}, 400),
        ({"status": "resolved"}, 400),
        ({"status": "perhaps"}, 400),
    ],
)
async def test_each_answer_to_an_interrupt_has_its_meaning(entry: Any, outcome: Any) -> None:
    async with service(PAY) as client:
        _, first = await client.stream("/agents/main/ag-ui", ask("Pay."))
        resume = [{"interruptId": first[-1]["outcome"]["interrupts"][0]["id"], **entry}]
        status, second = await client.stream(
            "/agents/main/ag-ui", ask("", "r2", messages=[], resume=resume)
        )
    if isinstance(outcome, int):
        assert status == outcome
    else:
        assert second[-1]["outcome"] == {"type": "success"}
        result = next(event for event in second if event["type"] == "TOOL_CALL_RESULT")
        assert result["metadata"]["isDenied"] is (outcome == "denied")
    assert ran == ([7] if outcome == "paid" else [])


async def test_thread_goes_on_with_another_message_and_repeats_a_run() -> None:
    model = Listed("One.", "Two.")
    async with client_of(make_app({"main": make_agent()})) as client:
        agents = client_agents(client)
        agents["main"].model = model
        _, first = await client.stream("/agents/main/ag-ui", ask("First?"))
        _, second = await client.stream("/agents/main/ag-ui", ask("Second?", "r2"))
        _, again = await client.stream("/agents/main/ag-ui", ask("Second?", "r2"))
    text = [
        "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
        for events in (first, second, again)
    ]
    assert text == ["One.", "Two.", "Two."]
    assert len(model.requests) == 2


def client_agents(client: Client) -> Any:
    return client.app.state.service.sessions.agents


async def test_chat_streams_a_run_and_asks_for_an_approval() -> None:
    async with service(LOOK, PAY) as client:
        status, first = await client.stream("/agents/main/ui-messages", say("Pay."))
        assert status == 200
        assert kinds(first) == [
            "start", "start-step", "tool-input-available", "tool-output-available", "finish-step",
            "start-step", "tool-input-available", "tool-approval-request", "finish-step", "finish",
            "[DONE]",
        ]  # fmt: skip
        assert first[-2]["finishReason"] == "tool-calls"
        asked = next(each for each in first if each["type"] == "tool-approval-request")
        part = {
            "type": "tool-pay", "toolCallId": asked["toolCallId"], "state": "approval-responded",
            "input": {"amount": 7}, "approval": {"id": asked["approvalId"], "approved": True},
        }  # fmt: skip
        answer = {"id": "m1-reply", "role": "assistant", "parts": [part]}
        status, second = await client.stream(
            "/agents/main/ui-messages", {"id": "c", "messages": [answer]}
        )
        assert status == 200
        assert "messageId" not in second[0]
        assert kinds(second) == [
            "start", "tool-output-available", "start-step", "text-start", "text-delta", "text-end",
            "finish-step", "finish", "[DONE]",
        ]  # fmt: skip
    assert ran == ["x", 7]


async def test_result_of_a_call_elsewhere_comes_from_the_chat() -> None:
    async with service(SHIP) as client:
        _, first = await client.stream("/agents/main/ui-messages", say("Ship."))
        name = next(each["toolCallId"] for each in first if "toolCallId" in each)
        parts = [
            {"toolCallId": name, "state": "approval-responded", "approval": {"approved": True}},
            {"toolCallId": name, "state": "output-available", "output": {"sent": True}},
        ]
        for part in parts:
            message = {"id": "x", "role": "assistant", "parts": [{"type": "tool-ship", **part}]}
            status, events = await client.stream(
                "/agents/main/ui-messages", {"id": "c", "messages": [message]}
            )
            assert status == 200
        assert events[-2]["finishReason"] == "stop"
        output = next(each for each in events if each["type"] == "tool-output-available")
        assert json.loads(output["output"]) == {"sent": True}


BAD = [
    ("ag-ui", {"threadId": "t"}, 400, "runId"),
    ("ag-ui", ask("x", messages=[]), 400, "must end with a message of the user"),
    ("ag-ui", ask("x", messages=[{"id": "a", "role": "assistant", "content": "x"}]), 400, "user"),
    ("ag-ui", ask(""), 400, "characters"),
    ("ag-ui", ask("x", messages=[{"id": "a", "role": "user", "content": [{"type": "image"}]}]), 400, "image"),
    ("ag-ui", ask("x", threadId=""), 400, "threadId"),
    ("ag-ui", ask("x", resume=[{"interruptId": "i", "status": "cancelled"}]), 404, "no such thread"),
    ("ui-messages", {"id": "c", "messages": []}, 400, "messages"),
    ("ui-messages", say("x", trigger="regenerate-message"), 400, "regenerate"),
    ("ui-messages", say("x", messages=[{"id": "m", "role": "user", "parts": [{"type": "file"}]}]), 400, "file"),
    ("ui-messages", say("x", messages=[{"id": "m", "role": "assistant", "parts": []}]), 404, "no such thread"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "body", "status", "about"), BAD)
async def test_wrong_requests_of_a_page_get_a_clear_error(
    protocol: str, body: Any, status: int, about: str
) -> None:
    async with service() as client:
        found, (error,) = await client.stream(f"/agents/main/{protocol}", body)
        assert found == status, error
        assert about in error["error"]["message"]
        right = ask("x") if protocol == "ag-ui" else say("x")
        assert (await client.act("bob").stream(f"/agents/main/{protocol}", right))[0] == 403
        assert (await client.stream(f"/agents/none/{protocol}", right))[0] == 404


async def test_failed_run_ends_with_an_error_in_each_protocol() -> None:
    async with service(RuntimeError("broken")) as client:
        _, events = await client.stream("/agents/main/ag-ui", ask("x"))
        assert events[-1]["type"] == "RUN_ERROR"
        assert "broken" in events[-1]["message"]
    async with service(RuntimeError("broken")) as client:
        _, chunks = await client.stream("/agents/main/ui-messages", say("x"))
        assert chunks[-2]["type"] == "error"
        assert "broken" in chunks[-2]["errorText"]


# --- text that arrives live, and text from the log ---------------------------------------------


async def play(log: EventLog) -> tuple[list[Any], list[LogRecord]]:
    """Run a session; return what happened with the events of its model, and the records alone."""
    seen: list[Any] = []
    replies = [propose(call("look", word="x"), words="I look."), THINK]
    session = Session(
        Listed(*replies, name="p"), TOOLS, ASK, log, on_record=seen.append, on_event=seen.append
    )
    await session.run("Go.")
    return seen, list(log.read(session.id))


def write(writer: Any, happenings: list[Any]) -> list[dict[str, Any]]:
    narrator = Narrator()
    found = list(writer.start())
    for news in happenings:
        for told in narrator.narrate(news):
            made = writer.finish(told, []) if isinstance(told, RunEnded) else writer.convert(told)
            found += made
    return found


def join_deltas(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield objects, with the pieces of a text joined."""
    last: dict[str, Any] = {}
    for each in [*objects, {}]:
        keys = ("type", "id", "messageId")
        if "delta" in each and all(each.get(key) == last.get(key) for key in keys):
            last = {**last, "delta": last["delta"] + each["delta"]}
            continue
        if last:
            yield last
        last = each


WRITERS = [lambda: RunEvents("t", "r"), lambda: SessionChunks("s", "m")]


@pytest.mark.parametrize("make", WRITERS)
async def test_stream_of_a_late_reader_has_what_a_live_one_has(make: Any) -> None:
    live, records = await play(MemoryLog())
    whole = list(join_deltas(write(make(), live)))
    assert list(join_deltas(write(make(), records))) == whole
    for start in range(len(live)):
        # a reader that joins gets the records before from the log, and everything after live
        earlier = [each for each in live[:start] if isinstance(each, LogRecord)]
        joined = list(join_deltas(write(make(), earlier + live[start:])))
        assert joined == whole, start
    deltas = [each for each in live if isinstance(each, TextDelta | ThinkingDelta)]
    assert len(deltas) > 2
    assert isinstance(next(each for each in live if not isinstance(each, LogRecord)), MessageStart)


async def test_chat_without_a_run_has_nothing_to_resume() -> None:
    async with service() as client:
        status, _ = await client("GET", "/agents/main/ui-messages/none/stream")
        assert status == 204
