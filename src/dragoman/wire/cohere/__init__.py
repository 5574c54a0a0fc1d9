"""Cohere's native wire, ``POST /v2/chat``, with named events, tool plans and citations.

Box: core; the server half is in the box gateway.
"""

from .codec import CohereCodec
from .quirks import Quirks

__all__ = ["CohereCodec", "Quirks"]
