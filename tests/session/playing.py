"""Provide replies that propose tool calls, and functions that check logs, for tests of sessions."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dragoman.events import Assembler
from dragoman.log import EventLog, LogRecord
from dragoman.messages import Request, User
from dragoman.permission import Policy, Rule
from dragoman.provider import Provider, connect
from dragoman.session import Question, Session, Step, find_questions
from dragoman.tools import tool
from dragoman.transport import FixtureTransport
from dragoman.wire import SERVER_CODECS, Asked

from ..listed import speak
from ..waiting import until

Answer = Callable[[Request], list[Any]]
ALL = Policy([Rule("allow")])
ran: list[Any] = []  # the arguments of the calls of the tools below; each test begins with none


@tool(side_effect="read")
def look(word: str) -> str:
    """Look up a word."""
    ran.append(word)
    return f"{word}: found"


@tool(side_effect="write")
async def note(text: str) -> str:
    """Write a note."""
    ran.append(text)
    return "noted"


def call(
    name: str, *, call_id: str = "call_1", pieces: int = 2, **arguments: Any
) -> Callable[[Assembler], None]:
    """Return a function that emits a tool call through the assembler, with its arguments in
    pieces.
    """

    def say(out: Assembler) -> None:
        text = msgspec.json.encode(arguments).decode()
        out.tool_start(call_id, call_id, name)
        size = -(-len(text) // pieces)
        for at in range(0, len(text), size):
            out.tool_input(call_id, text[at : at + size])
        out.block_end(call_id)

    return say


def text(words: str) -> Callable[[Assembler], None]:
    return lambda out: out.text(words)


def propose(*calls: Callable[[Assembler], None], words: str = "", **facts: Any) -> Answer:
    """Return a reply that proposes the given tool calls, after a text if one is given."""
    return speak(*([text(words)] if words else []), *calls, finish="tool_calls", **facts)


def served(wire: str, *answers: Answer) -> Provider:
    """Return a provider for a wire whose server gives the answers one after the other."""
    replies: list[Any] = []
    for answer in answers:
        # The server proposes what it likes, so no calls are checked here.
        request = Request([User("x")], stream=True, model="m", request_id="R", check_calls=False)
        encoder = SERVER_CODECS[wire].encoder(Asked(request=request))
        data = b"".join([encoder.feed(event) for event in answer(request)]) + encoder.end()
        replies.append((200, {"content-type": "text/event-stream"}, [data]))
    transport = FixtureTransport(*replies)
    return connect("m", wire=wire, base_url="http://127.0.0.1:9/v1", transport=transport)


def over_wire(*replies: tuple[int, dict[str, str], bytes], **settings: Any) -> Provider:
    """Return a provider "p" of the wire ``anthropic`` whose server gives the replies."""
    transport = FixtureTransport(*[(status, headers, [body]) for status, headers, body in replies])
    where = {"wire": "anthropic", "base_url": "http://127.0.0.1:9/v1", "name": "p"}
    return connect("m", transport=transport, **where, **settings)  # type: ignore[arg-type]


def anthropic_reply(words: str, stop: str = "end_turn") -> bytes:
    """Return a reply of the wire ``anthropic`` with a text."""
    return msgspec.json.encode(
        {
            "id": "x", "type": "message", "role": "assistant", "model": "m-2026",
            "stop_reason": stop, "content": [{"type": "text", "text": words}],
            "usage": {"input_tokens": 5, "output_tokens": 2},
        }
    )  # fmt: skip


async def play(
    log: EventLog, provider: Provider, tools: Sequence[Any] = (), **settings: Any
) -> list[LogRecord]:
    """Run a session that may use all its tools; return its records."""
    session = Session(provider, tools, settings.pop("policy", ALL), log, **settings)
    await session.run("Go.")
    return list(log.read(session.id))


async def take_turn(session: Session, goal: str | None = None) -> Step:
    """Take steps until the model was called and its calls have ended; return the last step."""
    step = await session.step(goal)
    while step.outcome is None and session.state.open_intents:
        step = await session.step()
    return step


async def until_asked(
    log: EventLog, session: str | None = None, *, after: str | None = None
) -> Question:
    """Wait for a question of a session, other than the question ``after``; return it."""
    open_questions = lambda: [q for q in find_questions(log, session) if q.intent_id != after]
    await until(open_questions, "a question")
    return open_questions()[0]


def types(records: Sequence[LogRecord]) -> list[str]:
    return [record.type for record in records]


def of(records: Sequence[LogRecord], kind: str) -> list[Any]:
    """Return the payloads of all records of one type."""
    return [record.payload for record in records if record.type == kind]


# --- checking the order of tool call records ---------------------------------------------------

ENDS = {
    "tool.observed", "tool.failed", "permission.denied", "tool_intent.rejected",
    "tool_intent.closed",
}  # fmt: skip
# For each record type of a tool call: the types that may precede it.
BEFORE = {
    "tool_intent.validated": {"tool_intent.proposed"},
    "tool_intent.rejected": {"tool_intent.proposed"},
    "permission.requested": {"tool_intent.validated", "tool.started", "tool.restarted"},
    "permission.granted": {"tool_intent.validated", "permission.requested"},
    "permission.denied": {"tool_intent.validated", "permission.requested"},
    "tool.started": {"permission.granted"},
    "tool.restarted": {"tool.started", "tool.restarted", "permission.granted"},
    "tool.observed": {"tool.started", "tool.restarted"},
    "tool.failed": {"tool.started", "tool.restarted"},
    "tool_intent.closed": {"tool_intent.proposed", "tool_intent.validated",
                           "permission.requested", "permission.granted", "tool.started", "tool.restarted"},
}  # fmt: skip


def check_evidence(records: Sequence[LogRecord], *, finished: bool = True) -> dict[str, list[str]]:
    """Check that the records of a session are in a valid order; return the record types of each
    tool call.
    """
    by_id = {record.id: record for record in records}
    steps: dict[str, list[LogRecord]] = {}
    for record in records:
        assert record.parent is None or record.parent in by_id, "a parent comes first"
        intent = record.data.get("intent_id") or (
            record.data["id"] if record.type == "tool_intent.proposed" else None
        )
        if intent is None:
            continue
        before = steps.setdefault(intent, [])
        if record.type in ("tool.progress", "session.delegated"):
            assert before[-1].type in ("tool.started", "tool.restarted")
            assert record.parent == before[-1].id
            continue
        if record.type == "tool_intent.proposed":
            assert not before, "proposed once"
        else:
            assert before[-1].type in BEFORE[record.type], f"{record.type} after {before[-1].type}"
            if record.type != "tool_intent.closed":
                assert record.parent == before[-1].id, (
                    f"{record.type} follows from {before[-1].type}"
                )
        before.append(record)
    found = {intent: types(chain) for intent, chain in steps.items()}
    for chain in found.values():
        assert chain.count("tool.started") <= 1
        assert sum(kind in ENDS for kind in chain) <= 1
        if finished:
            assert chain[-1] in ENDS, chain
    if finished:
        starts = types(records).count("llm.call_started")
        ends = sum(r.type in CALL_ENDS for r in records)
        assert starts == ends
    return found


CALL_ENDS = {"llm.call_completed", "llm.call_failed"}
