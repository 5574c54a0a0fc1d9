"""Alerts about budgets, which are written in the transaction that counts a cost.

The table is an outbox: for each webhook, an alert has one row, whose id follows from the budget,
its period, its amount and the share that is spent. So several gateways write an alert once. One of
them sends it; if that process dies, another one sends it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
from msgspec import Struct

from ..database import Database
from ..registry.webhooks import Webhook
from .budgets import Budget, read_account

ALERTS = [
    (
        "create table if not exists dragoman_alerts (id text, webhook text, data text not null, "
        "attempts bigint not null, due double precision, until double precision not null, "
        "primary key (id, webhook))"
    ),
    "create index if not exists dragoman_alerts_due on dragoman_alerts (due)",
]
_CLAIM_SECONDS = 60.0  # until another process sends an alert whose process may have died
_MOST = 20  # alerts that one process sends at a time
_KEPT = 40 * 86400.0  # how long an alert is remembered after the end of its period
_ALWAYS = 1e18
_PAUSES = (5.0, 60.0, 300.0, 1800.0, 7200.0, 18_000.0)
"""The seconds before each further attempt to send an alert; afterwards it is given up."""


class Alert(Struct, frozen=True):
    """An alert to send: its id, its webhook, and the JSON of what happened."""

    id: str
    webhook: str
    data: bytes
    attempts: int


class Alerts:
    """The alerts in the database of a ledger; the caller has opened a transaction."""

    def __init__(self, base: Database) -> None:
        self._base = base
        self.find_webhooks: Callable[[], Sequence[Webhook]] = tuple
        self._known: set[tuple[str, str]] = set()

    def note(
        self,
        now: float,
        budgets: Iterable[Budget],
        spent: Mapping[tuple[str, str], Decimal],
    ) -> list[tuple[str, str]]:
        """Write the alerts about budgets after their counters have grown; return which they are."""
        noted = []
        webhooks = self.find_webhooks()
        for budget in budgets if webhooks else ():
            counter = budget.find_counter(now)
            used = spent[budget.account, counter]
            for webhook in webhooks:
                for share in webhook.at:
                    if not budget.usd or used * 100 < budget.usd * share:
                        continue
                    facts = f"{budget.name}|{counter}|{budget.usd.normalize():f}|{share}"
                    key = hashlib.sha256(facts.encode()).hexdigest()[:32], webhook.name
                    if key not in self._known:
                        self._write(now, key, _describe(budget, used, share, now))
                        noted.append(key)
        return noted

    def remember(self, noted: Iterable[tuple[str, str]]) -> None:
        """Note that alerts are stored, after the transaction; they are not written again."""
        if len(self._known) > 100_000:
            self._known.clear()
        self._known.update(noted)

    def claim(self, now: float) -> list[Alert]:
        """Return the alerts that are due; no other process sends them at the same time."""
        names = [each.name for each in self.find_webhooks()]
        if not names:
            return []
        rows = self._base.run(
            "select id, webhook, data, attempts from dragoman_alerts where due <= ? "  # noqa: S608
            f"and webhook in ({', '.join('?' * len(names))}) order by due limit ?",
            (now, *names, _MOST),
        )
        for made, webhook, _, _ in rows:
            self._base.run(
                "update dragoman_alerts set due = ?, attempts = attempts + 1 "
                "where id = ? and webhook = ?",
                (now + _CLAIM_SECONDS, made, webhook),
            )
        return [
            Alert(made, webhook, data.encode(), attempts + 1)
            for made, webhook, data, attempts in rows
        ]

    def finish(self, alert: Alert, now: float, *, is_sent: bool) -> bool:
        """Note how an attempt to send an alert ended; return whether there is another one later."""
        is_over = is_sent or alert.attempts > len(_PAUSES)
        due = None if is_over else now + _PAUSES[alert.attempts - 1]
        self._base.run(
            "update dragoman_alerts set due = ? where id = ? and webhook = ?",
            (due, alert.id, alert.webhook),
        )
        self._base.run("delete from dragoman_alerts where until < ?", (now,))
        return not is_over

    def _write(self, now: float, key: tuple[str, str], data: bytes) -> None:
        ends = msgspec.json.decode(data)["data"]["ends_at"]
        until = _ALWAYS if ends is None else datetime.fromisoformat(ends).timestamp() + _KEPT
        self._base.run(
            "insert into dragoman_alerts values (?, ?, ?, 0, ?, ?) "
            "on conflict (id, webhook) do nothing",
            (*key, data.decode(), now, until),
        )


def _describe(budget: Budget, spent: Decimal, share: int, now: float) -> bytes:
    kind, name = read_account(budget.account)
    return msgspec.json.encode(
        {
            "type": "budget.reached",
            "timestamp": datetime.fromtimestamp(now, UTC),
            "data": {
                "kind": kind,
                "name": name,
                "period": budget.period,
                "percent": share,
                "limit_usd": budget.usd,
                "spent_usd": spent,
                "ends_at": budget.find_end(now),
            },
        }
    )
