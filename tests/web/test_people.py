"""People with names and roles: what each may read and change, and how it is recorded."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman import database as database_module
from dragoman.gateway.keys import Key, KeyRing, hash_key, new_key
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.people import People, Person
from dragoman.log import SqliteLog
from tests.listed import Listed, reply

from .test_site import get, open_site, priced

NAMES = ("ann", "bob", "carla")
SHOWN, HASHES = zip(*[new_key() for _ in NAMES], strict=True)
FILE = (
    f"# who may open the pages\nann admin {HASHES[0]}\n\nbob  viewer  {HASHES[1]}\n"
    f"carla lead rivers {HASHES[2]}\n"
)
WRONG = [
    "",
    "# nobody\n",
    "dg-secret-key",
    f"ann {HASHES[0]}",
    f"ann owner {HASHES[0]}",
    f"ann lead {HASHES[0]}",
    f"ann viewer rivers {HASHES[0]}",
    f"ann lead two words {HASHES[0]}",
    f"ann admin {HASHES[0]}\nann viewer {HASHES[1]}",
    f"ann admin {HASHES[0]}\nbob viewer {HASHES[0]}",
    f"ann admin {SHOWN[0]}",
]


def sign(name: str) -> dict[str, str]:
    """Return the headers of a person."""
    return {"authorization": f"Bearer {SHOWN[NAMES.index(name)]}"}


def test_people_are_found_by_their_keys() -> None:
    people = People(FILE)
    assert people.find(sign("ann")) == Person("ann", "admin", HASHES[0])
    assert people.find(sign("carla")) == Person("carla", "lead", HASHES[2], "rivers")
    assert People(f"{HASHES[0]}\n").find(sign("ann")) == Person("admin", "admin", HASHES[0])
    for value in (f"Basic {SHOWN[0]}", "Bearer dg-x", f"Bearer {HASHES[0]}", ""):
        assert people.find({"authorization": value}) is None


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))  # the keys are random
def test_wrong_people_are_refused_without_their_keys(text: str) -> None:
    with pytest.raises(ValueError, match=r"must have one line|two people|only the line") as caught:
        People(text)
    assert "dg-" not in str(caught.value)


# for each role: the pages, and what a request is answered
PAGES = {
    "ann": ["overview", "playground", "models", "keys", "traces", "clients"],
    "bob": ["overview", "playground", "models", "keys", "clients"],
    "carla": ["playground", "models", "keys", "clients"],
}
ALLOWED = [
    ("overview", "ann bob"),
    ("calls", "ann bob"),
    ("names?of=user", "ann bob"),
    ("models", "ann bob carla"),
    ("keys", "ann bob carla"),
    ("../traces/api/sessions", "ann"),
    ("../../metrics", "ann bob"),
    ("../../v1/spend", "ann bob carla"),
]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Return a key store with a key in each of two teams."""
    store = KeyStore(tmp_path / "keys.db", actor="root")
    for name, team in (("one", "rivers"), ("two", "hills")):
        store.add([Key(name, hash_key(f"dg-{name}"), team=team)])
    yield store
    store.close()


async def test_each_role_reads_what_it_may(store: KeyStore, tmp_path: Path) -> None:
    ring = load_keys(store.place)
    with SqliteLog(tmp_path / "log.db") as log:
        models = {"fast": priced(reply("Hello"))}
        async with open_site(models, keys=ring, admin=FILE, log=log) as url:
            for name in NAMES:
                _, _, text = await get(f"{url}/ui/api/state", sign(name))
                state = json.loads(text)
                assert state["person"]["name"] == name
                assert state["pages"] == PAGES[name]
                for path, names in ALLOWED:
                    status, _, text = await get(f"{url}/ui/api/{path}", sign(name))
                    refused = 401 if path.endswith("metrics") else 403
                    assert status == (200 if name in names.split() else refused), (name, path)
    ring.close()


async def test_lead_changes_keys_of_the_team_alone(store: KeyStore) -> None:
    ring = load_keys(store.place)
    async with open_site({"fast": priced(reply("Hello"))}, keys=ring, admin=FILE) as url:

        async def change(who: str, **body: Any) -> int:
            status, _, _ = await get(f"{url}/ui/api/keys", sign(who), "POST", json=body)
            return status

        assert await change("carla", action="new", name="three") == 200
        assert await change("carla", action="new", name="four", team="rivers") == 200
        assert await change("carla", action="change", name="one", budget_usd_month="5") == 200
        assert await change("carla", action="rotate", name="one") == 200
        assert await change("ann", action="revoke", name="four") == 200
        for body in (
            {"action": "new", "name": "five", "team": "hills"},
            {"action": "new", "name": "five", "team": None},
            {"action": "change", "name": "two", "budget_usd": "1"},
            {"action": "change", "name": "one", "team": "hills"},
            {"action": "change", "name": "nobody", "budget_usd": "1"},
            {"action": "revoke", "name": "two"},
            {"action": "team", "name": "rivers", "budget_usd_month": "100"},
        ):
            assert await change("carla", **body) == 400, body
        assert await change("bob", action="revoke", name="one") == 403
        _, _, text = await get(f"{url}/ui/api/keys", sign("carla"))
        seen = json.loads(text)
    ring.close()
    assert [each["id"] for each in seen["keys"]] == ["one", "three"]
    assert {each["team"] for each in seen["keys"]} == {"rivers"}
    records = [(each.actor, each.action, each.subject) for each in store.audit(limit=5)]
    assert records == [
        ("ann", "revoke", "four"), ("carla", "rotate", "one"), ("carla", "change", "one"),
        ("carla", "create", "four"), ("carla", "create", "three"),
    ]  # fmt: skip


async def test_reading_a_session_is_recorded_once_under_the_name_of_the_reader(
    store: KeyStore, tmp_path: Path
) -> None:
    ring = load_keys(store.place)
    before = store.version()
    with SqliteLog(tmp_path / "log.db") as log:
        models = {"fast": priced(reply("Hello"))}
        settings = {"keys": ring, "admin": FILE, "log": log, "log_content": True}
        async with open_site(models, **settings) as url:
            body = {"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}
            headers = {**sign("ann"), "x-call-key": "dg-one"}
            assert (await get(f"{url}/ui/api/chat", headers, "POST", json=body))[0] == 200
            _, _, text = await get(f"{url}/ui/traces/api/sessions", sign("ann"))
            name = json.loads(text)["sessions"][0]["session"]
            for path in ("steps", "totals", "export", "steps"):
                place = f"{url}/ui/traces/api/{path}?session={name}"
                assert (await get(place, sign("ann")))[0] == 200
                assert (await get(place, sign("bob")))[0] == 403
                assert (await get(place))[0] == 401
    ring.close()
    records = [(each.actor, each.action, each.subject) for each in store.audit(limit=1)]
    assert records == [("ann", "read", name)]
    assert len(store.audit(name)) == 1
    assert store.version() == before, "no gateway reads its keys again"


async def test_session_is_not_shown_if_its_reading_cannot_be_recorded(
    store: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.1)
    ring = load_keys(store.place)
    with SqliteLog(tmp_path / "log.db") as log:
        settings = {"keys": ring, "admin": FILE, "log": log, "log_content": True}
        async with open_site({"fast": priced(reply("Hello"))}, **settings) as url:
            place = f"{url}/ui/traces/api/steps?session=any"
            with closing(sqlite3.connect(store.place, isolation_level=None)) as other:
                other.execute("begin immediate")
                status, _, text = await get(place, sign("ann"))
                other.rollback()
            assert status == 503
            assert "cannot be recorded that you read this" in text
            assert (await get(place, sign("ann")))[0] != 503
    ring.close()


async def test_own_limit_is_no_failure_of_a_model() -> None:
    key = Key("ann", hash_key("dg-ann"), requests_per_minute=1)
    from_upstream = Listed(reply("Hello"), name="anthropic", model="claude-sonnet-4-5")
    async with open_site({"fast": from_upstream}, keys=KeyRing([key]), admin=HASHES[0]) as url:
        body = {"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}
        headers = {"authorization": "Bearer dg-ann"}
        statuses = [
            (await get(f"{url}/v1/chat/completions", headers, "POST", json=body))[0]
            for _ in range(3)
        ]
        _, _, text = await get(f"{url}/ui/api/overview", sign("ann"))
        overview = json.loads(text)
        _, _, text = await get(f"{url}/ui/api/calls?failed=1", sign("ann"))
    assert statuses == [200, 429, 429]
    assert len(from_upstream.requests) == 1
    assert overview["total"]["requests"] == 3
    assert overview["total"]["failed"] == 0
    [error] = overview["errors"]["rows"]
    assert error["name"] == "key_limit"
    assert error["requests"] == 2
    assert error["failed"] == 0
    assert json.loads(text)["calls"] == []
