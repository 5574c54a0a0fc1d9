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
    permission  tools  session          who may do what; what can be run; the only loop there is
    replay  trace                       a run read again; the same in a browser
    conformance  gateway  sim           does it keep the contract; the wires as a server; a model by script
    sync  local  cli                    for people without an event loop; a model in a box; the command
"""

import importlib

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:  # what type checkers read; a program loads each name when it first uses it
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
        StreamContractError,
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
    from .middleware import Fallback, Observe, RateLimit, Record, Retry, describe
    from .permission import Policy, Rule
    from .prices import Cost, PriceTable, cost, reprice
    from .provider import EventStream, Provider, connect, plan
    from .registry import Registry
    from .replay import ReplayProvider
    from .session import Budget, Session
    from .transport import HttpTransport, Timeouts
    from .validate import parse_messages
    from .wire import SwapPlan

__all__ = [
    "Assistant",
    "AuthenticationError",
    "Budget",
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
    "Policy",
    "PriceTable",
    "Provider",
    "ProviderError",
    "QuotaExceededError",
    "RateLimit",
    "RateLimitError",
    "Record",
    "RedactedThinking",
    "Registry",
    "ReplayProvider",
    "Request",
    "Response",
    "Retry",
    "Rule",
    "RuntimeConfig",
    "Session",
    "StreamContractError",
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

_PLACES = {
    "Capabilities": "capabilities",
    "AuthenticationError": "errors",
    "CallCancelledError": "errors",
    "ContextOverflowError": "errors",
    "InvalidModelError": "errors",
    "InvalidRequestError": "errors",
    "InvalidResponseError": "errors",
    "MalformedToolCallError": "errors",
    "ModelNotLoadedError": "errors",
    "NetworkError": "errors",
    "OverloadedError": "errors",
    "ProviderError": "errors",
    "QuotaExceededError": "errors",
    "RateLimitError": "errors",
    "StreamContractError": "events",
    "StreamInterruptedError": "errors",
    "StructuredOutputError": "errors",
    "TimedOutError": "errors",
    "UnavailableError": "errors",
    "UnsupportedContentError": "errors",
    "UnsupportedFeatureError": "errors",
    "Event": "events",
    "MessageComplete": "events",
    "MessageStart": "events",
    "Response": "events",
    "TextDelta": "events",
    "ThinkingDelta": "events",
    "ToolIntent": "events",
    "ToolUseEnd": "events",
    "ToolUseInputDelta": "events",
    "ToolUseStart": "events",
    "Usage": "events",
    "check_events": "events",
    "decode_event": "events",
    "encode_event": "events",
    "fold": "events",
    "to_model_events": "events",
    "LocalProvider": "local",
    "Assistant": "messages",
    "Continuity": "messages",
    "Document": "messages",
    "ForceTool": "messages",
    "Image": "messages",
    "Inline": "messages",
    "Issuer": "messages",
    "LossWarning": "messages",
    "Message": "messages",
    "Opaque": "messages",
    "RedactedThinking": "messages",
    "Request": "messages",
    "RuntimeConfig": "messages",
    "System": "messages",
    "Text": "messages",
    "Thinking": "messages",
    "Tool": "messages",
    "ToolCall": "messages",
    "ToolResult": "messages",
    "Url": "messages",
    "User": "messages",
    "Fallback": "middleware",
    "Observe": "middleware",
    "RateLimit": "middleware",
    "Record": "middleware",
    "Retry": "middleware",
    "describe": "middleware",
    "Policy": "permission",
    "Rule": "permission",
    "Cost": "prices",
    "PriceTable": "prices",
    "cost": "prices",
    "reprice": "prices",
    "EventStream": "provider",
    "Provider": "provider",
    "connect": "provider",
    "plan": "provider",
    "Registry": "registry",
    "ReplayProvider": "replay",
    "Budget": "session",
    "Session": "session",
    "HttpTransport": "transport",
    "Timeouts": "transport",
    "parse_messages": "validate",
    "SwapPlan": "wire",
}


def _find_module(name: str) -> object:
    whole = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            return importlib.import_module(whole)
        except ModuleNotFoundError as error:
            if error.name != whole:  # the module is there, and what it needs is not
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # a type checker is to complain of a name that does not exist

    def __getattr__(name: str) -> object:
        """A name is looked up when it is first used: importing the package costs next to nothing."""
        if name in _PLACES:
            value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
        else:
            value = _find_module(name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "importlib"})
