"""Let the server count a request's input tokens, on wires that have an endpoint for this."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ..errors import InvalidResponseError
from .codec import Codec, Encoded, HttpReply, HttpRequest
from .json import dig, read_count, to_bytes
from .readiness import read_success
from .urls import root_of

Questions = Generator[HttpRequest, HttpReply, int | None]

# The path of each counting endpoint, and the request fields that it accepts. Others are rejected.
_ENDPOINTS = {
    "anthropic": (
        "/count_tokens",
        "model messages system tools tool_choice thinking output_config",
    ),
    "responses": (
        "/input_tokens",
        "model input instructions tools tool_choice text reasoning parallel_tool_calls truncation"
        " previous_response_id conversation",
    ),
}


def count_tokens(codec: Codec, encoded: Encoded, model: str) -> Questions:
    """Count a call's input tokens: yield each request, receive its reply, and return the count.

    The count is ``None`` if the wire has no endpoint for it. A reply with an error status raises
    an error.
    """
    sent = encoded.http
    body = msgspec.json.decode(sent.body)
    # Google Cloud serves models of the anthropic wire, but does not count their tokens.
    if codec.wire in _ENDPOINTS and (codec.wire != "anthropic" or sent.url.endswith("/messages")):
        path, names = _ENDPOINTS[codec.wire]
        return (yield from _ask_once(codec, sent, path, _keep(body, names.split())))
    if codec.wire == "gemini":
        return (yield from _ask_gemini(codec, sent, body, model))
    if codec.wire == "openai" and getattr(getattr(codec, "quirks", None), "any_model", False):
        return (yield from _ask_template(codec, sent, body))
    return None


def _keep(body: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name in names}


def _ask_once(codec: Codec, sent: HttpRequest, path: str, body: dict[str, Any]) -> Questions:
    parts = urlsplit(sent.url)
    url = urlunsplit((parts.scheme, parts.netloc, parts.path + path, parts.query, ""))
    reply = yield HttpRequest("POST", url, sent.headers, to_bytes(body))
    return _read_count(codec, reply, "input_tokens")


def _ask_gemini(codec: Codec, sent: HttpRequest, body: dict[str, Any], model: str) -> Questions:
    """Count a request's input tokens with Gemini.

    The Gemini API expects the complete request in one field of the body. Vertex AI accepts only
    some of the request's fields.
    """
    parts = urlsplit(sent.url)
    path = parts.path.rpartition(":")[0] + ":countTokens"
    kept: dict[str, Any] = _keep(body, ("contents", "systemInstruction", "tools"))
    if "/projects/" not in path:
        kept = {"generateContentRequest": {"model": f"models/{model}", **body}}
    url = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    reply = yield HttpRequest("POST", url, sent.headers, to_bytes(kept))
    return _read_count(codec, reply, "totalTokens")


def _ask_template(codec: Codec, sent: HttpRequest, body: Mapping[str, Any]) -> Questions:
    """Count tokens with llama.cpp in two steps: apply the chat template, then tokenize the prompt.

    llama.cpp has no endpoint that counts the tokens of a conversation.
    """
    if any(isinstance(message.get("content"), list) for message in body["messages"]):
        return None  # llama.cpp cannot count the tokens of images
    root = root_of(sent.url.removesuffix("/chat/completions"))
    asked = _keep(body, ("messages", "tools", "chat_template_kwargs"))
    reply = yield HttpRequest("POST", f"{root}/apply-template", sent.headers, to_bytes(asked))
    prompt = dig(read_success(codec, reply), "prompt")
    if not isinstance(prompt, str):
        raise InvalidResponseError("the server's template made no prompt", status=reply.status)
    words = {"content": prompt, "add_special": True, "parse_special": True}
    reply = yield HttpRequest("POST", f"{root}/tokenize", sent.headers, to_bytes(words))
    tokens = dig(read_success(codec, reply), "tokens")
    if not isinstance(tokens, list):
        raise InvalidResponseError("the server's answer holds no tokens", status=reply.status)
    return len(tokens)


def _read_count(codec: Codec, reply: HttpReply, name: str) -> int:
    count = read_count(dig(read_success(codec, reply), name))
    if count is None:
        raise InvalidResponseError(
            "the server's answer holds no count of tokens", status=reply.status
        )
    return count
