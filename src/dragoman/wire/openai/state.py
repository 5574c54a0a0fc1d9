"""Write and read the opaque state of a turn in the fields that Chat clients send back.

Chat Completions has no field for state. Clients know two fields of other servers and return them
unchanged: ``reasoning_details`` of a message, which OpenRouter introduced (Roo-Code#9506,
agno#8861, rust-genai#301), and ``extra_content`` of a call, which Google's compatible address uses
(vercel/ai#11745, ruby_llm#588, nanobot#2453; all seen on 2026-11-19).

Sealed state is a detail of the type ``reasoning.encrypted``, even if it contains the text of a
thought. Clients join details of the type ``reasoning.text`` and show their text, which they have
already got as ``reasoning_content`` (OpenRouterTeam/ai-sdk-provider#122, kimi-code#3928).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ... import messages as m
from ..json import dig, entries_of, list_of
from ..losses import ClientRecord
from ..seal import has_state, is_from, own_fields, seal, seal_block, unseal
from ..sealed_message import put_sealed

_WIRE = "openai"
# Where Google's compatible address puts the signature of a call. A client may read this path only.
_SIGNATURE = ("google", "thought_signature")


# --- writing replies ---------------------------------------------------------------------------


def write_details(blocks: Sequence[m.AssistantBlock]) -> list[dict[str, Any]]:
    """Return the ``reasoning_details`` of a reply; an empty list if it has no state.

    Opaque blocks come last, as in a stream. The state of a call is in its ``extra_content`` too,
    since a client may know one of the fields only.
    """
    details: list[dict[str, Any]] = []
    opaque: list[dict[str, Any]] = []
    characters = calls = 0
    for block in blocks:
        characters += len(block.text) if isinstance(block, m.Text) else 0
        if (own := _find_own(block, len(details))) is not None:
            details += own
        elif (token := seal_block(block, (characters, calls))) is not None:
            named = {"id": block.id} if isinstance(block, m.ToolCall) else {}
            detail = {"type": "reasoning.encrypted", **named, "data": token}
            (opaque if isinstance(block, m.Opaque) else details).append(detail)
        calls += isinstance(block, m.ToolCall)
    # A router marks details whose format it does not know with this word, and some clients drop
    # details of a format that they do not know.
    return [
        detail if "index" in detail else {**detail, "format": "unknown", "index": at}
        for at, detail in enumerate((*details, *opaque))
    ]


def _find_own(block: m.AssistantBlock, start: int) -> list[dict[str, Any]] | None:
    """Return the details of a block that was issued on this wire and is sent unchanged.

    The details of another server must be numbered from ``start``, since clients join the details
    of a stream by their numbers. The record of a tool that a server ran does not go back, and the
    state of a call has a field of its own.
    """
    state = block.continuity
    if isinstance(block, m.Opaque):
        return [] if is_from(block, _WIRE) else None
    if state is None or not is_from(block, _WIRE):
        return None
    if isinstance(block, m.ToolCall):
        return [] if "extra_content" in own_fields(state, _WIRE) else None
    if not isinstance(block, m.Thinking) or not has_state(state) or state.signature is not None:
        return None
    details = state.opaque if isinstance(state.opaque, list) else []
    numbers = [dig(detail, "index") for detail in details]
    is_numbered = bool(numbers) and numbers == [*range(start, start + len(numbers))]
    return details if is_numbered else None


def write_extra(call_id: str, state: m.Continuity | None) -> dict[str, Any]:
    """Return the field ``extra_content`` of a call; no field if the call has no state."""
    if state is None or not has_state(state):
        return {}
    own = own_fields(state, _WIRE).get("extra_content")
    if own is not None:
        return {"extra_content": own}
    vendor, name = _SIGNATURE
    return {"extra_content": {vendor: {name: seal("call", state, call_id)}}}


# --- reading requests --------------------------------------------------------------------------


class ReturnedState:
    """The state in a message that a client sent back."""

    def __init__(self, details: list[dict[str, Any]], extras: list[Any]) -> None:
        self._details = details
        self._extras = extras  # ``extra_content`` of each call

    @classmethod
    def take(cls, record: ClientRecord) -> ReturnedState | None:
        """Take the state out of the record of a message; return ``None`` if it has none."""
        if record.data.get("role") != "assistant":
            return None
        details = record.data.get("reasoning_details")
        calls = record.data.get("tool_calls")
        found = entries_of(details)
        if found == details:
            record.take("reasoning_details")
        else:
            found = []  # the field is reported as unknown
        extras = [_extra_of(call) for call in list_of(calls)]
        if any(extras):
            made = [_without_extra(call) for call in list_of(calls)]
            record.data = {**record.data, "tool_calls": made}
        return cls(found, extras) if found or any(extras) else None

    def restore(self, message: m.Message) -> m.Message:
        """Return a message with its state in the blocks that it belongs to."""
        assert isinstance(message, m.Assistant)
        blocks = list(message.content)
        first = len(blocks) - len(self._extras)
        for at, extra in enumerate(self._extras, first):
            if extra:
                blocks[at] = replace(blocks[at], continuity=_read_extra(extra))
        if self._details:
            tokens = [(each, unseal(_token(each))) for each in self._details]
            if own := [each for each, sealed in tokens if sealed is None]:
                blocks = _put(own, blocks)
            if found := [sealed for _, sealed in tokens if sealed is not None]:
                # Opaque blocks are the last details.
                blocks = put_sealed(sorted(found, key=lambda each: each.place), blocks)
        return replace(message, content=blocks)


def _extra_of(call: Any) -> Any:
    extra = dig(call, "extra_content")
    return extra if isinstance(extra, dict) else None


def _without_extra(call: Any) -> Any:
    if _extra_of(call) is None:
        return call
    return {name: value for name, value in call.items() if name != "extra_content"}


def _read_extra(extra: dict[str, Any]) -> m.Continuity:
    token = dig(extra, *_SIGNATURE)
    sealed = unseal(token) if isinstance(token, str) else None
    if sealed is None:
        return m.Continuity(opaque={"extra_content": extra}, issuer=m.Issuer(_WIRE))
    return sealed.state


def _token(detail: dict[str, Any]) -> str | None:
    token = detail.get("data")
    return token if isinstance(token, str) else None


def _put(details: list[dict[str, Any]], blocks: list[m.AssistantBlock]) -> list[m.AssistantBlock]:
    """Attach the details of another server to the thought of a message."""
    state = m.Continuity(opaque=details, issuer=m.Issuer(_WIRE))
    if blocks and isinstance(blocks[0], m.Thinking):
        return [replace(blocks[0], continuity=state), *blocks[1:]]
    texts = [detail.get("text") or detail.get("summary") for detail in details]
    text = "".join([each for each in texts if isinstance(each, str)])
    return [m.Thinking(text, state), *blocks]
