"""Requests that ask a server to count tokens, and the counts read from its replies."""

import json
from typing import Any

import pytest

from dragoman.errors import InvalidResponseError, ProviderError
from dragoman.messages import Image, Inline, Request, RuntimeConfig, System, Text, User
from dragoman.wire import CODECS, HttpReply, HttpRequest
from dragoman.wire.counting import count_tokens

REQUEST = Request(
    (System("Be brief."), User("Hi")),
    config=RuntimeConfig(max_tokens=9, temperature=0.5),
    model="m",
)
Replies = list[tuple[int, Any]]


def run(
    wire: str, base_url: str, replies: Replies, request: Request = REQUEST, **quirks: Any
) -> tuple[int | None, list[HttpRequest]]:
    """Return the token count and the requests that were sent for it."""
    codec: Any = CODECS[wire]("m", base_url)
    if quirks:
        codec = type(codec)("m", base_url, type(codec.quirks)(**quirks))
    questions = count_tokens(codec, codec.encode(request), "m")
    asked: list[HttpRequest] = []
    try:
        asked.append(next(questions))
        for status, body in replies:
            asked.append(questions.send(HttpReply(status, {}, json.dumps(body).encode())))
    except StopIteration as end:
        return end.value, asked
    raise AssertionError("more questions than replies")


CASES: list[tuple[str, str, str, Any, str]] = [
    ("anthropic", "http://a.test", "http://a.test/v1/messages/count_tokens", {"input_tokens": 7},
     "messages model system"),
    ("responses", "http://a.test/v1", "http://a.test/v1/responses/input_tokens",
     {"input_tokens": 7}, "input instructions model"),
    ("gemini", "http://a.test", "http://a.test/v1beta/models/m:countTokens", {"totalTokens": 7},
     "generateContentRequest"),
    ("gemini", "http://a.test/v1/projects/p/locations/l/publishers/google",
     "http://a.test/v1/projects/p/locations/l/publishers/google/models/m:countTokens",
     {"totalTokens": 7}, "contents systemInstruction"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "base", "url", "reply", "fields"), CASES)
def test_token_count_is_read_from_the_server(
    wire: str, base: str, url: str, reply: Any, fields: str
) -> None:
    count, [asked] = run(wire, base, [(200, reply)])
    assert count == 7
    assert asked.url == url
    assert " ".join(sorted(json.loads(asked.body))) == fields
    for wrong in (
        {},
        [],
        {"input_tokens": True, "totalTokens": True},
        {"input_tokens": -1, "totalTokens": -1},
    ):
        with pytest.raises(InvalidResponseError, match="no count"):
            run(wire, base, [(200, wrong)])
    with pytest.raises(ProviderError):
        run(wire, base, [(404, {"error": {"message": "no such route"}})])


def test_token_counting_request_to_gemini_names_the_model() -> None:
    _, [asked] = run("gemini", "http://a.test", [(200, {"totalTokens": 7})])
    inner = json.loads(asked.body)["generateContentRequest"]
    assert inner["model"] == "models/m"
    assert inner["generationConfig"]["maxOutputTokens"] == 9


def test_tokens_are_counted_with_the_servers_template_and_tokenizer() -> None:
    replies: Replies = [(200, {"prompt": "<s>Hi"}), (200, {"tokens": [1, 2, 3]})]
    count, asked = run("openai", "http://a.test/v1", replies, any_model=True)
    assert count == 3
    assert [question.url for question in asked] == [
        "http://a.test/apply-template",
        "http://a.test/tokenize",
    ]
    assert sorted(json.loads(asked[0].body)) == ["messages"]
    assert json.loads(asked[1].body) == {
        "content": "<s>Hi",
        "add_special": True,
        "parse_special": True,
    }
    for wrong in ([(200, {})], [(200, {"prompt": "x"}), (200, {"tokens": 3})]):
        with pytest.raises(InvalidResponseError):
            run("openai", "http://a.test/v1", wrong, any_model=True)


def test_no_token_count_is_requested_where_the_server_cannot_count() -> None:
    picture = Request((User((Text("What?"), Image(Inline("aGk="), "image/png"))),), model="m")
    assert run("openai", "http://a.test/v1", [], picture, any_model=True) == (None, [])
    assert run("openai", "http://a.test/v1", []) == (None, [])
    assert run("ollama", "http://a.test", []) == (None, [])
    assert run("anthropic", "http://a.test/v1/publishers/anthropic", [], raw_predict=True) == (
        None,
        [],
    )
