"""What is rare in a conversation arrives: at the model as the client sent it, and back.

The clients are the vendors' own SDKs, the models refuse what their vendors refuse.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import count
from typing import Any, NamedTuple

import pytest

import dragoman as d
from dragoman.gateway import create_app
from dragoman.sim import Answer, Call, Fault, ScriptRule

from . import client_forms as forms
from .serving import serving
from .strict_models import UPSTREAMS, StrictUpstream
from .turns import SCHEMA, TOOL, TURNS, Conversation, Made
from .upstream import EXHAUSTIVE

pytestmark = pytest.mark.exhaustive

CLIENTS = tuple([name for name in TURNS if name != "openai, plain"])
MODELS = tuple(UPSTREAMS)
_turn = count()


class Pair(NamedTuple):
    """A client, the wire of the model, and whether the client streams."""

    client: str
    wire: str
    stream: bool


def each_pair(
    *,
    clients: str = " ".join(CLIENTS),
    models: str = " ".join(MODELS),
    streams: tuple[bool, ...] = (False, True),
) -> Callable[[Any], Any]:
    """Run a test with each client and each model, in both forms, if all tests are asked for.

    Otherwise, it runs with every second client and a model for each. The next test has others.
    """
    shift = next(_turn)
    named = models.split()
    pairs = [
        Pair(client, wire, stream)
        for at, client in enumerate(clients.split())
        for number, wire in enumerate(named)
        for turn, stream in enumerate(streams)
        if EXHAUSTIVE
        or (at % 2, number, turn)
        == (shift % 2, (at + shift) % len(named), (at // 2 + shift) % len(streams))
    ]
    names = [f"{e.client}-{e.wire}-{'stream' if e.stream else 'body'}" for e in pairs]
    return pytest.mark.parametrize("pair", pairs, ids=names)


class Line(NamedTuple):
    """A conversation of a client with a strict model behind the gateway."""

    pair: Pair
    talk: Conversation
    upstream: StrictUpstream

    async def ask(self) -> Made:
        return await asyncio.to_thread(self.talk.ask, "m", self.pair.stream)

    @property
    def received(self) -> d.Request:
        """The last request that the model accepted."""
        return self.upstream.requests[-1]

    @property
    def results(self) -> list[tuple[str, str]]:
        """The id and the text of each result that the model got."""
        results = [each for each in self.received.messages if isinstance(each, d.ToolResult)]
        return [(each.tool_call_id, each.text) for each in results]

    @property
    def calls(self) -> list[d.ToolCall]:
        """The calls that the model got back."""
        turns = [each for each in self.received.messages if isinstance(each, d.Assistant)]
        return [call for each in turns for call in each.tool_calls]


@contextlib.asynccontextmanager
async def opened(
    pair: Pair,
    *answers: Answer | str | ScriptRule,
    served: Mapping[str, tuple[str | None, str]] = UPSTREAMS,
    **settings: Any,
) -> AsyncIterator[Line]:
    """Open a conversation whose model gives these answers."""
    with StrictUpstream(pair.wire, *answers, served=served[pair.wire]) as upstream:
        async with upstream.open() as model, serving(create_app({"m": model})) as url:
            talk = await asyncio.to_thread(TURNS[pair.client], url, **settings)
            try:
                yield Line(pair, talk, upstream)
            finally:
                talk.close()


def one_call(arguments: Any, *ids: str) -> Answer:
    """Return an answer with a call for each id."""
    return Answer(tool_calls=[Call(TOOL, arguments, name) for name in ids or (None,)])


@each_pair()
async def test_call_without_arguments_has_an_empty_object(pair: Pair) -> None:
    async with opened(pair, one_call({}), "Done.") as line:
        made = await line.ask()
        assert [arguments for _, _, arguments in made.calls] == [{}]
        line.talk.answer(made)
        assert (await line.ask()).text == "Done."
        assert [call.arguments for call in line.calls] == [{}]


@each_pair()
async def test_empty_result_is_a_result(pair: Pair) -> None:
    async with opened(pair, one_call({"at": "x"}), "Done.") as line:
        line.talk.answer(await line.ask(), "")
        assert (await line.ask()).text == "Done."
        assert [text for _, text in line.results] == [""]


@each_pair()
async def test_hundred_parallel_calls_keep_their_order_and_their_results(pair: Pair) -> None:
    places = [f"place {at}" for at in range(100)]
    answer = Answer(tool_calls=[Call(TOOL, {"at": place}) for place in places])
    async with opened(pair, answer, "Done.") as line:
        made = await line.ask()
        assert [arguments["at"] for _, _, arguments in made.calls] == places
        line.talk.answer(made, *[f"found {place}" for place in places])
        assert (await line.ask()).text == "Done."
        found = dict(line.results)
        assert [found[call.id] for call in line.calls] == [f"found {place}" for place in places]
        assert [call.arguments["at"] for call in line.calls] == places


@each_pair()
async def test_two_hundred_tools_are_offered_and_the_last_can_be_called(pair: Pair) -> None:
    schemas = {f"look_{at}": SCHEMA for at in range(200)}
    last = Answer(tool_calls=[Call("look_199", {"at": "x"})])
    async with opened(pair, last, **forms.declare(pair.client, schemas)) as line:
        made = await line.ask()
        assert [(tool, arguments) for _, tool, arguments in made.calls] == [
            ("look_199", {"at": "x"})
        ]
        assert [tool.name for tool in line.received.tools] == [*schemas]


@each_pair(clients="anthropic responses gemini bedrock openai cohere")
async def test_forced_tool_is_called_by_a_model_that_would_reason(pair: Pair) -> None:
    tools = forms.declare(pair.client, {TOOL: SCHEMA})
    async with opened(pair, one_call({}), **forms.force(pair.client, tools)) as line:
        assert len((await line.ask()).calls) == 1
        assert line.upstream.refused == []
        # Ollama has no field for a choice, and DeepSeek takes none while its model reasons.
        assert line.received.tool_choice == (None if pair.wire == "ollama" else "required")


SEEING = {
    **UPSTREAMS,
    "openai": ("mistral", "mistral-medium-latest"),
    "cohere": ("cohere", "command-a-plus-05-2026"),
}
"""Models that accept images."""


def find_media(line: Line, kind: type[Any]) -> list[Any]:
    """Return the media of a kind in the messages that the model got."""
    contents = [each.content for each in line.received.messages if not isinstance(each, d.System)]
    blocks = [block for content in contents for block in content if not isinstance(content, str)]
    return [block for block in blocks if isinstance(block, kind)]


@each_pair()
async def test_image_of_the_user_arrives(pair: Pair) -> None:
    async with opened(pair, "I see.", served=SEEING) as line:
        content = forms.picture(pair.client, "Look.")
        if pair.client == "gemini":
            line.talk.tell(content)
        else:
            line.talk.history[:] = [content]
        assert (await line.ask()).text == "I see."
        [image] = find_media(line, d.Image)
        assert image.source == d.messages.Inline(forms.PNG)


@each_pair(
    clients="anthropic responses gemini bedrock openai",
    models="anthropic bedrock responses gemini",
)
async def test_pdf_of_the_user_arrives(pair: Pair) -> None:
    async with opened(pair, "I see.") as line:
        content = forms.document(pair.client, "Read.")
        if pair.client == "gemini":
            line.talk.tell(content)
        else:
            line.talk.history[:] = [content]
        assert (await line.ask()).text == "I see."
        [pdf] = find_media(line, d.Document)
        assert pdf.source == d.messages.Inline(forms.PDF)


@each_pair(clients="anthropic responses gemini bedrock openai")
async def test_image_of_a_tool_arrives(pair: Pair) -> None:
    async with opened(pair, one_call({"at": "x"}), "I see.", served=SEEING) as line:
        line.talk.answer(await line.ask(), forms.picture_result(pair.client))
        assert (await line.ask()).text == "I see."
        [image] = find_media(line, d.Image)
        assert image.source == d.messages.Inline(forms.PNG)


@each_pair(clients="anthropic openai gemini bedrock ollama cohere")
async def test_stop_sequence_ends_the_reply(pair: Pair) -> None:
    async with opened(pair, "one STOP two", **forms.stop_at(pair.client, "STOP")) as line:
        made = await line.ask()
        # The simulator does not cut, so the text is cut where the model's API has no such field.
        sent = line.received.config.stop_sequences
        assert (made.text, sent) in [("one STOP two", ("STOP",)), ("one ", None)]
        assert (sent is None) == (pair.wire == "responses")


CUT = {
    "anthropic": "max_tokens", "openai": "length", "responses": "max_output_tokens",
    "gemini": "MAX_TOKENS", "bedrock": "max_tokens", "ollama": "length", "cohere": "MAX_TOKENS",
}  # fmt: skip


@each_pair()
async def test_reply_at_the_limit_ends_with_the_word_of_the_client(pair: Pair) -> None:
    answer = Answer("One two", finish="length")
    async with opened(pair, answer, **forms.limit(pair.client, 7777)) as line:
        made = await line.ask()
        assert made.text == "One two"
        assert made.finish == CUT[pair.client]
        assert line.received.config.max_tokens == 7777


@each_pair(models="anthropic responses gemini openai cohere")  # the others cannot send such a call
async def test_call_that_the_limit_cut_is_not_complete_at_the_client(pair: Pair) -> None:
    answer = Answer(content=[d.Text("I look."), Call(TOOL, '{"at": "x')], finish="length")
    async with opened(pair, answer) as line:
        if pair.client in ("anthropic", "gemini"):
            # Their SDKs show a call without arguments, so programs need the word for the end.
            made = await line.ask()
            assert made.text == "I look."
            assert made.finish == CUT[pair.client]
            assert [arguments or {} for _, _, arguments in made.calls] in ([], [{}])
        elif pair.client == "ollama" or (pair.client, pair.stream) == ("bedrock", False):
            # Their replies have arguments as objects, so the gateway ends this one with an error.
            with pytest.raises(Exception, match="the reply was cut at max_tokens"):
                await line.ask()
        else:
            with pytest.raises(json.JSONDecodeError):  # the text of the arguments is cut
                await line.ask()


FILTERED = {
    "anthropic": "refusal", "openai": "content_filter", "responses": "content_filter",
    "gemini": "SAFETY", "bedrock": "content_filtered", "ollama": "content_filter",
    "cohere": "ERROR_TOXIC",
}  # fmt: skip


@each_pair()
async def test_filtered_reply_has_one_word_whatever_the_model(pair: Pair) -> None:
    async with opened(pair, Answer("No", finish="content_filter")) as line:
        assert (await line.ask()).finish == FILTERED[pair.client]


@each_pair(clients="anthropic responses openai ollama cohere")
async def test_system_message_in_the_middle_is_read(pair: Pair) -> None:
    async with opened(pair, "Done.") as line:
        line.talk.repeat(Made("There.", []))
        line.talk.tell("Thanks.")
        line.talk.history.append({"role": "system", "content": "Be terse."})
        line.talk.tell("And then?")
        assert (await line.ask()).text == "Done."
        # A model without such messages gets the text from the user.
        said = [each for each in line.received.messages if isinstance(each, d.System | d.User)]
        texts = "\n".join(
            each.content if isinstance(each, d.System) else each.text for each in said
        )
        assert texts.count("Be terse.") == 1


@each_pair()
async def test_empty_texts_are_left_out(pair: Pair) -> None:
    async with opened(pair, "Done.") as line:
        line.talk.repeat(Made("", [("call_1", TOOL, {"at": ""})]))
        line.talk.answer(Made("", [("call_1", TOOL, {})]))
        line.talk.repeat(Made("There.", []))
        line.talk.tell("And then?")
        assert (await line.ask()).text == "Done."
        assert [call.arguments for call in line.calls] == [{"at": ""}]


@each_pair()
async def test_repeated_id_belongs_to_the_call_before_it(pair: Pair) -> None:
    answers = [one_call({"at": at}, "call_1") for at in ("x", "y")]
    async with opened(pair, *answers, "Done.") as line:
        line.talk.answer(await line.ask(), "one")
        line.talk.answer(await line.ask(), "two")
        assert (await line.ask()).text == "Done."
        assert [call.arguments["at"] for call in line.calls] == ["x", "y"]
        assert [text for _, text in line.results] == ["one", "two"]
        assert [name for name, _ in line.results] == [call.id for call in line.calls]


@each_pair()
async def test_ids_of_94_characters_stay_different(pair: Pair) -> None:
    answer = one_call({"at": "x"}, "c" * 93 + "1", "c" * 93 + "2")
    async with opened(pair, answer, "Done.") as line:
        line.talk.answer(await line.ask(), "one", "two")
        assert (await line.ask()).text == "Done."
        found = dict(line.results)
        assert [found[call.id] for call in line.calls] == ["one", "two"]


SIZE = {
    "type": "object",
    "properties": {"größe": {"type": "integer"}},
    "required": ["größe"],
    "additionalProperties": False,
}


@each_pair(clients="anthropic responses gemini openai ollama cohere")
async def test_strict_schema_with_a_letter_that_is_not_ascii(pair: Pair) -> None:
    async with opened(pair, '{"größe": 3}', **forms.ask_for(pair.client, SIZE)) as line:
        assert json.loads((await line.ask()).text) == {"größe": 3}
        wanted = line.received.response_schema
        # DeepSeek takes no schema: it is in the prompt.
        text = json.dumps(wanted or line.upstream.bodies[-1], ensure_ascii=False)
        assert "größe" in text


def _end(pair: Pair, fault: Fault) -> ScriptRule:
    return ScriptRule(Answer("One two three four five six seven"), fault=fault)


@each_pair(streams=(True,))
async def test_error_inside_a_stream_is_an_error_at_the_client(pair: Pair) -> None:
    fault = Fault(error="OverloadedError", after=3, message="too busy")
    async with opened(pair, _end(pair, fault)) as line:
        with pytest.raises(Exception, match="too busy"):
            await line.ask()


@each_pair()
async def test_reply_whose_connection_was_lost_is_an_error_at_the_client(pair: Pair) -> None:
    async with opened(pair, _end(pair, Fault(cut_at=60))) as line:
        with pytest.raises(Exception) as caught:
            await line.ask()
    # The text of an error of Cohere's SDK does not have its body's text unless it is printed.
    said = str(getattr(caught.value, "body", "")) + str(caught.value)
    assert "the connection was lost in the middle of the reply" in said


@each_pair()
async def test_arguments_and_results_of_50_kilobytes_arrive(pair: Pair) -> None:
    text = 'größer \U0001f409 \\ " \n' * 3500
    async with opened(pair, one_call({"at": text}), "Done.") as line:
        made = await line.ask()
        assert made.calls[0][2] == {"at": text}
        line.talk.answer(made, text)
        assert (await line.ask()).text == "Done."
        assert [call.arguments for call in line.calls] == [{"at": text}]
        assert [each for _, each in line.results] == [text]
