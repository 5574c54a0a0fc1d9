"""Where a log is when nobody says so, and how to name a place without its password."""

from __future__ import annotations

import os
import re
from pathlib import Path

SCHEMES = ("postgresql://", "postgres://")


def find_place(where: str | Path | None = None) -> str | Path:
    """The place that is meant: the one given, else ``$DRAGOMAN_LOG``, else ``log.db`` in the data folder."""
    where = where or os.environ.get("DRAGOMAN_LOG")
    if where:
        return where if str(where).startswith(SCHEMES) else Path(where).expanduser()
    import platformdirs  # only where it is needed: it costs a fifth of the package's import

    return platformdirs.user_data_path("dragoman") / "log.db"


# A server and a database, in a URL that cannot be read in two ways. Anything else may hide a password.
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]*)(?::\d+)?"
_URL = re.compile(rf"postgres(?:ql)?://(?:[^@/?#]*@)?({_HOST}(?:,{_HOST})*(?:/[\w.-]*)?)(?:\?[^@]*)?")


def name_place(where: str | Path) -> str:
    """Return the place as it may be shown: of an address only the server and the database."""
    if not str(where).startswith(SCHEMES):
        return str(where)
    found = _URL.fullmatch(str(where))
    return f"postgresql://{found[1]}" if found else "postgresql://…"
