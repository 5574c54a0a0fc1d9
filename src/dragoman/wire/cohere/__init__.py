"""Cohere's native wire, ``POST /v2/chat``: named server-sent events, plans before calls, citations
with positions.
"""

from .codec import CohereCodec
from .quirks import Quirks

__all__ = ["CohereCodec", "Quirks"]
