"""Comparison: send the recorded calls of a log to other models. Nothing is executed.

Box: extras.

- ``cases``: the calls of a log that can be repeated
- ``api``: ``dragoman.compare``, which runs one batch for each model
- ``report``: how the answers agree, what they cost, and what would be lost
- ``page``: the report as one HTML file
"""

from .api import compare
from .cases import Case, ModelAnswer, read_cases
from .page import write_page
from .report import Amounts, Comparison, Divergence, TargetReport, sort_calls

__all__ = [
    "Amounts",
    "Case",
    "Comparison",
    "Divergence",
    "ModelAnswer",
    "TargetReport",
    "compare",
    "read_cases",
    "sort_calls",
    "write_page",
]  # fmt: skip
