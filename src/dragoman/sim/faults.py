"""Byte-level faults: damage a valid reply as a broken server or connection would."""

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
    """The bytes to send, and what to do after sending them.

    ``then`` is ``on`` to continue, ``cut`` to drop the connection, or ``ended`` to end the body.
    """

    data: bytes = b""
    then: Literal["on", "cut", "ended"] = "on"


class Mangler:
    """Apply a fault to the bytes of one reply. Call ``feed`` with each part, then ``end()``."""

    def __init__(self, fault: Fault, dice: random.Random) -> None:
        self._fault = fault
        self._garbage = dice.randbytes(fault.garbage) if fault.garbage_at is not None else b""
        self._held: list[bytes] = []  # frames that are held back while tool calls are interleaved
        self._frames = 0
        self._size = 0  # number of bytes sent so far
        self._over = False
        self.cut = False  # whether the fault has dropped the connection

    def feed(self, data: bytes) -> Mangled:
        """Apply the fault to the next bytes of the reply; return the bytes to send."""
        if self._fault.interleave:
            self._held.append(data)
            return Mangled()
        return self._pass(self._twice(data))

    def end(self, data: bytes = b"") -> Mangled:
        """Apply the fault to the last bytes of the reply; return the bytes to send."""
        if self._fault.interleave:
            data = interleave(b"".join([*self._held, data]))
        sent = self._pass(self._twice(data))
        if sent.then == "on" and self._garbage:
            return Mangled(sent.data + self._garbage)
        return sent

    def _twice(self, data: bytes) -> bytes:
        """Return the bytes with every n-th frame duplicated."""
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
            data = data[:place] + self._garbage + data[place:]
            self._garbage = b""
        limits = [limit for limit in (self._fault.cut_at, self._fault.end_at) if limit is not None]
        limit = min(limits, default=None)
        if limit is None or self._size + len(data) < limit:
            self._size += len(data)
            return Mangled(data)
        self._over = True
        self.cut = limit == self._fault.cut_at
        return Mangled(data[: limit - self._size], "cut" if self.cut else "ended")

    def portions(self, data: bytes) -> list[bytes]:
        """Return the bytes, split into separate writes."""
        size = self._fault.drip
        if size is None:
            return [data] if data else []
        return [data[at : at + size] for at in range(0, len(data), size)]


# --- interleaving parallel calls ---------------------------------------------------------------


def interleave(data: bytes) -> bytes:
    """Return a stream with fragments of parallel calls interleaved; each call stays in order."""
    frames = _split_frames(data)
    rest = data[sum(map(len, frames)) :]
    out: list[bytes] = []
    run: dict[Any, list[bytes]] = {}  # the frames of consecutive tool calls, by call
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
    """Return a key for the tool call that a frame belongs to.

    The result is ``None`` if the frame belongs to no tool call. The key of each tool call that
    begins is added to ``tools``, so that its later frames are recognised.
    """
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
        if calls and not choices[0].get("finish_reason"):
            return ("choice", calls[0].get("index"))
        return None
    key = ("block", data.get("index", data.get("output_index")))
    begun = data.get("content_block") or data.get("item") or {}
    if isinstance(begun, dict) and begun.get("type") in ("tool_use", "function_call"):
        tools.add(key)
    return key if key[1] is not None and key in tools else None
