"""Fields of a reply that only the provider's wire has reach a client of the same wire."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from dragoman.conformance.cases import CodecCase

from .upstream import WIRES, Bench, bench

WHOLE = CodecCase("anthropic", "refusal-with-details").part("reply.json")
STREAM = CodecCase("anthropic", "thinking-dropped-by-server").part("reply.sse")
MESSAGE: dict[str, Any] = json.loads(WHOLE or b"")
ASKED: dict[str, Any] = {
    "model": "anthropic",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hi"}],
}
EXPLANATION = MESSAGE["stop_details"]["explanation"]


def answer(wire: str, body: Any) -> bytes:
    """Return the reply of the case: a stream if the request asks for one, otherwise a body."""
    reply = STREAM if body.get("stream") else WHOLE
    assert wire == "anthropic"
    assert reply is not None
    return reply


@contextlib.asynccontextmanager
async def opened(served: Bench) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Open the vendor's client, connected to the gateway."""
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="k") as client:
        yield client


def check(message: Any) -> None:
    """Check what the client shows of the message's fields."""
    sent = MESSAGE["usage"]
    assert message.stop_reason == "refusal"
    assert message.stop_details.category == "cyber"
    assert message.stop_details.explanation == EXPLANATION
    assert message.stop_details.recommended_model == "claude-sonnet-5-5"
    assert message.container.id == "container_01"
    assert message.usage.service_tier == sent["service_tier"]
    assert message.usage.inference_geo == sent["inference_geo"]
    assert message.usage.speed == sent["speed"]
    assert message.usage.cache_creation.ephemeral_1h_input_tokens == 7
    assert message.usage.output_tokens == sent["output_tokens"]
    assert message.usage.input_tokens == sent["input_tokens"]


async def test_anthropic_client_gets_every_field_of_a_body() -> None:
    async with bench(answer=answer) as served, opened(served) as client:
        check(await client.messages.create(**ASKED))
        message = await client.beta.messages.create(**ASKED)
    assert message.context_management is not None
    assert message.usage.iterations is not None
    assert message.to_dict()["input_transformations"] == MESSAGE["input_transformations"]


async def test_anthropic_client_gets_every_field_of_a_stream() -> None:
    async with bench(answer=answer) as served, opened(served) as client:
        async with client.messages.stream(**ASKED) as stream:
            check(await stream.get_final_message())
        async with client.beta.messages.stream(**ASKED) as beta:
            message = await beta.get_final_message()
    check(message)
    assert message.context_management is not None
    assert message.usage.iterations is not None
    assert message.to_dict()["input_transformations"] == MESSAGE["input_transformations"]


async def test_stream_of_a_model_that_answers_with_a_body_has_the_same_fields() -> None:
    async with (
        bench(answer=lambda *_: WHOLE or b"") as served,
        opened(served) as client,
        client.messages.stream(**ASKED) as stream,
    ):
        check(await stream.get_final_message())


async def test_events_at_the_end_do_not_repeat_the_fields_of_the_start() -> None:
    async with bench(answer=answer) as served:
        _, _, data = await served.ask("anthropic", "anthropic", {"stream": True})
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: ")]
    start = events[0]["message"]
    end = next(event for event in events if event["type"] == "message_delta")
    assert start["input_transformations"] == MESSAGE["input_transformations"]
    assert "stop_details" not in start
    assert "input_transformations" not in end
    assert set(end["delta"]) == {"stop_reason", "stop_sequence", "stop_details", "container"}
    assert not {"speed", "service_tier"} & set(end["usage"])
    assert end["usage"]["iterations"] == MESSAGE["usage"]["iterations"]


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "anthropic"])
async def test_clients_of_other_wires_do_not_get_the_fields(wire: str) -> None:
    async with bench(answer=answer) as served:
        status, headers, body = await served.ask(wire, "anthropic", {})
    assert status == 200, body
    assert "thinking_unbound" in headers["x-dragoman-warnings"]
    text = json.dumps(body)
    assert "container_01" not in text
    assert "inference_geo" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_client_gets_the_details_of_an_error(stream: bool) -> None:
    error = CodecCase("anthropic", "error-with-details").part("reply.json") or b""
    details = json.loads(error)["error"]["details"]
    async with bench(answer=lambda *_: error) as served, opened(served) as client:
        with pytest.raises(anthropic.BadRequestError) as raised:
            await client.messages.create(**ASKED, stream=stream)
    body: Any = raised.value.body
    assert body["error"]["details"] == details
    headers = raised.value.response.headers
    assert headers["x-dragoman-provider-request-id"] == json.loads(error)["request_id"]
    assert body["request_id"] == raised.value.request_id
