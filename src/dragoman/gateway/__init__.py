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
from typing import TYPE_CHECKING, Any

from .codec import Asked, ReplyEncoder, ServerCodec
from .halves import SERVER_CODECS

if TYPE_CHECKING:
    from .app import create_app

__all__ = ["SERVER_CODECS", "Asked", "ReplyEncoder", "ServerCodec", "create_app"]


def __getattr__(name: str) -> Any:
    # Loaded when it is used: a simulator or a codec driven by hand needs nothing of the extra.
    if name == "create_app":
        return importlib.import_module(".app", __name__).create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
