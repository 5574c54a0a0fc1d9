"""Wires: codecs between Dragoman's messages and an API's bytes, for clients and servers.

Box: core; the server halves of the wires are in the box gateway.

The rule of this folder (sans-IO): no code here opens a socket, sleeps, reads a clock, logs, or
generates an id. A codec only converts values to bytes and bytes to values, so tests and programs
can call it directly.

``CODECS`` has the client side of each wire, which a provider uses; ``SERVER_CODECS`` has the
server side, which the gateway and the simulator use. A server reads a request and writes its reply
like this::

    codec = SERVER_CODECS["openai"]
    asked = codec.decode(body)                    # bytes -> Request, or InvalidRequestError
    reply = codec.encoder(asked, created=now)
    try:
        async for event in provider.events(asked.request):
            send(reply.feed(event))               # bytes of the stream; b"" when there are none yet
        send(reply.end())
    except ProviderError as error:
        send(reply.fail(error))                   # a well-formed error ending

For an error before the first event, ``codec.error(error)`` returns status, headers and body. If
the request does not set ``stream``, the encoder returns no bytes until ``end()``, which returns
the complete body.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from .codec import Codec, Decoder, Encoded, HttpReply, HttpRequest, Note
from .plan import PlanItem, SwapPlan, make_plan
from .server import Asked, ReplyEncoder, ServerCodec

__all__ = [
    "CODECS", "SERVER_CODECS", "Asked", "ByWire", "Codec", "Decoder", "Encoded", "HttpReply",
    "HttpRequest", "Note", "PlanItem", "ReplyEncoder", "ServerCodec", "SwapPlan", "add_codec",
    "loading", "make_plan",
]  # fmt: skip

_T = TypeVar("_T")


def add_codec(wire: str, place: str) -> None:
    """Add a wire's codec from another package, given its import path ``module:name``.

    The module is imported on first use.
    """
    _codecs.add(wire, place)


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Raise ``ValueError`` if a module that is imported in this context cannot be loaded.

    A module of another package may end the program when it is imported (``SystemExit``), or raise
    a ``BaseException`` of its own. Only an interruption by the user is passed on.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error


class ByWire(Mapping[str, _T], Generic[_T]):
    """A mapping from wire names to codecs. The module of a codec is imported on first use."""

    def __init__(
        self, places: dict[str, str], make: Callable[[Any], _T], package: str = __name__
    ) -> None:
        self._places = places
        self._package = package
        self._make = make
        self._made: dict[str, _T] = {}

    def __getitem__(self, wire: str) -> _T:
        if wire not in self._made:
            place = self._places[wire]
            module, _, name = place.partition(":")
            with loading(f"the wire {wire!r} ({place})"):
                found = getattr(importlib.import_module(module, self._package), name)
            self._made[wire] = self._make(found)
        return self._made[wire]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def add(self, wire: str, place: str) -> None:
        """Add the codec of another wire, given its import path ``module:name``."""
        self._places[wire] = place


_codecs: ByWire[type[Codec]] = ByWire(
    {
        "anthropic": ".anthropic:AnthropicCodec",
        "bedrock": ".bedrock:BedrockCodec",
        "cohere": ".cohere:CohereCodec",
        "gemini": ".gemini:GeminiCodec",
        "ollama": ".ollama:OllamaCodec",
        "openai": ".openai:OpenAICodec",
        "responses": ".responses:ResponsesCodec",
    },
    lambda codec: codec,
)
CODECS: Mapping[str, type[Codec]] = _codecs
"""The client codec of each wire, by wire name."""

# The gateway matches a request to the paths of the wires in this order.
SERVER_CODECS: Mapping[str, ServerCodec] = ByWire(
    {
        "openai": ".openai.server:OpenAIServer",
        "anthropic": ".anthropic.server:AnthropicServer",
        "responses": ".responses.server:ResponsesServer",
        "gemini": ".gemini.server:GeminiServer",
        "ollama": ".ollama.server:OllamaServer",
        "cohere": ".cohere.server:CohereServer",
        "bedrock": ".bedrock.server:BedrockServer",
    },
    lambda codec: codec(),
)
"""The server codec of each wire, by wire name."""

OTHER_SERVER_CODECS: Mapping[str, ServerCodec] = ByWire(
    {
        "ollama": ".ollama.generate:OllamaGenerateServer",
        "bedrock": ".bedrock.invoke:InvokeServer",
    },
    lambda codec: codec(),
)
"""The server codecs of other APIs, by the name of the wire whose address they share."""
