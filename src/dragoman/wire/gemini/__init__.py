"""Generate Content: Gemini's own wire, as Google's two endpoints and their imitators speak it.

This folder knows one wire and nothing else. It never opens a socket, never sleeps, never logs. What
differs between servers and model generations is data: ``Quirks``, one documented field each.
"""

from .codec import GeminiCodec
from .quirks import Quirks

__all__ = ["GeminiCodec", "Quirks"]
