"""The server side of Ollama's older generate API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.errors import InvalidRequestError, UnavailableError
from dragoman.events import Assembler, Usage
from dragoman.messages import System, User
from dragoman.wire.ollama.generate import OllamaGenerateServer, to_chat

SERVER = OllamaGenerateServer()


def replied(body: dict[str, Any], *, thinks: bool = False, fails: bool = False) -> list[Any]:
    encoder = SERVER.encoder(SERVER.decode(to_chat(body)), created=0)
    out = Assembler(request_id="R", model="m")
    out.start()
    if thinks:
        out.thinking("Hm.")
    out.text("Hel")
    out.text("lo")
    out.usage(Usage(3, 2))
    out.finish("stop")
    data = b"".join([encoder.feed(event) for event in out.take()])
    data += encoder.write_error(UnavailableError("down")) if fails else encoder.end()
    return [msgspec.json.decode(line) for line in data.splitlines()]


def test_generate_request_becomes_a_chat_request() -> None:
    body = {
        "model": "m",
        "prompt": "Hi",
        "system": "Be brief.",
        "images": ["iVBORw0KGgo="],
        "options": {"seed": 1},
    }
    asked = SERVER.decode(to_chat(body))
    assert asked.request.messages[0] == System("Be brief.")
    assert [type(block).__name__ for block in asked.request.messages[1].content] == [
        "Text",
        "Image",
    ]
    assert asked.request.config.seed == 1
    assert SERVER.decode(to_chat({"model": "m", "prompt": "Hi"})).request.messages == (User("Hi"),)


def test_replies_are_encoded_for_the_generate_api() -> None:
    *pieces, last = replied({"model": "m", "prompt": "Hi"}, thinks=True)
    assert "".join([piece["response"] for piece in pieces]) == "Hello"
    assert [piece["thinking"] for piece in pieces if "thinking" in piece] == ["Hm."]
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "stop", 2)
    (body,) = replied({"model": "m", "prompt": "Hi", "stream": False}, thinks=True)
    found = (body["response"], body["thinking"], body["created_at"])
    assert found == ("Hello", "Hm.", "1970-01-01T00:00:00Z")
    (body,) = replied({"model": "m", "prompt": "Hi", "stream": False})
    assert "thinking" not in body
    assert "down" in replied({"model": "m", "prompt": "Hi"}, fails=True)[-1]["error"]


def test_a_request_without_a_prompt_loads_the_model() -> None:
    for body in (b'{"model": "m", "prompt": ""}', b'{"model": "m", "messages": []}'):
        loaded = SERVER.answer_load(body, "/api/generate", 0)
        assert loaded is not None
        assert loaded[0] == "m"
        assert msgspec.json.decode(loaded[1])["done_reason"] == "load"
    chat = SERVER.answer_load(b'{"model": "m"}', "/api/chat", 0)
    assert chat is not None
    assert msgspec.json.decode(chat[1])["message"]["content"] == ""
    for body in (b'{"model": "m", "prompt": "Hi"}', b" " * 5000):
        assert SERVER.answer_load(body, "/api/generate", 0) is None
    with pytest.raises(InvalidRequestError):
        SERVER.answer_load(b"{}", "/api/generate", 0)
