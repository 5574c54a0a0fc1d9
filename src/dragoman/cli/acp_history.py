"""The recorded sessions that an editor can load again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..log import EventLog, SessionStarted
from ..replay import shorten
from .sessions import sort_sessions

_PAGE = 50  # sessions in one answer
_TITLE = 80  # characters of a title


def list_sessions(log: EventLog, folder: str | None, cursor: str | None) -> dict[str, Any]:
    """Return the sessions of agents, the newest first; only those of a folder, if one is named.

    ``cursor`` is the session after which the list continues. A session belongs to the folder
    in which it was started.
    """
    entries = sort_sessions(log, "agent")
    if cursor is not None:
        names = [entry.session for entry in entries]
        if cursor not in names:
            raise ValueError(f"cursor: {cursor!r} is not from the answer before")
        entries = entries[names.index(cursor) + 1 :]
    wanted = None if folder is None else str(Path(folder).resolve())
    found: list[dict[str, Any]] = []
    for entry in entries:
        first = next(log.read(entry.session)).payload
        if not isinstance(first, SessionStarted):
            continue
        place = first.metadata.get("workspace")
        if not isinstance(place, str) or wanted not in (None, place):
            continue
        if len(found) == _PAGE:
            return {"sessions": found, "nextCursor": found[-1]["sessionId"]}
        title = shorten(first.goal or "", _TITLE)
        facts = {"sessionId": entry.session, "cwd": place, "updatedAt": f"{entry.updated:%FT%TZ}"}
        found.append(facts | ({"title": title} if title else {}))
    return {"sessions": found}
