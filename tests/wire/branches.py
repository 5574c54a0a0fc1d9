"""Decode a reply truncated at each of its offsets, without starting from the beginning each
time.
"""

import io
import pickle
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import FunctionType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import dragoman as d
from dragoman.events import Assembler, AssemblerError
from dragoman.wire import Codec, Decoder

from .cases import DecodedReply

__all__ = ["Snapshot", "hear_cuts", "seams_of"]


class _Pickler(pickle.Pickler):
    """Copies mutable objects; all copies share the immutable ones."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.shared: list[Any] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        frozen = isinstance(value, Struct) and value.__struct_config__.frozen
        if not frozen and not isinstance(value, str | bytes | type | FunctionType):
            return None
        place = self._places.setdefault(id(value), len(self.shared))
        if place == len(self.shared):
            self.shared.append(value)
        return place


class Snapshot:
    """A saved state of a decoder, from which any number of copies can continue."""

    def __init__(self, decoder: Decoder) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(decoder)
        self._data, self._shared = file.getvalue(), pickler.shared

    def restore(self) -> Decoder:
        """Return a new decoder in the saved state."""
        unpickler = pickle.Unpickler(io.BytesIO(self._data))
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        decoder: Decoder = unpickler.load()
        return decoder


class _Numbers:
    """Generate ids that look like real ones, in the same sequence for every truncation."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> str:
        self._last += 1
        return f"{self._last:026}"


def seams_of(wire: str, data: bytes) -> list[int]:
    """Return the offsets of the boundaries between the events of a stream, including its start and
    its end.
    """
    if wire == "bedrock":
        edges = [0]
        while edges[-1] + 4 <= len(data):
            edges.append(
                min(len(data), edges[-1] + int.from_bytes(data[edges[-1] : edges[-1] + 4]))
            )
        return sorted({*edges, len(data)})
    mark = rb"\n" if wire == "ollama" else rb"\n\r?\n"
    return sorted({0, *(match.end() for match in re.finditer(mark, data)), len(data)})


def hear_cuts(
    codec: Codec,
    request: d.Request,
    data: bytes,
    offsets: Sequence[int],
) -> Iterator[tuple[int, DecodedReply]]:
    """Decode ``data`` truncated at each of the ``offsets``, in order; yield the offset and the
    decoded reply. Equal results share one object.

    The decoder reads the stream event by event. For each offset, a copy of the decoder continues
    from the last complete event. The codec must not keep the raw reply. Deltas that arrived before
    the last complete event are joined.
    """
    issuer = d.Issuer(codec.wire, codec.issuer_vendor, request.model)
    out = Assembler(
        request_id=request.request_id, model=request.model, issuer=issuer, new_id=_Numbers()
    )
    decoder = codec.decoder(request, out)
    said: list[d.Event] = []
    at = 0
    for begin, end in pairwise([*seams_of(codec.wire, data), len(data) + 1]):
        first = at
        while at < len(offsets) and offsets[at] < end:
            at += 1
        if first < at:
            yield from _branches(decoder, said, data, begin, offsets[first:at])
        _grow(said, decoder.feed(data[begin:end]))


def _branches(
    decoder: Decoder, said: list[d.Event], data: bytes, begin: int, offsets: Sequence[int]
) -> Iterator[tuple[int, DecodedReply]]:
    """Decode the bytes after an event boundary, truncated at each offset; yield the offset and the
    decoded reply.
    """
    snapshot = Snapshot(decoder)
    before: tuple[list[d.Event], Any] | None = None
    heard = DecodedReply([], None)
    for offset in offsets:
        branch = snapshot.restore()
        more = branch.feed(data[begin:offset])
        more += branch.end()
        error = branch.error
        now = (more, error and (type(error), error.message))
        if now != before:
            assert error is None or not isinstance(error.__cause__, AssemblerError), repr(
                error.__cause__
            )
            before, heard = now, DecodedReply([*said, *more], error)
        yield offset, heard


def _grow(said: list[d.Event], events: list[d.Event]) -> None:
    """Append events to a list, and join each delta with the previous one so that long streams stay
    fast.
    """
    for event in events:
        joined = _join(said[-1], event) if said else None
        if joined is None:
            said.append(event)
        else:
            said[-1] = joined


def _join(last: d.Event, event: d.Event) -> d.Event | None:
    """Join two deltas of one block; return ``None`` if they cannot be joined."""
    match last, event:
        case (d.TextDelta(), d.TextDelta()) | (
            d.ThinkingDelta(signature=None),
            d.ThinkingDelta(signature=None),
        ):
            same = last.content_block_index == event.content_block_index
            return replace(last, text=last.text + event.text) if same else None
        case d.ToolUseInputDelta(), d.ToolUseInputDelta():
            return replace(last, partial_json=last.partial_json + event.partial_json)
    return None
