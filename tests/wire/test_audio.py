"""Audio blocks and documents, and speech in replies to the gateway's clients."""

import json
from pathlib import Path
from typing import Any

import pytest

import dragoman as d
from dragoman.events import Assembler
from dragoman.tokens import estimate_input_tokens
from dragoman.validate import check_request
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.server import Asked

DATA = {"data": "eA=="}
SPOKEN = d.Audio(d.Inline("UklGRg=="), "audio/wav", transcript="Hello.")


# --- audio blocks and documents ----------------------------------------------------------------


def test_audio_and_documents_are_made_from_files_bytes_and_urls(tmp_path: Path) -> None:
    wave = b"RIFF\x04\x00\x00\x00WAVE"
    (tmp_path / "a.wav").write_bytes(wave)
    (tmp_path / "a.mp3").write_bytes(b"ID3")
    (tmp_path / "a.txt").write_text("hi")
    assert d.Audio(tmp_path / "a.wav").media_type == d.Audio(wave).media_type == "audio/wav"
    assert (
        d.Audio(str(tmp_path / "a.mp3")).media_type == d.Audio(b"ID3").media_type == "audio/mpeg"
    )
    assert d.Audio(b"OggS").media_type == "audio/ogg"
    assert d.Audio("https://example.com/a.wav") == d.Audio(d.Url("https://example.com/a.wav"))
    assert d.Document(tmp_path / "a.txt") == d.Document(d.Inline("aGk="), "text/plain", "a.txt")
    assert d.Document(b"%PDF") == d.Document(d.Inline("JVBERg=="))
    assert d.Document(b"%PDF", "text/markdown").media_type == "text/markdown"
    assert d.Document("https://example.com/a.pdf") == d.Document(
        d.Url("https://example.com/a.pdf")
    )


@pytest.mark.parametrize(
    ("record", "block"),
    [
        ({"type": "input_audio", "input_audio": {**DATA, "format": "mp3"}},
         d.Audio(d.Inline("eA=="), "audio/mpeg")),
        ({"type": "input_audio", "input_audio": {**DATA, "format": "wav"}},
         d.Audio(d.Inline("eA=="), "audio/wav")),
        (
            {"type": "audio", "source": {"type": "inline", "base64_data": "eA=="},
             "media_type": "audio/wav"},
            d.Audio(d.Inline("eA=="), "audio/wav"),
        ),
    ],
)  # fmt: skip
def test_audio_blocks_are_parsed_from_json(record: dict[str, Any], block: d.Audio) -> None:
    assert d.parse_messages([{"role": "user", "content": [record]}]) == (d.User([block]),)


def test_speech_of_the_assistant_is_parsed_from_json() -> None:
    record = {
        "type": "audio",
        "source": {"type": "inline", "base64_data": "UklGRg=="},
        "media_type": "audio/wav",
        "transcript": "Hello.",
    }
    assert d.parse_messages([{"role": "assistant", "content": [record]}]) == (
        d.Assistant([SPOKEN]),
    )


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (d.Audio(d.Inline("eA=="), "image/png"), "media_type must be an audio type"),
        (d.Audio(d.Inline("eA==")), "media_type is required"),
        (d.Audio(d.Inline("eA=="), "audio/wav", transcript=5), "transcript must be a string"),  # type: ignore[arg-type]
    ],
)
def test_invalid_audio_is_rejected(block: d.Audio, problem: str) -> None:
    for said in ([d.User([block])], [d.User("x"), d.Assistant([block]), d.User("y")]):
        with pytest.raises(d.InvalidRequestError, match=problem):
            check_request(d.Request(said))


def test_estimate_counts_the_tokens_of_audio() -> None:
    second = d.Audio(d.Inline("A" * 42_700), "audio/wav")
    assert (
        30
        <= estimate_input_tokens([d.User([second])])
        - estimate_input_tokens([d.User([d.Text("a")])])
        <= 40
    )
    assert estimate_input_tokens([d.User([d.Audio(d.Url("https://a.test/b.wav"))])]) > 1000


# --- speech in replies -------------------------------------------------------------------------


def hear(wire: str, data: bytes, stream: bool, **config: Any) -> Any:
    codec = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    request = d.Request([d.User("x")], config=d.RuntimeConfig(**config), stream=stream)
    decoder = codec.decoder(
        request, Assembler(request_id="R", model="m", issuer=d.Issuer(wire, None, "m"))
    )
    return [*decoder.feed(data), *decoder.end()]


SPEECH = {"id": "audio_1", "data": "UklG", "transcript": "Hel"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", sorted(SERVER_CODECS))
def test_gateway_clients_receive_speech(wire: str, stream: bool) -> None:
    message = {"content": "Listen:", "audio": SPEECH}
    events = hear(
        "openai",
        json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode(),
        False,
    )
    encoder = SERVER_CODECS[wire].encoder(Asked(request=d.Request([d.User("x")], stream=stream)))
    written = b"".join([encoder.feed(event) for event in events]) + encoder.end()
    again = d.fold(hear(wire, written, stream))
    if wire in ("openai", "gemini"):
        spoken = again.message.content[-1]
        assert isinstance(spoken, d.Audio)
        assert spoken.source == d.Inline("UklG")
    else:
        assert again.text == "Listen:Hel"


def test_speech_at_a_url_is_not_forwarded_to_gateway_clients() -> None:
    from dragoman.events import MessageComplete, MessageStart

    events = [
        MessageStart("M", "R", model="m"),
        MessageComplete(
            "M", "R", finish_reason="stop", final_content=(d.Audio(d.Url("https://a.test/b.wav")),)
        ),
    ]
    for wire in ("openai", "gemini"):
        encoder = SERVER_CODECS[wire].encoder(Asked(request=d.Request([d.User("x")])))
        written = b"".join([encoder.feed(event) for event in events]) + encoder.end()
        assert b"b.wav" not in written
