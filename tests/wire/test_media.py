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
from tests import strategies as some

from .test_names import RULES

WIRES = sorted(CODECS)
# The wires that accept an image in a tool result.
SHOWN = [wire for wire in WIRES if wire != "cohere"]
SEES: list[bool | None] = [None, True, False]
PNG = base64.b64encode(b"\x89PNG picture").decode()
IMAGE = d.Image(d.Inline(PNG), "image/png")


def connect_codec(wire: str, *, sees: bool | None = None, quirks: Any = None) -> Any:
    known = d.Capabilities.of({} if sees is None else {"supports_images": sees})
    return CODECS[wire].connect("m", "http://127.0.0.1:9/v1", quirks, known)


def ask(*messages: d.Message) -> d.Request:
    return d.Request(tuple(messages), config=d.RuntimeConfig(max_tokens=9), model="m")


def use(*content: Any) -> list[d.Message]:
    """Return a conversation in which a tool returned the given content."""
    call = d.ToolCall("call_1", "look", {})
    return [d.User("Go."), d.Assistant([call]), d.ToolResult("call_1", content)]


# --- random conversations with media -----------------------------------------------------------

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
    d.Image, SOURCES, st.none() | TYPES, st.sampled_from([None, "low", "high", "auto"])
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
    | st.builds(d.Audio, MADE, st.just("audio/wav"), st.none() | TEXTS, continuity=ISSUED)
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
            seen = limit_output(Observation(draw(CONTENT), draw(st.booleans())), 1000)
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
    request = d.Request(tuple(messages), OFFERED, d.RuntimeConfig(max_tokens=9), model="m")
    check_request(request)
    for wire in WIRES:
        encoded = connect_codec(wire, sees=sees).encode(request)
        body = json.loads(encoded.http.body)
        assert all(re.fullmatch(RULES[wire], name) for name in called(body)), wire
        omitted = [note for note in encoded.notes if note.code.endswith("_omitted")]
        orphans = sum(note.code == "orphan_result_dropped" for note in encoded.notes)
        assert json.dumps(body).count("left out: ") >= len(omitted) - orphans, wire
        assert {note.code for note in omitted} <= {warning.code for warning in encoded.warnings}


# --- images in tool results --------------------------------------------------------------------


def sent(wire: str, messages: list[d.Message], **settings: Any) -> tuple[str, list[str]]:
    encoded = connect_codec(wire, **settings).encode(ask(*messages))
    return encoded.http.body.decode(), [note.code for note in encoded.notes]


@pytest.mark.parametrize("wire", SHOWN)
def test_image_in_a_tool_result_is_sent_to_a_model_with_vision(wire: str) -> None:
    body, codes = sent(wire, use(d.Text("Look: "), IMAGE), sees=True)
    assert PNG in body
    assert "left out" not in body
    assert codes == (["image_moved"] if wire == "openai" else [])


@pytest.mark.parametrize("wire", SHOWN)
def test_model_without_vision_gets_a_note_instead_of_an_image(wire: str) -> None:
    body, codes = sent(wire, use(d.Text("Look: "), IMAGE), sees=False)
    assert PNG not in body
    assert (
        "[image (image/png, about 12 bytes) left out: this model is not known to take it" in body
    )
    assert codes == ["image_omitted"]


@pytest.mark.parametrize("wire", ["cohere", "openai"])
def test_configuration_decides_if_images_follow_a_text_result_or_are_omitted(wire: str) -> None:
    """Cohere's vision models cannot use tools, so images in tool results move into a user message
    only if the configuration requests it.
    """
    messages = [*use(d.Text("Look: "), IMAGE, IMAGE), d.Assistant("I see."), *use(IMAGE)[1:]]
    body, codes = sent(wire, messages, quirks={"result_media": "after"})
    assert (body.count(PNG), body.count("[image 1]"), body.count("[image 2]")) == (3, 2, 1)
    assert codes == ["image_moved"] * 3
    roles = [each["role"] for each in json.loads(body)["messages"]]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "assistant", "tool", "user"]
    body, codes = sent(wire, messages, quirks={"result_media": "omit"})
    assert (PNG in body, codes, body.count("left out: this")) == (False, ["image_omitted"] * 3, 3)
    if wire == "cohere":  # requests of Cohere's wire can contain documents
        body, codes = sent(
            wire, use(d.Document(d.Inline(PNG), "text/plain")), quirks={"result_media": "after"}
        )
        assert (PNG in body, codes) == (False, ["document_omitted"])


@pytest.mark.parametrize(
    ("sees", "rule"), [(True, "image_moved"), (None, "image_omitted"), (False, "image_omitted")]
)
def test_plan_reports_what_happens_to_an_image(sees: bool | None, rule: str) -> None:
    known = {} if sees is None else {"supports_images": sees}
    plan = d.connect("m", base_url="http://127.0.0.1:9/v1", capabilities=known).plan(
        use(d.Text("Look: "), IMAGE)
    )
    assert plan.refused is None
    [item] = [item for item in plan.items if item.path == "messages[2].content[1]"]
    assert (item.rule, item.loss) == (rule, rule == "image_omitted")


# --- tool names that servers reject ------------------------------------------------------------


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire not in ("gemini", "ollama")])
def test_characters_that_servers_reject_are_replaced_in_unknown_tool_names(wire: str) -> None:
    """OpenAI's models call ``multi_tool_use.parallel``, but OpenAI's API rejects a conversation
    with that name.
    """
    calls = [
        d.ToolCall("1", "multi_tool_use.parallel", {}),
        d.ToolCall("2", "a.b", {}),
    ]
    messages = [
        d.User("Go."),
        d.Assistant(calls),
        *[d.ToolResult(call.id, "?", is_error=True) for call in calls],
    ]
    request = d.Request(tuple(messages), OFFERED, d.RuntimeConfig(max_tokens=9), model="m")
    encoded = connect_codec(wire).encode(request)
    assert list(called(json.loads(encoded.http.body))) == ["multi_tool_use_parallel", "a_b"]
    renamed = [(note.path, note.loss) for note in encoded.notes if note.code == "name_projected"]
    assert renamed == [
        ("tools[1]", False),
        ("messages[1].content[0]", False),
        ("messages[1].content[1]", False),
    ]
    # Some wires repeat the tool's name in the tool result, where it must be replaced as well.
    assert b"multi_tool_use.parallel" not in encoded.http.body
