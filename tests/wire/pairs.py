"""Connect the client side and the server side of a wire in memory, and list what each wire
loses.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

from msgspec.structs import replace

import dragoman as d
from dragoman.messages import join_system
from dragoman.wire import CODECS, SERVER_CODECS, Asked, Codec
from dragoman.wire.gemini.names import to_camel
from dragoman.wire.seal import unseal
from dragoman.wire.usage import total_tokens

from .cases import BASE_URL, DecodedReply, decode

# --- requests: differences that are lost in the encoded bytes -----------------------------------

Rule = Callable[[d.Request], d.Request]


def each_message(change: Callable[[d.Message], d.Message]) -> Rule:
    return lambda request: replace(
        request, messages=[change(message) for message in request.messages]
    )


def each_block(kinds: type | UnionType, change: Callable[[Any], Any]) -> Rule:
    """Return a rule that changes each block of the messages of these classes."""

    def change_blocks(message: d.Message) -> d.Message:
        if not isinstance(message, kinds) or isinstance(message.content, str):
            return message
        return replace(message, content=tuple([change(block) for block in message.content]))

    return each_message(change_blocks)


def join_systems(request: d.Request) -> d.Request:
    system, rest = join_system(request.messages)
    return request if system is None else replace(request, messages=[d.System(system), *rest])


def forget_search(request: d.Request) -> d.Request:
    """Remove the tool search that a codec offers for deferred tools."""
    others = [tool for tool in request.server_tools if tool.name != "tool_search"]
    return replace(request, server_tools=tuple(others))


def use_camel_case(request: d.Request) -> d.Request:
    return replace(request, config=replace(request.config, extras=to_camel(request.config.extras)))


def plain_texts(message: d.Message) -> d.Message:
    if (
        isinstance(message, d.User | d.ToolResult)
        and not isinstance(message.content, str)
        and len(message.content) == 1
    ):
        return (
            replace(message, content=message.text)
            if isinstance(message.content[0], d.Text)
            else message
        )
    return message


def inline_data_url(block: Any) -> Any:
    if (
        isinstance(block, d.Image | d.Document)
        and isinstance(block.source, d.Url)
        and block.source.url.startswith("data:")
    ):
        media_type, _, data = block.source.url.removeprefix("data:").partition(";base64,")
        return replace(block, source=d.Inline(data), media_type=media_type)
    return block


def join_assistant_texts(message: d.Message) -> d.Message:
    if not isinstance(message, d.Assistant):
        return message
    texts = "".join([block.text for block in message.content if isinstance(block, d.Text)])
    rest = [block for block in message.content if not isinstance(block, d.Text)]
    return d.Assistant([*([d.Text(texts)] if texts else []), *rest])


def name_document(block: Any) -> Any:
    is_nameless = isinstance(block, d.Document) and block.name is None
    return replace(block, name="document") if is_nameless else block


def name_file(block: Any) -> Any:
    is_inline = isinstance(block, d.Document) and isinstance(block.source, d.Inline)
    return replace(block, name=block.name or "document.pdf") if is_inline else block


def forget_url_type(block: Any) -> Any:
    is_linked = isinstance(block, d.Image) and isinstance(block.source, d.Url)
    return replace(block, media_type=None) if is_linked else block


def join_results(message: d.Message) -> d.Message:
    return replace(message, content=message.text) if isinstance(message, d.ToolResult) else message


def forget_issuer(block: Any) -> Any:
    state = block.continuity
    if state is None:
        return (
            replace(block, continuity=d.Continuity())
            if isinstance(block, d.RedactedThinking | d.Opaque)
            else block
        )
    kept = {"thinking", "text", "type", "signature", "id", "name", "input"}
    opaque = {name: value for name, value in (state.opaque or {}).items() if name not in kept}
    return replace(block, continuity=replace(state, issuer=None, opaque=opaque or None))


def merge_turns(request: d.Request, kinds: Any = d.User | d.Assistant) -> d.Request:
    """Return the request with consecutive messages of one of these classes merged."""
    merged: list[d.Message] = []
    for message in request.messages:
        last = merged[-1] if merged else None
        if isinstance(message, kinds) and type(last) is type(message):
            merged[-1] = type(message)([*_blocks(last), *_blocks(message)])
        else:
            merged.append(message)
    return replace(request, messages=merged)


def merge_assistants(request: d.Request) -> d.Request:
    return merge_turns(request, d.Assistant)


def _blocks(message: Any) -> Sequence[Any]:
    return [d.Text(message.content)] if isinstance(message.content, str) else message.content


def join_text_results(message: d.Message) -> d.Message:
    if not isinstance(message, d.ToolResult) or isinstance(message.content, str):
        return message
    plain = all(isinstance(block, d.Text) for block in message.content)
    return replace(message, content=message.text) if plain else message


def stateless_settings(request: d.Request) -> d.Request:
    """Drop extra fields that request the default behaviour; they can be ignored without loss."""
    config = request.config
    extras = dict(request.config.extras)
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


def mark_no_strict(request: d.Request) -> d.Request:
    return replace(request, tools=[replace(tool, strict=None) for tool in request.tools])


_MINTED = re.compile(r"call_[0-9A-HJKMNP-TV-Z]{26}")


def number_minted_ids(request: d.Request) -> d.Request:
    """Replace generated ids by numbers in the order in which they occur."""
    names: dict[str, str] = {}

    def name(call_id: str) -> str:
        return (
            names.setdefault(call_id, f"minted{len(names)}")
            if _MINTED.fullmatch(call_id)
            else call_id
        )

    def rename(message: d.Message) -> d.Message:
        if isinstance(message, d.ToolResult):
            return replace(message, tool_call_id=name(message.tool_call_id))
        if isinstance(message, d.Assistant):
            blocks = [
                replace(each, id=name(each.id)) if isinstance(each, d.ToolCall) else each
                for each in message.content
            ]
            return d.Assistant(blocks)
        return message

    return replace(request, messages=[rename(message) for message in request.messages])


def texts_before_media(message: d.Message) -> d.Message:
    if not isinstance(message, d.ToolResult) or isinstance(message.content, str):
        return message
    media = [block for block in message.content if not isinstance(block, d.Text)]
    return replace(
        message,
        content=[*([d.Text(message.text)] if message.text else []), *media]
        if media
        else message.text,
    )


def stop_extras(request: d.Request) -> d.Request:
    config = request.config
    extras = dict(request.config.extras)
    stops = [*(config.stop_sequences or ()), *extras.pop("stopSequences", ())]
    changed = replace(config, stop_sequences=tuple(dict.fromkeys(stops)) or None, extras=extras)
    return replace(request, config=changed)


def known_settings(request: d.Request) -> d.Request:
    """Return the request after moving settings from its extra fields to their own fields."""
    config = request.config
    extras = dict(request.config.extras)
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
    errors: dict[type[d.ProviderError], type[d.ProviderError]] = field(default_factory=dict)
    usage: Callable[[d.Usage], d.Usage] = lambda usage: replace(usage, estimated=False)


# Error classes that a wire cannot represent, and the class that the client gets instead.
ERRORS: dict[type[d.ProviderError], type[d.ProviderError]] = {
    d.NetworkError: d.UnavailableError,
    d.StreamInterruptedError: d.UnavailableError,
    d.InvalidResponseError: d.UnavailableError,
    d.MalformedToolCallError: d.UnavailableError,
    d.StructuredOutputError: d.UnavailableError,
    d.CallCancelledError: d.UnavailableError,
    d.ProviderError: d.UnavailableError,
}


def _openai_usage(usage: d.Usage) -> d.Usage:
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


def _anthropic_usage(usage: d.Usage) -> d.Usage:
    """Return the token usage that the client decodes: the input includes cached tokens, and the
    total, which the wire omits, is computed.
    """
    subsets = (usage.cached_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    asked = None if usage.input_tokens is None else max(usage.input_tokens, subsets)
    total = None if asked is None or usage.output_tokens is None else asked + usage.output_tokens
    return replace(usage, input_tokens=asked, total_tokens=total, estimated=False)


def _responses_usage(usage: d.Usage) -> d.Usage:
    total = usage.total_tokens
    if total is None and usage.input_tokens is not None and usage.output_tokens is not None:
        total = usage.input_tokens + usage.output_tokens
    usage = replace(usage, total_tokens=total, estimated=False)
    if usage == d.Usage():
        return usage
    # The vendor's specification requires these counts, so an unknown count is sent as zero.
    names = ("cached_input_tokens", "cache_creation_input_tokens", "reasoning_tokens")
    return replace(usage, **{name: getattr(usage, name) or 0 for name in names})


WIRES: dict[str, Wire] = {
    "openai": Wire(
        requests={
            "system messages are joined": join_systems,
            "one text is plain text": each_message(plain_texts),
            "a data URL is inline": each_block(d.User | d.ToolResult, inline_data_url),
            "texts of a turn are joined and come first": each_message(join_assistant_texts),
            "a document has a name": each_block(d.User, name_document),
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
            "a data URL is inline": each_block(d.User | d.ToolResult, inline_data_url),
            "turns of one side are merged": merge_turns,
            "deferred tools are searched": forget_search,
            "an issuer is its wire alone": each_block(d.Assistant, forget_issuer),
            "an extra that is a setting is one": known_settings,
        },
        reply_losses=frozenset({"finish_raw"}),
        stream_losses=frozenset({"whole_order", "empty_input"}),
        body_losses=frozenset({"deltas", "raw_input", "may_be_cut"}),
        errors={
            **ERRORS,
            d.ModelNotLoadedError: d.UnavailableError,
            d.UnsupportedFeatureError: d.InvalidRequestError,
            d.QuotaExceededError: d.BillingError,  # the wire has only one error type for these classes
        },
        usage=_anthropic_usage,
    ),
}


def _gemini_usage(usage: d.Usage) -> d.Usage:
    """Return the token usage that the client decodes: the output includes thoughts, the cache
    writes, which the wire omits, are unknown, and an unknown total is computed.
    """
    output = usage.output_tokens
    thoughts = usage.reasoning_tokens
    if thoughts is not None:
        output = max(output or 0, thoughts)
    sent = replace(usage, total_tokens=total_tokens(usage), cache_creation_input_tokens=None)
    usage = replace(sent, output_tokens=output, estimated=False)
    return replace(usage, total_tokens=total_tokens(usage))


WIRES["gemini"] = Wire(
    requests={
        "field names are camel case": use_camel_case,
        "system messages are joined": join_systems,
        "one text is plain text": each_message(plain_texts),
        "a data URL is inline": each_block(d.User | d.ToolResult, inline_data_url),
        "a picture's type is seen in its URL": each_block(d.User, forget_url_type),
        "a result is one text and then media": each_message(texts_before_media),
        "an id may be left out": number_minted_ids,
        "an issuer is its wire alone": each_block(d.Assistant, forget_issuer),
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
    stream_losses=frozenset({"bare_start"}),
    body_losses=frozenset({"deltas"}),
    errors={**ERRORS, d.UnsupportedFeatureError: d.InvalidRequestError},
    usage=_gemini_usage,
)
WIRES["responses"] = Wire(
    requests={
        "system messages are joined": join_systems,
        "one text is plain text": each_message(plain_texts),
        "texts of a result are joined": each_message(join_text_results),
        "a data URL is inline": each_block(d.User | d.ToolResult, inline_data_url),
        "a document has a name": each_block(d.User, name_file),
        "items of one turn are one message": merge_assistants,
        "deferred tools are searched": forget_search,
        "an issuer is its wire alone": each_block(d.Assistant, forget_issuer),
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
        "an issuer is its wire alone": each_block(d.Assistant, forget_issuer),
        "one text is plain text": each_message(plain_texts),
    },
    reply_losses=frozenset({"stop_sequence", "whole"}),
    stream_losses=frozenset({"whole_order"}),
    body_losses=frozenset({"deltas", "raw_input"}),
    errors=ERRORS,
)
WIRES["cohere"] = Wire(
    requests={
        "an issuer is its wire alone": each_block(d.Assistant, forget_issuer),
        "an extra that is a setting is one": known_settings,
    },
    stream_losses=frozenset({"whole_order", "empty_input"}),
    body_losses=frozenset({"deltas", "raw_input"}),
    errors={**ERRORS, d.ModelNotLoadedError: d.UnavailableError},
)


def canonical(request: d.Request, wire: Wire) -> d.Request:
    """Return the request after normalising everything that the wire cannot distinguish."""
    request = replace(request, request_id="R", session_id=None, metadata={})
    for rule in wire.requests.values():
        request = rule(request)
    return request


def client(wire: str, model: str = "test-model") -> Codec:
    return CODECS[wire].connect(model, BASE_URL, None, d.Capabilities())


def serve(
    wire: str, request: d.Request, events: Sequence[d.Event], error: d.ProviderError | None
) -> list[bytes]:
    """Return the bytes of a reply as the server side writes them."""
    encoder = SERVER_CODECS[wire].encoder(Asked(request=request), created=1)
    pieces = [encoder.feed(event) for event in events]
    pieces.append(encoder.end() if error is None else encoder.fail(error))
    return [piece for piece in pieces if piece]


def hear(
    wire: str, request: d.Request, pieces: Sequence[bytes], *, judged: bool = True
) -> DecodedReply:
    """Decode the pieces of a reply with the client side of a wire."""
    return decode(client(wire, request.model), request, pieces, judged=judged)


def said(
    heard: DecodedReply, wire: Wire, losses: frozenset[str], *, hidden: bool, may_be_cut: bool
) -> list[Any]:
    """Return the content of a decoded reply as a list of lines, without the parts that ``losses``
    names.

    If ``hidden``, the outcome of every tool call is also omitted; if ``may_be_cut``, that of the
    last one and of the reply.
    """
    # Some wires send blocks without deltas only at the end of a reply, so a failed reply does not
    # contain them.
    if "whole_order" in losses and heard.error is not None:
        losses |= {"whole"}
    lines: list[tuple[Any, ...]] = []
    text = ""  # the input of the last call
    for event in heard.events:
        if isinstance(event, d.ToolUseStart):
            text = ""
        elif isinstance(event, d.ToolUseInputDelta):
            text += event.partial_json
        lines += _line(event, wire, losses, is_blank=not text.strip())
    if hidden:
        losses |= {"open_calls"}
        lines = [(*line[:3], None) if line[0] == "end" else line for line in lines]
    # This wire has no event that starts a reply, so one that fails without content has no events.
    is_empty = all(line[0] in ("start", "complete") for line in lines)
    if "bare_start" in losses and heard.error is not None and is_empty:
        lines = []
    if "deltas" in losses:  # an unstreamed body has no separate fragments
        lines = _joined(lines)
    if "order" in losses:  # a body of this wire has separate fields for texts and tool calls
        lines = _joined(sorted(lines, key=lambda line: _ORDER.index(line[0])))
    # This wire does not mark the end of a tool call, so the last call may be truncated.
    if "open_calls" in losses and heard.error is not None:
        last = max((at for at, line in enumerate(lines) if line[0] == "end"), default=None)
        if last is not None:
            lines[last] = (*lines[last][:2], None, None)
    if may_be_cut:
        last = max(at for at, line in enumerate(lines) if line[0] == "end")
        lines[last] = (*lines[last][:2], None, None)
        return [line for line in lines if line[:2] not in FILTERED]
    return [*lines, ("error", None if heard.error is None else _class(heard.error, wire, hidden))]


FILTERED = (("complete", "content_filter"), ("complete", "error"))


def may_be_cut(heard: DecodedReply, losses: frozenset[str]) -> bool:
    """Return whether a token limit or a content filter may have cut off the last tool call, which
    a body on some wires does not show. A client reports a call without input as malformed then.
    """
    ended = heard.events[-1]
    if "may_be_cut" not in losses:
        return False
    if not isinstance(ended, d.MessageComplete) or not ended.final_content:
        return False
    last = ended.final_content[-1]
    reason = ended.finish_reason
    is_cut = reason == "length" or (
        reason == "content_filter" and isinstance(last, d.ToolCall) and not last.arguments
    )
    return isinstance(last, d.ToolCall) and is_cut


_ORDER = ["start", "thinking", "text", "tool", "input", "end", "complete"]


def hides(heard: DecodedReply, losses: frozenset[str]) -> bool:
    """Return whether the server side must end a reply as an error, because the wire cannot
    represent an invalid tool call or would make it look valid.
    """
    ended = heard.events[-1]
    if not isinstance(heard.error, d.MalformedToolCallError) or not isinstance(
        ended, d.MessageComplete
    ):
        return False
    problems = []
    text = ""
    for event in heard.events:
        if isinstance(event, d.ToolUseStart):
            text = ""
        elif isinstance(event, d.ToolUseInputDelta):
            text += event.partial_json
        elif isinstance(event, d.ToolUseEnd) and event.problem is not None:
            problems.append(event.problem != "malformed" or bool(text.strip()))
    unread = any(
        isinstance(block, d.ToolCall) and block.arguments is None for block in ended.final_content
    )
    if ended.finish_reason != "length" and ("cut_input" in losses and unread):
        return True
    return not problems or (ended.finish_reason != "length" and not all(problems))


def _class(error: d.ProviderError, wire: Wire, hidden: bool) -> str:
    if isinstance(error, d.MalformedToolCallError | d.StructuredOutputError) and not hidden:
        return type(error).__name__  # the client codec determines this error class itself
    return wire.errors.get(type(error), type(error)).__name__


def _line(
    event: d.Event, wire: Wire, losses: frozenset[str], *, is_blank: bool
) -> list[tuple[Any, ...]]:
    block = (
        ()
        if losses & {"blocks", "deltas", "whole_order"}
        else (getattr(event, "content_block_index", None),)
    )
    if isinstance(event, d.MessageStart):
        return [("start", event.model)]
    if isinstance(event, d.TextDelta):
        return [("text", event.text, *block)] if event.text else []
    if isinstance(event, d.ThinkingDelta):
        if not event.text and unseal(event.signature) is not None:
            return []  # it carries state that the wire has no other place for
        signed = None if "signature" in losses else event.signature
        return (
            [("thinking", event.text, *([signed] if signed else []), *block)]
            if event.text or signed
            else []
        )
    if isinstance(event, d.ToolUseStart):
        return [("tool", event.tool_use_id, event.tool_name, *block)]
    if isinstance(event, d.ToolUseInputDelta):
        return [] if "raw_input" in losses else [("input", event.partial_json, *block)]
    if isinstance(event, d.ToolUseEnd):
        is_complete = event.problem in (None, "unknown_tool", "invalid_arguments")
        empty = is_complete and is_blank and "empty_input" in losses
        more = [("input", "{}", *block)] if empty and "raw_input" not in losses else []
        problem = "cut" if event.problem and "cut_input" in losses else event.problem
        final = None if problem == "cut" else event.final_input
        return [*more, ("end", event.tool_use_id, final, problem)]
    return [_ending(event, wire, losses)]


def _ending(event: d.MessageComplete, wire: Wire, losses: frozenset[str]) -> tuple[Any, ...]:
    kinds = d.Opaque if "redacted" in losses else d.RedactedThinking | d.Opaque
    blocks = [block for block in event.final_content if isinstance(block, kinds)]
    whole = [] if "whole" in losses else [replace(block, continuity=None) for block in blocks]
    called = any(isinstance(block, d.ToolCall) for block in event.final_content)
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
