"""Log-in of people at an identity provider: the flow, and every way to get in without being let in."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

import aiohttp
import jwt
import pytest

from dragoman.errors import AuthenticationError, ProviderError, UnavailableError
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key, new_key
from dragoman.gateway.login import LogIn
from dragoman.gateway.people import Person
from dragoman.gateway.tokens import Tokens, load_tokens
from dragoman.transport.serving import serving
from dragoman.validate.yaml import ConfigError
from tests.gateway.test_tokens import FIRST, NOW, OTHER, Provider
from tests.listed import Clock, Listed, reply
from tests.server import Connection, serve

ADMIN, DIGEST = new_key()
SECRET = "first-" + "s" * 32
FILE = """
issuers:
  - issuer: {url}
    audience: callers
    user: email
    login:
      url: {pages}
      client_id: dragoman
      client_secret_file: {folder}/client
      session_secret_file: {folder}/session
      session_hours: 2
      label: Example
    rules:
      - {{claims: {{groups: operators}}, role: admin}}
      - {{claims: {{groups: watchers}}, role: viewer}}
      - {{claims: {{groups: leads}}, role: lead, team: research}}
      - {{claims: {{email: "*@example.com"}}, team: web, models: [fast], budget_usd_month: "20"}}
"""


class LoginProvider(Provider):
    """An identity provider with a log-in: the answers of its token and user endpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, Any] = {}
        self.user: dict[str, Any] = {"sub": "u1"}
        self.description: dict[str, Any] = {}
        self.redeemed: list[dict[str, str]] = []
        self.credentials: list[str] = []
        self.challenge = ""
        self.token_status = 200
        self.answer: Any = None
        self.key = (FIRST, "first", "RS256")

    async def handle(self, connection: Connection) -> None:
        path = connection.seen.path
        if path == "/.well-known/openid-configuration" and not self.is_down:
            found = {
                "issuer": self.url, "jwks_uri": f"{self.url}/jwks", "authorization_endpoint": f"{self.url}/auth",
                "token_endpoint": f"{self.url}/token", "userinfo_endpoint": f"{self.url}/me", **self.description,
            }  # fmt: skip
            connection.reply(200, json.dumps(found).encode())
        elif path == "/token":
            self.redeemed.append(dict(parse_qsl(connection.seen.body.decode())))
            self.credentials.append(connection.seen.headers.get("authorization", ""))
            made = {"access_token": "secret-access", "token_type": "Bearer"}
            made["id_token"] = self.sign(*self.key, **{"aud": "dragoman", **self.claims})
            answer = made if self.answer is None else self.answer
            connection.reply(self.token_status, json.dumps(answer).encode())
        elif path == "/me":
            connection.reply(200, json.dumps(self.user).encode())
        else:
            await super().handle(connection)


def load_login(folder: Path, issuer: str, pages: str) -> tuple[LogIn, Clock]:
    """Return the log-in of the file of these tests, and its clock."""
    (folder / "client").write_text("client secret+\n")
    (folder / "session").write_text(SECRET)
    (folder / "jwt.yaml").write_text(FILE.format(url=issuer, pages=pages, folder=folder))
    tokens = load_tokens(folder / "jwt.yaml")
    clock = Clock(NOW)
    tokens._clock = clock  # noqa: SLF001 - the file sets no clock
    return LogIn(tokens), clock


@contextlib.asynccontextmanager
async def provided(
    folder: Path, pages: str = "https://pages.example"
) -> AsyncIterator[tuple[LoginProvider, LogIn, Clock]]:
    provider = LoginProvider()
    async with serve(provider.handle) as server:
        provider.url = server.url
        login, clock = load_login(folder, server.url, pages)
        yield provider, login, clock
        await login._tokens.close()  # noqa: SLF001 - the gateway closes them


class Begun:
    """A log-in that has begun: the query with which a browser goes to the provider."""

    def __init__(self, address: str, cookie: str) -> None:
        self.address = address
        self.cookie = cookie
        self.asked = dict(parse_qsl(urlsplit(address).query))

    def answer(self, **more: str) -> list[tuple[str, str]]:
        return [*{"code": "c1", "state": self.asked["state"], **more}.items()]


async def begin(provider: LoginProvider, login: LogIn, **claims: Any) -> Begun:
    begun = Begun(*await login.begin())
    provider.claims = {"nonce": begun.asked["nonce"], **claims}
    return begun


async def log_in(provider: LoginProvider, login: LogIn, **claims: Any) -> str:
    begun = await begin(provider, login, **claims)
    return await login.finish(begun.answer(), begun.cookie)


# --- the flow ------------------------------------------------------------------------------------


async def test_flow_uses_state_nonce_and_pkce_and_redeems_the_code_with_the_secret(
    tmp_path: Path,
) -> None:
    async with provided(tmp_path) as (provider, login, _):
        begun = await begin(provider, login)
        other = await begin(provider, login)
        provider.claims["nonce"] = begun.asked["nonce"]
        session = await login.finish(begun.answer(iss=provider.url), begun.cookie)
    asked = begun.asked
    assert begun.address.startswith(f"{provider.url}/auth?")
    assert asked["response_type"] == "code"
    assert asked["client_id"] == "dragoman"
    assert asked["redirect_uri"] == "https://pages.example/ui/login/callback"
    assert asked["scope"] == "openid profile email"
    assert asked["code_challenge_method"] == "S256"
    assert not {*asked.values()} & {*other.asked.values()} - {
        asked[name]
        for name in (
            "response_type",
            "client_id",
            "redirect_uri",
            "scope",
            "code_challenge_method",
        )
    }
    [redeemed] = provider.redeemed
    digest = hashlib.sha256(redeemed["code_verifier"].encode()).digest()
    assert asked["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert redeemed["redirect_uri"] == asked["redirect_uri"]
    assert redeemed["code"] == "c1"
    assert "client_secret" not in redeemed
    kind, _, text = provider.credentials[0].partition(" ")
    assert kind == "Basic"
    # the file has two words, of which the first is the newest secret
    assert base64.b64decode(text).decode() == "dragoman:client"
    assert "secret-access" not in session


async def test_secret_is_in_the_body_for_a_provider_that_takes_it_only_there(
    tmp_path: Path,
) -> None:
    async with provided(tmp_path) as (provider, login, _):
        provider.description["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
        await log_in(provider, login)
    assert provider.redeemed[0]["client_secret"] == "client"
    assert provider.credentials == [""]


ROLES: list[tuple[dict[str, Any], tuple[str, str | None, str | None]]] = [
    ({"groups": ["staff", "operators"]}, ("admin", None, None)),
    ({"groups": "watchers"}, ("viewer", None, None)),
    ({"groups": ["leads"]}, ("lead", "research", "research")),
    ({"groups": []}, ("self", None, "web")),
    ({"groups": ["leads", "operators"]}, ("admin", None, None)),  # the first rule that fits
]


@pytest.mark.parametrize(("claims", "expected"), ROLES)
async def test_rules_give_the_role_and_the_rights(
    tmp_path: Path, claims: dict[str, Any], expected: tuple[str, str | None, str | None]
) -> None:
    async with provided(tmp_path) as (provider, login, _):
        person = login.find_person(await log_in(provider, login, **claims))
    assert person is not None
    assert person.name == "jwt:ann@example.com"
    assert person.own is not None
    assert (person.role, person.team, person.own.team) == expected
    assert person.own.user == "ann@example.com"
    if person.role == "self":
        assert person.own.models == ("fast",)


async def test_groups_may_come_from_the_user_endpoint_alone(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, login, _):
        provider.user["groups"] = ["operators"]
        promoted = login.find_person(await log_in(provider, login, groups=None))
        kept = login.find_person(await log_in(provider, login, groups=["watchers"]))
    assert promoted is not None
    assert promoted.role == "admin"
    assert kept is not None
    assert kept.role == "viewer"  # what the issuer signed counts first


async def test_session_has_only_the_groups_that_rules_name(tmp_path: Path) -> None:
    groups = [f"group-{number:04}-{'x' * 36}" for number in range(150)]
    async with provided(tmp_path) as (provider, login, _):
        session = await log_in(provider, login, groups=[*groups, "leads"])
        person = login.find_person(session)
    assert len(session) < 600
    assert person is not None
    assert person.role == "lead"


# --- attacks on the flow -------------------------------------------------------------------------

WRONG_IDENTITY: dict[str, dict[str, Any]] = {
    "another audience": {"aud": "elsewhere"},
    "the audience of callers": {"aud": "callers"},
    "several audiences without a party": {"aud": ["dragoman", "other"]},
    "the party of another client": {"aud": ["dragoman", "other"], "azp": "other"},
    "a single audience with another party": {"azp": "other"},
    "another issuer": {"iss": "https://elsewhere.example"},
    "expired": {"exp": NOW - 31},
    "no end": {"exp": None},
    "not valid yet": {"nbf": NOW + 31},
    "issued in the future": {"iat": NOW + 31},
    "no nonce": {"nonce": None},
    "the nonce of another log-in": {"nonce": "0" * 64},
    "a nonce that is no text": {"nonce": ["x"]},
    "half a character as the nonce": {"nonce": "\ud800"},
    "no subject": {"sub": None},
    "another subject than at the user endpoint": {"sub": "u2"},
    "no user": {"email": None},
    "a list as the user": {"email": ["ann@example.com"]},
    "an address that is not confirmed": {"email_verified": False},
    "an address that is not confirmed, as text": {"email_verified": "false"},
    "nobody of the rules": {"email": "eve@elsewhere.com", "groups": ["staff"]},
    "a group in another case": {"email": "eve@elsewhere.com", "groups": ["Operators"]},
    "an object as the groups": {"email": "eve@elsewhere.com", "groups": {"operators": True}},
    "groups as a text with commas": {"email": "eve@elsewhere.com", "groups": "x,operators"},
    "a list in the list of groups": {"email": "eve@elsewhere.com", "groups": [["operators"]]},
}


@pytest.mark.parametrize("way", WRONG_IDENTITY)
async def test_identity_that_is_not_meant_is_refused(tmp_path: Path, way: str) -> None:
    async with provided(tmp_path) as (provider, login, _):
        assert await log_in(provider, login)
        with pytest.raises((AuthenticationError, UnavailableError)) as caught:
            await log_in(provider, login, **WRONG_IDENTITY[way])
    assert provider.claims.get("nonce") == WRONG_IDENTITY[way].get(
        "nonce", provider.claims["nonce"]
    )
    assert "eyJ" not in str(caught.value)


@pytest.mark.parametrize(
    "key", [(OTHER, "first", "RS256"), (OTHER, "other", "RS256"), ("s" * 64, "first", "HS256")]
)
async def test_identity_with_another_signature_is_refused(tmp_path: Path, key: Any) -> None:
    async with provided(tmp_path) as (provider, login, _):
        assert await log_in(provider, login)
        provider.key = key
        with pytest.raises(AuthenticationError, match="refused this log-in"):
            await log_in(provider, login)


async def test_answer_counts_only_with_its_own_cookie_and_state(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, login, clock):
        mine = await begin(provider, login)
        theirs = await begin(provider, login)
        session = await log_in(provider, login)
        forged = jwt.encode({"aud": "begun", "iss": provider.url, "iat": NOW, "exp": NOW + 9, "seed": "x"},
                            "e" * 32, "HS256")  # fmt: skip
        state = hashlib.sha256(b"state:x").hexdigest()
        for answer, cookie in [
            (mine.answer(), None),
            (mine.answer(), ""),
            (mine.answer(), theirs.cookie),  # an attacker's code in the victim's browser
            (mine.answer(state=theirs.asked["state"]), mine.cookie),
            (mine.answer(state=""), mine.cookie),
            (mine.answer(state="é"), mine.cookie),
            ([("code", "c1")], mine.cookie),
            ([*mine.answer(), ("state", mine.asked["state"])], mine.cookie),
            ([*mine.answer(), ("code", "c2")], mine.cookie),
            ([("code", "c1"), ("state", state)], forged),
            (mine.answer(), session),
            (mine.answer(code=""), mine.cookie),
            (mine.answer(code="x" * 5000), mine.cookie),
        ]:
            with pytest.raises(AuthenticationError, match=r"Begin again"):
                await login.finish(answer, cookie)
        assert len(provider.redeemed) == 1
        clock.now += 631
        with pytest.raises(AuthenticationError, match="ten minutes"):
            await login.finish(mine.answer(), mine.cookie)
        assert len(provider.redeemed) == 1


async def test_answer_of_another_issuer_is_refused_before_its_code_is_sent(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, login, clock):
        begun = await begin(provider, login)
        with pytest.raises(AuthenticationError):
            await login.finish(begun.answer(iss="https://evil.example"), begun.cookie)
        provider.description["authorization_response_iss_parameter_supported"] = True
        clock.now += 600
        with pytest.raises(AuthenticationError):
            await login.finish(begun.answer(), begun.cookie)
        assert provider.redeemed == []
        assert await login.finish(begun.answer(iss=provider.url), begun.cookie)


async def test_used_code_and_errors_of_the_provider_are_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with provided(tmp_path) as (provider, login, clock):
        begun = await begin(provider, login)
        said = {}
        for name, answer in {
            "denied": begun.answer(error="access_denied", error_description="<b>you</b>"),
            "other": begun.answer(error="made_up\nline", error_description="call 555-0100"),
        }.items():
            with pytest.raises(AuthenticationError) as caught:
                await login.finish(answer, begun.cookie)
            said[name] = caught.value.message
        for status in (400, 401, 500):
            provider.token_status = status
            provider.answer = {"error": "invalid_grant", "error_description": "secret-hint"}
            with pytest.raises(ProviderError) as failed:
                await login.finish(begun.answer(), begun.cookie)
            said[str(status)] = failed.value.message
        provider.token_status = 200
        for wrong in ({}, [], {"id_token": 7}, {"id_token": "x" * 20_000}, {"id_token": "a.b.c"}):
            provider.answer = wrong
            with pytest.raises(ProviderError):
                await login.finish(begun.answer(), begun.cookie)
        provider.is_down = True
        assert await login.begin()  # what was read ten minutes ago is used
        clock.now += 601
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await login.begin()
    assert said == {
        "denied": "You were not let in at the identity provider, or you cancelled.",
        "other": "The identity provider refused this log-in. Ask the operator of this gateway.",
        "400": "The identity provider takes this answer no longer. Begin again.",
        "401": "The identity provider refused this log-in. Ask the operator of this gateway.",
        "500": "The identity provider cannot be reached. Try again in a minute.",
    }
    for secret in (
        "c1",
        "secret-hint",
        "555",
        "eyJ",
        begun.asked["state"],
        SECRET,
        "client secret",
    ):
        assert secret not in caplog.text
    assert "made_upline" in caplog.text


@pytest.mark.parametrize(
    "description",
    [
        {"issuer": "https://evil.example"},
        {"authorization_endpoint": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "http://evil.example/auth"},
    ],
)
async def test_description_that_cannot_be_trusted_is_refused(
    tmp_path: Path, description: dict[str, Any]
) -> None:
    async with provided(tmp_path) as (provider, login, _):
        provider.description = description
        with pytest.raises(UnavailableError):
            await login.begin()


async def test_code_is_sent_over_tls_only(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, login, _):
        provider.description["token_endpoint"] = "http://elsewhere.example/token"
        begun = await begin(provider, login)
        with pytest.raises(UnavailableError):
            await login.finish(begun.answer(), begun.cookie)


# --- sessions ------------------------------------------------------------------------------------


def forge(session: str, secret: str = SECRET, algorithm: str = "HS256", **changes: Any) -> str:
    """Return a session with other content, signed with a secret."""
    held = jwt.decode(session, options={"verify_signature": False})
    return jwt.encode({**held, **changes}, secret, algorithm)


def encode(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


OPERATOR = {"email": "ann@example.com", "groups": ["operators"]}
FORGED: dict[str, Any] = {
    "nothing": lambda it: "",
    "no token": lambda it: "x",
    "another secret": lambda it: forge(it, "e" * 32, claims=OPERATOR),
    "a guessed secret": lambda it: forge(it, "secret", claims=OPERATOR),
    "no signature": lambda it: (
        f"{encode({'alg': 'none'})}.{forge(it, claims=OPERATOR).split('.')[1]}."
    ),
    "the signature of another": lambda it: (
        f"{it.split('.')[0]}.{forge(it, claims=OPERATOR).split('.')[1]}.{it.split('.')[2]}"
    ),
    "another algorithm": lambda it: forge(it, algorithm="HS512"),
    "a log-in that has begun": lambda it: forge(it, aud="begun"),
    "another issuer": lambda it: forge(it, iss="https://evil.example"),
    "expired": lambda it: forge(it, exp=NOW - 31),
    "no end": lambda it: forge(it, exp=None),
    "of the future": lambda it: forge(it, iat=NOW + 31),
    "a long text": lambda it: it + "x" * 5000,
}


@pytest.mark.filterwarnings("ignore::jwt.InsecureKeyLengthWarning")
@pytest.mark.parametrize("way", FORGED)
async def test_forged_session_is_nobody(tmp_path: Path, way: str) -> None:
    async with provided(tmp_path) as (provider, login, _):
        session = await log_in(provider, login)
        assert login.find_person(forge(session)) is not None
        assert login.find_person(FORGED[way](session)) is None


async def test_session_ends_and_its_secret_rotates(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, login, clock):
        old = await log_in(provider, login)
        (tmp_path / "session").write_text(f"second-{'t' * 32}\n{SECRET}\n")
        new = await log_in(provider, login)
        assert login.find_person(old) is not None
        assert login.find_person(new) is not None
        (tmp_path / "session").write_text(f"second-{'t' * 32}\n")
        assert login.find_person(old) is None
        assert login.find_person(new) is not None
        clock.now += 2 * 3600 + 31
        assert login.find_person(new) is None
        (tmp_path / "session").unlink()
        with pytest.raises(UnavailableError, match="cannot be read"):
            login.find_person(new)


async def test_rules_of_today_decide_about_a_session_of_yesterday(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, login, _):
        session = await log_in(provider, login, groups=["operators"])
        text = (tmp_path / "jwt.yaml").read_text()
        (tmp_path / "jwt.yaml").write_text(text.replace("groups: operators", "groups: admins"))
        tokens = load_tokens(tmp_path / "jwt.yaml")
        tokens._clock = Clock(NOW)  # noqa: SLF001 - the file sets no clock
        person = LogIn(tokens).find_person(session)
        await tokens.close()
    assert person is not None
    assert person.role == "self"


# --- the pages -----------------------------------------------------------------------------------


class Browser:
    """A client that keeps cookies and does not follow redirects."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self.url = url

    async def __call__(self, path: str, method: str = "GET", **facts: Any) -> tuple[int, Any, str]:
        async with self._http.request(
            method, f"{self.url}{path}", allow_redirects=False, **facts
        ) as answer:
            return answer.status, answer.headers, await answer.text()

    async def log_in(self, provider: LoginProvider, **claims: Any) -> tuple[int, Any, str]:
        _, headers, _ = await self("/ui/login")
        asked = dict(parse_qsl(urlsplit(headers["location"]).query))
        provider.claims = {"nonce": asked["nonce"], **claims}
        query = urlencode({"code": "c1", "state": asked["state"]})
        return await self(f"/ui/login/callback?{query}")


@contextlib.asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncIterator[tuple[LoginProvider, Browser]]:
    """Serve a gateway with the pages and a log-in."""
    async with provided(folder, "http://127.0.0.1:9") as (provider, login, _):
        tokens = login._tokens  # noqa: SLF001 - the same clock
        app = create_app(
            {"fast": Listed(reply("Hello"), repeat=True)}, tokens=tokens, admin=DIGEST,
            ui="dragoman.gateway.web", **settings,
        )  # fmt: skip
        jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address, not of a name
        async with (
            app.router.lifespan_context(app),
            serving(app) as url,
            aiohttp.ClientSession(cookie_jar=jar) as http,
        ):
            yield provider, Browser(http, url)


async def test_person_logs_in_reads_and_logs_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as (provider, browser):
        _, _, text = await browser("/ui/api/state")
        assert json.loads(text) == {"sign_in": True, "log_in": "Example"}
        status, headers, text = await browser.log_in(provider, groups=["operators"])
        assert status == 303
        assert headers["location"] == "http://127.0.0.1:9/"
        assert text == ""
        _, _, text = await browser("/ui/api/state")
        state = json.loads(text)
        assert state["person"] == {"name": "jwt:ann@example.com", "role": "admin"}
        assert state["logged_in"]
        assert (await browser("/ui/api/overview"))[0] == 200
        same = {"origin": browser.url, "sec-fetch-site": "same-origin"}
        status, headers, _ = await browser("/ui/api/logout", "POST", headers=same)
        assert status == 200
        assert "Max-Age=0" in headers["set-cookie"]
        status, _, text = await browser("/ui/api/overview")
    assert status == 401
    assert json.loads(text) == {"error": "your session is over; log in again"}


async def test_cookies_are_strict_hidden_from_scripts_and_short(tmp_path: Path) -> None:
    async with opened(tmp_path) as (provider, browser):
        _, begun, _ = await browser("/ui/login")
        _, finished, _ = await browser.log_in(provider)
    lax = SimpleCookie(begun["set-cookie"])["dragoman-begun"]
    assert lax["samesite"] == "lax"
    assert lax["httponly"]
    assert lax["path"] == "/"
    assert lax["max-age"] == "600"
    session, gone = [SimpleCookie(each) for each in finished.getall("set-cookie")]
    strict = session["dragoman-session"]
    assert strict["samesite"] == "strict"
    assert strict["httponly"]
    assert strict["max-age"] == "7200"
    assert gone["dragoman-begun"]["max-age"] == "0"
    assert "domain=" not in finished["set-cookie"].lower()


async def test_cookies_of_an_address_with_tls_are_bound_to_it(tmp_path: Path) -> None:
    async with provided(tmp_path) as (_, login, _clock):
        assert login.is_secure
        assert login.cookie_name("session") == "__Host-dragoman-session"
    async with provided(tmp_path, "http://localhost:8100") as (_, login, _clock):
        assert not login.is_secure
        assert login.cookie_name("session") == "dragoman-session"


async def test_session_counts_for_the_pages_of_this_site_alone(tmp_path: Path) -> None:
    settings = {
        "keys": KeyRing([Key("one", hash_key("dg-one"))]),
        "cors": ["https://evil.example"],
    }
    async with opened(tmp_path, **settings) as (provider, browser):
        await browser.log_in(provider, groups=["operators"])
        assert (await browser("/ui/api/overview"))[0] == 200
        for headers in (
            {"origin": "https://evil.example"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site", "origin": browser.url},
            {"origin": "null"},
        ):
            for path, method in (("/ui/api/overview", "GET"), ("/ui/api/preview", "POST"), ("/ui/api/logout", "POST")):  # fmt: skip
                status, found, _ = await browser(path, method, headers=headers, json={})
                assert status == 403, (path, headers)
                assert "set-cookie" not in found
        # a wrong key is not repaired by a cookie, and the cookie opens nothing for programs
        wrong = {"authorization": "Bearer dg-wrong"}
        assert (await browser("/ui/api/overview", headers=wrong))[0] == 401
        for path in ("/metrics", "/v1/spend", "/v1/admin/keys", "/v1/models"):
            assert (await browser(path))[0] == 401, path
        # the admin key stays one way among others
        signed = {"authorization": f"Bearer {ADMIN}"}
        assert (await browser("/ui/api/overview", headers=signed))[0] == 200


@pytest.mark.parametrize(("claims", "role"), [(each, role) for each, (role, *_) in ROLES[1:4]])
async def test_role_of_a_session_opens_its_pages_only(
    tmp_path: Path, claims: dict[str, Any], role: str
) -> None:
    async with opened(tmp_path) as (provider, browser):
        await browser.log_in(provider, **claims)
        _, _, text = await browser("/ui/api/state")
        assert json.loads(text)["person"]["role"] == role
        reads = (await browser("/ui/api/overview"))[0]
    assert reads == (200 if role == "viewer" else 403)


async def test_answers_are_explained_on_a_page_without_what_the_address_says(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (provider, browser):
        provider.is_down = True
        status, _, text = await browser("/ui/login")
        assert status == 503
        assert "cannot be reached" in text
        for path in (
            "/ui/login/callback",
            "/ui/login/callback?code=c1&state=x&next=https://evil.example",
            "/ui/login/callback?error=%3Cscript%3E&error_description=%3Cscript%3E",
        ):
            status, headers, text = await browser(path)
            assert status == 400
            assert "text/html" in headers["content-type"]
            assert "location" not in headers
            assert headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            assert "begun more than ten minutes ago" in text
            assert "evil" not in text
            assert "<script" not in text


@pytest.mark.parametrize(
    "more", ["?next=https://evil.example", "?redirect_uri=https://evil.example"]
)
async def test_nothing_in_a_request_chooses_where_people_are_sent(
    tmp_path: Path, more: str
) -> None:
    async with opened(tmp_path) as (provider, browser):
        headers = {"host": "evil.example", "x-forwarded-host": "evil.example"}
        _, found, _ = await browser(f"/ui/login{more}", headers=headers)
        assert found["location"].startswith(f"{provider.url}/auth?")
        assert "evil" not in found["location"]
        asked = parse_qs(urlsplit(found["location"]).query)
        provider.claims = {"nonce": asked["nonce"][0]}
        query = urlencode(
            {"code": "c1", "state": asked["state"][0], "next": "https://evil.example"}
        )
        # aiohttp keeps the cookie for the address that it asked
        status, found, _ = await browser(f"/ui/login/callback?{query}")
    assert status == 303
    assert found["location"] == "http://127.0.0.1:9/"


async def test_session_that_an_attacker_chose_is_replaced(tmp_path: Path) -> None:
    async with opened(tmp_path) as (provider, browser):
        await browser.log_in(provider, email="eve@example.com", groups=[])
        await browser.log_in(provider, groups=["watchers"])
        _, _, text = await browser("/ui/api/state")
    assert json.loads(text)["person"] == {"name": "jwt:ann@example.com", "role": "viewer"}


async def test_nothing_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(tmp_path) as (provider, browser):
        _, headers, _ = await browser.log_in(provider, groups=["operators"])
        session = SimpleCookie(headers.getall("set-cookie")[0])["dragoman-session"].value
        await browser("/ui/api/state")
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("dragoman")]
    assert "jwt:ann@example.com logged in as admin" in ours
    said = unquote("\n".join(ours))
    for secret in (SECRET, "client secret", "secret-access", session, "code=", "eyJ"):
        assert secret not in said


# --- the file ------------------------------------------------------------------------------------

GOOD = """
issuers:
  - issuer: https://login.example
    login: {url: https://pages.example, client_id: d, session_secret_file: SESSION%s}
    rules: [%s{}]
"""
MISTAKES: list[tuple[str, str, str]] = [
    (GOOD % ("", ""), "https://login.example", "http://login.example"),
    (GOOD % ("", ""), "url: https://pages.example, ", ""),
    (GOOD % ("", ""), "https://pages.example", "http://pages.example"),
    (GOOD % ("", ""), "client_id: d, ", ""),
    (GOOD % ("", ""), ", session_secret_file: SESSION", ""),
    (GOOD % ("", ""), "SESSION", "MISSING"),
    (GOOD % ("", ""), "session_secret_file: SESSION", "session_secret_env: NOT_SET"),
    (GOOD % ("", ""), "SESSION", "SHORT"),
    (GOOD % (", session_secret_env: X", ""), "x", "x"),
    (GOOD % (", session_hours: 0", ""), "x", "x"),
    (GOOD % (", session_hours: 169", ""), "x", "x"),
    (GOOD % (", key_days: 0", ""), "x", "x"),
    (GOOD % (", scopes: [email]", ""), "x", "x"),
    (GOOD % (", secret: x", ""), "x", "x"),
    (GOOD % ("", "{role: owner}, "), "x", "x"),
    (GOOD % ("", "{role: lead}, "), "x", "x"),
]


@pytest.mark.parametrize(("file", "old", "new"), MISTAKES)
def test_mistakes_in_the_settings_are_reported(
    tmp_path: Path, file: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    (tmp_path / "session").write_text(SECRET)
    (tmp_path / "short").write_text("short-secret")
    text = file.replace(old, new)
    text = text.replace("SESSION", f"{tmp_path}/session").replace("SHORT", f"{tmp_path}/short")
    (tmp_path / "jwt.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"jwt\.yaml") as caught:
        load_tokens(tmp_path / "jwt.yaml")
    assert "short-secret" not in str(caught.value)
    assert SECRET not in str(caught.value)


def load(folder: Path, text: str) -> Tokens:
    (folder / "session").write_text(SECRET)
    (folder / "jwt.yaml").write_text(text.replace("SESSION", f"{folder}/session"))
    return load_tokens(folder / "jwt.yaml")


def test_only_one_issuer_can_have_a_log_in(tmp_path: Path) -> None:
    text = GOOD % ("", "")
    with pytest.raises(ConfigError, match="only one issuer"):
        load(tmp_path, text + text.partition("issuers:\n")[2])


def test_issuer_of_a_log_in_alone_takes_no_callers(tmp_path: Path) -> None:
    tokens = load(tmp_path, GOOD % ("", ""))
    assert tokens.login is not None
    assert tokens.login.login is not None
    assert tokens.login.login.label == "login.example"
    token = jwt.encode({"iss": "https://login.example", "aud": "d"}, "s" * 32, "HS256")
    assert tokens.find(token) is None


def test_log_in_needs_a_key_of_operators(tmp_path: Path) -> None:
    tokens = load(tmp_path, GOOD % ("", ""))
    with pytest.raises(ValueError, match="admin="):
        create_app({"fast": Listed(reply("Hi"))}, tokens=tokens)


def test_tokens_without_login_settings_log_nobody_in() -> None:
    with pytest.raises(ValueError, match="login settings"):
        LogIn(Tokens([]))


def test_person_of_the_file_has_no_rights_of_a_caller() -> None:
    assert Person("ann", "admin", "").own is None
