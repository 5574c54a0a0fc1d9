"""Read the replies of servers to readiness checks."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ..errors import (
    AuthenticationError,
    InvalidModelError,
    InvalidResponseError,
    ProviderError,
)
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


def check_call(codec: Endpoint[Any]) -> Generator[HttpRequest, HttpReply, None]:
    """Check the route of a call with a request that is an empty object.

    Many servers list and describe their models without a key, and a proxy lists models whose
    server sleeps. They refuse a wrong key and report an unavailable model before they read a
    request, and this request costs nothing, because no server can answer it. A refusal that the
    empty object itself explains, with status 400, 422 or 500, does not count.
    """
    empty = Request([])
    headers = {**codec.headers_for(empty)}
    reply = yield HttpRequest("POST", codec.url_for(empty), headers, b"{}")
    if reply.status >= 300:
        error = codec.error(reply.status, reply.headers, reply.body)
        is_refused = reply.status in (401, 403) or isinstance(error, AuthenticationError)
        # 502, 503, 504, and the statuses of content delivery networks and of overloaded servers
        is_down = reply.status == 429 or reply.status >= 502
        if is_refused or is_down or _lacks_model(codec.model, error):
            raise error


def _lacks_model(model: str, error: ProviderError) -> bool:
    """Return whether a 404 names the model.

    A 404 that names no model, or the empty one, may be about the empty request itself.
    """
    name = rf"(?<![\w.:/-]){re.escape(model)}(?![\w.:/-]*\w)"
    is_unknown = error.status == 404 and isinstance(error, InvalidModelError)
    return is_unknown and bool(re.search(name, error.provider_message or ""))


def serves_one_model(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether llama.cpp sent this model list. It serves its only model under any name."""
    return len(entries) == 1 and isinstance(entries[0].get("meta"), Mapping)
