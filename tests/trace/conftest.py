"""Provide a log served by a real server in a thread, and a real Chromium browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from dragoman.log import EventLog, SqliteLog
from dragoman.trace import TraceServer
from dragoman.trace.approval import Approvals

from ..programs import require
from ..waiting import PATIENCE

FLAGS = [
    "--headless",
    "--no-sandbox",  # Chromium refuses to run its sandbox as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


expect.set_options(timeout=PATIENCE * 1000)


class Served:
    """Run a trace server in a thread."""

    def __init__(self, log: EventLog, approve_by: str | None = None) -> None:
        self._log = log
        self._approve_by = approve_by
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> str:
        self._thread.start()
        decisions = (
            Approvals(self._log, self._approve_by) if self._approve_by is not None else None
        )
        self._server = TraceServer(self._log, decisions=decisions)
        asyncio.run_coroutine_threadsafe(self._server.__aenter__(), self._loop).result()
        return self._server.url

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.__aexit__(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db") as log:
        yield log


@pytest.fixture
def url(log: SqliteLog) -> Iterator[str]:
    with Served(log) as url:
        yield url


# Module scope, because the browser's event loop would disturb tests of other modules.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = require("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """Hold a browser page, the errors it reported, and the URLs it requested."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self._stop(dialog))
        page.on("request", lambda request: self.asked.append(request.url))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _stop(self, dialog: object) -> None:
        self.complaints.append("a dialog opened")
        dialog.dismiss()  # type: ignore[attr-defined]


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, locale="en-GB", timezone_id="UTC"
    )
    context.set_default_timeout(PATIENCE * 1000)
    yield Watched(context.new_page())
    context.close()
