"""The four deadlines of a call: connect, first_event, idle and total."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from msgspec import Struct

from ..errors import Deadline, TimedOutError

MAX_SECONDS = 1e9
"""The longest timeout: longer than any call, and safe for timers."""


class Timeouts(Struct, frozen=True):
    """The four deadlines of a call in seconds; ``None`` disables a deadline.

    ``connect`` limits the time to reach the server. ``first_event`` and ``idle`` apply to streams:
    they limit the wait for the first event and for each further event. Only events with content
    count (keep-alive comments do not), and only time in which the caller waits. ``total`` limits
    the complete call.
    """

    connect: float | None = 10.0
    first_event: float | None = 300.0
    idle: float | None = 120.0
    total: float | None = 600.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not (0 < value <= MAX_SECONDS or value == math.inf):
                raise ValueError(
                    f"timeouts.{name} must be a positive number of seconds up to {MAX_SECONDS:g}, "
                    f"or None, not {value!r:.50}"
                )


class Alarm:
    """A timer that is kept from one deadline to the next, such as from call to call.

    Setting and cancelling a timer takes a few percent of the time of a call, and few calls reach
    a deadline. The end of a call therefore leaves the timer set. If it fires before the deadline
    of a later call, it is set again.
    """

    __slots__ = ("_due", "_loop", "_ring", "_timer", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ring: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0  # when the timer fires
        self._due = 0.0  # when ``ring`` is to be called

    def set(self, when: float, ring: Callable[[], None]) -> None:
        """Call ``ring`` at ``when``, and no earlier function."""
        self._ring = ring
        self._due = when
        if self._timer is not None:
            if self._when <= when:
                return
            self._timer.cancel()
        self._when = when
        self._timer = self._loop.call_at(when, self._fire)

    @property
    def is_set(self) -> bool:
        """Whether there is a function to call."""
        return self._ring is not None

    def release(self) -> None:
        """Call no function; the timer stays set."""
        self._ring = None

    def cancel(self) -> None:
        """Cancel the timer, unless it still has a function to call."""
        if self._timer is not None and self._ring is None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._ring is None:
            return
        if self._loop.time() < self._due:
            self.set(self._due, self._ring)
        else:
            self._ring()


class Clock:
    """Enforce the deadlines of one call with a single timer, however many chunks arrive.

    When a deadline passes, the clock calls the function that was passed to ``start``, which ends
    the wait. ``reading`` is true while the caller waits for the server; the time in which the
    caller handles events does not count.
    """

    __slots__ = ("_alarm", "_began", "_expire", "_received", "_stream", "_touched", "expired",
                 "loop",
                 "reading", "timeouts")  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, timeouts: Timeouts, *, stream: bool
    ) -> None:
        self.timeouts = timeouts
        self.reading = True
        self.expired: Deadline | None = None
        self.loop = loop
        self._stream = stream
        self._began = self._touched = loop.time()
        self._received = False
        self._alarm: Alarm | None = None
        self._expire: Callable[[], None] | None = None

    def start(self, expire: Callable[[], None], alarm: Alarm) -> None:
        """Set the timer; the deadlines count from the creation of the clock."""
        self._expire = expire
        self._alarm = alarm
        self._schedule()

    def touch(self) -> None:
        """Restart the idle deadline, since the caller has received and handled an event.

        This has an effect only for streams.
        """
        if not self._stream:
            return
        self._touched = self.loop.time()
        if not self._received:
            self._received = True
            self._schedule()

    def stop(self) -> None:
        """Stop enforcing the deadlines; the next call may use the timer."""
        if self._alarm is not None:
            self._alarm.release()
            self._alarm = None

    def connect_by(self) -> tuple[Deadline, float | None]:
        """Return the deadline that passes first while the call connects, and its time."""
        which, when = self._next()
        seconds = self.timeouts.connect
        if seconds is not None and (when is None or self._began + seconds <= when):
            return "connect", self._began + seconds
        return which, when

    def is_in_loop(self) -> bool:
        """Return whether the call's event loop runs in this thread.

        A finalizer may run in another thread.
        """
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def expiry(self) -> TimedOutError:
        which = self.expired or "total"
        seconds = getattr(self.timeouts, which)
        return TimedOutError(f"the {which} deadline of {seconds} s passed", which=which)

    def _next(self) -> tuple[Deadline, float | None]:
        limits = self.timeouts
        which: Deadline = "total"
        when = None if limits.total is None else self._began + limits.total
        if self._stream:
            seconds = limits.idle if self._received else limits.first_event
            if seconds is not None:
                sooner = (self._touched if self._received else self._began) + seconds
                if when is None or sooner <= when:
                    which = "idle" if self._received else "first_event"
                    when = sooner
        return which, when

    def _schedule(self) -> None:
        _, when = self._next()
        if when is not None and self._alarm is not None:
            self._alarm.set(when, self._check)

    def _check(self) -> None:
        which, when = self._next()
        now = self.loop.time()
        if when is not None and when <= now:
            if which == "total" or self.reading:
                self.expired = which
                if self._expire is not None:
                    self._expire()
                return
            # the caller is handling an event; that time does not count
            self._touched = now
            self._received = True
        self._schedule()
