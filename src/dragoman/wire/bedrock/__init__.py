"""Amazon Bedrock's Converse: one API for models of many vendors, with binary event streams.

Box: core; the server half is in the box gateway.
"""

from .codec import BedrockCodec
from .quirks import Quirks

__all__ = ["BedrockCodec", "Quirks"]
