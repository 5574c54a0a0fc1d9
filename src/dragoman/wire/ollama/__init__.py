"""Ollama's native wire, ``POST /api/chat``, one JSON object per line.

It exists because the compatible API under ``/v1`` cannot set the context length and silently
truncates long prompts; here ``num_ctx`` is a quirk of the endpoint. Thinking has its own field,
and ``/api/ps`` lists the models in memory. Otherwise prefer ``/v1``, which more servers support.
"""

from .codec import OllamaCodec
from .quirks import Quirks

__all__ = ["OllamaCodec", "Quirks"]
