"""Send a reply back in the next request, as the vendors' own SDKs do.

The SDK reads a reply that a server codec wrote, and sends the next request of a tool loop. No
socket is opened.
"""

import io
import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import anthropic
import boto3
import botocore.awsrequest
import google.genai
import httpx2
import openai
from google.genai import types

HELLO = {"role": "user", "content": "Hi"}


class Sent(NamedTuple):
    """A request of a client: its path and its body."""

    path: str
    body: bytes


class Line:
    """Answer the first request with a reply, and record the second one."""

    def __init__(self) -> None:
        self.requests: list[Sent] = []
        self._reply = b""
        self._type = ""

    def open(self, reply: bytes, stream: bool) -> None:
        """Prepare the answer to the next request."""
        self.requests = []
        self._reply = reply
        self._type = "text/event-stream" if stream else "application/json"

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(Sent(request.url.path, request.read()))
        if len(self.requests) > 1:
            return httpx2.Response(400, json={"error": {"message": "enough"}})
        return httpx2.Response(200, content=self._reply, headers={"content-type": self._type})


LINE = Line()


# Clients take long to make, so each is made once.


@cache
def open_anthropic() -> anthropic.Anthropic:
    client = httpx2.Client(transport=httpx2.MockTransport(LINE))
    return anthropic.Anthropic(
        api_key="k", base_url="http://test", http_client=client, max_retries=0
    )


@cache
def open_openai() -> openai.OpenAI:
    client = httpx2.Client(transport=httpx2.MockTransport(LINE))
    return openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=client, max_retries=0)


@cache
def open_google() -> google.genai.Client:
    client = httpx2.Client(transport=httpx2.MockTransport(LINE))
    options = types.HttpOptions(base_url="http://test", httpx_client=client)
    return google.genai.Client(api_key="k", http_options=options)


def say_anthropic(reply: bytes, stream: bool) -> Sent:
    LINE.open(reply, stream)
    sdk = open_anthropic()
    given: Any = {"model": "m", "max_tokens": 9}
    if stream:
        with sdk.messages.stream(**given, messages=[HELLO]) as events:
            message = events.get_final_message()
    else:
        message = sdk.messages.create(**given, messages=[HELLO])
    calls = [block for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": each.id, "content": "ok"} for each in calls]
    turns: Any = [
        HELLO,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results or "And?"},
    ]
    try:
        sdk.messages.create(**given, messages=turns)
    except anthropic.APIError:
        pass
    return LINE.requests[1]


def say_openai(reply: bytes, stream: bool) -> Sent:
    message = read_openai(reply, stream)
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "ok"}
        for call in message.tool_calls or ()
    ]
    turns: Any = [HELLO, message, *(results or [HELLO])]
    try:
        open_openai().chat.completions.create(model="m", messages=turns)
    except openai.APIError:
        pass
    return LINE.requests[1]


def read_openai(reply: bytes, stream: bool) -> Any:
    """Return the message of a reply, with all its fields, as the vendor's SDK joins them."""
    LINE.open(reply, stream)
    given: Any = {"model": "m", "messages": [HELLO]}
    if not stream:
        return open_openai().chat.completions.create(**given).choices[0].message
    with open_openai().chat.completions.stream(**given) as events:
        return events.get_final_completion().choices[0].message


def say_responses(reply: bytes, stream: bool) -> Sent:
    LINE.open(reply, stream)
    sdk = open_openai()
    hello: Any = [HELLO]
    output: Any
    if stream:
        events = [*sdk.responses.create(model="m", input=hello, stream=True)]
        output = [each.item for each in events if each.type == "response.output_item.done"]
        # Codex keeps the items that are done, other clients keep the output of the last event.
        assert events[-1].response.output == output  # type: ignore[union-attr]
    else:
        output = sdk.responses.create(model="m", input=hello).output
    results = [
        {"type": "function_call_output", "call_id": each.call_id, "output": "ok"}
        for each in output
        if each.type == "function_call"
    ]
    try:
        sdk.responses.create(model="m", input=[*hello, *output, *(results or hello)])
    except openai.APIError:
        pass
    return LINE.requests[1]


def say_gemini(reply: bytes, stream: bool) -> Sent:
    LINE.open(reply, stream)
    chat = open_google().chats.create(model="m")
    read = [*chat.send_message_stream("Hi")] if stream else [chat.send_message("Hi")]
    calls = [call for each in read for call in each.function_calls or ()]
    results = [
        types.Part(
            function_response=types.FunctionResponse(
                id=call.id, name=call.name, response={"result": "ok"}
            )
        )
        for call in calls
    ]
    try:
        chat.send_message(results or "And?")
    except google.genai.errors.APIError:
        pass
    return LINE.requests[1]


class _Raw(io.BytesIO):
    """The body of a reply, as urllib3 has it."""

    def stream(self, **_: Any) -> Any:
        yield self.read()


def say_bedrock(reply: bytes, stream: bool) -> Sent:
    return _exchange(reply, stream)[0][1]


def read_bedrock(reply: bytes, stream: bool) -> dict[str, Any]:
    """Return the message of a reply."""
    return _exchange(reply, stream)[1]


def _exchange(reply: bytes, stream: bool) -> tuple[list[Sent], dict[str, Any]]:
    requests: list[Sent] = []

    def answer(request: Any, **_: Any) -> Any:
        given = request.body if isinstance(request.body, bytes) else request.body.read()
        requests.append(Sent(request.url.partition("test")[2], given))
        body = reply if len(requests) == 1 else b"{}"
        return botocore.awsrequest.AWSResponse(request.url, 200, {}, _Raw(body))

    sdk = open_bedrock()
    sdk.meta.events.register(_BEFORE, answer)
    try:
        message = _talk(sdk, stream)
    finally:
        sdk.meta.events.unregister(_BEFORE, answer)
    return requests, message


_BEFORE = "before-send.bedrock-runtime.*"


@cache
def open_bedrock() -> Any:
    """Return a client, which takes a second to make."""
    return boto3.client(
        "bedrock-runtime",
        region_name="eu-west-1",
        endpoint_url="http://test",
        aws_access_key_id="k",
        aws_secret_access_key="k",
    )


def _talk(sdk: Any, stream: bool) -> dict[str, Any]:
    hello = {"role": "user", "content": [{"text": "Hi"}]}
    if stream:
        read = sdk.converse_stream(modelId="m", messages=[hello])
        message = join_stream([*read["stream"]])
    else:
        message = sdk.converse(modelId="m", messages=[hello])["output"]["message"]
    calls = [block["toolUse"] for block in message["content"] if "toolUse" in block]
    results = [
        {"toolResult": {"toolUseId": each["toolUseId"], "content": [{"text": "ok"}]}}
        for each in calls
    ]
    back = {"role": "user", "content": results or [{"text": "And?"}]}
    sdk.converse(modelId="m", messages=[hello, message, back])
    return message


def join_stream(events: list[Any]) -> dict[str, Any]:
    """Return the message of a stream, as the examples of the vendor put it together."""
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        if "contentBlockStart" in event:
            started = event["contentBlockStart"]
            blocks[started["contentBlockIndex"]] = {
                "toolUse": {**started["start"]["toolUse"], "input": ""}
            }
        if "contentBlockDelta" not in event:
            continue
        changed = event["contentBlockDelta"]
        block = blocks.setdefault(changed["contentBlockIndex"], {})
        delta = changed["delta"]
        if "text" in delta:
            block["text"] = block.get("text", "") + delta["text"]
        elif "toolUse" in delta:
            block["toolUse"]["input"] += delta["toolUse"]["input"]
        elif "redactedContent" in delta.get("reasoningContent", {}):
            block["reasoningContent"] = delta["reasoningContent"]
        elif "reasoningContent" in delta:
            thought = block.setdefault("reasoningContent", {"reasoningText": {"text": ""}})
            for name, piece in delta["reasoningContent"].items():
                inner = thought["reasoningText"]
                inner[name] = inner.get(name, "") + piece
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"] or "{}")
    return {"role": "assistant", "content": [blocks[at] for at in sorted(blocks)]}


SAY: dict[str, Callable[[bytes, bool], Sent]] = {
    "anthropic": say_anthropic,
    "responses": say_responses,
    "gemini": say_gemini,
    "bedrock": say_bedrock,
    "openai": say_openai,
}
"""How each client sends a reply back, by its wire."""
