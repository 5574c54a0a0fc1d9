"""Read keys, teams and budgets from the PostgreSQL database of LiteLLM's proxy.

LiteLLM stores the SHA-256 digest of each virtual key, as the gateway does, so the digests are
taken as they are, and the clients keep their keys. The tables are those of ``schema.prisma`` in
litellm-proxy-extras 0.4.110 (2026-11-19); columns that an older version lacks count as empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from ...database import load_driver
from ...gateway.budgets import PREFIXES, TEAM, USER, Budget, Period
from ...gateway.keys import MAX_LIMIT, MAX_NAME, Key, check_models, hash_key, read_money

Row: TypeAlias = Mapping[str, Any]

_PREFIX = "LiteLLM_"
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Prisma reads these parameters of a URL, and libpq rejects them.
_PRISMA = (
    "schema", "connection_limit", "pool_timeout", "pgbouncer", "socket_timeout", "sslaccept",
    "sslidentity", "sslpassword", "statement_cache_size",
)  # fmt: skip
# LiteLLM ends these durations at midnight, on Mondays and on the first of a month
# (litellm_core_utils/duration_parser.py in 1.109.1).
_PERIODS: dict[str, Period] = {
    "24h": "day", "1d": "day", "daily": "day", "7d": "week", "1w": "week", "weekly": "week",
    "30d": "month", "1mo": "month", "monthly": "month",
}  # fmt: skip
_LIMITS = {
    "rpm_limit": "requests_per_minute",
    "tpm_limit": "tokens_per_minute",
    "max_parallel_requests": "max_concurrency",
}
_BUDGET = ("max_budget", "budget_duration", "budget_reset_at", "spend", "budget_id")
_TIMES = ("created_at", "created_by", "updated_at", "updated_by")
_DASHBOARD = "litellm-dashboard"
"""The team of the keys that LiteLLM creates when a person logs in to its pages."""
# The columns that are carried over, or that change nothing in a request. Every other column that
# has a value is reported.
_KNOWN: dict[str, tuple[str, ...]] = {
    "VerificationToken": (
        "token", "key_alias", "key_name", "expires", "models", "user_id", "team_id", "blocked",
        "access_group_ids", "total_spend", "model_spend", "organization_id", "soft_budget_cooldown",
        "settings_updated_at", "last_active", "rotation_count", "last_rotation_at",
        "key_rotation_at", "key_type", "metadata", *_LIMITS, *_BUDGET, *_TIMES,
    ),
    "TeamTable": (
        "team_id", "team_alias", "models", "blocked", "access_group_ids", "model_spend", "admins",
        "members", "members_with_roles", "team_member_permissions", "organization_id", "metadata",
        *_BUDGET, *_TIMES,
    ),
    "UserTable": (
        "user_id", "user_email", "user_alias", "models", "team_id", "teams", "sso_user_id",
        "organization_id", "password", "password_reset_required", "last_breach_check_at",
        "model_spend", "metadata", *_BUDGET, *_TIMES,
    ),
    "OrganizationTable": (
        "organization_id", "organization_alias", "spend", "model_spend", "metadata", *_TIMES,
    ),
    "ProjectTable": (
        "project_id", "project_alias", "description", "team_id", "spend", "model_spend",
        "metadata", *_TIMES,
    ),
    "EndUserTable": ("user_id", "alias", "spend"),
    "TagTable": ("tag_name", "description", "spend", *_TIMES),
    "TeamMembership": ("user_id", "team_id", "spend", "total_spend"),
    "ProxyModelTable": ("model_id", "litellm_params", "model_info", *_TIMES),
}  # fmt: skip
_ADVICE = {
    "ProxyModelTable.model_name": "models in the database are not read, since their settings are "
    "encrypted; add them to models.yaml",
    "UserTable.user_role": "roles are not copied; name the administrators in the file of --admin",
    "BudgetTable.soft_budget": "has no equal; use an alert of the gateway's metrics",
}
_SECRET = ("token", "password", "litellm_params")


class Limit(Struct, frozen=True):
    """The budget of a key, team or user, and what was spent of it in the present period."""

    budget: Budget
    spent: Decimal


class Estate:
    """The keys, teams and budgets in a database; ``remarks`` lists what has no equal.

    ``teams`` and ``users`` are the gateway's names by the ids in the database, and ``names`` those
    of keys by their digests.
    """

    def __init__(self, connection: Any, now: datetime | None = None) -> None:
        self._connection = connection
        self._now = now or datetime.now(UTC)
        self.remarks: list[str] = []
        self.sessions = 0  # the keys of people who were logged in to LiteLLM's pages
        self.limits: list[Limit] = []
        self._budgets: dict[Any, Row] = {row["budget_id"]: row for row in self.read("BudgetTable")}
        self._groups = {
            row["access_group_id"]: row["access_model_names"] or ()
            for row in self.read("AccessGroupTable")
        }
        users = self.read("UserTable")
        teams = self.read("TeamTable")
        self._users: dict[Any, Row] = {row["user_id"]: row for row in users}
        self._teams: dict[Any, Row] = {row["team_id"]: row for row in teams}
        self.users: dict[Any, str] = {row["user_id"]: _name_user(row) for row in users}
        self.teams: dict[Any, str] = _name_teams(teams)
        self.names: dict[str, str] = {}
        self._deleted = self._read_deleted()
        self._old = self._read_old()
        self.keys = self._read_keys()
        for row in teams:
            self._read_limit(TEAM + self.teams[row["team_id"]], "TeamTable", row)
        for row in users:
            self._read_limit(USER + self.users[row["user_id"]], "UserTable", row)
        self._report()

    def has(self, table: str) -> bool:
        """Return whether this version of LiteLLM has a table."""
        name = f'"{_PREFIX}{table}"'
        found = self._connection.execute("select to_regclass(%s)", (name,)).fetchone()
        return found[0] is not None

    def read(self, table: str) -> list[Row]:
        """Return the rows of a table; none if this version of LiteLLM has no such table."""
        name = f"{_PREFIX}{table}"
        if not self.has(table):
            return []
        cursor = self._connection.execute(f'select * from "{name}" order by 1')  # noqa: S608 - our own
        columns = [each.name for each in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor]

    def name_key(self, token: str) -> str:
        """Return the gateway's name of a key by the token in a row of LiteLLM."""
        if not token:
            return ""
        digest = read_digest(token)
        return self.names.get(digest) or self._deleted.get(digest) or _name_digest(token)

    def list_teams(self) -> dict[str, Decimal | None]:
        """Return the names of all teams with their budgets for a month."""
        monthly = [each.budget for each in self.limits if each.budget.period == "month"]
        budgets = {each.account: each.usd for each in monthly}
        return {name: budgets.get(TEAM + name) for name in self.teams.values()}

    # --- private methods

    def _read_keys(self) -> list[Key]:
        rows = [row for row in self.read("VerificationToken") if row.get("team_id") != _DASHBOARD]
        taken: set[str] = set()
        for row in rows:
            alias = row.get("key_alias") or ""
            name = alias if _is_name(alias) else _name_digest(row["token"])
            if name in taken:
                name = f"{name[: MAX_NAME - 13]}-{read_digest(row['token'])[7:19]}"
            taken.add(name)
            self.names[read_digest(row["token"])] = name
        keys = [self._read_key(self.name_key(row["token"]), row) for row in rows]
        self.sessions = len(self.read("VerificationToken")) - len(rows)
        return keys

    def _read_key(self, name: str, row: Row) -> Key:
        own = self._budgets.get(row.get("budget_id"), {})
        limits: dict[str, Any] = {}
        for column, field in _LIMITS.items():
            most = row.get(column) if row.get(column) is not None else own.get(column)
            if most is not None and not 1 <= most <= MAX_LIMIT:
                self._remark(
                    "VerificationToken", column, [name], "must be 1 or more; the key is blocked"
                )
                limits["expires"] = _yesterday(self._now)
            elif most is not None:
                limits[field] = int(most)
        limit = self._read_limit(name, "VerificationToken", row)
        if limit is not None and limit.budget.period == "total":
            limits["budget_usd"] = limit.budget.usd
        elif limit is not None and limit.budget.period == "month":
            limits["budget_usd_month"] = limit.budget.usd
        team = self._teams.get(row.get("team_id"), {})
        expires = _read_time(row.get("expires"))
        if expires is not None:
            limits.setdefault("expires", expires.date())
        if row.get("blocked") or team.get("blocked"):
            limits["expires"] = _yesterday(self._now)
        digest, until = self._old.get(row["token"], (None, None))
        return Key(
            name,
            read_digest(row["token"]),
            models=self._read_models(name, row, team),
            team=self.teams.get(row.get("team_id"), row.get("team_id")),
            user=self.users.get(row.get("user_id"), row.get("user_id")) or None,
            old_hash=digest,
            old_until=until,
            **limits,
        )

    def _read_models(self, name: str, row: Row, team: Row) -> tuple[str, ...]:
        """Return the models that both the key and its team, or else its user, may use."""
        # LiteLLM checks the models of a user only for keys without a team.
        owner = team or self._users.get(row.get("user_id"), {})
        allowed = self._list_models(owner)
        models = self._list_models(row)
        found = [each for each in models if _covers(allowed, each)]
        found += [each for each in allowed if _covers(models, each)]
        unique = tuple(dict.fromkeys(["*"] if "*" in found else found))
        try:
            check_models(unique)
        except ValueError as error:
            self._remark("VerificationToken", "models", [name], f"{error}; the key may use none")
            return ()
        return unique

    def _list_models(self, row: Row) -> list[str]:
        models = [*(row.get("models") or ())]
        for group in row.get("access_group_ids") or ():
            models += self._groups.get(group, ())
        if not models or {"all-proxy-models", "all-team-models", "*"} & {*models}:
            return ["*"]
        return [each for each in models if each != "no-default-models"]

    def _read_limit(self, account: str, table: str, row: Row) -> Limit | None:
        """Note the budget of a row, of its own or of the table of budgets, and return it."""
        source = row
        if row.get("max_budget") is None:
            source = self._budgets.get(row.get("budget_id"), {})
        amount = source.get("max_budget")
        if amount is None:
            return None
        duration = source.get("budget_duration")
        period: Period | None = (
            "total" if duration is None else _PERIODS.get(str(duration).lower())
        )
        if period is None:
            why = f"a budget of {duration!r} has no equal; there are days, weeks and months"
            self._remark(table, "budget_duration", [account], why)
            return None
        try:
            usd = read_money(str(amount))
            spent = read_money(str(max(0.0, row.get("spend") or 0.0)))
        except ValueError as error:
            self._remark(table, "max_budget", [account], str(error))
            return None
        reset = _read_time(source.get("budget_reset_at") or row.get("budget_reset_at"))
        if reset is not None and reset <= self._now:
            spent = Decimal(0)  # LiteLLM resets the amount at its next check
        found = Limit(Budget(account, period, usd), spent)
        self.limits.append(found)
        return found

    def _read_deleted(self) -> dict[str, str]:
        """Return the names of deleted keys, of which only the cost is carried over."""
        return {
            read_digest(row["token"]): row["key_alias"]
            for row in self.read("DeletedVerificationToken")
            if _is_name(row.get("key_alias") or "")
        }

    def _read_old(self) -> dict[str, tuple[str, datetime]]:
        """Return the digests before a rotation, and until when they are valid, by new token."""
        found: dict[str, tuple[str, datetime]] = {}
        for row in self.read("DeprecatedVerificationToken"):
            until = _read_time(row["revoke_at"])
            if until is None or until <= self._now:
                continue
            current = row["active_token_id"]
            if current in found:
                why = "only the latest of several earlier keys stays valid"
                name = _name_digest(current)
                self._remark("DeprecatedVerificationToken", "token", [name], why)
            if current not in found or found[current][1] < until:
                found[current] = read_digest(row["token"]), until
        return found

    def _report(self) -> None:
        """Report each column with values that nothing here has an equal for."""
        for table, known in _KNOWN.items():
            named: dict[str, list[str]] = {}
            for row in self.read(table):
                if row.get("team_id") == _DASHBOARD or row.get("user_id") == "default_user_id":
                    continue
                # Fields of "metadata" can have an effect too, such as "guardrails".
                notes = row.get("metadata")
                inner = notes.items() if isinstance(notes, dict) else ()
                nested = {f"metadata.{name}": value for name, value in inner}
                for column, value in {**row, **nested}.items():
                    if column not in known and value not in (None, "", [], {}, False):
                        named.setdefault(column, []).append(self._name_row(table, row))
            for column, rows in named.items():
                self._remark(table, column, rows)

    def _name_row(self, table: str, row: Row) -> str:
        if table == "VerificationToken":
            return self.name_key(row["token"])
        shown = [str(value) for name, value in row.items() if name not in _SECRET and value]
        return self.teams.get(row.get("team_id"), "") or shown[0]

    def _remark(self, table: str, column: str, rows: Sequence[str], why: str = "") -> None:
        why = why or _ADVICE.get(f"{table}.{column}", "has no equal")
        count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
        self.remarks.append(f"{_PREFIX}{table}.{column}: {why} ({count}, such as {rows[0]})")


def connect_database(url: str) -> Any:
    """Connect to the database at the URL of LiteLLM's ``DATABASE_URL``, to read one state of it.

    Parameters that only Prisma reads are left out; ``schema`` names the schema of the tables.
    """
    psycopg = load_driver()
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError("must be a postgresql:// URL, such as LiteLLM's DATABASE_URL")
    query = parse_qsl(parts.query, keep_blank_values=True)
    kept = [(name, value) for name, value in query if name not in _PRISMA]
    query_text = urlencode(kept, quote_via=quote)
    target = urlunsplit((parts.scheme, parts.netloc, parts.path, query_text, ""))
    connection = psycopg.connect(target, client_encoding="utf8", connect_timeout=10)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    schema = dict(query).get("schema")
    if schema:
        connection.execute("select set_config('search_path', quote_ident(%s), true)", (schema,))
    found = connection.execute(f"""select to_regclass('"{_PREFIX}VerificationToken"')""")
    if found.fetchone()[0] is None:
        connection.close()
        raise ValueError("the database has no table LiteLLM_VerificationToken")
    return connection


def read_digest(token: str) -> str:
    """Return the digest of a key as the gateway stores it.

    LiteLLM stores the digest of keys that begin with ``sk-``, and any other key as it is.
    """
    return f"sha256:{token}" if _DIGEST.fullmatch(token) else hash_key(token)


def _name_digest(token: str) -> str:
    return f"litellm-{read_digest(token)[7:19]}"


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= MAX_NAME and text.isprintable() and not text.startswith(PREFIXES)


def _name_user(row: Row) -> str:
    email = row.get("user_email") or ""
    return email if _is_name(email) else str(row["user_id"])[:MAX_NAME]


def _name_teams(rows: Iterable[Row]) -> dict[Any, str]:
    """Return the names of teams by their ids; of teams with the same alias, the ids."""
    aliases = [row.get("team_alias") or "" for row in rows]
    names = {}
    for row, alias in zip(rows, aliases, strict=True):
        is_usable = _is_name(alias) and aliases.count(alias) == 1
        names[row["team_id"]] = alias if is_usable else str(row["team_id"])[:MAX_NAME]
    return names


def _covers(patterns: Iterable[str], model: str) -> bool:
    return any(each == "*" or fnmatchcase(model, each) for each in patterns)


def _read_time(value: datetime | None) -> datetime | None:
    """Return a time of a row, which LiteLLM stores in UTC without a time zone."""
    return value if value is None or value.tzinfo is not None else value.replace(tzinfo=UTC)


def _yesterday(now: datetime) -> date:
    """Return the expiry of a blocked key."""
    return now.date() - timedelta(days=1)
