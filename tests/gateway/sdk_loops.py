"""Tool loops with thinking through the vendors' own SDKs, which return what they were sent.

Each loop sends settings that agents send with every request, asks for reasoning, and answers the
calls of three replies. A loop returns the text of the last reply.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import cohere
import google.genai
import httpx
import ollama
import openai
from google.genai import types

from tests.wire.vendor_turns import join_stream

PARAMETERS: Any = {"type": "object", "properties": {"at": {"type": "string"}}}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": PARAMETERS}
SAMPLING: Any = {"temperature": 0.2, "top_p": 0.95}
ASKED = {"role": "user", "content": "Where?"}
LIMIT = 20000  # Anthropic's SDK demands a stream for more


async def loop_chat(url: str, stream: bool) -> str:
    messages: list[Any] = [{"role": "system", "content": "Be terse."}, ASKED]
    given: Any = {
        "model": "m", "max_tokens": LIMIT, "reasoning_effort": "high", **SAMPLING,
        "tools": [{"type": "function", "function": FUNCTION}],
    }  # fmt: skip
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as sdk:
        for _ in range(4):
            if stream:
                async with sdk.chat.completions.stream(**given, messages=messages) as events:
                    made: Any = await events.get_final_completion()
            else:
                made = await sdk.chat.completions.create(**given, messages=messages)
            message = made.choices[0].message
            messages.append(message)
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "there"}
                for call in message.tool_calls or ()
            ]
    return str(message.content)


async def loop_responses(url: str, stream: bool) -> str:
    items: list[Any] = [ASKED]
    given: Any = {
        "model": "m", "instructions": "Be terse.", "max_output_tokens": LIMIT, **SAMPLING,
        "store": False, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "high", "summary": "auto"},
        "tools": [{"type": "function", **FUNCTION, "strict": False}],
    }  # fmt: skip
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as sdk:
        for _ in range(4):
            if stream:
                events = await sdk.responses.create(**given, input=items, stream=True)
                seen = [event async for event in events]
                # Codex keeps the items that are done.
                output = [each.item for each in seen if each.type == "response.output_item.done"]
            else:
                output = (await sdk.responses.create(**given, input=items)).output
            items += output
            items += [
                {"type": "function_call_output", "call_id": item.call_id, "output": "there"}
                for item in output
                if item.type == "function_call"
            ]
    return str(output[-1].content[0].text)


async def loop_anthropic(url: str, stream: bool) -> str:
    return await _loop_messages(
        anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0), stream
    )


async def loop_invoke(url: str, stream: bool) -> str:
    """Run the loop of Anthropic's client over InvokeModel."""
    client = anthropic.AsyncAnthropicBedrock(
        base_url=url, aws_access_key="k", aws_secret_key="k", aws_region="us-east-1", max_retries=0
    )
    return await _loop_messages(client, stream)


async def _loop_messages(client: Any, stream: bool) -> str:
    messages: list[Any] = [ASKED]
    given: Any = {
        "model": "m", "max_tokens": LIMIT, "system": "Be terse.",
        "thinking": {"type": "enabled", "budget_tokens": 4000},
        "tools": [{"name": "look", "description": "Looks.", "input_schema": PARAMETERS}],
    }  # fmt: skip
    async with client as sdk:
        for _ in range(4):
            if stream:
                async with sdk.messages.stream(**given, messages=messages) as events:
                    message = await events.get_final_message()
            else:
                message = await sdk.messages.create(**given, messages=messages)
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": "there"}
                for block in message.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "assistant", "content": message.content})
            messages.append({"role": "user", "content": results})
    return str(message.content[-1].text)


async def loop_gemini(url: str, stream: bool) -> str:
    declared = {"name": "look", "description": "Looks.", "parameters_json_schema": PARAMETERS}
    config: Any = {
        "system_instruction": "Be terse.", "max_output_tokens": LIMIT, **SAMPLING,
        "thinking_config": {"include_thoughts": True, "thinking_level": "HIGH"},
        "tools": [{"function_declarations": [declared]}],
        "automatic_function_calling": {"disable": True},
    }  # fmt: skip
    sdk = google.genai.Client(api_key="k", http_options={"base_url": url})
    chat = sdk.aio.chats.create(model="m", config=config)
    asked: Any = "Where?"
    try:
        for _ in range(4):
            if stream:
                read = [each async for each in await chat.send_message_stream(asked)]
            else:
                read = [await chat.send_message(asked)]
            asked = [
                types.Part(
                    function_response=types.FunctionResponse(
                        id=call.id, name=call.name, response={"result": "there"}
                    )
                )
                for each in read
                for call in each.function_calls or ()
            ]
    finally:
        await sdk.aio.aclose()
        sdk.close()
    return "".join([each.text or "" for each in read])


async def loop_bedrock(url: str, stream: bool) -> str:
    return await asyncio.to_thread(_loop_converse, url, stream)


def _loop_converse(url: str, stream: bool) -> str:
    import boto3  # takes half a second

    sdk = boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="k",
        aws_secret_access_key="k",
    )
    messages: list[Any] = [{"role": "user", "content": [{"text": "Where?"}]}]
    schema = {"json": PARAMETERS}
    tool = {"toolSpec": {"name": "look", "description": "Looks.", "inputSchema": schema}}
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 4000}}
    given: Any = {
        "modelId": "m", "system": [{"text": "Be terse."}], "toolConfig": {"tools": [tool]},
        "inferenceConfig": {"maxTokens": LIMIT},
        "additionalModelRequestFields": thinking,
    }  # fmt: skip
    for _ in range(4):
        if stream:
            message = join_stream([*sdk.converse_stream(**given, messages=messages)["stream"]])
        else:
            message = sdk.converse(**given, messages=messages)["output"]["message"]
        results = [
            {
                "toolResult": {
                    "toolUseId": block["toolUse"]["toolUseId"],
                    "content": [{"text": "x"}],
                }
            }
            for block in message["content"]
            if "toolUse" in block
        ]
        messages += [message, {"role": "user", "content": results}]
    sdk.close()
    return str(message["content"][-1]["text"])


async def loop_ollama(url: str, stream: bool) -> str:
    messages: list[Any] = [{"role": "system", "content": "Be terse."}, ASKED]
    given: Any = {
        "model": "m", "think": "high", "options": {"num_predict": LIMIT, **SAMPLING},
        "tools": [{"type": "function", "function": FUNCTION}],
    }  # fmt: skip
    sdk = ollama.AsyncClient(host=url)
    for _ in range(4):
        if stream:
            parts = [
                part async for part in await sdk.chat(**given, messages=messages, stream=True)
            ]
        else:
            parts = [await sdk.chat(**given, messages=messages)]
        calls = [call for part in parts for call in part.message.tool_calls or ()]
        text = "".join([part.message.content or "" for part in parts])
        thinking = "".join([part.message.thinking or "" for part in parts])
        said = {"role": "assistant", "content": text, "thinking": thinking, "tool_calls": calls}
        messages.append(said)
        messages += [
            {"role": "tool", "content": "there", "tool_name": call.function.name} for call in calls
        ]
    await sdk._client.aclose()  # noqa: SLF001 - the client has no close() of its own
    return text


async def loop_cohere(url: str, stream: bool) -> str:
    messages: list[Any] = [{"role": "system", "content": "Be terse."}, ASKED]
    given: Any = {
        "model": "m", "max_tokens": LIMIT, "temperature": 0.2, "p": 0.95,
        "thinking": {"type": "enabled", "token_budget": 4000},
        "tools": [{"type": "function", "function": FUNCTION}],
    }  # fmt: skip
    async with httpx.AsyncClient() as connections:
        sdk = cohere.AsyncClientV2("k", base_url=url, httpx_client=connections)
        for _ in range(4):
            if stream:
                message = _join_cohere(
                    [event async for event in sdk.chat_stream(**given, messages=messages)]
                )
            else:
                made = await sdk.chat(**given, messages=messages)
                message = json.loads(made.message.json(exclude_none=True))
            messages.append({**message, "role": "assistant"})
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "there"}
                for call in message.get("tool_calls") or ()
            ]
    return str(message["content"][-1]["text"])


def _join_cohere(events: list[Any]) -> dict[str, Any]:
    """Return the message of a stream, by the documented meaning of its events."""
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for event in events:
        found = json.loads(event.json(exclude_none=True))
        delta = found.get("delta", {}).get("message", {})
        if found["type"] == "content-start":
            content.append(delta["content"])
        elif found["type"] == "content-delta":
            for name, piece in delta["content"].items():
                content[-1][name] = content[-1].get(name, "") + piece
        elif found["type"] == "tool-call-start":
            calls.append(delta["tool_calls"])
        elif found["type"] == "tool-call-delta":
            piece = delta["tool_calls"]["function"]["arguments"]
            calls[-1]["function"]["arguments"] += piece
    return {
        **({"content": content} if content else {}),
        **({"tool_calls": calls} if calls else {}),
    }


LOOPS: dict[str, Callable[[str, bool], Awaitable[str]]] = {
    "anthropic": loop_anthropic,
    "bedrock": loop_bedrock,
    "cohere": loop_cohere,
    "gemini": loop_gemini,
    "invoke": loop_invoke,
    "ollama": loop_ollama,
    "openai": loop_chat,
    "responses": loop_responses,
}
"""How each client runs a loop at a gateway's address, whole or streamed, by its API."""
