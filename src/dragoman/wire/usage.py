"""Token counts in replies: each wire describes its usage record once, to read and to write it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..events import Usage

_NONE: Mapping[str, Sequence[str]] = {}
_ENDS = ("input_tokens", "output_tokens")

# Where an object is, its keys, and the count that each key has.
_Group: TypeAlias = tuple[str, frozenset[str], list[tuple[str, str]]]


class UsageMap:
    """Where the usage record of a wire has each count of ``Usage``.

    ``paths`` maps a field of ``Usage`` to a dotted path in the record; its order is that of the
    record. ``also`` has further paths that servers use for a count, which are only read. ``apart``
    names the counts that ``Usage`` includes in another count and the wire does not: reading adds
    them, and writing subtracts them. With ``omits_zeros``, a missing count is zero if one of the
    counts that are added to it is known.

    A count that is missing or invalid is unknown. If a wire has no total, it is the sum of input
    and output.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        *,
        also: Mapping[str, Sequence[str]] = _NONE,
        apart: Mapping[str, Sequence[str]] = _NONE,
        omits_zeros: bool = False,
    ) -> None:
        self._places = [(name, path.split(".")) for name, path in paths.items()]
        # Of two paths to a count, the first one counts, and is therefore read last.
        others = [(name, path) for name in also for path in reversed(also[name])]
        self._groups = _group(others) + _group(paths.items())
        self._apart = apart
        self._omits_zeros = omits_zeros
        self._has_total = "total_tokens" in paths

    def read(self, record: Mapping[str, Any]) -> Usage:
        """Return the counts of a usage record."""
        counts: dict[str, Any] = {}
        for above, keys, places in self._groups:
            holder = record.get(above) if above else record
            if isinstance(holder, dict) and not keys.isdisjoint(holder):
                for name, key in places:
                    if (count := holder.get(key)) is not None:
                        counts[name] = count if type(count) is int and count >= 0 else None
        for name, parts in self._apart.items():
            if name in counts or (self._omits_zeros and not counts.keys().isdisjoint(parts)):
                counts[name] = _add([counts.get(each, 0) for each in (name, *parts)])
        if not self._has_total:
            counts["total_tokens"] = _add([counts.get(name) for name in _ENDS])
        return Usage(**counts)

    def rest(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a usage record that has no count of ``Usage``, without null fields."""
        rest = {name: value for name, value in record.items() if value is not None}
        for above, keys, _ in self._groups:
            holder = rest.get(above) if above else rest
            if isinstance(holder, dict):
                left = {name: value for name, value in holder.items() if name not in keys}
                if not above:
                    rest = left
                elif left:
                    rest[above] = left
                else:
                    del rest[above]
        return rest

    def write(self, usage: Usage) -> dict[str, Any]:
        """Return the usage record with the known counts; zero would be wrong for an unknown one."""
        record: dict[str, Any] = {}
        for name, path in self._places:
            count = total_tokens(usage) if name == "total_tokens" else getattr(usage, name)
            if count is None:
                continue
            for part in self._apart.get(name, ()):
                count = max(0, count - (getattr(usage, part) or 0))
            holder = record
            for step in path[:-1]:
                holder = holder.setdefault(step, {})
            holder[path[-1]] = count
        return record


def _group(paths: Iterable[tuple[str, str]]) -> list[_Group]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, path in paths:
        above, _, key = path.rpartition(".")
        groups.setdefault(above, []).append((name, key))
    return [
        (above, frozenset([key for _, key in places]), places) for above, places in groups.items()
    ]


def total_tokens(usage: Usage) -> int | None:
    """Return the reported total token count or, if there is none, the sum of input and output."""
    if usage.total_tokens is not None:
        return usage.total_tokens
    return _add([usage.input_tokens, usage.output_tokens])


def _add(counts: list[int | None]) -> int | None:
    return None if None in counts else sum(filter(None, counts))
