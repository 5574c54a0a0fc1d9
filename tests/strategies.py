"""Hypothesis strategies: messages, events, and calls of the assembler by a codec."""

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import dragoman as d
from dragoman.events import AssembledFrom, IntentSource
from dragoman.messages import AssistantBlock, UserBlock

texts = st.text(max_size=12)
words = st.text(min_size=1, max_size=12)
counts = st.none() | st.integers(0, 10**9)
json_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
json_values = st.recursive(
    json_leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)


def maybe(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | strategy


issuers = st.builds(d.Issuer, words, maybe(words), maybe(words))
continuities = st.builds(d.Continuity, maybe(texts), json_values, maybe(issuers), st.booleans())
sources = st.builds(d.Url, words) | st.builds(d.Inline, words)
details = st.sampled_from([None, "auto", "low", "high"])

text_blocks = st.builds(d.Text, texts, maybe(continuities))
images = st.builds(d.Image, sources, maybe(words), detail=details)
documents = st.builds(d.Document, sources, words, maybe(words))
tool_calls = st.builds(d.ToolCall, words, words, maybe(json_objects), maybe(continuities))
user_blocks: SearchStrategy[UserBlock] = text_blocks | images | documents
assistant_blocks: SearchStrategy[AssistantBlock] = (
    text_blocks
    | st.builds(d.Thinking, texts, maybe(continuities))
    | st.builds(d.RedactedThinking, texts, maybe(continuities))
    | tool_calls
    | st.builds(d.Opaque, json_values, maybe(continuities))
)

contents = texts | st.lists(user_blocks, max_size=3)
systems = st.builds(d.System, texts)
users = st.builds(d.User, contents)
assistants = st.builds(d.Assistant, st.lists(assistant_blocks, max_size=4))
tool_results = st.builds(d.ToolResult, words, contents, st.booleans())
messages: SearchStrategy[d.Message] = systems | users | assistants | tool_results

tools = st.builds(d.Tool, words, texts, parameters=json_objects)
tool_choices = st.sampled_from([None, "auto", "required", "none"]) | st.builds(d.ForceTool, words)
numbers = maybe(st.floats(-2, 2))
configs = st.builds(
    d.RuntimeConfig,
    temperature=numbers,
    max_tokens=counts,
    top_p=numbers,
    seed=counts,
    frequency_penalty=numbers,
    presence_penalty=numbers,
    stop_sequences=maybe(st.lists(texts, max_size=2)),
    reasoning=st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh", 1024]),
    extras=json_objects,
)
warnings = st.builds(d.LossWarning, words, words, texts)
requests = st.builds(
    d.Request,
    st.lists(messages, max_size=3),
    tools=st.lists(tools, max_size=2),
    config=configs,
    response_schema=maybe(json_objects),
    tool_choice=tool_choices,
    model=texts,
    request_id=words,
    stream=st.booleans(),
    session_id=maybe(words),
    metadata=st.dictionaries(texts, texts, max_size=2),
)

usages = st.builds(
    d.Usage,
    counts,
    counts,
    cached_input_tokens=counts,
    cache_creation_input_tokens=counts,
    reasoning_tokens=counts,
    total_tokens=counts,
    estimated=st.booleans(),
)
finish_reasons = st.sampled_from(
    ["stop", "length", "tool_calls", "content_filter", "error", "cancelled"]
)
problems = st.sampled_from(
    [None, "cancelled", "interrupted", "malformed", "unknown_tool", "invalid_arguments"]
)
indices = st.integers(0, 99)
intents = st.builds(
    d.ToolIntent,
    id=words,
    provider_call_id=words,
    tool_name=words,
    input=json_objects,
    raw_input_text=texts,
    source=st.builds(IntentSource, texts, texts, texts, indices),
    assembled_from=st.builds(AssembledFrom, indices, indices, indices),
)
head = (words, words)
fragments = {"content_block_index": indices, "text": texts}
calls = {"content_block_index": indices, "tool_use_id": words}
EVENTS: dict[type, SearchStrategy[d.Event]] = {
    d.MessageStart: st.builds(d.MessageStart, *head, model=texts, provider=texts),
    d.TextDelta: st.builds(d.TextDelta, *head, **fragments),
    d.ThinkingDelta: st.builds(d.ThinkingDelta, *head, **fragments, signature=maybe(texts)),
    d.ToolUseStart: st.builds(d.ToolUseStart, *head, **calls, tool_name=words),
    d.ToolUseInputDelta: st.builds(d.ToolUseInputDelta, *head, **calls, partial_json=texts),
    d.ToolUseEnd: st.builds(
        d.ToolUseEnd,
        *head,
        **calls,
        final_input=json_objects,
        intent=maybe(intents),
        problem=problems,
        detail=maybe(texts),
    ),
    d.MessageComplete: st.builds(
        d.MessageComplete,
        *head,
        finish_reason=finish_reasons,
        final_content=st.lists(assistant_blocks, max_size=3).map(tuple),
        usage=usages,
        finish_raw=maybe(texts),
        stop_sequence=maybe(texts),
        model=maybe(texts),
        parsed=json_values,
        structured_path=maybe(texts),
        warnings=st.lists(warnings, max_size=2).map(tuple),
    ),
}
events: SearchStrategy[d.Event] = st.one_of(*EVENTS.values())

Verb = tuple[str, tuple[Any, ...]]
"""The name of an ``Assembler`` method, and the arguments of a call."""


@st.composite
def split(draw: st.DrawFn, text: str) -> list[str]:
    """Split the text into up to four pieces that are not empty."""
    cuts = (
        sorted(draw(st.sets(st.integers(1, len(text) - 1), max_size=3))) if len(text) > 1 else []
    )
    return [
        text[start:end]
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)
        if start < end
    ]


arguments = st.one_of(
    json_objects.map(json.dumps),  # valid JSON objects
    st.sampled_from(["", " ", "{}", '{"city": "Oslo"}', '{"city": 1}']),
    json_objects.map(lambda value: json.dumps(value)[:-1]),  # truncated JSON objects
    # JSON values that are not objects.
    st.sampled_from(["[1]", "null", '"text"', "{}{}", "{'a': 1}", "NaN"]),
)


_VERBS = ["tool", "more", "more", "more", "text", "thinking", "whole", "attach", "usage", "end"]


@st.composite
def verbs(draw: st.DrawFn) -> list[Verb]:
    """Draw the assembler methods that a codec may call between ``start`` and the message's end.

    The fragments of several tool calls may be interleaved with each other and with other content.
    The keys of tool calls are numbers, in the order in which the tool calls begin.
    """
    said: list[Verb] = []
    waiting: dict[int, list[str]] = {}  # the fragments of each tool call that are not sent yet
    tail: int | None = None  # the tool call that was opened last, until other content follows it
    count = 0
    for _ in range(draw(st.integers(0, 14))):
        verb = draw(st.sampled_from(_VERBS))
        open_calls = [key for key, fragments in waiting.items() if fragments]
        if verb == "tool":
            name = draw(st.sampled_from(["weather", "any", "unknown"]))
            call_id = draw(st.sampled_from([None, "", "a", "b", f"id_{count}"]))
            said.append(("tool_start", (count, call_id, name)))
            waiting[count], tail, count = draw(split(draw(arguments))), count, count + 1
        elif verb == "more" and open_calls:
            key = draw(st.sampled_from(open_calls))
            said.append(("tool_input", (key, waiting[key].pop(0))))
        elif verb in ("text", "thinking"):
            piece = draw(texts)
            said.append((verb, (piece,)))
            tail = None if piece else tail
        elif verb == "whole":
            block = draw(st.builds(d.RedactedThinking, texts) | st.builds(d.Opaque, json_values))
            said.append(("whole", (block,)))
            tail = None
        elif verb == "attach":
            kind = draw(st.sampled_from([d.Text, d.Thinking]))
            said.append(("attach", (kind, draw(maybe(words)), draw(maybe(words)))))
            tail = None
        elif verb == "usage":
            said.append(("usage", (draw(usages),)))
        elif verb == "end" and not waiting.get(-1 if tail is None else tail):
            said.append(("block_end", (tail,)))
    for key in draw(st.permutations(list(waiting))):
        said += [("tool_input", (key, fragment)) for fragment in waiting[key]]
    return said
