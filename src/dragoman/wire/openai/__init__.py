"""Chat Completions, and the quirks of compatible servers.

Box: core; the server half is in the box gateway.

This folder contains only the code of this wire. It is sans-IO: it opens no socket, does not sleep
and does not log. The differences between servers of this wire are fields of ``Quirks``.
"""

from .codec import OpenAICodec
from .described import describe_entry
from .quirks import Quirks

__all__ = ["OpenAICodec", "Quirks", "describe_entry"]
