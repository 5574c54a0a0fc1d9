"""Dragoman: the model's translator, never the tool's executor.

One typed contract over language models, in layers; each imports only from those above it::

    errors  messages  capabilities      what can go wrong; what is said; what a model is known to do
    events                              what is heard, and the one assembler that says it
    validate  tokens  sse               what is refused; how long it is; bytes to frames
    wire                                one codec per wire, pure
    transport                           the only file that opens a socket
    provider                            encode, send, decode
    middleware  prices  log             providers around providers; what a call cost; what happened
    registry                            names to providers
    sync  local  cli                    for people without an event loop; a model in a box; the command
"""

import importlib
import typing

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

_LATER = {
    "Cost": "prices",
    "Fallback": "middleware",
    "LocalProvider": "local",
    "Observe": "middleware",
    "PriceTable": "prices",
    "RateLimit": "middleware",
    "Record": "middleware",
    "Registry": "registry",
    "Retry": "middleware",
    "cost": "prices",
    "describe": "middleware",
    "reprice": "prices",
}


def __getattr__(name: str) -> object:
    """What not every program needs is loaded when it is first named."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER])


if typing.TYPE_CHECKING:
    from .local import LocalProvider
    from .middleware import Fallback, Observe, RateLimit, Record, Retry, describe
    from .prices import Cost, PriceTable, cost, reprice
    from .registry import Registry

__all__ = [
    "Assistant",
    "AuthenticationError",
    "CallCancelledError",
    "Capabilities",
    "ContextOverflowError",
    "Continuity",
    "Cost",
    "Document",
    "Event",
    "EventStream",
    "Fallback",
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
    "Observe",
    "Opaque",
    "OverloadedError",
    "PriceTable",
    "Provider",
    "ProviderError",
    "QuotaExceededError",
    "RateLimit",
    "RateLimitError",
    "Record",
    "RedactedThinking",
    "Registry",
    "Request",
    "Response",
    "Retry",
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
    "cost",
    "decode_event",
    "describe",
    "encode_event",
    "fold",
    "parse_messages",
    "plan",
    "reprice",
    "to_model_events",
]
