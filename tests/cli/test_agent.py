"""``dragoman agent`` against a real server, with piped input and at a terminal."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.cli import main
from dragoman.cli.errors import EXIT_CODES
from dragoman.cli.mcp_servers import read_headers
from dragoman.log import SqliteLog
from tests.rows import read_table

from ..server import Connection, Server
from ..session.playing import check_evidence, types
from ..test_sync import Background
from .terminal import Terminal

KEY = "sk-canary-0123456789abcdef"


class Scripted:
    """A server that answers with the next text, and tool calls as (tool, arguments)."""

    def __init__(self, *answers: tuple[str, list[tuple[str, dict[str, Any]]]]) -> None:
        self._answers = list(answers)

    async def __call__(self, connection: Connection) -> None:
        if not self._answers:
            connection.reply(500, b'{"error": {"message": "nothing left to say"}}')
            return
        words, calls = self._answers.pop(0)
        deltas: list[dict[str, Any]] = [{"content": words}] if words else []
        deltas += [
            {
                "tool_calls": [
                    {
                        "index": at,
                        "id": f"c{at}",
                        "function": {"name": name, "arguments": json.dumps(given)},
                    }
                ]
            }
            for at, (name, given) in enumerate(calls)
        ]
        connection.begin_stream()
        for delta in deltas:
            self._send(
                connection, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            )
        finish = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        self._send(connection, {"choices": [finish], "usage": usage})
        connection.chunk(b"data: [DONE]\n\n")
        connection.end_stream()

    def _send(self, connection: Connection, data: dict[str, Any]) -> None:
        connection.chunk(b"data: " + json.dumps({"model": "m", **data}).encode() + b"\n\n")


MENDING = [
    ("I will look first.", [("read_file", {"path": "a.txt"})]),
    ("", [("edit_file", {"path": "a.txt", "old": "one", "new": "two"})]),
    ("", [("bash", {"command": "cat a.txt"})]),
    ("It says two now.", []),
]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    return folder


@pytest.fixture
def server() -> Iterator[Server]:
    with Background(Scripted(*MENDING)) as running:
        yield running


def place(workspace: Path) -> list[str]:
    return ["--workspace", str(workspace), "--log", str(workspace.parent / "log.db")]


def words(server: Server, workspace: Path, *more: str) -> list[str]:
    return [
        "agent", "Make it two.", "--model", "m", "--base-url", server.base_url, *place(workspace),
        *more,
    ]  # fmt: skip


def run(
    server: Server, workspace: Path, *more: str, given: str | None = None, **variables: str
) -> Result:
    return CliRunner().invoke(main, words(server, workspace, *more), input=given, env=variables)


def run_script(
    workspace: Path,
    *answers: tuple[str, list[tuple[str, dict[str, Any]]]],
    more: Sequence[str] = (),
) -> Result:
    with Background(Scripted(*answers)) as server:
        return run(server, workspace, *more)


def payloads(workspace: Path, kind: str) -> list[Any]:
    return [record.payload for record in records(workspace) if record.type == kind]


def records(workspace: Path) -> list[Any]:
    with SqliteLog(workspace.parent / "log.db", readonly=True) as log:
        assert log.verify().ok
        [entry] = log.sessions()
        return list(log.read(entry.session))


def test_yes_option_allows_every_tool_call(server: Server, workspace: Path) -> None:
    result = run(server, workspace, "--yes", DRAGOMAN_API_KEY=KEY)
    assert result.exit_code == 0, result.output
    assert (workspace / "a.txt").read_text() == "two\n"
    for line in (
        "I will look first.",
        " proposed  read_file a.txt",
        "  allowed  read_file, by rule: reading",
        " proposed  edit_file a.txt",
        "  allowed  edit_file, by rule: --yes",
        "           -one",
        "           +two",
        "  running  bash cat a.txt (sandbox: ",
        "   result  bash: exit code 0, ",
        "It says two now.",
        " finished  completed (4 turns, 440 tokens, cost unknown)",
        "dragoman replay session_",
    ):
        assert line in result.stdout, result.stdout
    assert KEY not in result.output
    assert b"You work in a folder" in server.requests[0].body
    check_evidence(records(workspace))


def test_same_loss_in_several_turns_is_reported_once(workspace: Path) -> None:
    fails = [("", [("bash", {"command": "exit 3"})])] * 3
    result = run_script(workspace, *fails, ("So.", []), more=["--yes"])
    assert result.output.count("is_error_dropped") == 1, result.output
    assert (
        "     note  messages[3].is_error: this wire cannot mark a result as an error"
        in result.stdout
    )


def test_tool_call_is_denied_without_an_approver(server: Server, workspace: Path) -> None:
    result = run(server, workspace)
    assert result.exit_code == 0
    assert (workspace / "a.txt").read_text() == "one\n"
    assert "   denied  edit_file, by nobody: there is no approver to ask" in result.stdout
    assert "   denied  bash, by nobody" in result.stdout


def test_permission_rules_are_read_from_the_command_line(server: Server, workspace: Path) -> None:
    allowed = ["--allow", "edit_file:*.txt", "--allow", "bash:cat*"]
    result = run(server, workspace, *allowed, "--deny", "execute")
    assert "  allowed  edit_file, by rule: --allow edit_file:*.txt" in result.stdout
    assert "   denied  bash, by rule: --deny execute" in result.stdout
    assert (workspace / "a.txt").read_text() == "two\n"


def test_permission_rules_that_never_match_are_refused(server: Server, workspace: Path) -> None:
    rules = ("bash", "edit_file:x/**")
    given = [word for rule in rules for word in ("--deny", rule)]
    assert run(server, workspace, *given).exit_code == 0
    result = run(server, workspace, *given, "--deny", "fetch:secrets/**")
    assert result.exit_code == 2
    assert "the rule '--deny fetch:secrets/**' never matches: no tool that" in result.stderr
    assert "allowed" not in result.stdout


def test_tools_with_invalid_names_are_reported(server: Server, workspace: Path) -> None:
    pytest.importorskip("mcp", reason="the extra [mcp] is not installed")
    program = Path(__file__).parent.parent / "attacks" / "evil_mcp.py"
    result = run(server, workspace, "--mcp", f"{sys.executable} {program} names")
    assert "the tool 'b\\u0430sh' is refused: a name must be" in result.stdout
    assert "with read_file, list_files, search, edit_file, bash, ok-name_1.x\n" in result.stdout


def test_changed_tools_of_an_mcp_server_are_omitted_until_accepted(workspace: Path) -> None:
    pytest.importorskip("mcp", reason="the extra [mcp] is not installed")
    program = Path(__file__).parent.parent / "attacks" / "evil_mcp.py"
    mode = workspace.parent / "mode"
    shown: list[tuple[bool, bool]] = []
    for name, more in (
        ("plain", []),
        ("changed", []),
        ("changed", ["--mcp-accept"]),
        ("changed", []),
    ):
        mode.write_text(name)
        words = ["--mcp", f"{sys.executable} {program} @{mode}", *more]
        result = run_script(workspace, ("So.", []), more=words)
        text = " ".join(result.stdout.split())
        shown.append(("bash, echo, other" in text, "pinned; --mcp-accept accepts it" in text))
    assert shown == [(True, False), (False, True), (True, False), (True, False)]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--mcp-bearer", "NO_SUCH"], "the environment variable NO_SUCH is not set"),
        (["--mcp-header", "X-Key"], "must be [ORIGIN=]NAME:VARIABLE"),
        (["--mcp-bearer", "https://other.example=MCP_KEY"],
         "no --mcp URL has the origin https://other.example"),
        (["--mcp", "https://b.example/mcp", "--mcp-bearer", "MCP_KEY"],
         "name the origin it is for; there are 2"),
    ],
)  # fmt: skip
def test_invalid_headers_are_rejected(workspace: Path, options: list[str], complaint: str) -> None:
    with Background(Scripted(("So.", []))) as server:
        result = run(
            server, workspace, "--mcp", "https://a.example/mcp", *options, MCP_KEY="k-secret-value"
        )
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.replace("│", " ").split())
    assert "k-secret-value" not in result.output


def test_mcp_headers_are_sent_to_their_origin_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "key-a")
    monkeypatch.setenv("B", "key-b")
    urls = ["https://a.example/mcp", "https://b.example:8443/x?y"]
    bearers = ("https://a.example=A",)
    headers = ("https://B.example:8443=X-Key:B",)
    assert read_headers(urls, bearers, headers) == {
        "https://a.example": {"Authorization": "Bearer key-a"},
        "https://b.example:8443": {"X-Key": "key-b"},
    }
    assert read_headers(urls[:1], ("A",), ()) == {
        "https://a.example": {"Authorization": "Bearer key-a"}
    }


@pytest.mark.parametrize(
    ("path", "allowing"),
    [
        (".git", ["--allow", "write"]),
        ("sub/.git", ["--yes"]),
        (".GIT/config", ["--yes"]),
        ("sub/.Git/hooks/pre-commit", ["--allow", "write"]),
    ],
)
def test_git_folder_cannot_be_written(workspace: Path, path: str, allowing: list[str]) -> None:
    edit = ("edit_file", {"path": path, "old": "", "new": "x"})
    result = run_script(workspace, ("", [edit]), ("So.", []), more=allowing)
    assert "denied  edit_file, by rule: version control is not written" in result.stdout, (
        result.output
    )
    assert [each.name for each in workspace.iterdir()] == ["a.txt"]


def test_permission_rules_are_read_from_a_file(server: Server, workspace: Path) -> None:
    path = workspace.parent / "policy.yaml"
    path.write_text("default: deny\nrules:\n  - {action: allow, tool: bash, name: shell}\n")
    result = run(server, workspace, "--policy", str(path))
    assert "   denied  read_file, by policy: no rule matches" in result.stdout
    assert "  allowed  bash, by rule: shell" in result.stdout


def test_approval_answers_are_read_from_standard_input(server: Server, workspace: Path) -> None:
    result = run(server, workspace, "--ask", given="a\nlooks wrong to me\ny\n")
    assert result.exit_code == 0
    granted = payloads(workspace, "permission.granted")
    expected = [("read_file", "user", "session"), ("bash", "user", "once")]
    assert [(grant.tool_name, grant.by, grant.scope) for grant in granted] == expected
    assert "   denied  edit_file, by user: looks wrong to me" in result.stdout
    # The whole diff is shown before the question.
    assert "           - one\n           + two" in result.stdout
    assert "allow? [y]es" in result.stderr


def test_approval_may_change_the_input_or_allow_a_path(server: Server, workspace: Path) -> None:
    answers = 'p\ne {"path": "a.txt", "old": "one", "new": "three"}\nc cat\n'
    result = run(server, workspace, "--ask", given=answers)
    assert result.exit_code == 0, result.output
    assert (workspace / "a.txt").read_text() == "three\n"
    granted = payloads(workspace, "permission.granted")
    expected = [("path", None), ("once", None), ("prefix", "cat")]
    assert [(grant.scope, grant.prefix) for grant in granted] == expected
    assert granted[1].input == {"path": "a.txt", "old": "one", "new": "three"}
    assert "always this [p]ath" in result.stderr
    assert "always [c]ommands with 'cat'" in result.stderr
    assert '  allowed  edit_file, by user, with {"' in result.stdout


@pytest.mark.parametrize(
    "answer", ["c is the wrong language", "e {not json", "elsewhere", "path of no return"]
)
def test_answer_in_free_text_denies(server: Server, workspace: Path, answer: str) -> None:
    run(server, workspace, "--ask", given=f"y\ny\n{answer}\n")
    denied = payloads(workspace, "permission.denied")
    assert [(each.tool_name, each.reason) for each in denied] == [("bash", answer)]


def test_hook_program_decides_before_the_user_is_asked(server: Server, workspace: Path) -> None:
    program = workspace.parent / "check.py"
    program.write_text(
        "import json, sys\nasked = json.load(sys.stdin)\n"
        "print(json.dumps({'allowed': True if asked['tool_name'] == 'edit_file' else None}))\n"
    )
    result = run(server, workspace, "--hook", f"{sys.executable} {program}")
    assert result.exit_code == 0, result.output
    assert "  allowed  edit_file, by hook python" in result.stdout
    assert "   denied  bash, by nobody: there is no approver to ask" in result.stdout


def test_missing_approval_answer_counts_as_a_denial(server: Server, workspace: Path) -> None:
    result = run(server, workspace, "--ask", given="y\n")
    assert "   denied  edit_file, by nobody: the answer never came" in result.stdout


def test_session_records_are_printed_as_json(server: Server, workspace: Path) -> None:
    result = run(server, workspace, "--yes", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["type"] for line in lines] == types(records(workspace))
    assert lines[0]["payload"]["metadata"]["workspace"] == str(workspace)


def test_budget_of_calls_ends_the_session(server: Server, workspace: Path) -> None:
    result = run(server, workspace, "--budget", "calls=2", "--yes")
    assert result.exit_code == EXIT_CODES["session_exhausted"], result.output
    assert [each.tool_name for each in payloads(workspace, "tool.started")] == [
        "read_file", "edit_file",
    ]  # fmt: skip
    [exceeded] = payloads(workspace, "budget.exceeded")
    assert exceeded.budget == "tool_calls"
    assert (workspace / "a.txt").read_text() == "two\n"


def test_exceeded_budget_has_its_own_exit_code(server: Server, workspace: Path) -> None:
    result = run(server, workspace, "--budget", "steps=2", "--yes")
    assert result.exit_code == EXIT_CODES["session_exhausted"] == 23
    assert " finished  exhausted: the budget of 2 turns is used up" in result.stdout


def test_session_can_be_resumed(server: Server, workspace: Path) -> None:
    run(server, workspace, "--budget", "steps=1", "--yes")
    [first] = {record.session for record in records(workspace)}
    again = words(server, workspace, "--resume", first, "--yes")
    again.remove("Make it two.")
    result = CliRunner().invoke(main, again)
    assert result.exit_code == 0, result.output
    assert ", to go on; it was exhausted" in result.stdout
    assert (workspace / "a.txt").read_text() == "two\n"
    check_evidence(records(workspace))


def test_session_can_be_resumed_at_a_record_or_as_a_fork(workspace: Path) -> None:
    with Background(Scripted(("One.", []), ("Two.", []), ("Three.", []), ("Four.", []))) as server:
        run(server, workspace)
        [first] = {record.session for record in records(workspace)}
        again = words(server, workspace, "--resume", first, "--at", "3")
        again[1] = "Something else."
        result = CliRunner().invoke(main, again)
        assert result.exit_code == 0, result.output
        resumed = payloads(workspace, "session.resumed")
        assert [each.at for each in resumed] == [3]
        forked = words(server, workspace, "--fork", first, "--at", "3", "--then", "And then?")
        forked[1] = "Another way."
        result = CliRunner().invoke(main, forked)
        assert result.exit_code == 0, result.output
    assert "Three." in result.stdout
    assert "Four." in result.stdout
    with SqliteLog(workspace.parent / "log.db", readonly=True) as log:
        [fork] = [entry.session for entry in log.sessions() if entry.session != first]
        place = next(log.read(fork)).data["forked_from"]
        assert place["session"] == first
        assert place["seq"] == 3
        assert log.verify().ok


@pytest.mark.parametrize("wrong", [["--at", "3"], ["--fork", "last", "--resume", "last"]])
def test_conflicting_options_of_the_agent_command_are_rejected(
    server: Server, workspace: Path, wrong: list[str]
) -> None:
    assert run(server, workspace, *wrong).exit_code == 2


def test_error_of_the_model_sets_the_exit_code(workspace: Path) -> None:
    result = run_script(workspace)
    assert result.exit_code == EXIT_CODES["provider_unavailable"]
    assert "error: provider_unavailable" in result.stderr
    assert types(records(workspace))[-1] == "session.finished"


@pytest.mark.parametrize(("more", "complaint"), read_table("invalid_option_values_are_reported"))
def test_invalid_option_values_are_reported(
    server: Server, workspace: Path, more: list[str], complaint: str
) -> None:
    result = run(server, workspace, *more)
    assert result.exit_code == 2, result.output
    assert " ".join(complaint.split()) in " ".join(result.stderr.split())
    assert not server.requests


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "m"], "give a GOAL, or --resume a session"),
        (["Mend it."], "--base-url needs a model; add --model NAME"),
    ],
)
def test_missing_goal_or_model_is_reported(words: list[str], complaint: str) -> None:
    result = CliRunner().invoke(main, ["agent", *words, "--base-url", "http://127.0.0.1:9/v1"])
    assert complaint in result.stderr
    assert result.exit_code == 2


def test_mcp_server_that_does_not_start_is_reported(server: Server, workspace: Path) -> None:
    result = run(server, workspace, "--mcp", "/no/such/server --flag")
    assert result.exit_code == EXIT_CODES["session_failed"]
    assert "/no/such/server" in result.stderr


# --- dragoman agent at a terminal --------------------------------------------------------------


def test_approval_is_requested_at_the_terminal(server: Server, workspace: Path) -> None:
    with Terminal(*words(server, workspace), columns=120) as terminal:
        terminal.see("asked  edit_file a.txt (write)")
        terminal.see("+ two")
        terminal.see("or why not: ")
        terminal.type("y\n")
        terminal.see("asked  bash cat a.txt (execute)")
        terminal.see("or why not: ")
        terminal.type("n\n")
        terminal.see("denied  bash, by user")
        terminal.see("finished  completed")
        terminal.see("what next? ")
        terminal.type("\n")
        assert terminal.wait() == 0
    assert (workspace / "a.txt").read_text() == "two\n"
    assert "\x1b[31m- one" in terminal.raw  # the diff is coloured in the question
    assert "\x1b[32m+ two" in terminal.raw
    assert "\x1b[32m           +two" in terminal.raw  # the diff is coloured in the result


def test_interrupt_during_a_question_is_recorded(server: Server, workspace: Path) -> None:
    with Terminal(*words(server, workspace), columns=120) as terminal:
        terminal.see("or why not: ")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.see("closed  edit_file without running: the task that ran it was cancelled")
        terminal.see("interrupted")
        assert terminal.wait() == EXIT_CODES["cancelled"]
        assert "Fatal" not in terminal.raw
    found = records(workspace)
    check_evidence(found)
    assert found[-1].payload.outcome == "cancelled"
    assert (workspace / "a.txt").read_text() == "one\n"


def test_model_output_cannot_control_the_terminal(workspace: Path) -> None:
    with (
        Background(
            Scripted(
                ("\x1b]0;mine\x07hello", [("bash", {"command": "echo \x1b[2J\u202e"})]), ("", [])
            )
        ) as server,
        Terminal(*words(server, workspace, "--once"), columns=120) as terminal,
    ):
        terminal.see("or why not: ")
        terminal.type("n\n")
        terminal.wait()
    assert "\x1b]0;" not in terminal.raw
    assert "\x1b[2J" not in terminal.raw
    assert "echo \ufffd[2J\ufffd" in terminal.raw
    assert "\u202e" not in terminal.raw


@pytest.mark.parametrize("ending", ["\n", "\x04"])
def test_session_continues_at_the_terminal(workspace: Path, ending: str) -> None:
    with Background(Scripted(("**First** answer.", []), ("Second answer.", []))) as server:
        with Terminal(*words(server, workspace), columns=120) as terminal:
            terminal.see("First answer.")  # the Markdown is rendered without asterisks
            terminal.see("finished  completed")
            terminal.see("what next? ")
            terminal.type("And then?\n")
            terminal.see("Second answer.")
            terminal.see("what next? ")
            terminal.type(ending)
            assert terminal.wait() == 0
        sent = [message["content"] for message in server.requests[-1].json["messages"]]
    assert sent[1:] == ["Make it two.", "**First** answer.", "And then?"]
    check_evidence(records(workspace))


def test_once_option_ends_the_agent_after_one_answer(workspace: Path) -> None:
    with (
        Background(Scripted(("Done.", []))) as server,
        Terminal(*words(server, workspace, "--once"), columns=120) as terminal,
    ):
        assert terminal.wait() == 0
    assert "Done." in terminal.raw
    assert "what next" not in terminal.raw


def test_thinking_is_printed_separately_from_text(workspace: Path) -> None:
    async def think(connection: Connection) -> None:
        connection.begin_stream()
        for delta in ({"reasoning_content": "I look first."}, {"content": "I looked."}):
            data = {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            connection.chunk(b"data: " + json.dumps(data).encode() + b"\n\n")
        end = {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        connection.chunk(b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n")
        connection.end_stream()

    with Background(think) as server:
        result = run(server, workspace)
        with Terminal(*words(server, workspace, "--once"), columns=120) as terminal:
            assert terminal.wait() == 0
    assert "I look first.\nI looked.\n" in result.stdout
    assert "first.I looked" not in terminal.raw


# --- choice of the model, and its API key ------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "models.yaml"))
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "empty"))
    for variable in ("DRAGOMAN_MODEL", "GROQ_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "models.yaml"
    path.write_text("adapters: {}\n")
    return path


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ([], "local/"),
        (["--model", "local"], "local/"),
        (["--model", "groq:allam-2-7b"], "groq/allam-2-7b"),
    ],
)
def test_model_without_tool_support_is_rejected(
    settings: Path, workspace: Path, more: list[str], name: str
) -> None:
    result = CliRunner().invoke(
        main, ["agent", "Mend it.", *place(workspace), *more], env={"GROQ_API_KEY": "k" * 20}
    )
    assert result.exit_code == EXIT_CODES["provider_invalid_request"]
    category, reason, advice = result.stderr.splitlines()
    assert category == "error: provider_invalid_request"
    assert reason.startswith(f"  {name}")
    assert reason.endswith("this model does not call tools, and an agent works with tools.")
    assert "dragoman local pull qwen" in advice
    assert "--model local:qwen" in advice
    assert result.stdout == ""
    assert not (workspace.parent / "log.db").exists()


def test_missing_api_key_is_reported_in_three_lines(settings: Path, workspace: Path) -> None:
    result = CliRunner().invoke(
        main, ["agent", "Mend it.", "--model", "groq:llama-3.3-70b-versatile"]
    )
    assert result.exit_code == EXIT_CODES["provider_authentication"] == 10
    assert result.stderr.splitlines() == [
        "error: provider_authentication",
        (
            "  groq/llama-3.3-70b-versatile: groq:llama-3.3-70b-versatile is not configured: "
            "set the environment variable GROQ_API_KEY."
        ),
        "  Or store the key: dragoman keys set GROQ_API_KEY",
    ]


def test_default_model_is_read_from_the_settings(settings: Path, workspace: Path) -> None:
    with Background(Scripted(("Done.", []))) as server:
        settings.write_text(
            "default: box:m\nadapters: {box: {type: openai-compatible, base_url: "
            f"'{server.base_url}'}}}}\n"
        )
        result = CliRunner().invoke(main, ["agent", "Mend it.", *place(workspace)])
    assert result.exit_code == 0, result.output
    assert "  session  box:m with " in result.stdout


def test_long_task_runs_in_a_small_context_window(workspace: Path) -> None:
    """Forty results fit, because the agent omits old tool results by default."""
    (workspace / "long.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 90)
    reads = [("", [("read_file", {"path": "long.txt"})])] * 40
    config = workspace.parent / "models.yaml"
    with Background(Scripted(*reads, ("Read.", []))) as server:
        config.write_text(
            f"adapters: {{lab: {{type: openai-compatible, base_url: '{server.base_url}'}}}}\n"
            "models: {'lab:m': {adapter: lab, capabilities: {max_context_tokens: 16000}}}\n"
        )
        words = ["agent", "Read it.", "--model", "lab:m", *place(workspace)]
        result = CliRunner().invoke(main, words, env={"DRAGOMAN_CONFIG": str(config)})
    assert result.exit_code == 0, result.output
    assert "  context  DropOldToolResults: " in result.stdout
    assert types(records(workspace)).count("tool.observed") == 40
    assert "context.projected" in types(records(workspace))
