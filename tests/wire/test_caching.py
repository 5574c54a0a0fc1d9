"""Cache marks and cache settings, parsed from the arguments of a call."""

from typing import Any

import pytest

import dragoman as d
from dragoman.validate import build_request
from dragoman.wire import CODECS

MARK = {"type": "ephemeral"}


def test_cache_marks_are_parsed_from_json_messages() -> None:
    part, source = {"type": "text", "text": "a"}, {"type": "inline", "base64_data": "aGk="}
    said = [
        {"role": "system", "content": "s", "cache": True},
        {"role": "user", "content": [{**part, "cache_control": MARK}, {**part, "text": "b"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "f",
                                                             "arguments": {}}]},
        {"role": "tool", "tool_call_id": "c", "content": "r", "cache": True},
        {"role": "user", "content": [
            {"type": "image_url", "image_url": "https://a.test/b.png", "cache_control": MARK},
            {"type": "image_url", "image_url": {"url": "https://a.test/b.png"}, "cache": True},
            {"type": "image", "source": source, "media_type": "image/png", "cache": True},
            {"type": "document", "source": source, "cache": True},
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="},
             "cache": True},
        ], "cache": True},
    ]  # fmt: skip
    assert list(d.parse_messages(said)) == [
        d.System("s", True),
        d.User([d.Text("a", cache=True), d.Text("b")]),
        d.Assistant([d.ToolCall("c", "f", {})]),
        d.ToolResult("c", "r", cache=True),
        d.User(
            [
                d.Image(d.Url("https://a.test/b.png"), cache=True),
                d.Image(d.Url("https://a.test/b.png"), cache=True),
                d.Image(d.Inline("aGk="), "image/png", cache=True),
                d.Document(d.Inline("aGk="), cache=True),
                d.Document(d.Inline("aGk="), cache=True),
            ],
            cache=True,
        ),
    ]


@pytest.mark.parametrize("mark", [{"type": "forever"}, {"type": "ephemeral", "ttl": "1h"}, {}])
def test_invalid_cache_marks_are_rejected(mark: dict[str, Any]) -> None:
    with pytest.raises(d.InvalidRequestError, match="cache_control"):
        d.parse_messages(
            [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": mark}]}]
        )


def test_cache_setting_of_a_single_call_is_used() -> None:
    request = build_request("Hi", settings={"cache": "auto"})
    assert request.config.cache == "auto"
    request = build_request("Hi", config={"cache": {"ttl": "1h", "key": "k"}})
    assert request.config.cache == d.PromptCache(ttl="1h", key="k")
    with pytest.raises(d.InvalidRequestError, match="cache"):
        build_request("Hi", config={"cache": "always"})


@pytest.mark.parametrize(
    ("cache", "sent"),
    [
        (None, None),
        ("off", None),
        ("auto", "s%201"),
        (d.PromptCache(auto=False), None),
        (d.PromptCache(key="k"), "k"),
    ],
)
def test_session_is_sent_in_the_header_that_routes_to_one_cache(
    cache: Any, sent: str | None
) -> None:
    codec = CODECS["openai"].connect(
        "grok-3", "https://api.x.ai/v1", {"cache_header": "x-grok-conv-id"}, d.Capabilities()
    )
    config = d.RuntimeConfig(cache=cache)
    http = codec.encode(d.Request([d.User("Hi")], config=config, session_id="s 1")).http
    assert http.headers.get("x-grok-conv-id") == sent
    assert b"prompt_cache_key" not in http.body
