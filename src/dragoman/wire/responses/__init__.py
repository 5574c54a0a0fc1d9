"""The Responses wire, used without state: each call carries the whole conversation and nothing is stored.

This folder knows one wire and nothing else. It never opens a socket, never sleeps, never logs. What
differs between servers and models that speak this wire is data: ``Quirks``, one documented field each.
"""

from .codec import ResponsesCodec
from .quirks import Quirks

__all__ = ["Quirks", "ResponsesCodec"]
