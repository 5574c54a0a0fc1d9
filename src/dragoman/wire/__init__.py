"""Wires: one codec each, between our values and a provider's bytes.

The law of this folder: nothing here opens a socket, sleeps, reads a clock, logs, or mints an id by
itself. A codec is a pure function in both directions and can be driven by hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from .codec import Codec, Decoder, Encoded, HttpReply, HttpRequest, Note
from .plan import PlanItem, SwapPlan, make_plan

__all__ = [
    "CODECS",
    "Codec",
    "Decoder",
    "Encoded",
    "HttpReply",
    "HttpRequest",
    "Note",
    "PlanItem",
    "SwapPlan",
    "make_plan",
]


class _Codecs(Mapping[str, type[Codec]]):
    """Codec classes by the name of their wire, each loaded when it is first asked for."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def __getitem__(self, wire: str) -> type[Codec]:
        module, _, name = self._places[wire].partition(":")
        found: Any = getattr(importlib.import_module(module, __name__), name)
        assert isinstance(found, type)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


CODECS: Mapping[str, type[Codec]] = _Codecs(
    {
        "anthropic": ".anthropic:AnthropicCodec",
        "gemini": ".gemini:GeminiCodec",
        "ollama": ".ollama:OllamaCodec",
        "openai": ".openai:OpenAICodec",
        "responses": ".responses:ResponsesCodec",
    }
)
"""Every wire by its name."""
