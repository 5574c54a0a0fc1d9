"""Report the parts of a request that were not sent, as Python warnings or as loss warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

from ..messages import Document, LossWarning, Request
from ..wire.endpoint import NOT_DEFERRED


class DragomanLossWarning(UserWarning):
    """A part of a request was degraded or not sent."""


def warn_of_losses(losses: Iterable[LossWarning], stacklevel: int) -> None:
    """Issue a Python warning for each loss; ``stacklevel`` works as in ``warnings.warn``."""
    for loss in losses:
        warnings.warn(str(loss), DragomanLossWarning, stacklevel=stacklevel + 1)


def drop_block(block: object, path: str) -> LossWarning:
    """Return the loss of a block of an earlier reply that a bridge cannot send back."""
    detail = f"a block of type {type(block).__name__} is not sent back"
    return LossWarning("block_dropped", path, detail)


def find_marks(request: Request) -> Iterator[LossWarning]:
    """Yield a loss for each prompt-cache setting and document name, which bridges cannot send."""
    if any(tool.deferred for tool in request.tools):
        yield NOT_DEFERRED
    lost = ["config.cache"] if request.config.cache not in (None, "off") else []
    for number, message in enumerate(request.messages):
        path = f"messages[{number}]"
        lost += [f"{path}.cache"] if getattr(message, "cache", False) else []
        for at, block in enumerate(() if isinstance(message.content, str) else message.content):
            lost += [f"{path}.content[{at}].cache"] if getattr(block, "cache", False) else []
            if isinstance(block, Document) and block.name is not None:
                lost.append(f"{path}.content[{at}].name")
    for path in lost:
        code = f"{path.rpartition('.')[2]}_dropped"
        yield LossWarning(code, path, "it is not sent over a bridge")
