"""Cache marks and cache settings, parsed from the arguments of a call."""

import json
from typing import Any, Literal

import pytest

import dragoman as d
from dragoman.validate import build_request
from dragoman.wire import CODECS
from dragoman.wire.caching import list_cache_problems

MARK = {"type": "ephemeral"}


def test_cache_marks_are_parsed_from_json_messages() -> None:
    part = {"type": "text", "text": "a"}
    source = {"type": "inline", "base64_data": "aGk="}
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


@pytest.mark.parametrize("wire", ["openai", "responses"])
@pytest.mark.parametrize(
    ("model", "cache", "fields", "codes"),
    [
        ("gpt-5.5", d.PromptCache(ttl="24h"), {"prompt_cache_retention": "24h"}, []),
        ("gpt-5.5", "off", {}, []),
        ("gpt-5.6-sol", d.PromptCache(ttl="24h"), {"prompt_cache_options": {"ttl": "30m"}},
         ["cache_ttl_shortened"]),
        ("gpt-6.1-sol", d.PromptCache(ttl="5m"), {"prompt_cache_options": {"ttl": "30m"}}, []),
        ("gpt-7", "off", {"prompt_cache_options": {"mode": "explicit"}}, []),
        ("gpt-6-sol", d.PromptCache(auto=False, key="k"), {"prompt_cache_key": "k"}, []),
        ("gpt-6-sol", None, {}, []),
    ],
)  # fmt: skip
def test_cache_settings_have_the_form_of_the_model(
    wire: str, model: str, cache: Any, fields: dict[str, Any], codes: list[str]
) -> None:
    codec = CODECS[wire].connect(model, "http://a.test", None, d.Capabilities(), vendor="azure")
    encoded = codec.encode(d.Request([d.User("Hi")], config=d.RuntimeConfig(cache=cache)))
    body = json.loads(encoded.http.body)
    assert {name: body[name] for name in body if name.startswith("prompt_cache")} == fields
    assert [each.code for each in encoded.warnings] == codes


@pytest.mark.parametrize("wire", ["openai", "responses"])
@pytest.mark.parametrize(
    ("message", "breakpoints"),
    [
        (d.User("a", cache=True), 1),
        (d.User([d.Text("a", cache=True)]), 1),
        (d.User([d.Text("a", cache=True), d.Text("b")]), 1),
        (d.User([d.Text("a"), d.Image(d.Url("https://a.test/b.png"))], cache=True), 1),
        (d.User("a"), 0),
    ],
)
@pytest.mark.parametrize("form", ["breakpoints", "retention"])
def test_marks_become_breakpoints(wire: str, message: d.User, breakpoints: int, form: str) -> None:
    quirks = {"cache_form": form}
    codec = CODECS[wire].connect("m", "http://a.test", quirks, d.Capabilities())
    body = codec.encode(d.Request([message, d.Assistant("x"), d.User("y")])).http.body
    expected = breakpoints if form == "breakpoints" else 0
    assert body.count(b'"prompt_cache_breakpoint":{"mode":"explicit"}') == expected
    assert b"cache_control" not in body


@pytest.mark.parametrize(
    ("form", "body", "problems"),
    [
        (None, {"prompt_cache_retention": "24h"}, []),
        ("breakpoints", {"prompt_cache_retention": "24h"},
         ["prompt_cache_retention is not supported on this model"]),
        ("retention", {"prompt_cache_options": {}},
         ["prompt_cache_options is not supported on this model"]),
        ("retention", {"prompt_cache_retention": "24h"}, []),
        ("breakpoints",
         {"messages": [{"content": [{"prompt_cache_breakpoint": {}}] * 3}, {"content": "Hi"},
                       {"prompt_cache_breakpoint": {}, "output": [{"prompt_cache_breakpoint": {}}]}]},
         ["A maximum of 4 prompt cache breakpoints may be provided. Found 5."]),
    ],
)  # fmt: skip
def test_server_refuses_cache_fields_of_another_form(
    form: str | None, body: dict[str, Any], problems: list[str]
) -> None:
    assert [*list_cache_problems(body, form)] == problems


@pytest.mark.parametrize(("form", "fields"), [("key", {"prompt_cache_key": "k"}), ("none", {})])
def test_server_without_lifetimes_of_the_cache_gets_the_key_alone(
    form: str, fields: dict[str, str]
) -> None:
    codec = CODECS["openai"].connect(
        "m", "http://x.test/v1", {"cache_form": form}, d.Capabilities()
    )
    config = d.RuntimeConfig(cache=d.PromptCache(key="k", ttl="1h"))
    encoded = codec.encode(d.Request([d.User("Hi")], config=config))
    body = json.loads(encoded.http.body)
    assert {name: value for name, value in body.items() if "cache" in name} == fields
    assert any("cache" in each.code for each in encoded.warnings)


@pytest.mark.parametrize("cache", [None, "auto", "off"])
@pytest.mark.parametrize("wire", sorted(CODECS))
def test_marks_that_are_not_sent_are_noted_unless_caching_is_off(
    wire: str, cache: Literal["auto", "off"] | None
) -> None:
    codec = CODECS[wire].connect("m", "https://h.example", None, d.Capabilities())
    config = d.RuntimeConfig(max_tokens=9, cache=cache)
    encoded = codec.encode(d.Request([d.User([d.Text("Hi", cache=True)])], config=config))
    noted = [note.code for note in encoded.notes if note.code == "cache_mark_dropped"]
    is_sent = b"cache_control" in encoded.http.body or b"cachePoint" in encoded.http.body
    assert (bool(noted) or is_sent) == (cache != "off")
    assert "cache_mark_dropped" not in {each.code for each in encoded.warnings}
    plain = codec.encode(d.Request([d.User("Hi")], config=config))
    assert "cache_mark_dropped" not in {note.code for note in plain.notes}
