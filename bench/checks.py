"""``python -m bench.checks``: what checks against hostile servers add to the cost of a call and of
a chunk.

``CHECKS`` lists the checks that are measured. The same calls are made by two copies of the
package: the original, and one without these checks in its source. Python instructions are counted,
which is exact on every machine; with ``--valgrind``, processor instructions are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

from . import server

ROOT = Path(__file__).parents[1]
TIMES = 50
# The checks to remove: the file, the lines of the check, which must be present, and their
# replacement.
CHECKS = (
    ("wire/codec.py", """        may_be_crowded = self._size > MAX_CONTAINERS
""", ""),
    ("wire/codec.py", """            if may_be_crowded:
                _refuse_crowded(frame.data)
""", ""),
    ("wire/codec.py", """        if self._frames > MAX_EVENTS or self._sse.lines > MAX_LINES:
            what = f"{MAX_EVENTS} events" if self._frames > MAX_EVENTS else f"{MAX_LINES} lines"
            raise InvalidResponseError(f"the stream has more than {what}")
""", """        if self._frames > MAX_EVENTS:
            raise InvalidResponseError(f"the stream has more than {MAX_EVENTS} events")
"""),
    ("wire/codec.py", """            _refuse_crowded(data)
""", """            pass
"""),
    ("sse.py", """        self.lines += chunk.count(b"\\n")
""", ""),
    ("events/blocks.py", """        if len(self.all) >= MAX_BLOCKS:
            raise InvalidResponseError(f"the reply has more than {MAX_BLOCKS} blocks")
""", ""),
    ("transport/connection.py", """        self._unframed += nbytes
""", ""),
    ("transport/connection.py", """        else:
            if self._unframed > MAX_HEAD and self.state in ("head", "body", "drain"):
                self._handle_invalid(
                    FramingError("the head, the trailers or a chunk's extensions are too long")
                )
""", ""),
    ("transport/connection.py", """        if len(head) > MAX_HEAD:
            raise FramingError("the head is too long")
""", ""),
    ("transport/connection.py", """    def on_body(self, body: bytes) -> None:
        self._unframed = 0
""", """    def on_body(self, body: bytes) -> None:
"""),
)  # fmt: skip


def take_out(folder: Path) -> None:
    """Copy the package to a folder and remove the measured checks from the copy."""
    shutil.copytree(
        ROOT / "src" / "dragoman",
        folder / "dragoman",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name, text, instead in CHECKS:
        path = folder / "dragoman" / name
        source = path.read_text()
        assert text in source, f"{name} no longer has:\n{text}"
        path.write_text(source.replace(text, instead))


# --- measuring in a child process --------------------------------------------------------------


async def count(work: Callable[[], Awaitable[Any]], times: int) -> float:
    """Return the number of Python instructions that a function executes."""
    total = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal total
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        total += event == "opcode"
        return trace

    await work()
    sys.settrace(trace)
    for _ in range(times):
        await work()
    sys.settrace(None)
    return total / times


async def run(base: str, times: int, *, counting: bool) -> None:
    from .ours import Ours
    from .worker import CHUNKS

    ours = Ours(base, "openai")
    short = ours.conversation(1)
    works: dict[str, tuple[Callable[[], Awaitable[Any]], int]] = {
        "complete": (lambda: ours.complete("text", short), 1),
        "chunk": (lambda: ours.stream("burst", short), CHUNKS),
    }
    for name, (work, parts) in works.items():
        if counting:
            print(name, await count(work, times if parts == 1 else 3) / parts)
            continue
        for _ in range(times):
            await work()
    await ours.close()


# --- comparing two versions of the source ------------------------------------------------------


def start(source: Path, base: str, *arguments: str, before: tuple[str, ...] = ()) -> str:
    command = [*before, sys.executable, "-m", "bench.checks", "--child", base, *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]),
        "PYTHONHASHSEED": "0",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def count_python(source: Path, base: str) -> dict[str, float]:
    lines = [line.split() for line in start(source, base, "--count").splitlines()]
    return {name: float(number) for name, number in lines}


def count_instructions(source: Path, base: str) -> dict[str, float]:
    """Return how many processor instructions one call and one stream execute together, computed as
    the difference between a long and a short run.
    """
    found = []
    for times in (5, 25):
        valgrind = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
        text = start(source, base, "--times", str(times), before=valgrind)
        counted = re.search(r"Collected : (\d+)", text)
        assert counted is not None, text[-500:]
        found.append(int(counted[1]))
    return {"a call and a stream": (found[1] - found[0]) / 20}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--valgrind", action="store_true")
    given = parser.parse_args()
    if given.child:
        asyncio.run(run(given.child, given.times, counting=given.count))
        return
    measure = count_instructions if given.valgrind else count_python
    with server.running() as base, tempfile.TemporaryDirectory() as folder:
        take_out(Path(folder))
        bare, whole = measure(Path(folder), base), measure(ROOT / "src", base)
    for name, number in whole.items():
        more = number / bare[name] - 1
        print(f"{name:<22}{bare[name]:>14,.1f} without{number:>14,.1f} with{more:>+9.2%}")


if __name__ == "__main__":
    main()
