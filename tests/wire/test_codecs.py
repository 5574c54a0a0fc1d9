"""Lookup of codecs by wire name, including plugins, and how codecs use known capabilities."""

from __future__ import annotations

import pytest

from dragoman import wire
from dragoman.capabilities import Capabilities
from dragoman.messages import Request, RuntimeConfig, Tool, User
from dragoman.wire import CODECS, ByWire, add_codec
from dragoman.wire.codec import Codec


@pytest.mark.parametrize("name", sorted(CODECS))
def test_model_without_parallel_tool_calls_is_asked_for_one_at_a_time(name: str) -> None:
    def body(known: Capabilities) -> bytes:
        codec = CODECS[name].connect("m", "https://api.example.com", None, known)
        return codec.encode(
            Request([User("a")], [Tool("f")], RuntimeConfig(max_tokens=9))
        ).http.body

    one = body(Capabilities.of({"supports_parallel_tool_calls": False}))
    assert (b"parallel" in one) is (name in ("anthropic", "openai", "responses"))
    assert b"parallel" not in body(Capabilities())


def test_codec_plugin_is_imported_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    codecs: ByWire[type[Codec]] = ByWire({}, lambda codec: codec)
    monkeypatch.setattr(wire, "_codecs", codecs)
    add_codec("theirs", "dragoman.wire.openai:OpenAICodec")
    add_codec("missing", "no_such_package:Codec")
    assert list(codecs) == ["theirs", "missing"]
    assert codecs["theirs"] is CODECS["openai"]
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        codecs["missing"]
