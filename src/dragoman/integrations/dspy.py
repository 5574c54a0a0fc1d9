"""``DragomanLM``: every model that Dragoman connects to, as a language model of DSPy.

::

    dspy.configure(lm=DragomanLM("anthropic:claude-sonnet-4-6"))
    dspy.Predict("question -> answer")(question="Which river flows through Basel?")

DSPy writes its requests for the Chat Completions API; transports without HTTP answer them. DSPy
itself caches replies and retries calls (``cache=False`` and ``num_retries=0`` turn that off).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
from dspy import LM  # pyright: ignore[reportMissingImports]
from dspy.lm15 import (  # pyright: ignore[reportMissingImports]
    AsyncOpenAIChatLM,
    OpenAIChatLM,
)

from ..errors import ProviderError
from ..provider import Provider
from ..sync import SyncProvider, run
from ..wire import SERVER_CODECS
from .loops import Opened, open_named
from .losses import DragomanLossWarning
from .served import ServedCall

__all__ = ["DragomanLM", "DragomanLossWarning"]


class DragomanLM(LM):  # type: ignore[misc]  # DSPy has no types
    """A language model of DSPy that calls ``dragoman.connect(model)`` or your provider.

    If you give the name of a model, each event loop gets its own connections, which are closed
    when the loop shuts down. ``connection`` has further arguments of ``connect``, such as
    ``base_url`` and ``wire``; ``settings`` are those of ``dspy.LM``. DSPy's errors have the status
    and the text of Dragoman's.
    """

    def __init__(
        self,
        model: str | Provider,
        *,
        connection: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        name, opened = open_named(model, connection or {})
        none = "none"  # DSPy's adapters insist on a key
        super().__init__(
            name,
            engine=OpenAIChatLM(api_key=none, transport=_transport(_BlockingAnswer, opened)),
            async_engine=AsyncOpenAIChatLM(
                api_key=none, transport=_transport(_AsyncAnswer, opened)
            ),
            **settings,
        )

    # A model without tools rejects the request; where a wire has no schemas, the prompt has one.
    supports_function_calling = supports_response_schema = True
    supported_params = frozenset({"response_format", "tools", "tool_choice", "reasoning_effort"})


class _Answer:
    """The reply to one request, in the form that DSPy's transports return."""

    reason = ""
    http_version = "HTTP/1.1"

    def __init__(self, opened: Opened[Provider, SyncProvider], request: Any) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._parts = self._write(opened, request)
        self._first = b""

    async def _write(
        self, opened: Opened[Provider, SyncProvider], request: Any
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of the reply; if the call fails, yield the error in their place."""
        try:
            fields = msgspec.json.decode(request.body)
            call = ServedCall(await opened.get(), "openai", fields)
            async with aclosing(call.write()) as parts:
                async for part in parts:
                    self.status = 200
                    yield part
        except ProviderError as error:
            reply = SERVER_CODECS["openai"].error(error)
            if self.status:  # an error in the middle of a stream is the last event
                yield b"data: %b\n\n" % reply.body
                return
            self.status, self.headers = reply.status, [*reply.headers.items()]
            yield reply.body

    async def open(self) -> None:
        """Wait for the first bytes, which decide the status."""
        self._first = await anext(self._parts)

    async def next(self) -> bytes:
        """Return the next bytes, and none at the end."""
        first, self._first = self._first, b""
        return first or await anext(self._parts, b"")

    async def close(self) -> None:
        """Cancel a call whose reply is not read to its end."""
        await self._parts.aclose()


class _BlockingAnswer(_Answer):
    def __enter__(self) -> _BlockingAnswer:
        run(self.open())
        return self

    def __exit__(self, *_: object) -> None:
        run(self.close())

    def __iter__(self) -> Iterator[bytes]:
        while part := run(self.next()):
            yield part

    def read(self) -> bytes:
        return b"".join(self)


class _AsyncAnswer(_Answer):
    async def __aenter__(self) -> _AsyncAnswer:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while part := await self.next():
            yield part

    async def read(self) -> bytes:
        return b"".join([part async for part in self])


def _transport(answer: type[_Answer], opened: Opened[Provider, SyncProvider]) -> Any:
    """Return an object with the one method of a transport that DSPy calls."""
    return SimpleNamespace(stream=partial(answer, opened))
