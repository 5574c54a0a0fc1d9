"""Test ``/v1/admin``: who may do what, that a repeated request changes nothing, and the record of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import response_schema_conformance
from yarl import URL

from dragoman.errors import AuthenticationError
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.ledger import Ledger
from tests.listed import Listed

from .serving import serving

PEOPLE = "\n".join(
    [
        f"ann admin {hash_key('ann-key-0001')}",
        f"bob viewer {hash_key('bob-key-0001')}",
        f"carla lead research {hash_key('carla-key-0001')}",
    ]
)


class Admin:
    """A client of the administration, as a person."""

    def __init__(self, http: aiohttp.ClientSession, who: str | None) -> None:
        self._http = http
        self._headers = {} if who is None else {"authorization": f"Bearer {who}-key-0001"}

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self._http.request(
            method, URL(f"/v1/admin{path}", encoded=True), json=body, headers=self._headers
        ) as reply:
            text = await reply.text()
            return reply.status, await reply.json() if text else None


def make_app(place: Path | str, **more: Any) -> Any:
    store = KeyStore(place)
    store.add(
        [
            Key("one", hash_key("dg-one"), team="research", user="ann@x", budget_usd=Decimal(5)),
            Key("two", hash_key("dg-two"), team="web", user="bob@x"),
            Key("three", hash_key("dg-three"), user="ann@x"),
        ]
    )
    store.set_team("research", Decimal("20.5"))
    store.close()
    keys = load_keys(place)
    return create_app(
        {"fast": Listed("Hi", repeat=True)}, keys=keys, ledger=Ledger(), admin=PEOPLE, **more
    )


@contextlib.asynccontextmanager
async def gateway(place: Path | str) -> AsyncIterator[aiohttp.ClientSession]:
    app = make_app(place / "keys.db" if isinstance(place, Path) else place)
    async with serving(app) as url, aiohttp.ClientSession(url) as http:
        http.app = app
        yield http
    app.state.service.keys.close()


async def test_key_is_created_used_changed_rotated_and_revoked(tmp_path: Path) -> None:
    async with gateway(tmp_path) as http:
        ann = Admin(http, "ann")

        async def call(key: str) -> int:
            body = {"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}
            headers = {"authorization": f"Bearer {key}"}
            async with http.post("/v1/chat/completions", json=body, headers=headers) as reply:
                return reply.status

        status, made = await ann("PUT", "/keys/new", {"team": "web", "max_concurrency": 5})
        assert status == 201
        assert await call(made["key"]) == 200
        again, same = await ann("PUT", "/keys/new", {"team": "web", "max_concurrency": 5})
        assert again == 200
        assert "key" not in same
        assert same["max_concurrency"] == 5
        assert (await ann("PATCH", "/keys/new", {"models": ["slow"]}))[1]["models"] == ["slow"]
        assert await call(made["key"]) == 404
        await ann("PATCH", "/keys/new", {"models": ["*"]})
        _, rotated = await ann("POST", "/keys/new/rotate", {"overlap_hours": 0})
        assert await call(made["key"]) == 401
        assert await call(rotated["key"]) == 200
        assert (await ann("DELETE", "/keys/new"))[0] == 204
        assert await call(rotated["key"]) == 401
        assert (await ann("DELETE", "/keys/new"))[0] == 204
        assert (await ann("GET", "/keys/new"))[0] == 404
        _, changes = await ann("GET", "/audit?subject=new")
    actions = [(each["actor"], each["action"]) for each in changes["data"]]
    assert actions == [
        ("ann", action) for action in ("revoke", "rotate", "change", "change", "create")
    ]


async def test_lists_are_filtered_and_paged(tmp_path: Path) -> None:
    async with gateway(tmp_path) as http:
        bob = Admin(http, "bob")

        async def names(query: str) -> list[str]:
            _, found = await bob("GET", query)
            return [each["name"] for each in found["data"]]

        assert await names("/keys") == ["one", "three", "two"]
        assert await names("/keys?user=ann@x") == ["one", "three"]
        assert await names("/keys?team=web") == ["two"]
        assert await names("/keys?search=RESEARCH") == ["one"]
        _, first = await bob("GET", "/keys?limit=2")
        assert first["next"] == "three"
        assert await names("/keys?limit=2&after=three") == ["two"]
        assert "hash" not in str(first["data"]).replace("old_hash", "")
        _, teams = await bob("GET", "/teams")
        assert teams["data"] == [{"name": "research", "budget_usd_month": "20.5", "keys": 1}]
        _, users = await bob("GET", "/users")
        assert users["data"][0] == {
            "name": "ann@x",
            "keys": ["one", "three"],
            "teams": ["research"],
            "withdrawn": False,
        }
        _, budgets = await bob("GET", "/budgets")
        assert [each["account"] for each in budgets["data"]] == ["one", "team:research"]
        assert await names("/models") == ["fast"]
        _, page = await bob("GET", "/audit?limit=2")
        _, rest = await bob("GET", f"/audit?limit=9&before={page['next']}")
        numbers = [each["seq"] for each in [*page["data"], *rest["data"]]]
        assert numbers == sorted({*numbers}, reverse=True)


@pytest.mark.parametrize(
    ("who", "method", "path", "body", "status"),
    [
        (None, "GET", "/keys", None, 401),
        ("dan", "GET", "/keys", None, 401),
        ("bob", "PUT", "/keys/new", {}, 403),
        ("bob", "DELETE", "/keys/one", None, 403),
        ("carla", "PATCH", "/keys/one", {"max_concurrency": 3}, 200),
        ("carla", "PATCH", "/keys/one", {"team": "web"}, 403),
        ("carla", "PATCH", "/keys/two", {"max_concurrency": 3}, 403),
        ("carla", "PATCH", "/keys/two", {"team": "research"}, 403),
        ("carla", "DELETE", "/keys/two", None, 403),
        ("carla", "POST", "/keys/two/rotate", {}, 403),
        ("carla", "PUT", "/keys/own", {}, 201),
        ("carla", "PUT", "/keys/own", {"team": "web"}, 403),
        ("carla", "PUT", "/teams/research", {"budget_usd_month": "9"}, 403),
        ("carla", "GET", "/audit", None, 403),
        ("bob", "HEAD", "/keys", None, 200),
        ("carla", "HEAD", "/audit", None, 403),
        ("bob", "PUT", "/budgets/one:day", {"usd": "1"}, 403),
        ("carla", "PUT", "/budgets/one:day", {"usd": "1"}, 200),
        ("carla", "PUT", "/budgets/two:day", {"usd": "1"}, 403),
        ("carla", "PUT", "/budgets/team:research:day", {"usd": "1"}, 403),
        ("carla", "PUT", "/budgets/user:ann@x:day", {"usd": "1"}, 403),
        ("carla", "POST", "/budgets/team:research:month/reset", None, 403),
        ("carla", "DELETE", "/teams/web", None, 403),
        ("ann", "POST", "/budgets/team:research:month/reset", None, 200),
        ("ann", "POST", "/budgets/team:research:day/reset", None, 404),
        ("ann", "PUT", "/budgets/one:year", {"usd": "1"}, 400),
        ("ann", "PUT", "/budgets/one:day", {"usd": "-1"}, 400),
        ("ann", "PUT", "/budgets/one:day", {}, 400),
        ("ann", "PUT", "/budgets/none:day", {"usd": "1"}, 404),
        ("ann", "PUT", "/budgets/user:%00:day", {"usd": "1"}, 400),
        ("ann", "DELETE", "/budgets/none:day", None, 204),
        ("ann", "DELETE", "/teams/research", None, 400),
        ("ann", "DELETE", "/teams/none", None, 204),
        ("carla", "GET", "/keys/two", None, 404),
        ("ann", "PUT", "/teams/new", {"budget_usd_month": "9"}, 200),
        ("ann", "PUT", "/keys/x", {"budget_usd": "NaN"}, 400),
        ("ann", "PUT", "/keys/x", {"requests_per_minute": 10**13}, 400),
        ("ann", "PUT", "/keys/x", {"requests_per_minut": 1}, 400),
        ("ann", "PUT", "/keys/x", {"models": []}, 400),
        ("ann", "PUT", "/keys/team:x", {}, 400),
        ("ann", "PUT", "/keys/user:x", {}, 400),
        ("ann", "PATCH", "/keys/none", {}, 404),
        ("ann", "GET", "/keys?limit=0", None, 400),
        ("ann", "GET", "/keys?limit=99999999999999999999", None, 400),
    ],
)
async def test_person_may_do_what_the_role_allows(
    tmp_path: Path, who: str | None, method: str, path: str, body: Any, status: int
) -> None:
    async with gateway(tmp_path) as http:
        found, answer = await Admin(http, who)(method, path, body)
        assert found == status, answer
        _, keys = await Admin(http, "carla")("GET", "/keys")
        assert {each["team"] for each in keys["data"]} == {"research"}


@pytest.mark.parametrize("base", ["sqlite", "postgres"])
async def test_budget_is_set_reached_reset_and_removed(
    tmp_path: Path, base: str, request: pytest.FixtureRequest
) -> None:
    place = tmp_path if base == "sqlite" else request.getfixturevalue("postgres_url")
    names = ["one:total", "one:day", "team:research:week", "user:ann@x:30d", "tag:ci:month"]
    key = Key("one", "", team="research", user="ann@x")
    async with gateway(place) as http:
        ann = Admin(http, "ann")
        service = http.app.state.service

        async def read(name: str) -> dict[str, Any] | None:
            _, found = await ann("GET", "/budgets")
            return next((each for each in found["data"] if each["name"] == name), None)

        for name in names:
            for _ in range(2):
                status, made = await ann("PUT", f"/budgets/{quote(name)}", {"usd": "0.50"})
                assert status == 200
                assert made == {"name": name, "limit_usd": "0.50"}
            limited = service.keys.apply_budgets(key, tag="ci" if "tag" in name else "")
            assert name in {each.name for each in limited.limits} or name == "one:total"
            shown = await read(name)
            assert shown is not None
            assert shown["left_usd"] == "0.50"
        listed = {each.id: each for each in service.keys.keys}
        limited = service.keys.apply_budgets(listed["one"], tag="ci")
        service.ledger.ledger.settle(None, limited, money=Decimal("0.5"))
        assert (await ann("GET", "/keys/one"))[1]["exhausted"] == [
            each.name for each in limited.limits if each.usd == Decimal("0.50")
        ][:-1]
        for name in names:
            shown = await read(name)
            assert shown is not None
            assert shown["left_usd"] == "0"
            assert (await ann("POST", f"/budgets/{quote(name)}/reset"))[0] == 200
            shown = await read(name)
            assert shown is not None
            assert shown["left_usd"] == "0.50"
            for _ in range(2):
                assert (await ann("DELETE", f"/budgets/{quote(name)}"))[0] == 204
            assert await read(name) is None
        _, changes = await ann("GET", "/audit")
        found = [(each["action"], each["subject"]) for each in changes["data"]][:15]
    accounts = [name.rpartition(":")[0] for name in names]
    expected = [("budget", each) for each in accounts]
    for each in accounts:
        expected += [("reset", each), ("budget", each)]
    assert found == expected[::-1]


async def test_team_without_keys_is_deleted_with_its_budgets(tmp_path: Path) -> None:
    async with gateway(tmp_path) as http:
        ann = Admin(http, "ann")
        await ann("PUT", "/budgets/team:research:day", {"usd": "1"})
        status, answer = await ann("DELETE", "/teams/research")
        assert status == 400
        assert "1 keys belong to the team research, such as one" in str(answer)
        await ann("PATCH", "/keys/one", {"team": None})
        assert (await ann("DELETE", "/teams/research"))[0] == 204
        assert (await ann("GET", "/teams"))[1]["data"] == []
        _, budgets = await ann("GET", "/budgets")
        assert [each["name"] for each in budgets["data"]] == ["one:total"]


@pytest.mark.parametrize("act", ["change", "rotate", "revoke"])
def test_lead_changes_no_key_that_leaves_the_team_at_the_same_time(
    tmp_path: Path, act: str
) -> None:
    """The team is read in the transaction that changes the key, so nothing comes in between."""
    place = tmp_path / "keys.db"
    store = KeyStore(place)
    store.create("one", team="research")
    lead = KeyStore(place, actor="carla", team="research")
    first = lead.read_keys()[0]
    assert first.team == "research"
    store.change("one", {"team": "web"})
    acts: dict[str, Callable[[], Any]] = {
        "change": lambda: lead.change("one", {"max_concurrency": 3}),
        "rotate": lambda: lead.rotate("one", timedelta(0)),
        "revoke": lambda: lead.revoke("one"),
    }
    with pytest.raises(AuthenticationError, match="keys of this team only"):
        acts[act]()
    assert [each.actor for each in store.audit()] == [store.audit()[0].actor] * 2
    assert [key.hash for key in store.read_keys()] == [first.hash]
    store.close()
    lead.close()


@pytest.mark.parametrize("base", ["sqlite", "postgres"])
async def test_requests_about_one_key_at_the_same_time_agree(
    tmp_path: Path, base: str, request: pytest.FixtureRequest
) -> None:
    place = tmp_path if base == "sqlite" else request.getfixturevalue("postgres_url")
    async with gateway(place) as http:
        ann = Admin(http, "ann")
        made = [ann("PUT", "/keys/new", {"team": "web"}) for _ in range(8)]
        assert sorted([status for status, _ in await asyncio.gather(*made)]) == [200] * 7 + [201]
        gone = [ann("DELETE", "/keys/new") for _ in range(8)]
        assert {status for status, _ in await asyncio.gather(*gone)} == {204}
        _, changes = await ann("GET", "/audit?subject=new")
    assert [each["action"] for each in changes["data"]] == ["revoke", "create"]


@pytest.mark.parametrize("base", ["sqlite", "postgres"])
async def test_name_with_any_character_is_found_or_refused(
    tmp_path: Path, base: str, request: pytest.FixtureRequest
) -> None:
    place = tmp_path if base == "sqlite" else request.getfixturevalue("postgres_url")
    async with gateway(place) as http:
        ann = Admin(http, "ann")
        for name in ("a/b", "a/rotate", "a%2Fb", "50%", "\U0001f600", "'; drop", "a b"):
            path = f"/keys/{quote(name, safe='')}"
            status, made = await ann("POST", "/keys", {"name": name})
            assert status == 201, made
            assert (await ann("GET", path))[1]["name"] == name
            assert (await ann("PATCH", path, {"team": "web"}))[1]["team"] == "web"
            assert (await ann("PUT", path, {"team": "ops"}))[1]["team"] == "ops"
            assert (await ann("POST", f"{path}/rotate", {}))[1]["name"] == name
            assert (await ann("DELETE", path))[0] == 204
            assert (await ann("GET", path))[0] == 404
        for path in ("/keys/a%00b", "/keys/%00", "/keys/"):
            found = {
                method: (await ann(method, f"{path}{end}", body))[0]
                for method, end, body in [
                    ("GET", "", None),
                    ("PATCH", "", {}),
                    ("PUT", "", {}),
                    ("POST", "/rotate", {}),
                ]
            }
            assert set(found.values()) <= {400, 404}, (path, found)
        assert (await ann("GET", "/audit?subject=%00"))[1]["data"] == []
        status, answer = await ann("PUT", "/teams/x", {"budget_usd_month": "x" * 10_000})
        assert status == 400
        assert len(str(answer)) < 500


async def test_gateway_without_a_database_of_keys_names_the_reason(tmp_path: Path) -> None:
    keys = KeyRing([Key("one", hash_key("dg-one"))])
    plain = create_app({"fast": Listed()}, keys=keys)
    filed = create_app({"fast": Listed()}, keys=keys, admin=PEOPLE)
    for app, reason in [(plain, "must start it with --admin"), (filed, "are in a file")]:
        async with serving(app) as url, aiohttp.ClientSession(url) as http:
            status, answer = await Admin(http, "ann")("GET", "/keys")
        assert status == 404
        assert reason in str(answer)


def test_replies_match_the_openapi_description(tmp_path: Path) -> None:
    app = make_app(tmp_path / "keys.db", check_host=False)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    headers = {"authorization": "Bearer ann-key-0001"}
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if not operation.path.startswith("/v1/admin/"):
            continue
        case = operation.Case(
            path_parameters={"name": "one"}, body={}, media_type="application/json"
        )
        response = case.call(headers=headers)
        case.validate_response(response, checks=[response_schema_conformance])
        described = operation.definition.raw["responses"]
        assert str(response.status_code) in described, (operation.label, response.status_code)
        tried += 1
    assert tried == 18
    app.state.service.keys.close()
