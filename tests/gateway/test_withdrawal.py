"""Withdraw the access of a user: keys and tokens stop at once, and no new ones are accepted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from dragoman.cli import main
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, hash_key
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.ledger import Ledger
from tests.listed import Listed, reply

from .serving import serving
from .test_administration import PEOPLE, Admin
from .test_tokens import provided

ANN = "ann@example.com"


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(
        request.getfixturevalue("postgres_url")
        if request.param == "postgres"
        else tmp_path / "keys.db"
    )


@pytest.fixture
def store(place: str) -> Iterator[KeyStore]:
    store = KeyStore(place, actor="root")
    store.add(
        [
            Key("one", hash_key("dg-one"), user=ANN),
            Key("two", hash_key("dg-two"), user=ANN, team="web"),
            Key("other", hash_key("dg-other"), user="bob@example.com"),
            Key("free", hash_key("dg-free")),
        ]
    )
    yield store
    store.close()


def test_user_without_access_has_no_keys_and_gets_none(store: KeyStore, place: str) -> None:
    with contextlib.closing(load_keys(place)) as ring:
        assert store.withdraw(ANN) == ("one", "two")
        ring.poll()
        assert [key.id for key in ring.keys] == ["free", "other"]
        assert isinstance(ring.source, KeyStore)
        assert ring.source.withdrawn == {ANN}
        with pytest.raises(ValueError, match="is withdrawn"):
            store.create("three", user=ANN)
        assert store.withdraw(ANN) == ()
        store.admit(ANN)
        with pytest.raises(LookupError, match="not withdrawn"):
            store.admit(ANN)
        assert store.create("three", user=ANN)
        ring.poll()
        assert ring.source.withdrawn == frozenset()
    records = [(each.actor, each.action, each.subject, each.detail) for each in store.audit()]
    assert records[1:3] == [
        ("root", "admit", ANN, {}),
        ("root", "withdraw", ANN, {"keys": ["one", "two"]}),
    ]


@pytest.mark.parametrize("user", ["", "x" * 201, "a\nb", "a\0b"])
def test_text_that_names_no_user_is_refused(store: KeyStore, user: str) -> None:
    for change in (store.withdraw, store.admit):
        with pytest.raises(ValueError, match="printable"):
            change(user)


async def test_tokens_and_keys_of_the_user_are_refused_by_a_gateway(
    store: KeyStore, place: str, tmp_path: Path
) -> None:
    async with provided(tmp_path) as (provider, tokens, _, _server):
        app = create_app(
            {"fast": Listed(reply("Hi"), repeat=True)}, keys=load_keys(place), tokens=tokens,
            ledger=Ledger(), admin=PEOPLE,
        )  # fmt: skip
        async with serving(app) as url, aiohttp.ClientSession(url) as http:
            ann = Admin(http, "ann")

            async def call(key: str) -> int:
                body = {"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}
                headers = {"authorization": f"Bearer {key}"}
                async with http.post("/v1/chat/completions", json=body, headers=headers) as got:
                    return got.status

            async def statuses() -> list[int]:
                return [await call(key) for key in ("dg-one", "dg-other", provider.sign())]

            assert await statuses() == [200, 200, 200]
            status, made = await ann("PUT", f"/users/{ANN}", {"withdrawn": True})
            assert status == 200
            assert made["deleted_keys"] == ["one", "two"]
            assert await statuses() == [401, 200, 403]
            _, again = await ann("PUT", f"/users/{ANN}", {"withdrawn": True})
            assert again["deleted_keys"] == []
            status, refused = await ann("PUT", "/keys/new", {"user": ANN})
            assert status == 400
            assert "is withdrawn" in refused["error"]["message"]
            _, users = await ann("GET", "/users")
            for who in ("bob", "carla"):
                assert (await Admin(http, who)("PUT", f"/users/{ANN}", {"withdrawn": True}))[
                    0
                ] == 403
            assert (await ann("PUT", f"/users/{ANN}", {}))[0] == 400
            await ann("PUT", f"/users/{ANN}", {"withdrawn": False})
            await ann("PUT", f"/users/{ANN}", {"withdrawn": False})
            assert await statuses() == [401, 200, 200]
            _, changes = await ann("GET", f"/audit?subject={ANN}")
        app.state.service.keys.close()
    assert users["data"] == [
        {"name": ANN, "keys": [], "teams": [], "withdrawn": True},
        {"name": "bob@example.com", "keys": ["other"], "teams": [], "withdrawn": False},
    ]
    actions = [(each["actor"], each["action"]) for each in changes["data"]]
    assert actions == [("ann", "admit"), ("ann", "withdraw")]


def test_command_withdraws_and_admits(store: KeyStore, place: str) -> None:
    def run(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(main, ["keys", "gateway", *words, "--auth", place])
        assert done.exit_code == code, done.output
        return done.output.strip()

    assert run("withdraw", ANN) == f"the access of {ANN} is withdrawn; deleted: one, two"
    assert run("withdraw", ANN) == f"the access of {ANN} is withdrawn"
    assert "is withdrawn" in run("new", "three", "--user", ANN, code=2)
    assert run("admit", ANN) == f"{ANN} is admitted"
    assert "not withdrawn" in run("admit", ANN, code=2)
    assert [key.id for key in store.read_keys()] == ["free", "other"]
