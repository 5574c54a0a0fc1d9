"""Claude Code works through the gateway in front of a server that enforces betas."""

import base64
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.app import create_app
from dragoman.messages import Image, Request, Text, ToolResult, User
from dragoman.provider import connect
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule
from tests.gateway.serving import serving
from tests.gateway.strict import StrictServer
from tests.waiting import until

from .results import record_outcomes
from .running import find_program, in_full_run, make_repository, run_program, start_program
from .scripted import Pauses

pytestmark = [pytest.mark.exhaustive, in_full_run]

OLD = 'def greet():\n    return "Hello, world"\n'
NEW = 'def greet():\n    return "Hello, moon"\n'
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
SCHEMA = {
    "type": "object",
    "properties": {"river": {"type": "string"}},
    "required": ["river"],
    "additionalProperties": False,
}
CLIENT = "claude-code, in front of a server that enforces betas"
WIRES = ("anthropic", "openai", "responses", "gemini")


def find_task(request: Request) -> str:
    """Return the name of the task that the last message of the user begins with."""
    texts = [
        text
        for message in request.messages
        if isinstance(message, User)
        for text in _find_texts(message)
    ]
    words = [line.split()[0] for text in texts for line in text.splitlines() if line.strip()]
    return next((word for word in reversed(words) if word in TASKS), "")


def _find_texts(message: User) -> list[str]:
    if isinstance(message.content, str):
        return [message.content]
    return [block.text for block in message.content if isinstance(block, Text)]


def script(where: Path, pauses: Pauses) -> ScriptedProvider:
    """Return a model that does the task that the prompt begins with."""
    file = str(where / "greet.py")
    picture = str(where / "dot.png")
    edit = {"file_path": file, "old_string": "world", "new_string": "moon"}
    # Claude Code 2.1.328 runs sub-agents in the background by default, and their answers come later.
    agent = {"description": "ask", "prompt": "SUB", "subagent_type": "general-purpose",
             "run_in_background": False}  # fmt: skip
    calls = {
        "READ": [Call("Read", {"file_path": file})],
        "EDIT": [Call("Read", {"file_path": file}), Call("Edit", edit)],
        "BASH": [Call("Bash", {"command": "echo $((6*7))", "description": "count"})],
        "AGENT": [Call("Agent", agent)],
        "IMAGE": [Call("Read", {"file_path": picture})],
        "SCHEMA": [Call("StructuredOutput", {"river": "Rhine"})],
    }

    def answer(request: Request) -> Answer:
        task = find_task(request)
        if task == "SUB":
            return Answer("the agent says blue")
        if task == "SLOW":
            return Answer("one two three " * 200, pace=0.5)
        results = [each for each in request.messages if isinstance(each, ToolResult)]
        planned = calls.get(task, ())
        if len(results) < len(planned):
            return Answer(tool_calls=[planned[len(results)]])
        return Answer(f"{task} done: {_show(results)} {len(request.messages)}")

    return ScriptedProvider(ScriptRule(answer), sleep=pauses.sleep)


def _show(results: list[ToolResult]) -> str:
    blocks = [block for each in results for block in each.content if not isinstance(block, str)]
    texts = [each.content for each in results if isinstance(each.content, str)]
    texts += [block.text for block in blocks if isinstance(block, Text)]
    return " ".join([*texts, *["[image]" for block in blocks if isinstance(block, Image)]])


class Claude:
    """Run Claude Code in a folder, with the gateway as its server."""

    def __init__(
        self, url: str, wire: str, where: Path, upstream: StrictServer, pauses: Pauses
    ) -> None:
        self.where = where
        self.upstream = upstream
        self.pauses = pauses
        program = find_program("node", "node_modules", ".bin", "claude")
        self.command = [program, "--model", f"claude-sonnet-5-{wire}", "--permission-mode",
                        "acceptEdits", "--allowedTools", "Bash,Read,Edit,Agent",
                        "--output-format", "json"]  # fmt: skip
        self.settings = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "x",
            "ANTHROPIC_SMALL_FAST_MODEL": f"claude-sonnet-5-{wire}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    async def run(self, prompt: str, *options: str) -> dict[str, Any]:
        """Run a prompt to its end; return what Claude Code prints."""
        status, printed = await run_program(
            [*self.command, *options, "-p", prompt], self.where, self.settings
        )
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        assert status == 0, printed[-3000:]
        assert len(lines) == 1, printed[-3000:]
        found: dict[str, Any] = json.loads(lines[0])
        return found


@contextlib.asynccontextmanager
async def claude_code(wire: str, folder: Path) -> AsyncIterator[Claude]:
    """Yield Claude Code in front of a gateway in front of a strict server."""
    where = await make_repository(folder, {"greet.py": OLD})
    (where / "dot.png").write_bytes(DOT)
    pauses = Pauses()
    with StrictServer(script(where, pauses), models=("sim",)) as upstream:
        model = connect(
            "sim",
            wire=wire,
            base_url=upstream.base_urls[wire],
            capabilities={"supports_images": True},
        )
        async with serving(create_app({f"claude-sonnet-5-{wire}": model})) as url:
            yield Claude(url, wire, where, upstream, pauses)


async def read(claude: Claude) -> None:
    assert "Hello, world" in (await claude.run("READ greet.py"))["result"]


async def edit(claude: Claude) -> None:
    await claude.run("EDIT greet.py")
    assert (claude.where / "greet.py").read_text() == NEW


async def bash(claude: Claude) -> None:
    assert "42" in (await claude.run("BASH count"))["result"]


async def sub_agent(claude: Claude) -> None:
    assert "the agent says blue" in (await claude.run("AGENT ask"))["result"]


async def image(claude: Claude) -> None:
    await claude.run("IMAGE dot.png")
    blocks = [block for request in claude.upstream.requests for message in request.messages
              for block in message.content]  # fmt: skip
    assert any(isinstance(block, Image) for block in blocks)


async def schema(claude: Claude) -> None:
    found = await claude.run("SCHEMA river", "--json-schema", json.dumps(SCHEMA))
    assert found["structured_output"] == {"river": "Rhine"}


async def resume(claude: Claude) -> None:
    first = await claude.run("FIRST")
    again = await claude.run("AGAIN", "--resume", first["session_id"])
    assert "AGAIN done" in again["result"]
    texts = [text for each in claude.upstream.requests[-1].messages if isinstance(each, User)
             for text in _find_texts(each)]  # fmt: skip
    assert "FIRST" in texts


async def abort(claude: Claude) -> None:
    """An interrupt ends the reply at the upstream server, too."""
    command = [*claude.command, "-p", "SLOW"]
    async with start_program(command, claude.where, claude.settings) as process:
        await until(lambda: claude.pauses.begun > 1, "a reply that has begun")
        process.send_signal(signal.SIGINT)
        await until(lambda: claude.pauses.cut, "the end of the reply at its server")
        await process.wait()


CASES: dict[str, Callable[[Claude], Awaitable[None]]] = {
    "reads a file": read,
    "edits a file": edit,
    "runs a command": bash,
    "asks a sub-agent": sub_agent,
    "reads an image": image,
    "structured output": schema,
    "resumes a session": resume,
    "stops a reply": abort,
}
TASKS = {"READ", "EDIT", "BASH", "AGENT", "SUB", "IMAGE", "SCHEMA", "FIRST", "AGAIN", "SLOW"}


@pytest.mark.parametrize("wire", WIRES)
async def test_claude_code_works_in_front_of_a_strict_server(wire: str, tmp_path: Path) -> None:
    outcomes = {}
    failed = {}
    for name, case in CASES.items():
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        async with claude_code(wire, folder) as claude:
            try:
                await case(claude)
                assert claude.upstream.problems == []
                outcomes[name] = "yes"
            except AssertionError as error:
                outcomes[name] = "no"
                failed[name] = str(error)
    record_outcomes(CLIENT, wire, outcomes)
    assert failed == {}
