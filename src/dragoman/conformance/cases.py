"""Run conformance cases that are stored as files named ``CASE.PART``, in one folder per wire.

A case consists of these parts, all of them optional:

- ``request.json``: the ``Request``; a case without this part uses ``default.request.json``
- ``wire.json``: the body that must be sent, equal as JSON (including JSON inside its strings) and
  with its top-level keys in this order
- ``reply.sse``, ``reply.json``, ``reply.ndjson``, ``reply.html``: the bytes of the reply;
  ``reply.frames`` has the payloads of a binary event stream, one per line, by the name of their
  event
- ``events.jsonl``: the events that the reply must become, one per line, with normalised ids; then,
  if the call must raise, a line ``{"error": CLASS, "category": CATEGORY}``; in cases of other
  folders, fields that an event does not state are not compared
- ``folded.json``: the final reply, written by hand: ``{text, thinking, calls, finish, raw, usage,
  parsed, stop_details, error}``, each omitted if there is none
- ``error.json``: the error of a reply with an error status, or, without a reply, of a request that
  must be rejected before anything is sent
- ``ready.json``: a list of readiness checks with each server's responses
- ``options.json``: ``{quirks, capabilities, vendor, model, stream, status, headers, now}``
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources.abc import Traversable
from json import JSONDecoder
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..capabilities import Capabilities
from ..errors import ProviderError
from ..events import Assembler, AssemblerError, Event, Response, check_events, encode_event, fold
from ..messages import Issuer, Request, RuntimeConfig, User
from ..validate import Expectation, check_request
from ..wire import CODECS, Codec, Decoder, HttpReply
from ..wire.eventstream import encode_message
from .folders import list_files, open_folder
from .violation import Violation, demand, demand_same

CASES = Path(__file__).parent / "cases"

BASE_URL = "http://127.0.0.1:8080/v1"
MODEL = "test-model"
REPLIES = ("reply.sse", "reply.json", "reply.ndjson", "reply.html", "reply.frames")

COMMENT = b": keep-alive\n\n"
_MOST_QUESTIONS = 20  # a readiness check that sends more requests never ends

CodecType = type[Codec]


@dataclass(frozen=True)
class CaseOptions:
    """The settings that a case is run with."""

    quirks: dict[str, Any] | None = None
    capabilities: dict[str, Any] = field(default_factory=dict)
    vendor: str | None = None
    model: str = MODEL
    stream: bool | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    now: float | None = None


@dataclass(frozen=True)
class DecodedReply:
    """The result of decoding a reply."""

    events: list[Event]
    error: ProviderError | None

    @property
    def response(self) -> Response | None:
        """The complete reply, or ``None`` if there were no events."""
        return fold(self.events) if self.events else None

    @property
    def facts(self) -> tuple[Any, ...]:
        """The message, finish reason, usage and error, which must not depend on chunking."""
        reply = self.response
        error = None if self.error is None else (type(self.error), self.error.message)
        if reply is None:
            return (None, error)
        content = [plain_ids(msgspec.to_builtins(block)) for block in reply.message.content]
        return (content, reply.finish_reason, reply.finish_raw, reply.usage, reply.parsed, error)


@dataclass(frozen=True)
class CodecCase:
    """One case of a wire. ``run(MyCodec)`` tests your own codec, ``run()`` Dragoman's."""

    wire: str
    name: str
    folder: Path = CASES
    kind: CodecType | None = None

    def __str__(self) -> str:
        return self.name

    def run(self, codec: CodecType | None = None) -> None:
        """Test a codec with every part of the case; raise ``Violation`` if a result differs."""
        check_case(self, codec)

    def path(self, part: str) -> Traversable:
        """Return the path of a part of the case, whether or not it exists."""
        return open_folder(self.folder / self.wire) / f"{self.name}.{part}"

    def part(self, part: str) -> bytes | None:
        """Return the bytes of a part, or ``None`` if the case does not have it."""
        path = self.path(part)
        return path.read_bytes() if path.is_file() else None

    def json(self, part: str) -> Any:
        """Return a part parsed as JSON, or ``None`` if the case does not have it."""
        data = self.part(part)
        return None if data is None else msgspec.json.decode(data)

    @cached_property
    def options(self) -> CaseOptions:
        """The settings that the case is run with."""
        return msgspec.convert(self.json("options.json") or {}, CaseOptions, strict=True)

    @cached_property
    def reply(self) -> bytes | None:
        """The bytes of the reply, or ``None`` if the case has no reply."""
        if (lines := self.part("reply.frames")) is not None:
            return write_frames(lines)
        return next((data for part in REPLIES if (data := self.part(part)) is not None), None)

    @property
    def is_stream(self) -> bool:
        """Whether the reply is an event stream."""
        return self.path("reply.sse").is_file()

    @cached_property
    def request(self) -> Request:
        """The request of the case."""
        own = self.part("request.json")
        options = self.options
        data = own or CodecCase(self.wire, "default", self.folder).part("request.json")
        stream = self.is_stream if options.stream is None else options.stream
        if data is None:
            return plain_request(stream=stream, model=options.model)
        request = read_request(data, options.model)
        if own is not None and options.stream is None:
            return request
        return msgspec.structs.replace(request, stream=stream)

    def codec(self, kind: CodecType | None = None) -> Codec:
        """Return the codec, configured as the case requires."""
        options = self.options
        known = Capabilities.of(options.capabilities)
        kind = kind or self.kind or CODECS[self.wire]
        return kind.connect(options.model, BASE_URL, options.quirks, known, vendor=options.vendor)


def write_frames(lines: bytes) -> bytes:
    """Encode lines of JSON, ``{NAME: PAYLOAD}``, as the bytes of a binary event stream.

    If the name ends with ``Exception``, the line becomes an exception message.
    """
    return b"".join(
        [
            _write_frame(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
            for line in lines.splitlines()
        ]
    )


def _write_frame(record: dict[str, msgspec.Raw]) -> bytes:
    [(name, payload)] = record.items()
    kind = "exception" if name.endswith("Exception") else "event"
    headers = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
    return encode_message(headers, bytes(payload))


def plain_request(*, stream: bool, model: str = MODEL) -> Request:
    """Return a request that every wire accepts."""
    return Request(
        (User("Hello"),),
        config=RuntimeConfig(max_tokens=1024),
        model=model,
        request_id="R",
        stream=stream,
    )


def find_cases(
    wire: str, *parts: str, folder: Path = CASES, kind: CodecType | None = None
) -> list[CodecCase]:
    """Return the cases of a wire; with ``parts``, only those that have one of these parts."""
    found: dict[str, set[str]] = {}
    for path in list_files(folder / wire):
        name, _, part = path.name.partition(".")
        found.setdefault(name, set()).add(part)
    found.pop("default", None)
    return [
        CodecCase(wire, name, folder, kind)
        for name in sorted(found)
        if not parts or found[name].intersection(parts)
    ]


def read_request(data: bytes, model: str = MODEL) -> Request:
    """Read the request of a case; a misspelled field is an error."""
    record = msgspec.json.decode(data)
    unknown = set(record) - set(Request.__struct_fields__)
    demand(not unknown, f"a request has no {', '.join(sorted(unknown))}")
    return msgspec.json.decode(
        msgspec.json.encode({"model": model, "request_id": "R", **record}), type=Request
    )


# --- running a case ----------------------------------------------------------------------------


def decode(
    codec: Codec, request: Request, pieces: Iterable[bytes], *, judged: bool = True
) -> DecodedReply:
    """Feed the pieces of a reply to a decoder and return the result.

    With ``judged``, check tool calls against the offered tools, as a provider does.
    """
    decoder = open_decoder(codec, request, judged=judged)
    events: list[Event] = []
    for piece in pieces:
        events += decoder.feed(piece)
        if decoder.done:
            break
    events += decoder.end()
    check_events(events)
    if decoder.error is not None:
        misused = isinstance(decoder.error.__cause__, AssemblerError)
        demand(not misused, "the decoder called the assembler's methods in an illegal order")
    return DecodedReply(events, decoder.error)


def open_decoder(codec: Codec, request: Request, *, judged: bool = True) -> Decoder:
    """Return a decoder for the reply to a request, set up as a provider would do it."""
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
    """Yield the bytes in pieces of random lengths."""
    chance = random.Random(str(seed))  # noqa: S311 - must be reproducible, not secret
    at = 0
    while at < len(data):
        size = chance.randint(1, longest)
        yield data[at : at + size]
        at += size


def bytewise(data: bytes) -> Iterator[bytes]:
    """Yield the bytes one at a time."""
    return (data[at : at + 1] for at in range(len(data)))


def with_crlf(data: bytes) -> bytes:
    """Return the same stream with CRLF line ends."""
    return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def with_between(data: bytes, insert: bytes) -> bytes:
    """Return the same stream with ``insert``, such as a keep-alive, after each of its events."""
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    return (
        mark
        + insert
        + re.sub(rb"\n\r?\n", lambda match: match[0] + insert, data.removeprefix(mark))
    )


# --- comparing results -------------------------------------------------------------------------

_MINTED = re.compile(r"call_[0-9A-HJKMNP-TV-Z]{26}")
_PLAIN = {"message_id": "M", "request_id": "R"}


def plain_ids(value: Any, names: dict[str, str] | None = None, *, offsets: bool = True) -> Any:
    """Replace ids that differ from run to run with fixed ids, in a JSON value.

    Without ``offsets``, also set byte offsets to 0.
    """
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


def lines_of(decoded: DecodedReply, *, offsets: bool = True) -> list[Any]:
    """Return the lines that ``events.jsonl`` must contain for a decoded reply."""
    names: dict[str, str] = {}
    lines = [
        plain_ids(_omit_empty(msgspec.json.decode(encode_event(event))), names, offsets=offsets)
        for event in decoded.events
    ]
    if decoded.error is not None:
        lines.append({"error": type(decoded.error).__name__, "category": decoded.error.category})
    return lines


def _omit_empty(event: dict[str, Any]) -> dict[str, Any]:
    """Leave out the fields of an event that most cases do not have, unless they have a value."""
    return {
        name: value
        for name, value in event.items()
        if value or name not in ("native", "stop_details")
    }


def fold_of(decoded: DecodedReply) -> dict[str, Any]:
    """Return the value that ``folded.json`` must contain for a decoded reply."""
    reply = decoded.response
    error = decoded.error
    facts: dict[str, Any] = {"error": None if error is None else type(error).__name__}
    if reply is not None:
        calls = [[call.id, call.name, call.arguments] for call in reply.tool_calls]
        facts |= {
            "text": reply.text,
            "thinking": reply.message.thinking,
            "calls": plain_ids(calls),
            "finish": reply.finish_reason,
            "raw": reply.finish_raw,
            "usage": msgspec.json.decode(msgspec.json.encode(reply.usage)),
            "parsed": reply.parsed,
            "stop_details": msgspec.to_builtins(reply.stop_details),
        }
    return {name: value for name, value in facts.items() if value not in (None, "", [], {})}


def check_case(case: CodecCase, kind: CodecType | None = None) -> None:
    """Test a wire's codec with every part of a case."""
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
    demand(
        checked > 0,
        f"{case}: nothing to check: it has neither wire.json, error.json, ready.json nor a reply",
    )


def check_wire(case: CodecCase, codec: Codec) -> None:
    """Check that the codec encodes the request to exactly the expected body, every time."""
    # Do not check the history against the offered tools: a codec must encode every history.
    check_request(case.request, history=False)
    text = case.part("wire.json")
    assert text is not None
    expected = msgspec.json.decode(text)
    encoded = codec.encode(case.request)
    sent = msgspec.json.decode(encoded.http.body)
    if _read_texts(sent) != _read_texts(expected):
        demand_same(sent, expected, f"{case}: the body that is sent")
    demand_same(list(sent), list(expected), f"{case}: the order of the keys")
    demand(
        codec.encode(case.request).http.body == encoded.http.body,
        f"{case}: two encodings of one request differ",
    )


_objects = JSONDecoder()


def _read_texts(value: Any) -> Any:
    """Parse JSON inside the strings of a body, so that the order of its keys does not matter."""
    if isinstance(value, dict):
        return {name: _read_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_read_texts(each) for each in value]
    if not isinstance(value, str) or "{" not in value:
        return value
    parts: list[Any] = []
    at = 0
    while (brace := value.find("{", at)) >= 0:
        try:
            found, end = _objects.raw_decode(value, brace)
        except ValueError:
            found = "{"
            end = brace + 1
        parts += [value[at:brace], found]
        at = end
    return [*parts, value[at:]]


def check_reply(case: CodecCase, codec: Codec) -> None:
    """Check that the codec decodes a reply to the expected events, however its bytes are split.

    The bundled cases state every field. Of other cases only the stated fields are compared, so
    that a field which a later release adds breaks none of them.
    """
    is_bundled = case.folder == CASES
    text = case.part("events.jsonl")
    if text is None:
        raise Violation(f"{case}: has a reply but no events.jsonl")
    expected = [msgspec.json.decode(line) for line in text.splitlines()]
    wanted = {offsets: plain_ids(expected, offsets=offsets) for offsets in (True, False)}
    folded = case.json("folded.json")
    for way, pieces in ways(case).items():
        # added bytes change only the byte offsets of the events
        offsets = way not in ("crlf", "comments", "pings")
        decoded = decode(codec, case.request, pieces)
        context = f"fed {way}"
        if folded is not None:
            reply = fold_of(decoded) if is_bundled else keep_stated(fold_of(decoded), folded)
            demand_same(reply, folded, f"{case}: the folded reply, {context}")
        lines = lines_of(decoded, offsets=offsets)
        if not is_bundled:
            lines = keep_stated(lines, wanted[offsets])
        demand_same(lines, wanted[offsets], f"{case}: the events, {context}")


# Fields with values of the model or the provider, of which a case states the complete value.
_WHOLE = frozenset({"arguments", "data", "final_input", "input", "native", "opaque", "parsed"})


def keep_stated(found: Any, stated: Any) -> Any:
    """Return a value without the fields of objects that ``stated`` does not have."""
    if isinstance(found, dict) and isinstance(stated, dict):
        return {
            name: value if name in _WHOLE else keep_stated(value, stated[name])
            for name, value in found.items()
            if name in stated
        }
    if isinstance(found, list) and isinstance(stated, list) and len(found) == len(stated):
        return [keep_stated(*pair) for pair in zip(found, stated, strict=True)]
    return found


def ways(case: CodecCase) -> dict[str, Iterable[bytes]]:
    """Return variants of a case's reply, by name.

    The variants are split at different points. Some have CRLF line ends, or keep-alives between
    the events.
    """
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
        found["pings"] = [
            with_between(data, getattr(case.kind or CODECS.get(case.wire), "keep_alive", COMMENT))
        ]
    return found


def check_error(case: CodecCase, codec: Codec) -> None:
    """Check that the codec turns the response into exactly the expected error."""
    expected = case.json("error.json")
    error = find_error(case, codec)
    demand_same(describe(error, expected), expected, f"{case}: the error")
    says = expected.get("says")
    demand(
        says is None or says in error.message,
        f"{case}: the error message lacks {says!r}: {error.message!r}",
    )


def describe(error: ProviderError, expected: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an error that ``expected`` names.

    ``says``, a part of the message, is compared separately.
    """
    named = {"error": type(error).__name__, "says": expected.get("says")}
    return {name: named[name] if name in named else getattr(error, name) for name in expected}


def find_error(case: CodecCase, codec: Codec) -> ProviderError:
    """Return the error that a case's reply or invalid request causes."""
    options = case.options
    if case.reply is not None:
        return codec.error(options.status, options.headers, case.reply, options.now)
    try:
        check_request(case.request)
        codec.encode(case.request)
    except ProviderError as error:
        return error
    raise Violation(f"{case}: the request was not rejected")


def check_ready(case: CodecCase, row: dict[str, Any], kind: CodecType | None = None) -> None:
    """Run one readiness check of ``ready.json``.

    ``row`` has the form ``{name, model, quirks, replies: {PATH: {status, body}}, asked, error,
    category}``.
    """
    kind = kind or case.kind or CODECS[case.wire]
    quirks = row.get("quirks", case.options.quirks)
    codec = kind.connect(row.get("model", case.options.model), BASE_URL, quirks, Capabilities())
    asked, error = ask_ready(codec, row["replies"])
    label = f"{case}: {row['name']}"
    demand_same(
        None if error is None else type(error).__name__, row["error"], f"{label}: the error"
    )
    demand_same(
        None if error is None else error.category, row.get("category"), f"{label}: its category"
    )
    if "asked" in row:
        demand_same(asked, row["asked"], f"{label}: the requested paths")


def ask_ready(
    codec: Codec, replies: Mapping[str, dict[str, Any]]
) -> tuple[list[str], ProviderError | None]:
    """Run a codec's readiness check on canned replies; return the requested paths and the error.

    A path without a reply gets status 404.
    """

    def answer(path: str) -> HttpReply:
        found = replies.get(path, {"status": 404})
        body = found.get("body", "")
        data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
        return HttpReply(found.get("status", 200), found.get("headers", {}), data)

    return drive_ready(codec, answer)


def drive_ready(
    codec: Codec, answer: Callable[[str], HttpReply]
) -> tuple[list[str], ProviderError | None]:
    """Run a codec's readiness check; return the requested paths and the error.

    ``answer`` returns the reply to a request, by its path.
    """
    asked: list[str] = []
    questions = codec.ready()
    try:
        question = next(questions)
        while len(asked) < _MOST_QUESTIONS:
            # no server can answer an empty object, so it is not billed
            is_free = question.body == (b"" if question.method == "GET" else b"{}")
            demand(is_free, "ready() sends a request that may be billed")
            asked.append(urlsplit(question.url).path)
            question = questions.send(answer(asked[-1]))
    except StopIteration:
        return asked, None
    except ProviderError as error:
        return asked, error
    raise Violation("ready() never stops sending requests")
