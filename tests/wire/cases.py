"""Cases as data: files named ``CASE.PART`` under ``conformance/cases/WIRE``, found, run and compared.

Every part is optional:

- ``request.json``: our ``Request``; ``default.request.json`` serves the cases that have none of their own
- ``wire.json``: the body that must be sent, equal as JSON and with its top-level keys in this order
- ``reply.sse``, ``reply.json``, ``reply.ndjson``, ``reply.html``: the bytes that come back
- ``events.jsonl``: the events they must become, one a line, ids made plain; then, if the call must
  raise, a line ``{"error": CLASS, "category": WORD}``
- ``folded.json``: what the reply says in the end, written by hand: ``{text, thinking, calls, finish, raw,
  usage, parsed, error}``, each left out when there is none
- ``error.json``: the error of a reply with a failing status, or, without a reply, of a request that
  must be refused before anything is sent
- ``ready.json``: a list of readiness checks with what each server answers
- ``options.json``: ``{quirks, capabilities, vendor, model, stream, status, headers, now}``

``python tests/wire/cases.py --write WIRE [CASE]`` writes ``events.jsonl`` anew, to be reviewed.
"""

from __future__ import annotations

import gzip
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.capabilities import Capabilities
from dragoman.errors import ProviderError
from dragoman.events import Assembler, AssemblerError, Event, Response, check_events, encode_event, fold
from dragoman.messages import Issuer, Request, RuntimeConfig, User
from dragoman.validate import Expectation, check_request
from dragoman.wire import CODECS, Codec, Decoder, HttpReply

ROOT = Path(__file__).parents[2]
CASES = ROOT / "src/dragoman/conformance/cases"
SHARED = ROOT / "../shared"

BASE_URL = "http://127.0.0.1:8080/v1"
MODEL = "test-model"
REPLIES = ("reply.sse", "reply.json", "reply.ndjson", "reply.html")

# What each wire may send between events without meaning anything.
PINGS = {
    "anthropic": b'event: ping\ndata: {"type": "ping"}\n\n',
    "responses": b'event: keepalive\ndata: {"type": "keepalive", "sequence_number": 3}\n\n',
}
COMMENT = b": keep-alive\n\n"

CodecType = type[Codec]


@dataclass(frozen=True)
class Options:
    quirks: dict[str, Any] | None = None
    capabilities: dict[str, Any] = field(default_factory=dict)
    vendor: str | None = None
    model: str = MODEL
    stream: bool | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    now: float | None = None


@dataclass(frozen=True)
class Heard:
    """What a decoder made of a reply."""

    events: list[Event]
    error: ProviderError | None

    @property
    def response(self) -> Response | None:
        return fold(self.events) if self.events else None

    @property
    def facts(self) -> tuple[Any, ...]:
        """What must not depend on how the bytes came: the message, its end, its usage and the error."""
        reply = self.response
        error = None if self.error is None else (type(self.error), self.error.message)
        if reply is None:
            return (None, error)
        content = [plain_ids(msgspec.to_builtins(block)) for block in reply.message.content]
        return (content, reply.finish_reason, reply.finish_raw, reply.usage, reply.parsed, error)


@dataclass(frozen=True)
class Case:
    wire: str
    name: str

    def __str__(self) -> str:
        return self.name

    def path(self, part: str) -> Path:
        return CASES / self.wire / f"{self.name}.{part}"

    def part(self, part: str) -> bytes | None:
        path = self.path(part)
        return path.read_bytes() if path.exists() else None

    def json(self, part: str) -> Any:
        data = self.part(part)
        return None if data is None else msgspec.json.decode(data)

    @cached_property
    def options(self) -> Options:
        return msgspec.convert(self.json("options.json") or {}, Options, strict=True)

    @cached_property
    def reply(self) -> bytes | None:
        return next((data for part in REPLIES if (data := self.part(part)) is not None), None)

    @property
    def is_stream(self) -> bool:
        """Is the reply an event stream?"""
        return self.path("reply.sse").exists()

    @cached_property
    def request(self) -> Request:
        data = self.part("request.json") or Case(self.wire, "default").part("request.json")
        if data is None:
            stream = self.is_stream if self.options.stream is None else self.options.stream
            return plain_request(stream=stream, model=self.options.model)
        request = read_request(data, self.options.model)
        if self.part("request.json") is None or self.options.stream is not None:
            stream = self.is_stream if self.options.stream is None else self.options.stream
            request = msgspec.structs.replace(request, stream=stream)
        return request

    def codec(self, kind: CodecType | None = None) -> Codec:
        options = self.options
        known = Capabilities.of(options.capabilities)
        kind = kind or CODECS[self.wire]
        return kind.connect(options.model, BASE_URL, options.quirks, known, vendor=options.vendor)


def plain_request(*, stream: bool, model: str = MODEL) -> Request:
    """A request that every wire takes."""
    return Request((User("Hello"),), config=RuntimeConfig(max_tokens=1024), model=model, request_id="R", stream=stream)


def find_cases(wire: str, *parts: str) -> list[Case]:
    """The cases of a wire; with ``parts``, those that have one of them."""
    names = sorted({path.name.partition(".")[0] for path in (CASES / wire).glob("*.*")} - {"default"})
    cases = [Case(wire, name) for name in names]
    return [case for case in cases if not parts or any(case.path(part).exists() for part in parts)]


def read_request(data: bytes, model: str = MODEL) -> Request:
    """A request from a case; a misspelt field is an error, not a default."""
    record = msgspec.json.decode(data)
    unknown = set(record) - set(Request.__struct_fields__)
    assert not unknown, f"a request has no {unknown}"
    return msgspec.json.decode(msgspec.json.encode({"model": model, "request_id": "R", **record}), type=Request)


# --- running --------------------------------------------------------------------------------------


def decode(codec: Codec, request: Request, pieces: Iterable[bytes], *, judged: bool = True) -> Heard:
    """Feed the pieces of a reply to a decoder, as a provider does; ``judged`` by what the request offers."""
    decoder = open_decoder(codec, request, judged=judged)
    events: list[Event] = []
    for piece in pieces:
        events += decoder.feed(piece)
        if decoder.done:
            break
    events += decoder.end()
    check_events(events)
    if decoder.error is not None:
        assert not isinstance(decoder.error.__cause__, AssemblerError), "the wire called the assembler's verbs wrongly"
    return Heard(events, decoder.error)


def open_decoder(codec: Codec, request: Request, *, judged: bool = True) -> Decoder:
    encoded = codec.encode(request)
    out = Assembler(
        request_id=request.request_id,
        model=request.model,
        provider="test",
        issuer=Issuer(codec.wire, codec.issuer_vendor, request.model),
        expected=Expectation(request) if judged else None,
        warnings=encoded.warnings,
        structured_path=encoded.structured_path,
    )
    return codec.decoder(request, out)


def cut_at_random(data: bytes, seed: object, longest: int = 40) -> Iterator[bytes]:
    chance = random.Random(str(seed))
    at = 0
    while at < len(data):
        size = chance.randint(1, longest)
        yield data[at : at + size]
        at += size


def bytewise(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def with_crlf(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def with_between(data: bytes, insert: bytes) -> bytes:
    """The same stream with something that means nothing after each of its events."""
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    return mark + insert + re.sub(rb"\n\r?\n", lambda match: match[0] + insert, data.removeprefix(mark))


# --- what others recorded -------------------------------------------------------------------------

RECORDED = SHARED / "corpus/recorded.jsonl.gz"
SERVERS = SHARED / "corpus/servers.jsonl.gz"

# Whose recordings speak which wire.
WIRES = {
    "openai-chat": "openai",
    "anthropic-messages": "anthropic",
    "gemini": "gemini",
    "openai-responses": "responses",
    "ollama": "ollama",
}


@dataclass(frozen=True)
class Record:
    """A recorded exchange: what came back, and what had been asked for."""

    id: str
    wire: str
    vendor: str
    stream: bool
    status: int
    headers: dict[str, str]
    body: bytes
    asked: dict[str, Any]
    lengths: tuple[int, ...]

    def __str__(self) -> str:
        return self.id

    @property
    def is_events(self) -> bool:
        """Is the body an event stream?"""
        return self.body.lstrip()[:1] not in (b"{", b"[", b"<", b"")

    def request(self) -> Request:
        return plain_request(stream=self.stream)

    def codec(self) -> Codec:
        return CODECS[self.wire].connect(MODEL, BASE_URL, None, Capabilities())


@lru_cache(maxsize=1)
def find_records() -> dict[str, Record]:
    """Every recording of a wire that is registered, by its id; none where there are no recordings."""
    if not RECORDED.exists():
        return {}
    found = {}
    with gzip.open(RECORDED, "rb") as lines:
        for line in lines:
            data = msgspec.json.decode(line)
            wire = WIRES.get(data["provider"])
            if wire not in CODECS or data["response_encoding"] != "utf-8":
                continue
            found[data["id"]] = Record(
                data["id"],
                wire,
                data["vendor"],
                data["stream"],
                data["status"],
                data["response_headers"] or {},
                (data["response_body"] or "").encode(),
                data["request_json"] or {},
                tuple(data.get("chunk_lens") or ()),
            )
    return found


@lru_cache(maxsize=1)
def find_exchanges() -> list[dict[str, Any]]:
    """Every exchange recorded with a real server; none where there are no recordings."""
    if not SERVERS.exists():
        return []
    with gzip.open(SERVERS, "rb") as lines:
        return [msgspec.json.decode(line) for line in lines]


# --- comparing ------------------------------------------------------------------------------------

_MINTED = re.compile(r"call_[0-9A-HJKMNP-TV-Z]{26}")
_PLAIN = {"message_id": "M", "request_id": "R"}


def plain_ids(value: Any, names: dict[str, str] | None = None, *, offsets: bool = True) -> Any:
    """A JSON value with the ids that differ from run to run made plain, and byte offsets left out on request."""
    names = {} if names is None else names
    if isinstance(value, list | tuple):
        return [plain_ids(item, names, offsets=offsets) for item in value]
    if isinstance(value, str) and _MINTED.fullmatch(value):
        return names.setdefault(value, f"call_{len(names) + 1}")
    if not isinstance(value, dict):
        return value
    made = {}
    for key, item in value.items():
        if key in _PLAIN and isinstance(item, str):
            item = _PLAIN[key]
        elif key == "id" and value.get("status") == "proposed":
            item = "I"
        elif key in ("first_offset", "last_offset") and not offsets:
            item = 0
        made[key] = plain_ids(item, names, offsets=offsets)
    return made


def lines_of(heard: Heard, *, offsets: bool = True) -> list[Any]:
    """What ``events.jsonl`` holds for this."""
    names: dict[str, str] = {}
    lines = [plain_ids(msgspec.json.decode(encode_event(event)), names, offsets=offsets) for event in heard.events]
    if heard.error is not None:
        lines.append({"error": type(heard.error).__name__, "category": heard.error.category})
    return lines


def fold_of(heard: Heard) -> dict[str, Any]:
    """What ``folded.json`` holds for this."""
    reply, error = heard.response, heard.error
    facts: dict[str, Any] = {"error": None if error is None else type(error).__name__}
    if reply is not None:
        calls = [[call.id, call.name, call.arguments] for call in reply.tool_calls]
        facts |= {
            "text": reply.text,
            "thinking": reply.message.thinking,
            "calls": plain_ids(calls),
            "finish": reply.finish_reason,
            "raw": reply.finish_raw,
            "usage": msgspec.to_builtins(reply.usage),
            "parsed": reply.parsed,
        }
    return {name: value for name, value in facts.items() if value not in (None, "", [], {})}


def check_case(case: Case, kind: CodecType | None = None) -> None:
    """Hold a case against a wire's codec; every part it has."""
    codec = case.codec(kind)
    checked = 0
    if (rows := case.json("ready.json")) is not None:
        for row in rows:
            check_ready(case, row, kind)
        checked += 1
    if case.part("wire.json") is not None:
        check_wire(case, codec)
        checked += 1
    if case.part("error.json") is not None:
        check_error(case, codec)
        checked += 1
    elif case.reply is not None:
        check_reply(case, codec)
        checked += 1
    assert checked, f"{case}: nothing to check; run cases.py --write {case.wire} {case.name}"


def check_wire(case: Case, codec: Codec) -> None:
    check_request(case.request)
    text = case.part("wire.json")
    assert text is not None
    expected = msgspec.json.decode(text)
    encoded = codec.encode(case.request)
    sent = msgspec.json.decode(encoded.http.body)
    assert sent == expected
    assert list(sent) == list(expected), "the order of the keys"
    assert codec.encode(case.request).http.body == encoded.http.body


def check_reply(case: Case, codec: Codec) -> None:
    reply, text = case.reply, case.part("events.jsonl")
    assert reply is not None
    assert text is not None, f"{case}: no events.jsonl; run cases.py --write {case.wire} {case.name}"
    expected = [msgspec.json.decode(line) for line in text.splitlines()]
    for way, pieces in ways(case).items():
        moved = way in ("crlf", "comments", "pings")  # then byte offsets differ, and nothing else does
        heard = decode(codec, case.request, pieces)
        if (folded := case.json("folded.json")) is not None:
            assert fold_of(heard) == folded, f"{case}: {way}"
        wanted = plain_ids(expected, offsets=not moved)
        assert lines_of(heard, offsets=not moved) == wanted, f"{case}: {way}"


def ways(case: Case) -> dict[str, Iterable[bytes]]:
    """The same reply, as it may arrive."""
    data = case.reply or b""
    found: dict[str, Iterable[bytes]] = {
        "whole": [data],
        "bytewise": bytewise(data),
        "cuts": cut_at_random(data, case.name),
        "wide cuts": cut_at_random(data, case.name, 400),
    }
    if case.is_stream:
        found["crlf"] = cut_at_random(with_crlf(data), case.name)
        found["comments"] = cut_at_random(with_between(data, COMMENT), case.name)
        found["pings"] = [with_between(data, PINGS.get(case.wire, COMMENT))]
    return found


def check_error(case: Case, codec: Codec) -> None:
    expected = case.json("error.json")
    error = find_error(case, codec)
    assert describe(error, expected) == expected
    assert expected["category"] == error.category
    if (says := expected.get("says")) is not None:
        assert says in error.message, error.message


def describe(error: ProviderError, expected: dict[str, Any]) -> dict[str, Any]:
    """An error, as far as ``expected`` asks for it; ``says`` is compared apart."""
    facts = {
        "error": type(error).__name__,
        "category": error.category,
        "retry_after": error.retry_after,
        "provider_code": error.provider_code,
        "provider_message": error.provider_message,
        "says": expected.get("says"),
    }
    return {name: facts[name] for name in expected}


def find_error(case: Case, codec: Codec) -> ProviderError:
    options = case.options
    if case.reply is not None:
        return codec.error(options.status, options.headers, case.reply, options.now)
    try:
        check_request(case.request)
        codec.encode(case.request)
    except ProviderError as error:
        return error
    raise AssertionError(f"{case}: the request was not refused")


def check_ready(case: Case, row: dict[str, Any], kind: CodecType | None = None) -> None:
    """One readiness check: ``{name, model, quirks, replies: {PATH: {status, body}}, asked, error, category}``."""
    kind = kind or CODECS[case.wire]
    quirks = row.get("quirks", case.options.quirks)
    codec = kind.connect(row.get("model", case.options.model), BASE_URL, quirks, Capabilities())
    asked, error = ask_ready(codec, row["replies"])
    label = f"{case}: {row['name']}"
    assert (None if error is None else type(error).__name__) == row["error"], label
    assert (None if error is None else error.category) == row.get("category"), label
    if "asked" in row:
        assert asked == row["asked"], label


def ask_ready(codec: Codec, replies: dict[str, dict[str, Any]]) -> tuple[list[str], ProviderError | None]:
    """Drive ``ready()`` by hand; a path without a reply of its own answers 404."""
    asked: list[str] = []
    questions = codec.ready()
    try:
        question = next(questions)
        while True:
            assert question.method == "GET"
            assert not question.body
            parts = urlsplit(question.url)
            asked.append(parts.path)
            answer = replies.get(parts.path, {"status": 404, "body": ""})
            body = answer.get("body", "")
            data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
            question = questions.send(HttpReply(answer.get("status", 200), answer.get("headers", {}), data))
    except StopIteration:
        return asked, None
    except ProviderError as error:
        return asked, error


# --- writing --------------------------------------------------------------------------------------


def write(wire: str, names: list[str], say: Callable[[str], object] = print) -> None:
    """Write ``events.jsonl`` anew for the cases that have a reply with a good status."""
    for case in find_cases(wire, *REPLIES):
        if (names and case.name not in names) or case.options.status >= 300:
            continue
        heard = decode(case.codec(), case.request, [case.reply or b""])
        lines = b"".join([msgspec.json.encode(line) + b"\n" for line in lines_of(heard)])
        if case.part("events.jsonl") != lines:
            case.path("events.jsonl").write_bytes(lines)
            say(f"written: {case.path('events.jsonl').relative_to(ROOT)}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--write", wire, *names]:
            write(wire, names)
        case _:
            sys.exit(__doc__)
