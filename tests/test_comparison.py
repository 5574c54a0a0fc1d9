"""Test ``dragoman compare``: scripted disagreement is found exactly, and nothing is executed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import dragoman as d
from dragoman.cli import main
from dragoman.comparison import write_page
from dragoman.gateway.app import create_app
from dragoman.log import CallStarted, LogError, MemoryLog, SqliteLog
from dragoman.sim import Answer, Call, Script, ScriptedProvider, ScriptRule, SimServer
from dragoman.tools import tool
from dragoman.wire import SERVER_CODECS

from .gateway.serving import serving
from .listed import Listed
from .waiting import until

Sim = Callable[..., SimServer]
ran: list[str] = []
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
}


@tool(side_effect="none")
def look(word: str) -> str:
    """Look up a word."""
    ran.append(word)
    return f"{word}: found"


def answer(request: d.Request, given: dict[str, str], count: int = 1) -> Answer:
    """Look up the user's text, or what ``given`` maps it to; answer a result with a text."""
    word = next(each.text for each in request.messages if isinstance(each, d.User))
    value = {"colour": "<b>red</b>", "count": count}
    if isinstance(request.tool_choice, d.ForceTool):  # a schema on a wire without schemas
        return Answer(tool_calls=[Call(request.tool_choice.name, value)])
    if request.response_schema is not None:
        return Answer(json.dumps(value))
    if word == "refuse":
        return Answer("no", finish="content_filter" if "refuse" in given else None)
    if isinstance(request.messages[-1], d.ToolResult) or not given.get(word, word):
        return Answer(f"{word} is found")
    return Answer(tool_calls=[Call("look", {"word": given.get(word, word)})])


async def record(log: Any) -> None:
    """Record five sessions: four look up a word, and one has a structured answer."""
    model = ScriptedProvider(ScriptRule(lambda request: answer(request, {})), model="m")
    for word in ("a", "b", "c", "d", "refuse"):
        session = d.Session(model, [look], None, log, session_id=word, config={"max_tokens": 99})
        await session.run(word)
    await d.Session(
        model, [], None, log, session_id="e", output=SCHEMA, config={"max_tokens": 99}
    ).run("e")


@pytest.mark.parametrize("wire", sorted(SERVER_CODECS))
async def test_disagreement_is_found_exactly(dragoman_sim: Sim, wire: str, tmp_path: Path) -> None:
    differing = {"c": "x", "d": "", "refuse": ""}
    sim = dragoman_sim(ScriptRule(lambda request: answer(request, differing, count=2)))
    with MemoryLog() as log:
        await record(log)
        ran.clear()
        async with d.connect("m", wire=wire, base_url=sim.base_urls[wire], api_key="k") as model:
            found = await d.compare(log, model, tmp_path)
    assert ran == []
    assert found.cases == 10
    assert found.skipped == {}
    assert found.models == {"sim:m": 10}
    [target] = found.targets
    assert target.answered == 10
    assert target.errors == {}
    assert target.missing == 0
    assert {name: (rate.count, rate.total) for name, rate in target.rates.items()} == {
        "tool_calls": (2, 4), "tool_names": (3, 4), "structured": (0, 1), "text": (5, 5),
        "refusals": (1, 10), "losses": (0, 10),
    }  # fmt: skip
    places = {each.case.split("/")[0]: (each.kind, each.places) for each in target.differences}
    assert places == {
        "c": ("tool_calls", ("[0].arguments.word",)),
        "d": ("tool_calls", ("[0]",)),
        "e": ("structured", ("count",)),
    }
    page = write_page(found)
    assert "&lt;b&gt;red&lt;/b&gt;" in page
    assert "<b>red" not in page + str(page.count("<script"))
    assert page.count("<section>") == 3


@pytest.mark.parametrize("wire", sorted(SERVER_CODECS))
async def test_calls_of_a_gateway_are_compared_with_their_tools(wire: str, tmp_path: Path) -> None:
    model = ScriptedProvider(ScriptRule(lambda request: answer(request, {})), model="m")
    other = ScriptedProvider(
        ScriptRule(lambda request: answer(request, {"c": "x"}, count=2)), model="n"
    )
    path = SERVER_CODECS[wire].base_path
    tools = [look]
    config: Any = {"max_tokens": 99}
    with MemoryLog() as log:
        async with (
            serving(create_app({"m": model}, log=log, log_content=True)) as url,
            d.connect("m", wire=wire, base_url=url + path, api_key="k") as client,
        ):
            for word in ("a", "b", "c"):
                await client.complete(word, tools, config=config, tool_choice="required")
            await client.complete("e", response_schema=SCHEMA, config=config)
            await client.complete("refuse", config=config)
        starts: list[Any] = [each.payload for each in log.find("llm.call_started")]
        found = await d.compare(log, other, tmp_path)
    assert found.cases == 5
    assert found.skipped == {}
    [target] = found.targets
    # the bedrock wire sends a schema as a tool that is forced
    structured = ("[0].arguments.count",) if wire == "bedrock" else ("count",)
    assert [each.places for each in target.differences] == [("[0].arguments.word",), structured]
    for sent, again in zip(model.requests, other.requests, strict=True):
        assert again.tools == sent.tools
        assert again.response_schema == sent.response_schema
        assert again.tool_choice == sent.tool_choice
    assert [len(each.definitions) for each in starts] == [1, 0, 0, int(wire == "bedrock")]
    assert len({each.tools_digest for each in starts[:3]}) == 1


async def test_gateway_defines_tools_again_if_a_record_was_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ScriptedProvider(ScriptRule(lambda request: answer(request, {})), model="n")
    with MemoryLog() as log:
        append = log.append
        missed = [LogError("the disk is full")]

        async def miss_one(session: str, payload: Any, **facts: Any) -> Any:
            if isinstance(payload, CallStarted) and missed:
                raise missed.pop()
            return await append(session, payload, **facts)

        monkeypatch.setattr(log, "append", miss_one)
        app = create_app({"m": model}, log=log, log_content=True)
        async with (
            serving(app) as url,
            d.connect("m", base_url=url + "/v1", api_key="k") as client,
        ):
            await client.complete("a", [look])
            await until(lambda: list(log.find("llm.call_completed")), "the record of the call")
            await client.complete("b", [look])
        starts: list[Any] = [each.payload for each in log.find("llm.call_started")]
    assert [len(each.definitions) for each in starts] == [1]


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["compare", *words])


def test_comparison_keeps_its_budget_and_continues(
    dragoman_sim: Sim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rules = [ScriptRule(lambda request: answer(request, {}))]
    sim = dragoman_sim(Script(rules, model="one", models=["one", "two"]))
    with SqliteLog(tmp_path / "log.db") as log:
        asyncio.run(record(log))
    words = ["log.db", "--to", "one", "--to", "two", "--base-url", sim.base_urls["openai"]]
    first = run(*words, "--budget", "rows=13")
    assert first.exit_code == 23
    assert "two: without an answer, 7: budget" in first.stdout
    second = run(*words, "--html", "page.html", "--json")
    assert second.exit_code == 0, second.output
    one, two = json.loads(second.stdout)["targets"]
    assert one["answered"] == 10
    assert two["answered"] == 10
    assert two["missing"] == 0
    assert one["rates"]["tool_calls"]["interval"] == [0.5101, 1.0]
    assert len(sim.requests) == 20  # no call was sent twice
    assert "Comparison of 10 recorded calls" in (tmp_path / "page.html").read_text()
    third = run(*words[:3], *words[5:], "--session", "a")
    assert third.exit_code == 2
    assert "another input" in third.output


async def test_comparison_uses_a_providers_batch_api(dragoman_sim: Sim, tmp_path: Path) -> None:
    sim = dragoman_sim(ScriptRule(lambda request: answer(request, {"c": "x"})))
    with MemoryLog() as log:
        await record(log)
        async with (
            d.connect(
                "m", wire="anthropic", base_url=sim.base_urls["anthropic"], api_key="k"
            ) as one,
            d.connect(
                "m", wire="cohere", base_url=sim.base_urls["cohere"], api_key="k", name="c"
            ) as two,
        ):
            found = await d.compare(log, [one, two], tmp_path, via="provider", poll_seconds=0.01)
    assert [each.via for each in found.targets] == ["provider", "model"]
    assert [each.rates["tool_calls"].count for each in found.targets] == [3, 3]


async def test_calls_that_cannot_be_repeated_are_counted(tmp_path: Path) -> None:
    model = ScriptedProvider("Hello.", model="m")
    broken = ScriptedProvider(ScriptRule(Answer(tool_calls=[Call("look", "{")])), model="m")
    with MemoryLog() as log:
        with pytest.raises(d.MalformedToolCallError):
            await d.Session(broken, [look], None, log).run("Go.")
        with pytest.raises(d.UnavailableError):  # nothing arrived, so the log has no message
            await d.Session(Listed(d.UnavailableError("down")), [], None, log).run("Go.")
        await d.Session(model, [look], None, log).run("Go.")
        found = await d.compare(log, ScriptedProvider("Hello.", model="n"), tmp_path)
        failed = len([*log.find("llm.call_failed")])
        assert failed > 1
        assert found.cases == 1
        assert found.skipped == {"the call failed": failed}
        with pytest.raises(ValueError, match="none twice"):
            await d.compare(log, ["m", "m"], tmp_path)
