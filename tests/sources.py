"""The files of the package, parsed once for all tests that check the code itself."""

import ast
import gc
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import dragoman

PACKAGE = Path(dragoman.__file__).parent


@dataclass
class Source:
    """A Python file: its path below the package, and its text."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        tree = ast.parse(self.text)
        gc.freeze()  # a collection would look at every node
        return tree

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return all nodes of the tree, parents before their children."""
        return list(ast.walk(self.tree))


def read_sources(root: Path) -> list[Source]:
    return [
        Source(path.relative_to(root), path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.py"))
    ]


@cache
def read_package() -> list[Source]:
    return read_sources(PACKAGE)
