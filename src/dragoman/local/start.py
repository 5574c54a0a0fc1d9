"""Start the server for a model with settings from the environment and the catalogue."""

from __future__ import annotations

import os

from .catalog import CatalogModel
from .pull import Found, check_model
from .server import LocalServer

CONTEXT = 4096
"""The context window in tokens, for files that are not in the catalogue."""

THREADS = "DRAGOMAN_LOCAL_THREADS"
"""The environment variable for the number of compute threads."""


def open_server(
    found: Found,
    *,
    context: int | None = None,
    threads: int | None = None,
    parallel: int = 2,
    port: int = 0,
    key: str | None = None,
    embeds: bool = False,
) -> LocalServer:
    """Return a server for a model, not yet started, with settings from the environment.

    The catalogue provides the settings that the environment does not set. With ``embeds`` the
    server computes embeddings instead of chat replies.
    """
    entry = found.entry
    return LocalServer(
        check_model(found),
        alias=entry.model if entry is not None else found.name,
        context=context or (entry.context if entry is not None else CONTEXT),
        threads=threads or default_threads(entry),
        parallel=parallel,
        port=port,
        template=entry.template_text() if entry is not None else "",
        key=key,
        embeds=embeds,
    )


def default_threads(entry: CatalogModel | None = None) -> int:
    """Return the number of threads from ``$DRAGOMAN_LOCAL_THREADS`` or from the catalogue."""
    return _read_threads() or (entry.threads if entry is not None else 1)


def _read_threads() -> int | None:
    text = os.environ.get(THREADS, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(f"{THREADS} must be an integer of at least 1, not {text!r}")
    return int(text)
