"""Replay a run from its log: show its steps, return its recorded replies, compare runs.

Box: agent.

Replaying has no side effects: no code in this package can run a tool, open a socket or start a
process.
"""

from .diff import Change, Difference, compare_runs, find_differences
from .provider import ReplayMismatch, ReplayProvider
from .recorded import recorded_tools
from .sessions import Summary, find_excerpt, summarize
from .steps import Evidence, ReplayStep, Totals, count_totals, read_steps, to_steps
from .summary import Headline, describe, describe_action, make_headline, make_printable, shorten

__all__ = [
    "Change", "Difference", "Evidence", "Headline", "ReplayMismatch", "ReplayProvider",
    "ReplayStep", "Summary", "Totals", "compare_runs", "count_totals", "describe",
    "describe_action", "find_differences", "find_excerpt", "make_headline", "make_printable",
    "read_steps", "recorded_tools", "shorten", "summarize", "to_steps",
]  # fmt: skip
