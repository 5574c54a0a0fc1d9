"""Audio and documents: what each wire accepts, and speech in replies."""

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

WAV = d.Audio(d.Inline("UklGRg=="), "audio/wav")
DATA = {"data": "eA=="}
SPOKEN = d.Audio(d.Inline("UklGRg=="), "audio/wav", "Hello.")


def encode(wire: str, *messages: d.Message) -> tuple[dict[str, Any], list[str]]:
    codec = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    encoded = codec.encode(d.Request(messages, config=d.RuntimeConfig(max_tokens=9)))
    return json.loads(encoded.http.body), [warning.code for warning in encoded.warnings]


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
        (d.Audio(d.Inline("eA=="), "audio/wav", 5), "transcript must be a string"),  # type: ignore[arg-type]
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


# --- audio in requests -------------------------------------------------------------------------


def test_audio_is_sent_where_supported() -> None:
    body, _ = encode("openai", d.User([d.Audio(d.Inline("SUQz"), "audio/mpeg")]))
    assert body["messages"][0]["content"][0]["input_audio"] == {"data": "SUQz", "format": "mp3"}
    body, _ = encode("bedrock", d.User([WAV, d.Audio(d.Url("s3://b/a.mp3"), "audio/mpeg")]))
    assert [part["audio"] for part in body["messages"][0]["content"]] == [
        {"format": "wav", "source": {"bytes": "UklGRg=="}},
        {"format": "mp3", "source": {"s3Location": {"uri": "s3://b/a.mp3"}}},
    ]
    body, _ = encode("gemini", d.User([d.Audio(d.Url("https://a.test/b.mp3"))]))
    assert body["contents"][0]["parts"] == [
        {"fileData": {"mimeType": "audio/mp3", "fileUri": "https://a.test/b.mp3"}}
    ]


@pytest.mark.parametrize(
    ("wire", "block"),
    [
        ("openai", d.Audio(d.Url("https://a.test/b.wav"))),
        ("openai", d.Audio(d.Inline("eA=="), "audio/flac")),
        ("anthropic", WAV),
        ("responses", WAV),
        ("ollama", WAV),
        ("cohere", WAV),
        ("bedrock", d.Audio(d.Url("https://a.test/b.wav"), "audio/wav")),
    ],
)
def test_unsupported_audio_is_rejected_with_its_path(wire: str, block: d.Audio) -> None:
    with pytest.raises(d.UnsupportedContentError, match=r"messages\[0\]\.content\[0\]"):
        encode(wire, d.User([block]))


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_speech_of_the_model_is_sent_back_as_a_transcript(wire: str) -> None:
    body, codes = encode(wire, d.User("x"), d.Assistant([SPOKEN, d.Text("!")]), d.User("y"))
    if wire == "gemini":
        assert body["contents"][1]["parts"][0] == {
            "inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}
        }
        assert codes == []
        return
    assert "Hello." in json.dumps(body)
    assert codes == ["audio_transcribed"]
    _, codes = encode(wire, d.User("x"), d.Assistant([WAV, d.Text("!")]), d.User("y"))
    assert codes == ["audio_dropped"]


# --- speech in replies -------------------------------------------------------------------------


def hear(wire: str, data: bytes, stream: bool, **config: Any) -> Any:
    codec = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    request = d.Request([d.User("x")], config=d.RuntimeConfig(**config), stream=stream)
    decoder = codec.decoder(
        request, Assembler(request_id="R", model="m", issuer=d.Issuer(wire, None, "m"))
    )
    return [*decoder.feed(data), *decoder.end()]


def frames(*chunks: Any) -> bytes:
    return (
        b"".join([b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks])
        + b"data: [DONE]\n\n"
    )


def delta(**part: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": part}]}


SPEECH = {"id": "audio_1", "data": "UklG", "transcript": "Hel"}
EXTRAS = {"audio": {"format": "mp3", "voice": "x"}}


def test_speech_in_an_unstreamed_reply_is_read() -> None:
    message = {"content": None, "audio": {**SPEECH, "expires_at": 1}}
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    state = d.Continuity(opaque={"id": "audio_1"}, issuer=d.Issuer("openai", None, "m"))
    (block,) = d.fold(hear("openai", body, False, extras=EXTRAS)).message.content
    assert block == d.Audio(d.Inline("UklG"), "audio/mpeg", "Hel", continuity=state)
    (block,) = d.fold(hear("openai", body, False)).message.content
    assert isinstance(block, d.Audio)
    assert block.media_type == "audio/wav"


def test_speech_in_a_streamed_reply_is_read() -> None:
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    data = frames(
        delta(audio=SPEECH),
        delta(audio={"data": "Rg==", "transcript": "lo."}),
        delta(audio={}),
        ended,
    )
    (block,) = d.fold(hear("openai", data, True)).message.content
    assert isinstance(block, d.Audio)
    assert (block.source, block.transcript) == (d.Inline("UklGRg=="), "Hello.")
    (text,) = d.fold(
        hear("openai", frames(delta(audio={"transcript": "Hi."}), ended), True)
    ).message.content
    assert text == d.Text("Hi.")
    assert d.fold(hear("openai", frames(delta(content="x", audio=5), ended), True)).text == "x"


def test_speech_from_gemini_is_sent_back_with_its_signature() -> None:
    parts: list[dict[str, Any]] = [
        {"inlineData": {"mimeType": "audio/wav", "data": "UklG"}, "thoughtSignature": "s"},
        {"inlineData": {"mimeType": "audio/wav", "data": "UklG"}},
        {"inlineData": {"mimeType": "audio/wav"}},
        {"inlineData": {"data": "UklG"}},
    ]
    body = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    content = d.fold(hear("gemini", json.dumps(body).encode(), False)).message.content
    assert [type(block).__name__ for block in content] == ["Audio", "Audio", "Opaque", "Opaque"]
    assert content[0].continuity == d.Continuity("s", issuer=d.Issuer("gemini", None, "m"))
    assert content[1].continuity is None
    sent, _ = encode("gemini", d.User("x"), d.Assistant(content[:1]), d.User("y"))
    assert sent["contents"][1]["parts"] == parts[:1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", sorted(SERVER_CODECS))
def test_gateway_clients_receive_speech(wire: str, stream: bool) -> None:
    message = {"content": "Listen:", "audio": SPEECH}
    events = hear(
        "openai",
        json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode(),
        False,
    )
    encoder = SERVER_CODECS[wire].encoder(Asked(d.Request([d.User("x")], stream=stream)))
    written = b"".join([encoder.feed(event) for event in events]) + encoder.end()
    again = d.fold(hear(wire, written, stream))
    if wire in ("openai", "gemini"):
        spoken = again.message.content[-1]
        assert isinstance(spoken, d.Audio)
        assert spoken.source == d.Inline("UklG")
    else:
        assert again.text == "Listen:Hel"


def test_gateway_clients_may_send_audio() -> None:
    part = {"inlineData": {"mimeType": "audio/mp3", "data": "eA=="}}
    body = json.dumps({"contents": [{"parts": [part]}]}).encode()
    asked = SERVER_CODECS["gemini"].decode(body, "/v1beta/models/m:generateContent")
    assert asked.request.messages == (d.User([d.Audio(d.Inline("eA=="), "audio/mp3")]),)


def test_speech_at_a_url_is_not_forwarded_to_gateway_clients() -> None:
    from dragoman.events import MessageComplete, MessageStart

    events = [
        MessageStart("M", "R", "m"),
        MessageComplete("M", "R", "stop", (d.Audio(d.Url("https://a.test/b.wav")),)),
    ]
    for wire in ("openai", "gemini"):
        encoder = SERVER_CODECS[wire].encoder(Asked(d.Request([d.User("x")])))
        written = b"".join([encoder.feed(event) for event in events]) + encoder.end()
        assert b"b.wav" not in written
