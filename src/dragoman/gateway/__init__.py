"""The wires seen from the server's side: a gateway in front of providers, or a simulator's mouth.

``SERVER_CODECS`` has the server half of each wire that can be served. A half is sans-IO and keeps the
same law as its client half in ``dragoman.wire``: no socket, no clock, no log. A server uses it so::

    half = SERVER_CODECS["openai"]
    asked = half.decode(body)                     # bytes -> Request, or InvalidRequestError
    reply = half.encoder(asked, created=now)
    try:
        async for event in provider.events(asked.request):
            send(reply.feed(event))               # bytes of the stream; b"" when there are none yet
        send(reply.end())
    except ProviderError as error:
        send(reply.fail(error))                   # a well-formed error ending

Before the first event a refusal is ``half.error(error)``: status, headers and body. Without ``stream``
in the request the encoder returns nothing until ``end()``, and then the whole body. ``create_app``
(extra ``gateway``) does all this over HTTP.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from .codec import Asked, ReplyEncoder, ServerCodec

__all__ = ["SERVER_CODECS", "Asked", "ReplyEncoder", "ServerCodec"]


class _Halves(Mapping[str, ServerCodec]):
    """Server halves by the name of their wire, each loaded when it is first asked for."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._made: dict[str, ServerCodec] = {}

    def __getitem__(self, wire: str) -> ServerCodec:
        if wire not in self._made:
            module, _, name = self._places[wire].partition(":")
            found: Any = getattr(importlib.import_module(module, __name__), name)
            self._made[wire] = found()
        return self._made[wire]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


SERVER_CODECS: Mapping[str, ServerCodec] = _Halves(
    {
        "anthropic": ".anthropic:AnthropicServer",
        "gemini": ".gemini:GeminiServer",
        "ollama": ".ollama:OllamaServer",
        "openai": ".openai:OpenAIServer",
        "responses": ".responses:ResponsesServer",
    }
)
"""The server half of each wire, by its name."""
