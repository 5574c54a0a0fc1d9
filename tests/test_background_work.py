"""Each task and each thread that the package starts is held by something that notices its end.

The event loop refers to a task only weakly, so that one that is not held may end in the middle, and
its exception is lost. The table ``background_work`` states for each task, thread, timer and process
what ends it and who notices.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .rows import read_table
from .sources import read_package

ROOT = Path(__file__).parents[1]
TASKS = ("create_task", "ensure_future")
# Who awaits one of these at once notices its end.
AWAITED = (*TASKS, "run_in_executor", "submit", "to_thread")
OTHERS = (
    "Popen", "Process", "ProcessPoolExecutor", "Thread", "ThreadPoolExecutor", "Timer", "call_at",
    "call_later", "create_server", "create_subprocess_exec", "create_subprocess_shell",
    "run_coroutine_threadsafe", "start_new_thread", "start_server",
)  # fmt: skip
WORK = read_table("background_work")


def find_started(node: ast.AST, *names: str) -> Iterator[tuple[str, str]]:
    """Yield the qualified name of the function, and how it starts something, for each start."""
    for child in ast.iter_child_nodes(node):
        inner = names
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*names, child.name)
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute | ast.Name):
            called = child.func.attr if isinstance(child.func, ast.Attribute) else child.func.id
            is_awaited = isinstance(node, ast.Await) or "group." in ast.unparse(child.func)
            if called in OTHERS or (called in AWAITED and not is_awaited):
                yield ".".join(names), called
        yield from find_started(child, *inner)


def find_unheld(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each task that is neither assigned, awaited nor passed on."""
    for node in ast.walk(tree):
        held = node.value if isinstance(node, ast.Expr) else None
        if isinstance(node, ast.Lambda):
            held = node.body
        if isinstance(held, ast.Call) and isinstance(held.func, ast.Attribute | ast.Name):
            name = held.func.attr if isinstance(held.func, ast.Attribute) else held.func.id
            is_group = isinstance(held.func, ast.Attribute) and "group" in ast.unparse(held.func)
            if name in TASKS and not is_group:
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


@pytest.mark.parametrize(
    ("code", "started"),
    [
        ("task = asyncio.create_task(work())", ["create_task"]),
        ("await asyncio.create_task(work())", []),
        ("group.create_task(work())", []),
        ("await asyncio.to_thread(work)", []),
        ("working = asyncio.to_thread(work)", ["to_thread"]),
        ("pool.submit(work)", ["submit"]),
        ("threading.Thread(target=work).start()", ["Thread"]),
        ("loop.call_later(1, lambda: asyncio.ensure_future(work()))", ["call_later", "ensure_future"]),
    ],
)  # fmt: skip
def test_everything_that_is_started_is_found(code: str, started: list[str]) -> None:
    tree = ast.parse(f"class A:\n    async def f(self):\n        {code}")
    assert list(find_started(tree)) == [("A.f", each) for each in started]


def test_table_states_what_ends_each_task_thread_timer_and_process() -> None:
    found = {
        (f"{source.path.as_posix()}:{name}", starts)
        for source in read_package()
        for name, starts in find_started(source.tree)
    }
    assert found == {(row["where"], row["starts"]) for row in WORK}
    assert len(found) == len(WORK)
    assert all(row["ends"] and row["notices"] for row in WORK)


def test_tests_that_the_table_names_exist() -> None:
    for row in WORK:
        path, _, name = row.get("test", "").partition("::")
        if path:
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), row["where"]
