"""The default location of the log, and log URLs with the password removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..database import is_postgres


def find_place(where: str | Path | None = None) -> str | Path:
    """Return the log's location: the given one, ``$DRAGOMAN_LOG``, or the default file.

    The default is ``log.db`` in the data folder.
    """
    where = where or os.environ.get("DRAGOMAN_LOG")
    if where:
        return where if is_postgres(str(where)) else Path(where).expanduser()
    import platformdirs  # lazy import: it takes a fifth of the package's import time

    return platformdirs.user_data_path("dragoman") / "log.db"


# Only a URL with a host and a database, and with only one interpretation, is shown. Anything else
# may contain a password.
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]*)(?::\d+)?"
_URL = re.compile(
    rf"postgres(?:ql)?://(?:[^@/?#]*@)?({_HOST}(?:,{_HOST})*(?:/[\w.-]*)?)(?:\?[^@]*)?"
)


def name_place(where: str | Path) -> str:
    """Return a location that is safe to display: only the host and the database of a URL."""
    if not is_postgres(str(where)):
        return str(where)
    found = _URL.fullmatch(str(where))
    return f"postgresql://{found[1]}" if found else "postgresql://…"
