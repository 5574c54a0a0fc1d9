"""Use a LangChain or Pydantic AI model, or the stream of an SDK, as a ``Provider``.

::

    provider = from_langchain(ChatVendor(model="vendor-1", max_retries=0))
    provider = BridgeProvider("vendor", "vendor-1", read_sdk)

``read_sdk(request)`` is an asynchronous generator that calls the SDK and yields pieces of the
reply.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import msgspec

from .. import errors
from ..capabilities import Capabilities
from ..events import Assembler, Event, FinishReason, Usage
from ..messages import LossWarning, Request, Thinking, ToolCall
from ..provider import Provider
from ..provider.http import find_texts
from ..provider.http_model import read_capabilities
from ..validate import Expectation
from ..wire.errors import build_error, read_failure
from ..wire.openai.errors import ROWS

__all__ = [
    "BridgeProvider", "CallPiece", "Finish", "Piece", "from_langchain", "from_pydantic_ai",
    "read_error",
]  # fmt: skip


# the settings of a call that LangChain, Pydantic AI and Dragoman name alike
SETTINGS = ("temperature", "max_tokens", "top_p", "seed", "frequency_penalty", "presence_penalty")


class CallPiece(msgspec.Struct, frozen=True):
    """A fragment of the arguments of a tool call.

    ``key`` is the SDK's identifier for the call; the first fragment of a call also has the name of
    the tool.
    """

    key: Any
    fragment: str = ""
    id: str | None = None
    name: str | None = None


class Finish(msgspec.Struct, frozen=True):
    """The end of a reply: the finish reason, and ``raw``, the SDK's own name for it."""

    reason: FinishReason
    raw: str | None = None


Piece: TypeAlias = str | Thinking | ToolCall | CallPiece | Usage | LossWarning | Finish
"""A piece of a reply: a string is text, and a ``LossWarning`` reports what could not be sent."""

Read: TypeAlias = Callable[[Request], AsyncGenerator[Piece, None]]


class BridgeProvider(Provider):
    """A provider whose replies come from ``read(request)``, an asynchronous generator of pieces.

    The reply ends when the generator ends; without a ``Finish`` the finish reason is a normal
    stop. ``read_error`` converts an exception of the generator to a ``ProviderError``; by default
    it recognises HTTP statuses, timeouts and broken connections. ``close`` is called when the
    provider is closed.
    """

    def __init__(
        self,
        name: str,
        model: str,
        read: Read,
        *,
        capabilities: Capabilities | Mapping[str, Any] | None = None,
        read_error: Callable[[Exception], errors.ProviderError | None] | None = None,
        close: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.capabilities = read_capabilities(capabilities)
        self._read = read
        self._read_error = read_error
        self._close = close

    async def events(self, request: Request) -> AsyncIterator[Event]:
        out = Assembler(
            request_id=request.request_id,
            model=request.model or self.model,
            provider=self.name,
            expected=Expectation(request),
            structured_path="native" if request.response_schema is not None else None,
        )
        reading = _Reading(out)
        try:
            async with aclosing(self._read(request)) as pieces:
                async for piece in pieces:
                    reading.add(piece)
                    for event in out.take():
                        yield event
            reading.end()
        except Exception as error:
            out.fail(self._convert(error, request, started=out.started))
        for event in out.take():
            yield event
        if out.error is not None:
            raise out.error

    async def close(self) -> None:
        """Call the ``close`` function that was passed to the constructor, at most once."""
        close, self._close = self._close, None
        if close is not None:
            await close()

    def _convert(
        self, error: Exception, request: Request, *, started: bool
    ) -> errors.ProviderError:
        found = self._read_error(error) if self._read_error is not None else None
        found = found or read_error(error)
        if found is None:
            kind = errors.StreamInterruptedError if started else errors.InvalidResponseError
            found = kind(
                f"the SDK raised {type(error).__name__}",
                provider_message=errors.cut(str(error)),
                advice="",
            )
        if found is not error:
            found.__cause__ = error
        found.attribute(self.name, self.model, request.request_id)
        found.hide((), find_texts(request.messages))
        return found


class _Reading:
    """Pass the pieces of one reply to an ``Assembler``, which converts them to events."""

    def __init__(self, out: Assembler) -> None:
        self._out = out
        self._keys: set[Any] = set()
        self._finish: Finish | None = None

    def add(self, piece: Piece) -> None:
        out = self._out
        if isinstance(piece, LossWarning):
            out.warnings = (*out.warnings, piece)
            return
        if not out.started:
            out.start()
        if isinstance(piece, str):
            out.text(piece)
        elif isinstance(piece, Thinking):
            out.thinking(piece.text)
        elif isinstance(piece, Usage):
            out.usage(piece)
        elif isinstance(piece, Finish):
            self._finish = piece
        elif isinstance(piece, CallPiece):
            self._add_call(piece)
        else:
            key = object()
            arguments = msgspec.json.encode(piece.arguments or {}).decode()
            self._add_call(CallPiece(key, arguments, piece.id, piece.name))
            out.block_end(key)

    def _add_call(self, piece: CallPiece) -> None:
        if piece.key not in self._keys:
            self._keys.add(piece.key)
            self._out.tool_start(piece.key, piece.id, piece.name or "")
        self._out.tool_input(piece.key, piece.fragment)

    def end(self) -> None:
        if not self._out.started:
            self._out.start()
        reason, raw = (
            (self._finish.reason, self._finish.raw) if self._finish is not None else ("stop", None)
        )
        if reason == "stop" and self._out.has_calls:
            reason = "tool_calls"
        self._out.finish(reason, raw)


def read_error(error: Exception) -> errors.ProviderError | None:
    """Return the ``ProviderError`` for an SDK's exception, or ``None`` if no error class fits.

    If the exception or its cause already is a ``ProviderError``, it is returned unchanged. A
    status is looked for in ``status_code`` and ``response.status_code``, where the SDKs of
    vendors, httpx and Pydantic AI have it.
    """
    for each in _walk_causes(error):
        if isinstance(each, errors.ProviderError):
            return each
        response = getattr(each, "response", None)
        status = getattr(each, "status_code", None) or getattr(response, "status_code", None)
        if isinstance(status, int) and status >= 400:
            headers = {
                str(name).lower(): str(value)
                for name, value in dict(getattr(response, "headers", {})).items()
            }
            body = getattr(each, "body", None)
            failure = read_failure(body if isinstance(body, dict | str | bytes) else str(each))
            return build_error(status, headers, failure, ROWS)
        name = type(each).__name__
        if isinstance(each, TimeoutError) or "Timeout" in name:
            return errors.TimedOutError("the SDK gave up waiting", which="total")
        if isinstance(each, OSError) or name in (
            "APIConnectionError",
            "ConnectError",
            "ReadError",
            "NetworkError",
        ):
            return errors.NetworkError(f"the connection of the SDK failed: {name}")
    return None


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__


def from_langchain(
    model: Any,
    *,
    name: str = "langchain",
    capabilities: Capabilities | Mapping[str, Any] | None = None,
) -> BridgeProvider:
    """Return any LangChain chat model as a provider.

    Create the LangChain model with ``max_retries=0``, since only ``Retry`` should retry.
    """
    bridge = import_module(".bridge_langchain", __package__)
    read = partial(bridge.read_reply, model)
    return BridgeProvider(name, bridge.find_name(model), read, capabilities=capabilities)


def from_pydantic_ai(
    model: Any,
    *,
    name: str | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
) -> BridgeProvider:
    """Return any Pydantic AI ``Model`` as a provider."""
    read = partial(import_module(".bridge_pydantic_ai", __package__).read_reply, model)
    return BridgeProvider(name or model.system, model.model_name, read, capabilities=capabilities)
