"""Dragoman: one typed API for language models. It translates requests and replies, and never
executes a tool.

``connect`` opens a model, ``complete`` and ``stream`` call it. ``docs/design.md`` lists the layers
of the package.
"""

import importlib

__version__ = "0.2.0"

TYPE_CHECKING = False

# Names are imported on first use. Type checkers read the imports below; a test compares the two
# lists.
# fmt: off
# isort: off
if TYPE_CHECKING:
    from . import sync as sync
    from .batches import BatchReport, batch
    from .capabilities import Capabilities
    from .comparison import Comparison, compare
    from .errors import (
        AuthenticationError, BillingError, BlockedError, CallCancelledError,
        ContextOverflowError, InvalidModelError, InvalidRequestError, InvalidResponseError,
        MalformedToolCallError, ModelNotLoadedError, NetworkError, OverloadedError, ProviderError,
        QuotaExceededError, RateLimitError, StreamInterruptedError, StructuredOutputError,
        TimedOutError, UnavailableError, UnsupportedContentError, UnsupportedFeatureError,
    )
    from .events import (
        Event, MessageComplete, MessageStart, Response, StreamContractError, TextDelta,
        ThinkingDelta, ToolIntent, ToolUseEnd, ToolUseInputDelta, ToolUseStart, Usage,
        check_events, decode_event, encode_event, fold, to_model_events,
    )
    from .local import LocalProvider
    from .messages import (
        Assistant, Audio, Citation, Continuity, Document, ForceTool, Image, Inline, Issuer,
        LossWarning, Message, Opaque, PromptCache, RedactedThinking, Request, RuntimeConfig,
        ServerTool, System, Text, Thinking, Tool, ToolCall, ToolResult, Url, User,
    )
    from .middleware import (
        Cache, Fallback, Guard, Observe, RateLimit, Record, Retry, Spend, Verdict, Wallet,
        describe,
    )
    from .permission import Policy, Rule
    from .prices import Cost, PriceTable, Unpriced, cost, reprice
    from .provider import EventStream, Gathered, Provider, plan
    from .provider.connect import connect
    from .provider.gather import gather
    from .registry import Registry
    from .replay import ReplayProvider, recorded_tools
    from .retrieval import (
        Embedder, Embeddings, EmbedRequest, Ranked, Ranking, Reranker, RerankRequest, Vectors,
        connect_embedder, connect_reranker,
    )
    from .session import (
        Budget, DropOldToolResults, KeepAll, NativeCompaction, Session, Summarise, Window,
    )
    from .tools import tool
    from .transport import HttpTransport, Timeouts
    from .validate import Messages, Settings, Tools, parse_messages
    from .wire import SwapPlan

_NAMES = {
    "batches": "BatchReport batch",
    "capabilities": "Capabilities",
    "comparison": "Comparison compare",
    "errors": (
        "AuthenticationError BillingError BlockedError CallCancelledError ContextOverflowError "
        "InvalidModelError InvalidRequestError InvalidResponseError MalformedToolCallError "
        "ModelNotLoadedError NetworkError OverloadedError ProviderError QuotaExceededError "
        "RateLimitError StreamInterruptedError StructuredOutputError TimedOutError "
        "UnavailableError UnsupportedContentError UnsupportedFeatureError"
    ),
    "events": (
        "Event MessageComplete MessageStart Response StreamContractError TextDelta ThinkingDelta "
        "ToolIntent ToolUseEnd ToolUseInputDelta ToolUseStart Usage check_events decode_event "
        "encode_event fold to_model_events"
    ),
    "local": "LocalProvider",
    "messages": (
        "Assistant Audio Citation Continuity Document ForceTool Image Inline Issuer LossWarning "
        "Message Opaque PromptCache RedactedThinking Request RuntimeConfig ServerTool System Text "
        "Thinking Tool ToolCall ToolResult Url User"
    ),
    "middleware": (
        "Cache Fallback Guard Observe RateLimit Record Retry Spend Verdict Wallet describe"
    ),
    "permission": "Policy Rule",
    "prices": "Cost PriceTable Unpriced cost reprice",
    "provider": "EventStream Gathered Provider plan",
    "provider.connect": "connect",
    "provider.gather": "gather",
    "registry": "Registry",
    "replay": "ReplayProvider recorded_tools",
    "retrieval": (
        "EmbedRequest Embedder Embeddings Ranked Ranking RerankRequest Reranker Vectors "
        "connect_embedder connect_reranker"
    ),
    "session": "Budget DropOldToolResults KeepAll NativeCompaction Session Summarise Window",
    "tools": "tool",
    "transport": "HttpTransport Timeouts",
    "validate": "Messages Settings Tools parse_messages",
    "wire": "SwapPlan",
}
__all__ = [
    "Assistant", "Audio", "AuthenticationError", "BatchReport", "BillingError", "BlockedError",
    "Budget", "Cache", "CallCancelledError", "Capabilities", "Citation", "Comparison",
    "ContextOverflowError", "Continuity", "Cost", "Document", "DropOldToolResults",
    "EmbedRequest", "Embedder", "Embeddings", "Event", "EventStream", "Fallback", "ForceTool",
    "Gathered", "Guard", "HttpTransport", "Image", "Inline", "InvalidModelError",
    "InvalidRequestError", "InvalidResponseError", "Issuer", "KeepAll", "LocalProvider",
    "LossWarning", "MalformedToolCallError", "Message", "MessageComplete", "MessageStart",
    "Messages", "ModelNotLoadedError", "NativeCompaction", "NetworkError", "Observe", "Opaque",
    "OverloadedError", "Policy", "PriceTable", "PromptCache", "Provider", "ProviderError",
    "QuotaExceededError", "Ranked", "Ranking", "RateLimit", "RateLimitError", "Record",
    "RedactedThinking", "Registry", "ReplayProvider", "Request", "RerankRequest", "Reranker",
    "Response", "Retry", "Rule", "RuntimeConfig", "ServerTool", "Session", "Settings", "Spend",
    "StreamContractError", "StreamInterruptedError", "StructuredOutputError", "Summarise",
    "SwapPlan", "System", "Text", "TextDelta", "Thinking", "ThinkingDelta", "TimedOutError",
    "Timeouts", "Tool", "ToolCall", "ToolIntent", "ToolResult", "ToolUseEnd",
    "ToolUseInputDelta", "ToolUseStart", "Tools", "UnavailableError", "Unpriced",
    "UnsupportedContentError", "UnsupportedFeatureError", "Url", "Usage", "User", "Vectors",
    "Verdict", "Wallet", "Window", "batch", "check_events", "compare", "connect",
    "connect_embedder", "connect_reranker", "cost", "decode_event", "describe", "encode_event",
    "fold", "gather", "parse_messages", "plan", "recorded_tools", "reprice", "to_model_events", "tool",
]
# isort: on
# fmt: on
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}


def _find_module(name: str) -> object:
    whole = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            return importlib.import_module(whole)
        except ModuleNotFoundError as error:
            if error.name != whole:  # the module exists, but one of its dependencies is missing
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # hidden from type checkers, which must report unknown names

    def __getattr__(name: str) -> object:
        """Import a name on first use, so that importing the package is fast."""
        if name in _PLACES:
            value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
        else:
            value = _find_module(name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "importlib"})
