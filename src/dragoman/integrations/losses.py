"""Report as Python warnings what a wire could not carry."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from ..messages import LossWarning


class DragomanLossWarning(UserWarning):
    """A part of a request was degraded or not sent."""


def warn_of_losses(losses: Iterable[LossWarning], stacklevel: int) -> None:
    """Issue a Python warning for each loss, at the caller ``stacklevel`` frames above."""
    for loss in losses:
        warnings.warn(str(loss), DragomanLossWarning, stacklevel=stacklevel + 1)
