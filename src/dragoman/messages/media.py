"""The source of an image, audio or a document: a URL, or the data itself."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path

from msgspec import Struct

__all__ = ["Inline", "Url", "read_media", "read_source"]

_ADDRESSES = ("http://", "https://", "data:", "gs://", "file://")
# Magic bytes of the formats that providers accept.
_SIGNATURES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF": "application/pdf",
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",
    b"OggS": "audio/ogg",
    b"fLaC": "audio/flac",
}
# The format name that follows a RIFF header.
_CONTAINERS = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_PLAIN_NAMES = {"audio/x-wav": "audio/wav", "audio/mp3": "audio/mpeg"}


class Url(Struct, frozen=True, tag="url"):
    """Media at a URL, which Dragoman never fetches.

    The scheme is ``https:``, ``data:``, or one that the provider defines.
    """

    url: str


class Inline(Struct, frozen=True, tag="inline"):
    """Media in the message itself, base64-encoded. Dragoman sends the data unchanged."""

    base64_data: str


def read_source(source: str | Path | bytes) -> tuple[Url | Inline, str | None]:
    """Return the source of media given as a URL, a path or bytes, and the media type if known."""
    if isinstance(source, bytes):
        found = next((_SIGNATURES[sign] for sign in _SIGNATURES if source.startswith(sign)), None)
        if source[:4] == b"RIFF":
            found = _CONTAINERS.get(source[8:12])
        return Inline(base64.b64encode(source).decode("ascii")), found
    if isinstance(source, str) and source.startswith(_ADDRESSES):
        return Url(source), None
    return read_media(source)


def read_media(path: str | Path) -> tuple[Inline, str | None]:
    """Read media from disk; the name of the file determines the media type."""
    data = Path(path).read_bytes()
    found = mimetypes.guess_type(str(path))[0]
    return Inline(base64.b64encode(data).decode("ascii")), _PLAIN_NAMES.get(found or "", found)
