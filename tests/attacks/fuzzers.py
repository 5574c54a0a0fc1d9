"""Fuzzers: each makes a hostile input from a seed, processes it, and raises if a guarantee is
broken.
"""

import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from dragoman import Capabilities, ProviderError, Response, check_events
from dragoman.conformance.cases import CodecCase as Case
from dragoman.errors import StreamInterruptedError, TimedOutError
from dragoman.events import MessageComplete, encode_event, fold
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import KeyRing
from dragoman.gateway.ledger import Ledger
from dragoman.log import LogError, open_log
from dragoman.permission import Policy, Proposal
from dragoman.provider import HttpProvider, connect
from dragoman.registry import ConfigError, Registry
from dragoman.replay import ReplayProvider, count_totals, read_steps
from dragoman.sim import ScriptedProvider
from dragoman.transport import FixtureTransport, HttpStream, Secret, Timeouts, Transport
from dragoman.wire import CODECS
from dragoman.wire.codec import HttpRequest
from tests.gateway.translations import bodies
from tests.wire.cases import find_cases

from .gateway_app import PATHS, post
from .mutations import (
    Rng,
    cut_up,
    mutate_bytes,
    mutate_events,
    mutate_json,
    mutate_lines,
    mutate_yaml,
)

CORPUS = Path(__file__).parent / "corpus"
SEED_FILES = Path(__file__).parent / "seeds"
CANARY = "CANARY-of-no-shape-12345678"


class Broken(AssertionError):
    """Raised when an input breaks a guarantee of the package; ``data`` is the input."""

    def __init__(self, message: str, data: bytes) -> None:
        super().__init__(f"{message}\ninput: {data[:1500]!r}")
        self.data = data


# --- fuzzing requests: five wires, through the application -------------------------------------

APP = create_app({"fast": ScriptedProvider("Hello.")})
SEEDS: dict[str, list[bytes]] = {}


def request_seeds(wire: str) -> list[bytes]:
    """Return request bodies for the model that the gateway serves: those that our own codecs
    write, and those with fields that only some wires have.
    """
    if wire not in SEEDS:
        found = bodies(wire)
        for case in find_cases(wire):
            with contextlib.suppress(ProviderError):
                found.append(json.loads(case.codec().encode(case.request).http.body))
        model = {} if wire == "gemini" else {"model": "fast"}
        SEEDS[wire] = [json.dumps({**body, **model}).encode() for body in found]
    return SEEDS[wire]


class _Failures(logging.Handler):
    """Collects the tracebacks that the gateway logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(
            f"{record.getMessage()}: {record.exc_info[1]!r}"
            if record.exc_info
            else record.getMessage()
        )


FAILURES = _Failures()
logging.getLogger("dragoman").addHandler(FAILURES)


async def fuzz_request(rng: Rng) -> str:
    """Send one mutated request to a gateway; return the wire and the HTTP status."""
    wire = rng.choice(list(PATHS))
    seed = rng.choice(request_seeds(wire))
    body = (
        mutate_bytes(seed, rng, rng.choice([1, 2, 8]))
        if rng.random() < 0.15
        else mutate_json(seed, rng)
    )
    await send_request(wire, body, counting=wire == "anthropic" and rng.random() < 0.05)
    return wire


async def fuzz_passed_request(rng: Rng) -> str:
    """Send a mutated request through a gateway to an upstream; return the upstream's wire."""
    wire = rng.choice(list(PATHS))
    upstream = rng.choice(list(CODECS))
    await send_request(wire, mutate_json(rng.choice(request_seeds(wire)), rng), upstream=upstream)
    return upstream


class _Repeating(Transport):
    """A transport that answers every request with the same reply."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> contextlib.AbstractAsyncContextManager[HttpStream]:
        return FixtureTransport((200, {}, [self._reply])).send(
            request, credentials, timeouts, stream=stream
        )


@cache
def _open_upstream(wire: str) -> Any:
    """Return a gateway application whose upstream server uses the given wire."""
    reply = next(case.reply for case in CASES[wire] if case.options.status == 200)
    provider = connect(
        "m",
        wire=wire,
        base_url="http://127.0.0.1:9",
        api_key=CANARY,
        transport=_Repeating(reply or b""),
    )
    return create_app({"fast": provider})


async def send_request(
    wire: str, body: bytes, *, counting: bool = False, upstream: str | None = None
) -> None:
    """Send a body to the gateway and check the reply.

    With ``upstream``, the gateway forwards the request to a server of that wire.
    """
    FAILURES.seen.clear()
    path = PATHS[wire] + ("/count_tokens" if counting else "")
    try:
        answer = await post(_open_upstream(upstream) if upstream else APP, wire, body, path=path)
    except Exception as error:
        raise Broken(
            f"{wire}: {type(error).__name__} left the application: {error}", body
        ) from error
    if FAILURES.seen:
        raise Broken(f"{wire}: the gateway logged a failure: {FAILURES.seen}", body)
    if CANARY.encode() in answer.body:
        raise Broken(f"{wire}: the key of the server is in the reply", body)
    # Status 502 is allowed with an upstream, because its reply need not match the mutated request.
    if answer.status >= 500 and not (upstream and answer.status == 502):
        raise Broken(f"{wire}: status {answer.status}: {answer.body[:200]!r}", body)
    if b"Traceback" in answer.body or b'File "' in answer.body:
        raise Broken(f"{wire}: a traceback in the reply", body)
    if "application/json" in answer.headers.get("content-type", ""):
        json.loads(answer.body)


# --- fuzzing replies: five wires, through a provider -------------------------------------------

CASES = {wire: [case for case in find_cases(wire) if case.reply] for wire in CODECS}
OTHERS = [case.reply or b"" for cases in CASES.values() for case in cases]
STATUSES = [
    *[200] * 60,
    *[status.value for status in HTTPStatus if status > 200],
    *(299, 498, 499, 520, 522, 524, 529, 530, 599, 600, 999),
]
HEADERS: dict[str, list[str]] = {
    "content-type": ["application/json", "text/event-stream", "text/html", "",
                     "application/json; charset=utf-16", "\x00"],
    "retry-after": ["1", "-1", "soon", "1e9", "9" * 20, "Wed, 21 Oct 2015 07:28:00 GMT",
                    "Wed, 99 Oct 99999 07:28:00 GMT"],
    "retry-after-ms": ["1", "-5", "inf", "x" * 4000, "１２"],
    "x-ratelimit-reset": ["1700000000000", "-1", "x", "9999999999999", "-eyJaaaaaaaaaa" * 500],
    "date": ["Wed, 21 Oct 2015 07:28:00 GMT", "junk", "Thu, 31 Dec 9999 23:59:59 -2359"],
    "x-should-retry": ["true", "false", "maybe"],
    "x-request-id": ["é", "a" * 8000, CANARY],
}  # fmt: skip
ODD_BODIES = [
    b"", b"{}", b"[]", b"null", b"0", b'""', b"[DONE]", b"\x00" * 100, b"{" * 3000, b"[" * 60_000,
    b"data: [DONE]\n\n", b"data:\n\n", b"data: {\n\n", b"event: error\n\n",
    b'{"error":' * 3000,
    b'{"error":{"code":1' + b"0" * 5000 + b"}}",
    b'{"error":"\\ud800"}',
    b'{"detail":[{"msg":"x","loc":["\\ud800"]}]}',
    b'{"error":{"code":"' + b"-eyJaaaaaaaaaa" * 9999,
]  # fmt: skip


def make_reply(case: Case, rng: Rng) -> bytes:
    """Return a mutated copy of the reply of a conformance case."""
    data = case.reply or b""
    how = rng.random()
    if how < 0.25:
        return mutate_bytes(data, rng, rng.choice([1, 1, 2, 3, 8]))
    if how < 0.85:
        if b"data:" in data[:2000]:
            return mutate_events(data, OTHERS, rng)
        return mutate_lines(data, rng) if b"\n{" in data else mutate_json(data, rng)
    if how < 0.92:
        return rng.choice(OTHERS)
    return rng.choice(ODD_BODIES)


async def fuzz_reply(rng: Rng) -> str:
    """Answer a request with a mutated reply; return the class name of the caller's result or
    error.
    """
    case = rng.choice(CASES[rng.choice(list(CASES))])
    body = make_reply(case, rng)
    status = rng.choice(STATUSES)
    headers = {name: rng.choice(values) for name, values in HEADERS.items() if rng.random() < 0.35}
    pieces: list[Any] = list(cut_up(body, rng))
    if rng.random() < 0.05:
        pieces[rng.randrange(len(pieces) + 1) :] = [StreamInterruptedError("cut")]
    elif rng.random() < 0.05:
        pieces[rng.randrange(len(pieces) + 1) :] = [TimedOutError("late", which="idle")]
    return await read_reply(case, status, headers, pieces, stream=rng.random() < 0.6)


async def read_reply(
    case: Case, status: int, headers: dict[str, str], pieces: list[Any], *, stream: bool
) -> str:
    """Read a reply as a caller does and check the events, the result and the error."""
    data = b"".join([piece for piece in pieces if isinstance(piece, bytes)])
    again = (status, headers, [data])
    provider = HttpProvider(
        case.codec(),
        FixtureTransport((status, headers, pieces), again, again, again),
        name="n",
        model=case.options.model,
        api_key=CANARY,
        capabilities=Capabilities.of(case.options.capabilities),
    )
    events = []
    error = None
    place = f"{case.wire}/{case.name} status {status} {headers}"
    try:
        async for event in provider.events(msgspec.structs.replace(case.request, stream=stream)):
            events.append(event)
    except ProviderError as raised:
        error = raised
    except Exception as stray:
        raise Broken(
            f"{place}: {type(stray).__name__} is not of our tree: {stray}", data
        ) from stray
    try:
        _check_outcome(events, error, status)
    except Exception as wrong:
        raise Broken(f"{place}: {wrong!r}", data) from wrong
    return type(error).__name__ if error is not None else "ok"


def _check_outcome(events: list[Any], error: ProviderError | None, status: int) -> None:
    assert events or error is not None, "neither events nor an error"
    assert status < 300 or error is not None, "a failing status became a success"
    if events:
        check_events(events)
        assert isinstance(events[-1], MessageComplete), "no terminal event"
        response: Response = fold(events)
        for event in events:
            encode_event(event)
        msgspec.json.encode(response.raw)
        msgspec.json.encode(msgspec.to_builtins(response.message))
    if error is not None:
        text = (
            str(error)
            + repr(error)
            + str(error.headers)
            + str(error.provider_message)
            + str(error.provider_code)
        )
        assert CANARY not in text, "the key is in the error"
        assert len(text) < 40_000, "the error is too long"
        assert error.retry_after is None or 0 <= error.retry_after < 1e13


# --- fuzzing logs, policies and configuration --------------------------------------------------


def fuzz_log(rng: Rng, exported: bytes, folder: Path) -> str:
    """Read a mutated log export; raise ``Broken`` on any exception that is not a log error."""
    data = mutate_lines(exported, rng) if rng.random() < 0.8 else mutate_bytes(exported, rng, 3)
    path = folder / "log.jsonl"
    path.write_bytes(data)
    try:
        with open_log(path, readonly=True) as log:
            report = log.verify()
            for entry in log.sessions():
                _read_session(log, entry.session)
            return "sound" if report.ok else "broken"
    except LogError as error:
        return type(error).__name__
    except Exception as stray:
        raise Broken(f"log: {type(stray).__name__}: {stray}", data) from stray


def _read_session(log: Any, session: str) -> None:
    for read in (
        lambda: [step.title for step in read_steps(log, session)],
        lambda: count_totals(log, session),
    ):
        with contextlib.suppress(LogError):
            read()
    with contextlib.suppress(LogError, ValueError):
        ReplayProvider(log, session)


PROPOSAL = Proposal(
    tool_name="bash",
    input={"command": "pytest -x" * 200, "cwd": "src/a"},
    side_effect="execute",
    paths=("a/b/" * 300 + "x",),
)


def use_policy(path: Path) -> None:
    """Load a permission policy and apply it to some tool calls."""
    policy = Policy.load(path)
    policy.judge(PROPOSAL)
    policy.find_idle([("bash", "execute", False), ("read_file", "read", True)])
    withheld = policy.withheld(PROPOSAL)
    if withheld is not None:
        withheld("src/" * 300 + "x")


def use_configuration(path: Path) -> None:
    """Load a ``models.yaml`` and open every model that it names."""
    registry = Registry.load(path)
    for name in ("up:m", "fast", "own:n"):
        with contextlib.suppress(ProviderError):
            registry.provider(name)


def use_keys(path: Path) -> None:
    """Load a file of gateway keys and count usage against its limits."""
    ring = KeyRing.load(path)
    ledger = Ledger()
    ring.find("dg-unknown")
    for key in ring.keys:
        key.allows("up:m")
        with contextlib.suppress(ProviderError):
            ledger.settle(ledger.admit(key, 60), key, 10, Decimal("0.5"))
            ledger.find_standing(key)


# Each file in ``seeds`` contains every key that the program reads, so that fuzzing can change all
# of them.
FILES: dict[str, tuple[bytes, Callable[[Path], None]]] = {
    kind: ((SEED_FILES / f"{kind}.yaml").read_bytes(), use)
    for kind, use in (
        ("policy", use_policy),
        ("configuration", use_configuration),
        ("keys", use_keys),
    )
}


def fuzz_file(kind: str, rng: Rng, folder: Path) -> str:
    """Load a mutated file of a kind in ``FILES``; return "loaded" or the class name of the error."""
    text = FILES[kind][0]
    data = (
        mutate_bytes(text, rng, rng.choice([1, 1, 2, 3]))
        if rng.random() < 0.3
        else mutate_yaml(text, rng)
    )
    return use_file(kind, data, folder)


def use_file(kind: str, data: bytes, folder: Path) -> str:
    """Load a file of a kind in ``FILES``; raise ``Broken`` on any error except ``ConfigError``."""
    path = folder / f"{kind}.yaml"
    path.write_bytes(data)
    try:
        FILES[kind][1](path)
    except ConfigError:
        return "ConfigError"
    except Exception as stray:
        raise Broken(f"{kind}: {type(stray).__name__}: {stray}", data) from stray
    return "loaded"


Fuzzer = Callable[[Rng], Awaitable[str]]
