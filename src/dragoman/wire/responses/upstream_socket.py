"""The Responses wire over a WebSocket to a provider.

The protocol is OpenAI's (developers.openai.com/api/docs/guides/websocket-mode, read 2026-11-19);
docs.x.ai/developers/advanced-api-usage/websocket-mode (2026-11-19) and Azure's and Vercel's pages
(learn.microsoft.com/azure/foundry/openai/how-to/websockets,
vercel.com/docs/ai-gateway/sdks-and-apis/ responses/websockets, 2026-11-19) describe the same
messages.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from ..codec import HttpReply
from ..json import to_bytes
from ..socket import SocketEvent, SocketForm
from .reply import ERRORS, TERMINAL

# fields of a posted body that a message does not have
_POSTED = ("stream", "stream_options", "background")
_FAILED = (*ERRORS, "response.failed", "response.cancelled")
_LAST = frozenset([*TERMINAL, *ERRORS])


class _Message(Struct):
    type: Any = None
    status: Any = None
    headers: Any = None


_messages = msgspec.json.Decoder(_Message)


class ResponsesSocketForm(SocketForm):
    """What a provider of the Responses wire sends and receives on a WebSocket."""

    max_age: ClassVar[float] = 3300.0  # the server ends a connection after 60 minutes

    def write_request(self, body: bytes) -> bytes:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        kept = {name: value for name, value in fields.items() if name not in _POSTED}
        return to_bytes({"type": "response.create", **kept})

    def read_event(self, message: bytes) -> SocketEvent:
        try:
            event = _messages.decode(message)
        except msgspec.DecodeError:  # the decoder of the wire reports it
            return SocketEvent(is_last=False, is_failure=True, headers={}, error=None)
        kind = event.type if isinstance(event.type, str) else ""
        headers = _read_headers(event.headers)
        error = _read_error(kind, event.status, headers, message)
        return SocketEvent(kind in _LAST, kind in _FAILED, headers, error)


def _read_headers(given: Any) -> dict[str, str]:
    """Return the headers in a message; the gateway of this package sends them, and errors do."""
    if not isinstance(given, dict):
        return {}
    return {name.lower(): value for name, value in given.items() if isinstance(value, str)}


def _read_error(
    kind: str, status: Any, headers: dict[str, str], message: bytes
) -> HttpReply | None:
    if kind not in ERRORS or not isinstance(status, int) or not 400 <= status <= 599:
        return None
    return HttpReply(status, headers, message)
