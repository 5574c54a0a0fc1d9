"""Build and check URLs: base URLs of servers, and URLs of media."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

from ..messages import Audio, Document, Image, Inline


def join_url(base_url: str, path: str, default: str = "") -> str:
    """Append ``path`` to a base URL. If the base URL has no path, insert ``default`` before it."""
    if any(character <= " " or character == "\x7f" for character in base_url):
        raise ValueError("base_url must not contain spaces or control characters")
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # reading the port raises an error if it is invalid
    except ValueError as error:
        raise ValueError(
            "base_url must be an http or https URL; its host or port cannot be read"
        ) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base_url must be an http or https URL, not {_shown(base_url)!r}")
    if parts.username or parts.password:
        raise ValueError("base_url must not contain credentials; pass api_key instead")
    if parts.fragment:
        raise ValueError("base_url must not contain a fragment")
    own = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, (own or default) + path, parts.query, ""))


def _shown(url: str) -> str:
    return url.rpartition("@")[2].partition("?")[0]


def root_of(base_url: str) -> str:
    """Return a server's root URL: the base URL without a final ``/v1`` or ``/openai/v1``."""
    parts = urlsplit(base_url)
    path = re.sub(r"(/openai)?/v\d\w*/?$", "", parts.path).rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def media_url(block: Image | Document | Audio) -> str:
    """Return the URL of a medium, which is a ``data:`` URL if the medium is inline."""
    if isinstance(block.source, Inline):
        return f"data:{block.media_type};base64,{block.source.base64_data}"
    return block.source.url
