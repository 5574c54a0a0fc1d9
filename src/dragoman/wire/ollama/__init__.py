"""Ollama's own wire, ``POST /api/chat``, one JSON object a line.

It exists because the compatible API under ``/v1`` cannot set the context length and cuts long prompts in
silence: here ``num_ctx`` is a quirk of the endpoint. Thinking has a field of its own, and ``/api/ps`` tells
whether the model is in memory. Otherwise prefer ``/v1``, which more servers speak.
"""

from .codec import OllamaCodec
from .quirks import Quirks

__all__ = ["OllamaCodec", "Quirks"]
