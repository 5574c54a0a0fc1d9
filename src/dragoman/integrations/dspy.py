"""``DragomanLM``: every model that Dragoman connects to, as a language model of DSPy.

::

    dspy.configure(lm=DragomanLM("anthropic:claude-sonnet-4-6"))
    dspy.Predict("question -> answer")(question="Which river flows through Basel?")

DSPy writes its requests for the Chat Completions API; transports without HTTP answer them. DSPy
itself caches replies and retries calls (``cache=False`` and ``num_retries=0`` turn that off).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import msgspec

from ..errors import ProviderError, advise_import

with advise_import("dragoman.integrations.dspy needs the extra: pip install 'dragoman[dspy]'"):
    from dspy import LM  # pyright: ignore[reportMissingImports]
    from dspy.lm15 import (  # pyright: ignore[reportMissingImports]
        AsyncOpenAIChatLM,
        OpenAIChatLM,
    )

from ..blocking import SyncProvider, run
from ..provider import Provider
from ..wire import SERVER_CODECS
from .loops import Opened, open_named
from .losses import DragomanLossWarning
from .served import ServedCall, StartedStream

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
        # DSPy calls one method of a transport; its adapters insist on a key
        first, second = [
            {"api_key": "none", "transport": SimpleNamespace(stream=partial(_Answer, opened, it))}
            for it in (run, lambda work: work)  # the caller of the second awaits it
        ]
        engines = {"engine": OpenAIChatLM(**first), "async_engine": AsyncOpenAIChatLM(**second)}
        super().__init__(name, **engines, **settings)

    # A model without tools rejects the request; where a wire has no schemas, the prompt has one.
    supports_function_calling = supports_response_schema = True
    supported_params = frozenset({"response_format", "tools", "tool_choice", "reasoning_effort"})


class _Answer(StartedStream[bytes]):
    """The reply to one request, in the form that DSPy's transports return."""

    reason = ""
    http_version = "HTTP/1.1"

    def __init__(
        self, opened: Opened[Provider, SyncProvider], finish: Callable[..., Any], request: Any
    ) -> None:
        super().__init__(self._write(opened, request))
        # the first bytes decide the status
        self.status = 0
        self._finish = finish
        self.headers: list[tuple[str, str]] = []

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
            self.status = reply.status
            self.headers = [*reply.headers.items()]
            yield reply.body

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return run(self.start())

    def __exit__(self, *_: object) -> None:
        run(self.aclose())

    def read(self) -> Any:
        return self._finish(self._read())

    async def _read(self) -> bytes:
        return b"".join([part async for part in self])
