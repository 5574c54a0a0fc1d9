"""Test that every field of every record type is written by a run.

The test finds fields that no code ever writes. Each run is scripted and uses the real session,
gateway, observer or command, with a log.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from msgspec.structs import FieldInfo, replace

import dragoman
from dragoman import (
    Budget,
    Policy,
    Rule,
    RuntimeConfig,
    Session,
    Summarise,
    Usage,
    connect_embedder,
    sim,
)
from dragoman.calls import CallCompleted, Inbound
from dragoman.errors import (
    AuthenticationError,
    MalformedToolCallError,
    OverloadedError,
    ProviderError,
)
from dragoman.events import AssembledFrom, Assembler, IntentSource, Raw
from dragoman.gateway.app import create_app
from dragoman.gateway.call_log import CallLog
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.log import (
    CATALOGUE,
    EventLog,
    ForkedFrom,
    LeftOut,
    LogConflictError,
    MemoryLog,
    Routing,
)
from dragoman.messages import LossWarning, Tool
from dragoman.middleware import Cache, Fallback, Guard, Observe, Retry, Verdict
from dragoman.middleware.guard import Action, Subject
from dragoman.permission import Decision
from dragoman.prices import Match, PriceRow
from dragoman.session import RemoteApprover, SessionTool, answer_question
from dragoman.session import observe as observe_result
from dragoman.sim import SimulatedEmbedder, SimulatedReranker
from dragoman.tools import FunctionTool, Observation, ToolContext, tool
from dragoman.transport import FixtureTransport

from ..attacks.gateway_app import post
from ..listed import Clock, Listed, broken, reply, speak
from ..tools.test_mcp_changes import open_changing
from . import test_compaction as compaction
from . import test_definitions as definitions
from .playing import anthropic_reply as body
from .playing import call, over_wire, propose, text, until_asked
from .test_context import read_page, reader

ALL = Policy([Rule("allow", name="all", reason="a test")])
ASK = Policy([Rule("ask", name="ask", reason="it writes")])
SONNET = "claude-sonnet-4-6"
# The types of nested values in records.
PARTS: tuple[type[msgspec.Struct], ...] = (
    AssembledFrom, ForkedFrom, Inbound, IntentSource, LeftOut, LossWarning, Routing,
)  # fmt: skip
EVERY = Usage(
    100,
    50,
    cached_input_tokens=10,
    cache_creation_input_tokens=5,
    reasoning_tokens=7,
    total_tokens=150,
    stated_cost_usd=Decimal("0.01"),
    billed_input_tokens=90,
    billed_output_tokens=40,
    terms=("service_tier:priority",),
)
Run = Callable[[EventLog, list[Any]], Awaitable[None]]


END = CallCompleted(model="m", provider="p", request_id="r", stop_reason="end_turn", latency_ms=1)


def list_fields() -> Iterator[tuple[type, FieldInfo]]:
    """Yield every field of the record classes and of the classes nested in them."""
    structs: list[type[msgspec.Struct]] = [entry.payload for entry in CATALOGUE.values()]
    for struct in (*structs, *PARTS):
        for field in msgspec.structs.fields(struct):
            is_constant = get_origin(field.type) is Literal and len(get_args(field.type)) == 1
            if not is_constant:
                yield struct, field


def find_written(value: Any, found: set[tuple[type, str]]) -> None:
    """Add to ``found`` each field whose value differs from its default, including the fields of
    nested values.
    """
    if isinstance(value, tuple):
        for each in value:
            find_written(each, found)
        return
    if not isinstance(value, msgspec.Struct):
        return
    for field in msgspec.structs.fields(type(value)):
        written = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if written != default and (not field.required or written not in ("", (), {}, None)):
            found.add((type(value), field.name))
        if isinstance(written, (*PARTS, tuple)):
            find_written(written, found)


def unreadable(out: Assembler) -> None:
    """Emit a tool call whose arguments are not JSON."""
    out.tool_start("1", "1", "bash")
    out.tool_input("1", '{"command": ')
    out.block_end("1")


# --- tools and models that the sessions use ----------------------------------------------------


@tool(side_effect="execute")
def bash(command: str) -> Observation:
    """Run a command."""
    return Observation(
        "no\n" * 30_000, is_error=True, exit_code=1, details={"stdout_bytes": 90_000}
    )


def write_file(path: str) -> str:
    """Write a file."""
    return "written"


WRITE = FunctionTool(write_file, side_effect="write", locate=lambda given: (str(given["path"]),))


@tool(side_effect="read", timeout=0.01)
async def wait() -> str:
    """Wait for a minute."""
    await asyncio.sleep(60)
    return "never"


def sonnet(*answers: Any, **facts: Any) -> Listed:
    return Listed(*answers, name="anthropic", model=SONNET, **facts)


def cut(request: Any) -> list[Any]:
    """Answer with text and token usage, then fail."""
    error = dragoman.StreamInterruptedError("cut", status=500, headers=HEADERS)
    return [*speak(text("Done."), usage=EVERY)(request), error]


HEADERS = {
    "request-id": "req_1", "anthropic-ratelimit-requests-remaining": "9", "retry-after": "0",
}  # fmt: skip
CONFIG = RuntimeConfig(max_tokens=9)
FREE = {"priced_as": "free"}
THINK_AND_CALL = speak(
    lambda out: out.thinking("hm"), call("bash", command="x"), finish="tool_calls", usage=EVERY
)


# --- sessions that produce every field of every record -----------------------------------------


async def use_tools(log: EventLog, seen: list[Any]) -> None:
    """Run a session with thinking, results of every kind, rejected calls, a model swap with
    losses, and structured output.
    """
    script = [
        THINK_AND_CALL, propose(call("fly", high=True)), propose(call("bash", wrong=1)),
        propose(call("wait"), call("write_file", call_id="2", path="a.txt")),
        reply("Done.", usage=Usage(1, 1)),
    ]  # fmt: skip
    session = Session(
        sonnet(*script), [bash, wait, WRITE], ALL, log, config=CONFIG, system="Be brief.",
        metadata={"team": "red"}, session_id="tools",
    )  # fmt: skip
    await session.run("Go.")
    await session.swap(over_wire((200, HEADERS, body("More.")), **FREE), "cheaper")
    await session.run("Go on.")  # the thinking of the other model is not sent
    with pytest.raises(MalformedToolCallError):
        await Session(sonnet(*[propose(unreadable)] * 5), [bash], ALL, log).run("Go.")
    schema = {"type": "object"}
    await Session(Listed("Done.", "{}"), [bash], ALL, log, output=schema).run("Go.")


async def approve(log: EventLog, seen: list[Any]) -> None:
    """Run sessions whose tool calls are approved (with edited input, or for a command prefix),
    denied, or decided by another process.
    """
    answers = [
        Decision(True, "ann", reason="faster", input={"command": "ls"}),
        Decision(True, "ann", scope="prefix", prefix="git log"),
        Decision(False, "ann", reason="not now"),
    ]
    calls = [
        propose(call("bash", call_id=f"c{at}", command=f"git log {at}; x")) for at in range(3)
    ]
    session = Session(Listed(*calls, "Done."), [bash], ASK, log, approve=lambda *_: answers.pop(0))
    await session.run("Go.")
    yes = lambda proposal, verdict: Decision(True, "ann", scope="session")
    await Session(Listed(*calls, "Done."), [bash], ASK, log, approve=yes).run("Go.")
    denying = Policy([Rule("deny", name="no", reason="never")])
    await Session(Listed(calls[0], "Done."), [bash], denying, log).run("Go.")
    remote = Session(
        Listed(*calls[:2], "Done."), [bash], ASK, log, approve=RemoteApprover(log, interval=0.001)
    )
    running = asyncio.create_task(remote.run("Go."))
    asked = None
    for decision in (
        Decision(
            True, "bob", reason="fine", scope="prefix", prefix="git log", input={"command": "ls"}
        ),
        Decision(False, "bob", reason="not now"),
    ):
        asked = (await until_asked(log, remote.id, after=asked)).intent_id
        answer_question(log, remote.id, asked, decision)
    await running
    elsewhere = Session(Listed(calls[0], "Done."), [Tool("bash", external=True)], ALL, log)
    outcome = await elsewhere.run("Go.", key="g1")
    observe_result(log, elsewhere.id, outcome.pending[0].intent_id, "failed", True, by="ci")
    await elsewhere.run()
    given_up = Session(Listed(calls[0], "Done."), [Tool("bash", external=True)], ALL, log)
    await given_up.run("Go.")
    await given_up.close_open_intents("nobody runs it")


async def resume(log: EventLog, seen: list[Any]) -> None:
    """Run a session that is killed while a tool runs, taken over, allowed to run the call again,
    resumed at a record, and forked.
    """
    began = asyncio.Event()

    @tool(side_effect="read")
    async def look(word: str) -> str:
        """Look up a word."""
        began.set()
        await asyncio.sleep(60)
        return word

    @tool(side_effect="read", name="look", on_resume="ask")
    def look_again(word: str, how: str = "") -> str:
        """Look up a word in more detail."""
        return word

    first = Session(
        Listed(propose(call("look", word="ox"))), [look], ALL, log, session_id="killed"
    )
    running = asyncio.create_task(first.run("Go."))
    await began.wait()
    again = await Session.resume(
        Listed("Done."), [look_again], ALL, log, "killed", takeover=True, approve="wait"
    )
    [pending] = (await again.run()).pending
    await again.answer(pending.intent_id, Decision(True, "ann"))
    await again.run()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError, LogConflictError):
        await running
    back = await Session.resume(Listed("Other."), [look_again], ALL, log, "killed", at=3)
    await back.run("Again.")
    forked = await Session.fork(
        Listed("Third."),
        [look_again],
        Policy([Rule("allow", "*")], "deny"),
        log,
        "killed",
        new_id="forked",
    )
    await forked.run("Else.")


async def report(log: EventLog, seen: list[Any]) -> None:
    """Run a session with a tool that reports how far it is, and one whose tool runs a session."""

    @tool(side_effect="read")
    def count(context: ToolContext[None]) -> str:
        """Count the pages."""
        context.report({"pages": 1})
        return "2 pages"

    await Session(Listed(propose(call("count")), "Done."), [count], ALL, log).run("Go.")
    expert = SessionTool("ask_expert", "Ask.", Listed("It is."))
    asking = Listed(propose(call("ask_expert", task="Is it?")), "Done.")
    await Session(asking, [expert], ALL, log).run("Go.")


async def shorten(log: EventLog, seen: list[Any]) -> None:
    """Run a conversation that is summarised, one whose old results are omitted, and one whose
    definitions are.
    """
    writer = Observe(
        Listed(reply("About a fox.", usage=EVERY), name="cheap", repeat=True), seen.append
    )
    for policy in (Summarise(writer, keep=1), dragoman.DropOldToolResults()):
        await Session(reader(4, window=2_500), [read_page], ALL, log, context=policy).run("Read.")
    await writer.close()
    await definitions.start(definitions.make_model(16), log, session_id="searching").run("Go.")


async def fail(log: EventLog, seen: list[Any]) -> None:
    """Run a session with retried attempts, a fallback, an outage with recovery, rate-limit headers
    and an unknown price.
    """
    clock = Clock()
    limited = OverloadedError("busy", status=529, headers=HEADERS)
    bad = Listed(AuthenticationError("no"), speak(text("Back.")), name="bad")
    good = Retry(Listed(limited, "Done.", name="good"), sleep=clock.sleep, clock=clock)
    session = Session(Fallback([bad, good], clock=clock), (), ALL, log)
    await session.run("Go.")
    clock.now += 301
    await session.run("Go on.")
    others = [Listed("A.", name="a"), Listed("B.", name="b")]
    await Session(Fallback(others, strategy="weighted"), (), ALL, log).run("Go.")
    for model in (
        sonnet(broken("Hal", ProviderError("cut", status=500))),
        sonnet(speak(text("I "), finish="content_filter")),
        Listed(cut),
        sonnet(dragoman.TimedOutError("late", which="first_event")),
        over_wire((429, HEADERS, b"{}"), **FREE),
    ):
        with contextlib.suppress(ProviderError):
            await Session(model, (), ALL, log, config=CONFIG).run("Go.")
    unknown = sonnet(propose(call("bash", command="x"), usage=Usage(5)))
    await Session(unknown, [bash], ALL, log, budget=Budget(cost_usd=1)).run("Go.")
    await Session(
        Listed(propose(call("bash", command="x"))), [bash], ALL, log, budget=Budget(steps=1)
    ).run("Go.")


async def keep_replies(log: EventLog, seen: list[Any]) -> None:
    """Run a session that stores a paused reply with its headers, and a session that cannot store
    its reply.
    """
    replies = [body("Searching.", "pause_turn"), body("Found.")]
    paused = over_wire(*[(200, HEADERS, each) for each in replies], **FREE)
    await Session(paused, (), ALL, log, keep_raw=True, config=CONFIG).run("Go.")

    def odd(request: Any) -> list[Any]:
        events: list[Any] = reply("Hello.")(request)
        return [*events[:-1], replace(events[-1], kept=Raw([b'{"text": "\\ud800"}'], json.loads))]

    await Session(Listed(odd), (), ALL, log, keep_raw=True).run("Go.")


async def prune(log: EventLog, seen: list[Any]) -> None:
    other = MemoryLog()
    await Session(Listed("Done."), (), ALL, other, session_id="old").run("Go.")
    await Session(Listed("Done."), (), ALL, other, session_id="new").run("Go.")
    seen.append(other.erase("new", [1], reason="asked for"))
    seen += [record.payload for record in other.read("new")]
    seen += other.retain(datetime.now(UTC))


async def change_days(log: EventLog, seen: list[Any]) -> None:
    """Record calls of a gateway on two days."""
    days = iter([0.0, 86_400.0])
    calls = CallLog(log, clock=lambda: next(days))
    for _ in range(2):
        calls.put([END])
    await calls.close()


async def observe(log: EventLog, seen: list[Any]) -> None:
    """Observe calls that succeed, are retried or fail, with and without content; then run sessions
    with a cache.
    """
    clock = Clock()
    model = sonnet(OverloadedError("busy"), THINK_AND_CALL, cut, cut)
    watched = Observe(model, seen.append, include_content=True)
    chat = Retry(watched, sleep=clock.sleep, clock=clock, max_retries=1)
    metadata = {"dragoman.turn": "t1", "dragoman.is_worker": "true"}
    config = RuntimeConfig(seed=3)
    given: dict[str, Any] = {"session_id": "s", "metadata": metadata, "config": config}
    await chat.complete("Hi.", [bash.description], **given)
    with contextlib.suppress(ProviderError):
        async with chat.stream("Hi.", **given) as stream:
            async for _ in stream:
                pass
    replies = [(200, HEADERS, body("Hi.")), (500, HEADERS, b"{}")]
    served = Observe(over_wire(*replies, **FREE), seen.append)
    await served.complete("Hi.", max_tokens=9)
    with contextlib.suppress(ProviderError):
        await served.complete("Hi.", max_tokens=9)
    with tempfile.TemporaryDirectory() as folder:
        cached = Cache(sonnet(reply("Done.", usage=EVERY)), Path(folder) / "cache.db")
        for _ in range(2):
            await Session(cached, (), ALL, log).run("Go.")
        blocked = Observe(Guard(cached, lambda subject: "block", on="reply"), seen.append)
        with contextlib.suppress(ProviderError):
            await blocked.complete("Go.")
            await blocked.complete("Go.")
        await blocked.close()
    await watched.close()
    await served.close()


async def retrieve(log: EventLog, seen: list[Any]) -> None:
    """Run observed embedding and reranking calls: some succeed after a retry, and others fail."""
    clock = Clock()
    given: dict[str, Any] = {"session_id": "s", "metadata": {"dragoman.turn": "t1"}}
    price = PriceRow(
        "sim", Match(equals=("sim",)), input=Decimal(1), output=Decimal(1), search=Decimal(2)
    )
    models: list[Any] = []
    busy = OverloadedError("busy")
    for kind in (SimulatedEmbedder, SimulatedReranker):
        inner: Any = kind(busy, None, busy, busy)
        inner.priced_as = price
        watched = Observe(inner, seen.append, include_content=True)
        models.append(Retry(watched, sleep=clock.sleep, clock=clock, max_retries=1))
    embedder, reranker = models
    for _ in range(2):
        with contextlib.suppress(OverloadedError):
            await embedder.embed(["a", "b"], input_type="query", dimensions=4, **given)
        with contextlib.suppress(OverloadedError):
            await reranker.rerank("a", ["a b", "c"], top_k=1, return_documents=True, **given)
    for model in models:
        await model.close()


async def serve(log: EventLog, seen: list[Any]) -> None:
    """Run a gateway with a log; make calls whose records contain a key, warnings, attempts, an
    error, content, embeddings and rankings.
    """
    data = [{"index": 0, "embedding": [0.5]}]
    found = {"id": "e1", "model": "m", "data": data, "usage": {"prompt_tokens": 1}}
    vectors = (200, HEADERS, [json.dumps(found).encode()])
    models: dict[str, Any] = {
        "fast": Retry(
            sonnet(OverloadedError("busy"), reply("Done.", usage=EVERY)), backoff=lambda _: 0.0
        ),
        "wire": over_wire((200, HEADERS, body("Done.")), **FREE),
        "down": sonnet(OverloadedError("busy", status=529)),
        "mute": sonnet(speak(text("Done."), usage=Usage())),
        "vectors": connect_embedder(
            "m", base_url="http://127.0.0.1:9/v1", transport=FixtureTransport(vectors)
        ),
        "ranks": SimulatedReranker(None, OverloadedError("busy"), batch_size=1),
    }
    app = create_app(
        models, keys=KeyRing([Key("ann", hash_key("dg-ann"))]), log=log, log_content=True
    )
    headers = {"authorization": "Bearer dg-ann"}
    asked = {
        "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 9,
        "logit_bias": {"5": 1}, "tools": [{"type": "function", "function": {"name": "look"}}],
    }  # fmt: skip
    for name in ("fast", "wire", "down", "mute"):
        await post(app, "openai", json.dumps({**asked, "model": name}).encode(), headers=headers)
    for path, given in (
        ("/v1/embeddings", {"model": "vectors", "input": ["a"]}),
        ("/v1/rerank", {"model": "ranks", "query": "a", "documents": ["a", "b"]}),
    ):
        await post(app, "openai", json.dumps(given).encode(), path=path, headers=headers)
    await app.state.service.calls.close()


async def compact(log: MemoryLog, seen: list[Any]) -> None:
    with sim.serve(compaction.reader("responses")) as server:
        limits = {"max_context_tokens": compaction.WINDOW, "max_output_tokens": 500}
        async with server.connect("responses", capabilities=limits) as model:
            context = dragoman.NativeCompaction()
            session = Session(model, [compaction.read_page], ALL, log, context=context)
            await session.run("Read all pages.")


async def change_tools(log: EventLog, seen: list[Any]) -> None:
    async with open_changing("ttl") as server:
        model = Listed(
            propose(call("change", add="second", remove="first")),
            propose(call("second", call_id="2")),
            "done",
        )
        await Session(model, server.tools, ALL, log).run("Go.")


async def guard(log: EventLog, seen: list[Any]) -> None:
    async def flag(subject: Subject) -> Verdict:
        return Verdict("flag", "odd", code="odd", cost_usd=Decimal("0.1"), version="7")

    async def hang(subject: Subject) -> Action:
        await asyncio.Event().wait()
        return "allow"

    inner = Guard(Listed(speak(lambda out: out.thinking("Hm."))), flag, include_content=True)
    model = Guard(inner, hang, on="request", on_failure="open", deadline=0.001)
    await Session(model, [], ALL, log).run("Go.")


CORPUS: tuple[Run, ...] = (
    use_tools, report, approve, resume, shorten, compact, fail, keep_replies, prune, observe, retrieve,
    serve, change_tools, change_days, guard,
)  # fmt: skip


async def run_corpus() -> set[tuple[type, str]]:
    written: set[tuple[type, str]] = set()
    with MemoryLog() as log:
        for run in CORPUS:
            seen: list[Any] = []
            await run(log, seen)
            for payload in seen:
                find_written(payload, written)
        for entry in log.sessions():
            for record in log.read(entry.session):
                find_written(record.payload, written)
    return written


async def test_every_field_of_every_record_type_is_written_by_a_run() -> None:
    written = await run_corpus()
    missing = [
        f"{struct.__name__}.{field.name}"
        for struct, field in list_fields()
        if (struct, field.name) not in written
    ]
    assert not missing, "\n".join(missing)
