"""The queue of questions on the web page: what waits, the latest answers, and answering."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .. import log as logs
from ..session import SessionError
from ..trace.approval import GivenDecision
from .callers import Asker
from .handlers import Handlers

_MOST = 100  # questions that the page shows of each kind


class PageAnswer(GivenDecision, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a request of the page that decides about a call of a session."""

    session: Annotated[str, Meta(min_length=1, max_length=255)]
    intent: Annotated[str, Meta(min_length=1, max_length=255)]


async def read_page(handlers: Handlers, asker: Asker, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the open questions, the latest answers, and whether the person may answer."""
    opened = await handlers.list_questions(asker, "open", None, _MOST)
    answered = await handlers.list_questions(asker, "answered", None, _MOST)
    return {
        "open": opened["data"],
        "has_more": opened["next"] is not None,
        "answered": answered["data"],
        "may_answer": asker.sees_content,
    }


async def answer_page(handlers: Handlers, asker: Asker, body: bytes) -> Any:
    """Record a decision of the page; return the one that counts."""
    given = msgspec.json.decode(body, type=PageAnswer)
    asker.check_content()
    row = await asyncio.to_thread(handlers.rows.find, given.session)
    if not asker.sees(row):
        raise LookupError(f"there is no session {given.session!r}")
    try:
        return await handlers.take_answer(row, given.intent, given, asker.name)
    except (SessionError, logs.LogError) as error:
        raise ValueError(str(error)) from error
