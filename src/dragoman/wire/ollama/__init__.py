"""Ollama's native wire, ``POST /api/chat``, one JSON object per line.

Box: core; the server half is in the box gateway.

Ollama's compatible API under ``/v1`` cannot set the context length and silently truncates long
prompts. On this wire the quirk ``num_ctx`` sets the context length, thinking has its own field,
and ``/api/ps`` lists the models in memory. If none of this matters, prefer ``/v1``, which more
servers support.
"""

from .codec import OllamaCodec
from .quirks import Quirks

__all__ = ["OllamaCodec", "Quirks"]
