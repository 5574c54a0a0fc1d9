"""Provide a log served by a real server in a thread, and a real Chromium browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from dragoman.log import EventLog, SqliteLog
from dragoman.trace import TraceServer
from dragoman.trace.approval import Approvals

from ..browsers import FLAGS
from ..programs import require
from ..waiting import PATIENCE

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
        by = self._approve_by
        decisions = Approvals(self._log, by) if by is not None else None
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
        self._listeners: dict[Any, Any] = {
            "console": self._hear, "pageerror": lambda error: self.complaints.append(str(error)),
            "dialog": self._stop, "request": lambda request: self.asked.append(request.url),
        }  # fmt: skip
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _stop(self, dialog: Dialog) -> None:
        self.complaints.append("a dialog opened")
        dialog.dismiss()

    def leave(self) -> None:
        """Leave the page as the next test expects it."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.goto("about:blank")


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Page]:
    """Open one page for all tests: each new context starts a process of the browser."""
    context = browser.new_context(locale="en-GB", timezone_id="UTC")
    context.set_default_timeout(PATIENCE * 1000)
    yield context.new_page()
    context.close()


@pytest.fixture
def watched(shared: Page) -> Iterator[Watched]:
    shared.set_viewport_size({"width": 1280, "height": 900})
    shared.emulate_media(color_scheme="light", reduced_motion="reduce")
    watched = Watched(shared)
    yield watched
    watched.leave()
