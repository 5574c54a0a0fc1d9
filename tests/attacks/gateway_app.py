"""Call the gateway's ASGI application in this process, without sockets."""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..waiting import arrival

PATHS = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/fast:generateContent",
    "ollama": "/api/chat",
}


class Answer(NamedTuple):
    """A response of the gateway's application: status, headers and body."""

    status: int
    headers: dict[str, str]
    body: bytes


async def post(
    app: Any,
    wire: str,
    body: bytes,
    further: str = "",
    path: str | None = None,
    headers: dict[str, str] | None = None,
    more: Iterable[tuple[str, str]] = (),
    method: str = "POST",
) -> Answer:
    """Send a body to the gateway route of a wire and return the response.

    ``more`` are headers too, of which some may be there twice.
    """
    path = path or PATHS[wire] + further
    headers = {"host": "localhost", "content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": b"",
        "http_version": "1.1",
        "headers": [
            (name.encode(), value.encode("latin-1")) for name, value in [*headers.items(), *more]
        ],
    }
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await arrival(app(scope, receive, send), "the reply of the gateway")
    start, *rest = sent
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join([message.get("body", b"") for message in rest]))
