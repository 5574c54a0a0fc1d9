"""Test the timer that enforces the timeouts of a call."""

from __future__ import annotations

import asyncio

import pytest

from dragoman import Timeouts
from dragoman.transport.clock import Clock


@pytest.mark.parametrize(("stream", "timers"), [(False, 1), (True, 2)])
async def test_only_the_first_event_of_a_stream_restarts_the_timeout(
    stream: bool, timers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is not streamed has one timeout, ``total``, which events do not restart."""
    loop = asyncio.get_running_loop()
    started: list[float] = []
    call_at = loop.call_at

    def note(when: float, *rest: object) -> asyncio.TimerHandle:
        started.append(when)
        return call_at(when, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", note)
    clock = Clock(loop, Timeouts(first_event=300.0, idle=120.0, total=600.0), stream=stream)
    clock.start(lambda: None)
    for _ in range(3):
        clock.touch()
    clock.stop()
    assert len(started) == timers
