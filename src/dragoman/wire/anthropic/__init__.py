"""The Messages wire, and the quirks of those who imitate it.

This folder knows one wire and nothing else. It never opens a socket, never sleeps, never logs. What
differs between servers and models that speak this wire is data: ``Quirks``, one documented field each.
"""

from .codec import AnthropicCodec
from .quirks import Quirks

__all__ = ["AnthropicCodec", "Quirks"]
