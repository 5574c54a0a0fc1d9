"""Callers with a JSON Web Token of an identity provider (OIDC), in place of a key of the gateway.

The file of ``--jwt`` names the issuers, and the rules by which the claims of a token become the
rights of a key::

    issuers:
      - issuer: https://login.example.com
        audience: dragoman
        user: email
        rules:
          - {claims: {groups: research}, team: research, models: [fast], budget_usd_month: "20"}
          - {claims: {email: "*@example.com"}, requests_per_minute: 60}

With ``login``, the people of an issuer log in to the web pages too, and the ``role`` of a rule is
what they may do there; see ``dragoman.gateway.login``.

A token is accepted if a key of its issuer has signed it by an asymmetric algorithm, if it is meant
for this audience, is valid now, and fits a rule; the first one counts. Its header chooses among
the issuer's keys and never names another source of keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import AuthenticationError, ProviderError, UnavailableError, advise_import
from ..transport import HttpTransport, Timeouts, Transport
from ..transport.connect import is_loopback
from ..transport.contract import Secret
from ..validate.yaml import Section, read_yaml
from ..wire.codec import HttpRequest
from .keys import MAX_NAME, Key, check_label, check_models, read_money
from .people import ROLES, Role

with advise_import("--jwt needs the extra jwt: pip install 'dragoman[jwt]'"):
    import jwt

log = logging.getLogger("dragoman")

ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
"""The algorithms that may be allowed; each has a public key, so that no secret can be confused with it."""
MAX_TOKEN = 16 * 1024
"""The most characters of a token."""
PREFIX = "jwt:"
"""The beginning of the id of a caller with a token, in logs and in the bill."""
_RENEW = 600.0  # seconds after which the keys of an issuer are read again
_LEAST = 30.0  # seconds between two attempts to read them, however many unknown keys tokens name
_KEPT = 10_000  # verified tokens that are remembered
_TIMEOUTS = Timeouts(connect=5, total=10)
_MOST_HOURS = 168  # of a session
_MOST_DAYS = 3650  # of a key that a person made
_SHORTEST_SECRET = 32
_RIGHTS = (
    "models",
    "requests_per_minute",
    "tokens_per_minute",
    "max_concurrency",
    "team",
    "on_loss",
)


class Rule(Struct, frozen=True):
    """The claims that a token must have, and the fields of the key that it then stands for.

    ``role`` is what a person who logs in with these claims may do on the pages.
    """

    claims: Mapping[str, str]
    fields: Mapping[str, Any]
    role: Role = "self"

    def fits(self, token: Mapping[str, Any]) -> bool:
        """Return whether each claim, or one value of its list, matches the pattern of the rule."""
        return all(
            any(fnmatchcase(each, pattern) for each in _list_values(token.get(name)))
            for name, pattern in self.claims.items()
        )


class SecretPlace(Struct, frozen=True):
    """Where a secret is: a file, or an environment variable. It is read each time it is needed."""

    file: str | None = None
    variable: str | None = None

    def read(self) -> list[str]:
        """Return the words at the place, of which the first is the newest secret."""
        if self.file is not None:
            try:
                text = Path(self.file).read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                raise UnavailableError(f"the secret in {self.file} cannot be read") from None
        else:
            text = os.environ.get(self.variable or "", "")
        words = text.split()
        if not words:
            raise UnavailableError(f"{self.file or self.variable} has no secret")
        return words


class LoginSettings(Struct, frozen=True, kw_only=True):
    """How people of an issuer log in to the pages, whose address is ``url``."""

    url: str
    client_id: str
    client_secret: SecretPlace | None
    session_secret: SecretPlace
    session_hours: float = 8.0
    key_days: int = 90
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    label: str = ""


class Issuer(Struct, frozen=True, kw_only=True):
    """An identity provider, and what its tokens allow."""

    issuer: str
    audience: tuple[str, ...]
    rules: tuple[Rule, ...]
    jwks_url: str | None = None
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    leeway: float = 30.0
    user: str = "sub"
    login: LoginSettings | None = None

    def reads(self, name: str, value: Any) -> bool:
        """Return whether a rule asks for this value of a claim."""
        return any(
            isinstance(value, str)
            and name in rule.claims
            and fnmatchcase(value, rule.claims[name])
            for rule in self.rules
        )


class _Keys(Struct):
    """The public keys of an issuer, by their ids, and when they were read."""

    found: dict[str, Any] = {}
    read_at: float | None = None
    tried_at: float | None = None
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class Tokens:
    """Verify the tokens of callers; ``prepare`` reads the keys that a token needs."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        *,
        transport: Transport | None = None,
        clock: Any = time.time,
    ) -> None:
        self._issuers = {each.issuer: each for each in issuers}
        self._keys = {each.issuer: _Keys() for each in issuers}
        self._transport = transport or HttpTransport()
        self._clock = clock
        self.login = next((each for each in issuers if each.login is not None), None)
        """The issuer whose people log in to the pages, if there is one."""
        self._known: OrderedDict[bytes, tuple[Key, float]] = OrderedDict()

    async def prepare(self, presented: str | None) -> None:
        """Read the keys of a token's issuer if they are old, or if the token names another key."""
        issuer, key_id = self._inspect(presented)
        if issuer is None:
            return
        keys = self._keys[issuer.issuer]
        if not self._must_read(keys, key_id):
            return
        async with keys.lock:
            if self._must_read(keys, key_id):
                await self._read_keys(issuer, keys)

    def find(self, presented: str | None) -> Key | None:
        """Return the key that a token stands for.

        Return ``None`` if no known issuer made it; raise ``AuthenticationError`` if it is a token
        that is not accepted.
        """
        issuer, key_id = self._inspect(presented)
        if issuer is None or presented is None or not issuer.audience:
            return None
        digest = hashlib.sha256(presented.encode()).digest()
        now = self._clock()
        known = self._known.get(digest)
        if known is not None and now < known[1]:
            return known[0]
        claims = self._verify(presented, issuer, key_id, issuer.audience)
        key, _ = grant(issuer, claims)
        self._known[digest] = key, float(claims["exp"]) + issuer.leeway
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return key

    async def read_identity(self, issuer: Issuer, presented: str) -> dict[str, Any]:
        """Return the claims of a token that an issuer made for the pages of this gateway."""
        assert issuer.login is not None
        await self.prepare(presented)
        named, key_id = self._inspect(presented)
        if named is not issuer:
            raise AuthenticationError("the token is not one of this issuer")
        return self._verify(presented, issuer, key_id, (issuer.login.client_id,))

    async def describe(self, issuer: Issuer) -> dict[str, Any]:
        """Return the description that an issuer publishes; raise ``ValueError`` if it is another's."""
        place = f"{issuer.issuer.rstrip('/')}/.well-known/openid-configuration"
        document = await self.fetch(HttpRequest("GET", place, {"Accept": "application/json"}))
        if document.get("issuer") != issuer.issuer:
            raise ValueError("its description names another issuer")
        return document

    async def fetch(
        self, question: HttpRequest, credentials: Mapping[str, Secret] | None = None
    ) -> dict[str, Any]:
        """Return the JSON object with which an issuer answers; raise ``ValueError`` without one."""
        check_url(question.url)
        reply = await self._transport.exchange(question, credentials or {}, _TIMEOUTS)
        if reply.status != 200:
            raise StatusError(question.url, reply.status)
        document = msgspec.json.decode(reply.body)
        if not isinstance(document, dict):
            raise ValueError(f"{question.url} is not a JSON object")
        return document

    def now(self) -> float:
        """Return the time by which tokens are judged."""
        return float(self._clock())

    async def close(self) -> None:
        """Close the connections to the issuers."""
        await self._transport.close()

    # --- private methods

    def _inspect(self, presented: str | None) -> tuple[Issuer | None, str]:
        """Return the issuer that a token names, if it is known, and the id of its key."""
        if presented is None or len(presented) > MAX_TOKEN or presented.count(".") != 2:
            return None, ""
        try:
            header = jwt.get_unverified_header(presented)
            claims = jwt.decode(presented, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None, ""
        named = claims.get("iss")
        key_id = header.get("kid", "")
        if not isinstance(named, str) or not isinstance(key_id, str):
            return None, ""
        return self._issuers.get(named), key_id

    def _must_read(self, keys: _Keys, key_id: str) -> bool:
        now = self._clock()
        if keys.tried_at is not None and now < keys.tried_at + _LEAST:
            return False
        is_old = keys.read_at is None or now >= keys.read_at + _RENEW
        return is_old or key_id not in keys.found

    async def _read_keys(self, issuer: Issuer, keys: _Keys) -> None:
        """Replace the keys of an issuer; keep those that were read before if it does not answer."""
        keys.tried_at = self._clock()
        try:
            url = issuer.jwks_url or (await self.describe(issuer)).get("jwks_uri")
            if not isinstance(url, str):
                raise ValueError("its description names no jwks_uri")
            listed = await self.fetch(HttpRequest("GET", url, {"Accept": "application/json"}))
            found = _read_set(listed, issuer)
        except (ProviderError, ValueError) as error:
            log.warning("the keys of %s cannot be read: %s", issuer.issuer, error)
            return
        keys.found = found
        keys.read_at = self._clock()
        self._known.clear()  # a token may be signed by a key that was withdrawn

    def _verify(
        self, token: str, issuer: Issuer, key_id: str, audience: Sequence[str]
    ) -> dict[str, Any]:
        keys = self._keys[issuer.issuer]
        if keys.read_at is None:
            raise UnavailableError("the keys of the token's issuer cannot be read", status=503)
        key = keys.found.get(key_id)
        if key is None:
            raise AuthenticationError("the token is signed by a key that its issuer does not have")
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[each for each in issuer.algorithms if each == key.algorithm_name],
                audience=audience,
                issuer=issuer.issuer,
                leeway=issuer.leeway,
                options={
                    "require": ["exp", "iss", "aud", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            check_times(claims, self._clock(), issuer.leeway)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise AuthenticationError(f"the token is not accepted: {error}") from None
        return claims


def check_times(claims: Mapping[str, Any], now: float, leeway: float) -> None:
    """Raise ``ValueError`` if a token is not valid now."""
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
            raise ValueError(f"{name} is not a time")
        if name == "exp" and now >= value + leeway:
            raise ValueError("it has expired")
        if name != "exp" and now < value - leeway:
            raise ValueError("it is not valid yet")


class StatusError(ValueError):
    """An identity provider answered with another status than 200."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"{url} answered with status {status}")
        self.status = status


def grant(issuer: Issuer, claims: Mapping[str, Any]) -> tuple[Key, Role]:
    """Return the key for which claims stand, and the role of the first rule that fits them.

    An email address that its owner has not confirmed counts as missing, since every user of the
    issuer could have entered it.
    """
    if claims.get("email_verified") in (False, "false"):  # Cognito sends text
        claims = {name: value for name, value in claims.items() if name != "email"}
    user = claims.get(issuer.user)
    if not isinstance(user, str):
        raise AuthenticationError(f"the token has no claim {issuer.user}")
    try:
        check_label(PREFIX + user)
    except ValueError as error:
        raise AuthenticationError(f"the claim {issuer.user} {error}") from None
    for rule in issuer.rules:
        if rule.fits(claims):
            return Key(PREFIX + user, "", **{"user": user, **rule.fields}), rule.role
    raise AuthenticationError(
        "the token is valid, but no rule of this gateway fits it", status=403
    )


def _list_values(claim: Any) -> list[str]:
    values = claim if isinstance(claim, list) else [claim]
    return [each for each in values if isinstance(each, str)]


def _read_set(document: Mapping[str, Any], issuer: Issuer) -> dict[str, Any]:
    """Return the signing keys of a JSON Web Key Set that fit the issuer's algorithms."""
    found: dict[str, Any] = {}
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise ValueError("it has no list of keys")
    for record in listed[:1000]:
        if not isinstance(record, dict) or record.get("use") not in (None, "sig"):
            continue
        try:
            key = jwt.PyJWK(record)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue  # a kind of key that is not known here
        if key.algorithm_name in issuer.algorithms and record.get("kty") != "oct":
            found[str(record.get("kid", ""))] = key
    return found


# --- the file -----------------------------------------------------------------------------------


def load_tokens(path: Path) -> Tokens:
    """Return the verifier of the issuers in a file; raise ``ConfigError`` about a mistake."""
    root = read_yaml(path)
    root.allow("issuers")
    sections = root.inners("issuers", required=True)
    issuers = [_read_issuer(each) for each in sections]
    with_login = [section for section in sections if "login" in section.data]
    if len(with_login) > 1:
        raise with_login[1].fail("only one issuer can have it", "login")
    return Tokens(issuers)


def _read_issuer(section: Section) -> Issuer:
    section.allow(
        "issuer", "audience", "jwks_url", "algorithms", "leeway_seconds", "user", "login", "rules"
    )
    issuer = section.need_text("issuer")
    audience = section.take("audience")
    algorithms = section.texts("algorithms") or ("RS256", "ES256")
    for each in algorithms:
        if each not in ALGORITHMS:
            raise section.fail(
                f"lists some of {', '.join(ALGORITHMS)}, not {each!r}", "algorithms"
            )
    leeway = section.number("leeway_seconds")
    if leeway is not None and not 0 <= leeway <= 300:
        raise section.fail("must be a number of seconds from 0 to 300", "leeway_seconds")
    jwks_url = section.text("jwks_url")
    for name, url in (("issuer", issuer), ("jwks_url", jwks_url)):
        if url is not None and (name == "jwks_url" or jwks_url is None or "login" in section.data):
            _check_address(section, name, url)
    named = (audience,) if isinstance(audience, str) else section.texts("audience")
    login = section.inner("login")
    if not named and login is None:
        raise section.fail("is required: for whom tokens must be meant", "audience")
    return Issuer(
        issuer=issuer,
        audience=named or (),
        rules=tuple([_read_rule(each) for each in section.inners("rules", required=True)]),
        jwks_url=jwks_url,
        algorithms=algorithms,
        leeway=30.0 if leeway is None else float(leeway),
        user=section.text("user") or "sub",
        login=None if login is None else _read_login(login, issuer),
    )


def _read_login(section: Section, issuer: str) -> LoginSettings:
    section.allow(
        "url", "client_id", "client_secret_file", "client_secret_env", "session_secret_file",
        "session_secret_env", "session_hours", "key_days", "scopes", "label",
    )  # fmt: skip
    url = section.need_text("url").rstrip("/")
    _check_address(section, "url", url)
    hours = section.number("session_hours")
    if hours is not None and not 0 < hours <= _MOST_HOURS:
        raise section.fail(f"must be at most {_MOST_HOURS} hours", "session_hours")
    days = section.whole("key_days")
    if days is not None and not 1 <= days <= _MOST_DAYS:
        raise section.fail(f"must be a number of days from 1 to {_MOST_DAYS}", "key_days")
    scopes = section.texts("scopes")
    if scopes is not None and "openid" not in scopes:
        raise section.fail("must contain openid", "scopes")
    session_secret = _read_secret(section, "session_secret")
    if session_secret is None:
        raise section.fail("session_secret_file or session_secret_env is required")
    if any(len(each) < _SHORTEST_SECRET for each in session_secret.read()):
        raise section.fail(
            f"a session secret has at least {_SHORTEST_SECRET} characters; openssl rand -hex 32 "
            "makes one"
        )
    return LoginSettings(
        url=url,
        client_id=section.need_text("client_id"),
        client_secret=_read_secret(section, "client_secret"),
        session_secret=session_secret,
        session_hours=8.0 if hours is None else float(hours),
        key_days=days or 90,
        scopes=scopes or ("openid", "profile", "email"),
        label=section.text("label") or issuer.partition("://")[2],
    )


def _read_secret(section: Section, name: str) -> SecretPlace | None:
    """Return the place of a secret, in which there must be one."""
    file = section.text(f"{name}_file")
    variable = section.text(f"{name}_env")
    if file is None and variable is None:
        return None
    if file is not None and variable is not None:
        raise section.fail("a file and a variable are given; keep one of them", f"{name}_env")
    place = SecretPlace(file, variable)
    try:
        place.read()
    except UnavailableError as error:
        raise section.fail(
            error.message, f"{name}_env" if file is None else f"{name}_file"
        ) from None
    return place


def _read_rule(section: Section) -> Rule:
    without = [name for name in Key.__struct_fields__ if name not in _RIGHTS]
    found = section.values(
        Key, without=without, more=["claims", "role", "budget_usd", "budget_usd_month"]
    )
    for name in ("budget_usd", "budget_usd_month"):
        amount = section.get(name, (str, int, float))
        if amount is not None:
            try:
                found[name] = read_money(str(amount))
            except ValueError as error:
                raise section.fail(str(error), name) from None
    if "models" in found:
        try:
            check_models(found["models"])
        except ValueError as error:
            raise section.fail(str(error), "models") from None
    claims = section.section("claims").plain()
    for name, pattern in claims.items():
        if not isinstance(pattern, str) or len(pattern) > MAX_NAME:
            raise section.fail(
                f"must be a text or a pattern of at most {MAX_NAME} characters", f"claims.{name}"
            )
    role = section.choice("role", ROLES) or "self"
    if role == "lead" and "team" not in found:
        raise section.fail("a lead needs a team", "role")
    return Rule(claims, found, role)


def _check_address(section: Section, name: str, url: str) -> None:
    try:
        check_url(url)
    except ValueError as error:
        raise section.fail(str(error), name) from None


def check_url(url: str) -> None:
    """Raise ``ValueError`` if keys from an address could be replaced on their way."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if scheme != "https" and not (scheme == "http" and is_loopback(name.strip("[]"))):
        raise ValueError("must begin with https://")
