"""Events, token usage, the response that events fold into, and the assembler that creates them.

Box: core.

A reply is a sequence of events that follows these rules, whatever the provider sent:

1. ``message.start`` comes first, once. 2. ``content_block_index`` never decreases; blocks come one
after another. 3. Every ``tool.use_start`` has exactly one ``tool.use_end``; fragments are passed
on unchanged. 4. A ``tool.use_end`` has an ``intent`` only when its arguments arrived complete and
parsed; otherwise ``problem`` is the reason, and ``final_input`` the object that could be read, or
``{}``. 5. ``message.complete`` comes last, once, and its ``final_content`` is the sum of the
deltas.

Only the assemblers in this package create events. Wires call the methods of ``Assembler``, which
decides about block indices, the order of events and how a message ends. ``Follower`` ends a
message whose events came from a custom provider, and ``RecordedAssembler`` creates the events of a
recorded message.
"""

from .assembler import Assembler, AssemblerError, Expected
from .blocks import LAST
from .bounds import MAX_COST, MAX_COUNT, add_terms, bound_usage, find_absurd
from .check import StreamContractError, check_events
from .follow import Follower, RecordedAssembler, make_intent
from .intents import AssembledFrom, IntentSource, ToolIntent
from .model_events import (
    ModelEvent,
    ModelFinished,
    ModelReasoningDelta,
    ModelStarted,
    ModelTextDelta,
    ProviderErrorEvent,
    ToolIntentDelta,
    ToolIntentProposed,
    to_model_events,
)
from .sale import Bill, Sale
from .values import (
    Billed,
    Event,
    FinishReason,
    MessageComplete,
    MessageStart,
    Parsed,
    Problem,
    Raw,
    Response,
    StopDetails,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UnknownEvent,
    Usage,
    decode_event,
    encode_event,
    fold,
    make_response,
    read_json,
    read_object,
)

__all__ = [
    "LAST", "MAX_COST", "MAX_COUNT", "AssembledFrom", "Assembler", "AssemblerError", "Bill", "Billed", "Event", "Expected",
    "FinishReason", "Follower", "IntentSource", "MessageComplete", "MessageStart", "ModelEvent",
    "ModelFinished", "ModelReasoningDelta", "ModelStarted", "ModelTextDelta", "Parsed", "Problem",
    "ProviderErrorEvent", "Raw", "RecordedAssembler", "Response", "Sale", "StopDetails", "StreamContractError",
    "TextDelta", "ThinkingDelta", "ToolIntent", "ToolIntentDelta", "ToolIntentProposed",
    "ToolUseEnd", "ToolUseInputDelta", "ToolUseStart", "UnknownEvent", "Usage", "add_terms", "bound_usage", "check_events",
    "decode_event", "encode_event", "find_absurd", "fold", "make_intent", "make_response", "read_json",
    "read_object", "to_model_events",
]  # fmt: skip
