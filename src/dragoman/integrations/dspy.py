"""``DragomanLM``: every model that Dragoman connects to, as a language model of DSPy.

::

    dspy.configure(lm=DragomanLM("anthropic:claude-sonnet-4-6"))
    dspy.Predict("question -> answer")(question="Which river flows through Basel?")

DSPy writes its requests for the Chat Completions API; transports without HTTP answer them. DSPy
itself caches replies and retries calls (``cache=False`` and ``num_retries=0`` turn that off).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
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
from ..provider import Provider, connect
from ..sync import SyncProvider, run
from ..wire import SERVER_CODECS
from .loops import Opened
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
        own = model if isinstance(model, Provider) else None
        name = model.model if isinstance(model, Provider) else model
        opened = Opened(lambda: connect(name, **connection or {}), SyncProvider, own)
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
        self._opened, self._request = opened, request
        self.status = 200
        self.headers: list[tuple[str, str]] = []
        self._first = b""
        self._rest: AsyncGenerator[bytes] | None = None

    async def open(self) -> None:
        """Wait for the first bytes of the reply, or for the error that takes their place."""
        try:
            fields = msgspec.json.decode(self._request.body)
            call = ServedCall(await self._opened.get(), "openai", fields)
            self._rest = call.write()
            self._first = await anext(self._rest)
        except ProviderError as error:
            reply = SERVER_CODECS["openai"].error(error)
            self.status, self._first, self._rest = reply.status, reply.body, None
            self.headers = [*reply.headers.items()]

    async def next(self) -> bytes:
        """Return the next bytes, and none at the end."""
        if self._first or self._rest is None:
            first, self._first = self._first, b""
            return first
        try:
            return await anext(self._rest, b"")
        except ProviderError as error:
            # an error in the middle of a stream is the last event
            return b"data: %b\n\n" % SERVER_CODECS["openai"].error(error).body

    async def close(self) -> None:
        """Cancel a call whose reply is not read to its end."""
        if self._rest is not None:
            await self._rest.aclose()


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
