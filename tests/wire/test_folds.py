"""The vendors' SDKs read the same reply from a stream and from a body, for every recorded case."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import cohere
import httpx
import ollama
import pytest

import dragoman as d
from tests.gateway.turns import join_cohere
from tests.gateway.upstream import EXHAUSTIVE

from . import vendor_turns as sdk
from .cases import decode, find_cases, plain_request
from .pairs import WIRES, serve


class Read(NamedTuple):
    """What a client reads of a reply."""

    text: str
    thinking: str
    calls: list[Any]
    states: list[str]  # signatures, encrypted reasoning and other tokens, sorted


def make(text: list[Any], thinking: list[Any], calls: list[Any], states: list[Any]) -> Read:
    """Return what was read, without parts that are missing."""
    kept = sorted([each if isinstance(each, str) else repr(each) for each in states if each])
    return Read("".join(filter(None, text)), "".join(filter(None, thinking)), calls, kept)


def read_anthropic(reply: bytes, stream: bool) -> Read:
    sdk.LINE.open(reply, stream)
    given: Any = {"model": "m", "max_tokens": 9, "messages": [sdk.HELLO]}
    if stream:
        with sdk.open_anthropic().messages.stream(**given) as events:
            blocks = events.get_final_message().content
    else:
        blocks = sdk.open_anthropic().messages.create(**given).content
    found: list[Any] = [block.model_dump() for block in blocks]
    return make(
        [each.get("text") for each in found],
        [each.get("thinking") for each in found],
        [
            (each["id"], each["name"], each["input"])
            for each in found
            if each["type"] == "tool_use"
        ],
        [each.get("signature") or each.get("data") for each in found],
    )


def read_openai(reply: bytes, stream: bool) -> Read:
    message = sdk.read_openai(reply, stream).model_dump()
    return make(
        [message["content"]],
        [message.get("reasoning_content")],
        [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message["tool_calls"] or ()
        ],
        [each.get("data") for each in message.get("reasoning_details") or ()],
    )


def read_responses(reply: bytes, stream: bool) -> Read:
    sdk.LINE.open(reply, stream)
    client = sdk.open_openai()
    if stream:
        events: list[Any] = [*client.responses.create(model="m", input="Hi", stream=True)]
        output = [each.item for each in events if each.type == "response.output_item.done"]
    else:
        output = client.responses.create(model="m", input="Hi").output
    # OpenAI's SDK warns of the message of a user in a reply, which it has no type for.
    items: list[Any] = [each.model_dump(warnings=False) for each in output]
    # A stream has the message of a user at its end, as other items without deltas.
    said = [item for item in items if item.get("role") != "user"]
    parts = [part for item in said for part in item.get("content") or ()]
    return make(
        [part.get("text") for part in parts],
        [part["text"] for item in items for part in item.get("summary") or ()],
        [
            (item["call_id"], item["name"], item["arguments"])
            for item in items
            if item["type"] == "function_call"
        ],
        [item.get("encrypted_content") for item in items],
    )


def read_gemini(reply: bytes, stream: bool) -> Read:
    sdk.LINE.open(reply, stream)
    client = sdk.open_google().models
    if stream:
        chunks = [*client.generate_content_stream(model="m", contents="Hi")]
    else:
        chunks = [client.generate_content(model="m", contents="Hi")]
    contents = [each.candidates[0].content for each in chunks if each.candidates]
    parts: list[Any] = [part for each in contents if each for part in each.parts or ()]
    calls = [part.function_call for part in parts if part.function_call]
    return make(
        [part.text for part in parts if not part.thought],
        [part.text for part in parts if part.thought],
        [(call.id, call.name, call.args) for call in calls],
        [part.thought_signature for part in parts],
    )


def read_bedrock(reply: bytes, stream: bool) -> Read:
    blocks = sdk.read_bedrock(reply, stream)["content"]
    thoughts = [block["reasoningContent"] for block in blocks if "reasoningContent" in block]
    texts = [thought.get("reasoningText", {}) for thought in thoughts]
    calls = [block["toolUse"] for block in blocks if "toolUse" in block]
    # A body has a text with its citations in one block; a stream sends its text as any other.
    parts = [
        part
        for block in blocks
        for part in block.get("citationsContent", {"content": [block]})["content"]
    ]
    return make(
        [part.get("text") for part in parts],
        [each.get("text") for each in texts],
        [(call["toolUseId"], call["name"], call["input"]) for call in calls],
        [
            *[each.get("signature") for each in texts],
            *[e.get("redactedContent") for e in thoughts],
        ],
    )


class _Replies(httpx.BaseTransport):
    """Answer every request with one reply."""

    reply = b""
    content_type = ""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=self.reply, headers={"content-type": self.content_type})


REPLIES = _Replies()


@cache
def open_ollama() -> Any:
    client = ollama.Client(host="http://test")
    client._client = httpx.Client(base_url="http://test", transport=REPLIES)  # noqa: SLF001
    return client


@cache
def open_cohere() -> Any:
    connections = httpx.Client(transport=REPLIES)
    return cohere.ClientV2("k", base_url="http://test", httpx_client=connections)


def read_ollama(reply: bytes, stream: bool) -> Read:
    REPLIES.reply = reply
    REPLIES.content_type = "application/x-ndjson"
    made = open_ollama().chat("m", [sdk.HELLO], stream=stream)
    messages = [part.message for part in made] if stream else [made.message]
    calls = [call.function for each in messages for call in each.tool_calls or ()]
    return make(
        [each.content for each in messages],
        [each.thinking for each in messages],
        [(call.name, dict(call.arguments)) for call in calls],
        [],
    )


def read_cohere(reply: bytes, stream: bool) -> Read:
    REPLIES.reply = reply
    REPLIES.content_type = "text/event-stream" if stream else "application/json"
    client = open_cohere()
    if stream:
        message = join_cohere([*client.chat_stream(model="m", messages=[sdk.HELLO])])
    else:
        made = client.chat(model="m", messages=[sdk.HELLO]).message
        message = made.model_dump(exclude_none=True)
    content = message.get("content") or ()
    calls = message.get("tool_calls") or ()
    return make(
        [each.get("text") for each in content],
        [message.get("tool_plan"), *[each.get("thinking") for each in content]],
        [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in calls],
        [],
    )


READ: dict[str, Callable[[bytes, bool], Read]] = {
    "anthropic": read_anthropic,
    "openai": read_openai,
    "responses": read_responses,
    "gemini": read_gemini,
    "bedrock": read_bedrock,
    "ollama": read_ollama,
    "cohere": read_cohere,
}
# Only the exhaustive run has the mark, because marked tests do not count as coverage.
pytestmark = [pytest.mark.exhaustive] if EXHAUSTIVE else []
# A surrogate alone is not a character, and each SDK reads it in another way.
NO_TEXT = "lone-surrogates-in-arguments"
# A stream has sent the call when these signatures arrive, and has them in a thought at the end.
SIGNED_LATE = ("arguments-with-a-late-signature", "call-with-extra-content")


@pytest.mark.parametrize("client", READ)
@pytest.mark.parametrize("wire", sorted(WIRES))
def test_client_reads_the_same_from_a_stream_and_a_body(wire: str, client: str) -> None:
    count = 0
    # Each client reads another part of the cases, unless all are asked for.
    step = 1 if EXHAUSTIVE else len(READ)
    for case in find_cases(wire, "events.jsonl")[list(READ).index(client) % step :: step]:
        heard = decode(case.codec(), case.request, [case.reply or b""])
        ending = heard.events[-1] if heard.events else None
        if heard.error is not None or not isinstance(ending, d.MessageComplete):
            continue
        if ending.finish_reason not in ("stop", "tool_calls") or case.name in (
            *SIGNED_LATE,
            NO_TEXT,
        ):
            continue
        read = []
        for stream in (True, False):
            pieces = serve(client, plain_request(stream=stream), heard.events, None)
            read.append(READ[client](b"".join(pieces), stream))
        assert read[0] == read[1], case
        count += 1
    assert count or not EXHAUSTIVE  # a sample of a wire with few cases may have none
