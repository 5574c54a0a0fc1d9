"""Report extras that request output for which ``Response`` has no field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
