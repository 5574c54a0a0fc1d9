"""``dragoman chat`` at a real terminal, and with input from a pipe."""

import asyncio
import contextlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman import Assistant, Response, Text, ToolCall, User, parse_messages
from dragoman.cli import main
from dragoman.cli.conversation import Chat
from dragoman.cli.screen import find_end
from dragoman.sync import SyncProvider
from tests.rows import read_table

from ..listed import Listed
from ..server import DONE, Connection, answering, chunk, stream_of
from ..test_sync import Background
from ..waiting import block_until
from .terminal import Terminal

TOOL = {"name": "look", "description": "Looks", "parameters": {"type": "object"}}


def chat(*words: str, given: str, **variables: str) -> Result:
    return CliRunner().invoke(main, ["chat", *words], input=given, env=variables)


def talk_to(server: Background, *words: str, given: str, **variables: str) -> Result:
    return chat("m", "--base-url", server.base_url, *words, given=given, **variables)


def heard(server: Any) -> list[list[Any]]:
    return [[message["content"] for message in seen.json["messages"]] for seen in server.requests]


def save_talk(folder: Path, block: dict[str, Any]) -> Path:
    """Write a file of a chat whose answer begins with the given block."""
    said = [block, {"type": "text", "text": "Hello"}]
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": said}]
    path = folder / "talk.json"
    path.write_text(json.dumps(talk))
    return path


async def propose(connection: Connection) -> None:
    """Answer with a tool call until the request contains a tool result."""
    messages = connection.seen.json["messages"]
    connection.begin_stream()
    if any(message["role"] == "tool" for message in messages):
        connection.chunk(stream_of("Seen"))
    else:
        function = {"name": "look", "arguments": '{"at": "sea", "n": 1}'}
        call = {"index": 0, "id": "c1", "function": function}
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
        connection.chunk(chunk(choices=[choice]) + DONE)
    connection.end_stream()


async def hang(connection: Connection, text: str = "First half") -> None:
    """Send the beginning of an answer, and nothing more."""
    connection.begin_stream()
    connection.chunk(chunk(text))
    await connection.writer.drain()
    await asyncio.Event().wait()


def leave(terminal: Terminal) -> None:
    """Press Ctrl-D until the program ends; between two prompts the key is lost."""

    def has_ended() -> bool:
        with contextlib.suppress(OSError):
            terminal.type("\x04")
        terminal.drain(0.5)
        return terminal.process.exitcode is not None

    block_until(has_ended, "the end of the program")
    assert terminal.wait() == 0


@contextlib.contextmanager
def chatting(server: Background, *words: str, **variables: str) -> Iterator[Terminal]:
    with Terminal("chat", "m", "--base-url", server.base_url, *words, **variables) as terminal:
        terminal.see(">")
        yield terminal
        leave(terminal)


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        # the terminal pastes several lines (bracketed paste)
        ("\x1b[200~first\nsecond\n\nthird\x1b[201~\r", "first\nsecond\n\nthird"),
        ("one\x1b\rtwo\r", "one\ntwo"),  # Alt-Enter starts a new line
        ("one\\\rtwo\r", "one\ntwo"),  # a backslash before Enter starts a new line
        ("a\\b\r", "a\\b"),
    ],
)
def test_several_lines_can_be_entered_as_one_message(keys: str, sent: str) -> None:
    with Background(answering("Hello")) as server, chatting(server) as terminal:
        terminal.type(keys)
        terminal.see("Hello")
    assert heard(server) == [[sent]]


def test_input_history_is_kept_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    with Background(answering("Hello")) as server:
        with chatting(server, XDG_DATA_HOME=str(tmp_path)) as terminal:
            terminal.type("remember me\r")
            terminal.see("Hello")
        with chatting(server, XDG_DATA_HOME=str(tmp_path)) as terminal:
            terminal.type("\x1b[A\r")  # the up arrow recalls the last prompt
            terminal.see("Hello")
    assert heard(server) == [["remember me"], ["remember me"]]
    history = tmp_path / "dragoman" / "chat-history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_tab_key_completes_commands() -> None:
    with Background(answering("Hello")) as server, chatting(server) as terminal:
        terminal.type("/he\t")
        terminal.see("/help")
        terminal.type("\r")
        terminal.see("forget the conversation")  # a line from the output of /help


def test_message_can_be_written_in_an_editor(tmp_path: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nprintf "from\\nthe editor\\n" >> "$1"\n')
    editor.chmod(0o755)
    with (
        Background(answering("Hello")) as server,
        chatting(server, EDITOR=str(editor), VISUAL="") as terminal,
    ):
        terminal.type("/edit draft: \r")
        terminal.see("Hello")
    assert heard(server) == [["draft:\nfrom\nthe editor"]]


def test_keys_typed_during_a_reply_are_not_lost() -> None:
    async def handler(connection: Connection) -> None:
        is_first = len(connection.seen.json["messages"]) == 1
        await (hang if is_first else answering("Done"))(connection)

    with Background(handler) as server, chatting(server) as terminal:
        terminal.type("one\r")
        terminal.see("First half")
        terminal.type("typed aheax\x7fd")
        terminal.drain(0.2)
        terminal.type("\x03")
        terminal.see("(stopped)")
        terminal.see("typed ahead")  # the next prompt contains what was typed during the answer
        terminal.type("\r")
        terminal.see("Done")
    assert heard(server)[-1] == ["one", "First half", "typed ahead"]


def test_warning_about_omitted_reasoning_is_printed_once() -> None:
    async def handler(connection: Connection) -> None:
        choice = {"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}
        connection.begin_stream()
        connection.chunk(chunk(choices=[choice]) + stream_of("Hello"))
        connection.end_stream()

    with Background(handler) as server:
        with chatting(server) as terminal:
            for line in ("one", "two", "three"):
                terminal.type(f"{line}\r")
                terminal.see("Hello")
        piped = talk_to(server, given="one\ntwo\nthree\n")
    for shown in (terminal.raw, piped.stderr):
        assert "thinking_dropped" not in shown
        assert "messages[" not in shown
        assert shown.count("earlier reasoning is not sent back") == 1
    assert terminal.raw.rindex("not sent back") > terminal.raw.index("Hello")


def test_chat_errors_use_the_names_of_command_line_options() -> None:
    async def handler(connection: Connection) -> None:
        connection.begin_stream()
        connection.chunk(chunk("Half"))
        await connection.writer.drain()
        connection.writer.close()

    with Background(handler) as server:
        talk = talk_to(server, given="one\n")
        setting = talk_to(server, "--wire", "anthropic", given="one\n")
    assert "error.response" not in talk.stderr
    assert "Try again" in talk.stderr
    assert "config." not in setting.stderr


def test_markdown_is_rendered_while_streaming_and_chat_survives_interrupts() -> None:
    async def handler(connection: Connection) -> None:
        question = connection.seen.json["messages"][-1]["content"]
        said = "## A title\n\nSome **bold** words.\n"
        await (hang if question == "slowly" else answering(said))(connection)

    with (
        Background(handler) as server,
        Terminal("chat", "m", "--base-url", server.base_url) as terminal,
    ):
        terminal.see(">")
        terminal.type("one\n")
        said = terminal.see("Some bold words.")
        assert "A title" in said
        assert "\x1b[1m" in terminal.raw
        terminal.see(">")
        terminal.type("slowly\n")
        terminal.see("First half")
        terminal.type("\x03")
        # The terminal does not echo ^C into the answer.
        assert "^C" not in terminal.see("(stopped)")
        terminal.see(">")
        terminal.type("three\n")
        terminal.see("bold words.")
        terminal.see(">")
        terminal.type("\x03")  # Ctrl-C at the prompt does not end the program
        terminal.see(">")
        leave(terminal)
    expected = ["one", "## A title\n\nSome **bold** words.\n", "slowly", "First half", "three"]
    assert heard(server)[-1] == expected


def test_model_swap_at_a_terminal_shows_losses_and_asks_for_confirmation(tmp_path: Path) -> None:
    saved = save_talk(tmp_path, {"type": "opaque", "data": {"x": 1}})
    with (
        Background(answering("Hello")) as server,
        Terminal("chat", "m", "--base-url", server.base_url) as terminal,
    ):
        terminal.see(">")
        terminal.type(f"/load {saved}\n")
        terminal.see("2 messages")
        for key, outcome in (("n", "still with m"), ("y", "now other")):
            terminal.see(">")
            terminal.type("/model other\n")
            assert "opaque_dropped" in terminal.see("Go on with less?")
            terminal.type(f"{key}\n")
            terminal.see(outcome)
        terminal.see(">")
        terminal.type("/exit\n")
        assert terminal.wait() == 0


def test_model_output_cannot_control_the_terminal() -> None:
    attack = "before\x1b]0;owned\x07\x9b2Jafter"
    with Background(answering(attack)) as server:
        for words in (["chat", "--prompt", "Hi"], ["ask"]):
            command = [words[0], "m", *words[1:], *(["Hi"] if words[0] == "ask" else [])]
            with Terminal(*command, "--base-url", server.base_url) as terminal:
                assert terminal.wait() == 0
                assert "owned" in terminal.raw
                assert "\x1b]0;" not in terminal.raw
                assert "\x9b" not in terminal.raw


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_output_has_no_colour_if_the_environment_disables_it(variables: dict[str, str]) -> None:
    with Background(answering("**Hello**")) as server:
        with Terminal(
            "chat", "m", "--prompt", "Hi", "--base-url", server.base_url, **variables
        ) as terminal:
            assert terminal.wait() == 0
        assert "Hello" in terminal.raw
        colours = [code for code in ("\x1b[31", "\x1b[33", "\x1b[38") if code in terminal.raw]
        assert colours == []


def test_model_swap_shows_losses_and_continues(tmp_path: Path) -> None:
    saved = save_talk(tmp_path, {"type": "thinking", "text": "hm"})
    with Background(answering("A")) as one, Background(answering("B")) as two:
        talk = talk_to(
            one,
            given=f"/load {saved}\n/model other {two.base_url}\nand now?\n/model\n",
        )
    assert "- messages[1].content[0]" in talk.stdout
    assert "2 kept, 0 rewritten, 1 dropped" in talk.stdout
    assert "now other" in talk.stderr
    assert talk.stdout.endswith("B\n")
    assert heard(one) == []
    assert heard(two) == [["Hi", "Hello", "and now?"]]


def test_impossible_model_swap_changes_nothing() -> None:
    with Background(answering("Hello")) as server:
        talk = talk_to(
            server,
            given="one\n/model nobody:x\n/model anthropic:claude-sonnet-4-6\ntwo\n",
            ANTHROPIC_API_KEY="",
        )
    assert "no model is named 'nobody:x'" in talk.stderr
    assert "ANTHROPIC_API_KEY" in talk.stderr
    assert "kept" not in talk.stdout  # no swap plan is printed for a model that is not configured
    assert heard(server)[-1] == ["one", "Hello", "two"]


def test_chat_is_saved_and_loaded(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with Background(answering("Hello")) as server:
        first = talk_to(server, "--system", "S", given=f"one\n/save {file}\n/save {file}\n")
        second = talk_to(server, given=f"/load {file}\ntwo\n/save {tmp_path / 'other.json'}\n")
        third = talk_to(server, given=f"/save {file}\n")
    assert "3 messages in" in first.stderr
    assert "3 messages from" in second.stderr
    assert heard(server)[-1] == ["S", "one", "Hello", "two"]
    assert "exists; choose another name" in third.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = json.loads((tmp_path / "other.json").read_text())
    assert list(parse_messages(kept["messages"]))[3] == User("two")


def test_cost_command_prints_the_cost_of_the_chat(tmp_path: Path) -> None:
    with Background(answering("Hello")) as server:
        config = tmp_path / "models.yaml"
        config.write_text(
            f"adapters: {{mine: {{type: openai, api_key: k, base_url: '{server.base_url}'}}}}\n"
            "models: {mine:m: {wire_name: gpt-5, aliases: [five]}}\n"
        )
        talk = chat("five", given="/cost\none\ntwo\n/cost\n", DRAGOMAN_CONFIG=str(config))
        unknown = talk_to(server, given="one\n/cost\n")
    assert "nothing was asked yet" in talk.stdout
    # Two calls, each with 3 tokens at 1.25 and 2 tokens at 10 dollars per million.
    assert "five: 2 answers, 6 tokens in, 4 out; $0.0000475 (prices" in talk.stdout
    assert "m: 1 answer, 3 tokens in, 2 out; price unknown: m at 127.0.0.1" in unknown.stdout
    assert "set priced_as: in models.yaml" in unknown.stdout


def test_images_are_sent_with_the_next_message(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "paper.pdf").write_bytes(b"%PDF")
    lines = [
        f"/image {tmp_path / name}" for name in ("dot.png", "notes.txt", "paper.pdf", "none.png")
    ]
    with Background(answering("Hello")) as server:
        talk = talk_to(server, given="\n".join([*lines, "what is it?", "and?", "/image", ""]))
    kinds = [part["type"] for part in heard(server)[0][0]]
    assert kinds == ["text", "image_url", "file"]
    assert heard(server)[1][-1] == "and?"
    assert "notes.txt is not a picture" in talk.stderr
    assert "none.png cannot be read" in talk.stderr
    assert "/image needs a file" in talk.stderr


def test_tool_calls_are_shown_and_answered_by_hand(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOL))
    with Background(propose) as server:
        given = (
            f"/tools {tmp_path / 'tools.json'}\nlook!\n/result a boat\n/result again\n/tools "
            "none\n"
        )
        talk = talk_to(server, given=given)
    assert 'proposed, not executed: look({\n  "at": "sea",\n  "n": 1\n})' in talk.stdout
    assert talk.stdout.endswith("Seen\n")
    assert server.requests[0].json["tools"][0]["function"]["name"] == "look"
    expected = {"role": "tool", "tool_call_id": "c1", "content": "a boat"}
    assert server.requests[1].json["messages"][-1] == expected
    assert "no tool call waits for a result" in talk.stderr


def test_skipped_tool_call_is_marked_as_not_run(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    with Background(propose) as server:
        talk_to(server, given=f"/tools {tmp_path / 'tools.json'}\nlook!\nnever mind\n")
    roles = [message["role"] for message in server.requests[1].json["messages"]]
    assert roles == ["user", "assistant", "tool", "user"]
    assert "Not executed" in server.requests[1].json["messages"][2]["content"]


def test_invalid_chat_commands_are_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text('[{"role": "wizard", "content": "x"}]')
    lines = [
        "/fly", "/save", f"/load {tmp_path / 'bad.json'}", f"/load {tmp_path / 'odd.json'}",
        "/load /nowhere",
    ]  # fmt: skip
    lines += [f"/tools {tmp_path / 'bad.json'}", f"/save {tmp_path / 'no/where.json'}", "/help"]
    with Background(answering("Hello")) as server:
        talk = talk_to(server, given="\n".join(lines))
    assert talk.exit_code == 0
    for words in (
        "/fly is not a command",
        "/save needs a file",
        "bad.json is not JSON",
        "wizard",
        "cannot be read",
    ):
        assert words in talk.stderr
    assert "cannot be written" in talk.stderr
    assert "/model NAME" in talk.stderr


def test_chat_events_are_printed_as_json() -> None:
    with Background(answering("Hello")) as server:
        talk = talk_to(server, "--json", given="one\n")
    types = [json.loads(line)["type"] for line in talk.stdout.splitlines()]
    assert types[0] == "message.start"
    assert types[-1] == "message.complete"


@pytest.mark.parametrize(("text", "finished"), read_table("finished_markdown"))
def test_end_of_the_finished_markdown_blocks_is_found(text: str, finished: str) -> None:
    assert text[: find_end(text)] == finished


def test_incomplete_tool_call_is_removed_from_the_conversation() -> None:
    talk = Chat(SyncProvider(Listed()), "m", [], lambda *_, **__: SyncProvider(Listed()))
    half = Assistant([Text("I will"), ToolCall("c1", "look", {})])
    talk.ask("Look.")
    talk.answered(Response(half, "cancelled"))
    assert talk.messages == [User("Look."), Assistant("I will")]
    talk.ask("Again.")
    talk.answered(Response(Assistant([ToolCall("c1", "look", {})]), "cancelled"))
    assert talk.messages == [User("Look."), Assistant("I will")]
    talk.ask("Again.")
    talk.answered(None)
    assert talk.messages == [User("Look."), Assistant("I will")]
