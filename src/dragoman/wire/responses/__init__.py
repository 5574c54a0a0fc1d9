"""The Responses wire, used statelessly: the server stores nothing.

Each call sends the complete conversation.

This folder knows one wire and nothing else. It is sans-IO: it opens no socket, does not sleep and
does not log. Differences between servers and models of this wire are data: ``Quirks``, one
documented field each.
"""

from .codec import ResponsesCodec
from .quirks import Quirks

__all__ = ["Quirks", "ResponsesCodec"]
