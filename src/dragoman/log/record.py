"""The record, and the hash chain that links each record to the previous one.

A record is written as one line of JSON with sorted keys. Its hash is the SHA-256 of that line
without the ``hash`` member; ``previous`` is the hash of the session's previous record, or, for the
first, a genesis hash of the session's name. Changing any byte of any record therefore breaks the
chain at that record.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import force_setattr

from ..errors import quote
from ..messages import new_ulid
from .errors import InvalidRecordError, LogCorruptError
from .payloads import (
    Actor,
    LogErased,
    LogPruned,
    Payload,
    RecordErased,
    Sensitivity,
    decode_object,
    decode_payload,
    encode_payload,
    find_actor,
)

ADMINISTRATION = "dragoman.log"  # the session that contains the log's administrative records
MAX_PAYLOAD = 64 * 1024 * 1024

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_encoder = msgspec.json.Encoder()


class LogRecord(Struct, frozen=True, kw_only=True):
    """One stored event of a session.

    ``seq`` counts a session's records from 1. ``parent`` is the id of the record that caused this
    one. Two records are equal if all their bytes are equal.
    """

    actor: Actor
    hash: str
    id: str
    parent: str | None
    raw: Raw = field(name="payload")
    previous: str
    sensitivity: Sensitivity
    seq: int
    session: str
    timestamp: datetime
    turn: str | None
    type: str

    __hash__ = None  # type: ignore[assignment]

    @property
    def payload(self) -> Payload | dict[str, Any]:
        """The payload as a struct of its type, or as a ``dict`` if the type is unknown.

        A payload that cannot be read is a ``dict`` with the key ``unreadable``, so that it does
        not hide the records around it.
        """
        try:
            return decode_payload(self.type, bytes(self.raw))
        except LogCorruptError as error:
            return {"unreadable": str(error)}

    @property
    def data(self) -> dict[str, Any]:
        """The payload as plain data, with every field that was stored; see ``payload``."""
        try:
            return decode_object(bytes(self.raw))
        except LogCorruptError as error:
            return {"unreadable": str(error)}

    @property
    def line(self) -> bytes:
        """The record as a line of JSON, without the line ending."""
        check_payload(self.raw)
        return _write_line(self, self.hash)

    def __repr__(self) -> str:  # repr omits the payload, which may be private
        return f"LogRecord({self.session!r}, seq={self.seq}, type={self.type!r}, id={self.id!r})"


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    """One exported line: all fields of a record, in alphabetical order, and no other fields."""

    actor: str
    hash: str
    id: str
    parent: str | None
    payload: Raw
    previous: str
    sensitivity: str
    seq: int
    session: str
    timestamp: str
    turn: str | None
    type: str


class Head(Struct, frozen=True):
    """The end of a session's chain: its last sequence number and its last hash."""

    seq: int
    hash: str


class Draft(Struct, frozen=True):
    """A record that has not been linked into a chain yet."""

    session: str
    turn: str | None
    parent: str | None
    type: str
    actor: Actor
    sensitivity: Sensitivity
    payload: bytes
    expected: int | None = None


# --- drafting and linking records --------------------------------------------------------------


def draft_record(
    session: str,
    payload: Payload,
    *,
    turn: str | None = None,
    parent: str | None = None,
    actor: Actor | None = None,
    sensitivity: Sensitivity | None = None,
    expected: int | None = None,
) -> Draft:
    """Validate the caller's values, and return them as a draft of a record."""
    entry, data = encode_payload(payload)
    if len(data) > MAX_PAYLOAD:
        raise InvalidRecordError(
            f"payload of {entry.type}: {len(data)} bytes; a record holds at most {MAX_PAYLOAD}"
        )
    _check_name("session", session)
    for name, value in (("turn", turn), ("parent", parent)):
        if value is not None:
            _check_name(name, value)
    _check_choice("actor", actor, Actor)
    _check_choice("sensitivity", sensitivity, Sensitivity)
    if entry.payload is RecordErased:
        raise InvalidRecordError("payload: only the log itself erases records; call erase()")
    if (session == ADMINISTRATION) is not (entry.payload in (LogPruned, LogErased)):
        raise InvalidRecordError(
            f"session: {ADMINISTRATION!r} is reserved for the log's own records, and they belong "
            "only there"
        )
    return Draft(
        session, turn, parent, entry.type, actor or find_actor(entry, payload),
        sensitivity or entry.sensitivity, data,
        expected,
    )  # fmt: skip


def _check_name(field: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= 255 or not value.isprintable():
        raise InvalidRecordError(f"{field}: must be 1 to 255 printable characters")


def _check_choice(field: str, value: object, choices: Any) -> None:
    if value is not None and value not in choices.__args__:
        raise InvalidRecordError(
            f"{field}: must be one of {', '.join(choices.__args__)}, not {quote(value)}"
        )


def genesis(session: str) -> str:
    """Return the ``previous`` hash of a session's first record, which depends on its name."""
    return hashlib.sha256(b"dragoman.log/1 " + session.encode()).hexdigest()


def link_record(draft: Draft, head: Head | None) -> LogRecord:
    """Return a draft as the record that follows ``head``, with its id, time and hash."""
    seq, previous = (head.seq + 1, head.hash) if head is not None else (1, genesis(draft.session))
    record = LogRecord(
        actor=draft.actor,
        hash="",
        id=new_ulid(),
        parent=draft.parent,
        raw=Raw(draft.payload),
        previous=previous,
        sensitivity=draft.sensitivity,
        seq=seq,
        session=draft.session,
        timestamp=datetime.now(UTC),
        turn=draft.turn,
        type=draft.type,
    )
    # changing this frozen record is safe: no other code has it yet
    force_setattr(record, "hash", hash_record(record))
    return record


def hash_record(record: LogRecord) -> str:
    """Compute the hash of a record: the hash of its line without the member ``hash``."""
    body = _write_line(record, "").replace(b'"hash":"",', b"", 1)
    return hashlib.sha256(body).hexdigest()


def _write_line(record: LogRecord, digest: str) -> bytes:
    # The text of the time is part of the hash, so the format is fixed: UTC, with six digits of
    # microseconds.
    time = record.timestamp.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    line = Line(
        record.actor, digest, record.id, record.parent, record.raw, record.previous,
        record.sensitivity, record.seq, record.session, time, record.turn, record.type,
    )  # fmt: skip
    return _encoder.encode(line)


# --- stored rows -------------------------------------------------------------------------------

# The columns of a row: session, seq, id, turn, parent, type, actor, sensitivity, microseconds,
# payload, previous, hash.
Row: TypeAlias = tuple[
    str, int, str, str | None, str | None, str, str, str, int, bytes, bytes, bytes
]


def to_row(record: LogRecord) -> Row:
    """Return a record as a row for storage: the time in microseconds, the hashes as bytes."""
    return (
        record.session, record.seq, record.id, record.turn, record.parent, record.type,
        record.actor,
        record.sensitivity, (record.timestamp - _EPOCH) // _MICROSECOND, bytes(record.raw),
        bytes.fromhex(record.previous), bytes.fromhex(record.hash),
    )  # fmt: skip


def read_row(row: Row) -> LogRecord:
    """Return the record in a stored row; raise ``LogCorruptError`` if the row is invalid."""
    (
        session,
        seq,
        identity,
        turn,
        parent,
        kind,
        actor,
        sensitivity,
        microseconds,
        payload,
        previous,
        digest,
    ) = row
    try:
        # The conversion raises an error for damaged values: invalid UTF-8 arrives as surrogates,
        # and a value may have another type.
        "".join((session, identity, turn or "", parent or "", kind, actor, sensitivity)).encode()
        operator.index(seq)
        return LogRecord(
            actor=cast("Actor", actor),
            hash=digest.hex(),
            id=identity,
            parent=parent,
            raw=Raw(payload),
            previous=previous.hex(),
            sensitivity=cast("Sensitivity", sensitivity),
            seq=seq,
            session=session,
            timestamp=_EPOCH + microseconds * _MICROSECOND,
            turn=turn,
            type=kind,
        )
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise LogCorruptError(
            f"session {quote(session)}, record {quote(seq)}: cannot be read: {error}"
        ) from None


def check_payload(raw: Raw) -> None:
    """Raise ``LogCorruptError`` for a payload that is not an object or has line breaks."""
    data = bytes(raw)
    decode_object(data)
    if b"\n" in data or b"\r" in data:
        raise LogCorruptError("a payload has line breaks between its fields; verify() locates it")


_NOT_TEXT = ("type", "role", "base64_data")


def find_texts(value: Any) -> Iterator[str]:
    """Yield the strings in a payload, except type names, roles and the data of attachments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NOT_TEXT or not isinstance(item, str):
                yield from find_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from find_texts(item)
