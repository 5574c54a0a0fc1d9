"""Files that an earlier version wrote open, have their content, and take more of it."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from dragoman.gateway.keys import Key
from dragoman.gateway.keystore import KeyStore
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.store import ResponseStore
from dragoman.log import CallCompleted, SqliteLog, TurnStarted
from dragoman.middleware import SqliteStore

from .rows import read_table


def use_log(path: Path) -> None:
    with SqliteLog(path) as log:
        [ended] = [record.payload for record in log.find("llm.call_completed")]
        assert isinstance(ended, CallCompleted)
        assert ended.input_tokens == 7
        assert ended.cost_usd == Decimal("0.25")
        log.append_sync("s1", TurnStarted(2))
        assert log.verify().ok


def use_keys(path: Path) -> None:
    with closing(KeyStore(path)) as store:
        key = store.read_keys()[0]
        assert key.id == "ann"
        assert key.models == ("fast",)
        assert key.team_budget_usd_month == Decimal(100)
        store.rotate("ann", timedelta(0))


def use_usage(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        assert ledger.spent("ann") == Decimal("1.25")
        ledger.settle(None, Key("bob", "h"), 10, Decimal(1))


def use_responses(path: Path) -> None:
    with closing(ResponseStore(path)) as store:
        assert asyncio.run(store.get("ann", "response", ["r1"])) == {"r1": {"text": "Hello."}}
        asyncio.run(store.put("ann", [("response", "r2", {}), ("item", "i", {})]))


def use_cache(path: Path) -> None:
    store = SqliteStore(path)
    assert asyncio.run(store.get("k")) == b"value"
    asyncio.run(store.put("other", b"value"))


@pytest.mark.parametrize(("kind", "statements"), read_table("files_of_earlier_versions"))
def test_earlier_file_opens_again(tmp_path: Path, kind: str, statements: list[str]) -> None:
    path = tmp_path / "earlier.db"
    with closing(sqlite3.connect(path)) as base:
        base.executescript("\n".join(statements))
    for _ in range(2):
        globals()[f"use_{kind}"](path)
