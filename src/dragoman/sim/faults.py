"""Faults of bytes: what a broken server or a broken line makes of a good reply."""

from __future__ import annotations

import random
from typing import Any, Literal

from msgspec import Struct

from ..events import read_json
from .script import Fault


def _split_frames(data: bytes) -> list[bytes]:
    """Return the complete frames of an event stream, each with the empty line that ends it."""
    return [frame + b"\n\n" for frame in data.split(b"\n\n")[:-1]]


class Mangled(Struct, frozen=True):
    """Bytes to send, and how it goes on after them: not at all when the reply was ``cut`` or ``ended``."""

    data: bytes = b""
    then: Literal["on", "cut", "ended"] = "on"


class Mangler:
    """Does to the bytes of one reply what a fault says. ``feed`` them, then ``end()``."""

    def __init__(self, fault: Fault, dice: random.Random) -> None:
        self._fault = fault
        self._garbage = dice.randbytes(fault.garbage) if fault.garbage_at is not None else b""
        self._held: list[bytes] = []  # while calls are to be interleaved
        self._frames = 0
        self._size = 0  # bytes that went out
        self._over = False
        self.cut = False  # was the connection dropped?

    def feed(self, data: bytes) -> Mangled:
        """The next bytes of the reply, as they go out."""
        if self._fault.interleave:
            self._held.append(data)
            return Mangled()
        return self._pass(self._twice(data))

    def end(self, data: bytes = b"") -> Mangled:
        """The last bytes of the reply."""
        if self._fault.interleave:
            data = interleave(b"".join([*self._held, data]))
        sent = self._pass(self._twice(data))
        if sent.then == "on" and self._garbage:
            return Mangled(sent.data + self._garbage)
        return sent

    def _twice(self, data: bytes) -> bytes:
        """Every so many-th chunk doubled."""
        if self._fault.duplicate is None or not data:
            return data
        frames = _split_frames(data)
        frames += [data[sum(map(len, frames)) :]]
        out = []
        for frame in frames:
            if frame:
                self._frames += 1
                out.append(frame * (2 if self._frames % self._fault.duplicate == 0 else 1))
        return b"".join(out)

    def _pass(self, data: bytes) -> Mangled:
        if self._over or not data:
            return Mangled()
        at = self._fault.garbage_at
        if self._garbage and at is not None and at < self._size + len(data):
            place = max(0, at - self._size)
            data, self._garbage = data[:place] + self._garbage + data[place:], b""
        limits = [limit for limit in (self._fault.cut_at, self._fault.end_at) if limit is not None]
        limit = min(limits, default=None)
        if limit is None or self._size + len(data) < limit:
            self._size += len(data)
            return Mangled(data)
        self._over = True
        self.cut = limit == self._fault.cut_at
        return Mangled(data[: limit - self._size], "cut" if self.cut else "ended")

    def portions(self, data: bytes) -> list[bytes]:
        """The bytes as they are handed to the line, one after the other."""
        size = self._fault.drip
        if size is None:
            return [data] if data else []
        return [data[at : at + size] for at in range(0, len(data), size)]


# --- calls among each other ---------------------------------------------------------------------------


def interleave(data: bytes) -> bytes:
    """A stream with the fragments of its parallel calls in turns, each call's own in their order."""
    frames = _split_frames(data)
    rest = data[sum(map(len, frames)) :]
    out: list[bytes] = []
    run: dict[Any, list[bytes]] = {}  # of calls that follow each other
    tools: set[Any] = set()
    for frame in frames:
        key = _call_of(frame, tools)
        if key is None:
            out += _in_turns(run)
            run = {}
            out.append(frame)
        else:
            run.setdefault(key, []).append(frame)
    return b"".join([*out, *_in_turns(run), rest])


def _in_turns(run: dict[Any, list[bytes]]) -> list[bytes]:
    longest = max(map(len, run.values()), default=0)
    return [frames[at] for at in range(longest) for frames in run.values() if at < len(frames)]


def _call_of(frame: bytes, tools: set[Any]) -> Any:
    """The call a frame belongs to, on whichever wire, or ``None``; ``tools`` remembers the blocks that are calls."""
    lines = [line[5:].strip() for line in frame.split(b"\n") if line.startswith(b"data:")]
    try:
        data = read_json(b"\n".join(lines))
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    choices = data.get("choices")
    if choices:
        delta = choices[0].get("delta") or {}
        calls = delta.get("tool_calls") or []
        return ("choice", calls[0].get("index")) if calls and not choices[0].get("finish_reason") else None
    key = ("block", data.get("index", data.get("output_index")))
    begun = data.get("content_block") or data.get("item") or {}
    if isinstance(begun, dict) and begun.get("type") in ("tool_use", "function_call"):
        tools.add(key)
    return key if key[1] is not None and key in tools else None
