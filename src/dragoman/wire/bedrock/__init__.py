"""Converse of Amazon Bedrock: one API for models of many vendors, streamed as binary messages."""

from .codec import BedrockCodec
from .quirks import Quirks

__all__ = ["BedrockCodec", "Quirks"]
