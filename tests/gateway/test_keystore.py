"""Test gateway keys in SQLite and PostgreSQL databases; every change has an audit record."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway import app as app_module
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key, new_key
from dragoman.gateway.keystore import KeyStore, is_key_database, load_keys

from ..listed import Listed, reply
from ..waiting import poll
from .conftest import OwnDatabase
from .serving import serving
from .test_app import BODY, bearer, post

Open = Callable[[], KeyStore]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(
        request.getfixturevalue("postgres_url")
        if request.param == "postgres"
        else tmp_path / "keys.db"
    )


@pytest.fixture
def ring(store: KeyStore, place: str) -> Iterator[KeyRing]:
    """Yield the key ring as a gateway opens it, over a separate connection to the key store."""
    with contextlib.closing(load_keys(place)) as opened:
        yield opened


@pytest.fixture
def store(place: str) -> Iterator[KeyStore]:
    opened = KeyStore(place, actor="ann@desk")
    yield opened
    opened.close()


def test_key_store_contains_hashes_rather_than_keys(
    store: KeyStore, ring: KeyRing, place: str
) -> None:
    shown = store.create(
        "ann", models=("fast",), budget_usd_month=Decimal("5.5"), expires=date(2030, 1, 31)
    )
    store.set_team("core", Decimal(100))
    store.change("ann", {"team": "core", "requests_per_minute": 60})
    ring.poll()
    found = ring.find(shown)
    assert found == Key(
        "ann", hash_key(shown), ("fast",), requests_per_minute=60, expires=date(2030, 1, 31),
        team="core",
        budget_usd_month=Decimal("5.5"), team_budget_usd_month=Decimal(100),
    )  # fmt: skip
    assert ring.find(shown, date(2030, 2, 1)) is None
    assert shown not in repr(store.audit()) + repr(ring.keys)
    if place.endswith(".db"):
        assert shown.encode() not in Path(place).read_bytes()
        assert Path(place).stat().st_mode & 0o077 == 0


def test_a_new_file_may_be_opened_several_times_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def create(number: int) -> None:
        together.wait()
        with contextlib.closing(KeyStore(tmp_path / f"{number // 4}.db")) as store:
            store.create(f"key{number}")

    with ThreadPoolExecutor(4) as threads:
        created = [threads.submit(create, number) for number in range(4 * 40)]
    assert [each.exception() for each in created] == [None] * len(created)


def test_rotated_key_stays_valid_during_the_overlap(store: KeyStore) -> None:
    old = store.create("ann", budget_usd=Decimal(1))
    new, until = store.rotate("ann", timedelta(hours=1))
    assert timedelta(minutes=59) < until - datetime.now(UTC) < timedelta(minutes=61)
    ring = KeyRing(source=store)
    assert ring.find(old) == ring.find(new) != None  # noqa: E711 - the same key, so the same budget
    newest, _ = store.rotate("ann", timedelta(0))
    ring.poll()
    assert [ring.find(each) is None for each in (old, new, newest)] == [True, True, False]


def test_every_change_of_a_key_is_recorded_for_audits(store: KeyStore) -> None:
    store.create("ann", models=("fast",))
    store.change("ann", {"models": ("*",), "budget_usd": Decimal(3)})
    store.rotate("ann", timedelta(hours=1))
    store.set_team("core", None)
    store.revoke("ann")
    records = store.audit()
    assert [(each.action, each.subject, each.actor) for each in records] == [
        ("revoke", "ann", "ann@desk"),
        ("team", "team:core", "ann@desk"),
        ("rotate", "ann", "ann@desk"),
        ("change", "ann", "ann@desk"),
        ("create", "ann", "ann@desk"),
    ]
    assert records[3].detail == {"models": ["*"], "budget_usd": "3"}
    assert "sha256" not in repr(records)
    assert abs(records[0].at - datetime.now(UTC)) < timedelta(minutes=5)
    assert [each.action for each in store.audit("team:core")] == ["team"]
    assert len(store.audit(limit=2)) == 2


BAD: list[tuple[Callable[[KeyStore], Any], type[Exception], str]] = [
    (lambda store: store.create("ann"), ValueError, "already"),
    (lambda store: store.add([Key("new", store.read_keys()[0].hash)]), ValueError,
     "hash of another key"),
    (lambda store: store.add([Key("new", str(store.read_keys()[0].old_hash))]), ValueError,
     "hash of another key"),
    (lambda store: store.create(""), ValueError, "1 to 200"),
    (lambda store: store.create("team:x"), ValueError, "does not begin with user:, team:, tag:"),
    (lambda store: store.create("a\nb"), ValueError, "printable"),
    (lambda store: store.create("bob", team="a\0b"), ValueError, "the team of a key must be 1 to"),
    (lambda store: store.change("ann", {"team": ""}), ValueError, "the team of a key must be 1 to"),
    (lambda store: store.create("bob", models=("*a" * 101,)), ValueError,
     "the models of a key must be 1 to 200 printable characters"),
    (lambda store: store.change("ann", {"models": ("fast", "")}), ValueError,
     "the models of a key must be 1 to 200"),
    (lambda store: store.change("ann", {"models": ("a",) * 1001}), ValueError,
     "the models of a key must be at most 1000 names or patterns"),
    (lambda store: store.change("bob", {}), LookupError, "no key named 'bob'"),
    (lambda store: store.rotate("bob", timedelta()), LookupError, "bob"),
    (lambda store: store.revoke("bob"), LookupError, "bob"),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(BAD)))
def test_rejected_changes_alter_neither_keys_nor_audit_records(at: int, store: KeyStore) -> None:
    store.create("ann")
    store.rotate("ann", timedelta(hours=1))
    attempt, kind, message = BAD[at]
    before = store.read_keys(), store.audit()
    with pytest.raises(kind, match=message):
        attempt(store)
    assert (store.read_keys(), store.audit()) == before


def test_key_changes_made_by_two_processes_are_both_visible(
    store: KeyStore, ring: KeyRing, place: str
) -> None:
    other = KeyStore(place)
    keys = [store.create("ann"), other.create("bob")]
    ring.poll()
    assert [ring.find(key) is not None for key in keys] == [True, True]
    other.revoke("ann")
    ring.poll()
    assert [ring.find(key) is not None for key in keys] == [False, True]
    other.close()


def test_key_is_invalid_after_its_database_file_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator restores a copy of the database, or moves a new one to its place."""
    file = tmp_path / "keys.db"
    with contextlib.closing(KeyStore(file)) as store:
        leaked = store.create("ann")
    with contextlib.closing(load_keys(file)) as ring:
        with contextlib.closing(KeyStore(tmp_path / "new.db")) as store:
            kept = store.create("bob")
        (tmp_path / "new.db").replace(file)
        ring.poll()
        assert [ring.find(key) is not None for key in (leaked, kept)] == [False, True]
        file.unlink()
        ring.poll()
        assert ring.find(kept) is not None
        assert "the database of keys is unavailable" in caplog.text
        assert not file.exists()


async def test_gateway_reads_changed_keys_while_it_runs(
    store: KeyStore, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "_POLL_SECONDS", 0.02)
    key = store.create("ann")
    ring.poll()
    model = Listed(reply("Hello"), repeat=True)
    async with serving(create_app({"fast": model}, keys=ring)) as url:
        path = f"{url}/v1/chat/completions"
        assert (await post(path, BODY, bearer(key)))[0] == 200
        new, _ = store.rotate("ann", timedelta(0))
        await poll(
            lambda: post(path, BODY, bearer(key)),
            lambda answer: answer[0] == 401,
            "the end of the old key",
        )
        assert (await post(path, BODY, bearer(new)))[0] == 200


def test_known_keys_stay_valid_while_the_database_is_unavailable(
    own_postgres: OwnDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    store = KeyStore(own_postgres.url)
    key = store.create("ann")
    ring = load_keys(own_postgres.url)
    own_postgres.stop()
    for _ in range(3):
        ring.poll()
        assert ring.find(key) is not None
    assert caplog.text.count("the database of keys is unavailable") == 1
    own_postgres.start()
    store.revoke("ann")
    ring.poll()
    assert ring.find(key) is None
    store.close()
    ring.close()


def test_key_databases_are_distinguished_from_key_files(tmp_path: Path) -> None:
    database = tmp_path / "keys"
    file = tmp_path / "keys.yaml"
    with sqlite3.connect(database) as base:
        base.execute("create table x (y)")
    base.close()
    file.write_text(f"keys:\n  ann:\n    hash: {new_key()[1]}\n")
    assert is_key_database(database)
    assert is_key_database(tmp_path / "new.db")
    assert is_key_database("postgresql://host/name")
    assert not is_key_database(file)
    assert not is_key_database(tmp_path / "new.yaml")


def test_key_file_supports_teams_and_rotated_keys(tmp_path: Path) -> None:
    old = new_key()
    new = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(
        f"keys:\n  ann:\n    hash: {new[1]}\n    old_hash: {old[1]}\n    old_until: "
        "2999-01-31T12:00:00Z\n    team: core\n    budget_usd_month: 7\nteams:\n  core: "
        "{budget_usd_month: 100}\n"
    )
    found = KeyRing.load(file).find(old[0])
    assert found is not None
    assert found.budget_usd_month == 7
    assert found.team_budget_usd_month == 100
    assert found.accounts == ("ann", "team:core")
    file.write_text(file.read_text().replace("2999-", "1999-"))
    assert KeyRing.load(file).find(old[0]) is None
    assert KeyRing.load(file).find(new[0]) is not None
