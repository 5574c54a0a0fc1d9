"""Report which model of a fallback group served a call, and which models were skipped."""

from __future__ import annotations

from ..calls import RoutingSwitched
from ..provider import Reply

_MAX = 1000  # maximum length of a header in characters


def find_switches(reply: Reply) -> list[RoutingSwitched]:
    """Return the switches from one model to another that a call has made so far, in order."""
    return [each for each in reply.history if isinstance(each, RoutingSwitched)]


def show_route(reply: Reply) -> dict[str, str]:
    """Return response headers that name the model that served a call, and those tried before."""
    headers = {"x-dragoman-served-by": _plain(f"{reply.provider}:{reply.model}")}
    if switches := find_switches(reply):
        headers["x-dragoman-switched"] = _plain(
            "; ".join([f"{each.from_} {each.reason}" for each in switches])
        )
    return headers


def _plain(text: str) -> str:
    return "".join([letter if " " <= letter <= "~" else "?" for letter in text])[:_MAX]
