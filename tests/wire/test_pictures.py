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


ROUTER = {"reasoning_details": True}


# --- images that are sent back to their issuer -------------------------------------------------


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
        Asked(request=d.Request((d.User("hi"),), model=MODEL, stream=stream))
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
    assert item["result"] == "aGk="
    assert item["output_format"] == "png"
    assert "continuity" not in item
