"""A run read again from its log: shown step by step, answered from, compared.

Replaying never touches the outside world: nothing here can reach a tool, a socket or a process.
"""

from .steps import Evidence, Step, Totals, count_totals, read_steps, to_steps
from .words import describe, shorten

__all__ = ["Evidence", "Step", "Totals", "count_totals", "describe", "read_steps", "shorten", "to_steps"]
