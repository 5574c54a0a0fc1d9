"""Seal opaque state of one wire, so that a client of another wire can send it back to its issuer.

A client sends a signature back unchanged, even if another model answers the next request. A
signature from another wire is therefore sealed: it is stored together with the name of its issuer.
The gateway sends it only to that issuer.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, TypeVar

import msgspec

from ..errors import InvalidRequestError
from ..messages import AssistantBlock, Continuity, Image, Issuer, Opaque
from ..validate.fields import Fields

_T = TypeVar("_T")
_MARK = b"dragoman:"
# These 9 bytes are exactly 12 base64 characters, so every sealed signature begins with these
# characters.
_PREFIX_BYTES = base64.b64encode(_MARK)
_PREFIX = _PREFIX_BYTES.decode()


def seal(signature: str, issuer: Issuer | None, wire: str) -> str:
    """Return a signature for a client of ``wire``, sealed if it was issued on another wire.

    A signature from an unknown issuer is not sealed.
    """
    if issuer is None or issuer.wire == wire:
        return signature
    payload = msgspec.json.encode([issuer.wire, issuer.vendor, issuer.model, signature])
    return base64.b64encode(_MARK + payload).decode()


def seal_of(block: AssistantBlock, wire: str) -> str | None:
    """Return the signature of a block for a client of ``wire``; ``None`` if it has none."""
    state = block.continuity
    return seal(state.signature, state.issuer, wire) if state and state.signature else None


def unseal(text: str, wire: str) -> tuple[str, Issuer]:
    """Return the original signature and its issuer.

    A signature that is not sealed was issued on ``wire``.
    """
    if text.startswith(_PREFIX):
        try:
            payload = base64.b64decode(text, validate=True).removeprefix(_MARK)
            made, vendor, model, signature = msgspec.json.decode(
                payload, type=tuple[str, str | None, str | None, str]
            )
        except (binascii.Error, ValueError):
            return text, Issuer(wire)
        return signature, Issuer(made, vendor, model)
    return text, Issuer(wire)


def holds_sealed(body: bytes) -> bool:
    """Return whether a body may contain sealed state. Such a body must be decoded by a codec."""
    return _PREFIX_BYTES in body or b'"opaque"' in body


def is_from(block: AssistantBlock, wire: str) -> bool:
    """Return whether a block has opaque state that was issued on this wire."""
    state = block.continuity
    return state is not None and state.issuer is not None and state.issuer.wire == wire


def own_fields(block: AssistantBlock, wire: str) -> dict[str, Any]:
    """Return the opaque fields of a block, if they were issued on this wire."""
    opaque = block.continuity.opaque if block.continuity is not None else None
    return dict(opaque) if isinstance(opaque, dict) and is_from(block, wire) else {}


def write_opaque(block: Opaque | Image, wire: str) -> dict[str, Any]:
    """Return an opaque block for a client: unchanged on the wire it came from, otherwise sealed.

    The client cannot use a sealed block, but sends it back, so that it reaches its issuer again.
    """
    if isinstance(block, Opaque) and isinstance(block.data, dict) and is_from(block, wire):
        return block.data
    issuer = block.continuity.issuer if block.continuity is not None else None
    sealed = {"type": "opaque", "issuer": msgspec.to_builtins(issuer)}
    if isinstance(block, Image):
        return {**sealed, "image": msgspec.to_builtins(block)}
    return {**sealed, "data": block.data}


def read_opaque(fields: Fields) -> Opaque | Image:
    """Return the original block from a sealed block that ``write_opaque`` wrote."""
    if (image := fields.take("image")) is not None:
        fields.take("issuer")
        return read_sealed(image, Image, fields.at("image"))
    inner = fields.inner("issuer") or Fields({}, fields.at("issuer"))
    issuer = Issuer(inner.need_text("wire"), inner.text("vendor"), inner.text("model"))
    inner.done()
    return Opaque(fields.take("data"), Continuity(issuer=issuer))


def read_sealed(value: Any, kind: type[_T], path: str) -> _T:
    """Return a value that a client sent back, converted to the type ``kind``.

    Raise ``InvalidRequestError`` if the value is invalid because the client changed it.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{path}: {error}") from error
