"""``dragoman agent --acp``, driven by the client of the protocol's own package."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import acp
import pytest
from acp import helpers, schema
from click.testing import CliRunner

from dragoman.cli import main
from dragoman.cli.acp import EditorAgent, EditorSession, _pass_messages
from dragoman.cli.acp_models import EditorModels
from dragoman.cli.agent_view import AgentView
from dragoman.cli.mcp_servers import McpOptions, open_servers
from dragoman.errors import AuthenticationError
from dragoman.log import EventLog, MemoryLog, SessionStarted, SqliteLog
from dragoman.messages import Request, ToolResult
from dragoman.permission import Policy, Rule
from dragoman.registry import stored_keys
from dragoman.session import Session
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer
from dragoman.tools import workspace_tools

from ..listed import Listed, reply
from ..session.playing import call, check_evidence, of, propose, text
from ..waiting import PATIENCE, patience, until

SECRET = "sk-canary-0123456789abcdef"
READING = Policy([Rule("allow", side_effect=["none", "read"])])
EDIT = propose(call("edit_file", path="a.txt", old="one", new="two"), words="I edit it.")
FORMS = schema.ClientCapabilities(
    elicitation=schema.ElicitationCapabilities(form=schema.ElicitationFormCapabilities())
)


class Editor:
    """A client that keeps every update, and answers questions with the next of ``answers``."""

    def __init__(self, *answers: str, form: dict[str, Any] | None = None) -> None:
        self.answers = list(answers)
        self.form = form
        self.pause: asyncio.Event | None = None  # before it answers a question
        self.updates: list[tuple[str, Any]] = []
        self.outcomes: list[Any] = []  # replies as an editor may send them, not as it should
        self.questions: list[tuple[Any, list[Any]]] = []

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append((session_id, update))

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> schema.RequestPermissionResponse:
        assert self.list("tool_call"), "the call is shown before the question"
        self.questions.append((tool_call, options))
        if self.pause is not None:
            await self.pause.wait()
        if self.outcomes:
            return self.outcomes.pop(0)
        if not self.answers:
            return schema.RequestPermissionResponse(
                outcome=schema.DeniedOutcome(outcome="cancelled")
            )
        chosen = schema.AllowedOutcome(outcome="selected", option_id=self.answers.pop(0))
        return schema.RequestPermissionResponse(outcome=chosen)

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        if self.form is None:
            return schema.DeclineElicitationResponse(action="decline")
        return schema.AcceptElicitationResponse(action="accept", content=self.form)

    def list(self, kind: str) -> list[Any]:
        """Return the updates whose kind begins with a word."""
        return [each for _, each in self.updates if each.session_update.startswith(kind)]

    def text(self, kind: str = "agent_message_chunk", session_id: str | None = None) -> str:
        return "".join(
            each.content.text
            for name, each in self.updates
            if each.session_update == kind and session_id in (None, name)
        )


@contextlib.asynccontextmanager
async def serving(
    editor: Editor, provider: Any, log: EventLog | None = None
) -> AsyncIterator[Any]:
    """Serve sessions with a provider, and yield the connection of the editor to them."""
    log = log or MemoryLog()

    async def open_session(
        session: EditorSession, provider: Any, servers: Any, resume: str | None
    ) -> Session[Any]:
        tools = workspace_tools(session.workspace)
        view = AgentView(as_json=True)
        tools += await open_servers(session.stack, McpOptions(), view, None, servers)
        watching: Any = {
            "approve": session.approve,
            "on_event": session.show_event,
            "on_record": session.show_record,
        }
        parts: Any = provider, tools, READING, log
        if resume is None:
            return Session(*parts, **watching)
        return await Session.resume(*parts, session_id=resume, **watching)

    ends = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]
    (reader, writer), (own_reader, own_writer) = ends
    models = provider if isinstance(provider, EditorModels) else EditorModels(lambda _: provider)
    agent = EditorAgent(open_session, models, log)
    work = asyncio.create_task(agent.serve(reader, writer))
    connection = acp.connect_to_agent(editor, own_writer, own_reader, use_unstable_protocol=True)  # type: ignore[arg-type]
    try:
        async with patience("the editor's requests"):
            await connection.initialize(protocol_version=1, client_capabilities=FORMS)
            yield connection
    finally:
        await connection.close()
        for each in (own_writer, writer):
            each.close()
        await work


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "a.txt").write_text("one\n")
    return place


def last(request: Request) -> str:
    """Return the text of the last message of a request."""
    message: Any = request.messages[-1]
    return str(message.text)


async def begin(connection: Any, folder: Path, **settings: Any) -> str:
    opened = await connection.new_session(cwd=str(folder), mcp_servers=[], **settings)
    return str(opened.session_id)


def ask(connection: Any, session_id: str, words: str = "Make it two.") -> Any:
    return connection.prompt(session_id=session_id, prompt=[helpers.text_block(words)])


async def test_prompt_sends_text_thinking_a_diff_and_usage(folder: Path) -> None:
    thinking = propose(
        lambda out: out.thinking("Hm."),
        text("I edit it."),
        call("edit_file", path="a.txt", old="one", new="two"),
    )
    look = propose(call("read_file", path="a.txt"))
    provider = Listed(thinking, look, "It is two.", capabilities={"max_context_tokens": 1000})
    editor = Editor("yes")
    log = MemoryLog()
    async with serving(editor, provider, log) as connection:
        session_id = await begin(connection, folder)
        link = helpers.resource_link_block("a.txt", (folder / "a.txt").as_uri())
        prompt = [helpers.text_block("Make it two: "), link]
        ended = await connection.prompt(session_id=session_id, prompt=prompt)
    assert ended.stop_reason == "end_turn"
    assert (folder / "a.txt").read_text() == "two\n"
    assert last(provider.requests[0]) == "Make it two: [a.txt](a.txt)"
    assert editor.text("agent_thought_chunk") == "Hm."
    assert editor.text() == "I edit it.It is two."
    edit, _, edited, done, look_up, *_, read = editor.list("tool")
    assert [each.session_update for each in (edit, look_up)] == ["tool_call"] * 2
    assert edit.status == "pending"
    assert edited.status == "in_progress"
    assert done.status == "completed"
    diff = edit.content[0]
    assert diff.path == str(folder / "a.txt")
    assert diff.old_text == "one"
    assert diff.new_text == "two"
    assert done.content is None
    assert read.content[0].content.text == "```\n     1\ttwo\n```"
    usage = editor.list("usage")
    assert [(each.used, each.size) for each in usage] == [(15, 1000)] * 3
    check_evidence(list(log.read(session_id)))


ANSWERS: dict[str, tuple[list[str], dict[str, Any] | None, str, int]] = {
    # the answers, the form, the text of the file after two edits, the number of questions
    "allowed once": (["yes", "no"], None, "two", 2),
    "allowed for the session": (["always"], None, "three", 1),
    "allowed for the path": (["path"], None, "three", 1),
    "rejected": (["no", "no"], None, "one", 2),
    "cancelled": ([], None, "one", 2),
    "an answer that was not offered": (["command", "other"], None, "one", 2),
    "edited": (["edit", "no"], {"new": "four"}, "four", 2),
    "edited with an invalid input": (["edit", "no"], {"new": 4}, "one", 2),
    "edited without a change": (["edit", "no"], None, "one", 2),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_permission_questions_have_the_terminals_answers(name: str, folder: Path) -> None:
    answers, form, after, asked = ANSWERS[name]
    again = propose(call("edit_file", path="a.txt", old="two", new="three"))
    editor = Editor(*answers, form=form)
    log = MemoryLog()
    async with serving(editor, Listed(EDIT, again, "Done."), log) as connection:
        session_id = await begin(connection, folder)
        assert (await ask(connection, session_id)).stop_reason == "end_turn"
    assert (folder / "a.txt").read_text() == f"{after}\n"
    assert len(editor.questions) == asked
    proposed, options = editor.questions[0]
    assert proposed.kind == "edit"
    assert proposed.locations[0].path == str(folder / "a.txt")
    assert [each.option_id for each in options] == ["yes", "always", "path", "edit", "no"]
    records = list(log.read(session_id))
    check_evidence(records)
    if name == "edited":
        assert of(records, "permission.granted")[0].input["new"] == "four"
    if name == "rejected":
        assert [end.by for end in of(records, "permission.denied")] == ["user", "user"]
        ends = [each for _, each in editor.updates if getattr(each, "status", "") == "failed"]
        assert [each.content[0].content.text for each in ends] == ["denied edit_file, by user"] * 2


@pytest.mark.parametrize(
    "outcome",
    [
        {"outcome": "cancelled", "optionId": "yes"},
        {"outcome": "rejected", "optionId": "yes"},
        {"optionId": "yes"},
        {"outcome": "selected", "optionId": "YES"},
        {"outcome": "selected", "optionId": "y"},
        {"outcome": "selected", "optionId": ["yes"]},
        {"outcome": "selected"},
        {},
    ],
)
async def test_only_an_offered_answer_that_was_selected_allows_a_call(
    outcome: dict[str, Any], folder: Path
) -> None:
    editor = Editor()
    log = MemoryLog()
    editor.outcomes = [{"outcome": outcome}]
    async with serving(editor, Listed(EDIT, "Done."), log) as connection:
        await ask(connection, await begin(connection, folder))
    assert (folder / "a.txt").read_text() == "one\n"
    assert len(editor.questions) == 1


@pytest.mark.parametrize("size", [99, 2**17])
async def test_lines_that_are_no_messages_are_reported_and_end_nothing(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [b'{"id":1,"method":"a"}', b'{"id":"x","result":[' + b"1," * 50_000 + b"1]}"]
    wrong = [
        b"[]", b"null", b"5", b'"x"', b"junk", b"\xff", b"[" * 100_000, b'{"id":[1],"result":1}',
        b'{"id":1,"method":5}', b"{",
    ]  # fmt: skip
    data = b"\n".join([messages[0], *wrong, b"", b"  ", messages[1]])
    source = asyncio.StreamReader()
    target = asyncio.StreamReader()
    for at in range(0, len(data), size):
        source.feed_data(data[at : at + size])
    source.feed_eof()
    await _pass_messages(source, target)
    assert (await target.read()).splitlines() == messages
    assert caplog.text.count("is not a message of JSON-RPC and is skipped") == len(wrong)


async def test_line_that_is_no_message_does_not_end_the_sessions(folder: Path) -> None:
    ends = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]
    (reader, writer), (own_reader, own_writer) = ends
    agent = EditorAgent(
        lambda *_: pytest.fail("no session"), EditorModels(lambda _: Listed()), MemoryLog()
    )
    work = asyncio.create_task(agent.serve(reader, writer))
    params = {"protocolVersion": 1, "clientCapabilities": {}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    own_writer.write(b"[]\nnull\njunk\n" + json.dumps(request).encode() + b"\n")
    async with patience("the reply of the agent"):
        reply = json.loads(await own_reader.readline())
    assert reply["id"] == 1
    assert reply["result"]["protocolVersion"] == 1
    own_writer.close()
    async with patience("the end of the agent"):
        await work
    writer.close()


async def test_commands_can_be_allowed_by_their_first_word(folder: Path) -> None:
    calls = [propose(call("bash", command=words)) for words in ("cat a.txt", "cat b.txt")]
    editor = Editor("command")
    async with serving(editor, Listed(*calls, "Done.")) as connection:
        await ask(connection, await begin(connection, folder))
    [(_, options)] = editor.questions
    assert "Always allow commands with 'cat'" in [each.name for each in options]


def pausing(words: str, pause: asyncio.Event) -> Callable[[Request], list[Any]]:
    """Return a reply that waits for an event after its first piece of text."""

    def answer(request: Request) -> list[Any]:
        start, piece, *rest = reply(words)(request)
        return [start, piece, pause, *rest]

    return answer


@pytest.mark.parametrize("moment", ["in the stream", "in a question", "at once"])
async def test_cancel_stops_the_prompt_and_is_recorded(moment: str, folder: Path) -> None:
    slow = pausing("one two", asyncio.Event())
    provider = Listed(EDIT if moment == "in a question" else slow)
    editor = Editor("yes")
    log = MemoryLog()
    editor.pause = asyncio.Event()
    async with serving(editor, provider, log) as connection:
        session_id = await begin(connection, folder)
        asking = asyncio.create_task(ask(connection, session_id))
        if moment == "in the stream":
            await until(editor.text, "the first text")
            with pytest.raises(acp.RequestError, match="still runs a prompt"):
                await ask(connection, session_id)
        elif moment == "in a question":
            await until(lambda: editor.questions, "the question")
        else:
            await asyncio.sleep(0)  # let the task send the prompt
        await connection.cancel(session_id=session_id)
        assert (await asking).stop_reason == "cancelled"
        editor.pause.set()  # an answer that comes too late
        assert provider.running == 0
        assert (folder / "a.txt").read_text() == "one\n"
        ended = of(list(log.read(session_id)), "session.finished")
        assert [end.outcome for end in ended] == ["cancelled"] * len(ended)
        provider.answers = ["Here again."]
        assert (await ask(connection, session_id)).stop_reason == "end_turn"
        assert editor.text().endswith("Here again.")


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_disconnecting_stops_the_prompt(is_cancelled: bool, folder: Path) -> None:
    provider = Listed(pausing("one two", asyncio.Event()))
    editor = Editor()
    log = MemoryLog()
    async with serving(editor, provider, log) as connection:
        session_id = await begin(connection, folder)
        asking = asyncio.create_task(ask(connection, session_id))
        await until(editor.text, "the first text")
        if is_cancelled:
            await connection.cancel(session_id=session_id)
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        await asking
    [ended] = of(list(log.read(session_id)), "session.finished")
    assert ended.outcome == "cancelled"
    assert provider.running == 0


async def test_two_sessions_run_at_once(folder: Path) -> None:
    pauses = {"first": asyncio.Event(), "second": asyncio.Event()}

    def answer(request: Request) -> list[Any]:
        name = last(request)
        return pausing(f"{name} {name}", pauses[name])(request)

    provider = Listed(answer, repeat=True)
    editor = Editor()
    async with serving(editor, provider) as connection:
        names = {name: await begin(connection, folder) for name in pauses}
        asked = {
            name: asyncio.create_task(ask(connection, session_id, name))
            for name, session_id in names.items()
        }
        await until(lambda: provider.running == 2, "both calls")
        for name in reversed(list(pauses)):
            pauses[name].set()
            assert (await asked[name]).stop_reason == "end_turn"
            assert editor.text(session_id=names[name]) == f"{name} {name}"


WAITING = {"shutdown_timeout": PATIENCE}  # the library ends the process after two seconds
# Runs the command; what it prints while it opens a session must not reach the editor.
NOISY = """
import dragoman.tools as toolbox
from dragoman.cli import main
make = toolbox.workspace_tools
toolbox.workspace_tools = lambda *args, **facts: print("noise", flush=True) or make(*args, **facts)
main()
"""


async def test_session_is_loaded_and_continued_in_a_new_process(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = Editor("yes")
    with SqliteLog(tmp_path / "log.db") as log:
        async with serving(before, Listed(EDIT, "It is two."), log) as connection:
            session_id = await begin(connection, folder)
            await ask(connection, session_id)

    def answer(request: Request) -> Answer:
        if isinstance(request.messages[-1], ToolResult):
            return Answer(f"{len(request.messages)} messages")
        edit = {"path": "a.txt", "old": "two", "new": "three"}
        return Answer(tool_calls=[Call("edit_file", edit)])

    editor = Editor("yes")
    with SimServer(ScriptedProvider(ScriptRule(answer)), models=("m",)) as server:
        words = ["-c", NOISY, "agent", "--acp", "m", "--base-url", server.base_urls["openai"]]
        place = ["--log", str(tmp_path / "log.db"), "--budget", "steps=4"]
        async with (
            patience("the process"),
            acp.spawn_agent_process(
                editor,  # type: ignore[arg-type]
                sys.executable,
                *words,
                *place,
                transport_kwargs=WAITING,
            ) as (agent, process),
        ):
            await agent.initialize(protocol_version=1)
            with pytest.raises(acp.RequestError, match="no session 'other' in this log"):
                await agent.load_session(cwd=str(folder), session_id="other", mcp_servers=[])
            await agent.load_session(cwd=str(folder), session_id=session_id, mcp_servers=[])
            assert editor.text("user_message_chunk") == "Make it two."
            assert editor.text() == "I edit it.It is two."
            assert editor.list("tool") == before.list("tool")
            assert (await ask(agent, session_id, "Now three.")).stop_reason == "end_turn"
            assert editor.text().endswith("7 messages")
            assert (folder / "a.txt").read_text() == "three\n"
            stopped = await ask(agent, session_id, "Go on.")
            assert stopped.stop_reason == "max_turn_requests"
            assert editor.text().endswith("[Stopped: the budget of 4 turns is used up]")
        assert caplog.records == []
        assert process.returncode == 0


SSE = schema.SseMcpServer(type="sse", name="s", url="http://127.0.0.1:9/", headers=[])
HEADER = [schema.HttpHeader(name="Authorization", value=f"Bearer {SECRET}")]
PLAIN = schema.HttpMcpServer(type="http", name="s", url="http://example.com/", headers=HEADER)
ERRORS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "a relative folder": ("session/new", {"cwd": "a", "mcpServers": []}, -32602, "cwd: is not the path"),
    "no folder": ("session/new", {"cwd": "/none", "mcpServers": []}, -32602, "cwd: is not the path"),
    "more folders": ("session/new", {"mcpServers": [], "additionalDirectories": ["/"]}, -32602, "one folder"),
    "a server by SSE": ("session/new", {"mcpServers": [SSE]}, -32602, "uses 'sse', not stdio or http"),
    "a server without TLS": ("session/new", {"mcpServers": [PLAIN]}, -32602, "would be sent unencrypted"),
    "a malformed request": ("session/prompt", {"sessionId": {"key": SECRET}, "prompt": 1}, -32602,
                            "sessionId: Input should be a valid string"),
    "an unknown session": ("session/prompt", {"sessionId": "x", "prompt": []}, -32002, "load it first"),
    "an unknown method": ("session/other", {}, -32601, "Method not found"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
async def test_errors_are_clear_and_contain_no_secret(name: str, folder: Path) -> None:
    method, params, code, message = ERRORS[name]
    if method == "session/new":
        params = {"cwd": str(folder)} | params
        servers = [each.model_dump(by_alias=True) for each in params["mcpServers"]]
        params["mcpServers"] = servers
    async with serving(Editor(), Listed("Hi")) as connection:
        raw: Any = connection._conn  # noqa: SLF001 - to send what the client would not send
        with pytest.raises(acp.RequestError, match=message) as caught:
            await raw.send_request(method, params)
    assert caught.value.code == code
    assert SECRET not in f"{caught.value} {caught.value.data}"


async def test_error_of_the_model_is_reported_and_the_session_goes_on(folder: Path) -> None:
    wrong = AuthenticationError(f"Incorrect key: {SECRET}", provider="listed", status=401)
    audio = helpers.audio_block("AAAA", "audio/wav")
    provider = Listed(wrong, "Hi.", "Hello.")
    editor = Editor()
    async with serving(editor, provider) as connection:
        session_id = await begin(connection, folder)
        with pytest.raises(acp.RequestError, match="this kind of 'audio' cannot be sent"):
            await connection.prompt(session_id=session_id, prompt=[audio])
        with pytest.raises(acp.RequestError, match="Incorrect key") as caught:
            await ask(connection, session_id)
        assert caught.value.code == -32000  # the editor offers to log in
        assert "provider_authentication" in str(caught.value.data)
        assert SECRET not in f"{caught.value} {caught.value.data}"
        assert (await ask(connection, session_id)).stop_reason == "end_turn"
        await connection.close_session(session_id=session_id)
        with pytest.raises(acp.RequestError, match="load it first"):
            await ask(connection, session_id)
        sent = len(editor.updates)
        await connection.resume_session(cwd=str(folder), session_id=session_id, mcp_servers=[])
        assert len(editor.updates) == sent
        assert (await ask(connection, session_id)).stop_reason == "end_turn"
        assert "Hi." in str(provider.requests[-1].messages)


async def test_mcp_servers_need_an_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = schema.McpServerStdio(name="tracker", command=sys.executable, args=[], env=[])
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with serving(Editor(), Listed()) as connection:
        with pytest.raises(acp.RequestError, match=r"pip install 'dragoman\[mcp\]'"):
            await connection.new_session(cwd=str(folder), mcp_servers=[server])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--workspace", "/"], "--acp: the editor decides about the sessions"),
        (["--then", "x"], "--acp: the editor decides about the sessions"),
        (["--json"], "--acp: the editor decides about the sessions"),
        (["m", "--model", "n"], "--acp m --model n: name one model"),
    ],
)
def test_options_that_the_editor_decides_are_refused(words: list[str], complaint: str) -> None:
    result = CliRunner().invoke(main, ["agent", "--acp", *words])
    assert result.exit_code == 2
    assert complaint in result.output


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dragoman.cli.acp", None)
    words = ["--base-url", "http://127.0.0.1:9/v1", "--log", str(tmp_path / "log.db")]
    result = CliRunner().invoke(main, ["agent", "--acp", "m", *words])
    assert result.exit_code == 2
    assert "pip install 'dragoman[acp]'" in result.output


async def test_recorded_sessions_are_listed_by_folder(folder: Path, tmp_path: Path) -> None:
    """An editor finds old threads; those of other writers and of no folder are not listed."""
    log = MemoryLog()
    starts = [
        ("agent_1", {"goal": "Fix\nit.", "metadata": {"workspace": str(folder)}}),
        ("agent_2", {"goal": "Look.", "metadata": {"workspace": str(tmp_path)}}),
        ("agent_3", {"goal": "Nowhere."}),
        ("chat_4", {"kind": "chat", "metadata": {"workspace": str(folder)}}),
    ]
    starts += [(f"many_{at}", {"metadata": {"workspace": "/many"}}) for at in range(51)]
    for name, facts in starts:
        log.append_sync(name, SessionStarted(**facts))
    editor = Editor()
    async with serving(editor, Listed("Done."), log) as connection:
        listed = await connection.list_sessions(cwd=str(folder))
        assert [(each.session_id, each.cwd, each.title) for each in listed.sessions] == [
            ("agent_1", str(folder), "Fix it.")
        ]
        assert listed.sessions[0].updated_at.endswith("Z")
        first = await connection.list_sessions()
        rest = await connection.list_sessions(cursor=first.next_cursor)
        names = [each.session_id for each in (*first.sessions, *rest.sessions)]
        assert sorted(names) == sorted(
            name for name, facts in starts if name[-1] not in "34" or "m" in name
        )
        assert len(first.sessions) == 50
        assert rest.next_cursor is None
        with pytest.raises(acp.RequestError, match="cursor: 'x' is not from the answer before"):
            await connection.list_sessions(cursor="x")


async def test_model_effort_and_mode_are_options_of_a_session(folder: Path) -> None:
    first = Listed(EDIT, "One.")
    second = Listed(EDIT, "Two.", name="other")
    models = EditorModels(
        lambda name: second if name == "b" else first,
        lambda: ["a", "b"],
        {"a": ("low", "high"), "b": ("low",)}.get,
    )
    editor = Editor("no")
    log = MemoryLog()
    async with serving(editor, models, log) as connection:
        opened = await connection.new_session(cwd=str(folder), mcp_servers=[])
        session_id = opened.session_id
        own = f"{first.name}:{first.model}"
        shown = {each.id: (each.category, each.current_value) for each in opened.config_options}
        assert shown == {
            "model": ("model", own),
            "mode": ("mode", "ask"),
            "effort": ("thought_level", "default"),
        }

        async def choose(option: str, value: str) -> dict[str, str]:
            answer = await connection.set_config_option(
                session_id=session_id, config_id=option, value=value
            )
            return {each.id: each.current_value for each in answer.config_options}

        assert (await choose("effort", "high"))["effort"] == "high"
        await ask(connection, session_id)
        assert first.requests[0].config.reasoning == "high"
        # the other model does not have this amount
        expected = {"model": "b", "mode": "ask", "effort": "default"}
        assert await choose("model", "b") == expected
        assert await choose("mode", "allow") == expected | {"mode": "allow"}
        assert len(editor.questions) == 1
        await ask(connection, session_id)
        assert len(editor.questions) == 1
        assert (folder / "a.txt").read_text() == "two\n"
        assert second.requests[0].config.reasoning is None
        for option, value in [("model", "c"), ("colour", "red"), ("effort", "high")]:
            with pytest.raises(acp.RequestError):
                await choose(option, value)
    records = list(log.read(session_id))
    assert [it.to for it in of(records, "model.swapped")] == [f"other:{second.model}"]
    check_evidence(records)


async def test_agent_without_a_key_starts_and_explains_how_to_get_one(folder: Path) -> None:
    has_key = False

    def open_named(_: str | None) -> Listed:
        if not has_key:
            raise AuthenticationError("set ANTHROPIC_API_KEY", provider="anthropic")
        return Listed("Done.")

    async with serving(Editor(), EditorModels(open_named)) as connection:
        capable = schema.ClientCapabilities(auth=schema.AuthCapabilities(terminal=True))
        for capabilities, kinds in [(FORMS, [None]), (capable, [None, "terminal"])]:
            begun = await connection.initialize(
                protocol_version=1, client_capabilities=capabilities
            )
            methods = begun.auth_methods
            assert [getattr(each, "type", None) for each in methods] == kinds
        assert "dragoman keys set" in methods[0].description
        assert methods[1].args == ["--login"]
        for attempt in (
            begin(connection, folder),
            connection.authenticate(method_id="stored-key"),
        ):
            with pytest.raises(acp.RequestError, match="set ANTHROPIC_API_KEY") as caught:
                await attempt
            assert caught.value.code == -32000
        with pytest.raises(acp.RequestError, match="no method of authentication is named 'x'"):
            await connection.authenticate(method_id="x")
        has_key = True
        await connection.authenticate(method_id="stored-key")
        assert (await ask(connection, await begin(connection, folder))).stop_reason == "end_turn"


def test_login_stores_the_key_of_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAGOMAN_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    words = ["agent", "--acp", "--login", "anthropic:claude-sonnet-4-6"]
    done = CliRunner().invoke(main, words, input="sk-1\n")
    assert SECRET not in done.output, done.output
    assert done.exit_code == 0, done.output
    assert "ANTHROPIC_API_KEY is stored in" in done.output
    assert "ANTHROPIC_API_KEY" in stored_keys()
    refused = CliRunner().invoke(main, ["agent", "--login", "Go."])
    assert "--login belongs to --acp" in refused.output
    assert refused.exit_code == 2
