"""Test the judges of a Guard: rules, and services behind HTTP over real sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.errors import BlockedError, InvalidRequestError, UnavailableError
from dragoman.events import ToolIntent
from dragoman.events.intents import AssembledFrom, IntentSource
from dragoman.messages import Request
from dragoman.middleware import Guard
from dragoman.middleware.guard import HttpJudge, Moderations, Presidio, Rules, Stage, Subject
from tests.listed import Listed
from tests.server import Connection, replying, serve

SENT = Request([d.User("Hi")], model="m")


def text(value: str, stage: Stage = "text") -> Subject:
    return Subject(stage=stage, text=value, request=SENT)


def intent(name: str, **arguments: Any) -> Subject:
    raw = msgspec.json.encode(arguments).decode()
    source = IntentSource("p", "m", SENT.request_id, 0)
    proposed = ToolIntent(
        id="tu_1", provider_call_id="c1", tool_name=name, input=arguments, raw_input_text=raw,
        source=source, assembled_from=AssembledFrom(1, 0, 0),
    )  # fmt: skip
    return Subject(
        stage="intent", text=f"{name}\nc1\n{raw}", request=SENT, tool_name=name, input=arguments,
        intent=proposed,
    )  # fmt: skip


# --- rules --------------------------------------------------------------------------------------

RULES = [
    {"code": "key", "pattern": r"\bsk-[a-z0-9]{8,}"},
    {"code": "shout", "pattern": "[A-Z]{9}", "action": "flag", "on": ["text"]},
    {"code": "small", "tools": ["pay*"], "schema": {"properties": {"usd": {"maximum": 100}}}},
    {"code": "delete", "tools": ["delete_*"]},
]


@pytest.mark.parametrize(
    ("subject", "action", "code"),
    [
        (text("nothing"), "allow", None),
        (text("it is sk-abcdef123"), "block", "key"),
        (text("it is sk-abcdef123", "request"), "block", "key"),
        (text("ABCDEFGHIJ"), "flag", "shout"),
        (text("ABCDEFGHIJ", "request"), "allow", None),
        (intent("pay", usd=100), "allow", None),
        (intent("pay_now", usd=101), "block", "small"),
        (intent("buy", usd=101), "allow", None),
        (intent("delete_all"), "block", "delete"),
        (intent("look", note="sk-abcdef123"), "block", "key"),
    ],
)
async def test_first_rule_that_fits_decides(subject: Subject, action: str, code: str) -> None:
    verdict = await Rules(RULES)(subject)
    assert verdict.action == action
    assert verdict.code == code


async def test_pattern_that_backtracks_does_not_stop_the_event_loop() -> None:
    """Python's own engine needs 2**40 steps for this text."""
    rules = Rules([{"code": "slow", "pattern": r"^(a+)+$"}, {"code": "look", "pattern": "(?=b)x"}])
    assert (await rules(text("a" * 40 + "b"))).action == "allow"
    assert (await rules(text("a" * 40))).code == "slow"


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"pattern": "x"}, r"rules\[0\].code"),
        ({"code": "x"}, "a rule needs a pattern, a schema or tools"),
        ({"code": "x", "pattern": "("}, r"rules\[0\].pattern is not a valid"),
        ({"code": "x", "schema": {"type": "int"}}, r"rules\[0\].schema is not a valid"),
        ({"code": "x", "pattern": "x", "action": "rewrite"}, "must be one of block, flag, allow"),
        ({"code": "x", "pattern": "x", "on": ["answer"]}, "lists some of request, text"),
        ({"code": "x", "pattern": "x", "patern": "y"}, "patern is not a known field"),
    ],
)
def test_invalid_rules_are_rejected(rule: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        Rules([rule])


# --- services behind HTTP -----------------------------------------------------------------------


def dump(value: Any) -> bytes:
    return msgspec.json.encode(value)


async def test_http_judge_posts_the_subject_and_reads_the_verdict() -> None:
    answer = {"action": "flag", "code": "odd", "reason": "because", "version": "7"}
    async with serve(replying(200, dump(answer))) as server:
        judge = HttpJudge(f"{server.base_url}/judge", api_key="secret-key-1")
        verdict = await judge(intent("pay", usd=3))
        await judge.close()
    (asked,) = server.requests
    assert asked.method == "POST"
    assert asked.headers["authorization"] == "Bearer secret-key-1"
    assert asked.json["stage"] == "intent"
    assert asked.json["tool_name"] == "pay"
    assert asked.json["input"] == {"usd": 3}
    assert asked.json["request_id"] == SENT.request_id
    assert verdict.action == "flag"
    assert verdict.code == "odd"
    assert verdict.reason == "because"
    assert verdict.version == "7"
    assert "secret-key-1" not in repr(judge)


async def test_http_judge_asks_again_as_often_as_stated() -> None:
    statuses = [503, 429, 200]

    async def handle(connection: Connection) -> None:
        connection.reply(statuses.pop(0), b'{"action": "allow"}')

    async with serve(handle) as server:
        judge = HttpJudge(server.base_url, retries=2)
        assert (await judge(text("x"))).action == "allow"
        statuses[:] = [503, 200]
        with pytest.raises(UnavailableError):
            await HttpJudge(server.base_url)(text("x"))
        await judge.close()
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"{}"),
        (302, b"{}"),
        (200, b"allow"),
        (200, b'{"action": "maybe"}'),
        (200, b'["allow"]'),
        (200, b'{"action": "allow", "more": "' + b"x" * 2_000_000 + b'"}'),
        (200, b"[" * 100_000),
    ],
    ids=["rejected", "redirect", "no JSON", "no verdict", "a list", "huge", "deep"],
)
async def test_reply_that_is_no_verdict_blocks(status: int, body: bytes) -> None:
    async with serve(replying(status, body)) as server:
        judge = HttpJudge(server.base_url)
        with pytest.raises(BlockedError) as caught:
            await Guard(Listed("Yes."), judge, on="reply").complete("Hi")
        await judge.close()
    assert caught.value.provider_code == "judge_failed"


async def test_server_that_is_gone_blocks() -> None:
    async with serve(replying(200, b"{}")) as server:
        gone = server.base_url
    judge = HttpJudge(gone)
    with pytest.raises(BlockedError):
        await Guard(Listed("Yes."), judge, on="reply").complete("Hi")
    await judge.close()


# The reply of OpenAI's API reference (platform.openai.com/docs/api-reference/moderations), shortened.
MODERATED = {
    "id": "modr-1",
    "model": "omni-moderation-latest",
    "results": [
        {
            "flagged": True,
            "categories": {"violence": True, "harassment": False, "illicit": None},
            "category_scores": {"violence": 0.86, "harassment": 0.002},
            "category_applied_input_types": {"violence": ["text"]},
        }
    ],
}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, "violence"),
        ({"categories": ["harassment"]}, None),
        ({"categories": ["violence"]}, "violence"),
    ],
)
async def test_moderation_endpoint_is_a_judge(settings: dict[str, Any], code: str | None) -> None:
    async with serve(replying(200, dump(MODERATED))) as server:
        judge = Moderations(
            f"{server.base_url}/moderations", model="omni-moderation-latest", **settings
        )
        verdict = await judge(text("harm"))
        assert (await judge(text(" "))).action == "allow"  # which is not asked
        await judge.close()
    assert [asked.json for asked in server.requests] == [
        {"model": "omni-moderation-latest", "input": "harm"}
    ]
    assert verdict.code == code
    assert verdict.action == ("block" if code else "allow")


# The reply of Presidio's analyzer, from its documentation (microsoft.github.io/presidio/api-docs).
ANALYSED = [
    {"entity_type": "US_DRIVER_LICENSE", "start": 30, "end": 38, "score": 0.3},
    {"entity_type": "PERSON", "start": 0, "end": 10, "score": 0.85, "analysis_explanation": None},
]


@pytest.mark.parametrize(("threshold", "code"), [(0.5, "PERSON"), (0.9, None)])
async def test_presidio_is_a_judge(threshold: float, code: str | None) -> None:
    async with serve(replying(200, dump(ANALYSED))) as server:
        judge = Presidio(
            f"{server.base_url}/analyze", entities=["PERSON"], threshold=threshold, action="flag"
        )
        verdict = await judge(text("John Smith drives."))
        await judge.close()
    (asked,) = server.requests
    assert asked.json == {
        "text": "John Smith drives.", "language": "en", "score_threshold": threshold,
        "entities": ["PERSON"],
    }  # fmt: skip
    assert verdict.code == code
    assert verdict.action == ("flag" if code else "allow")


def make_invalid() -> Sequence[tuple[type, dict[str, Any]]]:
    return [
        (HttpJudge, {"url": "judge.example"}),
        (HttpJudge, {"url": "http://127.0.0.1:1", "retries": 11}),
        (Presidio, {"url": "http://127.0.0.1:1", "threshold": 2}),
    ]


@pytest.mark.parametrize(("kind", "settings"), make_invalid())
def test_invalid_settings_of_judges_are_rejected(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        kind(**settings)


async def test_guard_judges_texts_for_embedders_and_rerankers_before_they_are_sent() -> None:
    async with serve(replying(200, dump({"data": []}))) as server:
        inner = d.connect_embedder("m", base_url=server.base_url)
        rules = Rules([{"code": "name", "pattern": "Ann"}])
        async with Guard(inner, rules) as model:
            with pytest.raises(BlockedError) as caught:
                await model.embed(["a river", "Ann's river"])
    assert caught.value.provider_code == "name"
    assert server.requests == []


async def test_guard_judges_queries_and_documents_before_they_are_ranked() -> None:
    async with serve(replying(200, dump({"results": []}))) as server:
        inner = d.connect_reranker("m", base_url=server.base_url)
        async with Guard(inner, Rules([{"code": "name", "pattern": "Ann"}])) as model:
            with pytest.raises(BlockedError):
                await model.rerank("a river", ["the Rhine", "Ann's river"])
            with pytest.raises(BlockedError):
                await model.rerank("Ann's river", ["the Rhine"])
    assert server.requests == []


async def test_calls_of_gather_are_judged_one_by_one() -> None:
    def answer(request: Request) -> str:
        return f"to {request.messages[-1].text}"

    model = Guard(Listed(answer, repeat=True), Rules([{"code": "name", "pattern": "Ann"}]))
    texts = ["a river", "Ann", "a lake"]
    gathered = {each.index: each async for each in d.gather(model, texts)}
    assert {at: each.response.text for at, each in gathered.items() if each.response} == {
        0: "to a river", 2: "to a lake",
    }  # fmt: skip
    assert isinstance(gathered[1].error, BlockedError)
