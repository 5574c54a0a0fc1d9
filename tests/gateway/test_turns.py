"""Reasoning survives the turns of the vendors' SDKs, at models that refuse what vendors refuse."""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import cohere
import google.genai.errors
import httpx
import ollama
import openai
import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.gateway import create_app
from dragoman.gateway.kept_state import KeptState
from dragoman.gateway.keys import new_key
from dragoman.gateway.lost_reasoning import ReasoningWatch
from dragoman.gateway.store import ResponseStore
from dragoman.log import SqliteLog
from dragoman.sim import ScriptedProvider, SimServer
from dragoman.wire import SERVER_CODECS, Asked

from .serving import serving
from .strict_models import UPSTREAMS, StrictUpstream
from .turns import TURNS, run_loop
from .upstream import EXHAUSTIVE

BACK = [0, 1, 2]  # the thoughts that each request of a loop returns
PLACELESS = ("openai, plain", "ollama", "cohere")
LOOPS = [
    (client, wire, stream)
    for client, wire, stream in itertools.product(TURNS, UPSTREAMS, (False, True))
    # A sample has each client, each model and both forms.
    if EXHAUSTIVE or (sorted(TURNS).index(client) + sorted(UPSTREAMS).index(wire)) % 8 == stream
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResponseStore]:
    made = ResponseStore(tmp_path / "kept.db")
    yield made
    made.close()


async def loop(
    client: str, wire: str, *, stream: bool = False, store: ResponseStore | None = None
) -> list[int]:
    """Run a loop with a model; return how many thoughts came back with each request."""
    with StrictUpstream(wire) as upstream:
        async with upstream.open() as model, serving(create_app({"m": model}, store=store)) as url:
            text = await asyncio.to_thread(run_loop, url, client, stream)
    assert text == "Done."
    return upstream.returned


def keeps(client: str, wire: str) -> bool:
    """Return whether a client has a place for the state of a model's wire."""
    if client not in PLACELESS:
        return True
    # Ollama and Cohere have a place for thinking without state.
    return client != "openai, plain" and wire in ("openai", "ollama", "cohere")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("client", "wire", "stream"), LOOPS)
async def test_loop_with_a_strict_model(client: str, wire: str, stream: bool) -> None:
    assert await loop(client, wire, stream=stream) == (BACK if keeps(client, wire) else [0, 0, 0])


@pytest.mark.parametrize(("client", "wire", "stream"), LOOPS)
async def test_loop_of_each_client_keeps_its_reasoning_with_a_store(
    client: str, wire: str, stream: bool, store: ResponseStore
) -> None:
    assert await loop(client, wire, stream=stream, store=store) == BACK


MOVES = [
    (client, *pair, stream)
    for at, (client, pair, stream) in enumerate(
        itertools.product(TURNS, itertools.permutations(UPSTREAMS, 2), (False, True))
    )
    if EXHAUSTIVE or at % 57 == 0
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("client", "first", "second", "stream"), MOVES)
@pytest.mark.parametrize("is_kept", [False, True], ids=["", "store"])
async def test_conversation_moves_between_models_inside_a_turn(
    client: str, first: str, second: str, stream: bool, is_kept: bool, store: ResponseStore
) -> None:
    with StrictUpstream(first) as one, StrictUpstream(second) as two:
        async with one.open() as a, two.open() as b:
            app = create_app({"a": a, "b": b}, store=store if is_kept else None)
            async with serving(app) as url:
                text = await asyncio.to_thread(run_loop, url, client, stream, "abaabb")
    assert text == "Done."


@pytest.mark.parametrize("between", ["anthropic", "responses"])
@pytest.mark.parametrize("client", ["anthropic", "responses", "gemini", "bedrock", "openai"])
async def test_state_passes_through_two_gateways(client: str, between: str) -> None:
    wire = {"anthropic": "responses", "responses": "anthropic"}.get(client, between)
    with StrictUpstream(wire) as upstream:
        async with upstream.open() as model, serving(create_app({"m": model})) as inner:
            base_url = inner + SERVER_CODECS[between].base_path
            passed = d.connect("m", wire=between, base_url=base_url, api_key="k")
            async with passed, serving(create_app({"m": passed})) as url:
                text = await asyncio.to_thread(run_loop, url, client, stream=True)
    assert text == "Done."
    assert upstream.returned == BACK


# --- state that the gateway keeps ----------------------------------------------------------------


QUESTION = d.Request([d.User("Where?")], model="m")
THOUGHT = d.Thinking("Hm.", d.Continuity("c2ln", issuer=d.Issuer("anthropic", "v", "m")))
CALL = d.ToolCall("call_1", "look", {"at": "x", "n": 1.0})
REPLY = (THOUGHT, d.Text("I look. "), CALL)
CHAT = SERVER_CODECS["openai"]


def complete(*blocks: Any) -> d.MessageComplete:
    """Return the end of a reply with these blocks."""
    return d.MessageComplete("msg_1", "r", finish_reason="tool_calls", final_content=blocks)


def repeat(*blocks: Any) -> d.Request:
    """Return the request after the reply, with these blocks of it."""
    results = [d.ToolResult(each.id, "there") for each in blocks if isinstance(each, d.ToolCall)]
    return replace(QUESTION, messages=[*QUESTION.messages, d.Assistant(blocks), *results])


async def restored(store: ResponseStore, request: d.Request, owner: str = "ann") -> Any:
    """Return the state of the first thought in a request, after the store was asked."""
    kept = KeptState(store, owner, CHAT)
    message = (await kept.recall(Asked(request=request))).request.messages[1]
    assert kept.lost == ()
    assert isinstance(message, d.Assistant)
    thoughts = [block for block in message.content if isinstance(block, d.Thinking)]
    return thoughts[0].continuity if thoughts else None


@pytest.mark.parametrize(
    ("blocks", "is_restored"),
    [
        ([d.Text("I look. "), CALL], True),
        ([CALL], True),
        ([d.Text("I look."), replace(CALL, arguments={"n": 1, "at": "x"})], True),
        # Ollama's SDK drops the ids; the conversation is the same.
        ([replace(CALL, id="call_77")], True),
        ([replace(CALL, arguments={"at": "y"})], False),
        ([CALL, replace(CALL, id="call_2")], False),
        ([d.Text("I look.")], False),
    ],
)
async def test_state_returns_with_the_calls_that_it_belongs_to(
    blocks: list[Any], is_restored: bool, store: ResponseStore
) -> None:
    assert await KeptState(store, "ann", CHAT).keep(QUESTION, complete(*REPLY)) == ()
    assert await restored(store, repeat(*blocks)) == (THOUGHT.continuity if is_restored else None)
    assert await restored(store, repeat(*blocks), "bob") is None


async def test_reused_id_in_another_conversation_gets_no_state_of_the_first(
    store: ResponseStore,
) -> None:
    # Kimi counts its calls, so each conversation has an id such as functions.look:0.
    other = replace(CALL, arguments={"at": "elsewhere"})
    await KeptState(store, "ann", CHAT).keep(QUESTION, complete(*REPLY))
    await KeptState(store, "ann", CHAT).keep(QUESTION, complete(d.Thinking("Oh."), other))
    assert await restored(store, repeat(CALL)) == THOUGHT.continuity
    assert await restored(store, repeat(other)) != THOUGHT.continuity


async def test_state_expires(tmp_path: Path) -> None:
    with contextlib.closing(ResponseStore(tmp_path / "k.db", keep_seconds=-1)) as store:
        await KeptState(store, "ann", CHAT).keep(QUESTION, complete(*REPLY))
        assert await restored(store, repeat(CALL)) is None


async def test_state_that_the_client_sent_is_not_replaced(store: ResponseStore) -> None:
    await KeptState(store, "ann", CHAT).keep(QUESTION, complete(*REPLY))
    own = d.Continuity("b3du", issuer=d.Issuer("anthropic", "v", "m"))
    assert await restored(store, repeat(d.Thinking("Own.", own), CALL)) == own


async def test_client_with_a_place_for_state_gets_it_in_the_open_turn_only(
    store: ResponseStore,
) -> None:
    kept = KeptState(store, "ann", SERVER_CODECS["anthropic"])
    await kept.keep(QUESTION, complete(*REPLY))
    request = repeat(CALL)
    assert (await kept.recall(Asked(request=request))).request != request
    ended = replace(request, messages=[*request.messages, d.Assistant("So."), d.User("And?")])
    assert (await kept.recall(Asked(request=ended))).request == ended


async def test_reply_without_thinking_or_calls_is_not_kept(store: ResponseStore) -> None:
    kept = KeptState(store, "ann", CHAT)
    await kept.keep(QUESTION, complete(d.Text("Hi"), CALL))
    await kept.keep(QUESTION, complete(THOUGHT, d.Text("Hi")))
    await kept.keep(QUESTION, None)
    assert await restored(store, repeat(CALL)) is None


async def test_reply_arrives_if_the_store_cannot_be_used(
    store: ResponseStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.close()
    assert await loop("openai, plain", "anthropic", store=store) == [0, 0, 0]
    lines = "".join(caplog.messages)
    assert "the state of a reply was not kept" in lines
    assert "the state of earlier calls is not known" in lines


# --- losses are reported -------------------------------------------------------------------------


async def test_client_that_loses_reasoning_is_named_once_in_the_log(
    caplog: pytest.LogCaptureFixture, store: ResponseStore
) -> None:
    with StrictUpstream("anthropic") as upstream:
        async with upstream.open() as model, serving(create_app({"m": model})) as url:
            await asyncio.to_thread(run_loop, url, "openai, plain", stream=True)
    [line] = [each for each in caplog.messages if "do not send back the reasoning" in each]
    assert "the openai API" in line
    assert "'m'" in line
    assert "--store" in line
    caplog.clear()
    assert await loop("openai, plain", "anthropic", store=store) == BACK
    assert await loop("anthropic", "anthropic") == BACK
    assert "do not send back" not in caplog.text


@pytest.mark.parametrize("is_shared", [True, False])
def test_workers_share_what_they_know_of_replies_and_clients(
    is_shared: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [ReasoningWatch(tmp_path if is_shared else None) for _ in range(3)]
    workers[0].note_reply("ann", "m", REPLY)
    lost = [each.find_loss("ann", "openai", repeat(CALL), is_kept=False) for each in workers]
    assert [len(each) for each in lost] == [1, int(is_shared), int(is_shared)]
    assert len(caplog.messages) == 1
    workers[0].note_reply("bob", "m", REPLY)
    assert len(workers[2].find_loss("bob", "openai", repeat(CALL), is_kept=False)) == is_shared
    assert len(caplog.messages) == 1 + is_shared


async def test_overview_and_log_name_the_sessions_that_lose_reasoning(tmp_path: Path) -> None:
    admin, digest = new_key()
    headers = {"authorization": f"Bearer {admin}"}
    with SqliteLog(tmp_path / "log.db") as log, StrictUpstream("gemini") as upstream:
        async with upstream.open() as model:
            app = create_app({"m": model}, log=log, admin=digest, ui="dragoman.gateway.web")
            async with app.router.lifespan_context(app), serving(app) as url:
                await asyncio.to_thread(run_loop, url, "ollama", stream=False)
                async with httpx.AsyncClient(headers=headers) as page:
                    [found] = (await page.get(f"{url}/ui/api/overview")).json()["lost"]
        [session] = found["sessions"]
        events = [each.data for each in log.read(session)]
    assert found["model"] == "m"
    assert found["wire"] == "ollama"
    assert found["requests"] == 2
    warned = [each for each in events if "reasoning_lost messages" in str(each)]
    assert len(warned) == 2


REFUSALS = {
    "anthropic": "messages.1: a final `assistant` message must start with a thinking block",
    "responses": "Item 'fc_1' was provided without its required 'reasoning' item: 'rs_1'.",
    "gemini": "Function call is missing a thought_signature in functionCall parts.",
    "openai": "thinking is enabled but reasoning_content is missing in assistant tool call message",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("wire", "text"), REFUSALS.items())
async def test_refusal_by_a_rule_about_reasoning_says_what_helps(
    wire: str, text: str, stream: bool
) -> None:
    refusal = d.InvalidRequestError(text, status=400, provider_message=text)
    with SimServer(ScriptedProvider(refusal)) as sim:
        async with sim.connect(wire, "m") as model, serving(create_app({"m": model})) as url:
            with pytest.raises(openai.BadRequestError) as caught:
                await asyncio.to_thread(run_loop, url, "openai", stream)
    assert text.rstrip(".") in str(caught.value)
    assert "start the gateway with --store" in str(caught.value)


def read_bad_request(error: Any) -> tuple[str, str]:
    """Return the kind and the text of an error reply, as the SDK of its API found them."""
    if isinstance(error, google.genai.errors.ClientError):
        return str(error.status), str(error.message)
    if isinstance(error, botocore.exceptions.ClientError):
        return error.response["Error"]["Code"], error.response["Error"]["Message"]
    if isinstance(error, ollama.ResponseError):
        return str(error.status_code), error.error
    if isinstance(error, cohere.BadRequestError):
        return str(error.status_code), error.body["message"]
    body = error.body.get("error", error.body)  # OpenAI's SDK returns the inner object
    return body["type"], body["message"]


KINDS = {
    "anthropic": "invalid_request_error",
    "responses": "invalid_request_error",
    "gemini": "INVALID_ARGUMENT",
    "bedrock": "ValidationException",
    "openai": "invalid_request_error",
    "ollama": "400",
    "cohere": "400",
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", REFUSALS)
@pytest.mark.parametrize("client", KINDS)
async def test_refusal_says_what_helps_in_the_form_of_each_client(
    client: str, wire: str, stream: bool
) -> None:
    text = REFUSALS[wire]
    refusal = d.InvalidRequestError(text, status=400, provider_message=text)
    with SimServer(ScriptedProvider(refusal, strict=True, vendor=UPSTREAMS[wire][0])) as sim:
        model = sim.connect(wire, UPSTREAMS[wire][1], vendor=UPSTREAMS[wire][0])
        async with model, serving(create_app({"m": model})) as url:
            with pytest.raises(Exception) as caught:  # each SDK has its own class
                await asyncio.to_thread(run_loop, url, client, stream)
    kind, message = read_bad_request(caught.value)
    assert kind == KINDS[client]
    assert message.startswith(text.rstrip("."))
    assert "start the gateway with --store" in message
    assert "switch the reasoning of this client off" in message


async def test_other_refusals_are_unchanged() -> None:
    refusal = d.InvalidRequestError("no such tool", status=400, provider_message="no such tool")
    with SimServer(ScriptedProvider(refusal)) as sim:
        async with sim.connect("openai", "m") as model, serving(create_app({"m": model})) as url:
            with pytest.raises(openai.BadRequestError) as caught:
                await asyncio.to_thread(run_loop, url, "openai", stream=False)
    assert "--store" not in str(caught.value)
