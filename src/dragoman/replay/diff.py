"""Find the differences between two values, two requests or two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import groupby, zip_longest
from typing import Any, Literal

import msgspec
from msgspec import Struct

from .steps import ReplayStep
from .summary import shorten

_ABSENT = object()


class Difference(Struct, frozen=True, kw_only=True):
    """A path at which two values differ.

    ``held_a`` is false if the path does not exist in the first value, and ``held_b`` if it does
    not exist in the second.
    """

    path: str
    a: Any
    b: Any
    held_a: bool = True
    held_b: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {_show(self.a, self.held_a)} and {_show(self.b, self.held_b)}"


def _show(value: Any, held: bool) -> str:
    return shorten(msgspec.json.encode(value).decode(), 80) if held else "nothing"


def find_differences(a: Any, b: Any, path: str = "") -> Iterator[Difference]:
    """Yield every difference between two pieces of plain data, in order."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *[key for key in b if key not in a]]:
            inner = f"{path}.{key}" if path else str(key)
            yield from find_differences(a.get(key, _ABSENT), b.get(key, _ABSENT), inner)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        for index, (left, right) in enumerate(zip_longest(a, b, fillvalue=_ABSENT)):
            yield from find_differences(left, right, f"{path}[{index}]")
    elif isinstance(a, str) and isinstance(b, str) and a != b:
        yield _differ_in_text(a, b, path)
    elif a != b or isinstance(a, bool) is not isinstance(b, bool):
        held_a = a is not _ABSENT
        held_b = b is not _ABSENT
        yield Difference(
            path=path,
            a=a if held_a else None,
            b=b if held_b else None,
            held_a=held_a,
            held_b=held_b,
        )


def _differ_in_text(a: str, b: str, path: str) -> Difference:
    """Return how two strings differ; for long strings, only the part where they diverge."""
    at = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    if at <= 40:
        return Difference(path=path, a=a, b=b)
    start = at - 20
    return Difference(
        path=f"{path}, character {at}",
        a=f"…{a[start : start + 200]}",
        b=f"…{b[start : start + 200]}",
    )


# --- comparing two runs of a session -----------------------------------------------------------

# Fields that differ between any two runs, so their differences are ignored: ids, durations, and
# the provider's own texts.
_INCIDENTAL = frozenset({
    "assembled_from", "call_id", "duration_ms", "first_event_ms", "id", "intent_id", "latency_ms",
    "llm.exchange_kept", "message_id", "open_intents", "parent_session_id", "provider_call_id",
    "request_id", "session", "tool_call_id", "tool_ids", "tool_use_id",
})  # fmt: skip
# Further fields of call records alone: when a call began, in which session, and at which server.
# The arguments of tools may have fields with these names.
_INCIDENTAL_OF_CALLS = frozenset({"at", "server", "session_id"})


class Change(Struct, frozen=True):
    """A step that only one run has, or a pair of steps whose payloads differ at ``where``."""

    kind: Literal["only_a", "only_b", "changed"]
    a: ReplayStep | None = None
    b: ReplayStep | None = None
    where: tuple[Difference, ...] = ()


def compare_runs(a: Iterable[ReplayStep], b: Iterable[ReplayStep]) -> tuple[Change, ...]:
    """Return the differences between two runs, in order; empty if they are the same.

    Ids, durations and the order of concurrent steps are ignored.
    """
    left, right = [
        _untangle(step for step in steps if step.type not in _INCIDENTAL) for steps in (a, b)
    ]
    keys = [[_key(step) for step in steps] for steps in (left, right)]
    start = 0
    while start < min(len(left), len(right)) and keys[0][start] == keys[1][start]:
        start += 1  # skip the equal start: the matcher is slow on long runs
    matcher = SequenceMatcher(None, keys[0][start:], keys[1][start:], autojunk=False)
    changes: list[Change] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            changes += _pair(left[start + i1 : start + i2], right[start + j1 : start + j2])
    return tuple(changes)


def _untangle(steps: Iterable[ReplayStep]) -> list[ReplayStep]:
    """Return the steps, with the steps of concurrent proposals grouped by proposal."""
    order: dict[str, int] = {}
    untangled: list[ReplayStep] = []
    for is_tool, group in groupby(steps, key=lambda step: step.intent is not None):
        found = list(group)
        for step in found:
            order.setdefault(step.intent or "", len(order))
        untangled += sorted(found, key=lambda step: order[step.intent or ""]) if is_tool else found
    return untangled


def _key(step: ReplayStep) -> bytes:
    return step.type.encode() + b" " + msgspec.json.encode(_compared(step), order="sorted")


def _compared(step: ReplayStep) -> Any:
    """Return the data of a step without fields that differ between any two runs."""
    data = step.data
    if step.type.startswith("llm.call_"):
        data = {name: data[name] for name in data if name not in _INCIDENTAL_OF_CALLS}
    return _essential(data)


def _essential(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _essential(item) for key, item in value.items() if key not in _INCIDENTAL}
    return [_essential(item) for item in value] if isinstance(value, list) else value


def _pair(left: list[ReplayStep], right: list[ReplayStep]) -> Iterator[Change]:
    """Pair steps of the same type and yield their differences; also yield the unpaired steps."""
    matcher = SequenceMatcher(
        None, [step.type for step in left], [step.type for step in right], autojunk=False
    )
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            for a, b in zip(left[i1:i2], right[j1:j2], strict=True):
                found = tuple(find_differences(_compared(a), _compared(b)))
                if found:
                    yield Change("changed", a, b, found)
        else:
            yield from [Change("only_a", a=step) for step in left[i1:i2]]
            yield from [Change("only_b", b=step) for step in right[j1:j2]]
