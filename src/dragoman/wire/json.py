"""JSON for requests: deterministic encoding, and merging of extras."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from ..errors import InvalidRequestError, cut, quote
from ..events import read_json

D = TypeVar("D")
_encode = msgspec.json.Encoder().encode
_sorted = msgspec.json.Encoder(order="sorted").encode


def ordered_json(value: Any) -> msgspec.Raw:
    """Return a value as JSON with its keys in insertion order.

    The order matters, because models fill a schema in the order of its properties.
    """
    return msgspec.Raw(_write(value, _encode))


def sorted_json(value: Any) -> msgspec.Raw:
    """Return a value as JSON with sorted keys, so that equal values give equal bytes."""
    return msgspec.Raw(_write(value, _sorted))


def _write(value: Any, encode: Callable[[Any], bytes]) -> bytes:
    try:
        written = encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(
            f"a value of the request cannot be written as JSON: {error}"
        ) from error
    if b"null" in written:  # msgspec writes NaN as null; NaN is rejected here
        _refuse_not_finite(value)
    return written


def _refuse_not_finite(value: Any) -> None:
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        # This loop is not recursive, because the value may be nested as deeply as the encoder
        # allows.
        place, value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequestError(
                f"a value of the request cannot be written as JSON: {place or 'it'} is {value}"
            )
        if isinstance(value, dict):
            head = f"{cut(place)}." if place else ""
            left += [(f"{head}{cut(str(name))}", each) for name, each in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{cut(place)}[{at}]", each) for at, each in enumerate(value)]


def to_bytes(body: dict[str, Any] | list[Any]) -> bytes:
    """Return a body as JSON, with its keys in insertion order."""
    try:
        return _encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the request cannot be written as JSON: {error}") from error


def read_as(decoder: msgspec.json.Decoder[D], data: bytes) -> D:
    """Decode JSON of a reply into the type of a decoder; damaged characters are replaced.

    A field of the wrong type raises ``msgspec.ValidationError``.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.convert(read_json(data), decoder.type)


def read_count(value: Any) -> int | None:
    """Return a value from a reply as a token count, or ``None`` if it is not a valid count."""
    return value if type(value) is int and value >= 0 else None


def dig(value: Any, *names: str) -> Any:
    """Return a field of nested objects; ``None`` if it or one of the objects is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def string_of(value: Any) -> str:
    """Return the value if it is a string, otherwise an empty string."""
    return value if isinstance(value, str) else ""


def dict_of(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, otherwise an empty object."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return the value if it is a list, otherwise an empty list."""
    return value if isinstance(value, list) else []


def entries_of(value: Any) -> list[dict[str, Any]]:
    """Return the JSON objects in a list; an empty list if the value is not a list."""
    return [entry for entry in list_of(value) if isinstance(entry, dict)]


def reply_text(value: Any) -> str:
    """Return a value of a reply as JSON text; it was read from JSON, so it needs no checks."""
    return _encode(value).decode()


def json_text(value: Any) -> str:
    """Return a value as JSON text with its keys in insertion order."""
    return _write(value, _encode).decode()


def merge_extras(
    body: dict[str, Any],
    extras: Mapping[str, Any],
    *,
    lists: frozenset[str] = frozenset(),
    objects: frozenset[str] = frozenset(),
    coerce: bool = False,
    where: str = "config.extras",
) -> None:
    """Merge the caller's extras into the body that the codec built.

    If the codec and the caller set the same field, lists named in ``lists`` are joined, with the
    codec's values first, and objects named in ``objects`` are merged field by field, also in each
    other. Any other
    value must be equal, or the call is rejected. Fields that only the caller sets are added
    unchanged.
    """
    for name in sorted(extras):
        value = extras[name]
        if name not in body:
            body[name] = ordered_json(value)
        elif name in lists:
            body[name] = _merge(
                body[name], [value] if coerce and isinstance(value, str) else value
            )
        elif name in objects and isinstance(value, Mapping):
            merge_extras(body[name], value, objects=objects)
        elif not _same(_plain(body[name]), value):
            raise InvalidRequestError(
                f"{where}[{quote(name)}] contradicts a field that this call sets by itself"
            )


def plain_value(value: Any) -> Any:
    """Return a value of a body, decoded if it is JSON already, as the caller's extras are."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def put_over(body: Mapping[str, Any], native: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a body in which the fields of ``native`` override its own.

    Objects are merged, other values are replaced, and ``None`` removes a field.
    """
    made = dict(body)
    for name, value in native.items():
        present = made.get(name)
        if value is None:
            made.pop(name, None)
        elif isinstance(value, dict):
            made[name] = put_over(present if isinstance(present, dict) else {}, value)
        else:
            made[name] = value
    return made


def _merge(first: list[str], second: Any) -> list[str]:
    if not isinstance(second, list | tuple) or not all(isinstance(item, str) for item in second):
        return first  # a value that is not a list of strings is ignored
    return list(dict.fromkeys([*first, *second]))


def _plain(value: Any) -> Any:
    return msgspec.json.decode(_encode(value))


def _same(first: Any, second: Any) -> bool:
    """Return whether two values are equal as JSON, where 1 equals 1.0 but not true."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(
            _same(first[key], second[key]) for key in first
        )
    if isinstance(first, list) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second)


def known(**fields: Any) -> dict[str, Any]:
    """Return the fields whose value is known; zero would be wrong for an unknown number."""
    return {name: value for name, value in fields.items() if value is not None and value != {}}
