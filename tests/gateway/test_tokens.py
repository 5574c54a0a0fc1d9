"""Test callers with tokens of an identity provider: what is accepted, and every way to forge one."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from dragoman.errors import AuthenticationError, UnavailableError
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.tokens import MAX_TOKEN, Tokens, load_tokens
from dragoman.validate.yaml import ConfigError
from tests.listed import Clock, Listed
from tests.server import Connection, Server, serve

from .serving import serving

NOW = 1_900_000_000.0
FIRST = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


def publish(key: Any, key_id: str, **more: Any) -> dict[str, Any]:
    """Return the record of a public key in a JSON Web Key Set."""
    writer: Any = ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else RSAAlgorithm
    record = json.loads(writer.to_jwk(key.public_key()))
    return {**record, "kid": key_id, "use": "sig", **more}


class Provider:
    """An identity provider: the keys that it publishes, and how often it was asked for them."""

    def __init__(self) -> None:
        self.keys = [publish(FIRST, "first"), publish(CURVE, "curve", alg="ES256")]
        self.is_down = False
        self.url = ""

    async def handle(self, connection: Connection) -> None:
        if self.is_down:
            connection.reply(503, b"{}")
        elif connection.seen.path == "/.well-known/openid-configuration":
            found = {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}
            connection.reply(200, json.dumps(found).encode())
        else:
            connection.reply(200, json.dumps({"keys": self.keys}).encode())

    def sign(
        self, key: Any = FIRST, key_id: str = "first", algorithm: str = "RS256", **claims: Any
    ) -> str:
        known = {
            "iss": self.url, "aud": "dragoman", "sub": "u1", "exp": NOW + 600, "email": "ann@example.com",
            "groups": ["research", "staff"],
        }  # fmt: skip
        held = {name: value for name, value in {**known, **claims}.items() if value is not None}
        return jwt.encode(held, key, algorithm, headers={"kid": key_id})


FILE = """
issuers:
  - issuer: {url}
    audience: dragoman
    user: email
    rules:
      - {{claims: {{groups: research}}, team: research, models: [fast], requests_per_minute: 60}}
      - {{claims: {{email: "*@example.com"}}, models: [slow]}}
"""


@contextlib.asynccontextmanager
async def provided(folder: Path) -> AsyncIterator[tuple[Provider, Tokens, Clock, Server]]:
    provider = Provider()
    async with serve(provider.handle) as server:
        provider.url = server.url
        path = folder / "jwt.yaml"
        path.write_text(FILE.format(url=server.url))
        tokens = load_tokens(path)
        clock = Clock(NOW)
        tokens._clock = clock  # noqa: SLF001 - the file sets no clock
        yield provider, tokens, clock, server
        await tokens.close()


async def find(tokens: Tokens, token: str) -> Key | None:
    await tokens.prepare(token)
    return tokens.find(token)


async def refuse(tokens: Tokens, token: str) -> str:
    """Return why a token is refused."""
    with pytest.raises((AuthenticationError, UnavailableError)) as caught:
        await find(tokens, token)
    assert token not in str(caught.value)
    return str(caught.value)


async def test_claims_become_the_rights_of_the_first_rule_that_fits(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, tokens, _, _server):
        ann = await find(tokens, provider.sign())
        bob = await find(tokens, provider.sign(email="bob@example.com", groups="web"))
        eve = await refuse(tokens, provider.sign(email="eve@elsewhere.com", groups=[]))
        curve = await find(tokens, provider.sign(CURVE, "curve", "ES256"))
    assert ann is not None
    assert ann.id == "jwt:ann@example.com"
    assert ann.user == "ann@example.com"
    assert ann.team == "research"
    assert ann.models == ("fast",)
    assert ann.requests_per_minute == 60
    assert bob is not None
    assert bob.models == ("slow",)
    assert bob.team is None
    assert curve == ann
    assert "no rule of this gateway fits" in eve


def encode(part: Any) -> str:
    text = json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def forge(provider: Provider, header: dict[str, Any], key: Any = None) -> str:
    """Return a token with the claims of a good one and another header."""
    claims = provider.sign().split(".")[1]
    signature = "" if key is None else "c2lnbmVk"
    return f"{encode(header)}.{claims}.{signature}"


PUBLIC = FIRST.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def sign_with_the_public_key(provider: Provider) -> str:
    """Return a token that is signed by HMAC, with the public key as the secret."""
    body = f"{encode({'alg': 'HS256', 'kid': 'first'})}.{provider.sign().split('.')[1]}"
    made = hmac.new(PUBLIC, body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(made).decode().rstrip('=')}"


FORGED: dict[str, Any] = {
    "no signature": lambda it: forge(it, {"alg": "none", "kid": "first"}),
    "none in capitals": lambda it: forge(it, {"alg": "NONE", "kid": "first"}, "x"),
    "the public key as a secret": sign_with_the_public_key,
    "another key": lambda it: it.sign(OTHER),
    "an unknown key": lambda it: it.sign(OTHER, "other"),
    "a path as the id of a key": lambda it: it.sign(OTHER, "../../dev/null"),
    "no id of a key": lambda it: it.sign(OTHER, ""),
    "a number as the id of a key": lambda it: forge(it, {"alg": "RS256", "kid": 7}, "x"),
    "a source of keys in the header": lambda it: forge(
        it, {"alg": "RS256", "kid": "mine", "jku": "https://evil.example/jwks"}, "x"
    ),
    "a key in the header": lambda it: forge(
        it, {"alg": "RS256", "kid": "first", "jwk": publish(OTHER, "first")}, "x"
    ),
    "another algorithm of the key": lambda it: it.sign(FIRST, "first", "RS512"),
    "the algorithm of another key": lambda it: it.sign(FIRST, "curve"),
    "another audience": lambda it: it.sign(aud="elsewhere"),
    "no audience": lambda it: it.sign(aud=None),
    "expired": lambda it: it.sign(exp=NOW - 31),
    "no end": lambda it: it.sign(exp=None),
    "an end that is no time": lambda it: it.sign(exp="never"),
    "an endless time": lambda it: it.sign(exp=10**400),
    "not valid yet": lambda it: it.sign(nbf=NOW + 31),
    "issued in the future": lambda it: it.sign(iat=NOW + 31),
    "no subject": lambda it: it.sign(sub=None),
    "no user": lambda it: it.sign(email=None),
    "a list as the user": lambda it: it.sign(email=["ann@example.com"]),
    "a line break in the user": lambda it: it.sign(email="ann@example.com\nx"),
    "a long user": lambda it: it.sign(email="a" * 300 + "@example.com"),
    "changed claims": lambda it: ".".join(
        [it.sign().split(".")[0], encode({"iss": it.url, "aud": "dragoman", "sub": "root", "exp": NOW + 9}),
         it.sign().split(".")[2]]
    ),
}  # fmt: skip


# What is not even the form of a token is looked up among the keys of the gateway, where it is unknown.
LEFT_TO_THE_KEYS = {"a number as the id of a key"}


@pytest.mark.parametrize("way", FORGED)
async def test_forged_token_is_refused(tmp_path: Path, way: str) -> None:
    async with provided(tmp_path) as (provider, tokens, _, _server):
        assert await find(tokens, provider.sign()) is not None
        token = FORGED[way](provider)
        if way in LEFT_TO_THE_KEYS:
            assert await find(tokens, token) is None
        else:
            await refuse(tokens, token)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dg-key",
        "a.b.c",
        "..",
        "." * 99,
        "x" * (MAX_TOKEN + 1),
        f"{'x' * 9999}.e30.e30",
        "é.é.é",
    ],
)
async def test_text_that_is_no_token_is_left_to_the_keys(tmp_path: Path, text: str) -> None:
    async with provided(tmp_path) as (_, tokens, _clock, server):
        assert await find(tokens, text) is None
    assert server.requests == []


async def test_token_of_another_issuer_is_left_to_the_keys(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, tokens, _, server):
        token = provider.sign(iss="https://elsewhere.example")
        assert await find(tokens, token) is None
    assert server.requests == []


async def test_keys_of_an_issuer_are_cached_renewed_and_withdrawn(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, tokens, clock, server):
        old = provider.sign()
        await find(tokens, old)
        await find(tokens, provider.sign(sub="u2"))
        assert len(server.requests) == 2  # the description and the keys, once
        provider.keys = [publish(OTHER, "second")]
        new = provider.sign(OTHER, "second")
        assert "does not have" in await refuse(tokens, new)  # asked again too soon
        assert len(server.requests) == 2
        clock.now += 31
        assert await find(tokens, new) is not None
        assert len(server.requests) == 4
        assert "does not have" in await refuse(tokens, old)  # withdrawn, although it was known


async def test_issuer_that_is_down_keeps_its_last_keys(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, tokens, clock, _):
        provider.is_down = True
        assert "cannot be read" in await refuse(tokens, provider.sign())
        provider.is_down = False
        clock.now += 31
        assert await find(tokens, provider.sign()) is not None
        provider.is_down = True
        clock.now += 700
        assert await find(tokens, provider.sign(exp=NOW + 9000)) is not None


async def test_many_unknown_keys_ask_the_issuer_once(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, tokens, _, server):
        for number in range(50):
            await refuse(tokens, provider.sign(OTHER, f"key-{number}"))
    assert len(server.requests) == 2


async def test_gateway_takes_tokens_beside_keys(tmp_path: Path) -> None:
    async with provided(tmp_path) as (provider, tokens, clock, _):
        app = create_app(
            {"fast": Listed("Hi", repeat=True), "slow": Listed("Hi", repeat=True)},
            keys=KeyRing([Key("static", hash_key("dg-static"))]),
            tokens=tokens,
        )
        async with serving(app) as url, aiohttp.ClientSession(url) as http:

            async def call(presented: str, model: str = "fast") -> int:
                body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
                headers = {"authorization": f"Bearer {presented}"}
                async with http.post("/v1/chat/completions", json=body, headers=headers) as reply:
                    return reply.status

            assert await call("dg-static") == 200
            assert await call(provider.sign()) == 200
            assert await call(provider.sign(), "slow") == 404
            assert await call(provider.sign(OTHER)) == 401
            assert await call(provider.sign(email="eve@elsewhere.com", groups=[])) == 403
            clock.now += 700
            assert await call(provider.sign()) == 401
            async with http.get(
                "/v1/models", headers={"x-api-key": provider.sign(exp=NOW + 9999)}
            ) as reply:
                assert [each["id"] for each in (await reply.json())["data"]] == ["fast"]


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("{}", "issuers: is required"),
        ("issuers: [{audience: a, rules: [{}]}]", "issuer: is required"),
        ("issuers: [{issuer: 'https://i', rules: [{}]}]", "audience"),
        ("issuers: [{issuer: 'https://i', audience: a}]", "rules"),
        ("issuers: [{issuer: 'http://i', audience: a, rules: [{}]}]", "must begin with https://"),
        ("issuers: [{issuer: x, jwks_url: 'ftp://i', audience: a, rules: [{}]}]", "https://"),
        (
            "issuers: [{issuer: 'https://i', audience: a, algorithms: [HS256], rules: [{}]}]",
            "HS256",
        ),
        ("issuers: [{issuer: 'https://i', audience: a, algorithms: [none], rules: [{}]}]", "none"),
        ("issuers: [{issuer: 'https://i', audience: a, leeway_seconds: 999, rules: [{}]}]", "300"),
        ("issuers: [{issuer: 'https://i', audience: a, rules: [{modles: [x]}]}]", "modles"),
        (
            "issuers: [{issuer: 'https://i', audience: a, rules: [{budget_usd: NaN}]}]",
            "budget_usd",
        ),
    ],
)
def test_mistakes_in_the_file_are_reported(tmp_path: Path, file: str, problem: str) -> None:
    path = tmp_path / "jwt.yaml"
    path.write_text(file)
    with pytest.raises(ConfigError, match=r"jwt\.yaml") as caught:
        load_tokens(path)
    assert problem in str(caught.value)
