"""Virtual time skips waits, in order, and lets sockets and executors finish first; the tests
wait by no other clock.

``waits.txt`` lists the waits that remain, with their reasons. ``python -m tests.test_waiting``
counts them again and keeps the reasons.
"""

import ast
import asyncio
import re
import threading
import time
from pathlib import Path

import pytest

from tests.rows import read_table
from tests.server import Connection, serve
from tests.waiting import settle, virtual_time


async def test_virtual_time_passes_timers_in_their_order() -> None:
    order: list[str] = []

    async def rest(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    loop = asyncio.get_running_loop()
    began = loop.time()
    with virtual_time():
        await asyncio.gather(rest("day", 86400), rest("minute", 60), rest("hour", 3600))
    assert order == ["minute", "hour", "day"]
    assert loop.time() - began >= 86400
    with virtual_time(), pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()


async def test_virtual_time_stands_still_during_work() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    with virtual_time():
        began = loop.time()
        await asyncio.sleep(5)
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            await asyncio.sleep(0)
        with virtual_time():
            assert loop.time() == pytest.approx(began + 5, abs=1e-6)
    assert before <= began <= loop.time() - 5


async def test_virtual_time_does_not_overtake_bytes_in_sockets() -> None:
    async def slow(connection: Connection) -> None:
        for _ in range(20):
            await asyncio.sleep(50)
            connection.send(b"x")
        connection.writer.close()

    with virtual_time():
        async with serve(slow) as server:
            host, port = server.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
            for _ in range(20):
                assert await asyncio.wait_for(reader.readexactly(1), 60) == b"x"
            writer.close()


async def test_virtual_time_waits_for_jobs_of_an_executor() -> None:
    go = threading.Event()
    loop = asyncio.get_running_loop()
    with virtual_time():
        job = loop.run_in_executor(None, go.wait)
        threading.Timer(0.05, go.set).start()
        assert await asyncio.wait_for(job, 3600)


async def test_settle_returns_when_every_task_waits() -> None:
    steps: list[int] = []

    async def work() -> None:
        for step in range(100):
            await asyncio.sleep(0)
            steps.append(step)
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    assert len(steps) == 100
    task.cancel()


TESTS = Path(__file__).parent
TABLE = TESTS / "waits.txt"

CLOCKS = {
    f"time.{name}{unit}"
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
}
PAUSES = {"asyncio.sleep", "anyio.sleep", "time.sleep"}
LIMITS = {
    "asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for", "anyio.fail_after",
    "threading.Timer",
}  # fmt: skip
METHODS = {"join", "wait", "result", "settimeout", "communicate", "wait_for_timeout"}
DEADLINES = {"first_event", "idle", "connect"}


# Parsing every test takes seconds; a module that does not match has no waits.
WORDS = re.compile(
    r"sleep|imeout|wait_for|fail_after|Timer|first_event|idle|connect=|import time|from time|"
    r"\.(join|wait|result|communicate)\(\s*-?[\d.]"
)


def find_waits(source: str) -> list[int]:
    """Return the lines that read a clock, pause, or limit a wait to a number of seconds.

    A function that uses ``virtual_time``, as a context or as a fixture, contains none of them.
    """
    if not WORDS.search(source):
        return []
    finder = _Finder(source.splitlines())
    finder.visit(ast.parse(source))
    return sorted(finder.found)


class _Finder(ast.NodeVisitor):
    def __init__(self, lines: list[str]) -> None:
        self.found: list[int] = []
        self._lines = lines
        self._names: dict[str, str] = {}

    def visit_Module(self, node: ast.Module) -> None:
        marks = [ast.unparse(each) for each in node.body if isinstance(each, ast.Assign)]
        if not any(mark.startswith("pytestmark") and "virtual_time" in mark for mark in marks):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self._names |= {name.asname or name.name: name.name for name in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for name in node.names:
            self._names[name.asname or name.name] = f"{node.module}.{name.name}"

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        first = min(each.lineno for each in (node, *node.decorator_list))
        if not any("virtual_time" in line for line in self._lines[first - 1 : node.end_lineno]):
            self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Name(self, node: ast.Name | ast.Attribute) -> None:
        if self._dotted(node) in CLOCKS:
            self.found.append(node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit_Name(node)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        keys = [getattr(key, "value", None) for key in node.keys]
        pairs = zip(keys, node.values, strict=True)
        if any(key in DEADLINES and _is_number(value) for key, value in pairs):
            self.found.append(node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = self._dotted(node.func)
        last = called.rpartition(".")[2]
        values = [*node.args, *(each.value for each in node.keywords)]
        if (
            called in LIMITS
            or (called in PAUSES and getattr(node.args[0], "value", None) != 0)
            or (last in METHODS and any(map(_is_number, node.args)))
            or (last == "Timeouts" and any(map(_is_number, values)))
            or any(_is_number(each.value) for each in node.keywords if _is_limit(each.arg or ""))
        ):
            self.found.append(node.lineno)
        self.generic_visit(node)

    def _dotted(self, node: ast.expr) -> str:
        """Return the full name of a function of a module; of others, any prefix and its name."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        return ""


def _is_limit(name: str) -> bool:
    return name in DEADLINES or name.endswith(("timeout", "timeouts"))


def _is_number(node: ast.expr) -> bool:
    """Return whether an expression contains nothing but numbers."""
    leaves = [leaf for leaf in ast.walk(node) if isinstance(leaf, ast.expr)]
    return all(
        isinstance(leaf, ast.BinOp | ast.UnaryOp)
        or (isinstance(leaf, ast.Constant) and isinstance(leaf.value, int | float))
        for leaf in leaves
    ) and not any(isinstance(leaf, ast.Constant) and leaf.value is True for leaf in leaves)


def _count() -> dict[str, list[int]]:
    """Return the lines with waits of each test module that has any."""
    found = {
        path.relative_to(TESTS).as_posix(): find_waits(path.read_text("utf-8"))
        for path in sorted(TESTS.rglob("*.py"))
        if path.name != "waiting.py"
    }
    return {name: lines for name, lines in found.items() if lines}


def _read_table() -> dict[str, tuple[int, str]]:
    rows = [line.split(maxsplit=2) for line in TABLE.read_text("utf-8").splitlines()]
    return {name: (int(number), reason) for number, name, reason in rows}


def test_tests_wait_only_as_the_table_says() -> None:
    table = _read_table()
    found = _count()
    for name in sorted(table.keys() | found.keys()):
        lines = found.get(name, [])
        allowed, reason = table.get(name, (0, ""))
        assert len(lines) <= allowed, (
            f"tests/{name} waits by the clock {len(lines)} times, at lines {lines}; "
            f"{allowed} are allowed. Wait with a function of tests/waiting.py instead."
        )
        assert len(lines) == allowed, (
            f"tests/{name} has fewer waits than tests/waits.txt lists: "
            "run python -m tests.test_waiting"
        )
        assert reason != "?", f"tests/waits.txt says not why tests/{name} waits"


@pytest.mark.parametrize(
    ("source", "count"),
    read_table("waits_in_source"),
)
def test_waits_are_found_in_source(source: str, count: int) -> None:
    assert len(find_waits(source)) == count


if __name__ == "__main__":
    reasons = _read_table() if TABLE.exists() else {}
    TABLE.write_text(
        "".join(
            f"{len(lines):>3} {name:<42} {reasons.get(name, (0, '?'))[1]}\n"
            for name, lines in _count().items()
        ),
        "utf-8",
    )
