"""Decide whether opaque state (signatures, encrypted reasoning) may be sent back to a provider."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..errors import ProviderError
from ..messages import (
    Assistant,
    AssistantBlock,
    Continuity,
    Image,
    Issuer,
    LossWarning,
    Message,
    Opaque,
    RedactedThinking,
    Request,
    Text,
    Thinking,
    ToolResult,
    User,
)
from ..messages.citations import FOR_READERS
from .codec import Note, Notes

# Suffixes that ``model_line`` removes: dates, stages such as "preview", and numbered editions.
_EDITION = re.compile(
    r"(?:[-@:](?:\d{6,8}|\d{4}-\d\d-\d\d|\d\d-\d\d(?:\d\d)?|\d{3}|latest|preview|exp|default)){1,8}$"
)


def model_line(model: str) -> str:
    """Return a model's name without date, edition and stage.

    ``gemini-2.5-flash-preview-09-2025`` becomes ``gemini-2.5-flash``.
    """
    return _EDITION.sub("", model.lower().removeprefix("models/"))


def is_ours(state: Continuity | None, home: Issuer) -> bool:
    """Return whether opaque state is complete and was issued by ``home``.

    The wire, the vendor and the model's name without its date must be the same. An unknown vendor
    or model matches any.
    """
    if (
        state is None
        or state.issuer is None
        or not state.replayable
        or state.issuer.wire != home.wire
    ):
        return False
    vendor = state.issuer.vendor
    model = state.issuer.model
    if vendor and home.vendor and vendor != home.vendor:
        return False
    return not model or not home.model or model_line(model) == model_line(home.model)


def is_welcome(state: Continuity | None, home: Issuer) -> bool:
    """Return whether opaque state may be sent to ``home``.

    The state must be complete, and its issuer must be ``home`` or unknown.
    """
    return is_ours(state, home) or (
        state is not None and state.issuer is None and state.replayable
    )


def is_compaction(block: object) -> bool:
    """Return whether a block is a provider's compaction, which replaces the messages before it."""
    data = block.data if isinstance(block, Opaque) else None
    if not isinstance(data, dict) or data.get("type") != "compaction":
        return False
    return bool(data.get("content") or data.get("encrypted_content"))


def asks_to_compact(block: object) -> bool:
    """Return whether a block asks the server to compact the conversation.

    Codex sends it if it takes its provider for OpenAI, and expects one item ``compaction``
    (router-for-me/CLIProxyAPI#5857, 2026-09-16).
    """
    data = block.data if isinstance(block, Opaque) else None
    return isinstance(data, dict) and data.get("type") == "compaction_trigger"


def find_compaction(messages: Sequence[Message], home: Issuer) -> int | None:
    """Return the index of the last message with a compaction that ``home`` issued, if any."""
    for at, message in reversed([*enumerate(messages)]):
        for block in message.content if type(message) is Assistant else ():
            if is_compaction(block) and is_ours(block.continuity, home):
                return at
    return None


def drop_state(state: Continuity, wire: str, path: str, notes: Notes, why: str) -> None:
    """Report that opaque state of a text or a call is not sent.

    Citations that came from the same wire are not counted as a loss.
    """
    opaque = state.opaque
    issuer = state.issuer
    is_citation = isinstance(opaque, dict) and bool(opaque) and opaque.keys() <= FOR_READERS
    is_own = issuer is not None and issuer.wire == wire
    if is_citation and is_own and state.signature is None:
        note = "citations are for the reader; the provider does not take them back"
        notes.items.append(
            Note(
                outcome="dropped",
                code="citations_dropped",
                path=f"{path}.continuity",
                detail=note,
                loss=False,
            )
        )
    else:
        notes.drop(f"{path}.continuity", "continuity_dropped", why)


def note_state(message: User | ToolResult, path: str, notes: Notes) -> None:
    """Report opaque state of a user message or tool result. No wire has a field for such state."""
    for at, block in enumerate(() if isinstance(message.content, str) else message.content):
        if (type(block) is Text or type(block) is Image) and block.continuity is not None:
            why = "the wire has no place for state of what a user or a tool sends"
            notes.drop(f"{path}.content[{at}].continuity", "continuity_dropped", why)


# --- state that a provider refuses ---------------------------------------------------------------

# Errors by which a provider refuses state that it issued itself, for example because the key
# belongs to another organisation now, or because an earlier message has changed. OpenAI and Azure:
# BerriAI/litellm#27703, anomalyco/opencode#29879. Anthropic, also on Bedrock and Vertex:
# anomalyco/opencode#48637, kirodotdev/KiroCrew#11513. Gemini: google-gemini/gemini-cli#13467,
# charmbracelet/crush#1698; Vertex AI: decolua/9router#301. All seen on 2026-11-19.
_REFUSED = re.compile(
    r"invalid_encrypted_content"
    r"|encrypted[_ ]content\b.{0,80}\b(?:not be|cannot be|failed to be) (?:verified|decrypted)"
    r"|invalid\W{1,3}signature\W{1,3}in\W{1,3}(?:redacted_)?thinking\b"
    r"|bound to a different conversation"
    r"|(?:corrupted|invalid) thought[_ ]signature"
    r"|thought[_ ]signature is not valid",
    re.IGNORECASE,
)
_WITHHELD = LossWarning(
    "refused_state_dropped",
    "messages",
    "the provider refused the reasoning of earlier turns, which it had issued: it is not sent",
)
_STATE_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning"})
_STATE_FIELDS = ("thoughtSignature", "thought_signature", "reasoning_details")


def withhold_state(
    error: ProviderError, request: Request, home: Issuer
) -> tuple[Request, LossWarning] | None:
    """Return a request without the state that ``home`` issued and now refuses, and the loss.

    The result is ``None`` if the error is about something else, or if there is no such state. The
    change applies to this request only: the provider accepts the state of other conversations.
    """
    reason = f"{error.provider_code} {error.provider_message}"
    if error.status not in (400, 422) or not _REFUSED.search(reason):
        return None
    messages = [_without_state(each, home) for each in request.messages]
    fields = request.native.get(home.wire, {})
    native = {
        name: _without_records(value) if isinstance(value, list) and name != "tools" else value
        for name, value in fields.items()
    }
    changed = replace(
        request,
        messages=[each for each in messages if each.content],
        native={**request.native, home.wire: native} if fields else request.native,
    )
    return None if changed == request else (changed, _WITHHELD)


# Errors by which a provider refuses calls whose reasoning did not come back. Anthropic, also on
# Bedrock and Vertex: anomalyco/opencode#3077, RooCodeInc/Roo-Code#11238. OpenAI:
# 0xPlaygrounds/rig#751. Gemini: chatboxai/chatbox#3308, nanbingxyz/5ire#405. Moonshot:
# MoonshotAI/kimi-agent-sdk#169, mastra-ai/mastra#12592; DeepSeek's text is similar. All seen on
# 2026-11-19.
_LOST = re.compile(
    r"must start with a thinking block"
    r"|without its required .{0,3}reasoning.{0,3} item"
    r"|missing a .{0,3}thought_signature"
    r"|reasoning_content.{0,60}(?:must be passed back|is missing)",
    re.IGNORECASE | re.DOTALL,
)


def refuses_lost_state(error: ProviderError) -> bool:
    """Return whether a provider refuses calls because their reasoning did not come back."""
    return error.status in (400, 422) and bool(_LOST.search(error.provider_message or ""))


def _without_state(message: Message, home: Issuer) -> Message:
    """Return a message without the reasoning and the signatures that ``home`` issued."""
    if type(message) is not Assistant:
        return message
    blocks = [_strip(block, home) for block in message.content]
    return replace(message, content=[block for block in blocks if block is not None])


def _strip(block: AssistantBlock, home: Issuer) -> AssistantBlock | None:
    state = block.continuity
    if state is None:
        return None if isinstance(block, RedactedThinking) else block
    if not is_welcome(state, home):
        return block
    if isinstance(block, Thinking | RedactedThinking):
        return None
    if isinstance(block, Opaque):
        return None if _is_packed(block.data) else block
    return block if state.signature is None else replace(block, continuity=None)


def _is_packed(data: Any) -> bool:
    """Return whether a block or an item is a compaction that only its issuer can read."""
    return (
        isinstance(data, dict) and data.get("type") == "compaction" and "encrypted_content" in data
    )


def _without_records(records: Sequence[Any]) -> list[Any]:
    """Return records of a wire without state: messages, items, or the blocks of a message."""
    kept = []
    for record in records:
        if not isinstance(record, dict):
            kept.append(record)
            continue
        is_state = record.get("type") in _STATE_TYPES or record.get("thought") is True
        if is_state or "reasoningContent" in record or _is_packed(record):
            continue
        made = {name: value for name, value in record.items() if name not in _STATE_FIELDS}
        for name in ("content", "parts"):
            if isinstance(made.get(name), list) and made[name]:
                made[name] = _without_records(made[name])
                if not made[name]:
                    break
        else:
            kept.append(made)
    return kept
