"""Images made by models: decoded on every wire, sent back to their issuer, and converted for other
wires.
"""

import json
from typing import Any, cast

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.events import Assembler
from dragoman.validate import check_request
from dragoman.wire import CODECS, SERVER_CODECS, Asked

from .cases import BASE_URL, MODEL
from .replies import candidate, chat, output

PNG = d.Image(d.Inline("aGk="), "image/png")
URL = "https://example.test/a.png"
DATA = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
ITEM = {
    "type": "image_generation_call",
    "id": "ig_1",
    "status": "completed",
    "result": "aGk=",
    "size": "auto",
}
PART = {"inlineData": {"mimeType": "image/png", "data": "aGk="}, "thoughtSignature": "c2ln"}
DRAFT = {
    "inlineData": {"mimeType": "image/png", "data": "aGk=", "displayName": "a"},
    "thought": True,
}


def events_of(wire: str, body: Any, quirks: Any = None) -> list[d.Event]:
    codec = CODECS[wire].connect(MODEL, BASE_URL, quirks, d.Capabilities())
    request = d.Request((d.User("hi"),), model=MODEL)
    decoder = codec.decoder(
        request, Assembler(request_id="R", model=MODEL, issuer=d.Issuer(wire, None, MODEL))
    )
    return [*decoder.feed(json.dumps(body).encode()), *decoder.end()]


def reply_of(wire: str, body: Any, quirks: Any = None) -> d.Response:
    return d.fold(events_of(wire, body, quirks))


def sent_back(wire: str, said: d.Assistant, quirks: Any = None) -> tuple[Any, list[str]]:
    """Encode a request that sends a message of the model back; return the body and the codes of
    the losses.
    """
    codec = CODECS[wire].connect(MODEL, BASE_URL, quirks, d.Capabilities())
    request = d.Request(
        (d.User("hi"), said, d.User("more")), config=d.RuntimeConfig(max_tokens=9), model=MODEL
    )
    check_request(request)
    encoded = codec.encode(request)
    return json.loads(encoded.http.body), [warning.code for warning in encoded.warnings]


# --- images in replies -------------------------------------------------------------------------

ROUTER = {"reasoning_details": True}
READ: dict[str, tuple[str, Any, list[d.Image]]] = {
    "beside the text": ("openai", chat(content="a", images=[DATA]), [PNG]),
    "among the parts of the text": ("openai", chat(content=[{"type": "text", "text": "a"}, DATA]),
                                    [PNG]),
    "by URL": ("openai", chat(content="a", images=[{"image_url": {"url": URL}}]),
               [d.Image(d.Url(URL))]),
    "by URL alone": ("openai", chat(content="a", images=[{"image_url": URL}]),
                     [d.Image(d.Url(URL))]),
    "not base64": ("openai",
                   chat(content="a", images=[{"image_url": {"url": "data:image/png,x"}}]), []),
    "another type": ("openai",
                     chat(content="a",
                          images=[{"image_url": {"url": "data:text/plain;base64,aGk="}}]), []),
    "no URL": ("openai", chat(content="a", images=["x", {"image_url": {}}]), []),
    "a part without one": ("openai", chat(content=[{"type": "image_url"}]), []),
    "inline data": ("gemini", candidate(PART), [PNG]),
    "a draft": ("gemini", candidate(DRAFT), [PNG]),
    "a video": ("gemini", candidate({"inlineData": {"mimeType": "video/mp4", "data": "aGk="}}),
                []),
    "no data": ("gemini", candidate({"inlineData": {"mimeType": "image/png", "data": ""}}), []),
    "an item": ("responses", output(ITEM), [PNG]),
    "an item of a format": ("responses", output({**ITEM, "output_format": "webp"}),
                            [d.Image(d.Inline("aGk="), "image/webp")]),
    "a failed item": ("responses", output({**ITEM, "status": "failed", "result": None}), []),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "body", "images"), READ.values(), ids=READ)
def test_images_in_a_reply_become_image_blocks(
    wire: str, body: Any, images: list[d.Image]
) -> None:
    reply = reply_of(wire, body)
    assert list(reply.images) == images
    blocks = [block for block in reply.message.content if isinstance(block, d.Image)]
    assert [block.continuity.issuer for block in blocks if block.continuity] == [
        d.Issuer(wire, None, MODEL)
    ] * len(images)
    # Data that is not an image is kept unchanged in an opaque block.
    assert images or any(isinstance(block, d.Opaque) for block in reply.message.content)


# --- images that are sent back to their issuer -------------------------------------------------


def test_images_are_sent_back_to_their_issuer_unchanged() -> None:
    body, lost = sent_back("gemini", reply_of("gemini", candidate(PART, DRAFT)).message)
    assert (body["contents"][1]["parts"], lost) == ([PART, DRAFT], [])
    body, lost = sent_back("responses", reply_of("responses", output(ITEM)).message)
    assert (body["input"][1], lost) == (ITEM, [])
    said = reply_of("openai", chat(content="a", images=[DATA]), ROUTER).message
    body, lost = sent_back("openai", said, ROUTER)
    assert (body["messages"][1], lost) == (
        {"role": "assistant", "content": "a", "images": [DATA]},
        [],
    )
    body, lost = sent_back("openai", d.Assistant(said.content[1:]), ROUTER)
    assert body["messages"][1] == {"role": "assistant", "content": None, "images": [DATA]}


@pytest.mark.parametrize(
    "wire", ["openai", "anthropic", "gemini", "responses", "ollama", "cohere"]
)
def test_images_of_another_issuer_are_dropped_and_reported(wire: str) -> None:
    state = d.Continuity(issuer=d.Issuer("responses" if wire != "responses" else "gemini"))
    said = d.Assistant([d.Text("a"), d.Image(d.Inline("aGk="), "image/png", continuity=state)])
    body, lost = sent_back(wire, said)
    assert lost == ["image_dropped"]
    assert "aGk=" not in json.dumps(body)


def test_assistant_message_with_an_image_of_unknown_issuer_is_rejected() -> None:
    with pytest.raises(d.InvalidRequestError, match=r"messages\[1\].content\[0\]"):
        check_request(d.Request((d.User("hi"), d.Assistant([PNG]), d.User("hi"))))
    record = {
        "type": "image",
        "source": {"type": "inline", "base64_data": "aGk="},
        "media_type": "image/png",
    }
    with pytest.raises(
        d.InvalidRequestError, match="does not belong in a message of the assistant"
    ):
        d.parse_messages([{"role": "assistant", "content": [record]}])
    kept = {**record, "continuity": {"issuer": {"wire": "gemini"}}}
    (read,) = d.parse_messages([{"role": "assistant", "content": [kept]}])
    assert read == d.Assistant(
        [d.Image(PNG.source, "image/png", continuity=d.Continuity(issuer=d.Issuer("gemini")))]
    )


def test_user_may_send_an_image_that_a_model_made() -> None:
    reply = reply_of("gemini", candidate(PART))
    codec = CODECS["openai"].connect(MODEL, BASE_URL, None, d.Capabilities())
    again = codec.encode(d.Request((d.User([d.Text("Bluer."), *reply.images]),), model=MODEL))
    assert json.loads(again.http.body)["messages"][0]["content"][1] == DATA
    (block,) = reply.message.content
    assert isinstance(block, d.Image)
    noted = codec.encode(d.Request((d.User([d.Text("Bluer."), block]),), model=MODEL))
    assert [warning.code for warning in noted.warnings] == ["continuity_dropped"]
    with pytest.raises(d.InvalidRequestError, match=r"content\[0\].continuity must be"):
        check_request(d.Request((d.User([d.Image(PNG.source, "image/png", continuity="x")]),)))  # type: ignore[arg-type]


# --- images of gateway clients -----------------------------------------------------------------

UPSTREAM: dict[str, Any] = {
    "openai": chat(content="a", images=[DATA]),
    "gemini": candidate({"text": "a"}, PART),
    "responses": output(ITEM),
}
ASKED = {"gemini": "/v1beta/models/m:generateContent"}


def serve(wire: str, events: list[d.Event], *, stream: bool = False) -> bytes:
    encoder = SERVER_CODECS[wire].encoder(
        Asked(d.Request((d.User("hi"),), model=MODEL, stream=stream))
    )
    return b"".join([encoder.feed(event) for event in events]) + encoder.end()


def turn_of(wire: str, body: bytes) -> d.Assistant:
    """Return the assistant message that the gateway decodes when a client sends the reply back."""
    got = json.loads(body)
    hi = {"role": "user", "content": "hi"}
    sent: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "messages": [hi, got, hi]}
    if wire == "anthropic":
        sent["messages"][1] = {"role": "assistant", "content": got["content"]}
    elif wire == "responses":
        sent = {"model": MODEL, "input": [hi, *got["output"], hi]}
    else:
        asked = {"role": "user", "parts": [{"text": "hi"}]}
        sent = {"contents": [asked, got["candidates"][0]["content"], asked]}
    request = SERVER_CODECS[wire].decode(json.dumps(sent).encode(), ASKED.get(wire, "")).request
    said = request.messages[1]
    assert isinstance(said, d.Assistant)
    return said


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream", UPSTREAM)
@pytest.mark.parametrize("client", ["openai", "gemini", "responses"])
def test_gateway_clients_receive_the_images(client: str, upstream: str, stream: bool) -> None:
    written = serve(client, events_of(upstream, UPSTREAM[upstream]), stream=stream)
    codec = CODECS[client].connect(MODEL, BASE_URL, None, d.Capabilities())
    request = d.Request((d.User("hi"),), model=MODEL, stream=stream)
    decoder = codec.decoder(request, Assembler(issuer=d.Issuer(client)))
    assert d.fold([*decoder.feed(written), *decoder.end()]).images == (PNG,)


@pytest.mark.parametrize("upstream", UPSTREAM)
@pytest.mark.parametrize("client", ["anthropic", "gemini", "responses"])
def test_images_sent_back_by_a_client_reach_their_issuer(client: str, upstream: str) -> None:
    quirks = ROUTER if upstream == "openai" else None
    reply = reply_of(upstream, UPSTREAM[upstream], quirks)
    said = turn_of(client, serve(client, events_of(upstream, UPSTREAM[upstream], quirks)))
    _, lost = sent_back(upstream, said, quirks)
    # A Gemini client has no field in which it could send back the fields of a Responses item.
    if (client, upstream) == ("gemini", "responses"):
        assert lost == ["image_dropped", "message_dropped"]
        return
    assert lost == []
    assert [block for block in said.content if isinstance(block, d.Image)] == [
        block for block in reply.message.content if isinstance(block, d.Image)
    ] or client == upstream


def test_changed_image_data_of_another_issuer_is_rejected() -> None:
    block = {
        "type": "opaque",
        "issuer": {"wire": "gemini"},
        "image": {"type": "image", "source": 5},
    }
    with pytest.raises(d.InvalidRequestError, match=r"image: "):
        turn_of("anthropic", json.dumps({"content": [block]}).encode())
    item = {**ITEM, "continuity": 5}
    with pytest.raises(d.InvalidRequestError, match=r"input\[1\].continuity: "):
        turn_of("responses", json.dumps({"output": [item]}).encode())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", ["gemini", "responses", "ollama", "cohere"])
def test_images_that_a_client_cannot_receive_are_described_in_text(
    client: str, stream: bool
) -> None:
    events = events_of("openai", chat(content="a", images=[DATA, {"image_url": {"url": URL}}]))
    written = serve(client, events, stream=stream).decode()
    assert f"![image]({URL})" in written
    assert ("[image (image/png, about 3 bytes) left out" in written) == (
        client in ("ollama", "cohere")
    )


def test_images_and_speech_of_a_gemini_client_keep_their_issuer() -> None:
    signed = {"inlineData": {"mimeType": "audio/wav", "data": "aGk="}, "thoughtSignature": "c2ln"}
    body = candidate({"inlineData": {"mimeType": "image/png", "data": "aGk="}}, signed)
    said = turn_of("gemini", json.dumps(body).encode())
    home = d.Issuer("gemini")
    assert said == d.Assistant(
        [
            d.Image(PNG.source, "image/png", continuity=d.Continuity(issuer=home)),
            d.Audio(PNG.source, "audio/wav", continuity=d.Continuity("c2ln", issuer=home)),
        ]
    )


def test_images_without_an_issuer_are_sent_without_a_signature() -> None:
    plain = Assembler()
    plain.start()
    plain.whole(PNG)
    plain.finish("stop")
    events = plain.take()
    (part,) = json.loads(serve("gemini", events))["candidates"][0]["content"]["parts"]
    assert part == {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    events[-1] = replace(cast("d.MessageComplete", events[-1]), final_content=(PNG,))
    (item,) = json.loads(serve("responses", events))["output"]
    assert (item["result"], item["output_format"]) == ("aGk=", "png")
    assert "continuity" not in item
