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
# Images with one of these media types begin with one of the signatures.
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_PLAIN_NAMES = {"audio/x-wav": "audio/wav", "audio/mp3": "audio/mpeg"}


class Url(Struct, frozen=True, tag="url"):
    """Media at a URL, which Dragoman never fetches.

    The scheme is ``https:``, ``data:``, or one that the provider defines.
    """

    url: str


class Inline(Struct, frozen=True, tag="inline"):
    """Media in the message itself, base64-encoded. Dragoman sends the data unchanged."""

    base64_data: str


def read_source(
    source: str | Path | bytes, *, is_image: bool = False
) -> tuple[Url | Inline, str | None]:
    """Return the source of media given as a URL, a path or bytes, and the media type if known.

    With ``is_image``, a file that is not an image is a ``ValueError``.
    """
    if isinstance(source, bytes):
        return Inline(base64.b64encode(source).decode("ascii")), _find_type(source)
    if isinstance(source, str) and source.startswith(_ADDRESSES):
        return Url(source), None
    read, media_type = read_media(source)
    if is_image:
        _check_image(source, media_type, read)
    return read, media_type


def read_media(path: str | Path) -> tuple[Inline, str | None]:
    """Read media from disk; the name of the file determines the media type."""
    data = Path(path).read_bytes()
    found = mimetypes.guess_type(str(path))[0]
    if found in _IMAGES:
        # Vendors refuse an image whose media type is not that of its bytes.
        found = _find_type(data) or found
    return Inline(base64.b64encode(data).decode("ascii")), _PLAIN_NAMES.get(found or "", found)


def _check_image(path: str | Path, media_type: str | None, source: Inline) -> None:
    """Raise ``ValueError`` if a file is not an image, by its name or by its first bytes."""
    start = base64.b64decode(source.base64_data[:24])
    is_wrong = media_type in _IMAGES and _find_type(start) not in _IMAGES
    if media_type is None or not media_type.startswith("image/") or is_wrong:
        named = f", although its name is that of {media_type}" if is_wrong else ""
        raise ValueError(
            f"{path} is not an image{named}: it begins with {start!r}. An image of another kind "
            'needs Image(path.read_bytes(), media_type="image/...")'
        )


def _find_type(data: bytes) -> str | None:
    """Return the media type that the first bytes show, if they do."""
    if data[:4] == b"RIFF":
        return _CONTAINERS.get(data[8:12])
    return next((_SIGNATURES[sign] for sign in _SIGNATURES if data.startswith(sign)), None)
