"""An optional setting that a server refuses by name, in any words, is not sent again."""

import json
from typing import Any

import pytest

import dragoman as d
from dragoman.messages import PromptCache
from dragoman.provider import HttpProvider
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS
from dragoman.wire.reasoning import ReasoningStyle
from dragoman.wire.refused import change_style
from tests.rows import read_table

REFUSALS: list[tuple[str, int, Any, dict[str, Any], Any]] = read_table("refused_settings")


def make(wire: str, config: dict[str, Any]) -> tuple[Any, d.Request]:
    codec = CODECS[wire].connect("m", "http://a.test/v1", None, d.Capabilities())
    settings = {"max_tokens": 9, **config} if wire == "anthropic" else config
    if "cache" in settings:
        settings = {**settings, "cache": PromptCache(**settings["cache"])}
    return codec, d.Request([d.User("Hi")], config=d.RuntimeConfig(**settings))


@pytest.mark.parametrize(("wire", "status", "body", "config", "learned"), REFUSALS)
def test_setting_that_an_error_names_is_not_sent_again(
    wire: str, status: int, body: Any, config: dict[str, Any], learned: Any
) -> None:
    codec, request = make(wire, config)
    error = codec.error(status, {}, json.dumps(body).encode())
    lesson = codec.learn(error, request)
    if learned is None:
        assert lesson is None
        return
    assert lesson is not None
    assert lesson.encode(request).http.body != codec.encode(request).http.body
    assert len(lesson.lessons) == 1
    if isinstance(learned, list):
        style = lesson.quirks.reasoning
        assert style.efforts == tuple(learned) if learned else not style.reasons
        warnings = lesson.encode(request).warnings
        assert [each.code for each in warnings] == ["reasoning_approximated"]
    else:
        # A wire may know more settings that such a model refuses, and what it uses anyway.
        assert learned in lesson.quirks.refused_settings
        warnings = lesson.encode(request).warnings
        assert [each.code for each in warnings] == ["setting_refused"]
        assert learned in warnings[0].path
    # The lesson is learned once.
    assert lesson.learn(error, request) is None


def test_every_wire_has_a_refused_setting() -> None:
    assert {row[0] for row in REFUSALS if isinstance(row[4], str)} == set(CODECS)


async def test_refused_setting_is_reported_with_the_reply() -> None:
    message = "Unsupported parameter: 'temperature' is not supported with this model."
    error = {"message": message, "param": "temperature", "code": "unsupported_parameter"}
    answer = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    replies: list[Any] = [(400, {}, [json.dumps({"error": error}).encode()])]
    replies += [(200, {}, [json.dumps(answer).encode()])] * 2
    transport = FixtureTransport(*replies)
    model = d.connect("m", base_url="http://a.test", transport=transport)
    assert isinstance(model, HttpProvider)
    for _ in range(2):
        reply = await model.complete("Hi", temperature=0.2)
        assert [each.path for each in reply.warnings] == ["config.temperature"]
    assert ["temperature" in json.loads(each.body) for each in transport.requests] == [
        True, False, False
    ]  # fmt: skip
    assert model.lessons == ("the endpoint refused temperature: it is not sent",)


USUAL = ReasoningStyle(effort="reasoning_effort", off={"reasoning_effort": "none"})
SWITCH = ReasoningStyle(with_effort={"thinking.on": True}, off={"thinking.on": False})
PRESENT = "'none', 'minimal', 'low', 'medium', and 'high'"


@pytest.mark.parametrize(
    ("style", "field", "listed"),
    [
        (USUAL, "reasoning_effort", PRESENT),
        (USUAL, "reasoning_effort", "'deep' and 'deeper'"),
        (SWITCH, "thinking", "'low' and 'high'"),
        (SWITCH, "temperature", "'low' and 'high'"),
    ],
)
def test_list_of_efforts_that_changes_nothing_is_not_learned(
    style: ReasoningStyle, field: str, listed: str
) -> None:
    error = d.InvalidRequestError(
        "", status=400, provider_message=f"Unsupported value: '{field}' does not support 'xhigh'. "
        f"Supported values are: {listed}.", param=field, provider_code="unsupported_value",
    )  # fmt: skip
    assert change_style(error, style, "xhigh") is None
