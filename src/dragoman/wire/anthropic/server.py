"""The Messages wire, server side: read requests, write replies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ... import events as ev
from ... import messages as m
from ...errors import ProviderError
from ..headers import KEY, PROGRAM, HeaderRule
from ..json import entries_of
from ..listing import ListedModel
from ..losses import merge
from ..media import describe_medium
from ..request import list_other_forms
from ..request_schema import (
    COMMON,
    COUNT,
    FREE,
    MESSAGES,
    TEXT,
    TEXT_OR_PARTS,
    RequestSchema,
    body_with_model,
)
from ..rules import FieldTable
from ..seal import hide, own_fields, seal, seal_call, seal_text, sign_thought, write_opaque
from ..server import (
    Asked,
    BodyEncoder,
    ReplyEncoder,
    ServerCodec,
    encode_json,
    named_frame,
    state_of,
)
from ..server_errors import code_of, mask_addresses, message_on, status_of, terms_of
from . import betas
from .finish import FINISH
from .reply import USAGE
from .request import SERVER_TOOLS
from .server_errors import TERMS
from .server_request import TABLE, read_request

# --- writing replies for clients ---------------------------------------------------------------


# Anthropic's server sends a ping after the start of every stream.
_PING = named_frame({"type": "ping"})
# Clients require these counts, so unknown ones are sent as null.
_COUNTS: dict[str, Any] = dict.fromkeys(
    ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
)


# types of blocks that are known only at the end of a stream
_WHOLE = (m.Opaque, m.Audio, m.Image)


class _Encoder(ReplyEncoder):
    wire = "anthropic"
    finish = FINISH

    def finish_word(self, complete: ev.MessageComplete) -> str:
        word = super().finish_word(complete)
        is_sequence = word == "end_turn" and complete.stop_sequence is not None
        return "stop_sequence" if is_sequence else word


class StreamEncoder(_Encoder):
    """Encode a reply as the events of the Messages wire."""

    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__(asked, created)
        self._index = -1
        self._block = -1  # the content_block_index of the open block
        self._has_input = False  # whether the input of the open call has begun
        self._is_open = False
        self._kind = ""  # the type of the open block
        self._state: m.Continuity | None = None  # the opaque state of the open block

    def begin(self, event: ev.MessageStart) -> bytes:
        return (
            named_frame({"type": "message_start", "message": _write_message(event, self.model)})
            + _PING
        )

    def text(self, event: ev.TextDelta) -> bytes:
        opening = b""
        if event.content_block_index != self._block:
            if not event.text:
                return self._carry(seal_text(event.continuity, "anthropic", alone=True))
            opening = self._open(event.content_block_index, {"type": "text", "text": ""})
            self.frame_text(self._delta({"type": "text_delta", "text": "\0"}))
        self._state = event.continuity or self._state
        return opening + self.write_text(event) if event.text else opening

    def call_start(self, event: ev.ToolUseStart) -> bytes:
        self._has_input = False
        carried = self._carry(seal_call(event.tool_use_id, event.continuity, "anthropic"))
        own = own_fields(event.continuity, "anthropic")
        call = {"id": event.tool_use_id, "name": event.tool_name, "input": {}, **own}
        return carried + self._open(event.content_block_index, {"type": "tool_use", **call})

    def call_input(self, event: ev.ToolUseInputDelta) -> bytes:
        # Anthropic's SDK for Python parses the input after each fragment, and raises an error if
        # there is only white space (anthropic 2.7.0, 2026-11-19).
        if not self._has_input and not event.partial_json.strip():
            return b""
        self._has_input = True
        return self._delta({"type": "input_json_delta", "partial_json": event.partial_json})

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        # Blocks without deltas are known only at the end of the message.
        written = self._close()
        for block in complete.final_content:
            if isinstance(block, _WHOLE):
                written += self._whole(_write_block(block))
        for late in self.late_states(complete):
            written += self._carry(_seal_part(late))
        ending = self._ending(complete, self.finish_word(complete))
        return written + ending + named_frame({"type": "message_stop"})

    def write_error(self, error: ProviderError) -> bytes:
        written = named_frame(_error_record(error))
        if self.complete is None or self.complete.usage == ev.Usage():
            return written
        return self._ending(self.complete, None) + written

    def _ending(self, complete: ev.MessageComplete, reason: str | None) -> bytes:
        own = _write_own(complete, reason)
        usage = own.pop("usage", {})
        begun = {} if self.start is None else _starting_fields(self.start)
        fields = _find_changed(own, begun)
        delta = {name: fields.pop(name) for name in _DELTA_FIELDS if name in fields}
        delta |= {"stop_reason": reason, "stop_sequence": complete.stop_sequence}
        changed = _find_changed(usage, begun.get("usage", {}))
        counts = merge(changed, _COUNTS | USAGE.write(complete.usage))
        return named_frame({**fields, "type": "message_delta", "delta": delta, "usage": counts})

    def call_end(self, event: ev.ToolUseEnd) -> bytes:
        call = self.calls[-1]
        if event.problem in ("interrupted", "cancelled") or (call.is_blank and not call.is_object):
            # A truncated call, or a malformed one without input, gets no stop event, which would
            # make it look complete.
            self._is_open = False
        # A complete call sends an input, so that it differs from a call that was cut off.
        is_bare = call.is_object and call.is_blank
        empty = {"type": "input_json_delta", "partial_json": "{}"}
        return (self._delta(empty) if is_bare else b"") + self._close()

    def thinking(self, event: ev.ThinkingDelta) -> bytes:
        if event.redacted is not None:
            data = hide(event.redacted, event.continuity, "anthropic")
            return self._whole({"type": "redacted_thinking", "data": data})
        written = b""
        if event.content_block_index != self._block:
            written = self._open(event.content_block_index, _EMPTY_THOUGHT)
        self._state = state_of(event) or self._state
        if event.text:
            written += self._delta({"type": "thinking_delta", "thinking": event.text})
        return written

    def _carry(self, token: str | None) -> bytes:
        """Write a block that carries the sealed state of a text or a call."""
        return b"" if token is None else self._whole(_write_carrier(token))

    def _whole(self, record: dict[str, Any]) -> bytes:
        """Write a block without deltas."""
        return self._open(-1, record) + self._close()

    def _open(self, block: int, record: dict[str, Any]) -> bytes:
        closing = self._close()
        self.text_block = -1
        self._kind = record["type"]
        self._index += 1
        self._block = block
        self._is_open = True
        return closing + named_frame(
            {"type": "content_block_start", "index": self._index, "content_block": record}
        )

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_frame({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        state, self._state = self._state, None
        stop = named_frame({"type": "content_block_stop", "index": self._index})
        if self._kind == "thinking":
            signature = _sign(self.read_thought(self._block), state)
            if not signature:
                return stop
            return self._delta({"type": "signature_delta", "signature": signature}) + stop
        if state is None:
            return stop
        cited = own_fields(state, "anthropic").get("citations", ())
        deltas = [self._delta({"type": "citations_delta", "citation": each}) for each in cited]
        carried = self._carry(seal_text(state, "anthropic", alone=False))
        return b"".join(deltas) + stop + carried


class _BodyEncoder(_Encoder, BodyEncoder):
    def hides_call(self, complete: ev.MessageComplete) -> bool:
        # A call that the token limit truncated is sent with ``{}``, and clients recognise it by
        # the stop reason.
        blocks = complete.final_content
        return self.has_unreadable_call(
            blocks[:-1] if complete.finish_reason == "length" else blocks
        )

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        assert self.start is not None
        blocks = complete.final_content
        reason = self.finish_word(complete)
        own = _write_own(complete, reason)
        body = {
            **own,
            **_write_message(self.start, self.model),
            "content": _write_blocks(blocks),
            "stop_reason": reason,
            "stop_sequence": complete.stop_sequence,
            "usage": merge(own.get("usage", {}), _COUNTS | USAGE.write(complete.usage)),
        }
        return encode_json(body)


def _write_message(start: ev.MessageStart, model: str) -> dict[str, Any]:
    """Return the message object that begins a reply, without content.

    The token counts are not known yet, but clients require integers, so zeros are sent.
    """
    own = _starting_fields(start)
    return {
        **own,
        "id": start.message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**own.get("usage", {}), **dict.fromkeys(_COUNTS, 0)},
    }


# The fields of a message that a stream sends at its end: those in the delta of message_delta, and
# those next to it (anthropic-sdk-python, RawMessageDeltaEvent and BetaRawMessageDeltaEvent; seen
# 2026-11-18).
_DELTA_FIELDS = ("stop_details", "container")
_END_FIELDS = frozenset({*_DELTA_FIELDS, "context_management"})


def _starting_fields(start: ev.MessageStart) -> dict[str, Any]:
    """Return the fields that only this wire has and that the start of a stream has.

    The details of the output tokens are not known at the start.
    """
    native = start.native.get("anthropic", {})
    own = {name: value for name, value in native.items() if name not in _END_FIELDS}
    if "usage" in own:
        own["usage"] = {
            name: value for name, value in own["usage"].items() if name != "output_tokens_details"
        }
    return own


def _find_changed(fields: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return the fields to send at the end of a stream: those that its start did not have."""
    return {name: value for name, value in fields.items() if before.get(name) != value}


def _write_own(complete: ev.MessageComplete, reason: str | None) -> dict[str, Any]:
    """Return the fields that only this wire has; the details of a stop come from any wire."""
    own = dict(complete.native.get("anthropic", {}))
    details = complete.stop_details
    if complete.finish_raw is None:  # the gateway ended the reply, at a stop sequence
        own.pop("stop_details", None)
    if reason == "refusal" and details is not None and "stop_details" not in own:
        # SDKs accept only Anthropic's categories, and null for others (anthropic-sdk-python,
        # RefusalStopDetails; seen 2026-11-18).
        own["stop_details"] = {
            "type": "refusal",
            "category": None,
            "explanation": details.explanation or details.category,
        }
    return own


_EMPTY_THOUGHT = {"type": "thinking", "thinking": "", "signature": ""}


def _write_carrier(token: str) -> dict[str, Any]:
    """Return a block that carries only opaque state.

    Clients such as pi leave out thoughts without text, and keep redacted ones (pi-ai 0.73.1,
    providers/anthropic.js; 2026-11-19).
    """
    return {"type": "redacted_thinking", "data": token}


def _write_blocks(blocks: Sequence[m.AssistantBlock]) -> list[dict[str, Any]]:
    """Return the content of a body. A call follows the state that it carries, a text leads it."""
    written: list[dict[str, Any]] = []
    for block in blocks:
        token = _seal_part(block)
        carrier = [] if token is None else [_write_carrier(token)]
        if isinstance(block, m.ToolCall):
            written += [*carrier, _write_block(block)]
        elif isinstance(block, m.Text | m.Thinking) and not block.text and not _is_signed(block):
            written += carrier
        else:
            written += [_write_block(block), *carrier]
    return written


def _is_signed(block: m.Text | m.Thinking) -> bool:
    """Return whether a block without text is sent for its signature."""
    return isinstance(block, m.Thinking) and bool(_signature_of(block))


def _signature_of(block: m.Thinking) -> str:
    return _sign(block.text, block.continuity)


def _sign(text: str, state: m.Continuity | None) -> str:
    """Return the signature of a thought, which all thoughts with text have on this wire.

    Clients such as pi send a thought without a signature back as a text (pi-ai 0.73.1,
    providers/anthropic.js; 2026-11-19), so that of a model without signatures is sealed.
    """
    own = sign_thought(text, state, "anthropic")
    return own or (seal("thinking", m.Continuity()) if text else "")


def _seal_part(block: m.AssistantBlock) -> str | None:
    if isinstance(block, m.ToolCall):
        return seal_call(block.id, block.continuity, "anthropic")
    if isinstance(block, m.Text):
        return seal_text(block.continuity, "anthropic", alone=not block.text)
    return None


def _write_block(block: m.AssistantBlock) -> dict[str, Any]:
    extras = own_fields(block.continuity, "anthropic")
    if isinstance(block, m.Text):
        return {"type": "text", "text": block.text, **extras}
    if isinstance(block, m.Thinking):
        signature = _signature_of(block)
        return {"type": "thinking", "thinking": block.text, "signature": signature, **extras}
    if isinstance(block, m.RedactedThinking):
        data = hide(block.data, block.continuity, "anthropic")
        return {"type": "redacted_thinking", "data": data}
    if isinstance(block, m.ToolCall):
        call = {"id": block.id, "name": block.name, "input": block.arguments or {}}
        return {"type": "tool_use", **call, **extras}
    if isinstance(block, m.Audio):
        return {"type": "text", "text": describe_medium(block)}
    return write_opaque(block, "anthropic")


# --- writing errors for clients ----------------------------------------------------------------


_LEVELS = ("low", "medium", "high", "xhigh", "max")

# For these HTTP statuses, the kind does not depend on the error class.
_KINDS = {403: "permission_error", 404: "not_found_error", 413: "request_too_large"}


def _error_record(error: ProviderError) -> dict[str, Any]:
    kind = terms_of(error, TERMS).kind
    kind = _KINDS.get(status_of(error), kind)
    inner: dict[str, Any] = {"type": kind, "message": message_on(error, TERMS)}
    # Anthropic's SDK raises an error of its own class for some codes. For example, it can keep a
    # conversation on the server (a thread); thread_unsupported_request shows that the server has
    # no threads, so that it can send all messages with each request instead.
    # Models of this wire send further details with the code.
    sent = error.inner_error
    details = mask_addresses(sent) if isinstance(sent, dict) and "error_code" in sent else {}
    if (code := code_of(error)) is not None:
        details["error_code"] = code
    if details:
        inner["details"] = details
    return {"type": "error", "error": inner, "request_id": error.request_id}


def _write_capabilities(model: ListedModel) -> dict[str, Any]:
    abilities = {
        "image_input": "images",
        "pdf_input": "documents",
        "structured_outputs": "structured_output",
        "thinking": "thinking",
    }
    written: dict[str, Any] = {}
    for name, ability in abilities.items():
        known = model.is_known_to(ability)
        if known is not None:
            written[name] = {"supported": known}
    if model.efforts is not None:
        levels = {level: {"supported": level in model.efforts} for level in _LEVELS}
        written["effort"] = {"supported": bool(model.efforts), **levels}
    return written


# The headers that only clients of this wire send.
HEADERS: Mapping[str, HeaderRule] = {
    "x-api-key": KEY,
    "anthropic-beta": HeaderRule("sent", "as far as --beta allows"),
    # The newer version 2026-10-21 only refuses more, such as sampling settings at their defaults
    # (docs: API versions; SDK 2.10). Gateways shall send the client's version on
    # (code.claude.com/docs/en/llm-gateway-protocol, vllm-project/agentic-api#114; 2026-11-18).
    "anthropic-version": HeaderRule("sent", "unchanged; other wires have no version"),
    "anthropic-dangerous-direct-browser-access": PROGRAM,
    "x-app": PROGRAM,
    "x-claude-code-session-id": PROGRAM,
}


_FIELDS = {
    **COMMON,
    "messages": MESSAGES,
    "max_tokens": COUNT,
    "system": TEXT_OR_PARTS,
    "stop_sequences": {"type": "array", "items": TEXT},
    "tool_choice": FREE,
}


class AnthropicServer(ServerCodec):
    """The server side of the Messages wire."""

    wire: ClassVar[str] = "anthropic"
    terms = TERMS
    headers = HEADERS
    state_place = "signature"
    table: ClassVar[FieldTable] = TABLE
    schema = RequestSchema(
        body_with_model("messages", "max_tokens", **_FIELDS),
        others={"/v1/messages/count_tokens": body_with_model("messages", **_FIELDS)},
    )
    paths: ClassVar[tuple[str, ...]] = ("/v1/messages",)
    other_paths: ClassVar[tuple[str, ...]] = ("/v1/messages/count_tokens",)
    path_marks: ClassVar[tuple[str, ...]] = ("/messages",)
    header_marks: ClassVar[tuple[str, ...]] = ("anthropic-version", "x-api-key")
    read_request = staticmethod(read_request)
    stream_type = StreamEncoder
    body_type = _BodyEncoder
    request_id_header: ClassVar[str | None] = "request-id"
    key_header: ClassVar[str] = "x-api-key"
    beta_header: ClassVar[str] = betas.HEADER
    safe_betas: ClassVar[tuple[str, ...]] = betas.SAFE
    version_header: ClassVar[tuple[str, str]] = betas.VERSION

    def show_dropped(self, body: Mapping[str, Any], dropped: Collection[int]) -> dict[str, Any]:
        """Return ``input_transformations``, as the server of preserved thinking writes it."""
        if not dropped:
            return {}
        paths = [
            f"messages.{at}.content.{place}"
            for at, message in enumerate(body["messages"])
            for place, block in enumerate(entries_of(message["content"]))
            if block.get("type") == "thinking"
        ]
        reason = {"type": "thinking_dropped", "reason": "prefix_binding_mismatch"}
        return {"input_transformations": [{**reason, "path": paths[at]} for at in dropped]}

    def list_problems(
        self, body: Mapping[str, Any], quirks: Any, *, reasons: bool, known: Collection[str]
    ) -> Iterator[str]:
        """Yield what the server rejects: misplaced system messages, blank texts, some tools.

        The words are those of BerriAI/litellm#33807 and anthropics/claude-code#73821; that a
        system message follows the user is in the vendor's page (maximhq/bifrost#3945; seen
        2026-11-19).
        """
        for kind in list_other_forms(body, SERVER_TOOLS, quirks):
            # anthropics/anthropic-sdk-typescript#914, trycua/cua#1090
            yield f"this model does not support tool types: {kind}"
        yield from list_blank_texts(body)
        roles = [turn.get("role") for turn in body["messages"]]
        for at, role in enumerate(roles):
            if role != "system":
                continue
            if at == 0:
                yield "messages.0: use the top-level 'system' parameter for the system prompt"
            elif roles[at - 1] != "user":
                yield f"messages.{at}: role 'system' must follow a 'user' message"
            elif roles[at + 1 : at + 2] not in ([], ["assistant"]):
                yield (
                    f"messages.{at}: role 'system' must precede an 'assistant' message or end the"
                    " array"
                )

    def show_model(self, model: ListedModel) -> dict[str, Any]:
        """Return a model with its capabilities, of which only the known ones are listed."""
        # ``deprecated`` is Anthropic's word for a model whose end is announced; ``retired`` ones
        # no longer answer, which only the vendor's server knows.
        ending = {"lifecycle": "active"}
        if model.end is not None:
            ending = {"lifecycle": "deprecated", "retires_at": f"{model.end}T00:00:00Z"}
        shown = {**super().show_model(model), **ending}
        capabilities = _write_capabilities(model)
        return {**shown, "capabilities": capabilities} if capabilities else shown

    def is_count(self, path: str) -> bool:
        return path.endswith("/count_tokens")

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        return _error_record(error)


def list_blank_texts(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each message with a blank text, which Claude rejects on each host.

    See anthropics/claude-code#23440, and NousResearch/hermes-agent#41985 for Bedrock.
    """
    for at, message in enumerate(entries_of(body.get("messages"))):
        texts = [block.get("text") for block in entries_of(message.get("content"))]
        if any(isinstance(text, str) and not text.strip() for text in texts):
            yield f"messages.{at}: text content blocks must contain non-whitespace text"
