"""Provide a transport that is closed after the test."""

from collections.abc import AsyncIterator

import pytest

from dragoman import HttpTransport


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    transport = HttpTransport()
    yield transport
    await transport.close()
