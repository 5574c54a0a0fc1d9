"""Print how much code there is, and how much of it is folded, for each package.

    python -m scripts.structure [FOLDER]    FOLDER is src by default

The size of a package is the number of nodes of its syntax tree: unlike lines, they do not become
fewer if several statements are packed into one.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
_SEVERAL = (ast.Tuple, ast.List)
REPLY = b'{"choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}'


class Structure(Struct):
    """The counts of one package."""

    files: int = 0
    lines: int = 0
    nodes: int = 0
    functions: int = 0
    called_once: int = 0
    assignments: int = 0
    packed: int = 0

    def add(self, other: Structure) -> None:
        """Add the counts of another package or file."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def find_packed(tree: ast.AST) -> Iterator[ast.Assign]:
    """Yield each assignment of several values to as many names.

    A swap, and an assignment that takes a value and leaves another in its place, cannot be two
    statements, so they are not yielded.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if not (isinstance(target, _SEVERAL) and isinstance(node.value, _SEVERAL)):
                continue
            written = {ast.unparse(each) for each in target.elts}
            read = {ast.unparse(each) for each in node.value.elts}
            if len(target.elts) > 1 and not written & read:
                yield node


def find_joined_asserts(tree: ast.AST) -> Iterator[ast.Assert]:
    """Yield each assert that compares several values at once: ``assert (a, b) == (1, 2)``.

    A failure does not show which of the values is wrong.
    """
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare)):
            continue
        sides = [node.test.left, *node.test.comparators]
        are_tuples = all(isinstance(side, ast.Tuple) and len(side.elts) > 1 for side in sides)
        if are_tuples and isinstance(node.test.ops[0], ast.Eq):
            yield node


def measure(source: str) -> Structure:
    """Return the counts of one file."""
    tree = ast.parse(source)
    found = Structure(files=1, lines=source.count("\n"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr_context | ast.Module):
            found.nodes += 1
        if isinstance(node, ast.Assign):
            found.assignments += 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions += 1
            is_private = node.name.startswith("_") and not node.name.startswith("__")
            # A private name that occurs twice is one definition and one use.
            if is_private and len(re.findall(rf"\b{node.name}\b", source)) == 2:
                found.called_once += 1
    found.packed = sum(1 for _ in find_packed(tree))
    return found


def measure_packages(folder: Path) -> dict[str, Structure]:
    """Return the counts of each package, or module, of ``folder/dragoman``."""
    packages: dict[str, Structure] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        name = parts[1].removesuffix(".py") if len(parts) > 1 else parts[0]
        packages.setdefault(name, Structure()).add(measure(path.read_text(encoding="utf-8")))
    return packages


async def count_calls(package: Path) -> tuple[int, int]:
    """Return the number of function calls of a ``complete()``, and of the files they are in."""
    from dragoman import connect
    from dragoman.transport import FixtureTransport

    answer: Any = (200, {}, [REPLY])
    transport = FixtureTransport(answer, answer)
    model = connect("m", base_url="http://server.example/v1", transport=transport)
    files: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and Path(path).is_relative_to(package):
            files[path] += 1

    await model.complete("Hi")  # imports and other work that is done once are not counted
    sys.setprofile(note)
    try:
        await model.complete("Hi")
    finally:
        sys.setprofile(None)
    return files.total(), len(files)


def main(folder: Path) -> None:
    """Print a line for each package, their sum, and the calls of a ``complete()``."""
    packages = measure_packages(folder)
    total = Structure()
    for each in packages.values():
        total.add(each)
    print("package              files    lines     nodes  functions  called once  packed")
    for name, found in [*packages.items(), ("all", total)]:
        once = found.called_once / max(1, found.functions)
        packed = found.packed / max(1, found.assignments)
        print(
            f"{name:<20}{found.files:>6}{found.lines:>9}{found.nodes:>10}{found.functions:>11}"
            f"{once:>13.1%}{packed:>8.1%}"
        )
    calls, files = asyncio.run(count_calls(folder / "dragoman"))
    print(f"a complete() is {calls} calls of functions in {files} files")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src")
