"""Chat Completions, and the quirks of those who imitate it.

This folder knows one wire and nothing else. It never opens a socket, never sleeps, never logs. What
differs between servers that speak this wire is data: ``Quirks``, one documented field each.
"""

from .codec import OpenAICodec
from .quirks import Quirks

__all__ = ["OpenAICodec", "Quirks"]
