"""Wires: one codec each, between our values and a provider's bytes.

The law of this folder: nothing here opens a socket, sleeps, reads a clock, logs, or mints an id by
itself. A codec is a pure function in both directions and can be driven by hand.
"""

from .codec import Codec, Decoder, Encoded, HttpReply, HttpRequest, Note
from .openai import OpenAICodec
from .plan import PlanItem, SwapPlan, make_plan

__all__ = [
    "CODECS",
    "Codec",
    "Decoder",
    "Encoded",
    "HttpReply",
    "HttpRequest",
    "Note",
    "PlanItem",
    "SwapPlan",
    "make_plan",
]

CODECS: dict[str, type[Codec]] = {
    "openai": OpenAICodec,
}
"""Every wire by its name."""
