"""Let the server count a request's input tokens, on wires that have an endpoint for this."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ..errors import InvalidResponseError
from .codec import Codec, Encoded, HttpReply, HttpRequest, Questions
from .json import dig, read_count, to_bytes
from .readiness import read_success


def count_tokens(codec: Codec, encoded: Encoded, model: str) -> Questions:
    """Count a call's input tokens: yield each request, receive its reply, and return the count.

    The count is ``None`` if the wire has no endpoint for it. A reply with an error status raises
    an error.
    """
    ask: Callable[..., Questions] | None = getattr(codec, "ask_count", None)
    return None if ask is None else (yield from ask(codec, encoded.http, model))


def keep_fields(body: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the fields of a body that an endpoint for counting accepts; it rejects others."""
    return {name: value for name, value in body.items() if name in names}


def ask_below(path: str, names: Collection[str]) -> Callable[..., Questions]:
    """Return a function that asks the endpoint for counting at ``path`` below that for calls.

    ``names`` are the fields of a request that the endpoint accepts.
    """

    def ask(codec: Codec, sent: HttpRequest, model: str) -> Questions:
        parts = urlsplit(sent.url)
        url = urlunsplit((parts.scheme, parts.netloc, parts.path + path, parts.query, ""))
        body = keep_fields(msgspec.json.decode(sent.body), names)
        reply = yield HttpRequest("POST", url, sent.headers, to_bytes(body))
        return read_answer(codec, reply, "input_tokens")

    return ask


def read_answer(codec: Codec, reply: HttpReply, name: str) -> int:
    """Return the count in a field of a reply; raise an error if there is none."""
    count = read_count(dig(read_success(codec, reply), name))
    if count is None:
        raise InvalidResponseError(
            "the server's answer holds no count of tokens", status=reply.status
        )
    return count
