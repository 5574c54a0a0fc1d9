"""If a server rejects a request, the provider remembers the rejection: for the endpoint if the
error names a request field, otherwise only for the schema of the request.
"""

import json
import logging
from typing import Any

import pytest

import dragoman as d
from dragoman.conformance.cases import read_request
from dragoman.provider import HttpProvider
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS
from dragoman.wire.lessons import MAX_LESSONS, is_about_field
from tests.rows import read_table


def closed(name: str) -> dict[str, Any]:
    return {
        "title": name,
        "type": "object",
        "properties": {name: {"type": "integer"}},
        "required": [name],
        "additionalProperties": False,
    }


REFUSED = (
    "Invalid schema for response_format 'a': In context=('properties', 'a'), 'oneOf' is not "
    "permitted."
)
NO_FIELD = "'response_format' of type 'json_schema' is not supported with this model."


def error(message: str) -> tuple[int, dict[str, str], list[bytes]]:
    return (
        400,
        {},
        [json.dumps({"error": {"message": message, "param": "response_format"}}).encode()],
    )


def answer(name: str) -> tuple[int, dict[str, str], list[bytes]]:
    content = json.dumps({name: 1})
    return (
        200,
        {},
        [
            json.dumps(
                {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
            ).encode()
        ],
    )


async def test_rejection_of_one_schema_does_not_affect_other_schemas(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport = FixtureTransport(
        error(REFUSED), error(REFUSED), answer("a"), answer("b"), answer("a")
    )
    model = d.connect("m", base_url="http://test", transport=transport)
    with caplog.at_level(logging.WARNING, "dragoman"):
        paths = [
            (await model.complete("hi", response_schema=closed(name))).structured_path
            for name in "aba"
        ]
    assert paths == ["prompt", "native", "prompt"]
    formats = [json.loads(request.body).get("response_format") for request in transport.requests]
    found = [form and form["json_schema"]["strict"] for form in formats]
    assert found == [True, False, None, True, None]
    learned = [
        "the endpoint refused the schema a: strict_schemas=False",
        "the endpoint refused the schema a: structured='prompt'",
    ]
    assert [record.getMessage() for record in caplog.records] == [
        f"{model.name}/m: {detail}" for detail in learned
    ]
    assert d.describe(model).splitlines()[1:] == [f"  learned: {detail}" for detail in learned]


async def test_rejection_of_the_format_field_affects_every_schema(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport = FixtureTransport(error(NO_FIELD), answer("a"), answer("b"))
    model = d.connect("m", base_url="http://test", transport=transport, retries=1)
    with caplog.at_level(logging.WARNING, "dragoman"):
        paths = [
            (await model.complete("hi", response_schema=closed(name))).structured_path
            for name in "ab"
        ]
    assert paths == ["prompt", "prompt"]
    assert len(caplog.records) == 1
    assert (
        d.describe(model).splitlines()[-1]
        == "  learned: the endpoint refused structured output: structured='prompt'"
    )


def test_new_provider_remembers_no_rejections() -> None:
    model = d.connect("m", base_url="http://test")
    assert model.lessons == ()
    assert len(d.describe(model).splitlines()) == 1


@pytest.mark.parametrize(
    ("wire", "message", "schema_message"),
    [
        (
            "openai",
            "'response_format' of type 'json_schema' is not supported with this model.",
            (
                "Invalid schema for response_format 'a': In context=('properties', 'a'), 'oneOf' "
                "is not permitted."
            ),
        ),
        (
            "responses",
            "Unknown parameter: 'text.format'.",
            "Invalid schema for response_format: text.format.schema",
        ),
        (
            "anthropic",
            "output_config: Extra inputs are not permitted",
            "output_config.format.schema: too complex",
        ),
        (
            "anthropic",
            "structured output is not supported with this model",
            (
                "The compiled grammar is too large, which would cause performance issues. "
                "Simplify your tool schemas or reduce the number of strict tools."
            ),
        ),
        (
            "gemini",
            "Unknown name \"responseJsonSchema\" at 'generation_config': Cannot find field.",
            "Unknown name \"$ref\" at 'generation_config.response_json_schema': Cannot find field.",
        ),
        ("ollama", "format: unsupported", "invalid JSON schema in format"),
    ],
)
def test_every_wire_distinguishes_a_rejected_schema_from_a_rejected_field(
    wire: str, message: str, schema_message: str
) -> None:
    codec: Any = CODECS[wire].connect("m", "http://127.0.0.1:9", None, d.Capabilities())
    request = d.Request(
        (d.User("hi"),),
        tools=(),
        config=d.RuntimeConfig(max_tokens=9),
        response_schema=closed("a"),
        model="m",
    )
    other = d.Request(
        (d.User("hi"),),
        tools=(),
        config=d.RuntimeConfig(max_tokens=9),
        response_schema=closed("b"),
        model="m",
    )
    for said, spares_others in ((message, False), (schema_message, True)):
        lesson = codec.learn(d.InvalidRequestError("", status=400, provider_message=said), request)
        assert lesson is not None
        assert lesson.encode(request).http.body != codec.encode(request).http.body
        assert (lesson.encode(other).http.body == codec.encode(other).http.body) is spares_others
        assert codec.lessons == ()


def test_number_of_remembered_schema_rejections_is_limited() -> None:
    codec: Any = CODECS["openai"].connect("m", "http://127.0.0.1:9", None, d.Capabilities())
    refusal = d.InvalidRequestError("", status=400, provider_message=REFUSED)
    for number in range(MAX_LESSONS + 5):
        request = d.Request((d.User("hi"),), response_schema=closed(f"n{number}"), model="m")
        codec = codec.learn(refusal, request)
    assert len(codec.lessons) == MAX_LESSONS
    assert codec.quirks_for(d.Request((d.User("hi"),), model="m")) is codec.quirks


def test_concurrent_rejections_are_remembered_once() -> None:
    request = d.Request((d.User("hi"),), response_schema=closed("a"), model="m")
    other = d.Request((d.User("hi"),), response_schema=closed("b"), model="m")
    learned = {}
    for message in (NO_FIELD, REFUSED):
        model = d.connect("m", base_url="http://test", transport=FixtureTransport(answer("a")))
        assert isinstance(model, HttpProvider)
        first = model.codec
        for each in (request, other):  # both requests were sent before the first rejection
            # Passing the error directly simulates two concurrent rejections.
            model._learn(  # noqa: SLF001
                first, d.InvalidRequestError("", status=400, provider_message=message), each
            )
        learned[message] = [lesson.split(":")[0] for lesson in model.lessons]
    assert learned == {
        NO_FIELD: ["the endpoint refused structured output"],
        REFUSED: ["the endpoint refused the schema a", "the endpoint refused the schema b"],
    }


@pytest.mark.parametrize(
    ("message", "is_field"), read_table("rejections_of_fields_and_schemas_are_distinguished")
)
def test_rejections_of_fields_and_schemas_are_distinguished(message: str, is_field: bool) -> None:
    assert is_about_field(message) is is_field


# --- what each wire learns ---------------------------------------------------------------------

Fields = dict[str, Any]
NATIVE: Fields = {"response_schema": closed("a")}
STREAM: Fields = {"stream": True}
STRICT: Fields = {"tools": (d.Tool("f", "", parameters=closed("a")),)}

LEARNED = read_table("lessons")


def make(wire: str, quirks: Fields) -> Any:
    known = d.Capabilities()
    return CODECS[wire].connect("m", "http://h/v1", quirks, known, vendor="v", keep_raw=False)


@pytest.mark.parametrize(("wire", "status", "says", "fields", "before", "learned"), LEARNED)
def test_rejected_fields_are_learned_from_error_texts(
    wire: str, status: int, says: str, fields: Fields, before: Fields, learned: Fields | None
) -> None:
    codec = make(wire, before)
    text, _, code = says.partition("|")
    plain = {"messages": [{"role": "user", "content": "Hello"}], "config": {"max_tokens": 9}}
    request = read_request(json.dumps({**plain, **fields}).encode(), "m")
    body = json.dumps({"error": {"message": text, "code": code or None}}).encode()
    refusal = codec.error(status, {}, body)
    lesson = codec.learn(refusal, request)
    assert (lesson is None) is (learned is None)
    if learned is None:
        return
    assert lesson.quirks_for(request) == make(wire, {**before, **learned}).quirks
    assert lesson.encode(request).http.body != codec.encode(request).http.body
    # The private attribute ``_keep_raw`` must be copied as well.
    found = (lesson.model, lesson.base_url, lesson.issuer_vendor, lesson._keep_raw)  # noqa: SLF001
    assert found == ("m", codec.base_url, "v", False)
    assert codec.quirks == make(wire, before).quirks


@pytest.mark.parametrize(
    ("wire", "says", "fields", "times"),
    [
        ("openai", "stream_options response_format json_schema", {**NATIVE, **STREAM}, 3),
        ("responses", "unknown include, invalid schema for function, text.format",
         {**NATIVE, **STRICT}, 4),
    ],
)  # fmt: skip
def test_repeated_rejections_are_learned_a_limited_number_of_times(
    wire: str, says: str, fields: Fields, times: int
) -> None:
    codec = make(wire, {})
    count = -1
    refusal = d.InvalidRequestError("", status=400, provider_message=says)
    while codec is not None:
        codec = codec.learn(refusal, d.Request((d.User("Hello"),), model="m", **fields))
        count += 1
    assert count == times
