"""A wire is one folder and two lines: without them, the package works with the other wires."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.gateway.openapi import document

from ..sources import PACKAGE
from ..test_layers import present

# Wires on which no other wire is built, with one of their paths and the number of their lines: the
# server of another API, Ollama's older one or InvokeModel, is a third.
WIRES = {
    "bedrock": ("/model/{name}/converse", 3),
    "cohere": ("/v2/chat", 2),
    "ollama": ("/api/chat", 3),
}
# Retrieval has wires of the names cohere and ollama too, which are files of their own, and Bedrock
# is also the name of the service that requests are signed for.
OTHERS = ("retrieval/", "sim/retrieval.py", "registry/credentials.py")

WITHOUT = """
import asyncio
import sys
import dragoman as d
from dragoman.capabilities import Capabilities
from dragoman.conformance import CODECS as CHECKED
from dragoman.gateway.app import create_app
from dragoman.gateway.openapi import document
from dragoman.sim import ScriptedProvider, SimServer
from dragoman.wire import CODECS, SERVER_CODECS

wire, path = sys.argv[1:]
assert wire not in CODECS
assert wire not in SERVER_CODECS
for wire in CODECS:
    codec = CODECS[wire].connect("m", "http://127.0.0.1:9/v1", None, Capabilities())
    codec.encode(d.Request([d.User("x")], config=d.RuntimeConfig(max_tokens=5)))
    SERVER_CODECS[wire].error(d.RateLimitError("x"))
create_app({"m": ScriptedProvider("Hi")})
assert path not in document()["paths"]

async def call(url):
    async with d.connect("sim", base_url=url) as model:
        return (await model.complete("x")).text

with SimServer(ScriptedProvider("Hi")) as server:
    assert asyncio.run(call(server.base_urls["openai"])) == "Hi"
"""


@pytest.mark.parametrize("wire", WIRES)
def test_package_works_without_the_folder_and_the_two_lines_of_a_wire(
    wire: str, tmp_path: Path
) -> None:
    path, count = WIRES[wire]
    assert path in document()["paths"]
    copy = tmp_path / "dragoman"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("cases", "__pycache__"))
    shutil.rmtree(copy / "wire" / wire)
    index = copy / "wire/__init__.py"
    lines = index.read_text().splitlines(keepends=True)
    kept = [line for line in lines if wire not in line]
    assert len(lines) - len(kept) == count
    index.write_text("".join(kept))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", WITHOUT, wire, path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize("wire", WIRES)
def test_no_other_file_names_the_wire(wire: str) -> None:
    naming = set()
    for module in present():
        path = module.path.as_posix()
        if path.startswith((f"wire/{wire}/", *OTHERS)):
            continue
        identifiers, literals = module.names
        texts = [text for _, text in identifiers | literals]
        if any(wire in text.lower() for text in texts if "\n" not in text):
            naming.add(path)
    assert naming == {"wire/__init__.py"}
