"""Other client libraries, used as their documentation shows; each is imported only in its own
environment.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"type": "string"},
    },
    "required": ["city"],
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS},
}


class Peer:
    """Call the server with another library; messages are dictionaries, and each path has its own
    client.
    """

    paths = ("text", "tool", "burst", "paced")

    def __init__(self, base: str, wire: str) -> None:
        self.clients = {path: self.connect(f"{base}/{path}") for path in self.paths}

    def connect(self, url: str) -> Any:
        raise NotImplementedError

    def conversation(self, size: int) -> list[Any]:
        return [self.say(at, "x" * 500) for at in range(size - 1)] + [self.say(0, "Hi")]

    def say(self, at: int, text: str) -> Any:
        return {"role": "assistant" if at % 2 else "user", "content": text}

    async def close(self) -> None:
        pass


class OpenAI(Peer):
    def connect(self, url: str) -> Any:
        import openai

        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        asked = {"tools": [TOOL]} if tools else {}
        reply = await self.clients[path].chat.completions.create(
            model="bench-1", messages=messages, **asked
        )
        message = reply.choices[0].message
        assert reply.usage.prompt_tokens == 20
        assert "Oslo" in message.tool_calls[0].function.arguments if tools else message.content

    async def stream(self, path: str, messages: Any) -> int:
        count = 0
        reply = await self.clients[path].chat.completions.create(
            model="bench-1", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in reply:
            if chunk.choices and chunk.choices[0].delta.content:
                count += 1
        return count


class Anthropic(Peer):
    def connect(self, url: str) -> Any:
        import anthropic

        return anthropic.AsyncAnthropic(base_url=url, api_key="key", max_retries=0)

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        tool = {"name": "weather", "description": "The weather.", "input_schema": PARAMETERS}
        asked: dict[str, Any] = {"tools": [tool]} if tools else {}
        reply = await self.clients[path].messages.create(
            model="bench-1", max_tokens=1000, messages=messages, **asked
        )
        assert reply.usage.input_tokens == 20
        assert reply.content[0].input["city"] == "Oslo" if tools else reply.content[0].text

    async def stream(self, path: str, messages: Any) -> int:
        count = 0
        reply = await self.clients[path].messages.create(
            model="bench-1", max_tokens=1000, messages=messages, stream=True
        )
        async for event in reply:
            if event.type == "content_block_delta" and event.delta.text:
                count += 1
        return count


class LiteLLM(Peer):
    def connect(self, url: str) -> Any:
        return {
            "model": "openai/bench-1",
            "api_base": f"{url}/v1",
            "api_key": "key",
            "max_retries": 0,
        }

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        import litellm

        asked = {"tools": [TOOL]} if tools else {}
        reply: Any = await litellm.acompletion(messages=messages, **asked, **self.clients[path])
        message = reply.choices[0].message
        assert reply.usage.prompt_tokens == 20
        assert "Oslo" in message.tool_calls[0].function.arguments if tools else message.content

    async def stream(self, path: str, messages: Any) -> int:
        import litellm

        count = 0
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        reply: Any = await litellm.acompletion(messages=messages, **asked, **self.clients[path])
        async for chunk in reply:
            if chunk.choices and chunk.choices[0].delta.content:
                count += 1
        return count


class AnyLLM(Peer):
    def connect(self, url: str) -> Any:
        from any_llm import AnyLLM as Client

        return Client.create("openai", api_key="key", api_base=f"{url}/v1")

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        asked = {"tools": [TOOL]} if tools else {}
        reply = await self.clients[path].acompletion(model="bench-1", messages=messages, **asked)
        message = reply.choices[0].message
        assert reply.usage.prompt_tokens == 20
        assert "Oslo" in message.tool_calls[0].function.arguments if tools else message.content

    async def stream(self, path: str, messages: Any) -> int:
        count = 0
        async for chunk in await self.clients[path].acompletion(
            model="bench-1", messages=messages, stream=True
        ):
            if chunk.choices and chunk.choices[0].delta.content:
                count += 1
        return count


class PydanticAI(Peer):
    def connect(self, url: str) -> Any:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel(
            "bench-1", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="key")
        )

    def say(self, at: int, text: str) -> Any:
        from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

        return ModelResponse([TextPart(text)]) if at % 2 else ModelRequest([UserPromptPart(text)])

    def parameters(self, *, tools: bool = False) -> Any:
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        tool = ToolDefinition(
            name="weather", description="The weather.", parameters_json_schema=PARAMETERS
        )
        return ModelRequestParameters(function_tools=[tool] if tools else [])

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        reply = await self.clients[path].request(messages, None, self.parameters(tools=tools))
        assert reply.usage.input_tokens == 20
        assert "Oslo" in reply.parts[0].args if tools else reply.parts[0].content

    async def stream(self, path: str, messages: Any) -> int:
        count = 0
        async with self.clients[path].request_stream(messages, None, self.parameters()) as reply:
            async for event in reply:
                kind = getattr(event, "event_kind", "")
                if kind == "part_delta" or (kind == "part_start" and event.part.content):
                    count += 1
        return count


class LangChain(Peer):
    def connect(self, url: str) -> Any:
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(
            model="bench-1", base_url=f"{url}/v1", api_key="key", max_retries=0, stream_usage=True
        )  # type: ignore[arg-type]

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        client = self.clients[path].bind_tools([TOOL]) if tools else self.clients[path]
        reply = await client.ainvoke(messages)
        assert reply.usage_metadata["input_tokens"] == 20
        assert reply.tool_calls[0]["args"]["city"] == "Oslo" if tools else reply.content

    async def stream(self, path: str, messages: Any) -> int:
        count = 0
        async for chunk in self.clients[path].astream(messages):
            if chunk.content:
                count += 1
        return count


class TensorZero(Peer):
    """TensorZero's gateway, written in Rust, inside the process of the client."""

    building: asyncio.Future[Any] | None = None

    def connect(self, url: str) -> Any:
        return url.rsplit("/", 1)[0]

    async def start(self, base: str) -> Any:
        """Build the gateway with a model for each path, in the running event loop."""
        from tensorzero import AsyncTensorZeroGateway

        lines = ["[gateway]", "observability.enabled = false"]
        for path in self.paths:
            lines += [
                f"[models.{path}]",
                'routing = ["bench"]',
                f"[models.{path}.providers.bench]",
                'type = "openai"',
                f'api_base = "{base}/{path}/v1"',
                'model_name = "bench-1"',
                'api_key_location = "none"',
            ]
        with tempfile.TemporaryDirectory() as folder:
            settings = Path(folder, "tensorzero.toml")
            settings.write_text("\n".join(lines))
            return await AsyncTensorZeroGateway.build_embedded(config_file=str(settings))

    async def infer(self, path: str, messages: Any, **given: Any) -> Any:
        if self.building is None:  # once, even when the first calls are concurrent
            self.building = asyncio.ensure_future(self.start(self.clients[path]))
        gateway = await self.building
        return await gateway.inference(
            model_name=path,
            input={"messages": messages},
            cache_options={"enabled": "off"},
            **given,
        )

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        tool = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
        asked: dict[str, Any] = {"additional_tools": [tool]} if tools else {}
        reply = await self.infer(path, messages, **asked)
        assert reply.usage.input_tokens == 20
        part = reply.content[0]
        assert part.arguments["city"] == "Oslo" if tools else part.text

    async def stream(self, path: str, messages: Any) -> int:
        count = 0
        async for chunk in await self.infer(path, messages, stream=True):
            count += sum(bool(getattr(part, "text", None)) for part in chunk.content)
        return count
