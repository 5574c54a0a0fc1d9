"""Report extras for which ``Response`` has no field, and reject those that contradict a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequestError
from ..messages import Request
from .codec import Notes


def note_raw_only(extras: Mapping[str, Any], notes: Notes, *, choices: str, logprobs: str) -> None:
    """Report extras that request several choices or log probabilities.

    ``Response`` contains these only in ``raw``.
    """
    if extras.get(choices) not in (None, 1):
        why = (
            "a reply has one choice: the first is read, and the others are in raw; gather() makes "
            "several calls"
        )
        notes.rewrite(f"config.extras[{choices!r}]", "choices_dropped", why, loss=True)
    if extras.get(logprobs):
        why = "log probabilities are in raw and not in the message"
        notes.rewrite(f"config.extras[{logprobs!r}]", "logprobs_in_raw", why, loss=True)


def drop_stream(request: Request) -> dict[str, Any]:
    """Return the extras without ``stream``, which the call itself decides.

    ``stream: false`` is ignored, and any other value contradicts a call that does not stream.
    """
    extras = dict(request.config.extras)
    if not request.stream and extras.pop("stream", False) is not False:
        raise InvalidRequestError(
            "config.extras['stream'] contradicts this call; use stream() to stream"
        )
    return extras
