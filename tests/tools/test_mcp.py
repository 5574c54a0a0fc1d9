"""Test a real MCP server over standard input and output, and over HTTP."""

import logging
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from dragoman.log import SqliteLog
from dragoman.messages import Audio, Document, Image, Inline, Text
from dragoman.permission import Decision, Policy, Proposal, Rule, Scope, Verdict
from dragoman.session import Session
from dragoman.tools import McpServer, Toolbox, ToolFailure

from ..listed import Listed
from ..ports import find_free_port
from ..session.playing import ALL, call, of, propose
from ..waiting import PATIENCE, until, virtual_time

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

TOKEN = "tok-73b1f6c0a9d2"
WRONG = "tok-another-and-wrong"
COMMAND = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]

CONTEXT = ["list_resources", "read_resource", "list_prompts", "get_prompt"]
READINGS: list[tuple[str, dict[str, Any], str]] = [
    ("list_resources", {}, '"uri":"note://today"'),
    ("read_resource", {"uri": "note://today"}, "buy milk"),
    ("list_prompts", {}, '"name":"review"'),
    ("get_prompt", {"name": "review", "arguments": {"code": "x.py"}}, "Review x.py."),
]


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[McpServer]:
    # Open and close the server in different tasks on purpose: pytest runs a fixture's setup and
    # teardown in separate tasks, and callers of a session may do so too.
    monkeypatch.setenv("DRAGOMAN_API_KEY", "k-secret")
    settings: dict[str, Any] = {"env": {"MINE": "1"}, "output_limit": 1000, "deferred": True}
    settings |= {"context": True, "side_effects": {"add": "none", "get_prompt": "network"}}
    server = McpServer(COMMAND, start_timeout=PATIENCE, **settings)
    await server.open()
    yield server
    await server.close()


async def test_tools_of_an_mcp_server_are_called(server: McpServer, tmp_path: Path) -> None:
    """Calls that do not end the server share one, because its start takes a second."""
    await check_calls(server)
    await check_session(server, tmp_path)
    await check_questions(server, tmp_path)
    await check_pages(server)
    sleep = next(tool for tool in server.tools if tool.name == "sleep")
    sleep.timeout = 10
    with virtual_time(), pytest.raises(ToolFailure, match=r"still running after 10 s"):
        await Toolbox(server.tools).execute("sleep", {})
    seen = await Toolbox(server.tools).execute("keys", {})
    assert "MINE" in str(seen.content)
    assert "DRAGOMAN_API_KEY" not in str(seen.content)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("execute", "execute", "execute")),
        ({"trust_hints": True}, ("read", "execute", "execute")),
        ({"trust_hints": True, "side_effects": {"a*": "network"}}, ("network", "execute", "execute")),
        ({"side_effects": {"a*": "none", "*": "write", "add": "read"}}, ("read", "write", "write")),
        ({"side_effects": {"A*": "none", "fai?": "read"}}, ("execute", "read", "execute")),
    ],
)  # fmt: skip
async def test_side_effects_are_declared_by_pattern_or_by_hints_that_are_trusted(
    settings: dict[str, Any], expected: tuple[str, ...]
) -> None:
    async with McpServer(COMMAND, start_timeout=PATIENCE, **settings) as server:
        effects = {tool.name: tool.side_effect for tool in server.tools}
    assert tuple([effects[name] for name in ("add", "fail", "keys")]) == expected


async def check_calls(server: McpServer) -> None:
    tools = {tool.name: tool for tool in server.tools}
    own = "add fail show link play measure keys identify vanish sleep talk leak choose visit"
    assert set(tools) == {*own.split(), "m" * 128, *CONTEXT}
    assert [tools[name].side_effect for name in CONTEXT] == ["read", "read", "read", "network"]
    assert tools["add"].side_effect == "none"
    assert tools["add"].description.deferred
    # A tool without a declared side effect counts as "execute".
    assert tools["keys"].side_effect == "execute"
    assert tools["add"].description.parameters["required"] == ["a", "b"]
    assert tools["add"].context() == {"server": sys.executable, "remote_name": "add"}
    box = Toolbox(server.tools)
    seen = await box.execute("add", {"a": 2, "b": 3})
    assert seen.content == "5"
    assert seen.is_error is False
    rejection = box.validate("add", {"a": "two", "b": 3})
    assert rejection[0] == "invalid_arguments"
    seen = await box.execute("fail", {})
    assert seen.is_error
    assert "no such thing" in str(seen.content)
    seen = await box.execute("show", {})
    assert seen.content == (Text("a picture"), Image(Inline("iVBORw0KGgo="), "image/png"))
    await check_contents(box)
    assert (await box.execute("m" * 128, {})).content == "long"
    for name, arguments, content in READINGS:
        assert content in str((await box.execute(name, arguments)).content)
    with pytest.raises(ToolFailure, match="note://other"):
        await box.execute("read_resource", {"uri": "note://other"})
    seen = await box.execute("talk", {})
    assert seen.truncated
    assert "left out here" in str(seen.content)


async def check_contents(box: Toolbox) -> None:
    """Every kind of content reaches the model; structured content does if nothing else has text."""
    seen = await box.execute("link", {})
    assert seen.content == (
        "[resource link note://today (text/plain, 8 bytes)]\nThe note\nnote\nWhat to buy.\n"
        "[resource link file:///b.txt]\nb"
    )
    sound = Inline("UklGRg==")
    seen = await box.execute("play", {})
    assert seen.content == (
        Audio(sound, "audio/wav"),
        Text("[resource note://a]"),
        Audio(sound, "audio/wav"),
        Text("[resource note://b]"),
        Document(sound, "application/pdf"),
        Text("[resource note://c: application/zip, about 6 bytes; not shown]"),
        Text("[resource note://d]"),
        Image(sound, "image/png"),
        Text("[resource note://e: unknown type, about 6 bytes; not shown]"),
    )
    for text, content in [(None, '{"degrees":21.5}'), (" ", '{"degrees":21.5}'), ("hot", "hot")]:
        seen = await box.execute("measure", {} if text is None else {"text": text})
        assert seen.content == content
        assert seen.details["structured_content"] == {"degrees": 21.5}


async def check_questions(server: McpServer, tmp_path: Path) -> None:
    """Only an approver answers what a server asks, and the answer must fit the form."""
    asked: list[Proposal] = []

    def approve(answer: Any, scopes: tuple[Scope, Scope] = ("once", "session")) -> Any:
        def decide(proposal: Proposal, verdict: Verdict) -> Decision:
            asked.append(proposal)
            is_question = "question" in proposal.input
            given = {"answer": answer} if is_question and answer else None
            return Decision(True, "ann", input=given, scope=scopes[is_question])

        return decide

    allowed = Rule("allow")
    denied = Rule("deny", arguments={"question": "*"})
    blue = {"size": 7, "colour": "blue"}
    cases: list[tuple[Any, list[Rule], str | None, dict[str, Any] | None]] = [
        (None, [allowed], "nobody", None),
        (approve(blue), [allowed], "ann", blue),
        (approve({"size": "big"}), [allowed], "ann", None),
        (approve(None), [allowed], "ann", None),  # the default has no colour
        (approve(blue), [allowed, denied], "policy", None),
        (approve(blue), [], "ann", blue),  # asked about two calls and two questions
        (approve(blue, ("session", "once")), [], "ann", blue),  # one call and two questions
    ]
    for number, (approver, rules, by, answer) in enumerate(cases):
        with SqliteLog(tmp_path / f"questions-{number}.db") as log:
            model = Listed(propose(call("choose"), call("choose", call_id="2")), "done")
            async with model:
                session = Session(model, server.tools, Policy(rules), log, approve=approver)
                await session.run("Choose.")
            observed = of(list(log.read(session.id)), "tool.observed")
            assert len(observed) == 2
            for seen in observed:
                [question] = seen.details["questions"]
                assert question["question"] == "Which one?"
                assert question["by"] == by
                assert question["answer"] == answer
                assert ("blue" in str(seen.content)) is (answer is not None)
    # the decision for one question does not cover the next one, or a call
    assert len(asked) == 6 + 4 + 3
    assert asked[0].input["answer"] == {"size": 7}


async def check_pages(server: McpServer) -> None:
    """The approver is shown the URL of a page that the server asks the user to visit."""
    asked: list[dict[str, Any]] = []

    async def approve(question: dict[str, Any]) -> Decision:
        asked.append(question)
        return Decision(len(asked) == 1, "ann", input={"answer": 1})

    page = "https://pay.example/1"
    box = Toolbox(server.tools)
    cases = [(page, "accept"), (page, "decline")]
    cases += [(each, "decline") for each in ("file:///etc/passwd", f"{page}?{'x' * 4000}")]
    with mock.patch("webbrowser.open", side_effect=AssertionError):
        for url, action in cases:
            seen = await box.execute("visit", {"url": url}, ask=approve)
            assert f"action='{action}' content=None" in str(seen.content)
            assert seen.details["questions"][0]["url"] == url
    assert asked == [{"question": "Pay here.", "url": page}] * 2


async def test_tool_call_fails_if_the_mcp_server_has_ended(server: McpServer) -> None:
    box = Toolbox(server.tools)
    with pytest.raises(ToolFailure) as caught:
        await box.execute("vanish", {})
    assert caught.value.kind in ("lost", "crashed")
    with pytest.raises(ToolFailure):
        await box.execute("add", {"a": 1, "b": 1})


async def test_mcp_server_at_a_url_receives_its_token(caplog: pytest.LogCaptureFixture) -> None:
    port = find_free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    environment = {**os.environ, "MCP_EXPECTED": bearer["Authorization"]}
    command = [*COMMAND, "--http", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            await until(lambda: process.poll() is not None or _answers(port), "the server")
            assert process.poll() is None
            with caplog.at_level(logging.DEBUG):
                given = {"X-Part": TOKEN[:10], **bearer}
                server = McpServer(f"{url}?key=k-secret", start_timeout=PATIENCE, headers=given)
                async with server:
                    assert server.label == url
                    box = Toolbox(server.tools)
                    assert (await box.execute("add", {"a": 2, "b": 3})).content == "5"
                    seen = await box.execute("leak", {})
                    expected = ("you sent Bearer [hidden]", False)
                    assert (seen.content, TOKEN in str(seen.details)) == expected
                for headers in ({}, {"Authorization": f"Bearer {WRONG}"}):
                    with pytest.raises(ToolFailure) as caught:
                        await McpServer(url, start_timeout=PATIENCE, headers=headers).open()
                    assert caught.value.kind == "not_started"
                    assert WRONG not in "".join(traceback.format_exception(caught.value))
            assert TOKEN not in caplog.text + repr(server)
            assert WRONG not in caplog.text
        finally:
            process.kill()


async def test_a_token_does_not_follow_a_redirect_to_another_origin() -> None:
    received: list[Any] = []

    async def keep(request: web.Request) -> web.Response:
        received.append(dict(request.headers))
        return web.Response(status=500)

    async def redirect(request: web.Request) -> web.Response:
        asked.append(request.headers.get("X-Key"))
        return web.Response(status=307, headers={"Location": str(other.make_url("/mcp"))})

    asked: list[Any] = []
    there = web.Application()
    here = web.Application()
    there.router.add_route("*", "/mcp", keep)
    here.router.add_route("*", "/mcp", redirect)
    async with TestServer(there) as other, TestServer(here) as first:
        with pytest.raises(ToolFailure) as caught:
            await McpServer(
                str(first.make_url("/mcp")), start_timeout=PATIENCE, headers={"X-Key": TOKEN}
            ).open()
    assert set(asked) == {TOKEN}
    assert TOKEN not in str(received)
    assert TOKEN not in caught.value.message


@pytest.mark.parametrize(
    ("target", "headers", "words"),
    [
        ("http://mcp.example.com/", {"Authorization": TOKEN}, "would be sent unencrypted"),
        (["server"], {"Authorization": TOKEN}, "a program has none"),
        ("https://mcp.example.com/", {"X Key": TOKEN}, "'X Key' is not a header"),
        ("https://mcp.example.com/", {"X-Key": f"{TOKEN}\r\nX-Other: 1"}, "not printable ASCII"),
        ("https://mcp.example.com/", {"X-Key": " "}, "value is empty"),
    ],
)
def test_unsafe_headers_are_rejected(target: Any, headers: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        McpServer(target, headers=headers)
    assert TOKEN not in str(caught.value)


def test_label_of_an_mcp_server_omits_credentials_and_query() -> None:
    assert (
        McpServer("https://ann:pw@mcp.example.com:8443/a?key=k").label
        == "https://mcp.example.com:8443/a"
    )


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


BROKEN = [sys.executable, "-c", "raise SystemExit('it does not start')"]


@pytest.mark.parametrize("target", [BROKEN, ["/no/such/server"]])
async def test_error_names_an_mcp_server_that_does_not_start(target: list[str]) -> None:
    with pytest.raises(ToolFailure) as caught:
        async with McpServer(target):
            pass
    assert caught.value.kind == "not_started"
    assert ("it does not start" in caught.value.message) is (target is BROKEN)


@pytest.mark.parametrize(
    ("target", "said"),
    [("python server.py", "must be a URL, or a list"), ([], "must not be empty")],
)
def test_invalid_address_of_an_mcp_server_is_rejected(target: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        McpServer(target)  # type: ignore[arg-type]


async def check_session(server: McpServer, tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        provider = Listed(propose(call("add", a=2, b=3)), "5.")
        session = Session(
            provider, server.tools, Policy([Rule("allow", side_effect=["none"])]), log
        )
        assert (await session.run("What is 2 + 3?")).text == "5."
        records = list(log.read(session.id))
        assert of(records, "tool.observed")[0].content == "5"
        assert of(records, "tool.started")[0].context["remote_name"] == "add"
        provider = Listed(propose(call("identify")), "Done.")
        session = Session(provider, server.tools, ALL, log)
        await session.run("Which call is this?")
        records = list(log.read(session.id))
        [intent] = of(records, "tool_intent.proposed")
        assert of(records, "tool.observed")[0].content == f"{intent.id} {session.id} 1"
        [report] = of(records, "tool.progress")
        assert report.progress == {"progress": 1.0, "total": 2.0, "message": "half"}


def test_the_mcp_package_is_imported_only_when_a_server_is_opened() -> None:
    program = "import sys, dragoman.session, dragoman.tools; print('mcp' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.stdout.strip() == "False"


async def test_error_names_the_extra_that_mcp_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ToolFailure, match=r"pip install 'dragoman\[mcp\]'"):
        await McpServer(COMMAND).open()
