"""Test that the reader of each wire records what ``Request`` does not represent."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.capabilities import Capabilities
from dragoman.errors import UnavailableError
from dragoman.events import MessageComplete, MessageStart, TextDelta
from dragoman.messages import Request, System, Text, User
from dragoman.validate.fields import Fields
from dragoman.wire import SERVER_CODECS, Asked, ReplyEncoder
from dragoman.wire.caching import drop_marks
from dragoman.wire.gemini.server_request import unwrap_count
from dragoman.wire.listing import ListedModel
from dragoman.wire.losses import Losses
from dragoman.wire.ollama.model_pages import show_model
from dragoman.wire.responses.echo import write_echo
from dragoman.wire.responses.server_request import as_items
from tests.gateway.translations import CONVERSATIONS, ROWS, limited
from tests.gateway.upstream import BODIES, PATHS


def decode(wire: str, fields: dict[str, Any]) -> Asked:
    body = {"model": "m", **BODIES[wire], **fields}
    if wire in ("gemini", "bedrock"):  # whose paths name the model
        del body["model"]
    return SERVER_CODECS[wire].decode(body, PATHS[wire].format(model="m"))


def list_recorded(asked: Asked) -> set[str]:
    """Return the codes of the losses that another wire would report."""
    return {left.code for left in asked.left} | {f"{name}_dropped" for name in asked.concepts}


# Warnings about settings that every wire reads, but not every wire has.
OF_MODELS = (
    "frequency_penalty_dropped", "max_tokens_added", "strict_dropped", "tool_option_dropped",
)  # fmt: skip


def test_fields_that_our_request_lacks_are_read_and_recorded() -> None:
    for row in ROWS:
        if row in CONVERSATIONS:
            continue
        wire, fields, outcome = row
        asked = decode(wire, limited(wire, fields))
        outcomes = outcome.values() if isinstance(outcome, dict) else [outcome]
        reported = {each.split()[0] for each in outcomes if isinstance(each, str)}
        assert reported - set(OF_MODELS) <= list_recorded(asked), row


MARK = {"type": "ephemeral", "ttl": "1h"}
TEXT = {"type": "text", "text": "T"}


def test_cohere_lists_models_by_name() -> None:
    listed = SERVER_CODECS["cohere"].list_models([ListedModel("m")])
    assert listed == {"models": [{"name": "m", "endpoints": ["chat"]}]}


def test_marks_for_the_prompt_cache_can_be_dropped() -> None:
    blocks = [{**TEXT, "cache_control": MARK}, TEXT]
    talk = [{"role": "user", "content": blocks}]
    fields = {"system": [{**TEXT, "cache_control": MARK}], "messages": talk}
    request = decode("anthropic", fields).request
    assert request.messages[0] == System("T", True)
    assert request.config.cache is not None
    plain = drop_marks(request)
    assert plain.messages == (System("T"), User([Text("T"), Text("T")]))
    assert plain.config.cache is None


def test_fields_that_retrieval_drops_are_reported() -> None:
    losses = Losses()
    losses.drop_fields(Fields({"a": 1}), ("a", "b"), "why")
    assert [(each.code, each.path, each.detail) for each in losses.warnings] == [
        ("a_dropped", "a", "why")
    ]


def test_request_to_count_may_be_inside_another_object() -> None:
    inner = {"contents": []}
    assert unwrap_count({"generate_content_request": inner}) == inner
    assert unwrap_count(inner) == inner


def test_tools_that_are_not_a_list_are_not_repeated() -> None:
    assert write_echo({"tools": "x"}) == {"tools": []}


def test_text_input_is_one_item() -> None:
    item = {"role": "user", "content": "x"}
    assert as_items("x") == [item]
    assert as_items(None) == []
    assert as_items([item]) == [item]


def test_codecs_answer_what_servers_ask_of_a_wire() -> None:
    gemini = SERVER_CODECS["gemini"]
    openai = SERVER_CODECS["openai"]
    counts = {
        "gemini": "/v1beta/models/m:countTokens",
        "anthropic": "/v1/messages/count_tokens",
        "responses": "/v1/responses/input_tokens",
    }
    for wire, path in counts.items():
        found = [SERVER_CODECS[wire].is_count(each) for each in (path, "/v1/messages")]
        assert found == [True, False]
    assert not openai.is_count("/v1/chat/completions")
    wrapped = {"generateContentRequest": {"contents": []}}
    found = [codec.unwrap(wrapped, "/models/m:countTokens") for codec in (gemini, openai)]
    assert [*found, gemini.unwrap(wrapped, "/models/m:generateContent")] == [
        {"contents": []},
        wrapped,
        wrapped,
    ]
    assert [
        SERVER_CODECS[wire].write_count(3) for wire in ("anthropic", "responses", "gemini")
    ] == [
        b'{"input_tokens":3}',
        b'{"object":"response.input_tokens","input_tokens":3}',
        b'{"totalTokens":3}',
    ]
    assert openai.read_question(b"{}", "") is None
    assert openai.list_models([ListedModel("a"), ListedModel("b")])["last_id"] == "b"
    assert openai.list_models([])["first_id"] is None
    assert gemini.list_models([ListedModel("a")])["models"][0]["name"] == "models/a"


@pytest.mark.parametrize("query", ["alt=sse", "$alt=sse"])
def test_gemini_stream_is_an_array_unless_the_query_asks_for_events(query: str) -> None:
    gemini = SERVER_CODECS["gemini"]
    openai = SERVER_CODECS["openai"]
    request = Request([User("Hi")], model="m", stream=True)
    encoder = gemini.encoder(Asked(request=request))
    assert gemini.fit_stream(encoder, query) is encoder
    assert openai.fit_stream(encoder, "") is encoder
    start = MessageStart("m", "r", model="m")
    complete = MessageComplete("m", "r", finish_reason="stop", final_content=(Text("Hi"),))
    replies = []
    error = UnavailableError("down")
    endings: list[Callable[[ReplyEncoder], bytes]] = [
        lambda array: array.feed(complete) + array.end(),
        lambda array: array.write_end(complete),
        lambda array: array.fail(error),
        lambda array: array.write_error(error),
    ]
    for ending in endings:
        array = gemini.fit_stream(gemini.encoder(Asked(request=request)), "")
        data = array.feed(start) + array.feed(
            TextDelta("m", "r", content_block_index=0, text="Hi")
        )
        replies.append(json.loads(data + ending(array)))
    assert [reply[0]["candidates"][0]["content"]["parts"][0]["text"] for reply in replies] == [
        "Hi"
    ] * 4
    assert [list(reply[-1]) == ["error"] for reply in replies] == [False, False, True, True]
    empty = gemini.fit_stream(gemini.encoder(Asked(request=request)), "")
    assert json.loads(empty.fail(error))[0]["error"]


def test_ollama_describes_models() -> None:
    assert show_model(Capabilities())["capabilities"] == [
        "completion",
        "tools",
        "vision",
        "thinking",
    ]
    known = Capabilities.of({"supports_tools": False, "max_context_tokens": 9})
    assert show_model(known)["capabilities"] == ["completion", "vision", "thinking"]
    assert show_model(known)["model_info"]["dragoman.context_length"] == 9


@pytest.mark.parametrize("given", ["conv_1", {"id": "conv_1"}])
def test_conversation_of_a_reply_is_an_object(given: Any) -> None:
    assert write_echo({"model": "m", "conversation": given})["conversation"] == {"id": "conv_1"}
