"""UI message streams (version 1) of a session, which ``useChat`` of the AI SDK reads and answers.

Box: service.

The chunks and the messages are those of ``ai`` 7.0.173 and ``@ai-sdk/react`` 4.0.177 (npm,
2026-11-19). A stream of a model alone is in ``dragoman.integrations.ui_messages``.
"""

from .chunks import SessionChunks
from .input import ChatInput

__all__ = ["ChatInput", "SessionChunks"]
