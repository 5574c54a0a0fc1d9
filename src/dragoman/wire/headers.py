"""What a gateway does with the headers of requests that SDKs of each wire send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class HeaderRule(NamedTuple):
    """What happens to a header, and why.

    ``read``: the gateway uses it. ``sent``: a model of the same wire gets it too. ``ignored``: the
    gateway neither uses it nor sends it on.
    """

    effect: Literal["read", "sent", "ignored"]
    why: str


_KEY = HeaderRule("read", "the client's key; the model's server gets the operator's")
_PROGRAM = HeaderRule("ignored", "it describes the client's program")
_ATTEMPT = HeaderRule("ignored", "the gateway retries by its own settings")
_BILLED = HeaderRule("ignored", "whom a request is billed to is in the model's configuration")
_TIMEOUT = HeaderRule("ignored", "how long a reply may take is the gateway's --timeout")
_SIGNED = HeaderRule("ignored", "signatures are not checked; the key is a bearer token")
_OPENAI = {
    "openai-beta": HeaderRule("ignored", "what it opens, such as assistants, is not served"),
    "openai-organization": _BILLED,
    "openai-project": _BILLED,
    "x-client-request-id": HeaderRule("ignored", "the gateway makes the id of a request"),
}

ALL_WIRES: Mapping[str, HeaderRule] = {
    "authorization": _KEY,
    "content-type": HeaderRule("read", "it must be JSON, unless the wire allows forms"),
    "content-encoding": HeaderRule("read", "compressed bodies are rejected"),
    "traceparent": HeaderRule("read", "the call of the model continues this trace"),
    "tracestate": HeaderRule("read", "sent with traceparent"),
    "idempotency-key": HeaderRule("ignored", "a repeated request is a new call"),
    "x-request-id": HeaderRule("ignored", "the gateway makes the id of a request"),
    "user-agent": _PROGRAM,
    "x-stainless-*": _PROGRAM,
    "x-stainless-retry-count": _ATTEMPT,
    "x-stainless-timeout": _TIMEOUT,
}
"""The headers of clients of every wire."""

HEADERS: Mapping[str, Mapping[str, HeaderRule]] = {
    "openai": _OPENAI,
    "responses": _OPENAI,
    "anthropic": {
        "x-api-key": _KEY,
        "anthropic-beta": HeaderRule("sent", "as far as --beta allows"),
        "anthropic-version": HeaderRule("ignored", "the codec sends the version that it writes"),
        "anthropic-dangerous-direct-browser-access": _PROGRAM,
        "x-app": _PROGRAM,
        "x-claude-code-session-id": _PROGRAM,
    },
    "gemini": {
        "x-goog-api-key": _KEY,
        "x-goog-api-client": _PROGRAM,
        "x-goog-user-project": _BILLED,
        "x-server-timeout": _TIMEOUT,
    },
    "cohere": {"x-client-name": _PROGRAM, "x-fern-sdk-name": _PROGRAM},
    "bedrock": {
        "amz-sdk-invocation-id": _PROGRAM,
        "amz-sdk-request": _ATTEMPT,
        "x-amz-date": _SIGNED,
        "x-amz-security-token": _SIGNED,
    },
}
"""The headers that only clients of one wire send."""
