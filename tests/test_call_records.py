"""The library, a session and a gateway write the same records of the same call, field by field.

Each case of the conformance kit is called through a stack of middleware: to its end, refused once
or always, lost after a frame, and cancelled after a frame. An observer inside the stack, the log of
a session and the log of a gateway must have the same records of its attempts. ``make test`` runs a
sample of these combinations.
"""

import ast
import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

from dragoman import Fallback, Observe, Provider, Retry, Session
from dragoman.calls import CallCompleted, CallFailed, CallStarted
from dragoman.errors import NetworkError, ProviderError, StreamInterruptedError
from dragoman.gateway.app import create_app
from dragoman.log import MemoryLog
from dragoman.messages import RuntimeConfig, Tool
from dragoman.middleware import KeyRotation
from dragoman.provider import HttpProvider
from dragoman.transport import HttpStream, Transport
from dragoman.wire import CODECS

from .gateway.serving import serving
from .listed import Clock
from .middleware.test_wrapping import CASES, WHOLE, frames_of, sample
from .sources import read_package
from .waiting import arrival
from .wire.cases import Case

BUSY = (429, {"x-request-id": "req", "x-ratelimit-remaining": "0"}, [b'{"error": {}}'])
# What differs between two calls, and what only one of the three knows.
OWN = {
    "at", "latency_ms", "first_event_ms", "request_id", "session_id", "turn_id", "inbound",
    "wait_seconds",
}  # fmt: skip
# What the start of a call to a group does not know, and what a session estimates itself.
LATER = {"provider", "model", "server", "estimated_input_tokens"}

USABLE = ("provider_invalid_response", "llm.call_completed")
ESTIMATED = ("estimated", "input_tokens", "output_tokens", "cost_unknown", "priced_as")


class Scripted(Transport):
    """Replies from a list; a reply that ends with ``None`` never ends, and sets ``hangs``."""

    def __init__(self, *replies: Any) -> None:
        self._replies = list(replies)
        self.hangs = asyncio.Event()

    @asynccontextmanager
    async def send(self, *_: Any, **settings: Any) -> AsyncIterator[HttpStream]:
        if not self._replies:
            raise NetworkError("no reply is left")
        yield _ScriptedReply(self, *self._replies.pop(0))


class _ScriptedReply(HttpStream):
    def __init__(self, owner: Scripted, status: int, headers: Any, body: Any) -> None:
        self.status = status
        self.headers = headers
        self._body = [*body]
        self._owner = owner

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        chunk = self._body.pop(0) if self._body else b""
        if chunk is None:
            self._owner.hangs.set()
            await asyncio.Event().wait()
        if isinstance(chunk, Exception):
            raise chunk
        return bytes(chunk)


class Way(NamedTuple):
    """How a call goes: the replies of the first server, and those of a second one."""

    name: str
    first: list[Any]
    second: list[Any]


def ways(case: Case) -> Iterator[Way]:
    def answer(*chunks: Any) -> Any:
        return case.options.status, case.options.headers, chunks

    frames = frames_of(case)
    whole = answer(case.reply or b"")
    yield Way("to the end", [whole], [whole])
    yield Way("in frames", [answer(*frames)], [whole])
    yield Way("refused once", [BUSY, whole], [whole])
    yield Way("refused", [BUSY] * 3, [BUSY] * 3)
    for at in range(len(frames) + 1):
        lost = answer(*frames[:at], StreamInterruptedError("the connection was lost"))
        yield Way(f"lost after frame {at}", [lost] * 3, [whole] * 3)
        yield Way(f"cancelled after frame {at}", [answer(*frames[:at], None)], [whole])


def retry(model: Provider) -> Provider:
    return Retry(model, sleep=Clock().sleep, max_retries=1)


STACKS: dict[str, Callable[[Provider, Provider], Provider]] = {
    "bare": lambda a, b: a,
    "retry": lambda a, b: retry(a),
    "fallback": lambda a, b: Fallback([a, b]),
    "fallback of retries": lambda a, b: Fallback([retry(a), retry(b)]),
    "fallback of a fallback": lambda a, b: Fallback([Fallback([a], name="inner"), b]),
    "retry of a fallback": lambda a, b: retry(Fallback([a, b])),
    "retry of two keys": lambda a, b: retry(KeyRotation([a, b])),
}


class Call:
    """One call of a case through a stack, with an observer at each server."""

    def __init__(self, case: Case, way: Way, stack: str) -> None:
        self.seen: list[Any] = []
        called = re.findall(rb'"tool_name": ?"([^"]+)"', case.part("events.jsonl") or b"")
        self.tools = [
            Tool(name.decode(), "", parameters={"type": "object"}) for name in sorted({*called})
        ]
        self.is_cancelled = way.name.startswith("cancelled")
        self.transport = Scripted(*way.first)
        names = ["acme", "acme" if "keys" in stack else "other"]
        servers = zip(names, [self.transport, Scripted(*way.second)], strict=True)
        inner = [
            Observe(
                HttpProvider(case.codec(), transport, name=name, model=case.options.model),
                self.seen.append,
            )
            for name, transport in servers
        ]
        self.observers = inner
        self.model = STACKS[stack](*inner)

    async def observe(self, *, offers: bool) -> list[Any]:
        """Call the library, with the tools that the reply calls or none; return what was seen."""
        settings: dict[str, Any] = {"max_tokens": 50, "tools": self.tools if offers else ()}

        async def read() -> None:
            async with self.model.stream("Go.", check_calls=False, **settings) as stream:
                async for _ in stream:
                    pass

        await self._run(asyncio.ensure_future(read()))
        for observer in self.observers:
            await observer.flush()
        # the observers of two servers do not wait for each other
        return show(sorted(self.seen, key=lambda record: record.at))

    async def log_session(self) -> list[Any]:
        """Run one turn of a session; return the records in its log."""
        log = MemoryLog()
        config = RuntimeConfig(max_tokens=50)
        session = Session(self.model, (), None, log, config=config, corrections=0)
        await self._run(asyncio.ensure_future(session.step("Go.")))
        return show([record.payload for record in log.read(session.id)])

    async def ask_gateway(self, url: str, name: str) -> None:
        """Send a request to a gateway, which writes the records to its log."""
        messages = [{"role": "user", "content": "Go."}]
        body = {"model": name, "messages": messages, "max_tokens": 50, "stream": True}
        functions = [{"name": tool.name, "parameters": tool.parameters} for tool in self.tools]
        if functions:
            body["tools"] = [{"type": "function", "function": each} for each in functions]

        async def post() -> None:
            async with (
                aiohttp.ClientSession() as client,
                client.post(f"{url}/v1/chat/completions", json=body) as reply,
            ):
                await reply.read()

        await self._run(asyncio.ensure_future(post()))

    async def _run(self, task: asyncio.Task[Any]) -> None:
        if self.is_cancelled:
            # some replies are complete before their last frame
            hangs = asyncio.ensure_future(self.transport.hangs.wait())
            ended = asyncio.wait({task, hangs}, return_when="FIRST_COMPLETED")
            await arrival(ended, "the last frame or the end of the call")
            hangs.cancel()
            task.cancel()
        with contextlib.suppress(ProviderError, asyncio.CancelledError, aiohttp.ClientError):
            await task


def show(records: list[Any]) -> list[Any]:
    found = []
    for record in records:
        if isinstance(record, CallStarted | CallCompleted | CallFailed):
            fields = msgspec.to_builtins(record)
            own = OWN | LATER if isinstance(record, CallStarted) else OWN
            if fields.get("error_class") == "cancelled":
                del fields["error_message_redacted"]  # a gateway reports that the client hung up
            found.append({name: value for name, value in fields.items() if name not in own})
    return found


def name_plan(plan: tuple[Case, Way, str]) -> str:
    case, way, stack = plan
    return f"{case.wire}/{case.name}, {way.name}, {stack}"


def compare(records: list[Any], others: list[Any]) -> list[Any]:
    """Return the number, the name and both values of each field that differs."""
    if len(records) != len(others):
        return [records, others]
    return [
        (number, name, record.get(name), other.get(name))
        for number, (record, other) in enumerate(zip(records, others, strict=True))
        for name in sorted({*record, *other})
        if record.get(name) != other.get(name)
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire", CODECS)
async def test_library_session_and_gateway_write_the_same_records(
    wire: str, count: Callable[[str, int], None]
) -> None:
    draw = random.Random(wire)
    cases = CASES[wire] if WHOLE else draw.sample(CASES[wire], min(len(CASES[wire]), 20))
    plans = [
        (case, way, stack)
        for case in cases
        for way in sample(ways(case), draw)
        for stack in [draw.choice([*STACKS])]
    ]
    calls = {str(number): Call(*plan) for number, plan in enumerate(plans)}
    log = MemoryLog()
    app = create_app({name: call.model for name, call in calls.items()}, log=log, log_content=True)
    observed: dict[str, list[Any]] = {}

    async def unchecked(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)  # other tests check the gateway's replies

    async with serving(unchecked) as url:
        for name, plan in zip(calls, plans, strict=True):
            seen = await Call(*plan).observe(offers=False)
            observed[name] = await Call(*plan).observe(offers=True)
            assert seen, name_plan(plan)
            logged = await Call(*plan).log_session()
            # a session can use some replies whose calls are malformed
            if (seen[-1].get("category"), logged[-1]["type"]) != USABLE:
                assert compare(logged, seen) == [], f"session: {name_plan(plan)}"
            await calls[name].ask_gateway(url, name)
            count("calls recorded three times", 1)
    records = [each.payload for each in log.find("llm.call_completed", "llm.call_failed")]
    for name, plan in zip(calls, plans, strict=True):
        found = show([each for each in records if each.inbound.name == name])
        ends = [each for each in observed[name] if each["type"] != "llm.call_started"]
        # a gateway estimates the tokens that no provider reported, for its limits
        if (found[-1].get("estimated"), ends[-1].get("estimated")) == (True, None):
            for record in (found[-1], ends[-1]):
                for field in ESTIMATED:
                    record.pop(field, None)
        if (ends[-1].get("category"), found[-1]["type"]) != USABLE:
            assert compare(found, ends) == [], f"gateway: {name_plan(plan)}"


def test_only_the_builder_makes_call_records() -> None:
    kinds = {"CallStarted", "CallCompleted", "CallFailed"}
    places = {
        source.path.as_posix()
        for source in read_package()
        for node in (source.nodes if any(kind in source.text for kind in kinds) else ())
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in kinds
    }
    assert places == {"middleware/attempts.py"}
