"""Converse of Amazon Bedrock: one shape for the models of many makers, streamed as binary messages."""

from .codec import BedrockCodec
from .quirks import Quirks

__all__ = ["BedrockCodec", "Quirks"]
