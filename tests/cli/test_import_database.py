"""``dragoman import litellm --database``: keys, teams, budgets and costs of LiteLLM's proxy."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from click.testing import CliRunner, Result

from dragoman.cli import main
from dragoman.database import open_database
from dragoman.gateway import create_app
from dragoman.gateway.keys import Key
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.moving import DayAmounts, MovedSpend
from dragoman.gateway.sums import read_period, select_bill
from dragoman.registry import Registry
from dragoman.sim import ScriptedProvider, SimServer
from dragoman.transport.serving import serving

from ..databases import postgres_url as postgres_url
from ..databases import server as server

SCHEMA = Path(__file__).parents[1] / "compat" / "litellm_schema.sql"
NOW = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
SOON = NOW + timedelta(days=20)
MONTH = f"{NOW:%Y-%m}"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


# Each row: a table, and the columns of one row that differ from the defaults of its schema.
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("BudgetTable", {"budget_id": "b", "max_budget": 9.5, "budget_duration": "1mo", "rpm_limit": 7}),
    ("AccessGroupTable", {"access_group_id": "g", "access_group_name": "g", "access_model_names": ["nova"]}),
    ("TeamTable", {"team_id": "t1", "team_alias": "core", "models": ["fast", "openai/*"], "max_budget": 100.0,
                   "budget_duration": "30d", "spend": 12.25, "budget_reset_at": SOON}),
    ("TeamTable", {"team_id": "t2", "team_alias": "web", "blocked": True}),
    ("UserTable", {"user_id": "u1", "user_email": "ann@example.org", "models": ["fast"],
                   "max_budget": 20.0, "budget_duration": "1d", "spend": 3.5, "budget_reset_at": SOON}),
    ("VerificationToken", {"token": digest("sk-ann-canary"), "key_alias": "ann", "user_id": "u1", "team_id": "t1",
                           "max_budget": 5.0, "spend": 1.5, "rpm_limit": 60, "tpm_limit": 9000, "max_parallel_requests": 3}),
    ("VerificationToken", {"token": digest("sk-gpt-canary"), "key_alias": "gpt", "team_id": "t1",
                           "models": ["openai/gpt-4.1", "claude"]}),
    ("VerificationToken", {"token": digest("sk-own-canary"), "user_id": "u1", "models": ["all-team-models"]}),
    ("VerificationToken", {"token": digest("sk-blocked-canary"), "key_alias": "blocked", "blocked": True}),
    ("VerificationToken", {"token": digest("sk-web-canary"), "key_alias": "web", "team_id": "t2",
                           "max_budget": 7.0, "budget_duration": "7d", "spend": 0.5}),
    ("VerificationToken", {"token": digest("sk-late-canary"), "key_alias": "late", "expires": NOW - timedelta(days=3)}),
    ("VerificationToken", {"token": "plain-canary", "key_alias": "plain", "budget_id": "b", "spend": 4.0,
                           "access_group_ids": ["g"], "budget_reset_at": NOW - timedelta(hours=1)}),
    ("VerificationToken", {"token": digest("sk-ui"), "team_id": "litellm-dashboard"}),
    ("DeprecatedVerificationToken", {"id": "d", "token": digest("sk-before-canary"),
                                     "active_token_id": digest("sk-ann-canary"), "revoke_at": SOON}),
    ("DailyUserSpend", {"id": "1", "user_id": "u1", "date": "2026-11-01", "api_key": digest("sk-ann-canary"),
                        "model": "gpt-4.1", "model_group": "fast", "custom_llm_provider": "openai", "prompt_tokens": 70,
                        "completion_tokens": 30, "spend": 0.75, "successful_requests": 4, "failed_requests": 1}),
    ("DailyTeamSpend", {"id": "1", "team_id": "t1", "date": "2026-11-01", "api_key": digest("sk-ann-canary"),
                        "model": "gpt-4.1", "model_group": "fast", "custom_llm_provider": "openai", "prompt_tokens": 70,
                        "completion_tokens": 30, "spend": 0.75, "successful_requests": 4, "failed_requests": 1}),
    ("DailyUserSpend", {"id": "2", "date": "2026-11-02", "api_key": digest("sk-gone"), "model": "claude", "spend": 0.5,
                        "successful_requests": 2}),
    ("SpendLogs", {"request_id": "r", "call_type": "acompletion", "api_key": digest("sk-ann-canary"), "spend": 0.25,
                   "prompt_tokens": 7, "startTime": "2026-10-30 12:00", "endTime": "2026-10-30 12:01", "model": "gpt-4.1",
                   "model_group": "fast", "custom_llm_provider": "openai", "user": "u1", "team_id": "t1"}),
    ("SpendLogs", {"request_id": "s", "call_type": "acompletion", "api_key": digest("sk-ann-canary"), "spend": 0.75,
                   "startTime": "2026-11-01 12:00", "endTime": "2026-11-01 12:01", "model": "gpt-4.1"}),
]  # fmt: skip
# Each row: a row without an equal, and the remark about it.
WITHOUT_EQUAL: list[tuple[str, dict[str, Any], str]] = [
    ("VerificationToken", {"token": digest("sk-1"), "key_alias": "k", "allowed_routes": ["/x"]}, "LiteLLM_VerificationToken.allowed_routes: has no equal (1 row, such as k)"),
    ("VerificationToken", {"token": digest("sk-1"), "key_alias": "k", "metadata": {"guardrails": ["pii"]}}, "LiteLLM_VerificationToken.metadata.guardrails: has no equal (1 row, such as k)"),
    ("VerificationToken", {"token": digest("sk-1"), "key_alias": "k", "max_budget": 1.0, "budget_duration": "90m"}, "LiteLLM_VerificationToken.budget_duration: a budget of '90m' has no equal; there are days, weeks and months (1 row, such as k)"),
    ("VerificationToken", {"token": digest("sk-1"), "key_alias": "k", "rpm_limit": 0}, "LiteLLM_VerificationToken.rpm_limit: must be 1 or more; the key is blocked (1 row, such as k)"),
    ("TeamTable", {"team_id": "t", "team_alias": "core", "tpm_limit": 5}, "LiteLLM_TeamTable.tpm_limit: has no equal (1 row, such as core)"),
    ("UserTable", {"user_id": "u", "user_email": "ann@example.org", "user_role": "proxy_admin"}, "LiteLLM_UserTable.user_role: roles are not copied; name the administrators in the file of --admin (1 row, such as u)"),
    ("TeamMembership", {"user_id": "u", "team_id": "t", "budget_id": "b"}, "LiteLLM_TeamMembership.budget_id: has no equal (1 row, such as u)"),
    ("EndUserTable", {"user_id": "e", "blocked": True}, "LiteLLM_EndUserTable.blocked: has no equal (1 row, such as e)"),
    ("TagTable", {"tag_name": "ci", "models": [], "budget_id": "b"}, "LiteLLM_TagTable.budget_id: has no equal (1 row, such as ci)"),
    ("OrganizationTable", {"organization_id": "o", "organization_alias": "us", "budget_id": "b"}, "LiteLLM_OrganizationTable.budget_id: has no equal (1 row, such as o)"),
    ("ProxyModelTable", {"model_id": "m", "model_name": "fast", "litellm_params": {"api_key": "canary"}}, "LiteLLM_ProxyModelTable.model_name: models in the database are not read, since their settings are encrypted; add them to models.yaml (1 row, such as m)"),
]  # fmt: skip


def fill(url: str, rows: list[tuple[str, dict[str, Any]]]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA.read_text())
        for table, given in rows:
            times = [
                name
                for (name,) in connection.execute(
                    "select column_name from information_schema.columns where table_name = %s and "
                    "is_nullable = 'NO' and column_default is null and data_type like 'timestamp%%' "
                    "and table_schema = current_schema()",
                    (f"LiteLLM_{table}",),
                )
            ]
            texts = {"created_by": "a", "updated_by": "a"} if table in _AUTHORED else {}
            values = {**dict.fromkeys(times, NOW), **texts, **given}
            packed = [
                json.dumps(value) if isinstance(value, dict) else value
                for value in values.values()
            ]
            columns = ", ".join([f'"{name}"' for name in values])
            marks = ", ".join(["%s"] * len(values))
            connection.execute(
                f'insert into "LiteLLM_{table}" ({columns}) values ({marks})', packed
            )


_AUTHORED = {"BudgetTable", "OrganizationTable", "ProjectTable", "ProxyModelTable"}


def run(folder: Path, url: str, *words: str) -> Result:
    words = ("import", "litellm", "--database", url, "--output", str(folder), *words)
    return CliRunner().invoke(main, words, catch_exceptions=False)


def read_keys(folder: Path) -> dict[str, Key]:
    store = KeyStore(folder / "keys.db")
    try:
        return {key.id: key for key in store.read_keys()}
    finally:
        store.close()


def read_bill(folder: Path) -> list[tuple[Any, ...]]:
    base = open_database(folder / "state.db", [])
    period = read_period("2026-10-01", "2026-11-30")
    by = ("day", "key", "user", "team", "model", "vendor")
    lines = select_bill(base, period, by, {}, range(100))
    base.close()
    return [
        (*each.labels.values(), each.requests, each.failed, each.input_tokens, each.output_tokens, each.usd)
        for each in lines
    ]  # fmt: skip


BILL = [
    ("2026-10-30", "ann", "ann@example.org", "core", "fast", "openai", 1, 0, 7, 0, Decimal("0.25")),
    ("2026-11-01", "ann", "ann@example.org", "core", "fast", "openai", 5, 1, 70, 30, Decimal("0.75")),
    ("2026-11-02", f"litellm-{digest('sk-gone')[:12]}", "", "", "claude", "", 2, 0, 0, 0, Decimal("0.5")),
]  # fmt: skip


def test_keys_teams_budgets_and_costs_are_carried_over(postgres_url: str, tmp_path: Path) -> None:
    fill(postgres_url, ROWS)
    result = run(tmp_path, postgres_url, "--strict")
    assert result.exit_code == 0, result.output
    keys = read_keys(tmp_path)
    own = f"litellm-{digest('sk-own-canary')[:12]}"
    assert set(keys) == {"ann", "gpt", own, "blocked", "web", "late", "plain"}
    ann = keys["ann"]
    assert ann.models == ("fast", "openai/*")
    assert ann.user == "ann@example.org"
    assert ann.team == "core"
    assert ann.budget_usd == 5
    assert ann.team_budget_usd_month == 100
    assert ann.requests_per_minute == 60
    assert ann.tokens_per_minute == 9000
    assert ann.max_concurrency == 3
    assert keys["gpt"].models == ("openai/gpt-4.1",)
    assert keys[own].models == ("fast",)
    assert keys["plain"].models == ("nova",)
    assert keys["plain"].budget_usd_month == Decimal("9.5")
    assert keys["plain"].requests_per_minute == 7
    for name in ("blocked", "web", "late"):
        expires = keys[name].expires
        assert expires is not None
        assert expires < date.today()
    ring = load_keys(tmp_path / "keys.db")
    for key in ("sk-ann-canary", "sk-before-canary", "sk-gpt-canary", "plain-canary"):
        assert ring.find(key) is not None
    for key in (
        "sk-blocked-canary",
        "sk-web-canary",
        "sk-late-canary",
        "sk-ui",
        digest("sk-ann-canary"),
    ):
        assert ring.find(key) is None
    ring.close()
    ledger = Ledger(tmp_path / "state.db")
    assert ledger.spent("ann") == Decimal("1.5")
    assert ledger.spent("team:core", MONTH) == Decimal("12.25")
    assert ledger.spent("plain", MONTH) == 0
    ledger.close()
    ring = load_keys(tmp_path / "keys.db")
    ledger = Ledger(tmp_path / "state.db")
    left = {
        f"{each.account}:{each.period}": each.left
        for each in ledger.read_budgets(ring.list_budgets())
    }
    ledger.close()
    ring.close()
    assert left == {
        "ann:total": Decimal("3.5"), "team:core:month": Decimal("87.75"), "plain:month": Decimal("9.5"),
        "user:ann@example.org:day": Decimal("16.5"), "web:week": Decimal("6.5"),
    }  # fmt: skip
    assert read_bill(tmp_path) == BILL
    assert "canary" not in result.output
    assert "people logged in to LiteLLM's pages, left out: 1" in result.stdout


def test_repeated_import_changes_nothing_and_adds_what_is_new(
    postgres_url: str, tmp_path: Path
) -> None:
    fill(postgres_url, ROWS)
    run(tmp_path, postgres_url)
    before = read_keys(tmp_path)
    again = json.loads(run(tmp_path, postgres_url, "--json").stdout)
    assert again["keys"] == {"added": [], "changed": [], "kept": [], "revoked": [], "teams": []}
    assert again["costs"] == 0
    assert read_keys(tmp_path) == before
    assert read_bill(tmp_path) == BILL
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("update \"LiteLLM_DailyUserSpend\" set spend = 1.0 where id = '1'")
        connection.execute('update "LiteLLM_VerificationToken" set spend = 2.0, rpm_limit = 61 where key_alias = \'ann\'')  # fmt: skip
    ledger = Ledger(tmp_path / "state.db")
    ledger.settle(None, before["ann"], 1, Decimal("0.125"))
    store = KeyStore(tmp_path / "keys.db")
    store.revoke("gpt")
    store.close()
    later = json.loads(run(tmp_path, postgres_url, "--json").stdout)
    assert later["costs"] == 2
    assert later["keys"]["kept"] == ["ann"]
    assert later["keys"]["revoked"] == ["gpt"]
    assert ledger.spent("ann") == Decimal("2.125")
    ledger.close()
    assert read_bill(tmp_path)[1][-1] == Decimal("1.0")
    assert "gpt" not in read_keys(tmp_path)
    assert read_keys(tmp_path)["ann"].requests_per_minute == 60
    assert "keys changed: 1" in run(tmp_path, postgres_url, "--force").stdout
    assert read_keys(tmp_path)["ann"].requests_per_minute == 61


def test_dry_run_shows_what_would_be_written_and_writes_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    fill(postgres_url, ROWS)
    config = tmp_path / "config.yaml"
    config.write_text("general_settings: {master_key: sk-1234}\n")
    words = ("import", "litellm", str(config), "--database", postgres_url, "--dry-run", "--json")
    shown = json.loads(CliRunner().invoke(main, [*words, "--output", str(tmp_path)]).stdout)
    assert len(shown["keys"]["added"]) == 8
    assert shown["keys"]["added"][0] == "master"
    assert shown["keys"]["teams"] == ["core", "web"]
    assert shown["files"] == [str(tmp_path / "models.yaml")]
    assert [*tmp_path.iterdir()] == [config]


@pytest.mark.parametrize(("table", "row", "remark"), WITHOUT_EQUAL)
def test_strict_import_writes_nothing_without_an_equal(
    table: str, row: dict[str, Any], remark: str, postgres_url: str, tmp_path: Path
) -> None:
    fill(postgres_url, [(table, row)])
    result = run(tmp_path, postgres_url, "--strict", "--json")
    assert result.exit_code == 2
    shown = json.loads(result.stdout)
    assert shown["remarks"] == [{"line": None, "problem": remark}]
    assert "keys" not in shown
    assert [*tmp_path.iterdir()] == []
    assert "canary" not in result.output


def test_database_that_cannot_be_read_is_reported_without_its_password(
    postgres_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute('create schema if not exists "Proxy"')
    for url, problem in (
        ("mysql://ann:canary@127.0.0.1/x", "must be a postgresql:// URL"),
        ("postgresql://ann:canary@127.0.0.1:1/x", "connection"),
        (postgres_url, "has no table LiteLLM_VerificationToken"),
        (
            f"{postgres_url}&schema=Proxy&connection_limit=9",
            "has no table LiteLLM_VerificationToken",
        ),
    ):
        result = run(tmp_path, url)
        assert result.exit_code == 2
        assert problem in result.stderr
        assert "canary" not in result.output
    assert [*tmp_path.iterdir()] == []


def test_tables_are_read_from_the_schema_of_the_url(postgres_url: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = f"Proxy {connection.info.backend_pid}"
        connection.execute(f'create schema "{name}"; set search_path = "{name}"')
        connection.execute(SCHEMA.read_text())
        connection.execute(
            'insert into "LiteLLM_VerificationToken" (token, key_alias) values (%s, %s)',
            (digest("sk-1"), "ann"),
        )
    result = run(tmp_path, f"{postgres_url}&schema={name}&pool_timeout=3")
    assert result.exit_code == 0, result.output
    assert set(read_keys(tmp_path)) == {"ann"}


def test_moved_costs_are_added_once(tmp_path: Path) -> None:
    day = DayAmounts(0, "k", "", "", "m", "", input=1, output=2, picos=-1, answered=1, failed=0)
    for _ in range(2):
        spend = MovedSpend(tmp_path / "state.db", "one")
        other = MovedSpend(tmp_path / "state.db", "two")
        spend.set_days([day, day])
        spend.set_spent("k", "", Decimal(1))
        other.set_days([day])
        other.set_spent("k", "", Decimal(2))
        spend.close()
        other.close()
    base = open_database(tmp_path / "state.db", [])
    [row] = base.run("select requests, input, output, micros, picos from dragoman_bill")
    base.close()
    assert row[:3] == (3, 3, 6)
    assert row[3] * 10**6 + row[4] == -3
    ledger = Ledger(tmp_path / "state.db")
    assert ledger.spent("k") == 3
    ledger.close()


async def test_client_keeps_its_key_and_its_budget(postgres_url: str, tmp_path: Path) -> None:
    fill(postgres_url, ROWS)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        spent = "update \"LiteLLM_VerificationToken\" set spend = 5.0 where key_alias = 'ann'"
        connection.execute(spent)
    run(tmp_path, postgres_url)
    with SimServer(ScriptedProvider("Hi.")) as sim:
        config = tmp_path / "models.yaml"
        config.write_text(
            f"adapters:\n  a: {{type: openai-compatible, base_url: {sim.url}/v1}}\n"
            "models:\n  a:m: {aliases: [openai/gpt-4.1, fast], priced_as: 'openai:gpt-4.1'}\n"
        )
        async with Registry.load(config) as registry:
            ring = load_keys(tmp_path / "keys.db")
            app = create_app(registry, keys=ring, ledger=Ledger(tmp_path / "state.db"))
            async with (
                serving(app, host="127.0.0.1", port=0) as url,
                aiohttp.ClientSession(url) as client,
            ):
                for key, model, status, words in (
                    ("sk-gpt-canary", "openai/gpt-4.1", 200, "Hi."),
                    ("sk-gpt-canary", "fast", 404, "model"),
                    ("sk-blocked-canary", "fast", 401, "key"),
                    ("sk-ann-canary", "fast", 429, "the budget of this key is exhausted"),
                ):
                    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
                    headers = {"authorization": f"Bearer {key}"}
                    reply = await client.post("/v1/chat/completions", json=body, headers=headers)
                    assert reply.status == status
                    assert words in await reply.text()
