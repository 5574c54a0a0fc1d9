"""Dragoman: the model's translator, never the tool's executor.

One typed contract over language models, in layers; each imports only from those above it::

    errors  messages  capabilities      what can go wrong; what is said; what a model is known to do
    events                              what is heard, and the one assembler that says it
    validate  tokens  sse               what is refused; how long it is; bytes to frames
    wire                                one codec per wire, pure
    transport                           the only file that opens a socket
    provider                            encode, send, decode
    sync  local  cli                    for people without an event loop; a model in a box; the command
"""

from .capabilities import Capabilities
from .errors import (
    AuthenticationError,
    CallCancelledError,
    ContextOverflowError,
    InvalidModelError,
    InvalidRequestError,
    InvalidResponseError,
    MalformedToolCallError,
    ModelNotLoadedError,
    NetworkError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    StreamInterruptedError,
    StructuredOutputError,
    TimedOutError,
    UnavailableError,
    UnsupportedContentError,
    UnsupportedFeatureError,
)
from .events import (
    Event,
    MessageComplete,
    MessageStart,
    Response,
    TextDelta,
    ThinkingDelta,
    ToolIntent,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    Usage,
    check_events,
    decode_event,
    encode_event,
    fold,
    to_model_events,
)
from .local import LocalProvider
from .messages import (
    Assistant,
    Continuity,
    Document,
    ForceTool,
    Image,
    Inline,
    Issuer,
    LossWarning,
    Message,
    Opaque,
    RedactedThinking,
    Request,
    RuntimeConfig,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
    User,
)
from .provider import EventStream, Provider, connect, plan
from .transport import HttpTransport, Timeouts
from .validate import parse_messages
from .wire import SwapPlan

__version__ = "0.1.0"

__all__ = [
    "Assistant",
    "AuthenticationError",
    "CallCancelledError",
    "Capabilities",
    "ContextOverflowError",
    "Continuity",
    "Document",
    "Event",
    "EventStream",
    "ForceTool",
    "HttpTransport",
    "Image",
    "Inline",
    "InvalidModelError",
    "InvalidRequestError",
    "InvalidResponseError",
    "Issuer",
    "LocalProvider",
    "LossWarning",
    "MalformedToolCallError",
    "Message",
    "MessageComplete",
    "MessageStart",
    "ModelNotLoadedError",
    "NetworkError",
    "Opaque",
    "OverloadedError",
    "Provider",
    "ProviderError",
    "QuotaExceededError",
    "RateLimitError",
    "RedactedThinking",
    "Request",
    "Response",
    "RuntimeConfig",
    "StreamInterruptedError",
    "StructuredOutputError",
    "SwapPlan",
    "System",
    "Text",
    "TextDelta",
    "Thinking",
    "ThinkingDelta",
    "TimedOutError",
    "Timeouts",
    "Tool",
    "ToolCall",
    "ToolIntent",
    "ToolResult",
    "ToolUseEnd",
    "ToolUseInputDelta",
    "ToolUseStart",
    "UnavailableError",
    "UnsupportedContentError",
    "UnsupportedFeatureError",
    "Url",
    "Usage",
    "User",
    "check_events",
    "connect",
    "decode_event",
    "encode_event",
    "fold",
    "parse_messages",
    "plan",
    "to_model_events",
]
