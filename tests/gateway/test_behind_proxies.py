"""Test that the hostile requests of the table cannot be smuggled through nginx or Caddy.

The proxy keeps its connections to the gateway's server open, so that the requests of all clients
share them: a request that the two servers end at different bytes would reach another client.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import arrival, until

from ..ports import find_free_port
from .hostile_requests import PIPELINED, REQUESTS, Echo, read_reply
from .serving import serving

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/log;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream gateway {{ server 127.0.0.1:{upstream}; keepalive 2; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://gateway; proxy_http_version 1.1; proxy_request_buffering off;
      proxy_set_header connection $http_connection; proxy_set_header upgrade $http_upgrade;
      proxy_set_header x-forwarded-for $remote_addr;
    }}
  }}
}}
"""
CADDY = """
{{
  admin off
  auto_https off
  storage file_system {folder}
}}
http://127.0.0.1:{port}, http://x:{port} {{
  reverse_proxy 127.0.0.1:{upstream}
}}
"""
PROXIES = {
    "nginx": (NGINX, ["-c"]),
    "caddy": (CADDY, ["run", "--adapter", "caddyfile", "--config"]),
}


class _Behind(Echo):
    """Record the requests without the header that the proxy adds to each request it forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.smuggled: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and b"x-forwarded-for" not in dict(scope["headers"]):
            self.smuggled.append(scope["path"])
        await super().__call__(scope, receive, send)


@contextlib.asynccontextmanager
async def proxied(name: str, upstream: int, folder: Path) -> AsyncIterator[int]:
    """Run a proxy in front of a port; yield the port of the proxy."""
    binary = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
    assert binary is not None
    port = find_free_port()
    text, arguments = PROXIES[name]
    settings = folder / "settings"
    settings.write_text(text.format(folder=folder, upstream=upstream, port=port))
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [binary, *arguments, str(settings)], stdout=output, stderr=output, cwd=folder
        )
    try:

        def is_up() -> bool:
            assert process.poll() is None, (folder / "output").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        await until(is_up, f"{binary} to listen")
        yield port
    finally:
        process.terminate()
        process.wait()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROXIES)
async def test_hostile_request_reaches_no_other_client_of_a_proxy(
    name: str, tmp_path: Path
) -> None:
    if "DRAGOMAN_EXHAUSTIVE" not in os.environ:
        pytest.skip("runs a real proxy; make test-exhaustive does it")
    if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") is None:
        pytest.skip(f"{name} is not installed")
    echo = _Behind()
    async with (
        serving(echo) as url,
        proxied(name, int(url.rpartition(":")[2]), tmp_path) as port,
    ):
        for row, (what, sent, _) in enumerate([*REQUESTS, *PIPELINED]):
            _, hostile = await asyncio.open_connection("127.0.0.1", port)
            hostile.write(sent)
            for number in range(3):
                found = await victimise(port, f"/victim{row}-{number}")
                assert found == f"POST /victim{row}-{number} v{number}", what
            hostile.transport.abort()
            assert not echo.smuggled, what
        victims = [each for each in echo.seen if "/victim" in each]
        assert len(victims) == 3 * (len(REQUESTS) + len(PIPELINED))


async def victimise(port: int, path: str) -> str:
    """Send a request on a connection of its own; return the reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = f"v{path[-1]}"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    writer.write(head.encode())
    found = await arrival(read_reply(reader), "the reply")
    writer.close()
    return found
