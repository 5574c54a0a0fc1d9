"""Let llama.cpp count a request's input tokens; other servers of the openai wire cannot."""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import InvalidResponseError
from ..codec import HttpRequest, Questions
from ..counting import keep_fields
from ..json import dig, to_bytes
from ..readiness import read_success
from ..urls import root_of


def ask_count(codec: Any, sent: HttpRequest, model: str) -> Questions:
    """Count tokens with llama.cpp in two steps: apply the chat template, then tokenize the prompt.

    llama.cpp has no endpoint that counts the tokens of a conversation.
    """
    body = msgspec.json.decode(sent.body)
    if not codec.quirks.any_model:
        return None
    if any(isinstance(message.get("content"), list) for message in body["messages"]):
        return None  # llama.cpp cannot count the tokens of images
    root = root_of(sent.url.removesuffix("/chat/completions"))
    asked = keep_fields(body, ("messages", "tools", "chat_template_kwargs"))
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
