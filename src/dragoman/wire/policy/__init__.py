"""The translation policy: what happens to a request if the model's wire differs from the client's.

Box: core.

================  ================================================================================
``conversation``  convert conversations to the form that every wire accepts
``hosted``        tools that providers run
``translate``     build the request for one model, with warnings
================  ================================================================================

Each wire reads its own requests, and records what ``Request`` does not represent; see the module
``wire.losses``.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from ...errors import InvalidRequestError
from .. import Asked, ServerCodec
from ..losses import Losses
from .conversation import Change, normalise
from .translate import Target, Translated, refuse_losses, translate

NEVER = ("api_base", "api_key", "base_url", "extra_body", "extra_headers", "extra_query")
"""Fields that are always rejected, because only the operator decides where requests go.

Proxies that accepted these fields in a body leaked their keys.
"""


def decode_portable(front: ServerCodec, body: dict[str, Any], path: str) -> Asked:
    """Decode a request body, with its conversation in a form that every wire accepts."""
    if not body.keys().isdisjoint(NEVER):
        name = next(name for name in NEVER if name in body)
        raise InvalidRequestError(f"{name} is not allowed in a request")
    asked = front.decode(body, path)
    changes: list[Change] = []
    messages = normalise(asked.request.messages, front.table.conversation[0], changes)
    if messages == asked.request.messages:
        return asked
    losses = Losses(asked.client, front.table)
    for change in changes:
        losses.leave(*change)
    request = replace(asked.request, messages=messages)
    return replace(asked, request=request, left=(*asked.left, *losses.left))


_SETTING = re.compile(r"\bconfig\.([a-z_]+)")


def rename_settings(front: ServerCodec, message: str) -> str:
    """Return an error message with the client's setting names in place of Dragoman's names."""
    return _SETTING.sub(lambda found: front.table.names.get(found[1], found[1]), message)


__all__ = [
    "NEVER", "Target", "Translated", "decode_portable", "refuse_losses", "rename_settings",
    "translate",
]  # fmt: skip
