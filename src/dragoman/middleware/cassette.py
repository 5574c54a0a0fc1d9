"""Cassettes: recorded requests and replies, in a readable file that tests can play back.

A cassette is a file of JSON lines. The first line has the version of the format. Each call has a
line with the request and its key, a line for each event with the seconds since the start of the
call, and a line for the end::

    {"cassette": 1}
    {"key": "5d0c...", "request": {"messages": [{"role": "user", "content": "Hi"}], ...}}
    {"at": 0.211, "event": {"type": "message.start", ...}}
    {"at": 0.498, "end": null}

Headers are never recorded. In requests and errors, strings that look like API keys are masked, and
so are the values of fields whose names suggest a secret (``api_key``, ``password``). Replies are
recorded verbatim, because a masked reply could not be played back.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import ProviderError
from ..events import (
    Event,
    MessageComplete,
    MessageStart,
    ToolUseEnd,
    UnknownEvent,
    decode_event,
    encode_event,
)
from ..events import fold as fold_events
from ..messages import new_ulid
from ..provider import EventsReply, LayerCall, Reply
from ..provider.model import Kind, OfKind
from ..retrieval.stored import read_answer, write_answer
from .layer import Middleware, Wrapper
from .request_keys import canonical, hide, request_key
from .stored_errors import read_error, write_error

log = logging.getLogger("dragoman")

Mode: TypeAlias = Literal["replay", "record", "once", "off"]
MODES = ("replay", "record", "once", "off")
VERSION = 1


class CassetteError(ValueError):
    """Raised when a file is not a cassette or is damaged; the message contains the line number."""


class CassetteMiss(LookupError):  # noqa: N818 - a miss is not a failure
    """Raised when a cassette has no recording of a call.

    ``diff`` shows how the call differs from the most similar recording.
    """

    def __init__(self, path: Path, key: str, why: str, diff: str) -> None:
        super().__init__(f"{path}: {why}" + (f"\n{diff}" if diff else ""))
        self.path = path
        self.key = key
        self.diff = diff


# --- the cassette file -------------------------------------------------------------------------


class RecordedCall(Struct, frozen=True):
    """One recorded call: its key, its masked request, and its lines in the cassette."""

    key: str
    request: dict[str, Any]
    lines: tuple[bytes, ...]

    def play(
        self, path: Path, decode: Callable[[bytes], Any]
    ) -> Iterator[tuple[float, Event | ProviderError | None]]:
        """Yield each event with its time, then the call's error, which is ``None`` on success."""
        for line in self.lines[1:]:
            record = msgspec.json.decode(line)
            try:
                if "event" in record:
                    event = decode(msgspec.json.encode(record["event"]))
                    if isinstance(event, UnknownEvent):
                        raise CassetteError(
                            f"an event of type {event.type!r} is not known to this version"
                        )
                    yield record["at"], event
                else:
                    yield (
                        record["at"],
                        None if record["end"] is None else read_error(record["end"]),
                    )
            except (ValueError, TypeError) as error:
                raise CassetteError(
                    f"{path}: {line[:100].decode('utf-8', 'replace')}…: {error}"
                ) from None


def read_cassette(path: Path) -> list[RecordedCall]:
    """Return the calls recorded on a cassette; an empty list if the file does not exist."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    calls: list[RecordedCall] = []
    group: list[bytes] = []
    for number, line in enumerate(lines, 1):
        record = _read_line(path, number, line)
        if number == 1:
            if record.get("cassette") != VERSION:
                raise CassetteError(f"{path}:1: this is not a cassette of version {VERSION}")
        elif ("key" in record) != (not group):
            raise CassetteError(
                f"{path}:{number}: a call that does not end, or a line outside any call"
            )
        else:
            group.append(line)
            if "end" in record:
                head = msgspec.json.decode(group[0])
                calls.append(RecordedCall(head["key"], head.get("request", {}), tuple(group)))
                group = []
    if group:
        raise CassetteError(f"{path}:{len(lines)}: the last call does not end")
    return calls


def _read_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = msgspec.json.decode(line)
    except ValueError as error:
        raise CassetteError(f"{path}:{number}: {error}") from None
    if not isinstance(record, dict):
        raise CassetteError(f"{path}:{number}: must be a JSON object")
    timed = isinstance(record.get("at"), int | float)
    if (
        number > 1
        and not isinstance(record.get("key"), str)
        and not (timed and ("event" in record or "end" in record))
    ):
        raise CassetteError(f"{path}:{number}: is neither a request, an event nor an end")
    return record


_writing = threading.Lock()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lock a cassette against access by other threads and, except on Windows, other processes."""
    with _writing:
        if sys.platform == "win32":
            yield
            return
        import fcntl  # fcntl is not available on Windows

        handle = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def add_call(path: Path, call: RecordedCall, *, replacing: bool) -> None:
    """Add a recorded call to a cassette; the file is replaced atomically by a new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path):
        calls = [each for each in read_cassette(path) if not (replacing and each.key == call.key)]
        lines = [msgspec.json.encode({"cassette": VERSION})]
        for each in [*calls, call]:
            lines += each.lines
        fresh = path.with_name(f".{path.name}.{new_ulid()}")
        try:
            with fresh.open("xb") as file:
                file.write(b"\n".join(lines) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


# --- the middleware that records and replays calls ---------------------------------------------


class Record(Wrapper[Kind], Middleware[Kind]):
    """Record calls to a cassette, or play them back without a network.

    ``mode`` is one of these. ``replay`` plays recordings and raises ``CassetteMiss`` if a call has
    none. ``record`` sends each call and replaces its earlier recordings. ``once`` is ``replay`` if
    the file exists, and otherwise ``record``. ``off`` sends calls without recording them. If the
    same call is repeated, its recordings are played in order. Failed calls are recorded and played
    like others; cancelled calls are not recorded.

    Keys in requests are masked. Replies are recorded verbatim, even if they contain a key, because
    only a verbatim reply can be played back.

    With ``replay_timing``, events arrive with their recorded delays. The ``raw`` of a played reply
    is ``None``.
    """

    def __init__(
        self,
        provider: OfKind[Kind],
        path: str | os.PathLike[str],
        mode: Mode = "once",
        *,
        replay_timing: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(provider)
        if mode not in MODES:
            raise ValueError(f"Record: mode must be one of {', '.join(MODES)}, not {mode!r}")
        self.path = Path(path)
        self.mode: Mode = mode
        self._plays = mode == "replay" or (mode == "once" and self.path.exists())
        self._replay_timing = replay_timing
        self._clock = clock
        self._sleep = sleep
        self._shelf = _Shelf(self.path)
        self._recorded: set[str] = set()

    def settings(self) -> Mapping[str, Any]:
        return {"path": str(self.path), "mode": self.mode, "replay_timing": self._replay_timing}

    def open(self, request: Any) -> Reply:
        if self.mode == "off":
            return self.inner.open(request)
        if self._plays and self.operation == "chat":
            return EventsReply(request, self.name, self.model, self._play)
        return super().open(request)

    async def ready(self) -> None:
        if not self._plays:
            await self.inner.ready()

    # --- replaying recorded calls

    async def _play(self, request: Any) -> AsyncIterator[Event]:
        began = self._clock()
        events = list[Event]()
        call = self._shelf.find(request_key(request), canonical(request))
        for at, item in call.play(
            self.path, decode_event if self.operation == "chat" else read_answer
        ):
            if self._replay_timing and (wait := began + at - self._clock()) > 0:
                await self._sleep(wait)
            if isinstance(item, ProviderError):
                item.request_id = request.request_id
                if events:
                    item.response = fold_events(events)
                raise item
            if item is not None:
                event = readdress(item, request.request_id)
                if type(event) is MessageStart or type(event) is MessageComplete:
                    events.append(event)
                yield event

    # --- recording calls

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        if self._plays:
            async for event in self._play(request):
                yield [event]
            return
        began = self._clock()
        key = request_key(request)
        shown = hide(canonical(request))
        lines = [msgspec.json.encode({"key": key, "request": shown}, order="sorted")]

        def note(word: str, value: Any) -> None:
            lines.append(msgspec.json.encode({"at": round(self._clock() - began, 6), word: value}))

        write = encode_event if self.operation == "chat" else write_answer
        failure: ProviderError | None = None
        try:
            async with aclosing(self.inner.open(request)) as reply:
                served.reply = reply
                while batch := await reply.next():
                    for event in batch:
                        note("event", msgspec.Raw(write(event)))
                    if type(batch[-1]) is MessageComplete:
                        # Hold back the last event: a reader may stop after it, before the call is
                        # recorded.
                        served.held = [batch.pop()]
                    if batch:
                        yield batch
        except ProviderError as error:
            failure = error
        except BaseException:
            log.info("%s: a call that did not end is not recorded", self.path)
            raise
        note("end", None if failure is None else write_error(failure))
        call = RecordedCall(key, shown, tuple(lines))
        add_call(self.path, call, replacing=key not in self._recorded)
        self._recorded.add(key)
        if held := served.held:
            served.held = []
            yield held
        if failure is not None:
            raise failure


class _Shelf:
    """The recorded calls of a cassette; a repeated call plays its recordings in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._calls: list[RecordedCall] | None = None
        self._played: Counter[str] = Counter()

    def find(self, key: str, shown: Mapping[str, Any]) -> RecordedCall:
        """Return the next recording for a key; raise ``CassetteMiss`` if there is none."""
        if self._calls is None:
            self._calls = read_cassette(self._path)
        calls = [call for call in self._calls if call.key == key]
        number = self._played[key]
        if number < len(calls):
            self._played[key] += 1
            return calls[number]
        if calls:
            why = f"this call was recorded {len(calls)} times and is made once more"
            raise CassetteMiss(self._path, key, why, "")
        again = 'record it with mode="record", or delete the file and use mode="once"'
        if not self._calls:
            raise CassetteMiss(self._path, key, f"there is no call on this cassette; {again}", "")
        why = f"this call is not on the cassette; {again}. The nearest that is, and this one:"
        raise CassetteMiss(self._path, key, why, nearest_diff(shown, self._calls))


def readdress(event: Event, request_id: str) -> Event:
    """Return a recorded event with its request id replaced by the id of the current request."""
    if type(event) is ToolUseEnd and event.intent is not None:
        source = replace(event.intent.source, request_id=request_id)
        event = replace(event, intent=replace(event.intent, source=source))
    return replace(event, request_id=request_id)


def nearest_diff(request: Mapping[str, Any], calls: list[RecordedCall]) -> str:
    """Return a diff between a request and the most similar recorded request."""
    wanted = _show(hide(request))
    by_lines = difflib.SequenceMatcher(b=wanted, autojunk=False)
    by_letters = difflib.SequenceMatcher(b="".join(wanted), autojunk=False)

    def likeness(call: RecordedCall) -> tuple[float, float]:
        lines = _show(call.request)
        by_lines.set_seq1(lines)
        by_letters.set_seq1("".join(lines))
        return by_lines.ratio(), by_letters.quick_ratio()

    nearest = max(calls, key=likeness)
    return "\n".join(
        difflib.unified_diff(_show(nearest.request), wanted, "recorded", "asked", lineterm="", n=2)
    )


def _show(request: Mapping[str, Any]) -> list[str]:
    """Return a request as lines of JSON for a diff; long lines, such as images, are truncated."""
    text = msgspec.json.format(msgspec.json.encode(request, order="sorted"), indent=2).decode()
    return [
        line if len(line) <= 400 else f"{line[:400]}… ({len(line)} characters)"
        for line in text.splitlines()
    ]
