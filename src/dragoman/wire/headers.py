"""What a gateway does with the headers of requests; ``ServerCodec.headers`` has those of a wire."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple


class HeaderRule(NamedTuple):
    """What happens to a header, and why.

    ``read``: the gateway uses it. ``sent``: a model of the same wire gets it too. ``ignored``: the
    gateway neither uses it nor sends it on.
    """

    effect: Literal["read", "sent", "ignored"]
    why: str


KEY = HeaderRule("read", "the client's key; the model's server gets the operator's")
PROGRAM = HeaderRule("ignored", "it describes the client's program")
ATTEMPT = HeaderRule("ignored", "the gateway retries by its own settings")
BILLED = HeaderRule("ignored", "whom a request is billed to is in the model's configuration")
TIMEOUT = HeaderRule("ignored", "how long a reply may take is the gateway's --timeout")
SIGNED = HeaderRule("ignored", "signatures are not checked; the key is a bearer token")
ALL_WIRES: Mapping[str, HeaderRule] = {
    "authorization": KEY,
    "content-type": HeaderRule("read", "it must be JSON, unless the wire allows forms"),
    "content-encoding": HeaderRule("read", "compressed bodies are rejected"),
    "traceparent": HeaderRule("read", "the call of the model continues this trace"),
    "tracestate": HeaderRule("read", "sent with traceparent"),
    "idempotency-key": HeaderRule("ignored", "a repeated request is a new call"),
    "x-request-id": HeaderRule("ignored", "the gateway makes the id of a request"),
    "user-agent": PROGRAM,
    "x-stainless-*": PROGRAM,
    "x-stainless-retry-count": ATTEMPT,
    "x-stainless-timeout": TIMEOUT,
}
"""The headers of clients of every wire."""


_VERSION = re.compile(r"[\w.-]{1,40}", re.ASCII)  # what the name of a version may be


def read_version(headers: Mapping[str, str], name: str, own: str) -> dict[str, str]:
    """Return the header with the version of the wire that a client names, unless it is ``own``."""
    version = headers.get(name, own)
    return {name: version} if version != own and _VERSION.fullmatch(version) else {}


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the token of an ``authorization: Bearer`` header."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
