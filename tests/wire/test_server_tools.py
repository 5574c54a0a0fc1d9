"""Tools that the provider executes, and deferred tools."""

from typing import Any

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.middleware import request_key
from dragoman.middleware.request_keys import canonical
from dragoman.validate import build_request, check_request
from dragoman.wire import CODECS


def encode(wire: str, *tools: d.ServerTool, own: tuple[d.Tool, ...] = (), **settings: Any) -> Any:
    codec = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    config = d.RuntimeConfig(max_tokens=9, **settings)
    return codec.encode(
        d.Request([d.User("x")], tools=own, config=config, server_tools=tools)
    ).http


def test_beta_header_is_sent_only_for_tools_that_need_it() -> None:
    assert "anthropic-beta" not in encode("anthropic", d.ServerTool("web_search")).headers
    headers = encode(
        "anthropic", d.ServerTool("code_execution"), d.ServerTool("url_context")
    ).headers
    assert headers["anthropic-beta"] == "code-execution-2025-08-25,web-fetch-2025-09-10"


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


def test_images_of_a_text_message_are_empty() -> None:
    assert d.Assistant([d.Text("a")]).images == ()


@pytest.mark.parametrize("wire", ["anthropic", "responses"])
def test_rejected_tool_search_is_not_offered_again(wire: str) -> None:
    codec: Any = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    request = d.Request(
        [d.User("x")], tools=[d.Tool("f", deferred=True)], config=d.RuntimeConfig(max_tokens=9)
    )
    refusal = codec.error(
        400, {}, b'{"error": {"message": "tools.0.defer_loading: not permitted"}}'
    )
    learned = codec.learn(refusal, request)
    assert codec.searches_tools is True
    assert learned.searches_tools is False
    assert b"search" not in learned.encode(request).http.body
    assert codec.learn(refusal, replace(request, tools=[d.Tool("f")])) is None


def test_deferral_changes_neither_the_key_nor_the_digest_of_other_tools() -> None:
    tool = d.Tool("f", "d", strict=True)
    plain, deferred = [
        d.Request([d.User("x")], tools=[replace(tool, deferred=each)], request_id="R")
        for each in (False, True)
    ]
    assert "deferred" not in canonical(plain)["tools"][0]
    assert request_key(plain) != request_key(deferred)
    with pytest.raises(d.InvalidRequestError, match=r"tools\[0\]\.deferred must be true or false"):
        check_request(replace(plain, tools=[replace(tool, deferred=None)]))
    assert build_request("Hi", [{"name": "f", "deferred": True}]).tools[0].deferred
