"""Requests, replies and errors, listed in ``tests/tables`` with what each wire makes of them.

``python -m tests.wire.test_tables`` writes what the wires make of them now, for review.
"""

import json
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.capabilities import Capabilities
from dragoman.conformance.cases import read_request, write_frames
from dragoman.wire import CODECS, SERVER_CODECS, Codec
from tests.gateway.upstream import BODIES, PATHS
from tests.rows import TABLES, read_table

from .cases import BASE_URL, bytewise, decode, plain_ids

Record = dict[str, Any]
HELLO = {"role": "user", "content": "Hi"}


def connect(wire: str, options: Record) -> Codec:
    settings = {"model": "m", "base_url": BASE_URL, "quirks": None, **options}
    known = Capabilities.of(settings.pop("capabilities", {}))
    return CODECS[wire].connect(capabilities=known, **settings)


def show(value: Any, default: Any = None) -> Any:
    """Return an object as JSON, without what is empty or equals ``default``."""
    made, plain = [msgspec.json.decode(msgspec.json.encode(each)) for each in (value, default)]
    return {
        name: each
        for name, each in made.items()
        if each not in (None, [], {}, "") and each != (plain or {}).get(name)
    }


def show_request(request: d.Request) -> Record:
    made = show(request, d.Request([d.User("Hi")], model="m", request_id=request.request_id))
    return show({**made, "config": show(request.config, d.RuntimeConfig())})


def show_error(error: d.ProviderError) -> Record:
    named = {"error": type(error).__name__, "message": error.message}
    return show({**named, "code": error.provider_code})


def send(wire: str, options: Record, fields: Record) -> Record:
    """Encode a request; return the body, the notes on what was rewritten or, with ``!``, lost,
    and how structured output is requested.
    """
    data = json.dumps({"messages": [HELLO], **fields}).encode()
    request = read_request(data, "m")
    try:
        encoded = connect(wire, options).encode(request)
    except d.ProviderError as error:
        return show_error(error)
    assert request == read_request(data, "m"), "encoding must not change its input"
    losses = [(note.code, note.path) for note in encoded.notes if note.loss]
    assert [(warning.code, warning.path) for warning in encoded.warnings] == losses
    assert all(note.detail for note in encoded.notes)
    notes = [f"{n.outcome}{'!' * n.loss} {n.code} {n.path}" for n in encoded.notes]
    body = json.loads(encoded.http.body)
    return {"body": body, **show({"notes": notes, "structured": encoded.structured_path})}


def hear(wire: str, options: Record, fields: Record, reply: Any) -> Record:
    """Decode a reply: a JSON object, the payloads of a binary event stream, or text."""
    data = reply.encode("latin-1") if isinstance(reply, str) else json.dumps(reply).encode()
    if isinstance(reply, list):
        data = write_frames(b"\n".join([json.dumps(each).encode() for each in reply]))
    request = read_request(json.dumps({"messages": [HELLO], **fields}).encode(), "m")
    judged = bool(request.tools)
    heard = decode(connect(wire, options), request, [data], judged=judged)
    again = decode(connect(wire, options), request, bytewise(data), judged=judged)
    assert again.facts == heard.facts
    error = None if heard.error is None else type(heard.error).__name__
    if (response := heard.response) is None:
        return {"error": error}
    content = plain_ids(msgspec.json.decode(msgspec.json.encode(response.message.content)))
    found = {
        "content": content,
        "finish": response.finish_reason,
        "raw": response.finish_raw,
        "usage": show(response.usage),
        "parsed": response.parsed,
        "error": error,
    }
    return show(found)


def read(wire: str, fields: Record, path: str | None = None) -> Record:
    """Decode the request of a client; return it, and what it contains beyond our fields."""
    body = {"model": "m", **BODIES[wire], **fields}
    if wire in ("gemini", "bedrock"):  # whose paths name the model
        del body["model"]
    try:
        asked = SERVER_CODECS[wire].decode(
            body, PATHS[wire].format(model="m") if path is None else path
        )
    except d.ProviderError as error:
        return show_error(error)
    found = {
        "request": show_request(asked.request),
        "left": [f"{each.code} {each.path} {each.rule.effect}" for each in asked.left],
        "betas": sorted({beta for each in asked.left for beta in each.rule.betas}),
        "warnings": [f"{each.code} {each.path}" for each in asked.warnings],
        "concepts": {name: each.value for name, each in asked.concepts.items()},
        "echo": asked.echo,
        "custom": sorted(asked.custom),
        "grouped": dict(asked.grouped),
        "usage": None if asked.stream_usage else "not asked for",
    }
    try:
        found["extras"] = asked.with_extras().config.extras
    except d.ProviderError as error:
        found |= show_error(error)
    return show(found)


def fail(wire: str, status: int, text: str) -> Record:
    """Read the body of an error; return the error."""
    error = connect(wire, {}).error(status, {}, text.encode("latin-1"))
    found = {"said": error.provider_message, "wait": error.retry_after}
    return show({"error": type(error).__name__, "code": error.provider_code, **found})


READERS: Any = {
    "sent_requests": send,
    "heard_replies": hear,
    "read_requests": read,
    "read_errors": fail,
}


def rows_of(table: str) -> Any:
    rows = read_table(table)
    return pytest.mark.parametrize("row", rows, ids=[f"{wire}: {why}" for wire, why, *_ in rows])


def check(table: str, row: list[Any]) -> None:
    wire, _, *given, expected = row
    found = READERS[table](wire, *given)
    assert found == expected
    assert json.dumps(found) == json.dumps(expected), "the order of the keys"


@rows_of("sent_requests")
def test_requests_are_encoded_as_listed(row: list[Any]) -> None:
    check("sent_requests", row)


@rows_of("heard_replies")
def test_replies_are_decoded_as_listed(row: list[Any]) -> None:
    check("heard_replies", row)


@rows_of("read_requests")
def test_requests_of_clients_are_decoded_as_listed(row: list[Any]) -> None:
    check("read_requests", row)


@rows_of("read_errors")
def test_errors_are_read_as_listed(row: list[Any]) -> None:
    check("read_errors", row)


if __name__ == "__main__":
    for table, reader in READERS.items():
        rows = [[*row[:-1], reader(row[0], *row[2:-1])] for row in read_table(table)]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (TABLES / f"{table}.jsonl").write_text("".join(lines), encoding="utf-8")
