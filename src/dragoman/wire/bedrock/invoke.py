"""The server side of ``InvokeModel`` with Anthropic's bodies.

The body is one of the Messages wire, with the model and the mode in the URL instead. A stream has
the same events, each as the Base64 text of a binary message (docs.aws.amazon.com, InvokeModel and
"Anthropic Claude Messages API"; anthropic-sdk-typescript, bedrock-sdk; seen 2026-11-19).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import unquote

from ... import events as ev
from ...errors import InvalidRequestError, ProviderError
from ..anthropic.reply import USAGE
from ..anthropic.server import AnthropicServer, StreamEncoder
from ..codec import HttpReply
from ..eventstream import MEDIA_TYPE, encode_message
from ..headers import HeaderRule
from ..json import list_of
from ..request_schema import COUNT, FREE, LIST, MESSAGES, TEXT, RequestSchema, body_of
from ..server import encode_json, named_frame
from .server import BedrockServer, error_record, name_exception, write_exception
from .server_errors import TERMS

_VERSION = "anthropic_version"
_BETAS = "anthropic_beta"
_STOP = named_frame({"type": "message_stop"})


class _InvokedStream(StreamEncoder):
    content_type = MEDIA_TYPE
    _begun = 0.0  # when the reply began

    def begin(self, event: ev.MessageStart) -> bytes:
        self._begun = self.elapsed()
        return super().begin(event)

    def feed(self, event: ev.Event) -> bytes:
        return _wrap(super().feed(event))

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        ending = super().write_end(complete).removesuffix(_STOP)
        return _wrap(ending + named_frame({"type": "message_stop", **self._measure(complete)}))

    def write_error(self, error: ProviderError) -> bytes:
        return write_exception(error)

    def _measure(self, complete: ev.MessageComplete) -> dict[str, Any]:
        counts = USAGE.write(complete.usage)
        return {
            "amazon-bedrock-invocationMetrics": {
                "inputTokenCount": counts.get("input_tokens"),
                "outputTokenCount": counts.get("output_tokens"),
                "invocationLatency": int(self.elapsed() * 1000),
                "firstByteLatency": int(self._begun * 1000),
            }
        }


def _wrap(frames: bytes) -> bytes:
    """Return server-sent events as binary messages."""
    payloads = [frame.partition(b"\ndata: ")[2] for frame in frames.split(b"\n\n")]
    return b"".join([_chunk(payload) for payload in payloads if payload])


def _chunk(payload: bytes) -> bytes:
    headers = {
        ":event-type": "chunk",
        ":content-type": "application/json",
        ":message-type": "event",
    }
    return encode_message(headers, encode_json({"bytes": base64.b64encode(payload).decode()}))


class InvokeServer(AnthropicServer):
    """The server side of ``InvokeModel`` with Anthropic's bodies."""

    terms = TERMS
    headers: ClassVar[Mapping[str, HeaderRule]] = {
        **AnthropicServer.headers,
        **BedrockServer.headers,
    }
    schema = RequestSchema(
        body_of(
            _VERSION,
            "messages",
            "max_tokens",
            anthropic_version=TEXT,
            anthropic_beta=LIST,
            messages=MESSAGES,
            max_tokens=COUNT,
            system=FREE,
            tools=LIST,
        )
    )
    paths = ("/model/{call:path}/invoke", "/model/{call:path}/invoke-with-response-stream")
    other_paths = ()
    path_marks = BedrockServer.path_marks
    header_marks = BedrockServer.header_marks
    request_id_header = BedrockServer.request_id_header
    key_header = ""
    key_advice = BedrockServer.key_advice
    accepts_forms = True  # boto3 sends no media type (1.43, 2026-11-19)
    stream_type = _InvokedStream

    def unwrap(self, fields: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return the fields of the equivalent request of the Messages wire."""
        head, _, mode = path.rpartition("/invoke")
        if _VERSION not in fields:
            raise InvalidRequestError(
                f"{_VERSION} is missing: InvokeModel takes Anthropic's bodies here, with the version"
                " bedrock-2023-05-31; for all others there is only /model/MODEL/converse"
            )
        body = {name: each for name, each in fields.items() if name not in (_VERSION, _BETAS)}
        return {**body, "model": unquote(head.partition("/model/")[2]), "stream": bool(mode)}

    def list_betas(self, headers: Mapping[str, str], fields: Mapping[str, Any]) -> list[str]:
        """Return the betas of the header and of the body, where Anthropic's SDKs put them."""
        named = [each for each in list_of(fields.get(_BETAS)) if isinstance(each, str)]
        return [*super().list_betas(headers, fields), *named]

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        return error_record(error)

    def error(self, error: ProviderError) -> HttpReply:
        """Return an error reply as AWS writes it."""
        return name_exception(super().error(error), error)
