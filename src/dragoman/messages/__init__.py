"""Messages and their blocks, tools, settings, and the request that holds them.

Box: core.

The smaller parts of messages are here too: media, citations, unique ids, schemas of Python
functions, and texts for people.
"""

from .citations import Citation, read_citations
from .media import Inline, Url
from .ulid import new_ulid
from .values import (
    DETAILS,
    EFFORTS,
    NO_CONFIG,
    Assistant,
    AssistantBlock,
    Audio,
    Continuity,
    Detail,
    Document,
    Effort,
    ForceTool,
    Image,
    Issuer,
    LossWarning,
    Message,
    Opaque,
    PromptCache,
    RedactedThinking,
    Request,
    RuntimeConfig,
    ServerTool,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    User,
    UserBlock,
    join_system,
)

__all__ = [
    "DETAILS", "EFFORTS", "NO_CONFIG", "Assistant", "AssistantBlock", "Audio", "Citation",
    "Continuity", "Detail", "Document", "Effort", "ForceTool", "Image", "Inline", "Issuer",
    "LossWarning", "Message", "Opaque", "PromptCache", "RedactedThinking", "Request",
    "RuntimeConfig", "ServerTool", "System", "Text", "Thinking", "Tool", "ToolCall", "ToolChoice",
    "ToolResult", "Url", "User", "UserBlock", "join_system", "new_ulid",
    "read_citations",
]  # fmt: skip
