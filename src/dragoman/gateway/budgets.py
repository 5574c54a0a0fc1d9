"""Budgets: how much a key, a user, a team or a tag may spend in a period.

A budget has an account, whose cost the ledger counts: a key has its own name, the others have a
prefix (``user:ann@example.org``, ``team:research``, ``tag:ci``). Periods follow the calendar in
UTC; the 30 days are counted from the time at which the budget began. To reset a budget by hand
begins another counter in the ledger, and the earlier one stays as it is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

Period: TypeAlias = Literal["day", "week", "month", "30d", "total"]
PERIODS: tuple[Period, ...] = get_args(Period)
TEAM = "team:"
USER = "user:"
TAG = "tag:"
PREFIXES = (USER, TEAM, TAG)
"""The prefixes of accounts that are not those of keys; no key may have a name with one of them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMED: dict[Period, str] = {
    "day": " for the day",
    "week": " for the week",
    "month": " for the month",
    "30d": " for 30 days",
    "total": "",
}


class Budget(Struct, frozen=True):
    """The amount that an account may spend in a period.

    ``usd`` is ``None`` if the amount is a field of the key or the team, so that only ``began`` is
    stated: the time at which the budget was last reset, or was created.
    """

    account: str
    period: Period
    usd: Decimal | None = None
    began: datetime | None = None

    @property
    def name(self) -> str:
        """The name of the budget: its account and its period."""
        return f"{self.account}:{self.period}"

    def find_start(self, now: float) -> datetime | None:
        """Return when the present period began; ``None`` for a budget in all."""
        at = datetime.fromtimestamp(now, UTC)
        day = at.replace(hour=0, minute=0, second=0, microsecond=0)
        if self.period == "day":
            return day
        if self.period == "week":
            return day - timedelta(days=day.weekday())
        if self.period == "month":
            return day.replace(day=1)
        if self.period == "30d":
            first = self.began or _EPOCH
            return first + (at - first) // timedelta(days=30) * timedelta(days=30)
        return None

    def find_end(self, now: float) -> datetime | None:
        """Return when the present period ends; ``None`` for a budget in all."""
        start = self.find_start(now)
        if start is None:
            return None
        if self.period == "month":
            return (start + timedelta(days=31)).replace(day=1)
        return start + timedelta(days={"day": 1, "week": 7}.get(self.period, 30))

    def find_counter(self, now: float) -> str:
        """Return the name of the ledger's counter of the present period."""
        start = self.find_start(now)
        if self.period == "30d":
            return f"30d {start:%Y-%m-%dT%H:%M:%S.%fZ}"
        formats = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
        name = "" if start is None else start.strftime(formats[self.period])
        if self.began is None or (start is not None and self.began <= start):
            return name
        return f"{name}@{round(self.began.timestamp() * 1000)}"

    def describe(self) -> str:
        """Return the words by which an error names the budget."""
        owners = {TEAM: "this key's team", USER: "the user", TAG: "the tag"}
        for prefix, owner in owners.items():
            if self.account.startswith(prefix):
                named = "" if prefix == TEAM else f" {self.account.removeprefix(prefix)}"
                return f"the budget of {owner}{named}{_NAMED[self.period]}"
        return f"the budget of this key{_NAMED[self.period]}"


def read_account(account: str) -> tuple[str, str]:
    """Return the kind of an account, ``key``, ``user``, ``team`` or ``tag``, and its name."""
    for prefix in PREFIXES:
        if account.startswith(prefix):
            return prefix.removesuffix(":"), account.removeprefix(prefix)
    return "key", account


def read_name(name: str) -> tuple[str, Period]:
    """Return the account and the period of the name of a budget; raise ``ValueError`` otherwise."""
    account, _, given = name.rpartition(":")
    for period in PERIODS:
        if period == given and read_account(account)[1]:
            return account, period
    raise ValueError(
        f"{name!r} does not name a budget: write ACCOUNT:PERIOD, such as team:research:week, with "
        f"one of the periods {', '.join(PERIODS)}"
    )
