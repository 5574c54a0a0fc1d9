"""The server side of Ollama's older generate API."""

from typing import Any

import msgspec
import pytest

from dragoman.capabilities import Capabilities
from dragoman.errors import InvalidRequestError, UnavailableError
from dragoman.events import Assembler, Usage
from dragoman.messages import System, User
from dragoman.wire import Asked
from dragoman.wire.ollama.generate import OllamaGenerateServer

SERVER = OllamaGenerateServer()


def decode(body: dict[str, Any]) -> Asked:
    return SERVER.decode(dict(SERVER.unwrap(body, "/api/generate")))


def replied(body: dict[str, Any], *, thinks: bool = False, fails: bool = False) -> list[Any]:
    encoder = SERVER.encoder(decode(body), created=0)
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
    asked = decode(body)
    assert asked.request.messages[0] == System("Be brief.")
    assert [type(block).__name__ for block in asked.request.messages[1].content] == [
        "Text",
        "Image",
    ]
    assert asked.request.config.seed == 1
    assert decode({"model": "m", "prompt": "Hi"}).request.messages == (User("Hi"),)


def test_replies_are_encoded_for_the_generate_api() -> None:
    *pieces, last = replied({"model": "m", "prompt": "Hi"}, thinks=True)
    assert "".join([piece["response"] for piece in pieces]) == "Hello"
    assert [piece["thinking"] for piece in pieces if "thinking" in piece] == ["Hm."]
    assert last["done"] is True
    assert last["done_reason"] == "stop"
    assert last["eval_count"] == 2
    (body,) = replied({"model": "m", "prompt": "Hi", "stream": False}, thinks=True)
    found = (body["response"], body["thinking"], body["created_at"])
    assert found == ("Hello", "Hm.", "1970-01-01T00:00:00Z")
    (body,) = replied({"model": "m", "prompt": "Hi", "stream": False})
    assert "thinking" not in body
    assert "down" in replied({"model": "m", "prompt": "Hi"}, fails=True)[-1]["error"]


def test_a_request_without_a_prompt_loads_the_model() -> None:
    for body in (b'{"model": "m", "prompt": ""}', b'{"model": "m", "messages": []}'):
        asked = SERVER.read_question(body, "/api/generate")
        assert asked is not None
        assert asked.model == "m"
        assert msgspec.json.decode(asked.write(Capabilities(), 0))["done_reason"] == "load"
    chat = SERVER.read_question(b'{"model": "m"}', "/api/chat")
    assert chat is not None
    assert msgspec.json.decode(chat.write(Capabilities(), 0))["message"]["content"] == ""
    for body in (b'{"model": "m", "prompt": "Hi"}', b" " * 5000):
        assert SERVER.read_question(body, "/api/generate") is None
    with pytest.raises(InvalidRequestError):
        SERVER.read_question(b"{}", "/api/generate")


def test_a_description_of_a_model_is_requested_by_either_name() -> None:
    for name in ("model", "name"):
        asked = SERVER.read_question(msgspec.json.encode({name: "m"}), "/api/show")
        assert asked is not None
        assert asked.model == "m"
        assert "completion" in msgspec.json.decode(asked.write(Capabilities(), 0))["capabilities"]
