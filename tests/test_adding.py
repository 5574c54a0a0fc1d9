"""Follow the pages about adding a vendor, a wire and a client wire in a copy of the source.

The files on the pages are written into a copy. A new interpreter then imports the copy, connects
to the vendor by name, runs the conformance kit on the wire, and sends requests in the wire's form
through the simulator and the gateway.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, read_blocks

MOST_FILES = {"adding-a-vendor": 1, "adding-a-wire": 8, "adding-a-client-wire": 3}
"""How many files may be written or changed to follow each page."""
_NAMED = re.compile(r"(?:#|//) (src/[\w./-]+)(?:, after: (.+))?\n")

CHECK = """
import asyncio, os
import pytest
import dragoman as d
from dragoman.conformance import suite
from dragoman.gateway.app import create_app
from dragoman.gateway.openapi import document
from dragoman.sim import serve
from dragoman.transport.serving import serving
from tests.test_registry import test_every_vendor_file_is_valid

cases = suite(wire="terse")
assert "text" in [str(case) for case in cases]
for case in cases:
    case.run()
test_every_vendor_file_is_valid("example")
assert "/terse" in document()["paths"]

async def main():
    with serve("Hi there") as sim:
        os.environ["EXAMPLE_HOST"] = sim.url
        async with d.connect("example:some-model") as model:
            assert (await model.complete([d.User("Hello")])).text == "Hi there"
            assert model.codec.quirks.usage_path == "x_example.usage"
        upstream = sim.connect("openai")
        async with sim.connect("terse") as direct:
            assert (await direct.complete([d.User("Hello")])).text == "Hi there"
            with_tool = [d.Tool("f", "F.", {"type": "object"})]
            with pytest.raises(d.UnsupportedFeatureError):
                await direct.complete([d.User("Hello")], tools=with_tool)
        async with serving(create_app({"fast": upstream})) as url:
            client = d.connect("fast", wire="terse", base_url=url)
            assert (await client.complete([d.User("Hello")])).text == "Hi there"
            asked = d.Request([d.User("Hello")], stream=True)
            texts = [e.text async for e in client.events(asked) if e.type == "text.delta"]
            assert "".join(texts) == "Hi there", texts
            with pytest.raises(d.InvalidRequestError) as caught:
                await d.connect("other", wire="terse", base_url=url).complete([d.User("Hello")])
            assert "no model of this name" in (caught.value.provider_message or "")
asyncio.run(main())
print(d.__file__)
"""


def follow(page: str, tree: Path) -> set[str]:
    """Write the files that a page names into a copy of the source; return their names."""
    written = set()
    for block in read_blocks(ROOT / f"docs/{page}.md"):
        named = _NAMED.match(block.text)
        if named is None:
            continue
        path = tree / named[1]
        content = block.text[named.end() :]
        if named[2] is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            assert not path.exists(), path
            path.write_text(content)
        else:
            text = path.read_text()
            assert text.count(named[2] + "\n") == 1, named[2]
            path.write_text(text.replace(named[2] + "\n", named[2] + "\n" + content))
        written.add(named[1])
    return written


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    # compiled modules stay valid, since the copy keeps the time of each file
    shutil.copytree(ROOT / "src/dragoman", tmp_path / "src/dragoman")
    return tmp_path


def test_pages_about_adding_a_vendor_and_a_wire_work_in_a_copy(tree: Path) -> None:
    for page, limit in MOST_FILES.items():
        written = follow(page, tree)
        assert 0 < len(written) <= limit, (page, written)
    settings = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=tree, env=settings, capture_output=True, text=True
    )
    assert done.stdout.strip().startswith(str(tree)), done.stderr
    assert done.returncode == 0, done.stderr
