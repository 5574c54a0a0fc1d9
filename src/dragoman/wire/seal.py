"""Seal opaque state of one wire, so that a client of another wire can send it back to its issuer.

A client sends the opaque fields of its own wire back unchanged: a signature on the anthropic and
bedrock wires, ``encrypted_content`` on the responses wire, ``thoughtSignature`` on the gemini
wire. State from another wire is therefore sealed: one text contains the state, its issuer, and the
block that it belongs to. The client sends this text in such a field, and the state goes to its
issuer only. State of a call or a text is sent in a block of its own if the client's wire has no
field for it: a redacted thought on the anthropic wire, a thought without text on others.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import InvalidRequestError
from ..messages import (
    AssistantBlock,
    Audio,
    Continuity,
    Image,
    Issuer,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
)
from ..messages.citations import FOR_READERS
from ..validate.fields import Fields

_T = TypeVar("_T")
_MARK = b"dragoman:"
# These 9 bytes are exactly 12 base64 characters, so every sealed text begins with these
# characters.
_PREFIX_BYTES = base64.b64encode(_MARK)
_PREFIX = _PREFIX_BYTES.decode()

_Kind: TypeAlias = Literal["thinking", "redacted", "opaque", "call", "text"]
_ALONE = "alone"
_PLACED = "placed"


class Sealed(Struct, frozen=True, array_like=True):
    """The opaque state of a block, with its issuer.

    ``kind`` is the type of the block. ``bound`` is the id of a call, or a digest of the text that
    a signature signs; without it, the state is not bound. For the state of a text without letters,
    it is "alone"; ``seal_block`` sets the length of other texts, and ``text`` and ``place``. The
    place of an opaque block is "placed", if known, and how many blocks came before it.
    """

    wire: str
    vendor: str | None
    model: str | None
    signature: str | None
    opaque: Any = None
    kind: _Kind = "thinking"
    bound: str = ""
    text: str = ""
    place: tuple[int, int] = (0, 0)

    @property
    def state(self) -> Continuity:
        """The state as a block has it."""
        issuer = Issuer(self.wire, self.vendor, self.model) if self.wire else None
        return Continuity(self.signature, self.opaque, issuer)


_sealed = msgspec.json.Decoder(Sealed)


def digest(text: str) -> str:
    """Return a short digest of a text that a signature signs."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def has_state(state: Continuity | None) -> bool:
    """Return whether opaque state must go back to its issuer.

    Citations inform the reader only, and the state of an interrupted reply is not sent back.
    """
    if state is None or not state.replayable:
        return False
    if state.signature or not isinstance(state.opaque, dict):
        return bool(state.signature or state.opaque)
    return not state.opaque.keys() <= FOR_READERS


def is_foreign(state: Continuity | None, wire: str) -> bool:
    """Return whether state is sealed for a client of this wire.

    It was issued on another wire, or another gateway behind this one sealed it. The second seal
    keeps the first one closed until the state is back at the gateway that made it.
    """
    if state is None or state.issuer is None:
        return False
    return state.issuer.wire != wire or _is_sealed(state)


def _is_sealed(state: Continuity) -> bool:
    if state.signature is not None and state.signature.startswith(_PREFIX):
        return True
    return state.opaque is not None and holds_sealed(msgspec.json.encode(state.opaque))


def seal(
    kind: _Kind,
    state: Continuity,
    bound: str = "",
    text: str = "",
    place: tuple[int, int] = (0, 0),
) -> str:
    """Return a sealed text with the state of a block; see ``Sealed``."""
    issuer = state.issuer or Issuer("")
    origin = (issuer.wire, issuer.vendor, issuer.model)
    sealed = Sealed(*origin, state.signature, state.opaque, kind, bound, text, place)
    return base64.b64encode(_MARK + msgspec.json.encode(sealed)).decode()


def seal_thought(text: str, state: Continuity | None) -> str | None:
    """Return the sealed state of a thought; ``None`` if it has no state.

    A signature is bound to the text that it signs. Other state contains what it belongs to.
    """
    if state is None or not has_state(state):
        return None
    return seal("thinking", state, digest(text) if state.signature else "")


def seal_call(call_id: str, state: Continuity | None, wire: str) -> str | None:
    """Return the sealed state of a call for a client of ``wire``.

    Return ``None`` if the call has no state, or if the state was issued on this wire.
    """
    is_sealed = state is not None and has_state(state) and is_foreign(state, wire)
    return seal("call", state, call_id) if state is not None and is_sealed else None


def seal_text(state: Continuity | None, wire: str, *, alone: bool) -> str | None:
    """Return the sealed state of a text for a client of ``wire``, as ``seal_call`` does.

    ``alone`` is true if the text has no letters: it is a block for its state only.
    """
    is_sealed = state is not None and has_state(state) and is_foreign(state, wire)
    return seal("text", state, _ALONE * alone) if state is not None and is_sealed else None


def seal_opaque(block: Opaque, before: Sequence[AssistantBlock] | None = None) -> str:
    """Return a sealed text that contains an opaque block.

    ``before`` are the blocks before it. A stream sends opaque blocks after all others, so the
    sealed text contains their place, for clients that send the blocks of a turn back as they are.
    """
    state = replace(block.continuity or Continuity(), opaque=block.data)
    if before is None:
        return seal("opaque", state)
    count = len([each for each in before if _is_counted(each)])
    return seal("opaque", state, _PLACED, place=(count, 0))


def _is_counted(block: AssistantBlock) -> bool:
    """Return whether a stream sends a block in its place, and the client sends it back."""
    if isinstance(block, Text | Thinking):
        return bool(block.text) or has_state(block.continuity)
    return isinstance(block, RedactedThinking | ToolCall)


def seal_block(block: AssistantBlock, place: tuple[int, int]) -> str | None:
    """Return a sealed text with the state of a block for a wire whose messages have no blocks.

    It contains the text of a thought and the length of a text, since such a wire joins those of a
    message. ``place`` is the number of characters of text up to the end of the block, and of calls
    before it. Return ``None`` if the block has no state.
    """
    state = block.continuity or Continuity()
    if isinstance(block, RedactedThinking):
        return seal("redacted", replace(state, signature=block.data), place=place)
    if isinstance(block, Opaque):
        return seal("opaque", replace(state, opaque=block.data), place=place)
    if not has_state(state):
        return None
    if isinstance(block, Thinking):
        return seal("thinking", state, text=block.text, place=place)
    if isinstance(block, ToolCall):
        return seal("call", state, block.id, place=place)
    if isinstance(block, Text):
        length = str(len(block.text)) if block.text else _ALONE
        return seal("text", state, length, place=(place[0], 0))
    return None


def sign_thought(text: str, state: Continuity | None, wire: str) -> str | None:
    """Return the signature of a thought for a client of ``wire``, whose thoughts are signed.

    It is the thought's own signature if it was issued on this wire or its issuer is unknown,
    otherwise its sealed state.
    """
    if is_foreign(state, wire):
        return seal_thought(text, state)
    return None if state is None else state.signature


def hide(data: str, state: Continuity | None, wire: str) -> str:
    """Return the data of a redacted thought for a client of ``wire``, sealed if it is foreign."""
    is_sealed = is_foreign(state, wire) or data.startswith(_PREFIX)
    return seal_hidden(data, state) if is_sealed else data


def seal_hidden(data: str, state: Continuity | None) -> str:
    """Return a sealed text that contains the data of a redacted thought."""
    return seal("redacted", replace(state or Continuity(), signature=data))


def unseal(text: str | None) -> Sealed | None:
    """Return the content of a sealed text; ``None`` for any other text.

    Google's SDK for Python sends base64 back in the URL-safe alphabet.
    """
    if text is None or not text.startswith(_PREFIX):
        return None
    try:
        plain = text.replace("-", "+").replace("_", "/")
        payload = base64.b64decode(plain, validate=True).removeprefix(_MARK)
        return _sealed.decode(payload)
    except (binascii.Error, ValueError, RecursionError):
        return None


class Carried(Struct, frozen=True):
    """What a client sent back in a block of its own, which belongs elsewhere in the turn.

    It is the state of a call or a text, or an opaque block.
    """

    sealed: Sealed


def read_thought(
    text: str, signature: str | None, wire: str, opaque: Any = None
) -> AssistantBlock | Carried:
    """Return the block that a signed thought of a client stands for.

    It is a thought, a redacted thought, or the state of a call or a text; see ``deliver``.
    ``opaque`` are further fields of a thought that was issued on ``wire``. State whose thought the
    client changed is marked, so that it is not sent.
    """
    sealed = unseal(signature)
    if sealed is None:
        is_stateful = bool(signature or opaque)
        own = Continuity(signature or None, opaque, Issuer(wire)) if is_stateful else None
        return Thinking(text, own)
    return open_sealed(sealed, text)


def open_sealed(sealed: Sealed, text: str = "") -> AssistantBlock | Carried:
    """Return the block whose state is sealed. ``text`` is the text that a signature signs."""
    if sealed.kind == "redacted":
        hidden = replace(sealed, signature=None).state
        return RedactedThinking(sealed.signature or "", hidden)
    if sealed.kind == "opaque" and not sealed.bound:
        return _open_opaque(sealed)
    if sealed.kind != "thinking":
        return Carried(sealed)
    is_bound = not sealed.bound or sealed.bound == digest(text)
    state = replace(sealed.state, replayable=is_bound)
    return Thinking(sealed.text or text, None if state == Continuity() else state)


def _open_opaque(sealed: Sealed) -> Opaque:
    return Opaque(sealed.opaque, replace(sealed.state, opaque=None))


def read_hidden(data: str, wire: str) -> AssistantBlock | Carried:
    """Return the block that a redacted thought of a client stands for."""
    if unseal(data) is None:
        return RedactedThinking(data, Continuity(issuer=Issuer(wire)))
    return read_thought("", data, wire)


def deliver(blocks: Sequence[AssistantBlock | Carried]) -> list[AssistantBlock]:
    """Return the blocks of a turn, in which calls and texts have their carried state again.

    The state of a call names its id, so a call that the client left out takes its state with it.
    The state of a text follows the text.
    """
    carried = [block for block in blocks if isinstance(block, Carried)]
    if not carried:
        return [block for block in blocks if not isinstance(block, Carried)]
    calls = {each.sealed.bound: each.sealed for each in carried if each.sealed.kind == "call"}
    made: list[AssistantBlock] = []
    for block in blocks:
        if isinstance(block, ToolCall) and (sealed := calls.get(block.id)) is not None:
            made.append(replace(block, continuity=sealed.state))
        elif not isinstance(block, Carried):
            made.append(block)
        elif block.sealed.kind == "text":
            _deliver_text(made, block.sealed)
    return _place_opaque(made, [each.sealed for each in carried if each.sealed.kind == "opaque"])


def _place_opaque(blocks: list[AssistantBlock], placed: Sequence[Sealed]) -> list[AssistantBlock]:
    """Put opaque blocks in their places among the others."""
    made: list[AssistantBlock] = []
    pending = sorted(placed, key=lambda each: each.place[0])
    pending.reverse()
    count = 0
    for block in blocks:
        while pending and pending[-1].place[0] <= count:
            made.append(_open_opaque(pending.pop()))
        made.append(block)
        count += not isinstance(block, Opaque | Audio | Image)
    return [*made, *map(_open_opaque, reversed(pending))]


def _deliver_text(blocks: list[AssistantBlock], sealed: Sealed) -> None:
    texts = [at for at, block in enumerate(blocks) if type(block) is Text]
    if sealed.bound == _ALONE or not texts:
        blocks.append(Text("", sealed.state))
    else:
        blocks[texts[-1]] = replace(blocks[texts[-1]], continuity=sealed.state)


def holds_sealed(body: bytes) -> bool:
    """Return whether a body may contain sealed state. Such a body must be decoded by a codec."""
    return _PREFIX_BYTES in body or b'"opaque"' in body


def is_from(block: AssistantBlock, wire: str) -> bool:
    """Return whether a block has opaque state that a client of this wire gets unchanged."""
    state = block.continuity
    is_known = state is not None and state.issuer is not None
    if not is_known or is_foreign(state, wire):
        return False
    return not (isinstance(block, Opaque) and holds_sealed(msgspec.json.encode(block.data)))


def own_fields(state: Continuity | None, wire: str) -> dict[str, Any]:
    """Return the opaque fields that a client of this wire gets unchanged."""
    if state is None or state.issuer is None or is_foreign(state, wire):
        return {}
    return dict(state.opaque) if isinstance(state.opaque, dict) else {}


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
