"""Cohere's native wire, ``POST /v2/chat``: named events, plans before calls, citations."""

from .codec import CohereCodec
from .quirks import Quirks

__all__ = ["CohereCodec", "Quirks"]
