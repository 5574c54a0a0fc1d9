"""Any tool results and any replies of models can be encoded in the next request."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.tools import Observation
from dragoman.tools.runtime import limit_output
from dragoman.validate import check_request
from dragoman.wire import CODECS
from dragoman.wire.media import describe_media
from tests import strategies as some

from .test_names import RULES

WIRES = sorted(CODECS)
SEES: list[bool | None] = [None, True, False]
PNG = base64.b64encode(b"\x89PNG picture").decode()
IMAGE = d.Image(d.Inline(PNG), "image/png")


def connect_codec(wire: str, *, sees: bool | None = None, quirks: Any = None) -> Any:
    known = d.Capabilities.of({} if sees is None else {"supports_images": sees})
    return CODECS[wire].connect("m", "http://127.0.0.1:9/v1", quirks, known)


def use(*content: Any) -> list[d.Message]:
    """Return a conversation in which a tool returned the given content."""
    call = d.ToolCall("call_1", "look", {})
    return [d.User("Go."), d.Assistant([call]), d.ToolResult("call_1", content)]


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
TYPES = st.sampled_from(
    [
        "image/png",
        "image/jpeg",
        "text/html",
        "application/pdf",
        "text/plain",
        "image/png\r\nx: y",
        "",
        "IMAGE",
        "a/b",
    ]
)
SOURCES = st.one_of(
    st.builds(
        d.Inline, st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode()) | TEXTS
    ),
    st.builds(
        d.Url,
        TEXTS
        | st.sampled_from(
            [
                "https://x/a.png",
                "http://x",
                "data:image/png;base64,aGk=",
                "data:,hi",
                "data:;base64,??",
                "file:///etc/passwd",
            ]
        ),
    ),
)
MEDIA = st.builds(
    d.Image, SOURCES, st.none() | TYPES, detail=st.sampled_from([None, "low", "high", "auto"])
) | st.builds(d.Document, SOURCES, TYPES, st.none() | TEXTS)
CONTENT = TEXTS | st.lists(st.builds(d.Text, TEXTS) | MEDIA, max_size=4).map(tuple)
ARGUMENTS = st.dictionaries(TEXTS, some.json_values, max_size=2)
STATES = st.none() | st.builds(
    d.Continuity,
    st.none() | TEXTS,
    some.json_values,
    st.none() | st.builds(d.Issuer, st.sampled_from(WIRES), st.none(), st.just("m")),
)
ISSUED = st.builds(
    d.Continuity,
    st.none() | TEXTS,
    some.json_values,
    st.builds(d.Issuer, st.sampled_from(WIRES), st.none(), st.just("m")),
)
MADE = st.builds(
    d.Inline, st.binary(min_size=1, max_size=9).map(lambda data: base64.b64encode(data).decode())
)
SAID = (
    st.builds(d.Image, MADE, st.just("image/png"), continuity=ISSUED)
    | st.builds(
        d.Audio, MADE, st.just("audio/wav"), transcript=st.none() | TEXTS, continuity=ISSUED
    )
    | st.builds(d.Text, TEXTS, STATES)
    | st.builds(d.Thinking, TEXTS, STATES)
    | st.builds(d.RedactedThinking, TEXTS, STATES)
    | st.builds(
        d.Opaque, st.dictionaries(st.text(max_size=5), some.json_values, max_size=3), STATES
    )
)
# Models also call tools that were not offered, with names that servers reject.
NAMES = st.sampled_from(
    [
        "look",
        "a.b",
        "multi_tool_use.parallel",
        "functions.look:0",
        "日本",
        "9 lives",
        "-",
        "x" * 99,
    ]
)
OFFERED = (d.Tool("look"), d.Tool("a.b"))


@st.composite
def conversations(draw: Any) -> list[d.Message]:
    """Generate the turns of a session: replies with tool calls, and tool results, as the session
    stores them.
    """
    messages: list[d.Message] = [d.User("Go.")]
    for turn in range(draw(st.integers(1, 3))):
        calls = [
            d.ToolCall(
                f"{draw(TEXTS)}-{turn}-{number}", draw(NAMES), draw(ARGUMENTS), draw(STATES)
            )
            for number in range(draw(st.integers(1, 3)))
        ]
        messages.append(d.Assistant([*draw(st.lists(SAID, max_size=3)), *calls]))
        for call in calls:
            seen = limit_output(Observation(draw(CONTENT), is_error=draw(st.booleans())), 1000)
            messages.append(d.ToolResult(call.id, seen.content, seen.is_error))
    return messages


def called(body: Any) -> Iterator[str]:
    """Yield the tool name of each call in a request body."""
    if isinstance(body, dict):
        if "name" in body and {"arguments", "args", "input"} & set(body):
            yield body["name"]
        for value in body.values():
            yield from called(value)
    elif isinstance(body, list):
        for value in body:
            yield from called(value)


@given(messages=conversations(), sees=st.sampled_from(SEES))
def test_any_tool_results_and_replies_can_be_encoded(
    sees: bool | None, messages: list[d.Message]
) -> None:
    request = d.Request(
        tuple(messages), tools=OFFERED, config=d.RuntimeConfig(max_tokens=9), model="m"
    )
    check_request(request)
    for wire in WIRES:
        encoded = connect_codec(wire, sees=sees).encode(request)
        body = json.loads(encoded.http.body)
        assert all(re.fullmatch(RULES[wire], name) for name in called(body)), wire
        omitted = [note for note in encoded.notes if note.code.endswith("_omitted")]
        orphans = sum(note.code == "orphan_result_dropped" for note in encoded.notes)
        assert json.dumps(body).count("left out: ") >= len(omitted) - orphans, wire
        assert {note.code for note in omitted} <= {warning.code for warning in encoded.warnings}


@pytest.mark.parametrize(
    ("sees", "rule"), [(True, "image_moved"), (None, "image_moved"), (False, "image_omitted")]
)
def test_plan_reports_what_happens_to_an_image(sees: bool | None, rule: str) -> None:
    known = {} if sees is None else {"supports_images": sees}
    plan = d.connect("m", base_url="http://127.0.0.1:9/v1", capabilities=known).plan(
        use(d.Text("Look: "), IMAGE)
    )
    assert plan.refused is None
    [item] = [item for item in plan.items if item.path == "messages[2].content[1]"]
    assert item.rule == rule
    assert item.loss == (rule == "image_omitted")


@pytest.mark.parametrize(("sees", "moved"), [(True, True), (None, False), (False, False)])
def test_model_that_is_known_to_see_gets_images_of_results_from_cohere(
    sees: bool | None, moved: bool
) -> None:
    encoded = connect_codec("cohere", sees=sees).encode(
        d.Request(
            use(d.Text("Look: "), IMAGE),
            tools=OFFERED,
            config=d.RuntimeConfig(max_tokens=9),
            model="m",
        )
    )
    assert ("image_moved" in [note.code for note in encoded.notes]) is moved


@pytest.mark.parametrize(
    ("words", "is_learned"),
    [
        ("unknown variant `image_url`, expected `text`", True),
        ("m is not a multimodal model", True),
        ("Unexpected role 'user' after role 'tool'", True),
        ("max_tokens is too large", False),
    ],
)
def test_refused_image_of_a_result_is_replaced_by_a_text(words: str, is_learned: bool) -> None:
    codec = connect_codec("openai", sees=None)
    request = d.Request(use(d.Text("Look: "), IMAGE), tools=OFFERED, model="m")
    error = d.InvalidRequestError("refused", status=400, provider_message=words)
    taught = codec.learn(error, request)
    assert (taught is not None) is is_learned
    if taught is not None:
        body = taught.encode(request).http.body
        assert b"image_url" not in body
        assert b"left out" in body
    plain = d.Request(use(d.Text("Look: ")), tools=OFFERED, model="m")
    assert codec.learn(error, plain) is None


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (d.Image(d.Inline("QUJD"), "image/png"), "image (image/png, about 3 bytes)"),
        (d.Image(d.Url("https://x.example/a.png")), "image"),
        (d.Image(d.Url("https://x.example/a.png"), "image/png"), "image (image/png)"),
    ],
)
def test_medium_is_described_by_what_is_known(block: d.Image, text: str) -> None:
    assert describe_media(block) == text
