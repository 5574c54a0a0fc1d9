"""The Responses wire over a WebSocket.

The protocol is OpenAI's (developers.openai.com/api/docs/guides/websocket-mode, read 2026-11-19);
docs.x.ai/developers/advanced-api-usage/websocket-mode (2026-11-19) describes the same messages.
Codex sends a body with ``type: response.create``, and at first one with ``generate: false``
(router-for-me/CLIProxyAPI#1901 of 2026-03-06, pleaseai/shunt#32 of 2026-07-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from ...errors import InvalidRequestError, ProviderError, cut
from ..server import encode_json
from ..socket import SocketCodec, SocketRequest

CREATE = "response.create"
_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
# what a message has beyond the body of a request, and what a request over HTTP has beyond it
_OWN = ("type", "stream_id", "generate", "background")
_CONTENT = ("content-", "connection")


def _choose(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a reply, without those about its body and the connection."""
    return {name: value for name, value in headers.items() if not name.startswith(_CONTENT)}


class _Envelope(Struct):
    stream_id: Any = None


class ResponsesSocket(SocketCodec):
    """What clients of the Responses wire send and receive on a WebSocket."""

    max_age: ClassVar[float] = 3600.0
    max_lanes: ClassVar[int] = 33  # 32 named ones and the default one
    max_running: ClassVar[int] = 16
    last_events: ClassVar[frozenset[bytes]] = frozenset(
        [b"response.completed", b"response.incomplete", b"response.failed", b"error"]
    )

    def read_lane(self, message: bytes) -> str:
        try:
            lane = msgspec.json.decode(message, type=_Envelope).stream_id
        except msgspec.DecodeError:
            return ""
        if lane is None:
            return ""
        if not isinstance(lane, str) or not _LANE.fullmatch(lane):
            raise InvalidRequestError(
                "stream_id must be 1 to 256 letters, digits, underscores, hyphens or periods",
                status=400,
                provider_code="invalid_stream_id",
            )
        return lane

    def read_request(self, fields: Mapping[str, Any]) -> SocketRequest:
        kind = fields.get("type")
        if kind != CREATE:
            raise InvalidRequestError(
                f"type must be {CREATE!r}, not {cut(repr(kind), 80)}; no other message is known"
            )
        generates = fields.get("generate")
        if not (generates is None or isinstance(generates, bool)):
            raise InvalidRequestError("generate must be a boolean")
        request = {name: value for name, value in fields.items() if name not in _OWN}
        request["stream"] = True
        return SocketRequest(request, generates is not False)

    def write_event(
        self, event: bytes, lane: str, headers: Mapping[str, str] | None = None
    ) -> bytes:
        if headers is not None:
            event = b'{"headers":' + encode_json(_choose(headers)) + b"," + event[1:]
        if not lane:
            return event
        return b'{"stream_id":' + encode_json(lane) + b"," + event[1:]

    def write_error(
        self, status: int, headers: Mapping[str, str], body: bytes, lane: str
    ) -> bytes:
        known = msgspec.json.decode(body)
        event = {"type": "error", "status": status, **known, "headers": _choose(headers)}
        return self.write_event(encode_json(event), lane)

    def too_old(self) -> ProviderError:
        return InvalidRequestError(
            "the connection has reached its limit of 60 minutes; open a new one to continue",
            status=400,
            provider_code="websocket_connection_limit_reached",
        )

    def too_many_lanes(self) -> ProviderError:
        return InvalidRequestError(
            "the connection has reached its limit of 32 different values of stream_id",
            status=400,
            provider_code="websocket_stream_limit_reached",
        )
