"""Each task and each thread that the package starts is held by something that notices its end.

The event loop refers to a task only weakly, so that one that is not held may end in the middle, and
its exception is lost.
"""

import ast
from collections.abc import Iterator

import pytest

from .sources import read_package

STARTS = ("create_task", "ensure_future")


def find_unheld(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each task that is neither assigned, awaited nor passed on."""
    for node in ast.walk(tree):
        held = node.value if isinstance(node, ast.Expr) else None
        if isinstance(node, ast.Lambda):
            held = node.body
        if isinstance(held, ast.Call) and isinstance(held.func, ast.Attribute | ast.Name):
            name = held.func.attr if isinstance(held.func, ast.Attribute) else held.func.id
            is_group = isinstance(held.func, ast.Attribute) and "group" in ast.unparse(held.func)
            if name in STARTS and not is_group:
                yield held.lineno


def find_nameless(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each thread without a name, or which might hold up the end of a program."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread":
            given = {each.arg for each in node.keywords}
            if not {"name", "daemon"} <= given:
                yield node.lineno


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("asyncio.create_task(work())", [1]),
        ("signal(lambda: loop.create_task(work()))", [1]),
        ("task = asyncio.create_task(work())", []),
        ("await asyncio.ensure_future(work())", []),
        ("group.create_task(work())", []),
        ("tasks.add(loop.create_task(work()))", []),
    ],
)
def test_task_that_nothing_holds_is_found(code: str, lines: list[int]) -> None:
    assert list(find_unheld(ast.parse(f"async def f():\n    {code}").body[0])) == [
        line + 1 for line in lines
    ]


def test_every_task_is_held_and_every_thread_has_a_name() -> None:
    found = {
        (source.path, line)
        for source in read_package()
        for find in (find_unheld, find_nameless)
        for line in find(source.tree)
    }
    assert found == set()
