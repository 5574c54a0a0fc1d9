"""Lookup of codecs by wire name, including plugins, and how codecs use known capabilities."""

from typing import Any

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
            Request([User("a")], tools=[Tool("f")], config=RuntimeConfig(max_tokens=9))
        ).http.body

    one = body(Capabilities.of({"supports_parallel_tool_calls": False}))
    assert (b"parallel" in one) is (name in ("anthropic", "openai", "responses"))
    assert b"parallel" not in body(Capabilities())


@pytest.mark.parametrize("name", sorted(CODECS))
def test_misspelled_quirks_are_rejected(name: str) -> None:
    for wrong in ({"structure": "prompt"}, {"structured": "native?"}, 7, [1]):
        with pytest.raises(ValueError, match="quirks"):
            CODECS[name].connect("m", "https://api.example.com", wrong, Capabilities())
    known = {"structured": "prompt"}
    codec: Any = CODECS[name].connect(
        "m", "https://api.example.com", known, Capabilities(), vendor="v"
    )
    assert codec.quirks.structured == "prompt"
    assert codec.issuer_vendor == "v"
    assert codec.wire == name
    again: Any = CODECS[name].connect("m", "https://a.test", codec.quirks, Capabilities())
    assert again.quirks == codec.quirks


@pytest.mark.parametrize("name", sorted(CODECS))
def test_model_of_the_request_overrides_the_model_of_the_codec(name: str) -> None:
    codec = CODECS[name].connect("own", "https://api.example.com", None, Capabilities())
    for asked, sent in (("other", "other"), ("", "own")):
        http = codec.encode(
            Request([User("a")], config=RuntimeConfig(max_tokens=9), model=asked)
        ).http
        assert f"/{sent}" in http.url or f'"model":"{sent}"'.encode() in http.body


@pytest.mark.parametrize("name", sorted(CODECS))
def test_key_is_sent_in_the_header_of_the_wire(name: str) -> None:
    headers = {"anthropic": {"x-api-key": "k"}, "gemini": {"x-goog-api-key": "k"}}
    codec = CODECS[name].connect("m", "https://api.example.com", None, Capabilities())
    assert codec.authorise("k") == headers.get(name, {"authorization": "Bearer k"})


@pytest.mark.parametrize("name", ["anthropic", "bedrock", "cohere", "gemini"])
def test_tool_choice_without_tools_is_omitted_and_noted(name: str) -> None:
    codec = CODECS[name].connect("m", "https://api.example.com", None, Capabilities())
    for choice in ("none", "required"):
        request = Request([User("a")], config=RuntimeConfig(max_tokens=9), tool_choice=choice)
        encoded = codec.encode(request)
        assert [(note.code, note.loss) for note in encoded.notes] == [
            ("tool_choice_omitted", False)
        ]
        assert b"hoice" not in encoded.http.body


def test_codec_plugin_is_imported_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    codecs: ByWire[type[Codec]] = ByWire({}, lambda codec: codec)
    monkeypatch.setattr(wire, "_codecs", codecs)
    add_codec("theirs", "dragoman.wire.openai:OpenAICodec")
    add_codec("missing", "no_such_package:Codec")
    assert list(codecs) == ["theirs", "missing"]
    assert codecs["theirs"] is CODECS["openai"]
    with pytest.raises(ValueError, match="no_such_package"):
        codecs["missing"]


def test_settings_with_several_names_are_converted_for_each_wire() -> None:
    def convert(concept: str, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, kind in CODECS.items():
            place = getattr(kind, "concepts", {}).get(concept)
            if isinstance(place, tuple):
                found[name] = (place[0], place[1](value))
        return found

    an_object = {"type": "json_object"}
    assert convert("json_mode", True) == {
        "cohere": ("response_format", an_object),
        "gemini": ("generationConfig.responseMimeType", "application/json"),
        "ollama": ("format", "json"),
        "openai": ("response_format", an_object),
        "responses": ("text.format", an_object),
    }
    assert convert("parallel_tool_calls", False) == {
        "anthropic": ("tool_choice.disable_parallel_tool_use", True)
    }


@pytest.mark.parametrize("wire", ["anthropic", "bedrock", "cohere", "gemini", "ollama"])
def test_choice_needs_no_tools_unless_the_wire_says_so(wire: str) -> None:
    codec: Any = CODECS[wire]("m", "http://x/v1")
    assert codec.may_choose({})
