"""Test the timer that enforces the timeouts of a call. The calls of a connection share it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dragoman import HttpTransport, Timeouts, connect
from dragoman.transport.clock import Alarm, Clock

from ..server import answering, serve


class Handle:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.is_pending = True

    def cancel(self) -> None:
        self.is_pending = False


class Loop:
    """An event loop whose time the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        self.timers.append(Handle(when, callback))
        return self.timers[-1]

    @property
    def pending(self) -> list[float]:
        return [timer.when for timer in self.timers if timer.is_pending]

    def advance(self, now: float) -> None:
        """Let time pass; call the timers that are due, in order."""
        while due := [timer for timer in self.timers if timer.is_pending and timer.when <= now]:
            first = min(due, key=lambda timer: timer.when)
            self.now = first.when
            first.is_pending = False
            first.callback()
        self.now = now


def start(loop: Any, alarm: Alarm, total: float, **settings: Any) -> tuple[Clock, list[float]]:
    """Start the clock of a call. Return the clock, and a list to which the clock adds the time at
    which it ends the call.
    """
    ended: list[float] = []
    clock = Clock(
        loop,
        Timeouts(total=total, first_event=settings.get("first_event"), idle=settings.get("idle")),
        stream="idle" in settings,
    )
    clock.start(lambda: ended.append(loop.now), alarm)
    return clock, ended


@pytest.mark.parametrize(("stream", "timers"), [(False, 1), (True, 2)])
def test_only_the_first_event_of_a_stream_restarts_the_timeout(stream: bool, timers: int) -> None:
    """A call that is not streamed has one timeout, ``total``, which events do not restart."""
    loop: Any = Loop()
    clock = Clock(loop, Timeouts(first_event=300.0, idle=120.0, total=600.0), stream=stream)
    clock.start(lambda: None, Alarm(loop))
    for _ in range(3):
        clock.touch()
    clock.stop()
    assert len(loop.timers) == timers
    assert len(loop.pending) == 1


def test_calls_of_a_connection_share_one_timer() -> None:
    loop: Any = Loop()
    alarm = Alarm(loop)
    for now in range(100):
        loop.advance(now)
        clock, ended = start(loop, alarm, 600.0)
        clock.stop()
        assert not ended
    assert loop.pending == [600.0]
    loop.advance(1000.0)
    assert loop.pending == []
    assert len(loop.timers) == 1


def test_timer_of_an_earlier_call_does_not_end_a_later_one() -> None:
    loop: Any = Loop()
    alarm = Alarm(loop)
    first, first_ended = start(loop, alarm, 10.0)
    first.stop()
    loop.advance(4.0)
    later, ended = start(loop, alarm, 10.0)
    loop.advance(13.9)
    assert later.expired is None
    loop.advance(100.0)
    assert ended == [14.0]
    assert later.expired == "total"
    assert first_ended == []
    assert len(loop.timers) == 2


def test_sooner_timeout_of_a_later_call_is_exact() -> None:
    loop: Any = Loop()
    alarm = Alarm(loop)
    first, _ = start(loop, alarm, 600.0)
    first.stop()
    loop.advance(1.0)
    later, ended = start(loop, alarm, 2.0)
    assert loop.pending == [3.0]
    loop.advance(100.0)
    assert ended == [3.0]
    assert later.expired == "total"


def test_alarm_rings_only_at_the_time_set_last() -> None:
    loop: Any = Loop()
    alarm = Alarm(loop)
    rung = list[float]()
    for when in (10.0, 25.0):
        alarm.set(when, lambda: rung.append(loop.now))
    loop.advance(100.0)
    assert rung == [25.0]


def test_idle_timeout_counts_from_the_last_event() -> None:
    loop: Any = Loop()
    clock, ended = start(loop, Alarm(loop), 600.0, first_event=30.0, idle=10.0)
    for now in (5.0, 14.0, 23.0):
        loop.advance(now)
        clock.touch()
    loop.advance(600.0)
    assert ended == [33.0]
    assert clock.expired == "idle"


def test_timer_is_cancelled_only_if_no_call_uses_it() -> None:
    loop: Any = Loop()
    alarm = Alarm(loop)
    clock, ended = start(loop, alarm, 5.0)
    alarm.cancel()
    assert loop.pending == [5.0]
    clock.stop()
    clock.stop()
    alarm.cancel()
    assert loop.pending == []
    loop.advance(10.0)
    assert not ended


def test_call_without_timeouts_sets_no_timer() -> None:
    loop: Any = Loop()
    clock = Clock(loop, Timeouts(None, None, None, None), stream=False)
    clock.start(lambda: None, Alarm(loop))
    assert loop.timers == []


async def test_closed_connection_leaves_no_timer() -> None:
    def timers() -> list[Any]:
        # asyncio has no public list of timers
        scheduled: list[Any] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]  # noqa: SLF001
        return [each for each in scheduled if not each.cancelled() and "Alarm" in repr(each)]

    transport = HttpTransport()
    async with (
        serve(answering()) as server,
        connect("m", base_url=server.base_url, transport=transport) as model,
    ):
        for _ in range(3):
            await model.complete("Hi")
            assert len(timers()) == 1
        assert transport.open_pool().sizes == (1, 1)
        await model.stream("Hi").aclose()
        async for _ in model.stream("Hi"):
            pass
        assert len(timers()) == 1
    assert timers() == []
