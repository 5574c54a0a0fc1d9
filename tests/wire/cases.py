"""Conformance cases and recorded exchanges, for the tests of the wires.

``python tests/wire/cases.py --write WIRE [CASE]`` rewrites ``events.jsonl`` for review.
"""

import base64
import gzip
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from dragoman.capabilities import Capabilities
from dragoman.conformance.cases import (
    BASE_URL,
    CASES,
    COMMENT,
    MODEL,
    REPLIES,
    DecodedReply,
    ask_ready,
    bytewise,
    check_case,
    cut_at_random,
    decode,
    lines_of,
    open_decoder,
    plain_ids,
    plain_request,
    with_between,
    with_crlf,
)  # fmt: skip
from dragoman.conformance.cases import CodecCase as Case
from dragoman.conformance.cases import find_cases as find_in_folder
from dragoman.messages import Request
from dragoman.wire import CODECS, Codec

__all__ = [
    "BASE_URL", "CASES", "COMMENT", "MODEL", "RECORDED", "REPLIES", "SERVERS", "Case",
    "DecodedReply", "Record",
    "ask_ready", "bytewise", "check_case", "cut_at_random", "decode", "find_cases",
    "find_exchanges", "find_records", "find_served",
    "find_streams", "lines_of", "open_decoder", "plain_ids", "plain_request", "with_between",
    "with_crlf", "write",
]  # fmt: skip

ROOT = Path(__file__).parents[2]


@cache
def _find(wire: str, *parts: str) -> list[Case]:
    names = {case.name for case in find_in_folder(wire, *parts)} if parts else set()
    return [case for case in _find(wire) if case.name in names] if parts else find_in_folder(wire)


def find_cases(wire: str, *parts: str) -> list[Case]:
    """Return the cases of a wire, which keep what they have read, as all tests read the same."""
    return [*_find(wire, *parts)]


# --- recorded exchanges -------------------------------------------------------------------------

# The folder with the recordings. Only `make test-recordings` sets the variable, so no other run
# depends on them; tests that read recordings have the marker ``recordings``.
_FOLDER = Path(os.environ.get("DRAGOMAN_RECORDINGS", os.devnull)).resolve()
RECORDED = _FOLDER / "recorded.jsonl.gz"
SERVERS = _FOLDER / "servers.jsonl.gz"

# The wire of each server whose exchanges are recorded.
WIRES = {
    "openai-chat": "openai", "anthropic-messages": "anthropic", "gemini": "gemini",
    "openai-responses": "responses", "ollama": "ollama", "cohere": "cohere",
    "bedrock-converse": "bedrock",
}  # fmt: skip


@dataclass(frozen=True)
class Record:
    """A recorded exchange: the request and the reply."""

    id: str
    wire: str
    vendor: str
    stream: bool
    status: int
    headers: dict[str, str]
    body: bytes
    asked: dict[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    op: str = "create"
    is_fixture: bool = False  # written by hand, for the tests of another project

    def __str__(self) -> str:
        return self.id

    @property
    def is_events(self) -> bool:
        """Return whether the body is an event stream."""
        return self.body.lstrip()[:1] not in (b"{", b"[", b"<", b"")

    @property
    def is_streamed(self) -> bool:
        """Return whether the body is incremental: events, JSON Lines, or a growing array."""
        first = self.body.lstrip()[:1]
        grows = first == {"ollama": b"{", "gemini": b"["}.get(self.wire)
        return self.stream and self.status < 300 and (grows or self.is_events)

    def request(self) -> Request:
        return plain_request(stream=self.stream)

    def codec(self, *, keep_raw: bool = True) -> Codec:
        return CODECS[self.wire].connect(MODEL, BASE_URL, None, Capabilities(), keep_raw=keep_raw)


@lru_cache(maxsize=1)
def find_records() -> dict[str, Record]:
    """Return all recordings of the registered wires by id; the result is empty if the recordings
    are missing.
    """
    if not RECORDED.exists():
        return {}
    found = {}
    with gzip.open(RECORDED, "rb") as lines:
        for line in lines:
            data = msgspec.json.decode(line)
            wire = WIRES.get(data["provider"])
            if wire not in CODECS or (data["response_encoding"] != "utf-8" and wire != "bedrock"):
                continue
            text = (data["response_body"] or "").encode()
            found[data["id"]] = Record(
                data["id"],
                wire,
                data["vendor"],
                data["stream"],
                data["status"],
                data["response_headers"] or {},
                text if data["response_encoding"] == "utf-8" else base64.b64decode(text),
                data["request_json"] or {},
                tuple(data.get("chunk_lens") or ()),
                data["op"] if "/api/generate" not in data["url"] else "generate",
                data["provenance"] != "recorded",
            )
    return found


@lru_cache(maxsize=1)
def find_exchanges() -> list[dict[str, Any]]:
    """Return all exchanges that were recorded with a real server; the result is empty if the
    recordings are missing.
    """
    if not SERVERS.exists():
        return []
    with gzip.open(SERVERS, "rb") as lines:
        return [msgspec.json.decode(line) for line in lines]


# The URL paths of recorded requests to real servers, and the wire that is used at each.
PATHS = {
    "/v1/chat/completions": "openai",
    "/v1/messages": "anthropic",
    "/v1/responses": "responses",
    "streamGenerateContent": "gemini",
    "/api/chat": "ollama",
}


@lru_cache(maxsize=1)
def find_streams() -> list[Record]:
    """Return every recorded streamed reply, of vendors and of local servers."""
    return [record for record in [*find_records().values(), *find_served()] if record.is_streamed]


def find_served() -> Iterator[Record]:
    """Return every recorded exchange with a local server on one of the wires."""
    for exchange in find_exchanges():
        path = exchange["path"].partition("?")[0]
        status = exchange["status_line"].split()[1:2]
        wire = next((wire for end, wire in PATHS.items() if path.endswith(end)), None)
        if wire not in CODECS or not status or exchange["method"] != "POST":
            continue
        body = (exchange["response_body"] or "").encode()
        # An Ollama server streams unless the request turns streaming off, and the reply does not
        # show whether it was streamed.
        stream = wire != "ollama" or not re.search(
            r'"stream": ?false', exchange["request_body"] or ""
        )
        headers = dict(exchange["response_headers"])
        server = exchange["server"]
        yield Record(exchange["id"], wire, server, stream, int(status[0]), headers, body)


# --- rewriting the expected events of cases -----------------------------------------------------


def write(wire: str, names: list[str], say: Callable[[str], object] = print) -> None:
    """Rewrite ``events.jsonl`` for the cases that have a reply with a success status."""
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
