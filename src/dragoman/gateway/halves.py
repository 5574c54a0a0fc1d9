"""The server half of each wire, by its name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from .codec import ServerCodec


class _Halves(Mapping[str, ServerCodec]):
    """Server halves by the name of their wire, each loaded when it is first asked for."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._made: dict[str, ServerCodec] = {}

    def __getitem__(self, wire: str) -> ServerCodec:
        if wire not in self._made:
            module, _, name = self._places[wire].partition(":")
            found: Any = getattr(importlib.import_module(module, __package__), name)
            self._made[wire] = found()
        return self._made[wire]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


SERVER_CODECS: Mapping[str, ServerCodec] = _Halves(
    {
        "anthropic": ".anthropic:AnthropicServer",
        "gemini": ".gemini:GeminiServer",
        "ollama": ".ollama:OllamaServer",
        "openai": ".openai:OpenAIServer",
        "responses": ".responses:ResponsesServer",
    }
)
"""The server half of each wire, by its name."""
