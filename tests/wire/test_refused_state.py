"""A provider that refuses its own state gets the request once more without this state."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

import dragoman as d
from dragoman.gateway.app import create_app
from dragoman.messages import AssistantBlock
from dragoman.wire.continuity import withhold_state
from tests.gateway.serving import serving
from tests.gateway.upstream import PATHS, write_reply
from tests.server import Connection, serve

BOUND = (
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a "
    "different conversation. Remove the block."
)
UNVERIFIED = "The encrypted content gAAAAB... could not be verified. Reason: wrong organization."
REFUSALS = {  # the error of each wire that has state, as vendors send it
    "responses": {"error": {"code": "invalid_encrypted_content", "message": UNVERIFIED}},
    "anthropic": {"type": "error", "error": {"type": "invalid_request_error", "message": BOUND}},
    "bedrock": {"message": BOUND},
    "gemini": {"error": {"code": 400, "message": "Corrupted thought signature.",
                         "status": "INVALID_ARGUMENT"}},
}  # fmt: skip
WIRES = sorted(REFUSALS)
CALL = d.ToolCall("call_1", "now", {})


def make_state(wire: str, mark: str, vendor: str | None = None) -> list[AssistantBlock]:
    """Return the blocks of a turn whose state contains a mark."""
    issuer = d.Issuer(wire, vendor, "m")
    if wire == "responses":
        item = {"type": "reasoning", "summary": [], "encrypted_content": mark}
        packed = {"type": "compaction", "encrypted_content": mark}
        found = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
        return [
            d.Opaque(packed, d.Continuity(issuer=issuer)),
            d.Thinking("", d.Continuity(opaque=item, issuer=issuer)),
            d.Opaque(found, d.Continuity(issuer=issuer)),
        ]
    if wire == "gemini":
        state = d.Continuity(signature=mark, issuer=issuer)
        return [d.Thinking("Hm.", state), d.Text("I look.", state)]
    state = d.Continuity(signature=mark, issuer=issuer)
    hidden = d.RedactedThinking(mark, d.Continuity(issuer=issuer))
    return [d.Thinking("Hm.", state), hidden, d.RedactedThinking(mark)]


def make_talk(wire: str, mark: str, vendor: str | None = None) -> list[d.Message]:
    turn = [*make_state(wire, mark, vendor), d.Text("Noon."), CALL]
    return [
        d.User("Hi"),
        d.Assistant(make_state(wire, mark, vendor)[:1]),  # nothing is left of this turn
        d.User("When?"),
        d.Assistant(turn),
        d.ToolResult("call_1", "12:00"),
    ]


def refusing(wire: str, seen: list[str], mark: str = "STATE") -> Callable[[Connection], Any]:
    """Return a handler that refuses each request that contains the mark."""

    async def handler(connection: Connection) -> None:
        text = json.dumps(connection.seen.json)
        seen.append(text)
        if mark in text:
            connection.reply(400, json.dumps(REFUSALS[wire]).encode())
        else:
            connection.reply(200, write_reply(wire, "Noon."))

    return handler


@pytest.mark.parametrize("wire", WIRES)
async def test_refused_state_is_left_out_once_and_reported(wire: str) -> None:
    seen: list[str] = []
    async with serve(refusing(wire, seen)) as upstream:
        model = d.connect("m", wire=wire, base_url=upstream.url, api_key="k")
        config = d.RuntimeConfig(max_tokens=9)
        tools = [d.Tool("now")]
        reply = await model.complete(make_talk(wire, "STATE"), tools, config)
        assert reply.text == "Noon."
        assert ["STATE" in text for text in seen] == [True, False]
        assert [each.code for each in reply.warnings].count("refused_state_dropped") == 1
        assert "When?" in seen[1]
        assert "12:00" in seen[1]
        # the lesson is not remembered: the state of another conversation is sent
        await model.complete(make_talk(wire, "OTHER"), tools, config)
        assert "OTHER" in seen[2]
        assert len(seen) == 3
        assert model.lessons == ()
        await model.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_refused_state_is_an_error_if_losses_are(wire: str) -> None:
    seen: list[str] = []
    async with serve(refusing(wire, seen)) as upstream:
        model = d.connect("m", wire=wire, base_url=upstream.url, api_key="k", on_loss="reject")
        with pytest.raises(d.InvalidRequestError) as caught:
            await model.complete(
                [d.User("Hi"), d.Assistant([*make_state(wire, "STATE"), d.Text("Yes.")]),
                 d.User("When?")], config=d.RuntimeConfig(max_tokens=9),
            )  # fmt: skip
        assert caught.value.status == 400
        assert len(seen) == 1
        await model.close()


async def test_refusal_of_a_request_without_state_is_an_error() -> None:
    seen: list[str] = []
    async with serve(refusing("responses", seen, "Hi")) as upstream:
        model = d.connect("m", wire="responses", base_url=upstream.url, api_key="k")
        with pytest.raises(d.InvalidRequestError):
            await model.complete("Hi")
        assert len(seen) == 1
        await model.close()


RAW = {  # conversations of clients, with fields that only a model of their wire gets
    "responses": {
        "input": [
            {"role": "user", "content": "Hi", "unknown": 1},
            {"type": "reasoning", "summary": [], "encrypted_content": "STATE"},
            {"type": "compaction", "encrypted_content": "STATE"},
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "Hello"}]},
            {"role": "user", "content": "When?"},
        ],
        "tools": [{"type": "web_search"}],
    },
    "anthropic": {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "Hi", "unknown": 1},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "STATE"}]},
            {"role": "assistant", "content": [
                {"type": "redacted_thinking", "data": "STATE"},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
                    {"type": "web_search_result", "url": "http://x", "title": "Found",
                     "encrypted_content": "Hello"}]},
                {"type": "text", "text": "It is noon."}]},
            {"role": "user", "content": "When?"},
        ],
    },
    "gemini": {
        "contents": [
            {"role": "user", "parts": [{"text": "Hi", "unknown": 1}]},
            {"role": "model", "parts": [{"text": "Hm.", "thought": True},
                                        {"text": "Hello", "thoughtSignature": "STATE"}]},
            {"role": "user", "parts": [{"text": "When?"}]},
        ],
    },
    "bedrock": {
        "messages": [
            {"role": "user", "content": [{"text": "Hi", "unknown": 1}]},
            {"role": "assistant", "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "STATE"}}},
                {"text": "Hello"}]},
            {"role": "user", "content": [{"text": "When?"}]},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("wire", WIRES)
async def test_refused_state_of_a_client_is_left_out_of_the_fields_that_it_wrote(
    wire: str,
) -> None:
    seen: list[str] = []
    async with serve(refusing(wire, seen)) as upstream:
        model = d.connect("m", wire=wire, base_url=upstream.url, api_key="k")
        body = {**RAW[wire]} if wire in ("gemini", "bedrock") else {"model": "m", **RAW[wire]}
        async with (
            serving(create_app({"m": model})) as url,
            aiohttp.ClientSession(url) as http,
            http.post(PATHS[wire].format(model="m"), json=body) as reply,
        ):
            assert reply.status == 200, await reply.text()
            assert "refused_state_dropped" in reply.headers["x-dragoman-warnings"]
    assert ["STATE" in text for text in seen] == [True, False]
    assert '"unknown": 1' in seen[1]
    assert "Hello" in seen[1]
    assert "When?" in seen[1]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (500, UNVERIFIED),
        (400, "include: reasoning.encrypted_content is not supported"),
        (400, "thinking: must be an object"),
    ],
)
def test_other_errors_keep_the_state(status: int, message: str) -> None:
    error = d.InvalidRequestError("no", status=status, provider_message=message)
    request = d.Request(make_talk("responses", "STATE"), model="m")
    assert withhold_state(error, request, d.Issuer("responses", None, "m")) is None


@pytest.mark.parametrize(
    "message",
    [
        "Corrupted thought signature.",
        "Invalid thought signature.",
        "Unable to submit request because Thought signature is not valid.. Learn more: https://x",
    ],
)
def test_each_wording_of_a_refused_thought_signature_withholds_it(message: str) -> None:
    error = d.InvalidRequestError("no", status=400, provider_message=message)
    request = d.Request(make_talk("gemini", "STATE"), model="m")
    found = withhold_state(error, request, d.Issuer("gemini", None, "m"))
    assert found is not None
    assert "STATE" not in repr(found[0])


def test_fields_outside_the_conversation_are_kept() -> None:
    """The betas of a client are a list of strings; its tools may have a field of any name."""
    error = d.InvalidRequestError("no", status=400, provider_message=BOUND)
    tools = [{"name": "thinking", "type": "thinking"}]
    fields = {"betas": ["a"], "tools": tools, "speed": "fast"}
    request = d.Request([d.User("Hi")], model="m", native={"anthropic": fields})
    assert withhold_state(error, request, d.Issuer("anthropic", None, "m")) is None


def test_state_of_another_issuer_is_kept() -> None:
    """The codec does not send it anyway, so the loss is reported by the codec."""
    error = d.InvalidRequestError("no", status=400, provider_message=BOUND)
    request = d.Request(make_talk("anthropic", "STATE", "elsewhere")[:2], model="m")
    assert withhold_state(error, request, d.Issuer("anthropic", "here", "m")) is None
