"""Test stored responses: references, conversations, background mode, ownership and expiry."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from dragoman.errors import OverloadedError, UnavailableError
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, new_key
from dragoman.gateway.keystore import KeyStore
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.store import ResponseStore
from dragoman.gateway.stored_responses import RESPONSE
from dragoman.gateway.usage_book import UsageBook
from dragoman.messages import Assistant, User
from tests.listed import Clock, Listed, speak
from tests.waiting import poll, until

from .serving import serving
from .test_clients import call
from .vendor_clients import CITY


@contextlib.asynccontextmanager
async def stored(
    path: Path, *answers: Any, **settings: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Listed, ResponseStore]]:
    store = ResponseStore(path / "store.db")
    model = Listed(*answers)
    async with (
        serving(create_app({"fast": model}, store=store, **settings)) as url,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
        ) as client,
    ):
        yield client, model, store
    store.close()


def texts(model: Listed, at: int) -> list[tuple[str, str]]:
    return [
        (type(message).__name__, str(getattr(message, "text", "")))
        for message in model.requests[at].messages
    ]


async def test_conversation_is_continued_by_the_previous_response_id(tmp_path: Path) -> None:
    async with stored(tmp_path, "One.", "Two.", "Three.") as (client, model, _):
        first = await client.responses.create(
            model="fast", input="First?", instructions="Be brief."
        )
        assert first.store is True
        asked: Any = {
            "model": "fast",
            "input": "Second?",
            "previous_response_id": first.id,
            "stream": True,
        }
        stream = await client.responses.create(**asked)
        second = [event async for event in stream][-1].response
        assert second.previous_response_id == first.id
        await client.responses.create(model="fast", input="Third?", previous_response_id=second.id)
        assert (await client.responses.retrieve(second.id)).output_text == "Two."
        listed = await client.responses.input_items.list(second.id)
        assert len(listed.data) == 3
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)
        with pytest.raises(openai.BadRequestError, match="previous_response_id") as unknown:
            await client.responses.create(model="fast", input="?", previous_response_id=second.id)
        assert unknown.value.code == "previous_response_not_found"
    assert texts(model, 2) == [
        ("User", "First?"),
        ("Assistant", "One."),
        ("User", "Second?"),
        ("Assistant", "Two."),
        ("User", "Third?"),
    ]


async def test_stored_items_can_be_referenced_by_id(tmp_path: Path) -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": CITY}]
    async with stored(tmp_path, speak(call, finish="tool_calls"), "Rain.") as (client, model, _):
        first = await client.responses.create(model="fast", input="Weather?", tools=tools)
        talk: Any = [
            {"role": "user", "content": "Weather?"},
            *[{"type": "item_reference", "id": item.id} for item in first.output],
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        ]
        made = await client.responses.create(model="fast", input=talk, tools=tools)
        assert made.output_text == "Rain."
        with pytest.raises(openai.NotFoundError, match="nothing_here"):
            await client.responses.create(
                model="fast", input=[{"type": "item_reference", "id": "nothing_here"}]
            )
    assert isinstance(model.requests[1].messages[1], Assistant)
    assert model.requests[1].messages[1].tool_calls[0].arguments == {"city": "Paris"}


async def test_response_with_store_false_is_not_stored(tmp_path: Path) -> None:
    async with stored(tmp_path, "One.", "Two.") as (client, _, _store):
        made = await client.responses.create(model="fast", input="First?", store=False)
        assert made.store is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_stored_conversation_is_continued_by_its_id(tmp_path: Path) -> None:
    async with stored(tmp_path, "One.", "Two.") as (client, model, _):
        talk = await client.conversations.create(
            items=[{"role": "user", "content": "I am Ann.", "type": "message"}]
        )
        await client.responses.create(model="fast", input="Who am I?", conversation=talk.id)
        made = await client.responses.create(
            model="fast", input="And now?", conversation={"id": talk.id}
        )
        assert made.conversation is not None
        items = await client.conversations.items.list(talk.id)
        assert len(items.data) == 5
        assert (await client.conversations.retrieve(talk.id)).id == talk.id
        await client.conversations.items.create(
            talk.id, items=[{"role": "user", "content": "x", "type": "message"}]
        )
        await client.conversations.delete(talk.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="fast", input="?", conversation=talk.id)
        with pytest.raises(openai.BadRequestError, match="together"):
            await client.responses.create(
                model="fast", input="?", conversation=talk.id, previous_response_id="a"
            )
    assert [
        message.text for message in model.requests[1].messages if isinstance(message, User)
    ] == [
        "I am Ann.",
        "Who am I?",
        "And now?",
    ]


async def wait_for_end(client: openai.AsyncOpenAI, name: str) -> Any:
    return await poll(
        lambda: client.responses.retrieve(name),
        lambda made: made.status not in ("queued", "in_progress"),
        "the end of the response",
    )


async def test_background_response_is_completed(tmp_path: Path) -> None:
    async with stored(tmp_path, "Done.", UnavailableError("down")) as (client, _, _store):
        begun = await client.responses.create(model="fast", input="Work.", background=True)
        assert begun.status == "queued"
        assert begun.background is True
        made = await wait_for_end(client, begun.id)
        assert made.status == "completed"
        assert made.output_text == "Done."
        assert made.id == begun.id
        begun = await client.responses.create(model="fast", input="Work.", background=True)
        made = await wait_for_end(client, begun.id)
        assert made.status == "failed"
        assert made.error is not None


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"conversation": "conv_nope"}, 404),
        ({"conversation": {"id": "conv_nope"}}, 404),
        ({"previous_response_id": "resp_nope"}, 400),
        ({"previous_response_id": "resp_nope", "conversation": "conv_nope"}, 400),
        ({"input": [{"type": "item_reference", "id": "msg_nope"}]}, 404),
        ({"model": "unknown"}, 404),
        ({"input": 5}, 400),
        ({"max_output_tokens": "many"}, 400),
        ({"tools": [{"type": "function"}]}, 400),
    ],
    ids=str,
)
async def test_wrong_request_is_rejected_alike_with_and_without_background(
    fields: dict[str, Any], status: int, tmp_path: Path
) -> None:
    refusals = []
    async with stored(tmp_path, "One.") as (client, model, _):
        for background in (False, True):
            asked: Any = {"model": "fast", "input": "Hi", **fields, "background": background}
            with pytest.raises(openai.APIStatusError) as refused:
                await client.responses.create(**asked)
            refusals.append((refused.value.status_code, refused.value.body))
    assert refusals[0] == refusals[1]
    assert refusals[0][0] == status
    if "model" not in fields:
        assert refused.value.code != "model_not_found"
    assert model.requests == []


@pytest.mark.parametrize("background", [False, True])
async def test_response_shows_its_conversation_as_an_object(
    background: bool, tmp_path: Path
) -> None:
    async with stored(tmp_path, "One.") as (client, _, _store):
        talk = await client.conversations.create()
        assert abs(talk.created_at - time.time()) < 3600
        assert (await client.conversations.retrieve(talk.id)).created_at == talk.created_at
        made = await client.responses.create(
            model="fast", input="Hi", conversation=talk.id, background=background
        )
        assert made.conversation is not None
        assert made.conversation.id == talk.id


async def test_background_response_is_cancelled(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with stored(tmp_path, [gate], "Hi") as (client, model, _):
        begun = await client.responses.create(model="fast", input="Work.", background=True)
        await until(lambda: model.requests, "the call")
        made = await client.responses.cancel(begun.id)
        assert made.status == "cancelled"
        plain = await client.responses.create(model="fast", input="Hi")
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(plain.id)


@pytest.mark.parametrize("failures", [1, 3])
async def test_background_response_that_cannot_be_stored_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr("dragoman.gateway.background.PAUSE_SECONDS", 0.0)
    async with stored(tmp_path, "Done.") as (client, _, store):
        run = store._base.run  # noqa: SLF001 - a database that is full
        refused = list[str]()

        def refuse(statement: str, values: Any = ()) -> Any:
            is_end = statement.startswith("insert") and b'"queued"' not in values[3]
            if is_end and len(refused) < failures:
                refused.append(statement)
                raise OSError("no space left")
            return run(statement, values)

        monkeypatch.setattr(store._base, "run", refuse)  # noqa: SLF001
        begun = await client.responses.create(model="fast", input="Work.", background=True)
        made = await wait_for_end(client, begun.id)
        assert made.status == "failed"
        assert len(refused) == failures
        assert "store cannot be used" in made.error.message


async def test_each_key_finds_only_its_own_responses(tmp_path: Path) -> None:
    ann, first = new_key()
    bob, second = new_key()
    ring = KeyRing([Key("ann", first), Key("bob", second)])
    async with stored(tmp_path, "One.", "Two.", keys=ring) as (client, _, _store):
        hers = client.with_options(api_key=ann)
        his = client.with_options(api_key=bob)
        made = await hers.responses.create(model="fast", input="First?")
        assert (await hers.responses.retrieve(made.id)).id == made.id
        for refused in (
            his.responses.retrieve(made.id),
            his.responses.delete(made.id),
            his.responses.create(
                model="fast", input=[{"type": "item_reference", "id": made.output[0].id or ""}]
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                await refused
        with pytest.raises(openai.BadRequestError, match="nothing is kept for this key"):
            await his.responses.create(model="fast", input="?", previous_response_id=made.id)
        with pytest.raises(openai.AuthenticationError):
            await client.responses.retrieve(made.id)
        assert (await hers.responses.retrieve(made.id)).id == made.id


async def test_full_disk_costs_stored_responses_but_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stored(tmp_path, *["One."] * 3, "Last.") as (client, _, store):
        run = store._base.run  # noqa: SLF001 - the limit of pages holds for one connection
        pages = run("pragma page_count")[0][0]
        # if a database reaches its page limit, SQLite reports the same error as on a full disk
        run(f"pragma max_page_count = {pages}")
        text = "x" * 50_000
        raw = await client.responses.with_raw_response.create(model="fast", input=text)
        made = raw.parse()
        assert made.output_text == "One."
        assert made.store is False
        assert raw.headers["x-dragoman-warnings"] == "response_not_stored store"
        assert "a response was not kept" in caplog.text
        *_, last = [
            event
            async for event in await client.responses.create(model="fast", input=text, stream=True)
        ]
        assert last.type == "response.completed"
        assert last.response.output_text == "One."
        assert last.response.store is False
        items: Any = [{"type": "message", "role": "user", "content": text}]
        for refused, status in (
            (client.responses.retrieve(made.id), 404),
            (client.responses.create(model="fast", input="?", previous_response_id=made.id), 400),
            (client.conversations.create(items=items), 503),
        ):
            with pytest.raises(openai.APIStatusError) as caught:
                await refused
            assert caught.value.status_code == status
        run("pragma max_page_count = 100000")
        made = await client.responses.create(model="fast", input=text)
        assert made.store is True
        assert (await client.responses.retrieve(made.id)).id == made.id


@pytest.mark.parametrize("store", [ResponseStore, Ledger, UsageBook, KeyStore])
def test_databases_of_the_gateway_are_readable_by_their_owner_only(
    tmp_path: Path, store: Any
) -> None:
    store(tmp_path / "a.db").close()
    assert (tmp_path / "a.db").stat().st_mode & 0o077 == 0


async def test_error_explains_how_to_configure_the_missing_response_store() -> None:
    model = Listed("Hi", repeat=True)
    async with (
        serving(create_app({"fast": model})) as url,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
        ) as client,
    ):
        wrong: list[dict[str, Any]] = [
            {"input": "Hi", "previous_response_id": "resp_1"},
            {"input": "Hi", "conversation": "conv_1"},
            {"input": "Hi", "background": True},
            {"input": [{"type": "item_reference", "id": "msg_1"},
                       {"role": "user", "content": "Hi"}]},
        ]  # fmt: skip
        for fields in wrong:
            with pytest.raises(openai.BadRequestError, match="--store"):
                await client.responses.create(model="fast", **fields)
        with pytest.raises(openai.NotFoundError, match="--store"):
            await client.responses.retrieve("resp_1")
    assert model.requests == []


async def test_stored_responses_expire_and_the_oldest_are_deleted_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("dragoman.gateway.store.time", SimpleNamespace(time=clock))
    store = ResponseStore(tmp_path / "a.db", keep_seconds=60)
    await store.put("ann", [(RESPONSE, "r1", {"a": 1})])
    clock.now += 59
    assert await store.get("ann", RESPONSE, ["r1"]) == {"r1": {"a": 1}}
    clock.now += 2
    assert await store.get("ann", RESPONSE, ["r1"]) == {}
    store.close()
    with pytest.raises(OverloadedError):
        await store.get("ann", RESPONSE, ["r1"])
    monkeypatch.setattr("dragoman.gateway.store.MAX_ROWS", 2)
    monkeypatch.setattr("dragoman.gateway.store._SWEEP_SECONDS", -1.0)
    store = ResponseStore(tmp_path / "b.db")
    for name in ("r1", "r2", "r3"):
        clock.now += 1
        await store.put("ann", [(RESPONSE, name, {})])
    assert set(await store.get("ann", RESPONSE, ["r1", "r2", "r3"])) == {"r2", "r3"}
    store.close()
