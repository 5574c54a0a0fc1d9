"""Token counts in replies: each wire describes its usage record once, to read and to write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..events import Usage

_NONE: Mapping[str, Sequence[str]] = {}
_ENDS = ("input_tokens", "output_tokens")


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
        self._tree: dict[str, Any] = {}
        for name in paths:
            for rank, path in enumerate((paths[name], *also.get(name, ()))):
                *above, last = path.split(".")
                holder = self._tree
                for step in above:
                    holder = holder.setdefault(step, {})
                holder.setdefault(last, []).append((name, rank))
        self._apart = apart
        self._omits_zeros = omits_zeros
        self._has_total = "total_tokens" in paths

    def read(self, record: Mapping[str, Any]) -> Usage:
        """Return the counts of a usage record."""
        found: dict[str, tuple[int, int | None]] = {}
        _find_counts(record, self._tree, found)
        counts: dict[str, Any] = {name: count for name, (_, count) in found.items()}
        for name, parts in self._apart.items():
            if name in counts or (self._omits_zeros and not counts.keys().isdisjoint(parts)):
                counts[name] = _add([counts.get(each, 0) for each in (name, *parts)])
        if not self._has_total:
            counts["total_tokens"] = _add([counts.get(name) for name in _ENDS])
        return Usage(**counts)

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


def _find_counts(
    record: Mapping[str, Any], tree: Mapping[str, Any], found: dict[str, tuple[int, int | None]]
) -> None:
    """Add the counts of a record to ``found``; of two paths to a count, the first one counts."""
    for key, value in record.items():
        places = tree.get(key)
        if places is None or value is None:
            continue
        if type(places) is dict:
            if isinstance(value, dict):
                _find_counts(value, places, found)
            continue
        for name, rank in places:
            if name not in found or rank < found[name][0]:
                found[name] = (rank, value if type(value) is int and value >= 0 else None)


def total_tokens(usage: Usage) -> int | None:
    """Return the reported total token count or, if there is none, the sum of input and output."""
    if usage.total_tokens is not None:
        return usage.total_tokens
    return _add([usage.input_tokens, usage.output_tokens])


def _add(counts: list[int | None]) -> int | None:
    return None if None in counts else sum(filter(None, counts))
