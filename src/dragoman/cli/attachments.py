"""Attachments of a message: images, PDFs and text, from files and URLs."""

from __future__ import annotations

import mimetypes
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import click

from ..messages import Document, Image, Text, Url
from .errors import reject

_LARGEST = 20 * 1024 * 1024  # maximum size in bytes that providers accept for one attachment


def read_attachment(place: str) -> Image | Document | Text:
    """Return the content block for a file or an ``http`` URL, or raise a usage error."""
    if place.startswith(("http://", "https://")):
        return _refer(place)
    path = Path(place).expanduser()
    with reject(OSError, about=f"{place} cannot be read: "):
        size = path.stat().st_size
        if size > _LARGEST:
            raise click.UsageError(f"{place} has {size:,} bytes; attach at most {_LARGEST:,}")
        return _read(path)


def _refer(url: str) -> Image | Document:
    kind = mimetypes.guess_type(PurePosixPath(urlsplit(url).path).name)[0] or ""
    if kind == "application/pdf":
        return Document(Url(url))
    if kind.startswith("image/") or not kind:
        return Image(Url(url), kind or None)
    advice = "only images and PDFs are attached by URL; attach a file"
    raise click.UsageError(f"{url} is {kind}; {advice}")


def _read(path: Path) -> Image | Document | Text:
    kind = mimetypes.guess_type(path.name)[0] or ""
    if kind.startswith("image/") and kind != "image/svg+xml":
        return Image.from_file(path)
    if kind == "application/pdf":
        return Document.from_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        kind = kind or "unknown type"
        raise click.UsageError(f"{path} is not an image, a PDF or UTF-8 text ({kind})")
    return Text(f"{path.name}:\n\n{text}")
