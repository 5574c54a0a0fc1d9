"""JSON of requests: one request gives the same bytes each time, and extras fit beside what a codec wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import InvalidRequestError, cut, quote

_encode = msgspec.json.Encoder().encode
_sorted = msgspec.json.Encoder(order="sorted").encode


def ordered_json(value: Any) -> msgspec.Raw:
    """Return a value as JSON with its keys in their order: a model fills a schema in the order of its properties."""
    return _write(value, _encode)


def sorted_json(value: Any) -> msgspec.Raw:
    """Return a value as JSON with its keys sorted all the way down, so that equal values give equal bytes."""
    return _write(value, _sorted)


def _write(value: Any, encode: Callable[[Any], bytes]) -> msgspec.Raw:
    try:
        written = encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"a value of the request cannot be written as JSON: {error}") from error
    if b"null" in written:  # which is what msgspec writes for a number that is none
        _refuse_not_finite(value)
    return msgspec.Raw(written)


def _refuse_not_finite(value: Any) -> None:
    left: list[tuple[str, Any]] = [("", value)]
    while left:  # no recursion: the value may be as deep as the encoder allows
        place, value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequestError(f"a value of the request cannot be written as JSON: {place or 'it'} is {value}")
        if isinstance(value, dict):
            head = f"{cut(place)}." if place else ""
            left += [(f"{head}{cut(str(name))}", each) for name, each in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{cut(place)}[{at}]", each) for at, each in enumerate(value)]


def to_bytes(body: dict[str, Any] | list[Any]) -> bytes:
    """A body as JSON, in the order it was built."""
    try:
        return _encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the request cannot be written as JSON: {error}") from error


def read_count(value: Any) -> int | None:
    """Return a counter of a reply, or ``None`` for what is not one."""
    return value if type(value) is int and value >= 0 else None


def json_text(value: Any) -> str:
    """Return ``ordered_json`` as text."""
    return bytes(ordered_json(value)).decode()


def merge_extras(
    body: dict[str, Any],
    extras: Mapping[str, Any],
    *,
    lists: frozenset[str] = frozenset(),
    objects: frozenset[str] = frozenset(),
    coerce: bool = False,
    where: str = "config.extras",
) -> None:
    """Add the caller's extras to a body the codec built: by name, each with its keys in the caller's order.

    A field the codec wrote: lists named in ``lists`` merge, the codec's values first; objects named in ``objects``
    merge field by field; anything else must be equal, or the call is refused. A field it did not write passes
    through untouched.
    """
    for name in sorted(extras):
        value = extras[name]
        if name not in body:
            body[name] = ordered_json(value)
        elif name in lists:
            body[name] = _merge(body[name], [value] if coerce and isinstance(value, str) else value)
        elif name in objects and isinstance(value, Mapping):
            merge_extras(body[name], value)
        elif not _same(_plain(body[name]), value):
            raise InvalidRequestError(f"{where}[{quote(name)}] contradicts a field that this call sets by itself")


def put_over(body: Mapping[str, Any], native: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with other fields over its own: objects merge, other values replace, ``None`` removes."""
    made = dict(body)
    for name, value in native.items():
        ours = made.get(name)
        if value is None:
            made.pop(name, None)
        elif isinstance(value, dict):
            made[name] = put_over(ours if isinstance(ours, dict) else {}, value)
        else:
            made[name] = value
    return made


def _merge(ours: list[str], theirs: Any) -> list[str]:
    if not isinstance(theirs, list | tuple) or not all(isinstance(item, str) for item in theirs):
        return ours  # malformed for a merge counts as absent
    return list(dict.fromkeys([*ours, *theirs]))


def _plain(value: Any) -> Any:
    return msgspec.json.decode(_encode(value))


def _same(ours: Any, theirs: Any) -> bool:
    """Equality of decoded JSON: numbers by value, and true is not 1."""
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, dict) and isinstance(theirs, Mapping):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs)
