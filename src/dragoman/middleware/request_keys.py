"""The keys under which cassettes and caches store requests, and the masking of their secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import scrub
from ..messages import Request
from ..retrieval import EmbedRequest, RerankRequest


def request_key(request: Request | EmbedRequest | RerankRequest) -> str:
    """Return the key of a request: a hash of all fields that can change the reply."""
    return hashlib.sha256(msgspec.json.encode(canonical(request), order="sorted")).hexdigest()


def canonical(request: Request | EmbedRequest | RerankRequest) -> dict[str, Any]:
    """Return a request as plain data, without fields that differ between runs."""
    if isinstance(request, Request):
        plain = msgspec.to_builtins(replace(request, response_type=None), str_keys=True)
        holder = plain["config"]
        for tool in plain["tools"]:
            del tool["external"]  # where a call runs does not change the reply
            if not tool["deferred"]:
                del tool["deferred"]  # so that keys without this field stay valid
    else:
        plain = msgspec.to_builtins(request, str_keys=True)
        plain = holder = {name: value for name, value in plain.items() if value is not None}
    # Mask API keys: they do not change the reply, and a short key could be guessed from the hash.
    if holder.get("extras"):
        holder["extras"] = _hide_named(holder["extras"])
    return {
        name: _same_numbers(value)
        for name, value in plain.items()
        if name not in ("request_id", "metadata", "session_id", "response_type", "check_calls")
        and (value or name not in ("native", "continues", "server_tools"))
    }


def _same_numbers(value: Any) -> Any:
    """Replace floats such as 1.0 by integers such as 1, so that equal settings have equal keys."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _same_numbers(item) for name, item in value.items()}
    return [_same_numbers(item) for item in value] if isinstance(value, list | tuple) else value


def hide(value: Any) -> Any:
    """Mask strings that look like API keys, and fields whose names suggest a secret."""
    return _hide_named(value, partial(scrub, limit=None))


# Endings of field names that suggest a secret, without separators. "token" is not listed, since
# fields such as "end_of_text_token" are not secret.
_SECRET_NAMES = ("apikey", "accesskey", "privatekey", "secretkey", "secret", "password", "passwd",
                 "authorization",
                 "credential", "accesstoken", "apitoken", "authtoken", "bearertoken", "idtoken",
                 "refreshtoken",
                 "securitytoken", "sessiontoken")  # fmt: skip


def _hide_named(value: Any, clean: Callable[[str], str] = str) -> Any:
    """Mask the values of fields whose names suggest a secret, such as ``password``.

    ``clean`` is applied to all other strings.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {
            name: _mask(item, clean) if _is_secret(name) else _hide_named(item, clean)
            for name, item in value.items()
        }
    return (
        [_hide_named(item, clean) for item in value] if isinstance(value, list | tuple) else value
    )


def _is_secret(name: str) -> bool:
    word = "".join([letter for letter in name.lower() if letter.isalnum()]).removesuffix("s")
    return word == "token" or word.endswith(_SECRET_NAMES)


def _mask(value: Any, clean: Callable[[str], str]) -> Any:
    """Mask every string in the value of a secret field.

    Objects and lists keep their structure, so that a JSON Schema stays valid.
    """
    if isinstance(value, dict):
        return _hide_named(value, clean)
    if isinstance(value, list | tuple):
        return [_mask(item, clean) for item in value]
    return value if value is None or isinstance(value, bool) or value == "" else "[hidden]"
