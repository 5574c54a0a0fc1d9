"""Read the replies of servers to readiness checks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ..errors import AuthenticationError, InvalidResponseError
from ..events import read_json
from ..messages import Request
from .codec import Codec, HttpReply, HttpRequest
from .endpoint import Endpoint


def get_json(url: str, headers: Mapping[str, str] | None = None) -> HttpRequest:
    """Return a ``GET`` request that accepts JSON."""
    return HttpRequest("GET", url, {"accept": "application/json", **(headers or {})})


def read_success(codec: Codec, reply: HttpReply) -> Any:
    """Return the JSON of a reply; raise an error for an error status or invalid JSON."""
    refuse_failure(codec, reply)
    try:
        return read_json(reply.body)
    except ValueError as error:
        raise InvalidResponseError(
            "the server's answer about its models is not JSON", status=reply.status
        ) from error


def refuse_failure(codec: Codec, reply: HttpReply) -> None:
    """Raise an error if a reply does not have a success status."""
    if reply.status >= 300:
        raise codec.error(reply.status, reply.headers, reply.body)


def check_key(codec: Endpoint[Any]) -> Generator[HttpRequest, HttpReply, None]:
    """Check the key with a request that is an empty object.

    Many servers list and describe their models without a key. They refuse a wrong key before they
    read a request, and this request costs nothing, because no server can answer it.
    """
    empty = Request([])
    headers = {**codec.headers_for(empty)}
    reply = yield HttpRequest("POST", codec.url_for(empty), headers, b"{}")
    if reply.status >= 300:
        error = codec.error(reply.status, reply.headers, reply.body)
        if reply.status in (401, 403) or isinstance(error, AuthenticationError):
            raise error


def serves_one_model(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether llama.cpp sent this model list. It serves its only model under any name."""
    return len(entries) == 1 and isinstance(entries[0].get("meta"), Mapping)
