"""The bodies of requests to a service of sessions, with the range of every value."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_GOAL = 1_000_000
"""The most characters in a goal."""
MAX_USD = 10**9
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=10**12)]
_Label: TypeAlias = Annotated[str, Meta(max_length=255)]
Goal: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_GOAL)]


class Limits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of one session, within those of its agent."""

    steps: _Count | None = None
    tokens: _Count | None = None
    tool_calls: _Count | None = None
    cost_usd: Decimal | None = None
    seconds: Annotated[float, Meta(gt=0, le=1e9)] | None = None

    def __post_init__(self) -> None:
        cost = self.cost_usd
        if cost is not None and not (cost.is_finite() and 0 < cost <= MAX_USD):
            raise ValueError(f"cost_usd: must be above 0 and at most {MAX_USD}")


class NewSession(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A goal for a new session; the same ``key`` again returns the same session."""

    agent: _Name
    goal: Goal
    key: _Name | None = None
    model: _Name | None = None
    limits: Limits = Limits()
    labels: Annotated[dict[_Name, _Label], Meta(max_length=16)] = {}


class NewGoal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A further goal of a session; the same ``key`` again adds nothing."""

    goal: Goal
    key: _Name | None = None


class GivenResult(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of a tool call that runs elsewhere: any JSON value, or an error."""

    content: Any | UnsetType = UNSET
    is_error: bool = False

    def __post_init__(self) -> None:
        if self.content is UNSET:
            raise ValueError("content: is missing")
