"""The suites of OpenAI's and Anthropic's SDKs, which call every method, against the gateway."""

from __future__ import annotations

import asyncio
import os
import re
import xml.etree.ElementTree as ElementTree

from dragoman.gateway.app import create_app
from dragoman.provider import Provider, connect
from dragoman.sim import ScriptedProvider, SimServer
from dragoman.transport.serving import serving

from .board import Board
from .damage import Damaged
from .install import HOME, SOURCES, install_source, install_suite

TITLE = "Suites of SDKs"
FILES = {
    "openai": (
        "test_models.py",
        "chat/test_completions.py",
        "test_responses.py",
        "responses/test_input_items.py",
        "responses/test_input_tokens.py",
    ),
    "anthropic": ("test_models.py", "test_messages.py"),
}
MODELS = {
    "openai": ("gpt-6-astra", "gpt-5.4", "gpt-4o", "model"),
    "anthropic": ("claude-opus-5-5", "model_id"),
}
BASES = {"openai": "/v1", "anthropic": ""}
_NO_MODEL = "the request names no model"
_NOT_KEPT = "no reply with this id exists; the gateway keeps replies with `--store`"
_COMPLETIONS = "Chat Completions are not kept"
_SCHEMA = 'the schema of a tool, `{"properties": {"location": "bar"}}`, is not valid'
EXPECTED = {
    ("responses: create_overload_?", "openai"): _NO_MODEL,
    ("input_tokens: count", "openai"): _NO_MODEL,
    (
        "input_tokens: count_with_all_params",
        "openai",
    ): "`conversation` needs a server that keeps it",
    (
        "responses: create_with_all_params*",
        "openai",
    ): "`background` needs a gateway with `--store`",
    ("responses: retrieve*", "openai"): _NOT_KEPT,
    ("responses: cancel", "openai"): _NOT_KEPT,
    ("input_items: *", "openai"): _NOT_KEPT,
    ("responses: compact*", "openai"): "conversations are not compacted",
    ("completions: retrieve", "openai"): _COMPLETIONS,
    ("completions: update", "openai"): _COMPLETIONS,
    ("completions: list*", "openai"): _COMPLETIONS,
    ("messages: *_with_all_params*", "anthropic"): _SCHEMA,
    (
        "messages: deprecated_model_warning",
        "anthropic",
    ): "the models that Anthropic has switched off are not served",
}
_VARIANT = re.compile(r"^test_(?:method_|raw_response_|streaming_response_|path_params_)?|\[.*")
_DAMAGED = re.compile(rb'"(id|object|input_tokens)":')


def rename_fields(body: bytes) -> bytes:
    """Rename the fields of JSON replies that every client needs."""
    return _DAMAGED.sub(lambda found: b'"' + b"x" * len(found[1]) + b'":', body)


def read_outcomes(report: str) -> dict[str, str]:
    """Return why the tests of each method failed, or an empty text, from a report of pytest."""
    found: dict[str, str] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        module = case.get("classname", "").split(".test_")[-1].partition(".")[0]
        row = f"{module}: {_VARIANT.sub('', case.get('name', ''))}"
        failures = [*case.findall("failure"), *case.findall("error")]
        why = (failures[0].get("message") or "failed")[:200] if failures else ""
        found[row] = found.get(row) or why
    return found


async def run_suite(package: str, url: str, selection: str) -> dict[str, str]:
    """Run the tests of a package against a server; return the outcome of each method."""
    folder = install_source(package)
    report = HOME / f"{package}-report.xml"
    report.unlink(missing_ok=True)
    files = [f"tests/api_resources/{name}" for name in FILES[package]]
    process = await asyncio.create_subprocess_exec(
        install_suite(package), "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider",
        "-k", selection, "--junitxml", str(report), *files,
        cwd=folder, env={**os.environ, "TEST_API_BASE_URL": url + BASES[package]},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    printed, _ = await process.communicate()
    if not report.exists():
        raise RuntimeError(printed.decode(errors="replace")[-2000:])
    return read_outcomes(report.read_text("utf-8"))


async def fill(board: Board) -> None:
    """Run the suites against a gateway, and against one whose replies are damaged."""
    with SimServer(ScriptedProvider("Hello!"), models=("sim",)) as upstream:
        models: dict[str, Provider] = {
            name: connect("sim", wire=wire, base_url=upstream.base_urls[wire], api_key="k" * 12)
            for wire, names in MODELS.items()
            for name in names
        }
        app = create_app(models)
        async with serving(app) as url, serving(Damaged(app, rename_fields)) as damaged_url:
            for package in FILES:
                found = await run_suite(package, url, "not delete and not aiohttp")
                for row, outcome in found.items():
                    board.cells[row, package] = outcome
                # tests of streams close them unread, and those of paths send nothing
                read = "not delete and not aiohttp and not overload_2 and not path_params"
                damaged = await run_suite(package, damaged_url, read)
                tried = [row for row in damaged if not found[row]]
                noticed = [row for row in tried if damaged[row]]
                board.controls[f"fields renamed, {package}"] = (len(noticed), len(tried))


def run() -> Board:
    """Run the suites that are in the source archives of the SDKs."""
    board = Board(
        "sdk_suites",
        TITLE,
        "The tests of chats, messages, responses and models in the source archives of OpenAI's and Anthropic's SDKs, against the\n"
        "gateway, with a simulator behind it, in place of the vendors' mock server. They call each method in several ways and\n"
        "compare the reply with its type. Left out: deletions, other transports of the clients, and files of interfaces that the\n"
        "gateway does not serve, as well as embeddings. A method is counted once, and failed if any of its tests failed.",
        versions={package: SOURCES[package] for package in FILES},
        expected=EXPECTED,
    )
    asyncio.run(fill(board))
    return board
