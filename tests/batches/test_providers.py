"""Batches with ``via="provider"``: they use the batch APIs of three wires, simulated over a real
socket.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import BatchReport, batch, errors
from dragoman.batches.apis import APIS, BatchApi, open_api
from dragoman.batches.remote import RemoteRunner
from dragoman.events import Usage
from dragoman.middleware.guard import Action, Subject
from dragoman.sim import Answer, BatchScript, Call, RequestMatch, ScriptRule, SimServer, serve
from dragoman.wire import HttpRequest

from .. import server as raw
from ..listed import Listed
from ..waiting import until
from .conftest import results

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WIRES = sorted(APIS)


def echo(request: Any) -> str:
    return f"{request.messages[-1].text}!"


RULES = (
    ScriptRule(lambda _: _refuse(), match=RequestMatch(text="limit")),
    ScriptRule(Answer(tool_calls=[Call("add", {"n": 1}, "c1")]), match=RequestMatch(text="tool")),
    ScriptRule('{"n": 7}', match=RequestMatch(schema=True)),
    ScriptRule(lambda request: Answer(echo(request), usage=Usage(1000, 10))),
)


def _refuse() -> str:
    raise errors.RateLimitError("slow down", status=429)


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> Iterator[SimServer]:
    with serve(*RULES) as found:
        yield found


Run = Callable[..., Any]


@pytest.fixture
def run(server: SimServer, wire: str, out: Path) -> Run:
    async def start(rows: Any, **settings: Any) -> BatchReport:
        url = server.base_urls[wire]
        price = "openai:gpt-5"
        connection = {"base_url": url, "wire": wire, "priced_as": price}
        given = {"via": "provider", "poll_seconds": 0.01, "max_tokens": 50, **settings}
        return await batch(rows, out, "sim", connection=connection, **given)

    return start


def prompts(*texts: str) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "prompt": text} for number, text in enumerate(texts)]


async def test_replies_errors_and_invalid_rows_are_matched_to_their_input_rows(
    run: Run, out: Path, server: SimServer
) -> None:
    rows = [*prompts("a", "limit", "b", "tool"), {"no": 1}, {"messages": []}, {"prompt": "c"}]
    report = await run(
        rows, tools=[{"name": "add", "parameters": {"type": "object", "properties": {}}}]
    )
    found = results(out)
    assert [row["line"] for row in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [row.get("text") for row in found] == ["a!", None, "b!", "", None, None, "c!"]
    assert found[1]["error"]["category"] == "provider_rate_limit"
    assert found[1]["error"]["status"] == 429
    assert found[3]["tool_calls"][0]["name"] == "add"
    assert found[3]["tool_calls"][0]["arguments"] == {"n": 1}
    assert found[4]["error"]["category"] == "batch_invalid_row"
    assert found[5]["error"]["category"] == "provider_invalid_request"
    assert report.rows == 7
    assert report.failed == 3
    assert report.bad == 1
    assert len(server.batches.batches) == 1


async def test_batch_is_billed_at_half_price(run: Run, out: Path) -> None:
    report = await run(prompts("a", "b"))
    one = dragoman.cost(Usage(1000, 10), "openai:gpt-5").total
    assert one is not None
    assert report.cost_usd == one
    assert Decimal(results(out)[0]["cost_usd"]) == one / 2


async def test_structured_output_is_parsed(run: Run, out: Path) -> None:
    await run(prompts("a"), response_schema=SCHEMA)
    assert results(out)[0]["parsed"] == {"n": 7}


async def test_rows_of_an_expired_batch_fail(run: Run, out: Path, server: SimServer) -> None:
    server.batches.script = BatchScript(expire_after=2)
    report = await run(prompts("a", "b", "c", "d"))
    found = results(out)
    assert [row.get("text") for row in found] == ["a!", "b!", None, None]
    assert "expired" in found[3]["error"]["message"]
    assert report.rows == 4
    assert report.failed == 2
    server.batches.script = BatchScript()
    again = await run(prompts("a", "b", "c", "d"), retry_failed=True)
    assert again.rows == 4
    assert again.failed == 0
    assert again.resumed == 2
    assert len(server.batches.batches["batch_2"].rows) == 2


class Interrupted(Exception):
    pass


async def test_restart_waits_for_the_submitted_batch(
    run: Run, out: Path, server: SimServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.batches.script = BatchScript(polls=5)
    kinds = set(APIS.values())
    kept = {kind: kind.poll for kind in kinds}

    async def interrupt(self: BatchApi, batch_id: str) -> Any:
        raise Interrupted

    for kind in kinds:
        monkeypatch.setattr(kind, "poll", interrupt)
    with pytest.raises(Interrupted):
        await run(prompts("a", "b"))
    state = json.loads(out.with_name("out.jsonl.state").read_text())
    assert [(each["first"], each["last"]) for each in state["provider"]["batches"]] == [(1, 2)]
    for kind in kinds:
        monkeypatch.setattr(kind, "poll", kept[kind])
    report = await run(prompts("a", "b"))
    assert report.rows == 2
    assert len(server.batches.batches) == 1
    assert server.batches.batches["batch_1"].asked == 6
    assert (await run(prompts("a", "b"))).resumed == 2
    assert len(server.batches.batches) == 1


async def test_cancelled_batch_keeps_finished_rows_and_a_later_run_completes_it(
    run: Run, out: Path, server: SimServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.batches.script = BatchScript(polls=1000)
    for kind in set(APIS.values()):
        monkeypatch.setattr(kind, "max_rows", 4)

    async def interrupt(*_: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(RemoteRunner, "_wait", interrupt)
    with pytest.raises(Interrupted):
        await run(prompts(*"abcdef"))
    monkeypatch.undo()
    report = await run(prompts(*"abcdef"), cancel=True)
    # The simulator completes half of each batch before it cancels.
    assert report.rows == 3
    assert report.stopped == "cancelled"
    assert [row["text"] for row in results(out)] == ["a!", "b!", "e!"]
    server.batches.script = BatchScript()
    last = await run(prompts(*"abcdef"))
    assert last.rows == 6
    assert last.stopped is None
    assert sorted(row["text"] for row in results(out)) == ["a!", "b!", "c!", "d!", "e!", "f!"]


async def test_full_disk_is_reported_while_another_batch_still_runs(
    run: Run, server: SimServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in set(APIS.values()):
        monkeypatch.setattr(kind, "max_rows", 1)
    wait = RemoteRunner._wait  # noqa: SLF001 - a provider that takes a day is played here
    waited: list[str] = []

    async def take_long(self: RemoteRunner, batch_id: str) -> Any:
        waited.append(batch_id)
        if len(waited) > 1:
            monkeypatch.setattr("os.fsync", refuse)
            await asyncio.Event().wait()
        return await wait(self, batch_id)

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RemoteRunner, "_wait", take_long)
    running = asyncio.ensure_future(run(prompts("a", "b")))
    try:
        await until(running.done, "the end of the batch")
    finally:
        running.cancel()
        monkeypatch.undo()
    assert isinstance(running.exception(), OSError)
    assert len(waited) == 2


async def test_many_rows_are_split_into_batches(
    run: Run, out: Path, server: SimServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in set(APIS.values()):
        monkeypatch.setattr(kind, "max_rows", 10)
    report = await run(prompts(*[f"p{number}" for number in range(35)]), order="completed")
    assert report.rows == 35
    assert len(server.batches.batches) == 4
    assert sorted(row["line"] for row in results(out)) == list(range(1, 36))


@pytest.mark.parametrize("wire", ["openai", "gemini"])
async def test_rows_of_a_batch_that_the_provider_rejects_fail(
    run: Run, out: Path, server: SimServer
) -> None:
    server.batches.script = BatchScript(refuse="the file is too strange")
    report = await run(prompts("a", "b"))
    assert report.rows == 2
    assert report.failed == 2
    assert "the file is too strange" in results(out)[0]["error"]["message"]


async def test_gemini_replies_without_keys_are_matched_by_position(
    server: SimServer, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dragoman.sim.batches._gemini_answer",
        lambda key, reply, batch: {"response": json.loads(reply.body)},
    )
    connection = {"base_url": server.base_urls["gemini"], "wire": "gemini"}
    await batch(
        prompts("a", "b"), out, "sim", connection=connection, via="provider", poll_seconds=0.01
    )
    assert [(row["line"], row["text"]) for row in results(out)] == [(1, "a!"), (2, "b!")]


async def test_models_without_a_batch_api_are_rejected(server: SimServer, out: Path) -> None:
    connection = {"base_url": server.base_urls["ollama"], "wire": "ollama"}
    with pytest.raises(errors.UnsupportedFeatureError, match="batch API"):
        await batch(prompts("a"), out, "sim", connection=connection, via="provider")


@pytest.mark.parametrize(
    "settings",
    [{"budget": "usd=1"}, {"cache": "x.db"}, {"via": "post"}, {"via": "model", "cancel": True}],
)
async def test_conflicting_batch_settings_are_rejected(
    out: Path, settings: dict[str, Any]
) -> None:
    connection = {"base_url": "http://127.0.0.1:1"}
    given = {"via": "provider", "connection": connection, **settings}
    with pytest.raises(ValueError, match="via"):
        await batch(prompts("a"), out, "x", **given)  # type: ignore[arg-type]


async def test_key_is_sent_to_the_providers_origin_only(server: SimServer) -> None:
    model = server.connect(api_key="secret-key-123")
    api = open_api(model)
    elsewhere = HttpRequest("GET", "http://127.0.0.1:1/x", {})
    with pytest.raises(ValueError, match="another origin"):
        [chunk async for chunk in api.provider.fetch(elsewhere)]
    with pytest.raises(errors.ProviderError) as caught:
        await api.get(f"{server.url}/v1/batches/none")
    assert "no such batch" in str(caught.value)
    await model.close()


HOSTILE = {
    "deep": (b"[" * 100_000 + b"]" * 100_000 + b"\n", "not a JSON object"),
    "endless line": (b"x" * 17_000_000, "more than 16,777,216 bytes"),
}


@pytest.mark.parametrize("way", HOSTILE)
async def test_hostile_answers_of_a_batch_api_are_rejected(way: str) -> None:
    data, why = HOSTILE[way]

    async def answer(connection: raw.Connection) -> None:
        connection.reply(200, data)

    async with raw.serve(answer) as server:
        api = open_api(
            dragoman.connect("m", base_url=f"{server.url}/v1", priced_as="openai:gpt-5-mini")
        )
        with pytest.raises(errors.InvalidResponseError, match=why):
            await api.get(f"{server.url}/v1/x")
        with pytest.raises(errors.InvalidResponseError, match=why):
            [line async for line in api.lines(f"{server.url}/v1/x")]
        await api.provider.close()


def test_guarded_model_has_no_batch_api_since_its_replies_could_not_be_judged() -> None:
    model = dragoman.connect("m", base_url="http://127.0.0.1:1/v1")
    guarded = dragoman.Guard(model, lambda subject: "allow")
    with pytest.raises(errors.UnsupportedFeatureError, match="a guard judges each reply"):
        open_api(dragoman.Retry(guarded))


async def test_rows_of_a_batch_are_judged_one_by_one(tmp_path: Path) -> None:
    async def judge(subject: Subject) -> Action:
        return "block" if "Ann" in subject.text else "allow"

    texts = ["a river", "Ann", "a lake"]
    rows = [{"id": str(at), "prompt": text} for at, text in enumerate(texts)]
    model = dragoman.Guard(Listed("Yes.", repeat=True), judge)
    report = await batch(rows, tmp_path / "out.jsonl", model)
    written = (tmp_path / "out.jsonl").read_text().splitlines()
    assert report.failed == 1
    assert sum("the guard withheld the request" in line for line in written) == 1
    assert sum('"Yes."' in line for line in written) == 2
