"""Prompt caching: cache marks, cache keys and handles of cached content, and warnings where a wire
has no field for them.
"""

import json
from typing import Any

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.validate import build_request
from dragoman.wire import CODECS, SERVER_CODECS

MARK = {"type": "ephemeral"}
HOUR = {**MARK, "ttl": "1h"}
TOOLS = (d.Tool("a"), d.Tool("b"))
LONG: list[d.Message] = [
    d.System("Be terse."),
    d.User("one"),
    d.Assistant("1"),
    d.User("two"),
    d.Assistant("2"),
    d.User("three"),
]


def encode(
    wire: str,
    messages: list[d.Message],
    cache: Any = None,
    tools: Any = (),
    session_id: str | None = None,
    **quirks: Any,
) -> tuple[dict[str, Any], tuple[d.LossWarning, ...]]:
    codec = CODECS[wire].connect("m", "https://api.example.com", quirks or None, d.Capabilities())
    config = d.RuntimeConfig(max_tokens=9, cache=cache)
    encoded = codec.encode(d.Request(messages, tools, config, session_id=session_id))
    return json.loads(encoded.http.body), encoded.warnings


def marks(body: Any, path: str = "") -> list[str]:
    """Return the paths of cache marks in a body, in order."""
    if isinstance(body, list):
        return [found for at, item in enumerate(body) for found in marks(item, f"{path}[{at}]")]
    if not isinstance(body, dict):
        return []
    inner = [found for name, value in body.items() for found in marks(value, f"{path}.{name}")]
    return [*inner, *([path] if "cache_control" in body else [])]


# --- where cache marks are placed --------------------------------------------------------------


ROUTER: dict[str, Any] = {"cache_control": True}
PNG = d.Image(d.Inline("aGk="), "image/png", cache=True)
MARKED: list[d.Message] = [
    d.System("Be terse.", cache=True),
    d.System("Be kind."),
    d.User([d.Text("book", cache=True), d.Text("question")]),
    d.Assistant([d.Text("Hm."), d.ToolCall("c", "a", {})]),
    d.ToolResult("c", [d.Text("r", cache=True), d.Text("s")]),
    d.User("go on", cache=True),
]
ANSWERED: list[d.Message] = [
    d.User("a"),
    d.Assistant([d.Text("b", cache=True), d.ToolCall("c", "a", {})]),
    d.ToolResult("c", "r", cache=True),
]

# Each entry: the wire, its quirks, the messages, the setting, and the places of the cache marks.
PLACES: list[tuple[str, dict[str, Any], list[d.Message], Any, str]] = [
    ("anthropic", {}, LONG, None, ""),
    ("anthropic", {}, LONG, "off", ""),
    ("anthropic", {}, [d.User("one")], "auto", "messages[0].content[0]"),
    ("anthropic", {}, MARKED, "off", ""),
    ("anthropic", {}, MARKED, None,
     "system[0] messages[0].content[0] messages[2].content[0] messages[2].content[1]"),
    ("anthropic", {}, ANSWERED, None, "messages[1].content[0] messages[2].content[0]"),
    ("openai", ROUTER, LONG, "off", ""),
    ("openai", ROUTER, LONG, "auto",
     "messages[0].content[0] messages[3].content[0] messages[5].content[0]"),
    ("openai", ROUTER, [MARKED[0], *MARKED[2:5]], None,
     "messages[0].content[0] messages[1].content[0] messages[3].content[0]"),
    *[
        (wire, quirks, [message], None, place)
        for wire, quirks in (("anthropic", {}), ("openai", ROUTER))
        for message, place in (
            (d.User("a", cache=True), "messages[0].content[0]"),
            (d.User([d.Text("a"), d.Text("b")], cache=True), "messages[0].content[1]"),
            (d.User([PNG, d.Text("b")]), "messages[0].content[0]"),
            (d.User([d.Document(d.Inline("aGk="), cache=True)]), "messages[0].content[0]"),
        )
    ],
    ("openai", {}, [d.User("a", cache=True)], None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "quirks", "messages", "cache", "places"), PLACES)
def test_cache_marks_are_placed(
    wire: str, quirks: dict[str, Any], messages: list[d.Message], cache: Any, places: str
) -> None:
    body, warnings = encode(wire, messages, cache, **quirks)
    assert marks(body) == [f".{place}" for place in places.split()]
    assert warnings == ()
    assert "cache" in json.dumps(body) or not places


def test_only_the_last_four_cache_marks_are_sent() -> None:
    said: list[d.Message] = [d.User([d.Text(f"{at}", cache=True) for at in range(6)])]
    for wire, quirks in (("anthropic", {}), ("openai", ROUTER)):
        body, warnings = encode(wire, said, "auto", TOOLS if wire == "anthropic" else (), **quirks)
        assert marks(body) == [f".messages[0].content[{at}]" for at in range(2, 6)]
        assert [warning.code for warning in warnings] == ["cache_mark_dropped"] * 2


def test_cache_marks_of_the_caller_reduce_the_number_of_automatic_marks() -> None:
    said = [d.System("s", cache=True), *MARKED[2:3], *LONG[2:]]
    body, _ = encode("anthropic", said, "auto", TOOLS)
    assert len(marks(body)) == 4
    assert ".messages[4].content[0]" in marks(body)


@pytest.mark.parametrize(
    ("ttl", "codes"), [("5m", []), ("1h", []), ("24h", ["cache_ttl_shortened"])]
)
def test_cache_lifetime_is_sent(ttl: Any, codes: list[str]) -> None:
    body, warnings = encode("anthropic", LONG, d.PromptCache(ttl=ttl))
    assert body["system"][0]["cache_control"] == (MARK if ttl == "5m" else HOUR)
    assert [warning.code for warning in warnings] == codes


def test_cache_setting_of_an_endpoint_is_the_default() -> None:
    codec = CODECS["anthropic"].connect("m", "https://a", {"cache": "auto"}, d.Capabilities())
    config = d.RuntimeConfig(max_tokens=9)
    assert len(marks(json.loads(codec.encode(d.Request(LONG, TOOLS, config)).http.body))) == 4
    off = replace(config, cache="off")
    assert marks(json.loads(codec.encode(d.Request(LONG, TOOLS, off)).http.body)) == []


def test_schema_instruction_follows_the_cached_system_prompt() -> None:
    codec = CODECS["anthropic"].connect(
        "m", "https://a", {"structured": "prompt"}, d.Capabilities()
    )
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    request = d.Request(
        [d.System("s", cache=True), d.User("u")], (), d.RuntimeConfig(max_tokens=9), schema
    )
    system = json.loads(codec.encode(request).http.body)["system"]
    assert system[0] == {"type": "text", "text": "s", "cache_control": MARK}
    assert system[1]["text"].startswith("Answer with one JSON value")


def test_removing_a_cache_mark_does_not_modify_the_callers_block() -> None:
    data = {"type": "server_tool_use", "id": "s", "cache_control": MARK}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    state = d.Continuity(issuer=d.Issuer("anthropic"))
    said: list[d.Message] = [
        d.User("a"),
        d.Assistant([d.Opaque(data, state), d.Opaque(result, state), d.Text("b")]),
        d.User("c"),
    ]
    assert marks(encode("anthropic", said, "off")[0]) == []
    assert data["cache_control"] == MARK


# --- cache keys, and handles of cached content -------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "session", "sent", "codes"),
    [
        (None, "s", {}, []),
        ("off", "s", {}, []),
        ("auto", None, {}, []),
        ("auto", "s", {"prompt_cache_key": "s"}, []),
        (d.PromptCache(key="k"), "s", {"prompt_cache_key": "k"}, []),
        (d.PromptCache(auto=False), "s", {}, []),
        (d.PromptCache(False, "24h", "k"), None,
         {"prompt_cache_key": "k", "prompt_cache_retention": "24h"}, []),
        (d.PromptCache(ttl="5m"), None, {}, []),
        (d.PromptCache(ttl="1h"), None, {}, ["cache_ttl_shortened"]),
    ],
)  # fmt: skip
def test_cache_key_and_retention_are_sent(
    cache: Any, session: Any, sent: dict[str, Any], codes: list[str]
) -> None:
    for wire, quirks in (("openai", {"cache_key": True}), ("responses", {})):
        body, warnings = encode(wire, [d.User("u")], cache, session_id=session, **quirks)
        assert {
            name: value for name, value in body.items() if name.startswith("prompt_cache")
        } == sent
        assert [warning.code for warning in warnings] == codes


def test_session_id_is_not_sent_as_a_cache_key_to_compatible_servers() -> None:
    assert "prompt_cache_key" not in encode("openai", [d.User("u")], "auto", session_id="s")[0]


def test_cached_content_is_sent_by_its_handle() -> None:
    cache = d.PromptCache(handle="cachedContents/abc")
    body, warnings = encode("gemini", [d.System("s"), d.User("u")], cache, TOOLS)
    assert body["cachedContent"] == "cachedContents/abc"
    assert not {"systemInstruction", "tools"} & body.keys()
    assert [(warning.code, warning.path) for warning in warnings] == [
        ("cached_part_dropped", "messages[0]"),
        ("cached_part_dropped", "tools"),
    ]
    assert "cachedContent" not in encode("gemini", [d.User("u")], "auto")[0]
    for wire in set(CODECS) - {"gemini"}:
        with pytest.raises(d.UnsupportedFeatureError, match=r"config\.cache\.handle"):
            encode(wire, [d.User("u")], cache)


@pytest.mark.parametrize("wire", ["anthropic", "gemini", "ollama"])
def test_unsupported_cache_marks_are_reported(wire: str) -> None:
    _, warnings = encode(wire, [d.User("u")], d.PromptCache(key="k", ttl="1h"))
    expected = {"config.cache.key", "config.cache.ttl"} - (
        {"config.cache.ttl"} if wire == "anthropic" else set()
    )
    assert {warning.path for warning in warnings} == expected


# --- parsing cache marks and cache settings ----------------------------------------------------


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


# --- cache marks of gateway clients ------------------------------------------------------------


def test_cache_mark_at_the_root_of_a_request_means_automatic_caching() -> None:
    asked = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "a"}],
        "cache_control": HOUR,
    }
    config = SERVER_CODECS["anthropic"].decode(json.dumps(asked).encode()).request.config
    assert config.cache == d.PromptCache(ttl="1h")
    unknown = {**asked, "cache_control": {"type": "x"}}
    assert SERVER_CODECS["anthropic"].decode(unknown).request.config.cache is None


def test_cache_mark_on_a_tool_call_is_reported() -> None:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}, "cache_control": MARK}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
    turns = [("user", "a"), ("assistant", [call]), ("user", [result])]
    said = [{"role": role, "content": content} for role, content in turns]
    body = {"model": "m", "max_tokens": 9, "messages": said}
    (warning,) = SERVER_CODECS["anthropic"].decode(json.dumps(body).encode()).warnings
    assert warning.path == "messages[1].content[0].cache_control"


@pytest.mark.parametrize("wire", ["openai", "responses"])
@pytest.mark.parametrize(
    ("fields", "cache", "left"),
    [
        ({}, None, {}),
        ({"prompt_cache_key": "k"}, d.PromptCache(auto=False, key="k"), {}),
        ({"prompt_cache_retention": "24h"}, d.PromptCache(auto=False, ttl="24h"), {}),
        ({"prompt_cache_retention": "in_memory"}, None, {"prompt_cache_retention": "in_memory"}),
    ],
)
def test_cache_keys_of_gateway_clients_are_kept(
    wire: str, fields: dict[str, Any], cache: Any, left: dict[str, Any]
) -> None:
    content: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "a"}]} if wire == "openai" else {"input": "a"}
    )
    config = (
        SERVER_CODECS[wire]
        .decode(json.dumps({"model": "m", **content, **fields}).encode())
        .with_extras()
        .config
    )
    assert (config.cache, config.extras) == (cache, left)


def test_cached_content_of_a_gateway_client_is_kept() -> None:
    body = {"contents": [{"parts": [{"text": "a"}]}], "cachedContent": "cachedContents/x"}
    asked = SERVER_CODECS["gemini"].decode(
        json.dumps(body).encode(), "/v1beta/models/m:generateContent"
    )
    assert asked.request.config.cache == d.PromptCache(auto=False, handle="cachedContents/x")
