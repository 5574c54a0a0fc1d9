"""Where a log is when nobody says so, and how to name a place without its password."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

SCHEMES = ("postgresql://", "postgres://")


def find_place(where: str | Path | None = None) -> str | Path:
    """The place that is meant: the one given, else ``$DRAGOMAN_LOG``, else ``log.db`` in the data folder."""
    where = where or os.environ.get("DRAGOMAN_LOG")
    if where:
        return where if str(where).startswith(SCHEMES) else Path(where).expanduser()
    import platformdirs  # only where it is needed: it costs a fifth of the package's import

    return platformdirs.user_data_path("dragoman") / "log.db"


def name_place(where: str | Path) -> str:
    """The place as it may be shown: of an address only the server and the database."""
    if not str(where).startswith(SCHEMES):
        return str(where)
    try:
        parts = urlsplit(str(where))
        server = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:  # not an address after all; what it is may be a password
        return "postgresql://…"
    return f"postgresql://{server}{parts.path}"
