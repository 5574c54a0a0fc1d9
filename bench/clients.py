"""Who is measured: the floor, written by hand for just these replies, and ours."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec

from dragoman import TextDelta, Tool, User, connect

WEATHER = Tool(
    "weather",
    "The weather.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "string"}},
        "required": ["city"],
    },
)
WIRE_TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER.parameters},
}
HEADERS = {"content-type": "application/json", "authorization": "Bearer key"}


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str


class _Body(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


class _Delta(msgspec.Struct):
    content: str | None = None


class _StreamChoice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_StreamChoice]
    usage: _Usage | None = None


class Floor:
    """aiohttp and msgspec by hand: no checks, no deadlines, no errors."""

    name = "floor"

    def __init__(self, base: str) -> None:
        self.base = base
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self.encode = msgspec.json.Encoder().encode
        self.body = msgspec.json.Decoder(_Body)
        self.chunk = msgspec.json.Decoder(_Chunk)

    def conversation(self, size: int) -> Any:
        return [{"role": "assistant" if at % 2 else "user", "content": "x" * 500} for at in range(size - 1)] + [
            {"role": "user", "content": "Hi"}
        ]

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        request: dict[str, Any] = {"model": "bench-1", "messages": messages}
        if tools:
            request["tools"] = [WIRE_TOOL]
        url = f"{self.base}/{path}/v1/chat/completions"
        async with self.session.post(url, data=self.encode(request), headers=HEADERS) as reply:
            body = self.body.decode(await reply.read())
        message = body.choices[0].message
        if tools:
            assert message.tool_calls is not None
            assert msgspec.json.decode(message.tool_calls[0].function.arguments)["city"] == "Oslo"
        else:
            assert message.content
        assert body.usage.prompt_tokens == 20

    async def stream(self, path: str, messages: Any) -> int:
        request = {"model": "bench-1", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        url = f"{self.base}/{path}/v1/chat/completions"
        count, rest = 0, b""
        async with self.session.post(url, data=self.encode(request), headers=HEADERS) as reply:
            async for data in reply.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: ") and line != b"data: [DONE]":
                        chunk = self.chunk.decode(line[6:])
                        if chunk.choices and chunk.choices[0].delta.content:
                            count += 1
        return count

    async def close(self) -> None:
        await self.session.close()


class Ours:
    """``complete()`` and ``stream()`` as a user calls them."""

    name = "dragoman"

    def __init__(self, base: str, **settings: Any) -> None:
        self.models = {
            path: connect("bench-1", base_url=f"{base}/{path}/v1", api_key="key", **settings)
            for path in ("text", "tool", "burst", "paced", "long")
        }

    def conversation(self, size: int) -> Any:
        from dragoman import Assistant

        return [Assistant("x" * 500) if at % 2 else User("x" * 500) for at in range(size - 1)] + [User("Hi")]

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        reply = await self.models[path].complete(messages, [WEATHER] if tools else None)
        if tools:
            assert reply.tool_calls[0].arguments["city"] == "Oslo"  # type: ignore[index]
        else:
            assert reply.text
        assert reply.usage.input_tokens == 20

    async def stream(self, path: str, messages: Any) -> int:
        count = 0
        async for event in self.models[path].stream(messages):
            if type(event) is TextDelta:
                count += 1
        return count

    async def close(self) -> None:
        await asyncio.gather(*[model.close() for model in self.models.values()])
