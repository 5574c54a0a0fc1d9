"""Tools that the provider executes, and extra fields of the gemini wire."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.middleware import request_key
from dragoman.middleware.request_keys import canonical
from dragoman.validate import build_request, check_request
from dragoman.wire import CODECS, SERVER_CODECS


def encode(wire: str, *tools: d.ServerTool, own: tuple[d.Tool, ...] = (), **settings: Any) -> Any:
    codec = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    config = d.RuntimeConfig(max_tokens=9, **settings)
    return codec.encode(d.Request([d.User("x")], own, config, server_tools=tools)).http


WRITTEN: list[tuple[str, d.ServerTool, dict[str, Any]]] = [
    ("anthropic", d.ServerTool("web_search"), {"type": "web_search_20250305", "name": "web_search"}),
    (
        "anthropic",
        d.ServerTool("web_search", {"type": "web_search_20260209", "max_uses": 3}),
        {"type": "web_search_20260209", "name": "web_search", "max_uses": 3},
    ),
    ("anthropic", d.ServerTool("url_context"), {"type": "web_fetch_20250910", "name": "web_fetch"}),
    ("anthropic", d.ServerTool("bash_20250124", {"name": "bash"}),
     {"type": "bash_20250124", "name": "bash"}),
    ("gemini", d.ServerTool("web_search"), {"googleSearch": {}}),
    ("gemini", d.ServerTool("code_execution"), {"codeExecution": {}}),
    ("gemini", d.ServerTool("computer_use"),
     {"computerUse": {"environment": "ENVIRONMENT_BROWSER"}}),
    ("gemini", d.ServerTool("file_search", {"topK": 3}), {"fileSearch": {"topK": 3}}),
    ("gemini", d.ServerTool("googleMaps"), {"googleMaps": {}}),
    ("responses", d.ServerTool("web_search"), {"type": "web_search"}),
    ("responses", d.ServerTool("code_execution"),
     {"type": "code_interpreter", "container": {"type": "auto"}}),
    ("responses", d.ServerTool("file_search", {"max_num_results": 3}),
     {"type": "file_search", "max_num_results": 3}),
    ("responses", d.ServerTool("image_generation"), {"type": "image_generation"}),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "tool", "written"), WRITTEN)
def test_server_tools_are_encoded_in_the_format_of_each_wire(
    wire: str, tool: d.ServerTool, written: dict[str, Any]
) -> None:
    assert json.loads(encode(wire, tool).body)["tools"] == [written]
    own = d.Tool("f")
    tools = json.loads(encode(wire, tool, own=(own,)).body)["tools"]
    assert (len(tools), tools[-1]) == (2, written)


def test_web_search_options_are_sent_on_chat_completions() -> None:
    body = json.loads(
        encode("openai", d.ServerTool("web_search", {"search_context_size": "low"})).body
    )
    assert body["web_search_options"] == {"search_context_size": "low"}
    assert "web_search_options" not in json.loads(encode("openai").body)


def test_beta_header_is_sent_only_for_tools_that_need_it() -> None:
    assert "anthropic-beta" not in encode("anthropic", d.ServerTool("web_search")).headers
    headers = encode(
        "anthropic", d.ServerTool("code_execution"), d.ServerTool("url_context")
    ).headers
    assert headers["anthropic-beta"] == "code-execution-2025-08-25,web-fetch-2025-09-10"


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        ("anthropic", "file_search"),
        ("responses", "url_context"),
        ("openai", "code_execution"),
        ("ollama", "web_search"),
        ("gemini", "tool_search"),
        ("bedrock", "tool_search"),
    ],
)
def test_unsupported_server_tools_are_rejected(wire: str, name: str) -> None:
    with pytest.raises(d.UnsupportedFeatureError, match=r"server_tools\[0\]"):
        encode(wire, d.ServerTool(name))


def test_server_tools_may_be_listed_with_other_tools() -> None:
    record = {"type": "server_tool", "name": "url_context", "options": {"max_uses": 1}}
    request = build_request("Hi", [d.ServerTool("web_search"), {"name": "f"}, record])
    assert request.tools == (d.Tool("f"),)
    assert request.server_tools == (
        d.ServerTool("web_search"),
        d.ServerTool("url_context", {"max_uses": 1}),
    )
    assert (
        build_request("Hi", [{"name": "f"}]).server_tools == build_request("Hi").server_tools == ()
    )
    with pytest.raises(d.InvalidRequestError, match=r"tools\[0\]\.extra"):
        build_request("Hi", [{**record, "extra": 1}])


@pytest.mark.parametrize("tool", [d.ServerTool(""), d.ServerTool("x", 5), "web_search"])  # type: ignore[arg-type]
def test_invalid_server_tools_are_rejected(tool: Any) -> None:
    with pytest.raises(d.InvalidRequestError, match=r"server_tools\[0\]"):
        check_request(d.Request([d.User("x")], server_tools=(tool,)))
    check_request(d.Request([d.User("x")], server_tools=(d.ServerTool("web_search"),)))


def test_cassette_key_depends_on_server_tools() -> None:
    plain = d.Request([d.User("x")], request_id="R")
    assert request_key(plain) != request_key(
        d.Request([d.User("x")], request_id="R", server_tools=(d.ServerTool("a"),))
    )


# --- extra fields of the gemini wire -----------------------------------------------------------


@pytest.mark.parametrize(
    ("extras", "fields"),
    [
        ({"safetySettings": [{"category": "X"}]}, {"safetySettings": [{"category": "X"}]}),
        ({"topK": 5}, {"generationConfig": {"maxOutputTokens": 9, "topK": 5}}),
        ({"generationConfig.extra": 5}, {"generationConfig": {"maxOutputTokens": 9, "extra": 5}}),
        ({"toolConfig.retrievalConfig.x": "en"}, {"toolConfig": {"retrievalConfig": {"x": "en"}}}),
        ({"toolConfig.a.x": 1, "toolConfig.a.y": 2}, {"toolConfig": {"a": {"x": 1, "y": 2}}}),
        ({"speech.a.x": 1, "speech.a": {"y": 2}}, {"speech": {"a": {"x": 1, "y": 2}}}),
        ({"tools": [{"googleSearch": {}}]}, {"tools": [{"googleSearch": {}}]}),
        ({"labels": {"a": "b"}}, {"labels": {"a": "b"}}),
    ],
)  # fmt: skip
def test_extra_fields_are_placed_at_the_root_or_at_their_path(
    extras: dict[str, Any], fields: dict[str, Any]
) -> None:
    body = json.loads(encode("gemini", extras=extras).body)
    assert {name: body[name] for name in fields} == fields
    assert body["contents"]


@pytest.mark.parametrize(
    "extras",
    [
        {"contents": []},
        {"generationConfig.maxOutputTokens": 5},
        {"generationConfig.maxOutputTokens": {}},
        {"tools": 5},
        {"tools.a": 5},
        {"a": 1, "a.b": 2},
        {"a.b": 1, "a.b.c": 2},
    ],
)
def test_contradicting_extra_fields_are_rejected(extras: dict[str, Any]) -> None:
    with pytest.raises(d.InvalidRequestError, match=r"config\.extras"):
        encode("gemini", extras=extras, own=(d.Tool("f"),))


def test_unknown_settings_of_gemini_clients_keep_their_path() -> None:
    body = {"contents": [{"parts": [{"text": "a"}]}], "generationConfig": {"topK": 5, "other": 1}}
    config = (
        SERVER_CODECS["gemini"]
        .decode(json.dumps(body).encode(), "/v1beta/models/m:generateContent")
        .with_extras()
        .config
    )
    assert config.extras == {"topK": 5, "generationConfig.other": 1}


def test_images_of_a_text_message_are_empty() -> None:
    assert d.Assistant([d.Text("a")]).images == ()


@pytest.mark.parametrize("wire", CODECS)
def test_deferred_tools_are_searched_by_the_provider_or_all_sent_with_a_warning(wire: str) -> None:
    codec = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    tools = [d.Tool("f", deferred=True), d.Tool("g", deferred=True)]
    request = d.Request([d.User("x")], tools, d.RuntimeConfig(max_tokens=9))
    encoded = codec.encode(request)
    native = wire in ("anthropic", "responses")
    assert encoded.http.body.count(b'"defer_loading":true') == 2 * native
    assert [each.code for each in encoded.warnings] == ["deferral_dropped"] * (not native)
    forced = codec.encode(replace(request, tool_choice=d.ForceTool("g"))).http.body
    assert forced.count(b'"defer_loading":true') == native  # a forced tool must be loaded
    own = d.ServerTool("tool_search_tool_regex_20251119", {"name": "tool_search_tool_regex"})
    if native:  # a search that the caller offers is the only one
        written = json.loads(codec.encode(replace(request, server_tools=(own,))).http.body)
        assert [each["name"] for each in written["tools"][2:]] == [own.options["name"]]


@pytest.mark.parametrize("wire", ["anthropic", "responses"])
def test_rejected_tool_search_is_not_offered_again(wire: str) -> None:
    codec: Any = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    request = d.Request([d.User("x")], [d.Tool("f", deferred=True)], d.RuntimeConfig(max_tokens=9))
    refusal = codec.error(
        400, {}, b'{"error": {"message": "tools.0.defer_loading: not permitted"}}'
    )
    learned = codec.learn(refusal, request)
    assert (codec.searches_tools, learned.searches_tools) == (True, False)
    assert b"search" not in learned.encode(request).http.body
    assert codec.learn(refusal, replace(request, tools=[d.Tool("f")])) is None


def test_deferral_changes_neither_the_key_nor_the_digest_of_other_tools() -> None:
    tool = d.Tool("f", "d", strict=True)
    plain, deferred = [
        d.Request([d.User("x")], [replace(tool, deferred=each)], request_id="R")
        for each in (False, True)
    ]
    assert "deferred" not in canonical(plain)["tools"][0]
    assert request_key(plain) != request_key(deferred)
    with pytest.raises(d.InvalidRequestError, match=r"tools\[0\]\.deferred must be true or false"):
        check_request(replace(plain, tools=[replace(tool, deferred=None)]))
    assert build_request("Hi", [{"name": "f", "deferred": True}]).tools[0].deferred
