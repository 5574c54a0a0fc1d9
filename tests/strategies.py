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
images = st.builds(d.Image, sources, maybe(words), details)
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

tools = st.builds(d.Tool, words, texts, json_objects)
tool_choices = st.sampled_from([None, "auto", "required", "none"]) | st.builds(d.ForceTool, words)
numbers = maybe(st.floats(-2, 2))
configs = st.builds(
    d.RuntimeConfig, numbers, counts, numbers, counts, numbers, numbers,
    maybe(st.lists(texts, max_size=2)),
    st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh", 1024]),
    json_objects,
)  # fmt: skip
warnings = st.builds(d.LossWarning, words, words, texts)
requests = st.builds(
    d.Request, st.lists(messages, max_size=3), st.lists(tools, max_size=2), configs,
    maybe(json_objects), tool_choices, texts, words, st.booleans(), maybe(words),
    st.dictionaries(texts, texts, max_size=2),
)  # fmt: skip

usages = st.builds(d.Usage, counts, counts, counts, counts, counts, counts, st.booleans())
finish_reasons = st.sampled_from(
    ["stop", "length", "tool_calls", "content_filter", "error", "cancelled"]
)
problems = st.sampled_from(
    [None, "cancelled", "interrupted", "malformed", "unknown_tool", "invalid_arguments"]
)
indices = st.integers(0, 99)
intents = st.builds(
    d.ToolIntent, words, words, words, json_objects, texts,
    st.builds(IntentSource, texts, texts, texts, indices),
    st.builds(AssembledFrom, indices, indices, indices),
)  # fmt: skip
head = (words, words)
EVENTS: dict[type, SearchStrategy[d.Event]] = {
    d.MessageStart: st.builds(d.MessageStart, *head, texts, texts),
    d.TextDelta: st.builds(d.TextDelta, *head, indices, texts),
    d.ThinkingDelta: st.builds(d.ThinkingDelta, *head, indices, texts, maybe(texts)),
    d.ToolUseStart: st.builds(d.ToolUseStart, *head, indices, words, words),
    d.ToolUseInputDelta: st.builds(d.ToolUseInputDelta, *head, indices, words, texts),
    d.ToolUseEnd: st.builds(d.ToolUseEnd, *head, indices, words, json_objects, maybe(intents),
                            problems, maybe(texts)),
    d.MessageComplete: st.builds(d.MessageComplete, *head, finish_reasons,
                                 st.lists(assistant_blocks, max_size=3).map(tuple), usages,
                                 maybe(texts), maybe(texts), maybe(texts), json_values,
                                 maybe(texts), st.lists(warnings, max_size=2).map(tuple)),
}  # fmt: skip
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
