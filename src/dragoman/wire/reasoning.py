"""Translate a portable amount of reasoning into the fields of a model family.

``config.reasoning`` is an effort or a budget in tokens. Model families accept one of the two, a
switch, or nothing. Which of these a family accepts, and in which fields, is the quirk
``reasoning`` of an endpoint, which the rows in ``catalog/families`` set by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ..errors import InvalidRequestError, UnsupportedFeatureError, quote
from ..messages import EFFORTS

__all__ = [
    "NOT_REASONING", "ReasoningStyle", "is_off", "join_efforts", "merge_fields",
    "translate_reasoning",
]  # fmt: skip

_PORTABLE = ("minimal", "low", "medium", "high")
# The number of tokens that each effort stands for, if an effort must be compared with a number.
_BUDGETS = {
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 49152,
    "max": 98304,
}
_WHERE = "config.reasoning"


class ReasoningStyle(Struct, frozen=True, forbid_unknown_fields=True):
    """How a model family accepts an amount of reasoning.

    Field names are dotted paths into the request body.

    A style without ``effort`` and ``budget`` is a switch: ``with_effort`` turns reasoning on and
    ``off`` turns it off.
    """

    effort: str | None = None
    """The request field that takes an effort, such as ``"low"``."""

    efforts: tuple[str, ...] = _PORTABLE
    """The efforts that the model family accepts."""

    words: dict[str, str] = field(default_factory=dict)
    """The model family's names for efforts, where they differ from Dragoman's."""

    budget: str | None = None
    """The request field that takes a reasoning budget in tokens."""

    least: int = 1
    most: int | None = None
    """The smallest and the largest reasoning budget (``least`` and ``most``), in tokens."""

    with_effort: dict[str, Any] = field(default_factory=dict)
    """Further fields to send together with an effort. For a model family that can only turn
    reasoning on or off, the fields that turn it on."""

    with_budget: dict[str, Any] = field(default_factory=dict)
    """Further fields to send together with a budget."""

    off: dict[str, Any] | None = None
    """Fields that turn reasoning off; ``None`` for a model that always reasons."""

    reasons: bool = True
    """Whether the model reasons and has a setting for it. If not, no reasoning field is sent."""

    def placed(self, root: str, places: Mapping[str, str]) -> ReasoningStyle:
        """Return the style with the field paths of another wire.

        ``places`` maps the paths that the wire has elsewhere; ``root`` is the object that all
        fields are in, or ``""``.
        """
        prefix = f"{root}." if root else ""

        def move(path: str) -> str:
            return prefix + places.get(path, path)

        def move_all(fields: Mapping[str, Any]) -> dict[str, Any]:
            return {move(path): value for path, value in fields.items()}

        return replace(
            self,
            effort=None if self.effort is None else move(self.effort),
            budget=None if self.budget is None else move(self.budget),
            with_effort=move_all(self.with_effort),
            with_budget=move_all(self.with_budget),
            off=None if self.off is None else move_all(self.off),
        )

    def list_values(self) -> dict[str, list[Any]]:
        """Return the values that each field may have; a budget may have any, so it has none."""
        values: dict[str, list[Any]] = {}
        if self.budget is not None:
            values[self.budget] = []
        if self.effort is not None:
            values[self.effort] = [self.words.get(each, each) for each in self.efforts]
        for fields in (self.with_effort, self.with_budget, self.off or {}):
            for path, value in fields.items():
                if path != self.budget:
                    values.setdefault(path, []).append(value)
        return values


NOT_REASONING = ReasoningStyle(reasons=False, off={})


def join_efforts(candidates: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Return the efforts that all candidates of a group accept; ``None`` if one's are unknown."""
    known = [efforts for efforts in candidates if efforts is not None]
    if not known or len(known) < len(candidates):
        return None
    return tuple([effort for effort in known[0] if all(effort in each for each in known)])


def is_off(amount: str | int | None) -> bool:
    """Return whether an amount of reasoning means that the model shall not reason."""
    return amount in ("off", "none") or (amount == 0 and amount is not False)


def translate_reasoning(
    reasoning: str | int, style: ReasoningStyle, room: int | None = None
) -> tuple[dict[str, Any], str | None]:
    """Return the request fields for an amount of reasoning, and a note if they are approximate.

    ``room`` is the token limit of the reply. Pass it if the wire requires the reasoning budget to
    be smaller than this limit.
    """
    amount = "off" if is_off(reasoning) else reasoning
    if isinstance(amount, bool) or (isinstance(amount, str) and amount not in EFFORTS):
        raise UnsupportedFeatureError(
            f"{_WHERE}: {quote(str(amount))} is neither an effort nor a number of tokens"
        )
    if not style.reasons:
        note = "this model has no setting for reasoning, so none is sent"
        return {}, None if amount == "off" else note
    if isinstance(amount, int):
        return _from_budget(amount, style, room)
    if amount == "off":
        return _turn_off(style, room)
    if style.effort is not None and amount in style.efforts:
        return _write_effort(amount, style), None
    if style.budget is not None and style.effort is None:
        return _from_effort(amount, style, room)
    if style.effort is None:
        return _turn_on(style)
    nearest = _nearest_effort(_BUDGETS[amount], style)
    note = f"the model has no effort {amount!r}; {nearest!r} is the nearest"
    return _write_effort(nearest, style), note


def _turn_off(style: ReasoningStyle, room: int | None) -> tuple[dict[str, Any], str | None]:
    if style.off is not None:
        return _nest(style.off), None
    if style.effort is not None:
        least = style.efforts[0]
        return _write_effort(least, style), f"the model always reasons; {least!r} is its least"
    if style.budget is not None:
        fields, _ = _write_budget(style.least, style, room)
        return fields, f"the model always reasons; {style.least} tokens are its least"
    return {}, "the model always reasons, and has no setting for less"


def _turn_on(style: ReasoningStyle) -> tuple[dict[str, Any], str]:
    if not style.with_effort:
        return {}, "the model always reasons, and has no setting for how much"
    return _nest(style.with_effort), "the model has a switch and no degrees; it is turned on"


def _from_budget(
    tokens: int, style: ReasoningStyle, room: int | None
) -> tuple[dict[str, Any], str | None]:
    if tokens < 0:
        raise InvalidRequestError(f"{_WHERE}: a budget in tokens cannot be negative")
    if style.budget is not None:
        return _write_budget(tokens, style, room)
    if style.effort is None:
        return _turn_on(style)
    nearest = _nearest_effort(tokens, style)
    note = f"the model takes an effort and no number of tokens; {nearest!r} is the nearest"
    return _write_effort(nearest, style), note


def _from_effort(
    effort: str, style: ReasoningStyle, room: int | None
) -> tuple[dict[str, Any], str | None]:
    tokens = _BUDGETS[effort]
    if room is not None:
        tokens = min(tokens, room // 2)
    tokens = _bound(tokens, style)
    fields, problem = _write_budget(tokens, style, room)
    note = f"the model takes a number of tokens and no effort; {tokens} stand for {effort!r}"
    return fields, problem or note


def _write_budget(
    tokens: int, style: ReasoningStyle, room: int | None
) -> tuple[dict[str, Any], str | None]:
    assert style.budget is not None
    sent = _bound(tokens, style)
    if room is not None and sent >= room:
        sent = _bound(room // 2, style)
        if sent >= room:
            least = f"the model reasons with at least {style.least} tokens"
            return {}, f"{least}, and max_tokens is {room}; none is sent"
    note = f"{tokens} tokens are outside of what is taken; {sent} are sent"
    return _nest({**style.with_budget, style.budget: sent}), None if sent == tokens else note


def _bound(tokens: int, style: ReasoningStyle) -> int:
    return max(style.least, tokens if style.most is None else min(tokens, style.most))


def _nearest_effort(tokens: int, style: ReasoningStyle) -> str:
    """Return the effort whose usual budget is closest to ``tokens``, compared by ratio."""
    known = [effort for effort in style.efforts if effort in _BUDGETS] or list(style.efforts)
    # a ratio of the numbers themselves overflows if a client sends a budget of 400 digits
    wanted = math.log(tokens)
    return min(known, key=lambda effort: abs(wanted - math.log(_BUDGETS.get(effort, tokens))))


def _write_effort(effort: str, style: ReasoningStyle) -> dict[str, Any]:
    assert style.effort is not None
    return _nest({**style.with_effort, style.effort: style.words.get(effort, effort)})


def _nest(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted paths as nested objects: ``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    fields: dict[str, Any] = {}
    for path, value in paths.items():
        *outer, name = path.split(".")
        inner = fields
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return fields


def merge_fields(body: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Add fields to a body; objects under the same key are merged."""
    for name, value in fields.items():
        if isinstance(value, dict) and isinstance(body.get(name), dict):
            body[name] = {**body[name], **value}
        else:
            body[name] = value
