"""Tools of MCP servers that change while a session runs: by notification, and by lifetime."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman.comparison.cases import read_cases
from dragoman.log import SqliteLog, ToolsChanged
from dragoman.permission import Policy, Rule
from dragoman.replay import ReplayProvider, describe, recorded_tools
from dragoman.session import Session
from dragoman.tools import McpServer, Toolbox, ToolPins

from ..listed import Listed
from ..session.playing import call, of, propose
from ..waiting import PATIENCE, until

mcp = pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

COMMAND = [sys.executable, str(Path(__file__).with_name("changing_mcp_server.py"))]
ALLOW = Policy([Rule("allow")])


def open_changing(mode: str, **settings: Any) -> McpServer:
    return McpServer([*COMMAND, mode], start_timeout=PATIENCE, **settings)


def names(box: Toolbox) -> list[str]:
    return [tool.name for tool in box]


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_server_tells_that_its_tools_changed(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "Client", partial(mcp.Client, mode=era))
    async with open_changing("notice") as server:
        box = Toolbox(server.tools)
        assert not await box.refresh()
        await box.execute("change", {"add": "second"})
        await until(lambda: server._is_stale, "the notice")  # noqa: SLF001 - no other sign of it
        assert await box.refresh()
        assert names(box) == ["first", "change", "second"]
        assert (await box.execute("second", {})).content == "worked"
        assert not await box.refresh()
        await box.execute("change", {"remove": "first"})
        await until(lambda: server._is_stale, "the notice")  # noqa: SLF001
        assert await box.refresh()
        assert names(box) == ["change", "second"]
        assert box.validate("first", {}) is not None


async def test_list_of_tools_holds_for_its_lifetime() -> None:
    async with open_changing("ttl") as server:
        box = Toolbox(server.tools)
        await box.execute("change", {"replace": "first"})
        assert await box.refresh()
        # the order of the remaining tools is the same, so that a prompt cache is of use
        assert names(box) == ["first", "change"]
        assert (await box.execute("first", {"number": 3})).content == "worked 3"
    async with open_changing("silent") as server:
        box = Toolbox(server.tools)
        await box.execute("change", {"add": "second"})
        assert not await box.refresh()
        assert names(box) == ["first", "change"]


async def test_changed_tools_pass_the_pins(tmp_path: Path) -> None:
    asked: list[str] = []

    def accept(change: Any) -> bool:
        asked.append(change.tool.name)
        return change.tool.name == "second"

    pins = ToolPins(tmp_path / "pins.json")
    async with open_changing("ttl", pins=pins, accept=accept) as server:
        box = Toolbox(server.tools)
        await box.execute("change", {"add": "second"})
        await box.execute("change", {"add": "third", "replace": "first"})
        assert await box.refresh()
        assert names(box) == ["change", "second"]
        assert sorted(asked) == ["first", "second", "third"]
        assert len(server.refused) == 2


async def test_search_covers_the_tools_that_there_are_now() -> None:
    async with open_changing("ttl", deferred=True) as server:
        session = Session(Listed("done"), server.tools, ALLOW)
        box = session.tools
        assert not (await box.execute("search_tools", {"query": "zebra"})).details
        await box.execute("change", {"add": "zebra"})
        assert "zebra" not in str((await box.execute("search_tools", {"query": "zebra"})).content)
        assert await box.refresh()
        assert "zebra" in str((await box.execute("search_tools", {"query": "zebra"})).content)
        assert "among 3 " in box.find("search_tools").description.description


async def test_tools_that_cannot_be_read_again_stay(caplog: pytest.LogCaptureFixture) -> None:
    async with open_changing("ttl") as server:
        box = Toolbox(server.tools)
        await server.close()
        assert not await box.refresh()
    async with open_changing("ttl") as server:
        box = Toolbox(server.tools)
        await box.execute("first", {})  # the list has expired after it
        client = server._client  # noqa: SLF001 - a list that fails after the start

        async def fail(**_: Any) -> None:
            raise OSError("no list")

        client.list_tools = fail
        assert not await box.refresh()
        assert names(box) == ["first", "change"]
        assert "its tools may have changed, but cannot be read" in caplog.text


async def test_end_of_watching_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("no such notice")

    monkeypatch.setattr(mcp.Client, "listen", fail)
    async with open_changing("notice") as server:
        await until(lambda: "no such notice" in caplog.text, "the report")
        box = Toolbox(server.tools)
        assert (await box.execute("first", {})).content == "worked"
    assert "changes of its tools are no longer noticed: ValueError" in caplog.text


async def test_session_offers_and_records_changed_tools(tmp_path: Path) -> None:
    """The model gets the new tools in its next turn, and the run can be repeated and compared."""
    with SqliteLog(tmp_path / "log.db") as log:
        async with open_changing("ttl") as server:
            model = Listed(
                propose(call("change", add="second", remove="first")),
                propose(call("second", call_id="2")),
                "done",
            )
            async with model:
                session = Session(model, server.tools, ALLOW, log)
                assert (await session.run("Go.")).text == "done"
        records = list(log.read(session.id))
        offered = [[tool.name for tool in request.tools] for request in model.requests]
        assert offered == [["first", "change"], ["change", "second"], ["change", "second"]]
        [changed] = of(records, "tools.changed")
        assert isinstance(changed, ToolsChanged)
        assert [tool.name for tool in changed.definitions] == [*changed.tool_digests] == ["second"]
        assert changed.removed == ("first",)
        line = describe(next(each for each in records if each.type == "tools.changed"))
        assert line == "tools offered second, removed first"
        assert set(session.state.tool_digests) == {"change", "second"}
        cases, _ = read_cases(log, session.id)
        assert [[tool.name for tool in case.tools] for case in cases] == offered
        again = Session(ReplayProvider(log, session.id), recorded_tools(log, session.id), ALLOW)
        assert (await again.run("Go.")).text == "done"
