"""An API that requests are passed on to, with its connections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from ..errors import InvalidRequestError
from ..registry.passing import METHODS, PassThrough
from ..transport import HttpStream, HttpTransport, Secret
from ..wire.codec import HttpRequest

PATH = "/pass/"
"""The beginning of the paths of requests that are passed on."""
_SENT = ("accept", "content-type")
_QUERY = re.compile(rb"[!$-~\"]*")


class OpenPass:
    """An API with a connection pool."""

    def __init__(self, settings: PassThrough) -> None:
        self.settings = settings
        self._transport = HttpTransport()

    def find_key(self) -> str | None:
        """Return the API's key; raise an error if the operator names one that is not set."""
        key = self.settings.find_key()
        if key is None and self.settings.api_key_env is not None:
            raise InvalidRequestError(
                f"{PATH}{self.settings.name} is not configured here", status=404
            )
        return key

    def make_request(
        self, method: str, path: str, query: bytes, headers: Mapping[str, str], body: bytes
    ) -> HttpRequest:
        """Return the request for the API; raise an error if it may not be passed on."""
        settings = self.settings
        if method not in METHODS or not settings.allows(method, path):
            raise InvalidRequestError(
                f"{method} {path[:200]} is not passed on by {PATH}{settings.name}; the "
                "operator can add it to allow in models.yaml",
                status=404,
            )
        if not _QUERY.fullmatch(query):
            raise InvalidRequestError("the query of the URL has a character that must be encoded")
        sent = {
            name: headers[name] for name in (*_SENT, *settings.send_headers) if name in headers
        }
        sent |= {name.lower(): value for name, value in settings.extra_headers.items()}
        url = settings.base_url + path + (f"?{query.decode('ascii')}" if query else "")
        return HttpRequest(method, url, sent, body)

    def send(
        self, request: HttpRequest, key: str | None
    ) -> AbstractAsyncContextManager[HttpStream]:
        """Send a request with the API's key."""
        settings = self.settings
        name = settings.key_header
        credentials = {}
        if key is not None:
            credentials[name] = Secret(f"Bearer {key}" if name == "authorization" else key)
        return self._transport.send(request, credentials, settings.timeouts, stream=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()
