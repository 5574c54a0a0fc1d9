"""The Messages wire, and the quirks of compatible servers.

Box: core; the server half is in the box gateway.

This folder contains only the code of this wire. It is sans-IO: it opens no socket, does not sleep
and does not log. The differences between servers and models of this wire are fields of ``Quirks``.
"""

from .codec import AnthropicCodec
from .quirks import Quirks

__all__ = ["AnthropicCodec", "Quirks"]
