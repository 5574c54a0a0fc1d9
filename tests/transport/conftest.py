"""Run the tests of this folder with both transports."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest

from dragoman.transport import AiohttpTransport, HttpTransport, Transport

TRANSPORTS: dict[str, Callable[..., Transport]] = {
    "own": HttpTransport,
    "aiohttp": AiohttpTransport,
}


@pytest.fixture(params=TRANSPORTS)
def make_transport(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Transport]:
    """Return one of the two transport classes, and make ``connect`` use it."""
    # Import the module by name, because the package exports a function with the same name.
    module = importlib.import_module("dragoman.provider.connect")
    monkeypatch.setattr(module, "HttpTransport", TRANSPORTS[request.param])
    return TRANSPORTS[request.param]
