"""Generate Content: Gemini's native wire, used by Google's two endpoints and other servers.

Box: core; the server half is in the box gateway.

This folder contains only the code of this wire. It is sans-IO: it opens no socket, does not sleep
and does not log. The differences between servers and model generations are fields of ``Quirks``.
"""

from .codec import GeminiCodec
from .quirks import Quirks

__all__ = ["GeminiCodec", "Quirks"]
