"""Test sessions over HTTP: start, follow, answer, give results and cancel, with the rights of keys."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.errors import UnavailableError
from dragoman.gateway.app import create_app
from dragoman.gateway.budgets import Budget as KeyLimit
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.log import MemoryLog, SqliteLog, read_last
from dragoman.permission import Decision, Policy, Rule
from dragoman.service import Agent
from dragoman.session import (
    Budget,
    SessionError,
    SessionTool,
    answer,
    cancel_waiting,
    find_questions,
)
from tests.gateway.serving import serving
from tests.listed import Listed
from tests.session.playing import call, propose, ran, types
from tests.waiting import poll

from .serving import (
    ASK,
    KEYS,
    LOOK,
    PAY,
    PEOPLE,
    SHIP,
    client_of,
    make_agent,
    make_app,
    pay,
    service,
)


async def test_session_runs_to_its_end_and_shows_what_it_did() -> None:
    async with service(LOOK) as client:
        row = await client.start("Find x.", labels={"case": "7"})
        assert row["agent"] == "main"
        assert row["owner"] == "one"
        assert row["by"] == "uma"
        done = await client.reach(row["id"], "completed")
        assert done["text"] == "Done."
        assert done["goal"] == "Find x."
        assert done["labels"] == {"case": "7"}
        assert done["turns"] == 2
        assert done["spent"]["tool_calls"] == 1
        assert done["pending"] == []
    assert ran == ["x"]


async def test_same_key_starts_one_session() -> None:
    async with service(LOOK) as client:
        first = await client("POST", "/sessions", {"agent": "main", "goal": "Go.", "key": "k"})
        again = await client("POST", "/sessions", {"agent": "main", "goal": "Go.", "key": "k"})
        other = await client("POST", "/sessions", {"agent": "main", "goal": "Stop.", "key": "k"})
        theirs = await client.act("two")(
            "POST", "/sessions", {"agent": "main", "goal": "Stop.", "key": "k"}
        )
        assert [each[0] for each in (first, again, other, theirs)] == [201, 200, 409, 201]
        assert first[1]["id"] == again[1]["id"] != theirs[1]["id"]
        assert "another goal" in other[1]["error"]["message"]


async def test_decision_continues_a_waiting_session_and_the_first_one_counts() -> None:
    async with service(PAY) as client:
        row = await client.start()
        waiting = await client.reach(row["id"], "waiting")
        (pending,) = waiting["pending"]
        assert pending["tool_name"] == "pay"
        assert pending["input"] == {"amount": 7}
        place = f"/sessions/{row['id']}/decisions/{pending['intent_id']}"
        first = await client("POST", place, {"allowed": True, "input": {"amount": 5}})
        await client.reach(row["id"], "completed")
        later = await client("POST", place, {"allowed": False})
        for status, counted in (first, later):
            assert status == 200
            assert counted["allowed"] is True
            assert counted["by"] == "uma"
    assert ran == [5]


async def test_denied_call_does_not_run() -> None:
    async with service(PAY) as client:
        row = await client.start()
        (pending,) = (await client.reach(row["id"], "waiting"))["pending"]
        place = f"/sessions/{row['id']}/decisions/{pending['intent_id']}"
        status, _ = await client("POST", place, {"allowed": False, "reason": "too much"})
        assert status == 200
        await client.reach(row["id"], "completed")
    assert ran == []


async def test_result_from_elsewhere_continues_the_session() -> None:
    async with service(SHIP) as client:
        row = await client.start()
        (asked,) = (await client.reach(row["id"], "waiting"))["pending"]
        place = f"/sessions/{row['id']}"
        await client("POST", f"{place}/decisions/{asked['intent_id']}", {"allowed": True})
        waits = await poll(
            lambda: client.show(row["id"]),
            lambda shown: [each["kind"] for each in shown["pending"]] == ["result"],
            "a result to be waited for",
        )
        (pending,) = waits["pending"]
        result = f"{place}/results/{pending['intent_id']}"
        assert (await client("POST", result, {}))[0] == 400
        status, seen = await client("POST", result, {"content": {"parcel": "sent"}})
        assert status == 200
        assert "sent" in seen["content"]
        await client.reach(row["id"], "completed")


async def test_another_goal_continues_the_conversation() -> None:
    model = Listed("One.", "Two.")
    app = make_app({"main": make_agent()})
    app.state.service.sessions.agents["main"].model = model
    async with client_of(app) as client:
        row = await client.start("First?")
        await client.reach(row["id"], "completed")
        place = f"/sessions/{row['id']}/goals"
        status, _ = await client("POST", place, {"goal": "Second?", "key": "g2"})
        assert status == 202
        done = await poll(
            lambda: client.show(row["id"]), lambda shown: shown["text"] == "Two.", "the answer"
        )
        assert done["turns"] == 2
        status, _ = await client("POST", place, {"goal": "Second?", "key": "g2"})
        assert status == 202
    assert [message.text for message in model.requests[1].messages] == [
        "First?",
        "One.",
        "Second?",
    ]
    assert model.answers == []


async def test_waiting_session_takes_no_other_goal() -> None:
    async with service(PAY) as client:
        row = await client.start()
        await client.reach(row["id"], "waiting")
        status, error = await client("POST", f"/sessions/{row['id']}/goals", {"goal": "Else?"})
        assert status == 409
        assert "answer first" in error["error"]["message"]


async def test_waiting_session_is_cancelled_and_takes_another_goal() -> None:
    log = MemoryLog()
    async with service(PAY, log=log) as client:
        row = await client.start()
        await client.reach(row["id"], "waiting")
        status, cancelled = await client("POST", f"/sessions/{row['id']}/cancel")
        assert status == 200
        assert cancelled["status"] == "cancelled"
        assert cancelled["detail"] == "cancelled by uma"
        status, questions = await client("GET", "/questions")
        assert questions["data"] == []
        await client("POST", f"/sessions/{row['id']}/goals", {"goal": "Else?"})
        await client.reach(row["id"], "completed")
    assert ran == []
    assert log.verify().ok


async def test_sessions_are_listed_by_owner_in_pages() -> None:
    async with service() as client:
        mine = [(await client.start(f"Goal {at}."))["id"] for at in range(3)]
        theirs = (await client.act("two").start())["id"]
        status, first = await client("GET", "/sessions?limit=2")
        assert status == 200
        status, rest = await client("GET", f"/sessions?limit=2&after={first['next']}")
        listed = [each["id"] for each in first["data"] + rest["data"]]
        assert listed == mine[::-1]
        assert rest["next"] is None
        _, everything = await client.act("ann")("GET", "/sessions")
        assert {each["id"] for each in everything["data"]} == {*mine, theirs}
        _, filtered = await client.act("ann")("GET", "/sessions?owner=two")
        assert [each["id"] for each in filtered["data"]] == [theirs]


async def test_running_session_is_cancelled() -> None:
    never = asyncio.Event()
    async with service(lambda request: [never]) as client:
        row = await client.start()
        _, cancelled = await client("POST", f"/sessions/{row['id']}/cancel")
        assert cancelled["status"] == "cancelled"
        assert (await client.read_events(row["id"]))[1][-1]["event"] == "session.finished"


async def test_model_that_fails_ends_the_run_and_another_goal_goes_on() -> None:
    async with service(UnavailableError("down")) as client:
        row = await client.start()
        failed = await client.reach(row["id"], "failed")
        assert "down" in failed["detail"]
        status, _ = await client("POST", f"/sessions/{row['id']}/goals", {"goal": "Again."})
        assert status == 202
        await client.reach(row["id"], "completed")


async def test_more_sessions_than_allowed_are_refused() -> None:
    never = asyncio.Event()
    async with service(lambda request: [never], at_once=1) as client:
        row = await client.start()
        status, error = await client("POST", "/sessions", {"agent": "main", "goal": "x"})
        assert status == 503
        assert "1 sessions are running" in error["error"]["message"]
        await client("POST", f"/sessions/{row['id']}/cancel")
        assert (await client("POST", "/sessions", {"agent": "main", "goal": "x"}))[0] == 201


async def test_client_lowers_the_limits_of_an_agent_and_cannot_raise_them() -> None:
    agent = make_agent(LOOK, LOOK, LOOK, budget=Budget(steps=3))
    async with client_of(make_app({"main": agent})) as client:
        low = await client.start(limits={"steps": 1})
        assert (await client.reach(low["id"], "exhausted"))["turns"] == 1
        high = await client.start(limits={"steps": 100})
        assert (await client.reach(high["id"], "completed", "exhausted"))["turns"] <= 3


async def test_calls_of_a_session_are_charged_to_its_key() -> None:
    key = Key("one", hash_key("one-key-0001"), tokens_per_minute=20)
    app = make_app({"main": make_agent(LOOK, LOOK)}, keys=KeyRing([key]))
    async with client_of(app) as client:
        row = await client.start()
        failed = await client.reach(row["id"], "failed")
        # each call uses 15 tokens, and the third one is not sent
        assert "tokens" in failed["detail"]
        assert failed["spent"]["tokens"] == 30
        _, bill = await client("GET", "/spend")
        assert bill["total"]["requests"] == 3


class Source:
    """A database of keys, all of which can be revoked."""

    def __init__(self) -> None:
        self.keys = KEYS

    def version(self) -> tuple[int, ...]:
        return (len(self.keys),)

    def read_keys(self) -> list[Key]:
        return self.keys

    def read_budgets(self) -> list[KeyLimit]:
        return []

    def close(self) -> None:
        pass


async def test_key_that_is_revoked_runs_no_more_sessions() -> None:
    source = Source()
    ring = KeyRing(source=source)
    async with client_of(make_app({"main": make_agent(PAY)}, keys=ring)) as client:
        row = await client.start()
        (pending,) = (await client.reach(row["id"], "waiting"))["pending"]
        source.keys = KEYS[1:]
        ring.poll()
        ann = client.act("ann")
        place = f"/sessions/{row['id']}/decisions/{pending['intent_id']}"
        assert (await ann("POST", place, {"allowed": True}))[0] == 200
        assert (await client("GET", f"/sessions/{row['id']}"))[0] == 401
        assert (await ann.show(row["id"]))["status"] == "waiting"
    assert ran == []


async def test_gateway_without_sessions_serves_none_and_runs_no_tool() -> None:
    app = create_app({"fast": Listed("Hi", repeat=True)}, keys=KeyRing(KEYS), admin=PEOPLE)
    async with client_of(app) as client:
        for path in ("/sessions", "/agents", "/questions"):
            status, error = await client("GET", path)
            assert status == 404
            assert "--sessions" in error["error"]["message"]
        _, document = await client.act("ann")("GET", "/../openapi.json")
        assert not [path for path in document["paths"] if path.startswith("/v1/sessions")]


async def test_queue_has_what_waits_and_who_answered() -> None:
    async with service(PAY, LOOK) as client:
        row = await client.start()
        await client.reach(row["id"], "waiting")
        _, opened = await client.act("ann")("GET", "/questions")
        (question,) = opened["data"]
        assert question["session"] == row["id"]
        assert question["by"] == "uma"
        assert question["pending"]["question"].startswith("May pay run?")
        assert (await client.act("two")("GET", "/questions"))[1]["data"] == []
        place = f"/sessions/{row['id']}/decisions/{question['id']}"
        await client.act("ann")("POST", place, {"allowed": False, "reason": "not today"})
        assert (await client.act("ann")("GET", "/questions"))[1]["data"] == []
        _, answered = await client("GET", "/questions?state=answered")
        (given,) = answered["data"]
        assert given["tool_name"] == "pay"
        assert given["answered_by"] == "ann"
        assert given["reason"] == "not today"
        assert given["allowed"] is False


# Who; the status of: showing a session of the key "one", its events, its cancellation, another start.
RIGHTS = [
    ("one", 200, 200, 200, 201),
    ("two", 404, 404, 404, 201),
    ("narrow", 404, 404, 404, 404),
    ("ann", 200, 200, 200, 201),
    ("bob", 200, 403, 403, 403),
    ("carla", 200, 403, 403, 403),
    (None, 401, 401, 401, 401),
    ("unknown", 401, 401, 401, 401),
]


@pytest.mark.parametrize(("who", "shown", "events", "cancel", "start"), RIGHTS)
async def test_rights_are_those_of_the_gateway(
    who: str | None, shown: int, events: int, cancel: int, start: int
) -> None:
    async with service(PAY) as client:
        row = await client.start("A secret.")
        await client.reach(row["id"], "waiting")
        them = client.act(who)
        place = f"/sessions/{row['id']}"
        status, body = await them("GET", place)
        assert status == shown
        sees_content = events == 200
        assert ("A secret." in str(body)) is sees_content
        assert (await them.read_events(row["id"]))[0] == events
        _, questions = await them("GET", "/questions")
        assert ("'amount'" in str(questions)) is sees_content
        assert (await them("POST", f"{place}/cancel"))[0] == cancel
        assert (await them("POST", "/sessions", {"agent": "main", "goal": "x"}))[0] == start


BAD = [
    ("POST", "/sessions", {"agent": "main"}, 400, "goal"),
    ("POST", "/sessions", {"agent": "main", "goal": ""}, 400, "goal"),
    ("POST", "/sessions", {"agent": "main", "goal": "x" * 1_000_001}, 400, "goal"),
    ("POST", "/sessions", {"agent": "none", "goal": "x"}, 404, "no agent 'none'"),
    ("POST", "/sessions", {"agent": "main", "goal": "x", "key": ""}, 400, "key"),
    ("POST", "/sessions", {"agent": "main", "goal": "x", "key": "a\nb"}, 400, "key"),
    ("POST", "/sessions", {"agent": "main", "goal": "x", "more": 1}, 400, "more"),
    ("POST", "/sessions", {"agent": "main", "goal": "x", "model": "gpt"}, 400, "model"),
    ("POST", "/sessions", {"agent": "main", "goal": "x", "limits": {"steps": 0}}, 400, "steps"),
    ("POST", "/sessions", {"agent": "main", "goal": "x", "limits": {"usd": 1}}, 400, "usd"),
    ("POST", "/sessions", {"agent": "main", "goal": "x", "limits": {"cost_usd": -1}}, 400, "cost"),
    ("POST", "/sessions", [], 400, "object"),
    ("GET", "/sessions?limit=0", None, 400, "limit"),
    ("GET", "/sessions?limit=1001", None, 400, "limit"),
    ("GET", "/sessions?status=lost", None, 400, "status"),
    ("GET", "/sessions?after=agent_none", None, 400, "after"),
    ("GET", "/questions?state=old", None, 400, "state"),
    ("GET", "/sessions/agent_none", None, 404, "agent_none"),
    ("GET", "/sessions/other", None, 404, "other"),
    ("GET", "/sessions/ID/events?after=x", None, 400, "number"),
    ("GET", "/sessions/ID/events?follow=maybe", None, 400, "follow"),
    ("POST", "/sessions/ID/decisions/none", {"allowed": True}, 409, "no open question"),
    ("POST", "/sessions/ID/decisions/none", {"allowed": 1}, 400, "allowed"),
    ("POST", "/sessions/ID/decisions/none", {"allowed": False, "scope": "session"}, 400, "scope"),
    ("POST", "/sessions/ID/results/none", {"content": "x"}, 409, "none"),
    ("POST", "/sessions/ID/goals", {"goal": 7}, 400, "goal"),
    ("DELETE", "/sessions/ID", None, 405, "DELETE"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "status", "about"), BAD)
async def test_wrong_requests_get_a_clear_error(
    method: str, path: str, body: Any, status: int, about: str
) -> None:
    async with service() as client:
        row = await client.start()
        await client.reach(row["id"], "completed")
        found, error = await client(method, path.replace("ID", row["id"]), body)
        assert found == status, error
        assert about in error["error"]["message"]


# --- the stream of events ----------------------------------------------------------------------


async def test_events_are_the_records_of_the_log() -> None:
    log = MemoryLog()
    async with service(LOOK, log=log) as client:
        row = await client.start()
        status, events = await client.read_events(row["id"])
        assert status == 200
        records = list(log.read(row["id"]))
        assert [int(event["id"]) for event in events] == [record.seq for record in records]
        assert [event["event"] for event in events] == types(records)
        assert [event["data"]["hash"] for event in events] == [record.hash for record in records]
        # a browser connects again after the end of a stream, and stops at this status
        assert await client.read_events(row["id"], records[-1].seq) == (204, [])


async def test_stream_ends_when_the_session_waits_and_goes_on_after_the_answer() -> None:
    async with service(PAY) as client:
        row = await client.start()
        _, before = await client.read_events(row["id"])
        assert before[-1]["data"]["payload"]["outcome"] == "waiting"
        (pending,) = (await client.show(row["id"]))["pending"]
        await client(
            "POST",
            f"/sessions/{row['id']}/decisions/{pending['intent_id']}",
            {"allowed": True},
        )
        _, after = await client.read_events(row["id"], int(before[-1]["id"]))
        _, whole = await client.read_events(row["id"])
        assert before + after == whole
        assert whole[-1]["data"]["payload"]["outcome"] == "completed"


async def test_stream_that_follows_goes_on_over_an_answer() -> None:
    async with service(PAY) as client:
        row = await client.start()
        (pending,) = (await client.reach(row["id"], "waiting"))["pending"]
        await client(
            "POST",
            f"/sessions/{row['id']}/decisions/{pending['intent_id']}",
            {"allowed": True},
        )
        done = await client.reach(row["id"], "completed")
        _, events = await client.read_events(row["id"], most=done["seq"], follow="true")
        assert [int(event["id"]) for event in events] == [*range(1, done["seq"] + 1)]


async def test_stream_that_is_cut_at_every_event_is_the_unbroken_one() -> None:
    async with service(LOOK, PAY) as client:
        row = await client.start()
        (pending,) = (await client.reach(row["id"], "waiting"))["pending"]
        place = f"/sessions/{row['id']}/decisions/{pending['intent_id']}"
        await client("POST", place, {"allowed": True})
        await client.reach(row["id"], "completed")
        _, whole = await client.read_events(row["id"])
        for cut in range(1, len(whole)):
            _, first = await client.read_events(row["id"], most=cut)
            _, rest = await client.read_events(row["id"], int(first[-1]["id"]))
            assert first + rest == whole, cut


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.lists(st.integers(1, 4), max_size=12))
async def test_stream_of_a_running_session_is_complete_over_any_cuts(cuts: list[int]) -> None:
    async with service(LOOK, LOOK, LOOK) as client:
        row = await client.start()
        joined: list[dict[str, Any]] = []
        for most in cuts:
            after = int(joined[-1]["id"]) if joined else None
            joined += (await client.read_events(row["id"], after, most=most))[1]
        after = int(joined[-1]["id"]) if joined else None
        joined += (await client.read_events(row["id"], after))[1]
        assert joined == (await client.read_events(row["id"]))[1]
        assert joined[-1]["event"] == "session.finished"


async def test_service_is_mounted_in_another_application() -> None:
    mounted = make_app({"main": make_agent(PAY)})
    app = FastAPI()
    app.mount("/agents", mounted)
    async with serving(app) as url, aiohttp.ClientSession(f"{url}/agents/") as http:
        headers = {"authorization": "Bearer one-key-0001"}
        async with http.post(
            "v1/sessions", json={"agent": "main", "goal": "Go."}, headers=headers
        ) as reply:
            row = await reply.json()
            assert reply.status == 201

        async def show() -> Any:
            async with http.get(f"v1/sessions/{row['id']}", headers=headers) as reply:
                return await reply.json()

        await poll(show, lambda shown: shown["status"] == "waiting", "the question")
    await mounted.state.service.sessions.stop()


async def test_session_that_ran_when_the_service_ended_goes_on_in_the_next_one(
    tmp_path: Path,
) -> None:
    never = asyncio.Event()
    with SqliteLog(tmp_path / "log.db") as log:
        async with client_of(
            make_app({"main": make_agent(lambda request: [never])}, log)
        ) as client:
            row = await client.start(key="k")
        async with client_of(make_app({"main": make_agent("Back.")}, log)) as client:
            done = await client.reach(row["id"], "completed")
            assert done["text"] == "Back."
            assert (await client.start(key="k"))["id"] == row["id"]
        outcomes = [record.data["outcome"] for record in log.find("session.finished")]
        assert outcomes == ["cancelled", "completed"]
        assert log.verify().ok


async def test_answer_of_another_process_continues_a_session(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        async with client_of(make_app({"main": make_agent(PAY)}, log)) as client:
            row = await client.start()
            (pending,) = (await client.reach(row["id"], "waiting"))["pending"]
            with SqliteLog(tmp_path / "log.db", readonly=True) as other:
                decision = Decision(True, "eve")
                await asyncio.to_thread(answer, other, row["id"], pending["intent_id"], decision)
            await client.reach(row["id"], "completed")
            _, answered = await client("GET", "/questions?state=answered")
            assert [each["answered_by"] for each in answered["data"]] == ["eve"]
    assert ran == [7]


async def test_cancellation_reaches_the_sessions_of_waiting_calls() -> None:
    log = MemoryLog()
    expert = SessionTool("ask_expert", "Ask.", Listed(PAY, name="e"), [pay], ASK)
    model = Listed(propose(call("ask_expert", task="Pay.")), name="p")
    agent = Agent(model, [expert], Policy([Rule("allow")]))
    async with client_of(make_app({"main": agent}, log)) as client:
        row = await client.start()
        (pending,) = (await client.reach(row["id"], "waiting"))["pending"]
        assert pending["session"] != row["id"]
        status, cancelled = await client("POST", f"/sessions/{row['id']}/cancel")
        assert status == 200
        assert cancelled["status"] == "cancelled"
    for session in (row["id"], pending["session"]):
        last = read_last(log, session)
        assert last is not None
        assert last.data["outcome"] == "cancelled"
    assert find_questions(log) == []
    assert not await cancel_waiting(log, row["id"])
    with pytest.raises(SessionError, match="no session"):
        await cancel_waiting(log, "none")
    assert log.verify().ok
    assert ran == []
