"""The gateway passes ``dragoman check`` with a model that supports every feature."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from dragoman.conformance import check_server
from dragoman.gateway.app import create_app
from dragoman.sim import ScriptedProvider

from ..waiting import PATIENCE
from .test_live import GOOD


@contextlib.contextmanager
def gateway() -> Iterator[str]:
    app = create_app({"m": ScriptedProvider(*GOOD.rules, model="m")})
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, loop="asyncio"))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


@pytest.mark.parametrize(
    ("wire", "path"), [("openai", "/v1"), ("anthropic", ""), ("responses", "/v1")]
)
async def test_gateway_passes_the_server_checks(wire: str, path: str) -> None:
    with gateway() as url:
        report = await check_server(url + path, "m", wire, context=300)
    assert [
        (outcome.name, outcome.detail) for outcome in report.outcomes if outcome.status == "fail"
    ] == []
    assert report.counts["pass"] >= 28
    assert all(
        report.probes[name]
        for name in ("tools", "parallel_tools", "forced_choice", "schema", "images", "cancel")
    )
