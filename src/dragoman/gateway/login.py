"""Log people in to the pages at an identity provider: OIDC, by the code flow with PKCE.

The settings are those of ``login`` in the file of ``--jwt``. A log-in begins with a cookie of ten
minutes that holds a random seed; ``state``, ``nonce`` and the PKCE verifier are made of it, so
that the answer of the provider is taken in the same browser only. It ends with a session: a cookie
with the claims that rules of the file name. Both cookies are signed and the server keeps nothing,
so that every worker and machine with the same secret knows them. The rules are applied again to
each request. A session ends at a fixed time, at log-out, or if its secret is removed.

The address to which the provider sends people back is in the settings, and nothing in a request
changes it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import quote_plus, urlencode

import jwt

from ..errors import AuthenticationError, ProviderError, UnavailableError
from ..transport.contract import Secret
from ..wire.codec import HttpRequest
from .people import Person
from .tokens import (
    MAX_TOKEN,
    Issuer,
    LoginSettings,
    StatusError,
    Tokens,
    check_times,
    check_url,
    grant,
)

log = logging.getLogger("dragoman")

CALLBACK = "/ui/login/callback"
"""The path to which a provider sends people back; the settings have the address before it."""
_ALGORITHM = "HS256"
_KEPT = 600.0  # seconds for which the issuer's description is used
_SECONDS = 600  # that a person has to log in at the provider
_MOST_COOKIE = 3800  # characters; browsers take 4,096 with the name and the attributes
_MOST_CODE = 4096
_FORM = "application/x-www-form-urlencoded"
_UNREACHABLE = "The identity provider cannot be reached. Try again in a minute."
# what a provider answers in place of a code: RFC 6749 §4.1.2.1, OpenID Connect Core §3.1.2.6
_ANSWERS = {
    "access_denied": "You were not let in at the identity provider, or you cancelled.",
    "login_required": "You are not logged in at the identity provider.",
    "interaction_required": "The identity provider needs an answer from you. Try again.",
    "consent_required": "The identity provider needs your consent. Try again.",
    "temporarily_unavailable": _UNREACHABLE,
}
_REFUSED = "The identity provider refused this log-in. Ask the operator of this gateway."
_Purpose: TypeAlias = Literal["begun", "session"]


class LogIn:
    """Log people in at the identity provider of ``tokens``, and recognise their sessions."""

    def __init__(self, tokens: Tokens) -> None:
        issuer = tokens.login
        if issuer is None or issuer.login is None:
            raise ValueError("no issuer has login settings")
        self._tokens = tokens
        self._issuer: Issuer = issuer
        self.settings: LoginSettings = issuer.login
        self._described: tuple[float, dict[str, Any]] | None = None

    def cookie_name(self, purpose: _Purpose) -> str:
        """Return the name of a cookie; over TLS, no other site of the domain can set it."""
        prefix = "__Host-" if self.is_secure else ""
        return f"{prefix}dragoman-{purpose}"

    @property
    def is_secure(self) -> bool:
        """Whether people reach the pages over TLS, so that cookies are sent over TLS only."""
        return self.settings.url.startswith("https://")

    # --- the flow

    async def begin(self) -> tuple[str, str]:
        """Return the address of the provider's log-in, and the cookie that remembers it."""
        described = await self._describe()
        place = self._find_place(described, "authorization_endpoint")
        seed = secrets.token_urlsafe(32)
        verifier = _derive(seed, "verifier")
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.url + CALLBACK,
            "scope": " ".join(self.settings.scopes),
            "state": _derive(seed, "state"),
            "nonce": _derive(seed, "nonce"),
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in place else "?"
        cookie = self._seal("begun", {"seed": seed}, _SECONDS)
        return f"{place}{joint}{urlencode(asked)}", cookie

    async def finish(self, answer: Sequence[tuple[str, str]], cookie: str | None) -> str:
        """Return the session of a person, after the provider has sent them back with an answer.

        Raise ``AuthenticationError`` or ``UnavailableError`` with a message for this person.
        """
        begun = self._open("begun", cookie)
        fields = dict(answer)
        if begun is None:
            raise AuthenticationError(
                "This log-in was begun more than ten minutes ago, or in another browser. Begin again."
            )
        state = fields.get("state", "")
        if not _is_same(state, _derive(begun["seed"], "state")) or len(fields) < len(answer):
            raise AuthenticationError(
                "This answer belongs to another log-in, perhaps in another tab. Begin again."
            )
        described = await self._describe()
        named = fields.get("iss")
        must_name = described.get("authorization_response_iss_parameter_supported") is True
        if (named is None and must_name) or named not in (None, self._issuer.issuer):
            log.warning("a log-in was answered by another issuer than %s", self._issuer.issuer)
            raise AuthenticationError(_REFUSED, status=403)
        if "error" in fields:
            log.warning("a log-in was refused by its issuer: %s", _shorten(fields["error"]))
            raise AuthenticationError(_ANSWERS.get(fields["error"], _REFUSED), status=403)
        code = fields.get("code", "")
        if not 0 < len(code) <= _MOST_CODE:
            raise AuthenticationError("The identity provider sent no code. Begin again.")
        claims = await self._redeem(described, code, begun["seed"])
        return self._make_session(claims)

    def find_person(self, cookie: str | None) -> Person | None:
        """Return the person of a session that is valid now, with the rights of today's rules."""
        session = self._open("session", cookie)
        if session is None:
            return None
        try:
            key, role = grant(self._issuer, session["claims"])
        except AuthenticationError:
            return None
        team = key.team if role == "lead" else None
        return Person(key.id, role, "", team, key)

    # --- private methods

    async def _describe(self) -> dict[str, Any]:
        """Return what the issuer publishes; a stranger cannot make the gateway ask for it often."""
        now = self._tokens.now()
        if self._described is not None and now < self._described[0] + _KEPT:
            return self._described[1]
        try:
            found = await self._tokens.describe(self._issuer)
            self._described = now, found
            return found
        except (ProviderError, ValueError) as error:
            log.warning("people cannot log in: %s", error)
        raise UnavailableError(_UNREACHABLE, status=503)

    def _find_place(self, described: Mapping[str, Any], name: str) -> str:
        place = described.get(name)
        try:
            check_url(str(place))
        except ValueError as error:
            log.warning("people cannot log in: the issuer's %s %s", name, error)
            raise UnavailableError(_UNREACHABLE, status=503) from None
        return str(place)

    async def _redeem(self, described: Mapping[str, Any], code: str, seed: str) -> dict[str, Any]:
        """Exchange a code for the claims of the person."""
        place = self._find_place(described, "token_endpoint")
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.settings.url + CALLBACK,
            "client_id": self.settings.client_id,
            "code_verifier": _derive(seed, "verifier"),
        }
        credentials: dict[str, Secret] = {}
        if self.settings.client_secret is not None:
            secret = self.settings.client_secret.read()[0]
            # RFC 8414 §2: a provider that names no methods takes client_secret_basic
            methods = described.get("token_endpoint_auth_methods_supported")
            if methods is None or "client_secret_basic" in methods:
                credentials["Authorization"] = _write_basic(self.settings.client_id, secret)
            else:
                fields["client_secret"] = secret
        headers = {"Accept": "application/json", "Content-Type": _FORM}
        question = HttpRequest("POST", place, headers, urlencode(fields).encode())
        try:
            tokens = await self._tokens.fetch(question, credentials)
            identity = tokens.get("id_token")
            if not isinstance(identity, str) or len(identity) > MAX_TOKEN:
                raise ValueError("the answer of the issuer has no id_token")
            claims = await self._tokens.read_identity(self._issuer, identity)
            self._check_identity(claims, _derive(seed, "nonce"))
            return {**await self._ask_user(described, claims, tokens), **claims}
        except StatusError as error:
            log.warning("a log-in failed: %s", error)
            if error.status == 400:  # RFC 6749 §5.2: invalid_grant, for a code that was used
                raise AuthenticationError(
                    "The identity provider takes this answer no longer. Begin again."
                ) from None
            if error.status < 500:
                raise AuthenticationError(_REFUSED, status=403) from None
        except (ProviderError, ValueError) as error:
            log.warning("a log-in failed: %s", error)
            if isinstance(error, AuthenticationError):
                raise AuthenticationError(_REFUSED, status=403) from None
        raise UnavailableError(_UNREACHABLE, status=503)

    def _check_identity(self, claims: Mapping[str, Any], nonce: str) -> None:
        """Raise ``AuthenticationError`` if a token was made for another log-in or another client."""
        if not _is_same(str(claims.get("nonce", "")), nonce):
            raise AuthenticationError("the id_token belongs to another log-in")
        party = claims.get("azp")
        audience = claims.get("aud")
        is_shared = isinstance(audience, list) and len(audience) > 1
        if (is_shared or party is not None) and party != self.settings.client_id:
            raise AuthenticationError("the id_token was made for another client")

    async def _ask_user(
        self, described: Mapping[str, Any], claims: Mapping[str, Any], tokens: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what the issuer reports of a person next to the id_token, such as groups."""
        place = described.get("userinfo_endpoint")
        access = tokens.get("access_token")
        if not isinstance(place, str) or not isinstance(access, str):
            return {}
        question = HttpRequest("GET", place, {"Accept": "application/json"})
        found = await self._tokens.fetch(question, {"Authorization": Secret(f"Bearer {access}")})
        if found.get("sub") != claims["sub"]:
            raise AuthenticationError("the issuer described another person")
        return found

    def _make_session(self, claims: Mapping[str, Any]) -> str:
        """Return a session with the claims that the rules read; a list may have hundreds more."""
        try:
            key, role = grant(self._issuer, claims)
        except AuthenticationError as error:
            log.warning("a log-in was refused: %s", error)
            if error.status == 403:
                raise AuthenticationError(
                    "You are known, but no rule of this gateway lets you in. Ask its operator.",
                    status=403,
                ) from None
            raise AuthenticationError(_REFUSED, status=403) from None
        kept = {self._issuer.user: key.user} | _keep_claims(self._issuer, claims)
        made = self._seal("session", {"claims": kept}, self.settings.session_hours * 3600)
        if len(made) > _MOST_COOKIE:
            log.warning("a log-in was refused: the claims that rules name are too long")
            raise AuthenticationError(_REFUSED, status=403)
        log.info("%s logged in as %s", key.id, role)
        return made

    def _seal(self, purpose: _Purpose, content: Mapping[str, Any], seconds: float) -> str:
        now = self._tokens.now()
        held = {
            "iss": self._issuer.issuer,
            "aud": purpose,
            "iat": now,
            "exp": now + seconds,
            **content,
        }
        return jwt.encode(held, self.settings.session_secret.read()[0], _ALGORITHM)

    def _open(self, purpose: _Purpose, cookie: str | None) -> dict[str, Any] | None:
        """Return the content of a cookie that this gateway signed for a purpose, if it is valid."""
        if not cookie or len(cookie) > _MOST_COOKIE:
            return None
        for secret in self.settings.session_secret.read():
            try:
                held: dict[str, Any] = jwt.decode(
                    cookie, secret, [_ALGORITHM], audience=purpose, issuer=self._issuer.issuer,
                    options={
                        "require": ["exp", "iat"],
                        "verify_exp": False,
                        "verify_iat": False,
                    },
                )  # fmt: skip
                check_times(held, self._tokens.now(), self._issuer.leeway)
                return held
            except (jwt.PyJWTError, ValueError):
                continue
        return None


def _keep_claims(issuer: Issuer, claims: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claims that decide about a person, and of lists the values that rules name."""
    names = {name for rule in issuer.rules for name in rule.claims}
    kept: dict[str, Any] = {}
    for name in names | {"email_verified"}:
        value = claims.get(name)
        if isinstance(value, list):
            kept[name] = [each for each in value if issuer.reads(name, each)]
        elif isinstance(value, str | bool):
            kept[name] = value
    return kept


def _derive(seed: str, purpose: str) -> str:
    """Return one of the random texts of a log-in."""
    return hashlib.sha256(f"{purpose}:{seed}".encode()).hexdigest()


def _is_same(found: str, expected: str) -> bool:
    return hmac.compare_digest(found.encode(), expected.encode())


def _write_basic(name: str, secret: str) -> Secret:
    """Return the credentials of a client (RFC 6749 §2.3.1)."""
    joined = f"{quote_plus(name)}:{quote_plus(secret)}"
    return Secret("Basic " + base64.b64encode(joined.encode()).decode())


def _shorten(text: str) -> str:
    return "".join([each for each in text[:100] if each.isprintable()])
