"""The batch APIs of providers, selected by the wire that the provider uses.

Box: extras.
"""

from ...errors import UnsupportedFeatureError
from ...middleware import Guard, walk
from ...provider import HttpProvider, Provider
from .anthropic import AnthropicBatches
from .contract import BatchApi, KeyedAnswer, KeyedRequest, Progress
from .gemini import GeminiBatches
from .openai import OpenAIBatches

__all__ = ["APIS", "BatchApi", "KeyedAnswer", "KeyedRequest", "Progress", "open_api"]

APIS: dict[str, type[BatchApi]] = {
    "openai": OpenAIBatches,
    "responses": OpenAIBatches,
    "anthropic": AnthropicBatches,
    "gemini": GeminiBatches,
}


def open_api(model: Provider) -> BatchApi:
    """Return the batch API for a model; reject a model with fallbacks or without a batch API."""
    layers = [*walk(model)]
    if any(isinstance(each, Guard) for each in layers):
        raise UnsupportedFeatureError(
            "a guard judges each reply, which a provider's batch API does not let it do",
            advice="Call the model for each row instead, without via='provider'.",
        )
    inside = [each for each in layers if isinstance(each, HttpProvider)]
    wires = [each.codec.wire for each in inside]
    if len(inside) != 1 or wires[0] not in APIS:
        known = ", ".join(APIS)
        raise UnsupportedFeatureError(
            f"a provider's batch API needs one model over one of the wires {known}"
        )
    return APIS[wires[0]](inside[0])
