"""Plugins: the package in examples/plugin is installed and used; faulty plugins are reported."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from dragoman import Registry, connect
from dragoman.provider import plugins
from dragoman.tools import plugin_tools
from dragoman.validate.yaml import ConfigError
from dragoman.wire import _codecs

from .cli.test_models import Background
from .server import Connection
from .waiting import PATIENCE

ROOT = Path(__file__).parents[1]
PROGRAM = """
import asyncio, json, sys
from dragoman import Registry, connect
from dragoman.tools import plugin_tools

async def main():
    entry = Registry().find("example:parrot")
    async with connect("example:parrot") as model:
        reply = await model.complete("Hi")
    async with connect("m", base_url=sys.argv[1], wire="example") as model:
        await model.complete("Hi")
    [tool] = plugin_tools(["example"])
    facts = [entry.capabilities.known("max_context_tokens"), entry.priced_as.model, model.codec.wire]
    print(json.dumps([reply.text, *facts, tool.name]))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example into a folder, without a network."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(ROOT / "examples" / "plugin", folder / "source")
    install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", sys.executable]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    words = [*install, *offline, "--target", str(folder / "site"), str(source)]
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
    return folder / "site"


def test_example_plugin_is_installed_and_used(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handle(connection: Connection) -> None:
        message = {"role": "assistant", "content": "Hi"}
        body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        connection.reply(200, json.dumps(body).encode())

    with Background(handle) as server:
        file = tmp_path / "models.yaml"
        file.write_text(f"adapters: {{example: {{type: example, base_url: {server.base_url}}}}}\n")
        monkeypatch.setenv("DRAGOMAN_CONFIG", str(file))
        monkeypatch.setenv("PYTHONPATH", f"{installed}:{ROOT / 'src'}")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.base_url], capture_output=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.stderr == b""
        assert json.loads(done.stdout) == ["Hi", 8000, "local:parrot", "example", "count_words"]
        assert [seen.headers["x-plugin"] for seen in server.requests] == ["dragoman-example"] * 2


def offer(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """Make the search for plugins find the given entry points in every plugin group."""
    found = {name: EntryPoint(name, value, "x") for name, value in points.items()}
    monkeypatch.setattr(plugins, "find_plugins", lambda group: found)


def test_plugin_tools_of_each_form_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)")
    offer(
        monkeypatch, one="json:dumps", many="tests.test_plugins:MANY", wrong="json:__name__",
        gone="nowhere:x", exits="leaving:x", path="json:../x",
    )  # fmt: skip
    assert [each.name for each in plugin_tools(["many"])] == ["shout"]
    for name, problem in (
        ("wrong", "offers str"),
        ("gone", "cannot be loaded"),
        ("exits", "cannot be loaded"),
        ("path", "cannot be loaded"),
        ("none", "no package offers"),
    ):
        with pytest.raises(ValueError, match=problem):
            plugin_tools([name])


def shout(text: str) -> str:
    """Return the text in capitals."""
    return text.upper()


MANY: list[Any] = [shout]


def test_plugin_cannot_replace_a_builtin_wire(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offer(monkeypatch, openai="nowhere:Codec")
    plugins.load_wires.__wrapped__()
    assert "the wire openai is built in" in caplog.text


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise type('Odd', (BaseException,), {})('gone')", "Odd: gone"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("", "AttributeError"),
    ],
)
def test_wire_plugin_that_ends_when_it_is_imported_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, raised: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leaving", raising=False)
    (tmp_path / "leaving.py").write_text(text)
    monkeypatch.setitem(_codecs._places, "leaving", "leaving:Codec")  # noqa: SLF001 - undone after
    said = rf"the wire 'leaving' \(leaving:Codec\) cannot be loaded: {raised}"
    with pytest.raises(ValueError, match=said):
        connect("m", base_url="http://127.0.0.1:9/v1", wire="leaving")
    file = tmp_path / "models.yaml"
    file.write_text("adapters: {one: {type: leaving, base_url: 'http://127.0.0.1:9'}}\n")
    with pytest.raises(ConfigError, match=rf"models.yaml:1: adapters.one.type: {said}"):
        Registry.load(file)


def test_plugin_import_can_be_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt")
    monkeypatch.setitem(_codecs._places, "slow", "slow:Codec")  # noqa: SLF001 - undone after
    with pytest.raises(KeyboardInterrupt):
        connect("m", base_url="http://127.0.0.1:9/v1", wire="slow")


def test_missing_plugin_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, lab="json:missing.yaml", gone="nowhere:x.yaml", path="json:../../x")
    for name in ("lab", "gone", "path"):
        with pytest.raises(ValueError, match="cannot be read"):
            plugins.read_plugin_file("dragoman.vendors", name)
