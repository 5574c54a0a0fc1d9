"""Serve a model hub and its storage on two loopback ports, with the faults of real downloads."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """Describe a received request: the server, method, path, and headers with lower-case names."""

    server: str
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class HubServer:
    """Configure the hub and the storage server, and store the requests they receive."""

    content: bytes
    url: str = ""
    storage: str = ""
    # Digest that the hub announces: "" for the correct one, None for no digest.
    digest: str | None = ""
    size: int | None = -1
    location: str = ""  # where the hub redirects downloads; "" for the storage server
    status: int = 302
    # After how many bytes the server closes the connection, for each of the next replies.
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    shift: int = 0  # number added to the start of each byte range that is sent
    asked: list[Asked] = field(default_factory=list)

    def gets(self) -> list[Asked]:
        return [each for each in self.asked if each.server == "storage" and each.method == "GET"]

    def answer_hub(self, handler: Any) -> None:
        handler.send_response(self.status)
        digest = hashlib.sha256(self.content).hexdigest() if self.digest == "" else self.digest
        if digest is not None:
            handler.send_header("X-Linked-Etag", f'"{digest}"')
        if self.size is not None:
            handler.send_header(
                "X-Linked-Size", str(len(self.content) if self.size < 0 else self.size)
            )
        if self.status < 400:
            handler.send_header(
                "Location", self.location or f"{self.storage}/blob?signature=s3cret-signature"
            )
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def answer_storage(self, handler: Any) -> None:
        start = int(handler.headers.get("range", "bytes=0-")[6:-1]) if self.ranges else 0
        if start >= len(self.content):
            handler.send_response(416)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206 if start else 200)
        body = self.content[start:]
        if start:
            first = start + self.shift
            handler.send_header(
                "Content-Range", f"bytes {first}-{len(self.content) - 1}/{len(self.content)}"
            )
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)


@contextmanager
def serve_hub(content: bytes) -> Iterator[HubServer]:
    """Serve a file on a hub that redirects to a storage server."""
    hub = HubServer(content)
    servers = []
    for name, answer in (("hub", hub.answer_hub), ("storage", hub.answer_storage)):
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(name, hub, answer))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    hub.url, hub.storage = [f"http://127.0.0.1:{server.server_address[1]}" for server in servers]
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(name: str, hub: HubServer, answer: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            hub.asked.append(Asked(name, self.command, self.path, headers))
            answer(self)

        do_GET = do_HEAD = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
