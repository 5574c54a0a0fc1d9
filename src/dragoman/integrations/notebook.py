"""Show a reply in a notebook while it arrives.

::

    from dragoman.integrations.notebook import show

    response = await show(model.stream("Name a river."))

Complete values can be displayed without this module: ``Response``, ``SwapPlan``, ``Report`` and
``Session`` are displayed when a cell ends with one.
"""

from __future__ import annotations

import time
from typing import Any

from ..errors import advise_import
from ..events import Parsed, Response, TextDelta, ThinkingDelta, ToolUseStart
from ..messages.display import Display, Displayed, Passage
from ..provider import EventStream

__all__ = ["show"]


async def show(stream: EventStream[Parsed], *, seconds: float = 0.1) -> Response[Parsed]:
    """Display a reply as it grows, updated at most every ``seconds``, and return the response.

    The last update displays the complete response. If the call fails, the output keeps what had
    arrived, and the error is raised. Assign the result, or end the line with a semicolon, since a
    cell would display its last value again.
    """
    with advise_import("show needs IPython, which notebooks run on: pip install ipython"):
        from IPython.display import display  # pyright: ignore[reportMissingImports]
    growing = _GrowingReply()
    # outside of IPython ``display`` prints and returns None
    handle: Any = display(growing, display_id=True)
    shown = time.monotonic()
    async with stream:
        try:
            async for event in stream:
                if growing.add(event) and time.monotonic() - shown >= seconds:
                    _update(handle, growing)
                    shown = time.monotonic()
        except BaseException:
            _update(handle, growing)
            raise
    _update(handle, stream.response)
    return stream.response


def _update(handle: Any, value: Displayed) -> None:
    if handle is not None:
        handle.update(value)


class _GrowingReply(Displayed):
    """The part of a reply that has arrived so far."""

    def __init__(self) -> None:
        self._thinking: list[str] = []
        self._text: list[str] = []
        self._calls: list[str] = []

    def add(self, event: object) -> bool:
        """Add an event; return whether it changes what is shown."""
        if isinstance(event, TextDelta):
            self._text.append(event.text)
        elif isinstance(event, ThinkingDelta):
            self._thinking.append(event.text)
        elif isinstance(event, ToolUseStart):
            self._calls.append(event.tool_name)
        else:
            return False
        return True

    def __repr__(self) -> str:
        return "".join(self._text) or "…"

    def _display(self) -> Display:
        passages = [
            Passage("thinking", "".join(self._thinking), folded=True),
            Passage("", "".join(self._text)),
        ]
        facts = ["receiving", *[f"calls {name}" for name in self._calls]]
        return Display("…", facts, [passage for passage in passages if passage.text])
