"""The ``auth:`` section of an adapter: credentials other than a fixed API key.

==============  ====================================================================================================
``entra``       a Microsoft Entra ID token, obtained with ``azure-identity`` (extra ``azure``)
``google``      a Google Cloud token, obtained with ``google-auth`` (extra ``google``)
``aws``         AWS Signature Version 4; keys from the environment, or found by ``botocore`` (extra ``aws``)
``command``     the output of a program: the key, or JSON with ``token`` and ``expires_at`` or ``expires_in``
``file``        the content of a file, such as a mounted secret; a renewed file is read within ten seconds
==============  ====================================================================================================
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import AuthenticationError
from ..provider import AccessKeys, Auth, SignatureAuth, Token, TokenAuth
from ..provider.auth import MARGIN
from ..validate.yaml import Section

_KEYS = {
    "entra": ("scope",),
    "google": ("scopes",),
    "aws": ("region", "service", "profile"),
    "command": ("command", "seconds"),
    "file": ("path",),
}
_ENTRA_SCOPE = "https://cognitiveservices.azure.com/.default"
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SECONDS = 300.0  # How long to use a key that a command printed without an expiry time
_COMMAND_SECONDS = 60.0
_FILE_SECONDS = 10.0  # How long to use the content of a file before reading it again
_FILE_BYTES = 64 * 1024


class AuthSettings(Struct, frozen=True):
    """The parsed ``auth:`` section of an adapter."""

    type: str
    scope: str | None = None
    region: str | None = None
    service: str = "bedrock"
    profile: str | None = None
    command: tuple[str, ...] = ()
    seconds: float = _SECONDS
    path: str = ""

    def build(self) -> Auth:
        """Return the object that supplies the credentials.

        It sends no request before the first call.
        """
        if self.type == "entra":
            return TokenAuth(partial(_ask_entra, self.scope or _ENTRA_SCOPE), bearer=True)
        if self.type == "google":
            return TokenAuth(partial(_ask_google, self.scope or _GOOGLE_SCOPE), bearer=True)
        if self.type == "aws":
            region = (
                self.region
                or os.environ.get("AWS_REGION")
                or os.environ.get("AWS_DEFAULT_REGION")
                or "us-east-1"
            )
            return SignatureAuth(partial(_find_access_keys, self.profile), region, self.service)
        if self.type == "file":
            return TokenAuth(partial(_read_key_file, Path(self.path).expanduser()))
        return TokenAuth(partial(_run_command, self.command, self.seconds))


def read_auth(section: Section) -> AuthSettings | None:
    """Read the ``auth:`` section of an adapter; report each invalid setting."""
    inner = section.inner("auth")
    if inner is None:
        return None
    kind = inner.choice("type", tuple(_KEYS))
    if kind is None:
        if "type" not in inner.data:
            inner.complain(f"needs type, one of {', '.join(_KEYS)}")
        return None
    keys = ("type", *_KEYS[kind])
    others = {*AuthSettings.__struct_fields__} - {*keys}
    found = inner.values(AuthSettings, without=[*others, "command"], more=keys)
    for other in ("api_key", "api_key_env"):
        if other in section.data:
            section.complain("auth is given as well; keep only one of them", other)
    if kind == "google":
        found["scope"] = " ".join(inner.texts("scopes") or ()) or None
    if kind == "command":
        found["command"] = _read_command(inner)
    if kind == "file" and not found.get("path"):
        inner.complain("needs the path of a file that holds the key", "path")
    return AuthSettings(**found)


def _read_command(section: Section) -> tuple[str, ...]:
    if isinstance(section.data.get("command"), list):
        words = section.texts("command")
    else:
        words = tuple(shlex.split(section.get("command", str, "")))
    if not words:
        section.complain("needs the words of a command", "command")
    return words or ()


def _ask_entra(scope: str) -> Token:
    try:
        from azure.identity import DefaultAzureCredential  # slow to import; needs the extra azure
    except ImportError:
        raise _missing("azure") from None
    with DefaultAzureCredential() as credential:
        found = credential.get_token(scope)
    return Token(found.token, float(found.expires_on))


def _ask_google(scopes: str) -> Token:
    try:
        import google.auth  # slow to import; needs the extra google
        from google.auth.transport.requests import Request
    except ImportError:
        raise _missing("google") from None
    credentials: Any = google.auth.default(scopes=scopes.split())[0]
    credentials.refresh(Request())
    expiry = credentials.expiry  # google-auth returns a datetime in UTC without a time zone
    return Token(credentials.token, None if expiry is None else expiry.timestamp() - time.timezone)


def _find_access_keys(profile: str | None) -> AccessKeys:
    """Return the AWS access keys from the environment or, without them, from botocore."""
    access = os.environ.get("AWS_ACCESS_KEY_ID")
    secret = os.environ.get("AWS_SECRET_ACCESS_KEY")
    if profile is None and access and secret:
        return AccessKeys(access, secret, os.environ.get("AWS_SESSION_TOKEN") or None)
    try:
        import botocore.session  # type: ignore[import-untyped]  # of the extra, and slow to load
    except ImportError:
        raise _missing("aws") from None
    found = botocore.session.Session(profile=profile).get_credentials()
    if found is None:
        raise AuthenticationError("no AWS credentials were found", provider_code="no_credentials")
    frozen = found.get_frozen_credentials()
    return AccessKeys(frozen.access_key, frozen.secret_key, frozen.token)


def _run_command(words: tuple[str, ...], seconds: float) -> Token:
    """Run the user's command and read the key from its output.

    Errors never include the output, since it may be the key.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the user's own file names it
            words,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"the command {words[0]} for the key failed: {type(error).__name__}"
        raise AuthenticationError(problem, provider_code="no_credentials") from None
    if done.returncode:
        problem = f"the command {words[0]} for the key ended with status {done.returncode}"
        raise AuthenticationError(problem, provider_code="no_credentials")
    text = done.stdout.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        return Token(text, time.time() + seconds)
    record = msgspec.json.decode(text)
    end = record.get("expires_at", record.get("expiration"))
    if end is None:
        end = time.time() + float(record.get("expires_in", seconds))
    return Token(record.get("token") or record["access_token"], float(end))


def _read_key_file(path: Path) -> Token:
    """Return the content of a file as a key. An error names the file, but not what is in it."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES + 1)
    except OSError as error:
        problem = f"the key file {path} could not be read: {type(error).__name__}"
        raise AuthenticationError(problem, provider_code="no_credentials") from None
    text = data.decode("utf-8", "replace").strip()
    if not text or len(data) > _FILE_BYTES:
        size = "is empty" if not text else f"has more than {_FILE_BYTES} bytes"
        raise AuthenticationError(f"the key file {path} {size}", provider_code="no_credentials")
    return Token(text, time.time() + MARGIN + _FILE_SECONDS)


def _missing(extra: str) -> AuthenticationError:
    return AuthenticationError(
        f"this needs an optional dependency: pip install 'dragoman[{extra}]'",
        provider_code="no_credentials",
    )
