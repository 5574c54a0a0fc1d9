"""The Responses wire, used without state on the server.

Box: core; the server half is in the box gateway.

Each call sends the complete conversation.

This folder contains only the code of this wire. It is sans-IO: it opens no socket, does not sleep
and does not log. The differences between servers and models of this wire are fields of ``Quirks``.
"""

from .codec import ResponsesCodec
from .quirks import Quirks

__all__ = ["Quirks", "ResponsesCodec"]
