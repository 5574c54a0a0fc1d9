"""A provider that answers from a list, and a manual clock, for tests above the wires."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from dragoman.capabilities import Capabilities
from dragoman.errors import ProviderError
from dragoman.events import Assembler, Event, Usage
from dragoman.messages import Request
from dragoman.provider import Provider
from dragoman.validate import Expectation

USAGE = Usage(input_tokens=10, output_tokens=5, total_tokens=15)


class Clock:
    """A manual clock: ``clock()`` returns its time; ``clock.sleep(s)`` advances and records it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class Listed(Provider):
    """Answers each call with the next entry of a list.

    An entry is text, an error, a list of events that may end with an error, or a function of the
    request that returns any of these. An ``asyncio.Event`` in a list of events makes the provider
    wait for it. With ``repeat`` the last entry answers all further calls.
    """

    def __init__(
        self,
        *answers: Any,
        name: str = "listed",
        model: str = "m",
        capabilities: dict[str, Any] | None = None,
        repeat: bool = False,
    ) -> None:
        self.name = name
        self.model = model
        self.capabilities = Capabilities.of(capabilities or {})
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.running = 0
        self.closed = 0
        self._repeat = repeat

    async def events(self, request: Request) -> AsyncIterator[Event]:
        self.requests.append(request)
        self.running += 1
        try:
            await asyncio.sleep(0)
            for item in self._next(request):
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, asyncio.Event):
                    await item.wait()
                else:
                    yield item
        finally:
            self.running -= 1

    async def ready(self) -> None:
        answer = self.answers[0] if self.answers else None
        if isinstance(answer, Exception):
            raise answer

    async def close(self) -> None:
        self.closed += 1

    def _next(self, request: Request) -> Iterable[Any]:
        assert self.answers, f"{self.name}: no answer is left for another call"
        answer = (
            self.answers[0] if self._repeat and len(self.answers) == 1 else self.answers.pop(0)
        )
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, str):
            return reply(answer)(request)
        return [answer] if isinstance(answer, Exception) else answer


Speak = Callable[[Assembler], None]


def speak(
    *words: Speak,
    usage: Usage = USAGE,
    finish: str = "stop",
    stop_sequence: str | None = None,
    raw: str | None = None,
) -> Callable[[Request], list[Event | ProviderError]]:
    """Return a list entry that emits the given blocks through the assembler, as a wire does."""

    def answer(request: Request) -> list[Event | ProviderError]:
        out = Assembler(
            request_id=request.request_id, model=request.model, provider="listed",
            expected=Expectation(request),
        )  # fmt: skip
        out.start()
        for word in words:
            word(out)
        out.usage(usage)
        out.finish(finish, raw, stop_sequence)  # type: ignore[arg-type]
        return [*out.take(), *([out.error] if out.error is not None else [])]

    return answer


def reply(text: str, **facts: Any) -> Callable[[Request], list[Event | ProviderError]]:
    """Return a list entry that answers with a text in two pieces."""
    middle = len(text) // 2
    pieces = [piece for piece in (text[:middle], text[middle:]) if piece]
    return speak(*[lambda out, piece=piece: out.text(piece) for piece in pieces], **facts)


def broken(text: str, error: ProviderError) -> Callable[[Request], list[Event | ProviderError]]:
    """Return a list entry that emits some text and then fails."""

    def answer(request: Request) -> list[Event | ProviderError]:
        out = Assembler(request_id=request.request_id, model=request.model, provider="listed")
        out.start()
        out.text(text)
        out.fail(error)
        return [*out.take(), error]

    return answer


async def collect(source: AsyncIterator[Event]) -> tuple[list[Event], Exception | None]:
    """Return all events of a stream, and the error that ended it, if any."""
    heard: list[Event] = []
    try:
        async for event in source:
            heard.append(event)
    except Exception as error:
        return heard, error
    return heard, None
