"""Read what LiteLLM's proxy has spent by day, with the labels of a gateway's bill."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TypeAlias

from msgspec import Struct

from ...gateway.moving import DayAmounts
from .database import Estate

_NOISE = 1e-9
"""The US dollars by which two sums of the same costs may differ, since they are floating-point."""
_COLUMNS = (
    "prompt_tokens",
    "completion_tokens",
    "spend",
    "successful_requests",
    "failed_requests",
)
_MODEL = "coalesce(nullif(model_group, ''), nullif(model, ''), '')"
_DAILY = """
select date, coalesce({owner}, ''), api_key, {model}, coalesce(custom_llm_provider, ''), {sums}
from "LiteLLM_Daily{table}Spend" group by 1, 2, 3, 4, 5
"""
# The tables by day are younger than the log of requests, which has a row for each.
_LOGS = """
select to_char("startTime", 'YYYY-MM-DD'), coalesce("user", ''), api_key, {model},
coalesce(custom_llm_provider, ''), sum(prompt_tokens), sum(completion_tokens), sum(spend),
count(*) filter (where status is distinct from 'failure'),
count(*) filter (where status = 'failure'), coalesce(team_id, '')
from "LiteLLM_SpendLogs" where "startTime" < %s::timestamp group by 1, 2, 3, 4, 5, 11
"""
_Place: TypeAlias = tuple[str, str, str, str]  # day, key, model and vendor


class _Part(Struct):
    """A part of what a key spent on a model in a day: of one user, or of one team."""

    owner: str
    amounts: list[float]

    def subtract(self, parts: list[_Part]) -> list[float]:
        """Return what is left of the amounts without those of parts, and without noise."""
        left = []
        for at, amount in enumerate(self.amounts):
            rest = amount - sum([part.amounts[at] for part in parts])
            left.append(rest if rest > _NOISE else 0)
        return left


def read_days(connection: Any, estate: Estate) -> Iterator[DayAmounts]:
    """Yield what each key spent on each model in each day, with its user and its team.

    LiteLLM sums up by user and by team separately. The two are joined by key, model and day; what
    only one of them has keeps the label of the key.
    """
    users = _read_parts(connection, estate, "User", "user_id")
    teams = _read_parts(connection, estate, "Team", "team_id")
    places = sorted({*users, *teams})
    for place in places:
        yield from _join(place, users.get(place, []), teams.get(place, []), estate)
    if not estate.has("SpendLogs"):
        return
    first = places[0][0] if places else "9999-12-31"
    for day, user, token, model, vendor, *amounts, team in connection.execute(
        _LOGS.format(model=_MODEL), (first,)
    ):
        place = (day, token, model, vendor)
        yield _label(place, user, team, [float(each) for each in amounts], estate)


def _read_parts(
    connection: Any, estate: Estate, table: str, owner: str
) -> dict[_Place, list[_Part]]:
    found: dict[_Place, list[_Part]] = {}
    if not estate.has(f"Daily{table}Spend"):
        return found
    sums = ", ".join([f"coalesce(sum({each}), 0)" for each in _COLUMNS])
    statement = _DAILY.format(owner=owner, table=table, model=_MODEL, sums=sums)
    for day, name, token, model, vendor, *amounts in connection.execute(statement):
        part = _Part(name, [float(each) for each in amounts])
        found.setdefault((day, token, model, vendor), []).append(part)
    return found


def _join(
    place: _Place, users: list[_Part], teams: list[_Part], estate: Estate
) -> Iterator[DayAmounts]:
    """Yield the amounts of a key on a model in a day, by user if it has one team, else by team."""
    by_team = len(teams) > 1 or not users
    shown, other = (teams, users) if by_team else (users, teams)
    only = other[0].owner if len(other) == 1 else ""
    for part in shown:
        names = (only, part.owner) if by_team else (part.owner, only)
        yield _label(place, *names, part.amounts, estate)
    total = _Part(
        "", [sum(column) for column in zip(*[each.amounts for each in other], strict=True)]
    )
    rest = total.subtract(shown) if other else []
    if any(rest):
        yield _label(place, *(("", only) if not by_team else (only, "")), rest, estate)


def _label(
    place: _Place, user: str, team: str, amounts: list[float], estate: Estate
) -> DayAmounts:
    day, token, model, vendor = place
    asked, written, usd, answered, failed = amounts
    return DayAmounts(
        at=int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000),
        key=estate.name_key(token),
        user=estate.users.get(user, user),
        team=estate.teams.get(team, team),
        model=model,
        vendor=vendor,
        input=int(asked),
        output=int(written),
        picos=round(usd * 10**12),
        answered=int(answered),
        failed=int(failed),
    )
