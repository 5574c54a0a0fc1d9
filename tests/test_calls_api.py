"""Convenience forms of a call: keywords, functions as tools, types as schemas, images."""

import asyncio
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

import dragoman
from dragoman import Image, Inline, System, Url, User
from dragoman.errors import InvalidRequestError, StructuredOutputError
from dragoman.events import Sale
from dragoman.prices import Match, PriceRow, PriceTable
from dragoman.sim import Answer, Call, ScriptedProvider


class Recorder(ScriptedProvider):
    """A scripted provider that keeps the requests it receives."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.sent: list[dragoman.Request] = []

    def open(self, request: dragoman.Request) -> Any:
        self.sent.append(request)
        return super().open(request)


async def test_settings_can_be_passed_as_keyword_arguments() -> None:
    model = Recorder("Hello.", "Hello.")
    await model.complete(
        "Hi", system="Be brief.", temperature=0, max_tokens=50, reasoning="low",
        extras={"top_k": 3},
    )  # fmt: skip
    async with model.stream("Hi", stop_sequences=["END"], seed=7) as stream:
        assert [event async for event in stream]
    first, second = model.sent
    assert first.messages == (System("Be brief."), User("Hi"))
    assert first.config == dragoman.RuntimeConfig(
        temperature=0, max_tokens=50, reasoning="low", extras={"top_k": 3}
    )
    assert second.config.stop_sequences == ("END",)
    assert second.config.seed == 7


async def test_keyword_arguments_override_the_config() -> None:
    model = Recorder("Hello.")
    await model.complete("Hi", config={"temperature": 1, "seed": 3}, temperature=0)
    (request,) = model.sent
    assert request.config.temperature == 0
    assert request.config.seed == 3


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"temprature": 0}, "'temprature' is not a setting; did you mean temperature?"),
        ({"max_token": 0}, "did you mean max_tokens?"),
        ({"toolz": []}, "did you mean tools?"),
        ({"zzz": 0}, "go into extras="),
    ],
)
async def test_unknown_setting_has_a_suggestion(settings: dict[str, Any], complaint: str) -> None:
    model = Recorder("Hello.")
    with pytest.raises(TypeError) as caught:
        await model.complete("Hi", **settings)
    assert complaint in str(caught.value)
    with pytest.raises(TypeError):
        model.stream("Hi", **settings)
    assert model.sent == []


@pytest.mark.parametrize("settings", [{"system": 5}, {"temperature": "hot"}, {"max_tokens": 1.5}])
async def test_setting_of_the_wrong_type_is_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        await Recorder("Hello.").complete("Hi", **settings)


async def test_session_id_and_metadata_are_part_of_the_request() -> None:
    model = Recorder("Hello.", "Hello.")
    await model.complete("Hi", session_id="s1", metadata={"team": "rivers"})
    async with model.stream("Hi", session_id="s2") as stream:
        assert [event async for event in stream]
    first, second = model.sent
    assert first.session_id == "s1"
    assert first.metadata == {"team": "rivers"}
    assert second.session_id == "s2"
    assert second.metadata == {}


def search(query: Annotated[str, "what to look for"], limit: int = 3) -> str:
    """Search the archive."""
    raise AssertionError("a described function is never called")


class Weather(msgspec.Struct):
    """Look up the weather."""

    city: str


async def test_functions_and_types_can_be_passed_as_tools() -> None:
    model = Recorder("Hello.")
    await model.complete("Hi", tools=[search, Weather, {"name": "plain"}])
    (request,) = model.sent
    assert [tool.name for tool in request.tools] == ["search", "Weather", "plain"]
    assert request.tools[0].parameters["properties"]["query"]["description"] == "what to look for"
    assert request.tools[0].parameters["required"] == ["query"]


class Item(msgspec.Struct):
    """A msgspec struct as a response type."""

    name: str


class Even(pydantic.BaseModel):
    """A model with a validator that JSON Schema cannot represent."""

    number: int

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        if number % 2:
            raise ValueError("the number must be even")
        return number


@pytest.mark.parametrize(
    ("kind", "reply", "value"),
    [
        (Item, '{"name": "x"}', Item("x")),
        (list[Item], '{"value": [{"name": "x"}]}', [Item("x")]),
        (list[Even], '{"value": [{"number": 2}]}', [Even(number=2)]),
        (Item | None, '{"value": null}', None),
        (Even | Literal["none"], '{"value": "none"}', "none"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, '{"a": "x"}', {"a": "x"}),
        (Literal["yes", "no"], '{"value": "no"}', "no"),
        (int, '{"value": 5}', 5),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (list[Annotated[int, {"unhashable": []}]], '{"value": [1]}', [1]),
    ],
)
async def test_structured_output_can_be_of_any_type(kind: Any, reply: str, value: Any) -> None:
    model = Recorder(reply, reply)
    assert (await model.complete("Hi", response_schema=kind)).parsed == value
    async with model.stream("Hi", response_schema=kind) as stream:
        assert [event async for event in stream]
    assert stream.response.parsed == value
    schema = model.sent[0].response_schema
    assert schema["type"] == "object"


async def test_response_schema_that_is_not_a_type_is_rejected() -> None:
    with pytest.raises(
        InvalidRequestError, match="response_schema must be a JSON Schema or a type"
    ):
        await Recorder("x").complete("Hi", response_schema=lambda: 0)  # type: ignore[arg-type]


async def test_text_of_a_stream_can_be_iterated() -> None:
    stream = Recorder("Hello there, this is a reply.").stream("Hi")
    assert "".join([text async for text in stream.text()]) == "Hello there, this is a reply."
    assert stream.response.text == "Hello there, this is a reply."


async def test_reading_the_response_of_a_running_stream_raises_an_error() -> None:
    stream = Recorder("Hello.").stream("Hi")
    assert not stream.ended
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = stream.response
    await stream.cancel()
    assert stream.ended
    assert stream.response.finish_reason == "cancelled"


def test_text_of_a_blocking_stream_can_be_iterated() -> None:
    with dragoman.sync.SyncProvider(Recorder("Hello there.")) as model:
        stream = model.stream("Hi", temperature=0)
        assert "".join(stream.text()) == "Hello there."
        assert stream.ended is True
        assert stream.response.text == "Hello there."


async def test_thinking_can_be_read_from_the_reply() -> None:
    reply = await Recorder(Answer(thinking="Hm.", text="Yes.")).complete("Hi")
    assert reply.thinking == "Hm."
    assert reply.text == "Yes."
    assert reply.parsed is None


PNG = b"\x89PNG\r\n\x1a\n"


def test_image_accepts_bytes_path_or_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photo.png").write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    inline = Image(Inline("iVBORw0KGgo="), "image/png")
    assert Image("photo.png") == Image(tmp_path / "photo.png") == Image(PNG) == inline
    assert Image("https://example.org/a.png") == Image(Url("https://example.org/a.png"))
    assert json.loads(msgspec.json.encode(Image(PNG)))["media_type"] == "image/png"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"unknown", None),
    ],
)
def test_media_type_is_detected_from_the_bytes(data: bytes, kind: str | None) -> None:
    assert Image(data).media_type == kind


def test_missing_image_file_raises_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        Image("nowhere.png")


async def test_reask_sends_the_message_of_a_failed_validator() -> None:
    scripted = ScriptedProvider('{"number": 3}', '{"number": 4}')
    corrections: list[str] = []

    def reask(error: StructuredOutputError) -> str:
        corrections.append(error.error_message)
        return f"Correct this: {error.error_message}"

    reply = await dragoman.Retry(scripted, reask=reask).complete("?", response_schema=Even)
    assert reply.parsed == Even(number=4)
    assert len(corrections) == 1
    assert "must be even" in corrections[0]
    second = scripted.requests[1].messages
    assert second[1] == dragoman.Assistant('{"number": 3}')
    assert "must be even" in second[2].text


async def test_reask_stops_after_the_maximum_number_of_retries() -> None:
    scripted = ScriptedProvider('{"number": 3}')
    asking = dragoman.Retry(scripted, 1, reask=lambda error: "Again.")
    with pytest.raises(StructuredOutputError, match=r"Even.*must be even"):
        await asking.complete("?", response_schema=Even)
    assert len(scripted.requests) == 2


async def test_error_reports_that_structured_output_was_truncated() -> None:
    cut = ScriptedProvider(Answer('{"number": ', finish="length"))
    with pytest.raises(
        StructuredOutputError, match=r"cut off at the token limit \(max_tokens\) after \d+ output"
    ):
        await cut.complete("?", response_schema=Even)
    empty = ScriptedProvider(Answer("", thinking="Hm.", finish="length"))
    with pytest.raises(StructuredOutputError, match="before its text"):
        await empty.complete("?", response_schema=Even)
    assert (await empty.complete("?", response_schema={"type": "object"})).parsed is None


async def test_partial_objects_of_a_stream_end_with_the_validated_instance() -> None:
    model = ScriptedProvider(Answer('{"number": 4, "name": "Rhine"}', piece=5))
    async with model.stream("?", response_schema=Even) as stream:
        items = [item async for item in stream.partial()]
    assert items[-1] == Even(number=4)
    assert {} in items
    assert {"number": 4} in items
    assert all(isinstance(item, dict) for item in items[:-1])

    def read_all() -> list[Any]:
        with dragoman.sync.SyncProvider(model).stream("?", response_schema=Even) as blocking:
            return list(blocking.partial())

    assert await asyncio.to_thread(read_all) == items


async def test_stream_of_partial_objects_of_an_invalid_answer_ends_with_an_error() -> None:
    stream = ScriptedProvider('{"number": 3}').stream("?", response_schema=Even)
    with pytest.raises(StructuredOutputError, match="must be even"):
        [item async for item in stream.partial()]


async def test_cancelled_stream_of_partial_objects_ends_without_an_instance() -> None:
    model = ScriptedProvider(Answer('{"number": 4, "name": "Rhine"}', piece=5))
    async with model.stream("?", response_schema=Even) as stream:
        items = []
        async for item in stream.partial():
            items.append(item)
            await stream.cancel()
    assert items == [{}]
    assert stream.response.finish_reason == "cancelled"


async def test_reply_is_priced_by_its_providers_price_row() -> None:
    model = ScriptedProvider("Hello.", name="openai", model="gpt-5")
    reply = await model.complete("Hi")
    assert dragoman.cost(reply) == dragoman.cost(reply.usage, "openai:gpt-5")
    assert reply.cost == dragoman.cost(reply)
    assert reply.cost
    assert reply.cost.reason is None
    assert "PriceRow" not in repr(reply.cost)
    assert len(repr(reply.cost)) < 300
    model.priced_as = "free"
    assert dragoman.cost(reply).total == 0
    async with model.stream("Hi") as stream:
        assert [event async for event in stream]
    assert dragoman.cost(stream.response).total == 0
    assert dragoman.cost(reply, "openai:gpt-5").total != 0


async def test_unknown_cost_of_a_reply_is_false_and_has_a_reason() -> None:
    reply = await ScriptedProvider("Hello.", name="nobody", model="m").complete("Hi")
    assert not reply.cost
    assert reply.cost.total is None
    assert reply.cost.reason


async def test_wrapping_providers_use_the_price_of_the_inner_provider() -> None:
    cheap = ScriptedProvider(dragoman.OverloadedError("busy"), name="lab", model="a")
    good = ScriptedProvider("Hello.", name="lab", model="b")
    cheap.priced_as = "free"
    good.priced_as = "openai:gpt-5"
    reply = await dragoman.Retry(dragoman.Fallback([cheap, good])).complete("Hi")
    assert dragoman.cost(reply).total == dragoman.cost(reply.usage, "openai:gpt-5").total


async def test_price_depends_on_the_address_and_not_on_the_provider_name() -> None:
    provider = dragoman.connect("gpt-5", base_url="http://127.0.0.1:9/v1", name="openai")
    reply = await ScriptedProvider("Hello.", name="openai", model="gpt-5").complete("Hi")
    assert reply.sale is not None
    reply = msgspec.structs.replace(
        reply, sale=Sale(lambda: provider.find_sold("openai", "gpt-5"))
    )
    bill = dragoman.cost(reply)
    assert "127.0.0.1" in bill.reason


async def test_stored_reply_is_priced_by_provider_and_model_name() -> None:
    reply = await ScriptedProvider("Hello.", name="openai", model="gpt-5").complete("Hi")
    assert reply.sale == Sale()
    assert reply.sale != 1
    stored = msgspec.json.decode(msgspec.json.encode(reply), type=dragoman.Response)
    assert dragoman.cost(stored) == dragoman.cost(reply)
    pickled = pickle.loads(pickle.dumps(reply))
    assert dragoman.cost(pickled) == dragoman.cost(reply)
    assert pickle.loads(pickle.dumps(stored)) == stored
    assert isinstance(
        dragoman.cost(dragoman.Response(dragoman.Assistant("Hi"), "stop")), dragoman.Unpriced
    )


async def test_callers_price_table_is_used() -> None:
    reply = await ScriptedProvider("Hello.", name="lab", model="a").complete("Hi")
    assert not dragoman.cost(reply)
    row = PriceRow("lab", Match(equals=("a",)), input=Decimal(1), output=Decimal(1))
    assert dragoman.cost(reply, table=PriceTable((row,))).total == Decimal(
        reply.usage.total_tokens or 0
    ).scaleb(-6)


def test_pricing_token_usage_requires_a_model() -> None:
    with pytest.raises(TypeError, match="needs its model"):
        dragoman.cost(dragoman.Usage(1, 1))  # type: ignore[call-overload]


async def test_a_reply_with_tool_calls_has_no_structured_value() -> None:
    def look(city: str) -> None: ...

    look.__annotations__["city"] = str
    model = ScriptedProvider(Answer(tool_calls=[Call("look", {"city": "Basel"})]))
    reply = await model.complete("?", tools=[look], response_schema=Even)
    assert reply.tool_calls
    assert reply.parsed is None
