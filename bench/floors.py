"""The baseline: clients written by hand for the benchmark's replies only, without checks, timeouts
or error handling.

``Aiohttp`` is what a careful engineer would write; ``Raw`` shows the least that a client can cost.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httptools
import msgspec

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"type": "string"},
    },
    "required": ["city"],
}
OPENAI_TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS},
}
ANTHROPIC_TOOL = {"name": "weather", "description": "The weather.", "input_schema": PARAMETERS}
HEADERS = {"content-type": "application/json", "authorization": "Bearer key"}


# --- types with only the fields that the benchmark reads ---------------------------------------


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


class Body(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


class _Delta(msgspec.Struct):
    content: str | None = None


class _StreamChoice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    choices: list[_StreamChoice]
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    input: dict[str, Any] | None = None


class _Tokens(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None


class AnthropicBody(msgspec.Struct):
    content: list[_Block]
    usage: _Tokens


class _Piece(msgspec.Struct):
    text: str | None = None


class AnthropicEvent(msgspec.Struct):
    type: str
    delta: _Piece | None = None
    usage: _Tokens | None = None


_encode = msgspec.json.Encoder().encode
_bodies = {"openai": msgspec.json.Decoder(Body), "anthropic": msgspec.json.Decoder(AnthropicBody)}
_chunks = msgspec.json.Decoder(Chunk)
_events = msgspec.json.Decoder(AnthropicEvent)


class Floor:
    """Build the requests and parse the replies of both clients written by hand."""

    wires = ("openai", "anthropic")

    def __init__(self, base: str, wire: str) -> None:
        self.base = base
        self.wire = wire

    def conversation(self, size: int) -> list[Any]:
        return [self.say(at, "x" * 500) for at in range(size - 1)] + [self.say(0, "Hi")]

    def say(self, at: int, text: str) -> Any:
        return {"role": "assistant" if at % 2 else "user", "content": text}

    def url(self, path: str) -> str:
        return f"{self.base}/{path}/v1/" + (
            "chat/completions" if self.wire == "openai" else "messages"
        )

    def request(self, messages: Any, *, tools: bool = False, stream: bool = False) -> bytes:
        request: dict[str, Any] = {"model": "bench-1", "messages": messages}
        if self.wire == "anthropic":
            request["max_tokens"] = 1000
        if tools:
            request["tools"] = [OPENAI_TOOL if self.wire == "openai" else ANTHROPIC_TOOL]
        if stream:
            request["stream"] = True
            if self.wire == "openai":
                request["stream_options"] = {"include_usage": True}
        return _encode(request)

    def check(self, data: bytes, tools: bool) -> None:
        reply = _bodies[self.wire].decode(data)
        if isinstance(reply, Body):
            message = reply.choices[0].message
            assert reply.usage.prompt_tokens == 20
            if tools:
                assert message.tool_calls is not None
                assert (
                    msgspec.json.decode(message.tool_calls[0].function.arguments)["city"] == "Oslo"
                )
            else:
                assert message.content
        else:
            assert reply.usage.input_tokens == 20
            assert (
                (reply.content[0].input or {})["city"] == "Oslo"
                if tools
                else reply.content[0].text
            )

    def count(self, lines: list[bytes]) -> int:
        """Return the number of text fragments in a stream."""
        found = 0
        for line in lines:
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                if self.wire == "openai":
                    chunk = _chunks.decode(line[6:])
                    found += bool(chunk.choices and chunk.choices[0].delta.content)
                else:
                    event = _events.decode(line[6:])
                    found += (
                        event.type == "content_block_delta"
                        and event.delta is not None
                        and bool(event.delta.text)
                    )
        return found


class Aiohttp(Floor):
    """Call the server with a client written by hand with aiohttp and msgspec."""

    def __init__(self, base: str, wire: str, ca: str | None = None) -> None:
        super().__init__(base, wire)
        context = ssl.create_default_context(cafile=ca) if ca else True
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=context))

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        data = self.request(messages, tools=tools)
        async with self.session.post(self.url(path), data=data, headers=HEADERS) as reply:
            self.check(await reply.read(), tools)

    async def stream(self, path: str, messages: Any) -> int:
        data = self.request(messages, stream=True)
        count = 0
        rest = b""
        async with self.session.post(self.url(path), data=data, headers=HEADERS) as reply:
            async for part in reply.content.iter_any():
                *lines, rest = (rest + part).split(b"\n")
                count += self.count(lines)
        return count

    async def close(self) -> None:
        await self.session.close()


class _Connection(asyncio.Protocol):
    """Implement only the parts of HTTP/1.1 that the benchmark's replies use."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.waiter: asyncio.Future[None] | None = None
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        if self.waiter is not None and not self.waiter.done() and (self.parts or self.over):
            self.waiter.set_result(None)

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)

    def on_message_complete(self) -> None:
        self.over = True

    def send(self, data: bytes) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.parts = []
        self.over = False
        self.transport.write(data)

    async def receive(self) -> bytes:
        if not self.parts and not self.over:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        data = b"".join(self.parts)
        self.parts.clear()
        return data


class Raw(Floor):
    """Call the server with a client written by hand with asyncio and httptools."""

    def __init__(self, base: str, wire: str) -> None:
        super().__init__(base, wire)
        parts = urlsplit(base)
        self.address = (parts.hostname, parts.port)
        self.idle: list[_Connection] = []

    async def _send(self, path: str, body: bytes) -> _Connection:
        if self.idle:
            connection = self.idle.pop()
        else:
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, *self.address
            )
        target = urlsplit(self.url(path)).path.encode()
        head = (
            b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length:"
            b" %d\r\n\r\n"
        )
        connection.send(head % (target, len(body)) + body)
        return connection

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        connection = await self._send(path, self.request(messages, tools=tools))
        data = await connection.receive()
        while not connection.over:
            data += await connection.receive()
        self.idle.append(connection)
        self.check(data, tools)

    async def stream(self, path: str, messages: Any) -> int:
        connection = await self._send(path, self.request(messages, stream=True))
        count = 0
        rest = b""
        while data := await connection.receive():
            *lines, rest = (rest + data).split(b"\n")
            count += self.count(lines)
        self.idle.append(connection)
        return count

    async def close(self) -> None:
        for connection in self.idle:
            connection.transport.close()
