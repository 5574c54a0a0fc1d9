"""The Dragoman client under measurement: ``complete()`` and ``stream()`` as a user calls them."""

from __future__ import annotations

from typing import Any

from dragoman import Assistant, HttpTransport, RuntimeConfig, TextDelta, Tool, User, connect

from .floors import PARAMETERS

WEATHER = Tool("weather", "The weather.", parameters=PARAMETERS)


class Ours:
    """Call the server with Dragoman, with one provider for each path of the server."""

    wires = ("openai", "anthropic")

    def __init__(self, base: str, wire: str, ca: str | None = None, **settings: Any) -> None:
        if ca:
            settings["transport"] = HttpTransport(ca=ca)
        # The anthropic wire requires max_tokens.
        self.config = RuntimeConfig(max_tokens=1000) if wire == "anthropic" else None
        self.models = {
            path: connect(
                "bench-1", wire=wire, base_url=f"{base}/{path}/v1", api_key="key", **settings
            )
            for path in ("text", "tool", "burst", "paced", "long")
        }

    def conversation(self, size: int) -> list[Any]:
        return [self.say(at, "x" * 500) for at in range(size - 1)] + [self.say(0, "Hi")]

    def say(self, at: int, text: str) -> Any:
        return Assistant(text) if at % 2 else User(text)

    async def complete(self, path: str, messages: Any, *, tools: bool = False) -> None:
        reply = await self.models[path].complete(
            messages, [WEATHER] if tools else None, self.config
        )
        assert reply.usage.input_tokens == 20
        if tools:
            assert reply.tool_calls[0].arguments is not None
            assert reply.tool_calls[0].arguments["city"] == "Oslo"
        else:
            assert reply.text

    async def stream(self, path: str, messages: Any) -> int:
        count = 0
        async for event in self.models[path].stream(messages, None, self.config):
            if type(event) is TextDelta:
                count += 1
        return count

    async def close(self) -> None:
        for model in self.models.values():
            await model.close()
