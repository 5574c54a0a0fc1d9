"""A guard, which asks judges about requests, texts and tool calls before it releases them.

Box: core.
"""

from .http import HttpJudge, Moderations, Presidio
from .layer import Guard
from .rules import Rules
from .subject import Action, Judge, Stage, Subject, Verdict

__all__ = [
    "Action", "Guard", "HttpJudge", "Judge", "Moderations", "Presidio", "Rules", "Stage", "Subject",
    "Verdict",
]  # fmt: skip
