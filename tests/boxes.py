"""The boxes: parts of the package that are built, tested and understood one at a time.

``BOXES`` is the one table. docs/design.md prints it, and tests/test_layers.py holds the imports of
the package to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple


class Box(NamedTuple):
    """A box: the layers that it holds, and what it needs besides the core.

    ``imports`` are the boxes, layers and ``SERVERS`` that its files may import; ``tests_use`` are
    those that only its tests need. ``extras`` and ``groups`` are installed for its tests.
    """

    what: str
    holds: str
    imports: str = ""
    tests_use: str = ""
    extras: str = ""
    groups: str = "portable"


BOXES = {
    "core": Box(
        "models called over wires: values, codecs, transport, provider, middleware, names",
        "errors citations messages capabilities events validate config prices calls tokens wire "
        "transport provider retrieval database middleware registry sync",
    ),
    "agent": Box(
        "what runs tools and keeps a log of it",
        "log permission tools session replay trace",
        tests_use="kit servers",
    ),
    "gateway": Box(
        "the HTTP service, with the server halves of the wires",
        "servers gateway web",
        imports="agent",
        tests_use="kit",
    ),
    "kit": Box("what tests codecs, providers and programs", "conformance sim testing", "servers"),
    "extras": Box(
        "many requests, comparisons, other frameworks, the embedded model",
        "batches comparison integrations compat local",
        imports="agent gateway kit",
    ),
    "cli": Box("the command", "cli", imports="agent local batches comparison servers"),
}
# The server halves of the wires: pure, so that the simulator and the batches use them too.
SERVERS = (
    "wire/*/server.py", "wire/*/server_request.py", "wire/gemini/names.py",
    "wire/ollama/generate.py", "wire/ollama/model_pages.py", "wire/openai/state.py",
    "wire/responses/echo.py", "retrieval/wire/server.py",
)  # fmt: skip
# The commands of other boxes. The command lists those whose file is present.
COMMANDS = {
    "cli/serve.py": "gateway", "cli/ui.py": "gateway", "cli/gateway_keys.py": "gateway",
    "cli/check.py": "kit", "cli/sim.py": "kit", "cli/import.py": "extras",
}  # fmt: skip


def find_part(path: str) -> str:
    """Return the layer of a file of the package, or ``servers``."""
    if any(fnmatchcase(path, pattern) for pattern in SERVERS):
        return "servers"
    return path.partition("/")[0].removesuffix(".py")


def find_box(part: str) -> str:
    """Return the box that holds a layer, or the servers."""
    return next(name for name, box in BOXES.items() if part in box.holds.split())


def expand(names: Iterable[str]) -> set[str]:
    """Return the layers of boxes, and what these boxes import; a layer stays as it is."""
    found: set[str] = set()
    for name in names:
        if name in BOXES:
            found |= {*BOXES[name].holds.split()} | expand(BOXES[name].imports.split())
        else:
            found.add(name)
    return found


def may_import(path: str) -> set[str]:
    """Return the parts of the package that a file may import."""
    box = find_box(find_part(path))
    own = [box, "core", *BOXES[box].imports.split()]
    return expand([*own, COMMANDS[path]] if path in COMMANDS else own)


def list_parts(box: str, *, tests: bool = True) -> set[str]:
    """Return the parts of the package that a copy for a box, or for its tests, has."""
    used = BOXES[box].tests_use.split() if tests else []
    return expand(["core", box, *BOXES[box].imports.split(), *used])


def list_absent(box: str, files: Iterable[str]) -> list[str]:
    """Return the files of the package that a copy for the tests of a box lacks."""
    kept = list_parts(box)
    absent = []
    for path in files:
        part = find_part(path)
        is_layer = any(part in each.holds.split() for each in BOXES.values())
        command_of = COMMANDS.get(path)
        if (is_layer and part not in kept) or (
            command_of is not None and not {*BOXES[command_of].holds.split()} <= kept
        ):
            absent.append(path)
    return absent
