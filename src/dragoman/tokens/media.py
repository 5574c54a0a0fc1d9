"""Token estimates for images, audio and documents.

These are rules of thumb for each model family. Rules for individual models are not included.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable

from ..messages import Audio, Image, Inline
from ..validate.data_url import read_inline

ENCRYPTED_PER_TOKEN = 6  # base64 characters per token of encrypted thinking
_LOW_DETAIL = 85  # tokens of an image with detail="low"
# assumed size of an image at a URL, or of a format whose header is not read here
_ASSUMED_SIZE = (1024, 1024)
_DOCUMENT_PER_KB = 25  # tokens per KB of base64: a page of a thousand tokens is about 40 KB
_LEAST_DOCUMENT = 500
_AUDIO_PER_SECOND = 32  # tokens per second of audio; some models count a third of this
_ASSUMED_SECONDS = 60  # assumed length of audio at a URL


def estimate_audio(block: Audio) -> float:
    """Estimate the tokens of a recording from its size.

    One second of speech takes 32 KB as WAV, and 8 KB compressed.
    """
    if not isinstance(block.source, Inline):
        return float(_ASSUMED_SECONDS * _AUDIO_PER_SECOND)
    size = len(block.source.base64_data) * 3 / 4
    rate = 32_000 if (block.media_type or "").endswith("wav") else 8_000
    return max(1.0, size / rate) * _AUDIO_PER_SECOND


def estimate_document(data: str) -> float:
    """Estimate the tokens of a document from the size of its base64 data."""
    return max(_LEAST_DOCUMENT, _DOCUMENT_PER_KB * len(data) / 1000)


def _by_tiles(width: int, height: int) -> float:
    """Return the tokens of an image by the rule that OpenAI documents for GPT-4o.

    The image is scaled to fit 2048 pixels, then its short side to 768. It costs 85 tokens, and 170
    for each 512-pixel tile.
    """
    shrink = min(1.0, 2048 / max(width, height))
    shrink *= min(1.0, 768 / (min(width, height) * shrink))
    return 85 + 170 * math.ceil(width * shrink / 512) * math.ceil(height * shrink / 512)


def _by_crops(width: int, height: int) -> float:
    """Return the tokens of an image by the rule that Google documents for Gemini 2.

    A small image costs 258 tokens; a larger one costs 258 for each 768-pixel tile.
    """
    if max(width, height) <= 384:
        return 258.0
    return 258.0 * math.ceil(width / 768) * math.ceil(height / 768)


def _by_area(longest: int, most: int) -> Callable[[int, int], float]:
    """Return a function that counts the tokens of an image by Anthropic's documented rule.

    The image is scaled down to at most ``longest`` pixels on its longest side; then each 750
    pixels cost one token, up to ``most`` tokens.
    """

    def count(width: int, height: int) -> float:
        shrink = min(1.0, longest / max(width, height))
        return min(most, width * height * shrink * shrink / 750)

    return count


RULES = {
    "o200k": _by_tiles,
    "cl100k": _by_tiles,
    "gemini": _by_crops,
    "claude": _by_area(1568, 1600),
    "claude-4.7": _by_area(2576, 4784),
}
_ANY_PICTURE = _by_area(1568, 1600)


def estimate_image(image: Image, family: str) -> float:
    """Estimate the tokens of an image from its size, by the rule of the model family's vendor."""
    count = RULES.get(family, _ANY_PICTURE)
    if image.detail == "low" and count is _by_tiles:
        return _LOW_DETAIL
    width, height = read_size((read_inline(image) or ("", ""))[1]) or _ASSUMED_SIZE
    return count(max(1, width), max(1, height))


def read_size(data: str) -> tuple[int, int] | None:
    """Return the width and height in the header of a PNG, GIF or JPEG image.

    The result is ``None`` for any other data.
    """
    try:
        # Read enough bytes to reach the size of a JPEG that begins with a thumbnail.
        head = base64.b64decode(data[:65536])
    except ValueError:
        return None
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head.startswith(b"GIF8") and len(head) >= 10:
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    return _read_jpeg_size(head) if head.startswith(b"\xff\xd8") else None


def _read_jpeg_size(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        # A start-of-frame marker is followed by the size of the image.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(
                head[at + 5 : at + 7], "big"
            )
        at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None
