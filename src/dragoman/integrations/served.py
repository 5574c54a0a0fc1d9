"""Answer a request in the form of a wire's clients with a provider, without an HTTP server.

Frameworks that were written for one vendor's API pass its request fields on, and expect its
replies. The request is read, translated and checked as in the gateway.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from typing import Any, Generic, Self, TypeVar

import msgspec
from msgspec.structs import replace

from ..blocking import run
from ..errors import InvalidRequestError, ProviderError
from ..events import MessageComplete
from ..messages import Assistant, LossWarning, Message
from ..middleware.translation import (
    ResolvedModel,
    check_translated,
    describe_upstream,
    translate_for,
)
from ..provider import Provider
from ..wire import SERVER_CODECS
from ..wire.policy import decode_portable
from ..wire.seal import holds_sealed
from ..wire.sse import SseDecoder
from .exact_message import show
from .losses import warn_of_losses

PartT = TypeVar("PartT")


class StartedStream(Generic[PartT]):
    """The parts of a reply, for ``for`` and for ``async for``.

    ``start`` waits for the first part, so that a refused call fails where it is made.
    """

    def __init__(self, parts: AsyncGenerator[PartT]) -> None:
        self._first: list[PartT] = []
        self._parts = parts

    async def start(self) -> Self:
        self._first.append(await anext(self._parts))
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PartT:
        return self._first.pop() if self._first else await anext(self._parts)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PartT:
        try:
            return run(self.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    async def aclose(self) -> None:
        """Close the connection, even if the reply has not ended."""
        await self._parts.aclose()


class ServedCall:
    """One call: the fields of a client's request in, the reply in the client's form out.

    ``kept`` are the exact messages of earlier replies. They take the place of those messages of
    the conversation that have the same text and tool calls, so that the provider's state, such as
    reasoning signatures, is sent back. ``drops`` is as for ``translate_for``, and ``budget`` is a
    number of tokens for reasoning, which a wire may have no field for.
    """

    def __init__(
        self,
        provider: Provider,
        wire: str,
        fields: Mapping[str, Any],
        kept: Iterable[Any] = (),
        *,
        drops: bool = False,
        budget: int | None = None,
    ) -> None:
        front = SERVER_CODECS[wire]
        upstream = describe_upstream(provider)
        body = {**fields, "model": provider.model}
        try:
            is_native = not holds_sealed(msgspec.json.encode(body))
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"the request cannot be written as JSON: {error}") from error
        asked = decode_portable(front, body, "")
        messages = _restore(asked.request.messages, kept)
        config = asked.request.config
        is_native = is_native and messages == asked.request.messages
        if budget is not None:
            config = replace(config, reasoning=budget)
        request = replace(asked.request, messages=messages, config=config)
        asked = replace(asked, request=request)
        resolved = ResolvedModel(provider.model, provider, upstream)
        made = translate_for(resolved, asked, front, is_native, drops)
        check_translated(resolved, made, refuses_losses=False)
        self.losses = made.warnings
        if made.stops:
            why = "the model's wire has no such setting"
            self.losses += (LossWarning("stop_sequences_dropped", "stop", why),)
        self._provider = provider
        self._reply = provider.open(made.request)
        self._encoder = front.encoder(asked, created=int(time.time()))
        self._encoder.is_own = upstream.wires <= {front.wire}

    async def write(self) -> AsyncGenerator[bytes]:
        """Yield the bytes of the reply as they arrive; raise the error of a failed call.

        A reply whose tool call or text is invalid is written as the model wrote it, if the client
        can detect the error.
        """
        reply = self._reply
        encoder = self._encoder
        try:
            while events := await reply.next():
                for event in events:
                    if written := encoder.feed(event):
                        yield written
            yield encoder.end()
        except ProviderError as error:
            last = encoder.fail(error)
            if encoder.unsound is None:
                raise
            yield last
        finally:
            await reply.aclose()
        assert encoder.complete is not None
        warn_of_losses((*self.losses, *encoder.complete.warnings), stacklevel=3)

    async def read(self) -> dict[str, Any]:
        """Return the reply to a request that does not stream."""
        body = b"".join([part async for part in self.write()])
        return msgspec.json.decode(body, type=dict[str, Any])

    async def read_stream(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events of a streamed reply."""
        decoder = SseDecoder()
        async with aclosing(self.write()) as parts:
            async for part in parts:
                for frame in decoder.feed(part):
                    if frame.data != b"[DONE]":
                        yield msgspec.json.decode(frame.data)

    @property
    def complete(self) -> MessageComplete | None:
        """The last event of the reply, once it has arrived."""
        return self._encoder.complete

    @property
    def cost(self) -> Decimal | None:
        """What the call has cost in dollars, if that is known."""
        price = self._provider.find_sold(self._reply.provider, self._reply.model)
        return price.cost(self.complete.usage).total if self.complete is not None else None

    def keep(self) -> dict[str, Any] | None:
        """Return the exact message of the reply, for ``kept`` of later calls.

        Return ``None`` if the written reply represents it completely.
        """
        content = self.complete.final_content if self.complete is not None else ()
        has_state = any(block.continuity for block in content)
        return msgspec.to_builtins(Assistant(content)) if has_state else None


def _restore(messages: Sequence[Message], kept: Iterable[Any]) -> tuple[Message, ...]:
    """Replace each message by the kept message that looks the same, if there is one."""
    earlier: dict[bytes, list[Assistant]] = {}
    for each in kept:
        exact = msgspec.convert(each, Assistant)
        earlier.setdefault(show(exact), []).append(exact)
    restored: list[Message] = []
    for message in messages:
        found = earlier.get(show(message)) if isinstance(message, Assistant) else None
        restored.append(found.pop(0) if found else message)
    return tuple(restored)
