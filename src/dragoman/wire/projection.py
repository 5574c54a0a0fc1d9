"""Fitting what is said into what a wire accepts: ids, extras, schema names, base URLs."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from ..errors import InvalidRequestError
from ..messages import Assistant, Message, ToolCall, ToolResult

_encode = msgspec.json.Encoder().encode
_sorted = msgspec.json.Encoder(order="sorted").encode


def sorted_json(value: Any) -> msgspec.Raw:
    """A value as JSON with its keys sorted all the way down, so that equal values give equal bytes."""
    try:
        written = _sorted(value)
    except (TypeError, ValueError, RecursionError) as error:
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
            left += [(f"{place}.{name}" if place else str(name), each) for name, each in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{place}[{at}]", each) for at, each in enumerate(value)]


def to_bytes(body: dict[str, Any] | list[Any]) -> bytes:
    """A body as JSON, in the order it was built."""
    try:
        return _encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the request cannot be written as JSON: {error}") from error


# --- ids ------------------------------------------------------------------------------------------


class IdRule(Struct, frozen=True):
    """Which tool-call ids a wire accepts: these characters or any, this length."""

    max_length: int
    exact: bool = False
    alphabet: str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    also: str = ""
    any_character: bool = False

    def allows(self, call_id: str) -> bool:
        """Is this id legal as it is?"""
        size = len(call_id)
        fits = size == self.max_length if self.exact else 0 < size <= self.max_length
        if self.any_character:
            return fits and _is_text(call_id)
        return fits and set(call_id) <= _characters(self.alphabet + self.also)

    def fold(self, call_id: str, salt: int) -> str:
        """A legal id that stands for ``call_id``: its digest, written in the wire's alphabet."""
        digest = hashlib.sha256(f"{salt}:{call_id}".encode("utf-8", "surrogatepass")).digest()
        number = int.from_bytes(digest, "big")
        letters = []
        for _ in range(self.max_length if self.exact else min(self.max_length, 32)):
            number, place = divmod(number, len(self.alphabet))
            letters.append(self.alphabet[place])
        return "".join(letters)


def _is_text(call_id: str) -> bool:
    try:
        call_id.encode()
    except UnicodeEncodeError:  # half a pair of surrogates, which no JSON can carry
        return False
    return True


def _characters(letters: str) -> frozenset[str]:
    return frozenset(letters)


class IdMap:
    """Tool-call ids of one conversation, projected onto a wire: deterministic, never two onto one.

    Legal ids pass unchanged and are reserved first; each illegal one gets a digest, salted anew in
    the unlikely case that it is taken. The same id gets the same projection in call and result.
    """

    def __init__(self, rule: IdRule | None, messages: Iterable[Message] = ()) -> None:
        self._map: dict[str, str] = {}
        if rule is None:
            return
        ids = list(dict.fromkeys(_ids(messages)))
        taken = {call_id for call_id in ids if rule.allows(call_id)}
        for call_id in ids:
            if not rule.allows(call_id):
                salt = 0
                while (projected := rule.fold(call_id, salt)) in taken:
                    salt += 1
                taken.add(projected)
                self._map[call_id] = projected

    def __getitem__(self, call_id: str) -> str:
        return self._map.get(call_id, call_id)

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._map


def _ids(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        if type(message) is Assistant:
            for block in message.content:
                if type(block) is ToolCall:
                    yield block.id
        elif type(message) is ToolResult:
            yield message.tool_call_id


# --- extras ---------------------------------------------------------------------------------------


def merge_extras(
    body: dict[str, Any], extras: Mapping[str, Any], *, lists: frozenset[str] = frozenset(), coerce: bool = False
) -> None:
    """Add the caller's extras to a body the codec built, sorted by name.

    A field the codec wrote: lists named in ``lists`` merge, the codec's values first; anything else
    must be equal, or the call is refused. A field it did not write passes through untouched.
    """
    for name in sorted(extras):
        value = extras[name]
        if name not in body:
            body[name] = sorted_json(value)
        elif name in lists:
            body[name] = _merge(body[name], [value] if coerce and isinstance(value, str) else value)
        elif not _same(_plain(body[name]), value):
            raise InvalidRequestError(f"config.extras[{name!r}] contradicts a field that this call sets by itself")


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


# --- names and addresses --------------------------------------------------------------------------


def schema_name(schema: Mapping[str, Any]) -> str:
    """A stable name for a schema: its title if that can serve, else a digest."""
    title = schema.get("title")
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", title).strip("_")[:64] if isinstance(title, str) else ""
    return name or "schema_" + hashlib.sha256(bytes(sorted_json(dict(schema)))).hexdigest()[:12]


def join_url(base_url: str, path: str, default: str = "") -> str:
    """Append ``path`` to a base URL; a base without a path of its own gets ``default`` first."""
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # which is read when it is asked for
    except ValueError as error:
        raise ValueError("base_url must be an http or https URL; its host or port cannot be read") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base_url must be an http or https URL, not {_shown(base_url)!r}")
    if parts.username or parts.password:
        raise ValueError("base_url must not contain credentials; pass api_key instead")
    if parts.fragment:
        raise ValueError("base_url must not contain a fragment")
    own = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, (own or default) + path, parts.query, ""))


def _shown(url: str) -> str:
    return url.rpartition("@")[2].partition("?")[0]


def root_of(base_url: str) -> str:
    """The server behind a base URL: without the ``/v1`` that its compatible API hangs under."""
    parts = urlsplit(base_url)
    path = re.sub(r"(/openai)?/v\d\w*/?$", "", parts.path).rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))
