"""Each field of a client's request is decoded, forwarded to the provider, reported as lost, or
rejected.
"""

import contextlib
import os
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dragoman as d
from dragoman.wire import SERVER_CODECS, Asked
from dragoman.wire.responses.echo import show_tools
from tests import strategies as some
from tests.rows import read_table

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"
HELLO = {"role": "user", "content": "Hello"}
PLAIN: dict[str, dict[str, Any]] = {
    "openai": {"model": "m", "messages": [HELLO]},
    "anthropic": {"model": "m", "max_tokens": 9, "messages": [HELLO]},
    "responses": {"model": "m", "input": [HELLO]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
}
PATHS = {"gemini": "/v1beta/models/m:generateContent"}
SCHEMA = {"type": "object", "properties": {}}


def decode(wire: str, **fields: Any) -> Asked:
    return SERVER_CODECS[wire].decode(
        msgspec.json.encode({**PLAIN[wire], **fields}), PATHS.get(wire, "")
    )


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [HELLO, {"role": "assistant", "content": list(blocks)}]}


def parts(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"contents": [{"role": role, "parts": list(blocks)}]}


# Each row: a wire, an invalid field, and the beginning of the error text.
@pytest.mark.parametrize(("wire", "fields", "complaint"), read_table("rejected_fields"))
def test_invalid_field_is_named_in_the_error(
    wire: str, fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(d.InvalidRequestError) as caught:
        decode(wire, **fields)
    assert str(caught.value).startswith(complaint)


PLACEHOLDER = "[content of another kind]"


@pytest.mark.parametrize(
    ("wire", "block"),
    [
        ("openai", {"type": "video_url", "video_url": {"url": "https://a.test/b.mp4"}}),
        ("openai", {"type": "file", "file": {"file_id": "x"}}),
        ("anthropic", {"type": "video", "source": "x"}),
        ("responses", {"type": "input_audio", "data": "x"}),
        ("responses", {"type": "input_image", "file_id": "x"}),
        ("gemini", {"executableCode": {}}),
    ],
)
def test_unsupported_content_of_a_user_message_is_replaced_and_recorded(
    wire: str, block: dict[str, Any]
) -> None:
    field = "input" if wire == "responses" else "messages"
    content = {field: [{"role": "user", "content": [block]}]}
    asked = decode(wire, **(parts(block) if wire == "gemini" else content))
    (message,) = asked.request.messages
    assert message.text == PLACEHOLDER
    assert [(each.code, each.rule.effect) for each in asked.left] == [
        ("content_dropped", "refused")
    ]


def test_unsupported_content_of_other_roles_is_rejected_or_replaced() -> None:
    image = {"type": "input_image", "image_url": "https://a.test/b.png"}
    source = {"type": "image", "source": {"type": "file", "file_id": "x"}}
    for wire, fields in (
        ("responses", {"input": [{"role": "system", "content": [image]}]}),
        ("anthropic", {"messages": [{"role": "user", "content": [source]}]}),
    ):
        with pytest.raises(d.UnsupportedContentError):
            decode(wire, **fields)
    for wire, fields in (
        ("responses", {"input": [{"role": "assistant", "content": [image]}]}),
        ("openai", {"messages": [{"role": "system", "content": [{"type": "image_url"}]}]}),
    ):
        asked = decode(wire, **fields)
        (message,) = asked.request.messages
        assert PLACEHOLDER in str(message.content)
        assert [each.code for each in asked.left] == ["content_dropped"]


@pytest.mark.parametrize(
    "path", ["", "/v1beta/models/m", "/v1beta/models/:generateContent", "/v1/models/m:embed"]
)
def test_gemini_url_path_without_model_and_method_is_rejected(path: str) -> None:
    with pytest.raises(d.InvalidRequestError, match="the path must end with"):
        SERVER_CODECS["gemini"].decode(b'{"contents": []}', path)


def test_turns_of_a_responses_request_are_read() -> None:
    system = [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "terse."}]
    request = decode(
        "responses",
        input=[
            {"role": "system", "content": system},
            HELLO,
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        ],
        truncation="disabled",
        stream=True,
        stream_options={"include_obfuscation": False},
    ).request
    assert request.messages == (d.System("Be terse."), d.User("Hello"), d.Assistant("No."))
    assert request.config.extras == {}
    assert decode("responses", input="Hello").request.messages == (d.User("Hello"),)
    form = {"type": "json_object"}
    assert decode("responses", text={"format": form}).with_extras().config.extras == {
        "text": {"format": form}
    }


def test_turns_of_a_messages_request_are_read() -> None:
    call = {"type": "tool_use", "id": "t", "name": "a", "input": {}, "caller": {"type": "direct"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "rain"}
    messages = [
        HELLO,
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "text", "text": "Here:"}, result]},
    ]
    _, text, _, asked, here, answer = decode("anthropic", messages=messages).request.messages
    assert (text, here, answer) == (d.Assistant("Hm."), d.User("Here:"), d.ToolResult("t", "rain"))
    assert asked == d.Assistant([d.ToolCall("t", "a", {})])


POINT = {"type": "Point", "nullable": True, "min_items": "2"}


def test_values_in_a_gemini_schema_are_not_read_as_schemas() -> None:
    """Only schemas are converted to JSON Schema; a value may have any key, also ``type``."""
    values = {"default": POINT, "enum": [POINT], "const": POINT, "example": POINT}
    given = {
        "type": "OBJECT",
        "properties": {"type": {"type": "STRING", **values, "examples": [POINT]}},
        "$defs": {"nullable": {"type": "ARRAY", "min_items": "1"}},
    }
    read = {
        "type": "object",
        "properties": {"type": {"type": "string", **values, "examples": [POINT]}},
        "$defs": {"nullable": {"type": "array", "minItems": 1}},
    }
    for field, schema, expected in (
        ("parameters", given, read),
        ("parametersJsonSchema", read, read),
        ("parametersJsonSchema", given, given),
    ):
        asked = decode("gemini", tools=[{"functionDeclarations": [{"name": "f", field: schema}]}])
        assert asked.request.tools[0].parameters == expected, field


def test_turns_of_a_gemini_request_are_read() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    request = decode(
        "gemini",
        contents=[
            {"parts": [{"text": "Hello"}]},
            {"role": "model", "parts": [code, {"functionCall": {"name": "a"}}]},
            {
                "parts": [
                    {"text": "Here:"},
                    {"functionResponse": {"name": "a", "response": {"a": 1, "b": 2}}},
                ]
            },
        ],
    ).request
    assert request.messages[1].content[0] == d.Opaque(
        code, d.Continuity(issuer=d.Issuer("gemini"))
    )
    assert request.messages[2] == d.User("Here:")
    assert request.messages[3].content == '{"a":1,"b":2}'
    again = parts({"functionCall": {"name": "a"}}, role="model")["contents"]
    again += parts({"functionResponse": {"name": "a", "response": {"result": 5}}})["contents"]
    assert decode("gemini", contents=again).request.messages[1].content == '{"result":5}'


@pytest.mark.parametrize(
    ("results", "answered"),
    [
        ([{"name": "a", "id": "2"}, {"name": "a", "id": "1"}], ["2", "1"]),
        ([{"name": "b"}, {"name": "a"}], ["2", "1"]),
        ([{"name": "a", "id": "other"}, {"name": "b", "id": "1"}], ["1", "2"]),
        # Semantic Kernel sends other names than those of the calls, and no ids
        ([{"name": "a__x"}, {"name": "b__x"}], ["1", "2"]),
        ([{"name": "b__x"}, {"name": "a"}], ["2", "1"]),
    ],
)
def test_function_response_answers_a_call_by_id_then_name_then_position(
    results: list[dict[str, Any]], answered: list[str]
) -> None:
    calls = [{"functionCall": {"name": name, "id": at}} for name, at in (("a", "1"), ("b", "2"))]
    given = [{"functionResponse": {**each, "response": {"result": "r"}}} for each in results]
    contents = [
        *parts({"text": "Hi"})["contents"],
        *parts(*calls, role="model")["contents"],
        *parts(*given)["contents"],
    ]
    messages = decode("gemini", contents=contents).request.messages
    assert [each.tool_call_id for each in messages if isinstance(each, d.ToolResult)] == answered


def test_turns_of_a_chat_completions_request_are_read() -> None:
    image = {
        "type": "image",
        "source": {"type": "inline", "base64_data": "aGk="},
        "media_type": "image/png",
    }
    request = decode(
        "openai", messages=[{"role": "user", "content": [image]}], response_format={"type": "text"}
    ).request
    assert request.messages == (d.User([d.Image(d.Inline("aGk="), "image/png")]),)
    assert request.response_schema is None


def test_system_message_in_several_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    for role in ("system", "developer"):
        request = decode("openai", messages=[{"role": role, "content": parts}, HELLO]).request
        assert request.messages == (d.System("Be brief."), d.User("Hello"))


def test_unknown_field_with_an_empty_list_is_ignored() -> None:
    request = decode("gemini", safetySettings=[]).with_extras()
    assert (request.messages, request.config.extras) == ((d.User("Hello"),), {})


def test_request_fields_that_the_response_repeats_are_kept() -> None:
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    asked = decode("responses", tools=tools, text=form)
    shown = {"description": None, **tools[0], "strict": None}
    assert asked.echo == {"tools": [shown], "text": form}
    assert decode("responses").echo == {}
    assert show_tools(None) == []


@pytest.mark.parametrize(
    ("data", "standard"), [("-_8", "+/8="), ("-_-_", "+/+/"), ("aGk=", "aGk=")]
)
def test_gemini_field_names_and_base64_data_may_use_either_style(data: str, standard: str) -> None:
    picture = [{"inline_data": {"mime_type": "image/png", "data": data}}]
    fields = {
        "contents": [{"role": "user", "parts": picture}],
        "generation_config": {"max_output_tokens": 5},
    }
    request = decode("gemini", **fields, labels={"a_b": "c"}).with_extras()
    assert request.messages == (d.User([d.Image(d.Inline(standard), "image/png")]),)
    assert (request.config.max_tokens, request.config.extras) == (5, {"labels": {"a_b": "c"}})


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"5", b"{", b'{"model": "\xff"}', b"[" * 100_000, b'{"a":' * 5000]
)
@pytest.mark.parametrize("wire", PLAIN)
def test_body_that_is_not_an_object_is_rejected(wire: str, body: bytes) -> None:
    with pytest.raises(d.InvalidRequestError):
        SERVER_CODECS[wire].decode(body)


KEPT: list[tuple[str, dict[str, Any]]] = [
    ("openai", {"logit_bias": {"5": 1}, "user": "u", "parallel_tool_calls": False}),
    ("openai", {"response_format": {"type": "json_object"}}),
    ("responses", {"parallel_tool_calls": False, "include": ["message.output_text.logprobs"]}),
    ("responses", {"text": {"verbosity": "low"}, "tools": [{"type": "web_search"}]}),
    ("anthropic", {"top_k": 5, "metadata": {"user_id": "u"}}),
    ("anthropic", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}}),
    ("anthropic", {"thinking": {"type": "adaptive"}}),
    ("anthropic", {"output_config": {"effort": "max"}}),
    ("gemini", {"safetySettings": [{"category": "A", "threshold": "B"}], "labels": {"a": "b"}}),
]


@pytest.mark.parametrize(("wire", "fields"), KEPT)
def test_unknown_field_is_forwarded_to_the_provider(wire: str, fields: dict[str, Any]) -> None:
    asked = decode(wire, **fields)
    assert asked.with_extras().config.extras == fields
    assert asked.warnings == ()


LOST: list[tuple[str, dict[str, Any], str, str]] = read_table("lost_fields")


@pytest.mark.parametrize(("wire", "fields", "code", "path"), LOST)
def test_dropped_optional_field_is_reported_by_name(
    wire: str, fields: dict[str, Any], code: str, path: str
) -> None:
    asked = decode(wire, **fields)
    assert [(warning.code, warning.path) for warning in asked.warnings] == [(code, path)]
    assert asked.with_extras().config.extras == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "x"},
        {"background": True},
        {"input": [{"type": "item_reference", "id": "x"}]},
    ],
)
def test_stored_state_is_rejected_without_a_store(fields: dict[str, Any]) -> None:
    with pytest.raises(d.UnsupportedFeatureError, match="start the gateway with --store"):
        decode("responses", **fields).with_extras()


def test_token_usage_of_a_stream_is_sent_if_the_client_asks_for_it() -> None:
    asked = decode("openai", stream=True, stream_options={"include_usage": True}, stop="END")
    assert (asked.stream_usage, asked.request.config.stop_sequences) == (True, ("END",))
    assert not decode("openai", stream=True).stream_usage


def test_token_counting_request_needs_no_max_tokens() -> None:
    body = msgspec.json.encode({"model": "m", "messages": [HELLO]})
    asked = SERVER_CODECS["anthropic"].decode(body, "/v1/messages/count_tokens")
    assert asked.request.config.max_tokens is None


KEYS = read_table("field_names")


@pytest.mark.parametrize(("wire", "headers", "key"), KEYS)
def test_api_key_of_the_client_is_read_from_the_headers(
    wire: str, headers: dict[str, str], key: str | None
) -> None:
    assert SERVER_CODECS[wire].key(headers) == key


FIELDS = dict(read_table("kept_fields"))


BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "x"])},
    optional=dict.fromkeys(
        ("text", "source", "input", "content", "id", "name", "image_url"), some.json_values
    ),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "tool", "system"]),
            "content": some.json_values | st.lists(BLOCKS, max_size=2),
        }
    )
)
REQUESTS = {
    wire: st.dictionaries(st.sampled_from(names.split()), some.json_values | MESSAGES, max_size=4)
    for wire, names in FIELDS.items()
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire", FIELDS)
@settings(max_examples=1000 if EXHAUSTIVE else 10)
@given(data=st.data())
def test_any_json_request_is_read_or_rejected_with_a_request_error(
    wire: str, data: st.DataObject
) -> None:
    with contextlib.suppress(d.InvalidRequestError, d.UnsupportedContentError):
        decode(wire, **data.draw(REQUESTS[wire]))


@pytest.mark.parametrize("wire", sorted(SERVER_CODECS))
@pytest.mark.parametrize(("status", "expected"), [(307, 502), (400, 400), (None, 400)])
def test_redirect_from_the_provider_is_reported_as_a_server_error(
    wire: str, status: int | None, expected: int
) -> None:
    assert SERVER_CODECS[wire].error(d.InvalidRequestError("no", status=status)).status == expected


@pytest.mark.parametrize(
    ("calling", "choice", "names"),
    [
        ({"mode": "ANY", "allowedFunctionNames": ["f"]}, d.ForceTool("f"), ["f", "g", "h"]),
        ({"mode": "ANY", "allowedFunctionNames": ["f", "g"]}, "required", ["f", "g"]),
        ({"mode": "AUTO", "allowedFunctionNames": ["h"]}, "auto", ["h"]),
        ({"mode": "VALIDATED"}, "auto", ["f", "g", "h"]),
    ],
)
def test_gemini_allowed_tools_are_read(calling: Any, choice: Any, names: list[str]) -> None:
    tools = [{"functionDeclarations": [{"name": name} for name in "fgh"]}]
    body = {
        "contents": [{"parts": [{"text": "Hi"}]}],
        "tools": tools,
        "toolConfig": {"functionCallingConfig": calling},
    }
    asked = SERVER_CODECS["gemini"].decode(body, "/v1beta/models/m:generateContent")
    assert (asked.request.tool_choice, [tool.name for tool in asked.request.tools]) == (
        choice,
        names,
    )


def test_gemini_parts_with_thought_false_are_read_as_ordinary_parts() -> None:
    """Some clients write ``thought: false`` on every part."""
    said = {"text": "Hi", "thought": False}
    call = {"functionCall": {"name": "f", "args": {}}, "thought": False}
    answer = {"functionResponse": {"name": "f", "response": {"result": "r"}}, "thought": False}
    turns = [("user", said), ("model", call), ("user", answer)]
    contents = [{"role": role, "parts": [part]} for role, part in turns]
    body = {"contents": contents, "systemInstruction": {"parts": [said]}}
    read = SERVER_CODECS["gemini"].decode(body, "/v1beta/models/m:generateContent").request
    found = [type(message).__name__ for message in read.messages]
    assert found == ["System", "User", "Assistant", "ToolResult"]
    contents[0]["parts"] = [{"text": "Hi", "thought": True}]
    with pytest.raises(d.InvalidRequestError, match=r"contents\[0\].parts\[0\].thought"):
        SERVER_CODECS["gemini"].decode(body, "/v1beta/models/m:generateContent")


def test_field_for_thinking_next_to_an_effort_becomes_an_extra_field() -> None:
    thinking = {"type": "enabled", "clear_thinking": False}
    for effort in ("max", "high"):
        asked = decode("openai", reasoning_effort=effort, thinking=thinking)
        assert asked.with_extras().config.extras["thinking"] == thinking
