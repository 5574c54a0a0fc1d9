"""Read media that are inline or inside ``data:`` URLs."""

from __future__ import annotations

import base64
from urllib.parse import unquote, unquote_to_bytes

from ..messages import Audio, Document, Image, Inline


def read_data_url(url: str, *, percent_encoded: bool = False) -> tuple[str | None, str] | None:
    """Return the media type and the base64 data of a ``data:`` URL, or ``None`` for any other URL.

    A ``data:`` URL that is not base64 is converted if ``percent_encoded`` is set; otherwise the
    result is ``None``.
    """
    head, comma, data = url.partition(",")
    if not comma or head[:5].lower() != "data:":
        return None
    media_type, mark, parameters = head[5:].partition(";")
    if f"{mark}{parameters}".lower().endswith(";base64"):
        return media_type or None, unquote(data)
    if not percent_encoded:
        return None
    return media_type or None, base64.b64encode(unquote_to_bytes(data)).decode("ascii")


def read_inline(
    block: Image | Document | Audio, *, percent_encoded: bool = False
) -> tuple[str | None, str] | None:
    """Return the media type and the base64 data of a medium; ``None`` if it is at another URL."""
    if isinstance(block.source, Inline):
        return block.media_type, block.source.base64_data
    found = read_data_url(block.source.url, percent_encoded=percent_encoded)
    return found and (found[0] or block.media_type, found[1])
