"""Report the parts of a request that were not sent, as Python warnings or as loss warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

from ..messages import Document, LossWarning, Request


class DragomanLossWarning(UserWarning):
    """A part of a request was degraded or not sent."""


def warn_of_losses(losses: Iterable[LossWarning], stacklevel: int) -> None:
    """Issue a Python warning for each loss; ``stacklevel`` works as in ``warnings.warn``."""
    for loss in losses:
        warnings.warn(str(loss), DragomanLossWarning, stacklevel=stacklevel + 1)


def find_marks(request: Request) -> Iterator[LossWarning]:
    """Yield a loss for each prompt-cache setting and document name, which bridges cannot send."""
    if request.config.cache not in (None, "off"):
        yield LossWarning("cache_dropped", "config.cache", "it is not sent over a bridge")
    for number, message in enumerate(request.messages):
        if getattr(message, "cache", False):
            yield LossWarning(
                "cache_dropped", f"messages[{number}].cache", "it is not sent over a bridge"
            )
        for at, block in enumerate(() if isinstance(message.content, str) else message.content):
            path = f"messages[{number}].content[{at}]"
            if getattr(block, "cache", False):
                yield LossWarning("cache_dropped", f"{path}.cache", "it is not sent over a bridge")
            if isinstance(block, Document) and block.name is not None:
                yield LossWarning("name_dropped", f"{path}.name", "it is not sent over a bridge")
