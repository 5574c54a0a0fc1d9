"""Connect the client side and the server side of a wire in memory, and list what each wire
loses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from dragoman.capabilities import Capabilities
from dragoman.errors import (
    BillingError,
    CallCancelledError,
    InvalidRequestError,
    InvalidResponseError,
    MalformedToolCallError,
    ModelNotLoadedError,
    NetworkError,
    ProviderError,
    QuotaExceededError,
    StreamInterruptedError,
    StructuredOutputError,
    TimedOutError,
    UnavailableError,
    UnsupportedFeatureError,
)
from dragoman.events import (
    Event,
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    Usage,
)
from dragoman.messages import (
    Assistant,
    Continuity,
    Document,
    Image,
    Inline,
    Message,
    Opaque,
    RedactedThinking,
    Request,
    System,
    Text,
    ToolCall,
    ToolResult,
    Url,
    User,
    join_system,
)
from dragoman.wire import CODECS, SERVER_CODECS, Asked, Codec
from dragoman.wire.gemini.names import to_camel

from .cases import BASE_URL, DecodedReply, decode

# --- requests: differences that are lost in the encoded bytes -----------------------------------

Rule = Callable[[Request], Request]


def each_message(change: Callable[[Message], Message]) -> Rule:
    return lambda request: replace(
        request, messages=[change(message) for message in request.messages]
    )


def join_systems(request: Request) -> Request:
    system, rest = join_system(request.messages)
    return request if system is None else replace(request, messages=[System(system), *rest])


def use_camel_case(request: Request) -> Request:
    return replace(request, config=replace(request.config, extras=to_camel(request.config.extras)))


def plain_texts(message: Message) -> Message:
    if (
        isinstance(message, User | ToolResult)
        and not isinstance(message.content, str)
        and len(message.content) == 1
    ):
        return (
            replace(message, content=message.text)
            if isinstance(message.content[0], Text)
            else message
        )
    return message


def inline_data_urls(message: Message) -> Message:
    if not isinstance(message, User | ToolResult) or isinstance(message.content, str):
        return message
    return replace(message, content=tuple([_inline(block) for block in message.content]))


def _inline(block: Any) -> Any:
    if (
        isinstance(block, Image | Document)
        and isinstance(block.source, Url)
        and block.source.url.startswith("data:")
    ):
        media_type, _, data = block.source.url.removeprefix("data:").partition(";base64,")
        return replace(block, source=Inline(data), media_type=media_type)
    return block


def join_assistant_texts(message: Message) -> Message:
    if not isinstance(message, Assistant):
        return message
    texts = "".join([block.text for block in message.content if isinstance(block, Text)])
    rest = [block for block in message.content if not isinstance(block, Text)]
    return Assistant([*([Text(texts)] if texts else []), *rest])


def name_documents(message: Message) -> Message:
    if not isinstance(message, User) or isinstance(message.content, str):
        return message
    named = [
        replace(block, name="document")
        if isinstance(block, Document) and block.name is None
        else block
        for block in message.content
    ]
    return User(named)


def join_results(message: Message) -> Message:
    return replace(message, content=message.text) if isinstance(message, ToolResult) else message


def forget_issuers(message: Message) -> Message:
    if not isinstance(message, Assistant):
        return message
    return Assistant([_forget(block) for block in message.content])


def _forget(block: Any) -> Any:
    state = block.continuity
    if state is None:
        return (
            replace(block, continuity=Continuity())
            if isinstance(block, RedactedThinking | Opaque)
            else block
        )
    kept = {"thinking", "text", "type", "signature", "id", "name", "input"}
    opaque = {name: value for name, value in (state.opaque or {}).items() if name not in kept}
    return replace(block, continuity=replace(state, issuer=None, opaque=opaque or None))


def merge_turns(request: Request) -> Request:
    """Return the request with consecutive messages of one role merged, except for tool results."""
    merged: list[Message] = []
    for message in request.messages:
        last = merged[-1] if merged else None
        if isinstance(message, User) and isinstance(last, User):
            merged[-1] = User([*_blocks(last), *_blocks(message)])
        elif isinstance(message, Assistant) and isinstance(last, Assistant):
            merged[-1] = Assistant([*last.content, *message.content])
        else:
            merged.append(message)
    return replace(request, messages=merged)


def merge_assistants(request: Request) -> Request:
    merged: list[Message] = []
    for message in request.messages:
        last = merged[-1] if merged else None
        if isinstance(message, Assistant) and isinstance(last, Assistant):
            merged[-1] = Assistant([*last.content, *message.content])
        else:
            merged.append(message)
    return replace(request, messages=merged)


def _blocks(message: User) -> Sequence[Any]:
    return [Text(message.content)] if isinstance(message.content, str) else message.content


def name_files(message: Message) -> Message:
    if not isinstance(message, User) or isinstance(message.content, str):
        return message
    named = [
        replace(block, name="document.pdf")
        if isinstance(block, Document) and isinstance(block.source, Inline) and block.name is None
        else block
        for block in message.content
    ]
    return User(named)


def join_text_results(message: Message) -> Message:
    if not isinstance(message, ToolResult) or isinstance(message.content, str):
        return message
    plain = all(isinstance(block, Text) for block in message.content)
    return replace(message, content=message.text) if plain else message


def stateless_settings(request: Request) -> Request:
    """Drop extra fields that request the default behaviour; they can be ignored without loss."""
    config, extras = request.config, dict(request.config.extras)
    for name in ("store", "stream", "background", "temperature"):
        extras.pop(name, None)
    include = extras.pop("include", [])
    left = (
        [word for word in include if word != "reasoning.encrypted_content"]
        if isinstance(include, list)
        else []
    )
    extras |= {"include": left} if left else {}
    return replace(
        request,
        config=replace(config, stop_sequences=config.stop_sequences or None, extras=extras),
    )


def mark_no_strict(request: Request) -> Request:
    return replace(request, tools=[replace(tool, strict=None) for tool in request.tools])


_MINTED = re.compile(r"call_[0-9A-HJKMNP-TV-Z]{26}")


def number_minted_ids(request: Request) -> Request:
    """Replace generated ids by numbers in the order in which they occur."""
    names: dict[str, str] = {}

    def name(call_id: str) -> str:
        return (
            names.setdefault(call_id, f"minted{len(names)}")
            if _MINTED.fullmatch(call_id)
            else call_id
        )

    def rename(message: Message) -> Message:
        if isinstance(message, ToolResult):
            return replace(message, tool_call_id=name(message.tool_call_id))
        if isinstance(message, Assistant):
            blocks = [
                replace(each, id=name(each.id)) if isinstance(each, ToolCall) else each
                for each in message.content
            ]
            return Assistant(blocks)
        return message

    return replace(request, messages=[rename(message) for message in request.messages])


def forget_url_types(message: Message) -> Message:
    if not isinstance(message, User) or isinstance(message.content, str):
        return message
    blocks = [
        replace(block, media_type=None)
        if isinstance(block, Image) and isinstance(block.source, Url)
        else block
        for block in message.content
    ]
    return User(blocks)


def texts_before_media(message: Message) -> Message:
    if not isinstance(message, ToolResult) or isinstance(message.content, str):
        return message
    media = [block for block in message.content if not isinstance(block, Text)]
    return replace(
        message,
        content=[*([Text(message.text)] if message.text else []), *media]
        if media
        else message.text,
    )


def stop_extras(request: Request) -> Request:
    config, extras = request.config, dict(request.config.extras)
    stops = [*(config.stop_sequences or ()), *extras.pop("stopSequences", ())]
    changed = replace(config, stop_sequences=tuple(dict.fromkeys(stops)) or None, extras=extras)
    return replace(request, config=changed)


def known_settings(request: Request) -> Request:
    """Return the request after moving settings from its extra fields to their own fields."""
    config, extras = request.config, dict(request.config.extras)
    limit = extras.pop("max_tokens", config.max_tokens)
    stops = [*(config.stop_sequences or ()), *extras.pop("stop_sequences", ())]
    extras.pop("stream", None)
    changed = replace(
        config, max_tokens=limit, stop_sequences=tuple(dict.fromkeys(stops)) or None, extras=extras
    )
    return replace(request, config=changed)


# --- events: differences between wires that do not matter ---------------------------------------


@dataclass(frozen=True)
class Wire:
    """Describe what a wire cannot represent, and what the client receives instead. Comments in
    this file explain each kind of loss where the code checks for it.
    """

    requests: dict[str, Rule]
    reply_losses: frozenset[str] = frozenset()
    stream_losses: frozenset[str] = frozenset()
    body_losses: frozenset[str] = frozenset()
    errors: dict[type[ProviderError], type[ProviderError]] = field(default_factory=dict)
    usage: Callable[[Usage], Usage] = lambda usage: replace(usage, estimated=False)


# Error classes that a wire cannot represent, and the class that the client gets instead.
ERRORS: dict[type[ProviderError], type[ProviderError]] = {
    NetworkError: UnavailableError,
    StreamInterruptedError: UnavailableError,
    TimedOutError: UnavailableError,
    InvalidResponseError: UnavailableError,
    MalformedToolCallError: UnavailableError,
    StructuredOutputError: UnavailableError,
    CallCancelledError: UnavailableError,
    ProviderError: UnavailableError,
}


def _openai_usage(usage: Usage) -> Usage:
    total = usage.total_tokens
    if total is None and usage.input_tokens is not None and usage.output_tokens is not None:
        total = usage.input_tokens + usage.output_tokens
    output = usage.output_tokens
    counts = (usage.input_tokens, output, usage.reasoning_tokens)
    if (
        all(count is not None for count in counts)
        and counts[2]
        and total == sum(count or 0 for count in counts)
    ):
        # If the total is the sum of input, output and reasoning tokens, the client codec concludes
        # that the output does not include the reasoning tokens.
        output = (output or 0) + counts[2]
    return replace(usage, total_tokens=total, output_tokens=output, estimated=False)


def _anthropic_usage(usage: Usage) -> Usage:
    """Return the token usage that the client decodes: the input includes cached tokens, and the
    total, which the wire omits, is computed.
    """
    subsets = (usage.cached_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    asked = None if usage.input_tokens is None else max(usage.input_tokens, subsets)
    total = None if asked is None or usage.output_tokens is None else asked + usage.output_tokens
    return replace(usage, input_tokens=asked, total_tokens=total, estimated=False)


def _responses_usage(usage: Usage) -> Usage:
    total = usage.total_tokens
    if total is None and usage.input_tokens is not None and usage.output_tokens is not None:
        total = usage.input_tokens + usage.output_tokens
    usage = replace(usage, total_tokens=total, estimated=False)
    if usage == Usage():
        return usage
    # The vendor's specification requires these counts, so an unknown count is sent as zero.
    names = ("cached_input_tokens", "cache_creation_input_tokens", "reasoning_tokens")
    return replace(usage, **{name: getattr(usage, name) or 0 for name in names})


WIRES: dict[str, Wire] = {
    "openai": Wire(
        requests={
            "system messages are joined": join_systems,
            "one text is plain text": each_message(plain_texts),
            "a data URL is inline": each_message(inline_data_urls),
            "texts of a turn are joined and come first": each_message(join_assistant_texts),
            "a document has a name": each_message(name_documents),
            "a result is plain text": each_message(join_results),
        },
        reply_losses=frozenset(
            {"blocks", "signature", "whole", "stop_sequence", "finish_raw", "empty_input"}
        ),
        stream_losses=frozenset({"open_calls"}),
        body_losses=frozenset({"order", "deltas"}),
        errors=ERRORS,
        usage=_openai_usage,
    ),
    "anthropic": Wire(
        requests={
            "system messages are joined": join_systems,
            "one text is plain text": each_message(plain_texts),
            "a data URL is inline": each_message(inline_data_urls),
            "turns of one side are merged": merge_turns,
            "an issuer is its wire alone": each_message(forget_issuers),
            "an extra that is a setting is one": known_settings,
        },
        reply_losses=frozenset({"finish_raw"}),
        stream_losses=frozenset({"whole_order"}),
        body_losses=frozenset({"deltas", "raw_input", "may_be_cut"}),
        errors={
            **ERRORS,
            ModelNotLoadedError: UnavailableError,
            UnsupportedFeatureError: InvalidRequestError,
            QuotaExceededError: BillingError,  # the wire has only one error type for these classes
        },
        usage=_anthropic_usage,
    ),
}


def _gemini_usage(usage: Usage) -> Usage:
    """Return the token usage that the client decodes: the output includes thoughts, and the cache
    writes, which the wire omits, are unknown.
    """
    output, thoughts = usage.output_tokens, usage.reasoning_tokens
    if thoughts is not None:
        output = max(output or 0, thoughts)
    return replace(usage, output_tokens=output, cache_creation_input_tokens=None, estimated=False)


WIRES["gemini"] = Wire(
    requests={
        "field names are camel case": use_camel_case,
        "system messages are joined": join_systems,
        "one text is plain text": each_message(plain_texts),
        "a data URL is inline": each_message(inline_data_urls),
        "a picture's type is seen in its URL": each_message(forget_url_types),
        "a result is one text and then media": each_message(texts_before_media),
        "an id may be left out": number_minted_ids,
        "an issuer is its wire alone": each_message(forget_issuers),
        "an extra that is a setting is one": stop_extras,
    },
    reply_losses=frozenset(
        {
            "finish_raw",
            "stop_sequence",
            "redacted",
            "blocks",
            "raw_input",
            "call_reason",
            "whole_order",
            "cut_input",
        }
    ),
    body_losses=frozenset({"deltas"}),
    errors={**ERRORS, UnsupportedFeatureError: InvalidRequestError},
    usage=_gemini_usage,
)
WIRES["responses"] = Wire(
    requests={
        "system messages are joined": join_systems,
        "one text is plain text": each_message(plain_texts),
        "texts of a result are joined": each_message(join_text_results),
        "a data URL is inline": each_message(inline_data_urls),
        "a document has a name": each_message(name_files),
        "items of one turn are one message": merge_assistants,
        "an issuer is its wire alone": each_message(forget_issuers),
        "an extra that asks for what is done is none": stateless_settings,
        "a tool is marked as strict or not": mark_no_strict,
    },
    reply_losses=frozenset(
        {"finish_raw", "stop_sequence", "signature", "redacted", "empty_input"}
    ),
    stream_losses=frozenset({"whole_order"}),
    body_losses=frozenset({"deltas"}),
    errors=ERRORS,
    usage=_responses_usage,
)
WIRES["ollama"] = Wire(
    requests={},
    reply_losses=frozenset({"raw_input"}),
    body_losses=frozenset({"order", "whole_order"}),
    errors=ERRORS,
)
WIRES["bedrock"] = Wire(
    requests={
        "an issuer is its wire alone": each_message(forget_issuers),
        "one text is plain text": each_message(plain_texts),
    },
    reply_losses=frozenset({"stop_sequence", "whole"}),
    stream_losses=frozenset({"whole_order"}),
    body_losses=frozenset({"deltas", "raw_input"}),
    errors=ERRORS,
)
WIRES["cohere"] = Wire(
    requests={
        "an issuer is its wire alone": each_message(forget_issuers),
        "an extra that is a setting is one": known_settings,
    },
    stream_losses=frozenset({"whole_order"}),
    body_losses=frozenset({"deltas", "raw_input"}),
    errors={**ERRORS, ModelNotLoadedError: UnavailableError},
)


def canonical(request: Request, wire: Wire) -> Request:
    """Return the request after normalising everything that the wire cannot distinguish."""
    request = replace(request, request_id="R", session_id=None, metadata={})
    for rule in wire.requests.values():
        request = rule(request)
    return request


def client(wire: str, model: str = "test-model") -> Codec:
    return CODECS[wire].connect(model, BASE_URL, None, Capabilities())


def serve(
    wire: str, request: Request, events: Sequence[Event], error: ProviderError | None
) -> list[bytes]:
    """Return the bytes of a reply as the server side writes them."""
    encoder = SERVER_CODECS[wire].encoder(Asked(request), created=1)
    pieces = [encoder.feed(event) for event in events]
    pieces.append(encoder.end() if error is None else encoder.fail(error))
    return [piece for piece in pieces if piece]


def hear(
    wire: str, request: Request, pieces: Sequence[bytes], *, judged: bool = True
) -> DecodedReply:
    """Decode the pieces of a reply with the client side of a wire."""
    return decode(client(wire, request.model), request, pieces, judged=judged)


def said(heard: DecodedReply, wire: Wire, losses: frozenset[str], *, hidden: bool) -> list[Any]:
    """Return the content of a decoded reply as a list of lines, without the parts that ``losses``
    names.

    If ``hidden``, the outcome of every tool call is also omitted.
    """
    # Some wires send blocks without deltas only at the end of a reply, so a failed reply does not
    # contain them.
    if "whole_order" in losses and heard.error is not None:
        losses |= {"whole"}
    lines = [line for event in heard.events for line in _line(event, wire, losses)]
    if hidden:
        losses |= {"open_calls"}
        lines = [(*line[:3], None) if line[0] == "end" else line for line in lines]
    if "deltas" in losses:  # an unstreamed body has no separate fragments
        lines = _joined(lines)
    if "order" in losses:  # a body of this wire has separate fields for texts and tool calls
        lines = _joined(sorted(lines, key=lambda line: _ORDER.index(line[0])))
    # This wire does not mark the end of a tool call, so the last call may be truncated.
    if "open_calls" in losses and heard.error is not None:
        last = max((at for at, line in enumerate(lines) if line[0] == "end"), default=None)
        if last is not None:
            lines[last] = (*lines[last][:2], None, None)
    if "may_be_cut" in losses and _may_be_cut(heard):
        # A body does not show whether a token limit or a content filter cut off its last call.
        last = max(at for at, line in enumerate(lines) if line[0] == "end")
        lines[last] = (*lines[last][:2], None, None)
        return lines
    return [*lines, ("error", None if heard.error is None else _class(heard.error, wire, hidden))]


def _may_be_cut(heard: DecodedReply) -> bool:
    ended = heard.events[-1]
    if not isinstance(ended, MessageComplete) or not ended.final_content:
        return False
    last, reason = ended.final_content[-1], ended.finish_reason
    is_cut = reason == "length" or (
        reason == "content_filter" and isinstance(last, ToolCall) and not last.arguments
    )
    return isinstance(last, ToolCall) and is_cut


_ORDER = ["start", "thinking", "text", "tool", "input", "end", "complete"]


def hides(heard: DecodedReply, losses: frozenset[str]) -> bool:
    """Return whether the server side must end a reply as an error, because the wire cannot
    represent an invalid tool call or would make it look valid.
    """
    ended = heard.events[-1]
    if not isinstance(heard.error, MalformedToolCallError) or not isinstance(
        ended, MessageComplete
    ):
        return False
    problems, text = [], ""
    for event in heard.events:
        if isinstance(event, ToolUseStart):
            text = ""
        elif isinstance(event, ToolUseInputDelta):
            text += event.partial_json
        elif isinstance(event, ToolUseEnd) and event.problem is not None:
            problems.append(event.problem != "malformed" or bool(text.strip()))
    unread = any(
        isinstance(block, ToolCall) and block.arguments is None for block in ended.final_content
    )
    if ended.finish_reason != "length" and ("cut_input" in losses and unread):
        return True
    return not problems or (ended.finish_reason != "length" and not all(problems))


def _class(error: ProviderError, wire: Wire, hidden: bool) -> str:
    if isinstance(error, MalformedToolCallError | StructuredOutputError) and not hidden:
        return type(error).__name__  # the client codec determines this error class itself
    return wire.errors.get(type(error), type(error)).__name__


def _line(event: Event, wire: Wire, losses: frozenset[str]) -> list[tuple[Any, ...]]:
    block = (
        ()
        if losses & {"blocks", "deltas", "whole_order"}
        else (getattr(event, "content_block_index", None),)
    )
    if isinstance(event, MessageStart):
        return [("start", event.model)]
    if isinstance(event, TextDelta):
        return [("text", event.text, *block)] if event.text else []
    if isinstance(event, ThinkingDelta):
        signed = None if "signature" in losses else event.signature
        return (
            [("thinking", event.text, *([signed] if signed else []), *block)]
            if event.text or signed
            else []
        )
    if isinstance(event, ToolUseStart):
        return [("tool", event.tool_use_id, event.tool_name, *block)]
    if isinstance(event, ToolUseInputDelta):
        return [] if "raw_input" in losses else [("input", event.partial_json, *block)]
    if isinstance(event, ToolUseEnd):
        empty = (
            event.intent is not None
            and not event.intent.raw_input_text.strip()
            and "empty_input" in losses
        )
        more = [("input", "{}", *block)] if empty and "raw_input" not in losses else []
        problem = "cut" if event.problem and "cut_input" in losses else event.problem
        final = None if problem == "cut" else event.final_input
        return [*more, ("end", event.tool_use_id, final, problem)]
    return [_ending(event, wire, losses)]


def _ending(event: MessageComplete, wire: Wire, losses: frozenset[str]) -> tuple[Any, ...]:
    kinds = Opaque if "redacted" in losses else RedactedThinking | Opaque
    blocks = [block for block in event.final_content if isinstance(block, kinds)]
    whole = [] if "whole" in losses else [replace(block, continuity=None) for block in blocks]
    called = any(isinstance(block, ToolCall) for block in event.final_content)
    return (
        "complete",
        "called" if called and "call_reason" in losses else event.finish_reason,
        None if "finish_raw" in losses else event.finish_raw,
        None if "stop_sequence" in losses else event.stop_sequence,
        wire.usage(event.usage),
        event.parsed,
        whole,
    )


def _joined(lines: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    joined: list[tuple[Any, ...]] = []
    for line in lines:
        last = joined[-1] if joined else None
        if last is not None and line[0] in ("text", "thinking", "input") and last[0] == line[0]:
            joined[-1] = (line[0], last[1] + line[1], *last[2:], *line[2:])
        else:
            joined.append(line)
    return joined
