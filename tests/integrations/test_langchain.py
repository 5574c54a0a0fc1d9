"""Run LangChain's standard tests for chat models, unmodified, over real sockets to a scripted
server.
"""

import asyncio
from typing import Any, ClassVar

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from langchain_tests.utils.stream_lifecycle import assert_valid_event_stream

import dragoman as d
from dragoman.integrations.langchain import ChatDragoman, DragomanLossWarning
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer

from ..listed import Listed, speak
from .obliging import PNG

pytestmark = pytest.mark.filterwarnings(
    "default::dragoman.integrations.langchain.DragomanLossWarning"
)


class TestUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatDragoman

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "m", "base_url": "http://127.0.0.1:9/v1"}


class Standard(ChatModelIntegrationTests):
    wire: ClassVar[str]
    address: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _world(self, server: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the tests use the server's address, and replace pictures that they would download
        from the internet.
        """
        type(self).address = server.base_urls[self.wire]
        monkeypatch.setenv("LANGCHAIN_TESTS_USER_AGENT", "none: nothing is fetched")
        monkeypatch.setattr(httpx, "get", lambda url, **_: httpx.Response(200, content=PNG))

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatDragoman

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "sim-1", "base_url": self.address, "wire": self.wire, "max_tokens": 1000}

    @property
    def model_override_value(self) -> str | None:
        return "sim-2"

    @property
    def supports_image_urls(self) -> bool:
        return self.wire != "ollama"

    @property
    def supports_pdf_inputs(self) -> bool:
        return self.wire != "ollama"

    @property
    def supports_audio_inputs(self) -> bool:
        return self.wire in ("openai", "gemini")

    supports_pdf_tool_message = supports_pdf_inputs
    supports_image_inputs = True
    supports_image_tool_message = True
    supports_json_mode = True
    supports_anthropic_inputs = True


class TestOpenai(Standard):
    wire = "openai"


class TestAnthropic(Standard):
    wire = "anthropic"


class TestResponses(Standard):
    wire = "responses"

    @pytest.mark.xfail(
        reason="the Responses API has no stop sequences", raises=d.UnsupportedFeatureError
    )
    def test_stop_sequence(self, model: BaseChatModel) -> None:
        super().test_stop_sequence(model)


class TestGemini(Standard):
    wire = "gemini"


class TestOllama(Standard):
    wire = "ollama"


# --- what LangChain's tests do not cover -------------------------------------------------------


@tool
def depth(river: str) -> int:
    """Return the depth of a river."""
    return 25


def call(arguments: str) -> Any:
    """Answer with signed thinking and a tool call."""
    return speak(
        lambda out: out.thinking("Let me look."),
        lambda out: out.attach(d.Thinking, "sig"),
        lambda out: (out.tool_start(0, "c1", "depth"), out.tool_input(0, arguments)),
        finish="tool_calls",
        usage=d.Usage(
            9, 3, cached_input_tokens=4, cache_creation_input_tokens=None, reasoning_tokens=2
        ),
    )


THINK_AND_CALL = call('{"river": "Rhine"}')


@pytest.mark.parametrize("streamed", [False, True])
def test_opaque_provider_state_is_sent_back_in_the_next_request(streamed: bool) -> None:
    provider = Listed(THINK_AND_CALL, "It is 25 m deep.")
    model = ChatDragoman(provider=provider).bind_tools([depth])
    question: list[Any] = [SystemMessage("Be brief."), HumanMessage("How deep is the Rhine?")]
    if streamed:
        first: Any = None
        for chunk in model.stream(question):
            first = chunk if first is None else first + chunk
    else:
        first = model.invoke(question)
    assert [(call["id"], call["name"], call["args"]) for call in first.tool_calls] == [
        ("c1", "depth", {"river": "Rhine"})
    ]
    assert first.usage_metadata["input_token_details"] == {"cache_read": 4}
    assert first.usage_metadata["output_token_details"] == {"reasoning": 2}
    assert [block["type"] for block in first.content_blocks] == ["reasoning", "tool_call"]
    model.invoke([*question, first, ToolMessage("25", tool_call_id="c1")])
    sent = provider.requests[-1].messages[2].content[0]
    assert sent.text == "Let me look."
    assert sent.continuity.signature == "sig"


def test_a_reply_that_the_caller_edited_is_sent_with_the_edits() -> None:
    provider = Listed(THINK_AND_CALL, "Done.")
    model = ChatDragoman(provider=provider).bind_tools([depth])
    first = model.invoke("How deep is the Rhine?")
    first.tool_calls[0]["args"] = {"river": "Aare"}
    model.invoke(["How deep is the Rhine?", first, ToolMessage("12", tool_call_id="c1")])
    sent = provider.requests[-1].messages[1]
    assert sent.tool_calls[0].arguments == {"river": "Aare"}
    assert all(type(block) is not d.Thinking or block.continuity is None for block in sent.content)


def test_tool_calls_that_violate_the_schema_are_passed_to_langchain() -> None:
    model = ChatDragoman(provider=Listed(call('{"lake": 1}'), "Sorry.")).bind_tools([depth])
    found = model.invoke("Hi.")
    assert found.tool_calls[0]["args"] == {"lake": 1}
    assert (
        model.invoke(["Hi.", found, ToolMessage("There is no lake.", tool_call_id="c1")]).text
        == "Sorry."
    )


def test_settings_that_cannot_be_sent_are_reported_as_warnings(server: SimServer) -> None:
    model = ChatDragoman(model="sim-1", base_url=server.base_urls["ollama"], wire="ollama")
    with pytest.warns(DragomanLossWarning, match="cannot force a call"):
        found = model.bind_tools([depth], tool_choice="depth").invoke("How deep is the Rhine?")
    assert "tool_choice_dropped" in found.response_metadata["warnings"][0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            [{"type": "video", "url": "https://x/a.mp4"}],
            r"messages\[0\]\.content\[0\]: .* type 'video'",
        ),
        ([{"type": "image", "file_id": "f1"}], "needs url or base64"),
    ],
)
def test_error_names_content_that_cannot_be_sent(content: Any, problem: str) -> None:
    with pytest.raises(d.InvalidRequestError, match=problem):
        ChatDragoman(provider=Listed("Hi.")).invoke([HumanMessage(content)])


async def test_connections_are_closed_with_the_event_loop(server: SimServer) -> None:
    model = ChatDragoman(model="sim-1", base_url=server.base_urls["openai"])

    def run() -> str:
        return str(asyncio.run(model.ainvoke("Hello?")).text)

    texts = [await asyncio.to_thread(run) for _ in range(3)]
    assert texts == [texts[0]] * 3 != [""] * 3


def test_structured_output_can_include_the_raw_message(server: SimServer) -> None:
    model = ChatDragoman(model="sim-1", base_url=server.base_urls["openai"])
    schema = {
        "title": "river",
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }
    found = model.with_structured_output(schema, include_raw=True).invoke("Name a river.")
    assert found["parsed"] == {"name": "Because."}
    assert isinstance(found["raw"], AIMessage)
    broken = ChatDragoman(provider=Listed("not JSON")).with_structured_output(
        schema, method="json_mode"
    )
    with pytest.raises(d.StructuredOutputError):
        broken.invoke("Name a river.")


@pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
@pytest.mark.parametrize("is_async", [False, True])
async def test_events_of_reasoning_text_and_calls_follow_langchains_life_cycle(
    is_async: bool,
) -> None:
    """The standard tests check the life cycle of a text only."""
    calls = [Call("depth", '{"river": "Aare"}'), Call("depth", '{"river": "Rhine"}')]
    provider = ScriptedProvider(Answer(text="Let me look.", thinking="Hm.", tool_calls=calls))
    model: Any = ChatDragoman(provider=provider)
    if is_async:
        stream = await model.astream_events("How deep?", version="v3")
        events = [event async for event in stream]
        message = await stream.output
    else:
        stream = await asyncio.to_thread(model.stream_events, "How deep?", version="v3")
        events = await asyncio.to_thread(list, stream)
        message = stream.output
    assert_valid_event_stream(events)
    kinds = [block["type"] for block in message.content_blocks]
    assert kinds == ["reasoning", "text", "tool_call", "tool_call"]
    assert [call["args"]["river"] for call in message.tool_calls] == ["Aare", "Rhine"]
