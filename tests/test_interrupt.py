"""Interrupt a call at every step of its event loop, and at every line of the waiting thread.

The steps are counted, so no test depends on how fast the machine is: the first run interrupts
before the first callback of the loop, the next one before the second, until a call ends before
its interrupt.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import dragoman as d
from dragoman import blocking as sync
from dragoman import connect as connect_async
from dragoman.provider.contract import ReplyProvider
from dragoman.provider.reply import AssembledReply

from .listed import Listed, reply
from .server import Connection, completion, serve, stream_of
from .test_sync import Background
from .waiting import PATIENCE, arrival, block_until, settle, until

Count = Callable[[str, int], None]
METHODS = ["complete", "stream"]
LAYERS = {"plain": lambda model: model, "retry": d.Retry}


class Steps(deque[Any]):
    """The callbacks that a loop has ready: act once, before the callback with a given number."""

    def __init__(self, loop: Any) -> None:
        super().__init__(loop._ready)  # noqa: SLF001 - asyncio has no hook between two callbacks
        loop._ready = self  # noqa: SLF001
        self._left = 0
        self._act: Callable[[], Any] | None = None

    def arm(self, step: int, act: Callable[[], Any]) -> None:
        self._left = step
        self._act = act

    def disarm(self) -> bool:
        """Return whether the action has run."""
        act, self._act = self._act, None
        return act is None

    def popleft(self) -> Any:
        if self._act is not None:
            self._left -= 1
            if not self._left:
                act, self._act = self._act, None
                known = len(self)
                act()
                self.rotate(len(self) - known)  # what the action has posted comes first
        return super().popleft()


# --- the asynchronous API ----------------------------------------------------------------------


class Call:
    """One call of a model, and how it ended."""

    def __init__(self, model: d.Provider, method: str) -> None:
        self.model = model
        self.events: list[Any] = []
        self.stream: d.EventStream | None = None
        if method == "stream":
            self.stream = model.stream("Hi", request_id="r")

    async def __call__(self) -> str:
        if self.stream is None:
            return (await self.model.complete("Hi", request_id="r")).finish_reason
        async with self.stream as stream:
            async for event in stream:
                self.events.append(event)
            d.check_events(self.events)
            return stream.response.finish_reason

    async def cancel(self) -> bool:
        if self.stream is None:
            return await self.model.cancel("r")
        return await self.stream.cancel()


async def slowly(connection: Connection, stalling: threading.Event | None = None) -> None:
    """Answer in several pieces, so that the loop takes several steps to read them."""
    if not connection.seen.json.get("stream"):
        connection.head(headers={"content-length": str(len(completion()))})
        pieces = [completion()[:20], completion()[20:]]
    else:
        connection.begin_stream()
        pieces = [stream_of("He", "llo")[:200], stream_of("He", "llo")[200:], b""]
        pieces = [f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces]
    for piece in pieces:
        if stalling is not None and stalling.is_set():
            await asyncio.Event().wait()
        connection.send(piece)
        await connection.writer.drain()
        await settle()


@contextlib.asynccontextmanager
async def opened(layer: str, method: str) -> AsyncIterator[Call]:
    """Open a call; at the end, nothing of it may be left."""
    async with serve(slowly) as server:
        before = asyncio.all_tasks()
        try:
            async with LAYERS[layer](connect_async("m", base_url=server.base_url)) as model:
                call = Call(model, method)
                try:
                    yield call
                finally:
                    call.stream = None
                    assert "r" not in model._calls  # noqa: SLF001
        finally:
            await until(lambda: not server.open, "the end of the connection")
            await until(lambda: asyncio.all_tasks() <= before, "the end of the tasks")


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method", METHODS)
def test_cancel_takes_effect_at_every_step(layer: str, method: str, count: Count) -> None:
    async def play(step: int) -> bool:
        steps = Steps(asyncio.get_running_loop())
        async with opened(layer, method) as call:
            cancelling: list[asyncio.Task[bool]] = []
            known: list[bool] = []

            def act() -> None:
                known.append("r" in call.model._calls)  # noqa: SLF001
                cancelling.append(asyncio.ensure_future(call.cancel()))

            calling = asyncio.create_task(call())
            steps.arm(step, act)
            try:
                ending = await arrival(calling, "the end of the call")
            except d.CallCancelledError:
                ending = "cancelled"
            assert calling.cancelling() == 0
            if not steps.disarm():
                return False
            # A call that is not in flight, because it has not begun or has ended, stays as it is.
            assert await cancelling[0] == known[0]
            assert ending == ("cancelled" if known[0] else "stop")
            return True

    count_points(lambda step: asyncio.run(play(step)), count)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method", METHODS)
def test_cancelled_task_ends_at_every_step(layer: str, method: str, count: Count) -> None:
    async def play(step: int) -> bool:
        steps = Steps(asyncio.get_running_loop())
        async with opened(layer, method) as call:
            calling = asyncio.create_task(call())
            accepted: list[bool] = []
            steps.arm(step, lambda: accepted.append(calling.cancel()))
            await asyncio.wait([calling])
            steps.disarm()
            assert calling.cancelled() == (accepted == [True])
            return bool(accepted)

    count_points(lambda step: asyncio.run(play(step)), count)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method", METHODS)
def test_interrupted_loop_ends_at_every_step(layer: str, method: str, count: Count) -> None:
    async def play(step: int, interrupted: list[int]) -> None:
        steps = Steps(asyncio.get_running_loop())
        async with opened(layer, method) as call:
            steps.arm(step, lambda: (interrupted.append(1), signal.raise_signal(signal.SIGINT)))
            try:
                await call()
            finally:
                steps.disarm()

    def attempt(step: int) -> bool:
        interrupted: list[int] = []
        try:
            asyncio.run(play(step, interrupted))
        except KeyboardInterrupt:
            return True
        assert not interrupted
        return False

    count_points(attempt, count)


def count_points(attempt: Callable[[int], bool], count: Count, stride: int = 1) -> None:
    """Interrupt at the first step, the second, and so on, until the call ends before."""
    step = 1
    while attempt(step):
        step += stride
    assert step > 3
    count("points at which a call was interrupted", (step - 1) // stride)


# --- providers that handle the cancellation themselves -----------------------------------------


class Stubborn(d.Provider):
    """A provider that waits once and replaces the cancellation by something else."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.waits = asyncio.Event()

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        for event in reply("Hello")(request):
            assert not isinstance(event, d.ProviderError)
            yield event
            if not self.waits.is_set():
                self.waits.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if self._error is not None:
                        raise self._error from None


@pytest.mark.parametrize("error", [None, d.OverloadedError("busy")])
@pytest.mark.parametrize("method", METHODS)
async def test_cancellation_that_a_provider_replaces_takes_effect(
    method: str, error: d.ProviderError | None
) -> None:
    model = Stubborn(error)
    call = Call(model, method)
    calling = asyncio.create_task(call())
    await arrival(model.waits.wait(), "the first event")
    assert await call.cancel()
    if method == "stream" and error is None:
        assert await calling == "cancelled"
    else:
        with pytest.raises(type(error) if error else d.CallCancelledError):
            await calling
    assert calling.cancelling() == 0


async def test_cancel_ends_a_wait_after_the_last_event() -> None:
    """Some replies wait after the complete message, for example to return a lease."""
    model = Listed(lambda request: [*reply("Hello")(request), asyncio.Event()])
    stream = model.stream("Hi")
    events: list[d.Event] = []

    async def read() -> None:
        async for event in stream:
            events.append(event)

    reading = asyncio.create_task(read())
    await until(lambda: stream.ended, "the complete message")
    await settle()
    assert not await stream.cancel()
    await arrival(reading, "the end of the stream")
    assert stream.response.finish_reason == "stop"
    assert model.running == 0


async def test_cancel_takes_effect_while_a_failed_reply_is_closed() -> None:
    closing = asyncio.Event()

    class Failed(AssembledReply):
        async def next(self) -> list[d.Event]:
            raise d.OverloadedError("busy")

        async def aclose(self) -> None:
            closing.set()
            await asyncio.Event().wait()

    class Closing(ReplyProvider):
        def open(self, request: d.Request) -> Failed:
            return Failed(request, "", "")

    model = Closing()
    calling = asyncio.create_task(model.complete("Hi", request_id="r"))
    await arrival(closing.wait(), "the failure")
    assert await model.cancel("r")
    with pytest.raises(d.CallCancelledError):
        await calling
    assert calling.cancelling() == 0


# --- the blocking API --------------------------------------------------------------------------


class Desk:
    """A blocking model whose portal counts its steps, and a signal handler for its calls."""

    def __init__(self, method: str, base_url: str, stalling: threading.Event) -> None:
        self.stalling = stalling  # while it is set, the server ends no reply
        self.steps: Any = None
        self.acted = threading.Event()  # a thread has posted work to the portal, or has left it
        self.method = method
        self.is_inside = False
        self.late = 0
        self.problems: list[Any] = []
        sync._portal = sync._Portal()  # noqa: SLF001
        self.loop: Any = sync._portal._open()  # noqa: SLF001
        self.post = self.loop.call_soon_threadsafe
        self.loop.call_soon_threadsafe = self._post_seen
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        self.loop.call_soon_threadsafe(lambda: setattr(self, "steps", Steps(self.loop)))
        self.model = sync.connect("m", base_url=base_url)
        block_until(lambda: self.steps is not None, "the start of the portal")

    def _post_seen(self, *arguments: Any, **more: Any) -> Any:
        handle = self.post(*arguments, **more)
        if threading.current_thread() is not threading.main_thread() or self.is_inside:
            self.acted.set()
        return handle

    def handle(self, *_: object) -> None:
        if self.is_inside:
            raise KeyboardInterrupt
        self.late += 1

    def open(self) -> None:
        self.stream = self.model.stream("Hi", request_id="r") if self.method == "stream" else None

    def call(self) -> str:
        """Make the call and return how it ended."""
        try:
            self.is_inside = True
            if self.stream is None:
                ending = self.model.complete("Hi", request_id="r").finish_reason
            else:
                events = list(self.stream)
                d.check_events(events)
                ending = self.stream.response.finish_reason
        except d.CallCancelledError:
            ending = "cancelled"
        except KeyboardInterrupt:
            ending = "interrupted"
        finally:
            self.is_inside = False
            self.acted.set()
        return ending

    def check(self) -> None:
        """Check that the portal still works, and that nothing of the call is left in it."""
        self.stream = None
        calls = self.model.provider._calls  # noqa: SLF001
        block_until(lambda: "r" not in calls, "the end of the call")
        self.stalling.clear()
        again = threading.Thread(target=self._again, daemon=True)
        again.start()
        again.join(PATIENCE)
        assert not again.is_alive(), "the portal does not answer"
        block_until(lambda: not asyncio.all_tasks(self.loop), "the end of the tasks")
        assert not self.problems

    def _again(self) -> None:
        if self.model.complete("Hi").text != "Hello":
            self.problems.append("another text")

    def close(self) -> None:
        self.model.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        block_until(lambda: not self.loop.is_running(), "the end of the portal")
        self.loop.close()


@pytest.fixture
def desk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(sync, "_portal", None)
    stalling = threading.Event()

    async def handler(connection: Connection) -> None:
        await slowly(connection, stalling)

    with Background(handler) as server:
        desk = Desk(request.param, server.base_url, stalling)
        before = signal.signal(signal.SIGINT, desk.handle)
        try:
            yield desk
            desk.close()
            block_until(lambda: not server.open, "the end of the connections")
        finally:
            signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("desk", METHODS, indirect=True)
def test_blocking_call_can_be_cancelled_at_every_step(desk: Desk, count: Count) -> None:
    effective: list[bool] = []

    def attempt(step: int) -> bool:
        desk.open()
        stream = desk.stream
        cancel = stream.cancel if stream is not None else lambda: desk.model.cancel("r")
        accepted: list[bool] = []
        other = threading.Thread(target=lambda: accepted.append(cancel()))

        def act() -> None:
            desk.is_inside = False  # only what the other thread posts counts
            desk.acted.clear()
            other.start()
            desk.acted.wait(PATIENCE)

        desk.steps.arm(step, act)
        ending = desk.call()
        if not desk.steps.disarm():
            return False
        block_until(lambda: accepted, "the answer of cancel")
        # ``cancel`` returns ``False`` before the call has begun and after it has ended
        assert ending == ("cancelled" if accepted[0] else "stop")
        effective.append(accepted[0])
        desk.check()
        return True

    count_points(attempt, count)
    assert any(effective)


@pytest.mark.parametrize("thread", ["main", "portal"])
@pytest.mark.parametrize("desk", METHODS, indirect=True)
def test_blocking_call_can_be_interrupted_at_every_step_of_the_portal(
    desk: Desk, thread: str, monkeypatch: pytest.MonkeyPatch, count: Count
) -> None:
    """A signal for another thread does not wake the main thread, which is about to wait."""
    monkeypatch.setattr(sync, "_TURN", 0.002, raising=False)
    main = threading.main_thread().ident
    assert main is not None

    def attempt(step: int) -> bool:
        desk.open()
        desk.late = 0
        prompt: list[bool] = []

        def act() -> None:
            desk.stalling.set()
            desk.acted.clear()
            if thread == "main":
                signal.pthread_kill(main, signal.SIGINT)
            else:
                signal.raise_signal(signal.SIGINT)
            prompt.append(desk.acted.wait(PATIENCE))
            if not prompt[0]:
                desk.stalling.clear()

        desk.steps.arm(step, act)
        ending = desk.call()
        if not desk.steps.disarm():
            assert ending == "stop"
            return False
        block_until(lambda: prompt, "the interrupt")
        assert prompt == [True], "the main thread did not notice the interrupt"
        assert ending == ("stop" if desk.late else "interrupted")
        desk.check()
        return True

    count_points(attempt, count)


@pytest.mark.exhaustive
@pytest.mark.no_cover  # the trace function of this test replaces that of coverage
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("desk", METHODS, indirect=True)
def test_blocking_call_can_be_interrupted_at_every_line(desk: Desk, count: Count) -> None:
    desk.loop.call_soon_threadsafe = desk.post  # the code of this test is not interrupted

    def attempt(step: int) -> bool:
        left = step

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if desk.is_inside and frame.f_code.co_filename != __file__:
                left -= 1
                if not left:
                    desk.stalling.set()
                    raise KeyboardInterrupt
            return trace

        desk.open()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            ending = desk.call()
        finally:
            sys.settrace(before)
        if left > 0:
            assert ending == "stop"
            return False
        assert ending == "interrupted"
        desk.check()
        return True

    count_points(attempt, count, 1 if "DRAGOMAN_EXHAUSTIVE" in os.environ else 5)
