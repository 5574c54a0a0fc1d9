"""Opaque state of one wire, carried through a client of another and back to its issuer alone.

A client sends a signature back as it came, whoever is behind the gateway by then. One that was made on
another wire than the client's is therefore sealed with the name of its issuer: on its way back it is
known by that, and no other model is sent it as if it were its own.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from ..messages import Issuer

_MARK = b"dragoman:"
_PREFIX = base64.b64encode(_MARK).decode()  # nine bytes: what follows does not change these twelve letters


def seal(signature: str, issuer: Issuer | None, wire: str) -> str:
    """The signature for a client of ``wire``: as it is if it was made there, or if nobody knows."""
    if issuer is None or issuer.wire == wire:
        return signature
    told = msgspec.json.encode([issuer.wire, issuer.vendor, issuer.model, signature])
    return base64.b64encode(_MARK + told).decode()


def unseal(text: str, wire: str) -> tuple[str, Issuer]:
    """The signature as its issuer made it, and who that was."""
    if text.startswith(_PREFIX):
        try:
            told = base64.b64decode(text, validate=True).removeprefix(_MARK)
            made, vendor, model, signature = msgspec.json.decode(told, type=tuple[str, str | None, str | None, str])
        except (binascii.Error, ValueError):
            return text, Issuer(wire)
        return signature, Issuer(made, vendor, model)
    return text, Issuer(wire)
