"""Run the code examples on the documentation pages in an isolated environment.

Each Python block is a file of its own: it runs from top to bottom with nothing defined before, as
a reader runs it who pastes it. A block whose first line is a comment with a file name, such as
``# models.yaml`` or ``# app.py``, is also written to that file, which later blocks may read or
import. The blocks of a page share an empty folder. Lines after ``# ->`` are what a block
prints. A ``console`` block of the README has commands after ``$``, each with its output below; on
other pages, these blocks are examples. Every connection goes to a small test server that answers
everything; the rest of the network is unreachable. Blocks with
packages that take seconds to import run in the exhaustive run only. A page that opens a log with ``readonly``
finds the file ``log.db``, which contains the session ``fix-tests``.
"""

import gc
import inspect
import io
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import urlsplit, urlunsplit

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dragoman import Usage, connect
from dragoman.cli import main
from dragoman.log import SqliteLog
from dragoman.provider import SCHEMES
from dragoman.testing import forbid_network
from dragoman.transport import HttpTransport

from .gateway.upstream import EXHAUSTIVE, wire_of, write_reply
from .server import Connection
from .story import tell
from .test_sync import Background

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
ANSWER = "The Rhine rises in the Alps."
USAGE = Usage(
    1200,
    80,
    cached_input_tokens=1000,
    cache_creation_input_tokens=0,
    reasoning_tokens=20,
    total_tokens=1280,
)


class Block(NamedTuple):
    """A fenced code block: its language, its text, and the line of the page where it begins."""

    language: str
    text: str
    line: int


def read_blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            found[1],
            inspect.cleandoc("\n" + found[2]) + "\n",
            text.count("\n", 0, found.start()) + 2,
        )
        for found in re.finditer(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    ]


async def answer_everything(connection: Connection) -> None:
    """Answer any request of any wire with a minimal reply."""
    path = urlsplit(connection.seen.path).path
    if connection.seen.method == "GET":
        known = [{"id": name, "name": name} for name in ("llama3", "some-model", "m")]
        body: Any = {"status": "ok", "data": known, "models": known}
    elif path.endswith("/embeddings"):
        vectors = [
            {"index": at, "embedding": [0.6, 0.8]}
            for at, _ in enumerate(connection.seen.json["input"])
        ]
        body = {"model": "m", "data": vectors, "usage": {"prompt_tokens": 4, "total_tokens": 4}}
    elif (wire := wire_of(path)) == "openai":
        body = _openai(connection.seen.json)
    else:
        schema = schema_of(connection.seen.json)
        answer = ANSWER if schema is None else json.dumps(example_of(schema))
        body = json.loads(write_reply(wire, answer))
    connection.reply(200, json.dumps(body).encode())


def schema_of(asked: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema that a request on the responses or anthropic wire has for its answer."""
    place = asked.get("text") or asked.get("output_config") or {}
    found: dict[str, Any] | None = place.get("format", {}).get("schema")
    return found


def _openai(asked: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    finish = "stop"
    schema = asked.get("response_format", {}).get("json_schema", {}).get("schema")
    if schema is not None:
        message["content"] = json.dumps(example_of(schema))
    elif (
        asked.get("tools")
        and asked["messages"][-1]["role"] != "tool"
        and asked.get("tool_choice") != "none"
    ):
        function = asked["tools"][0]["function"]
        arguments = json.dumps(example_of(function.get("parameters", {})))
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": function["name"], "arguments": arguments},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        finish = "tool_calls"
    usage = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}
    return {
        "id": "x", "object": "chat.completion", "created": 0, "model": "llama3",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage,
    }  # fmt: skip


def example_of(schema: dict[str, Any]) -> Any:
    """Return an example value that matches a simple schema."""
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return example_of(schema[choice][0])
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "array":
        return [example_of(schema.get("items", {}))]
    if kind == "object" or "properties" in schema:
        return {name: example_of(each) for name, each in schema.get("properties", {}).items()}
    return {"integer": 1, "number": 1.5, "boolean": True, "null": None}.get(str(kind), "Rhine")


@contextmanager
def redirected(url: str) -> Iterator[None]:
    """Redirect every connection, including those of the embedded model, to the given address."""
    origin = urlsplit(url)

    def elsewhere(request: Any) -> Any:
        return replace(
            request,
            url=urlunsplit(urlsplit(request.url)._replace(scheme="http", netloc=origin.netloc)),
        )

    send = HttpTransport.send
    exchange = HttpTransport.exchange

    def open_local(path: str = "", **settings: Any) -> Any:
        return connect("smollm2-135m-instruct", base_url=f"{url}/v1", name="local", **settings)

    with (
        mock.patch.object(
            HttpTransport,
            "send",
            lambda self, request, *a, **k: send(self, elsewhere(request), *a, **k),
        ),
        mock.patch.object(
            HttpTransport,
            "exchange",
            lambda self, request, *a, **k: exchange(self, elsewhere(request), *a, **k),
        ),
        mock.patch.dict(SCHEMES, {"local": open_local}),
    ):
        yield


@contextmanager
def world(folder: Path) -> Iterator[str]:
    """Set up a folder, a server that answers everything, and keys; block the network."""
    sold = ("ANTHROPIC", "OPENAI", "GEMINI", "GROQ", "MISTRAL", "COHERE", "DRAGOMAN")
    keys = {f"{name}_API_KEY": "k" for name in sold} | {"AWS_BEARER_TOKEN_BEDROCK": "k"}
    settings = {
        **keys,
        "DRAGOMAN_CONFIG": str(folder / "models.yaml"),
        "DRAGOMAN_LOG": str(folder / "log.db"),
    }
    (folder / "models.yaml").touch()
    before = Path.cwd()
    with (
        Background(answer_everything) as server,
        mock.patch.dict(os.environ, {**settings, "OPENAI_BASE_URL": f"{server.url}/v1"}),
        redirected(server.url),
    ):
        os.chdir(folder)
        try:
            with forbid_network():
                yield server.url
        finally:
            os.chdir(before)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the blocks of a page import the files that other blocks were written to."""
    with mock.patch.object(sys, "path", [str(folder), *sys.path]):
        yield
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def run_page(page: Path, folder: Path) -> int:
    """Run the code blocks of a page; return the number of blocks."""
    blocks = read_blocks(page)
    # What earlier tests of this process left behind is collected here, so that a page fails for its
    # own connections only.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    with world(folder), importable(folder):
        # The code on the page reads a log, which must exist.
        if "readonly=True" in page.read_text():
            with SqliteLog(folder / "log.db") as log:
                tell(log, "fix-tests")
        for number, block in enumerate(blocks):
            if block.language in ("yaml", "json", "python"):
                _write_file(block, folder)
            if block.language == "python" and _defines_tests(block):
                (folder / f"test_block_{number}.py").write_text(block.text)
            elif block.language == "python" and not _is_left_out(block):
                _check_printed(block, partial(_run, block, page))
            elif block.language == "console" and page.name == "README.md":
                run_console(block, folder)
        if any(folder.glob("test_block_*.py")):
            _run_tests()
    return sum(block.language == "python" for block in blocks)


def _check_printed(block: Block, run: Callable[[], None]) -> None:
    """Run a block, and compare what it prints with its lines after ``# ->``, if it has some."""
    wanted = [
        line.partition("# ->")[2].strip() for line in block.text.splitlines() if "# ->" in line
    ]
    if not wanted:
        run()
        return
    with redirect_stdout(io.StringIO()) as printed:
        run()
    assert printed.getvalue().splitlines() == wanted


def run_console(block: Block, folder: Path) -> None:
    """Run the commands of a block, and compare their output with the lines below them."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    shown: dict[str, list[str]] = {}
    for line in block.text.splitlines():
        if line.startswith("$ "):
            shown[line.removeprefix("$ ")] = []
        else:
            shown[[*shown][-1]].append(line)
    for command, wanted in shown.items():
        program, *arguments = shlex.split(command)
        assert program == "dragoman"
        result = CliRunner().invoke(main, arguments)
        assert [line.rstrip() for line in result.stdout.splitlines()] == wanted, result.output


def _write_file(block: Block, folder: Path) -> None:
    named = re.match(r"# ([\w.-]+\.(?:yaml|json|py))\s*\n", block.text)
    if named:
        text = block.text.partition("\n")[2] if named[1].endswith(".json") else block.text
        (folder / named[1]).write_text(text)


def _defines_tests(block: Block) -> bool:
    return re.search(r"^(async )?def test_", block.text, re.MULTILINE) is not None


# Packages that other pages do not import, in examples of what a program looked like before.
_SLOW = re.compile(r"^from (?:litellm|langchain_openai) |openai-chat:", re.MULTILINE)


def _is_left_out(block: Block) -> bool:
    is_absent = block.text.startswith("from litellm ") and find_spec("litellm") is None
    return is_absent or (not EXHAUSTIVE and _SLOW.search(block.text) is not None)


def _run(block: Block, page: Path) -> None:
    """Run a block as a program, with the line numbers of the page."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    exec(code, {"__name__": "__main__"})


class _Sample:
    """A pytest plugin that runs some of the tests and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose some tests of many, because other tests run the bundled suites completely."""
        items[:] = items[:20] + items[20::20]

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.problems += [report.longreprtext] if report.failed else []

    pytest_collectreport = pytest_runtest_logreport


def _run_tests() -> None:
    """Run the tests in the current folder by a second pytest in this process."""
    known = set(sys.modules)
    sample = _Sample()
    code = pytest.main(
        ["-q", "-x", "-c", os.devnull, "--rootdir", ".", "--disable-plugin-autoload",
         "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "dragoman.testing",
         "-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto",
         "-o", "asyncio_default_fixture_loop_scope=function"],
        plugins=[sample],
    )  # fmt: skip
    for name in set(sys.modules) - known:
        if name.startswith("test_block_"):  # another page may use the same name
            del sys.modules[name]
    assert code == 0, sample.problems
