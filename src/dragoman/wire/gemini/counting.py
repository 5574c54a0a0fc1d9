"""Let a server of the gemini wire count a request's input tokens."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ..codec import Codec, HttpRequest, Questions
from ..counting import keep_fields, read_answer
from ..json import to_bytes


def ask_count(codec: Codec, sent: HttpRequest, model: str) -> Questions:
    """Count a request's input tokens.

    The Gemini API expects the complete request in one field of the body. Vertex AI accepts only
    some of the request's fields.
    """
    body = msgspec.json.decode(sent.body)
    parts = urlsplit(sent.url)
    path = parts.path.rpartition(":")[0] + ":countTokens"
    kept: dict[str, Any] = keep_fields(body, ("contents", "systemInstruction", "tools"))
    if "/projects/" not in path:
        kept = {"generateContentRequest": {"model": f"models/{model}", **body}}
    url = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    reply = yield HttpRequest("POST", url, sent.headers, to_bytes(kept))
    return read_answer(codec, reply, "totalTokens")
