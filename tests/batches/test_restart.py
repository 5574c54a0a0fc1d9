"""If a batch is killed at random points, no row is lost, and no acknowledged row is requested
again.

A row is acknowledged if it is on disk: as a complete line of the output, or among the rows that
finished ahead of their turn.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..server import Connection, Server, completion, serve
from ..waiting import arrival


def embedding(text: str) -> bytes:
    """Return the body of an embedding reply; the first component of the vector is the number in
    the text.
    """
    data = [{"index": 0, "embedding": [int(text[1:]), 1]}]
    return json.dumps({"data": data, "model": "m", "usage": {"prompt_tokens": 1}}).encode()


class Counting:
    """Answers prompts or embeds texts after a short random time, and records the rows that are
    requested again although their results were on disk.
    """

    def __init__(self, seed: int) -> None:
        self.total = 0
        self.acknowledged: set[str] = set()  # rows on disk when the process was last killed
        self.asked_again: list[str] = []
        self.dice = random.Random(seed)
        self.arrived = asyncio.Condition()

    async def __call__(self, connection: Connection) -> None:
        sent = connection.seen.json
        prompt = sent["input"][0] if "input" in sent else sent["messages"][-1]["content"]
        async with self.arrived:
            self.total += 1
            if prompt in self.acknowledged:
                self.asked_again.append(prompt)
            self.arrived.notify_all()
        await asyncio.sleep(self.dice.random() * 0.02)
        connection.reply(200, embedding(prompt) if "input" in sent else completion(f"{prompt}!"))

    async def wait_for(self, total: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: self.total >= total)


def acknowledged(out: Path) -> set[int]:
    lines: set[int] = set()
    for path in (out, out.with_name(out.name + ".ahead")):
        if path.exists():
            complete = path.read_bytes().rpartition(b"\n")[0]
            lines |= {json.loads(line)["line"] for line in complete.split(b"\n") if line}
    return lines


async def start(server: Server, source: Path, out: Path, order: str) -> asyncio.subprocess.Process:
    command = ["batch", str(source), str(out), "--model", "m", "--base-url", server.base_url]
    command += ["--order", order, "--concurrency", "8", "--json"]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman", *command,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=dict(os.environ),
    )  # fmt: skip


def row_of(kind: str, number: int) -> dict[str, Any]:
    text = f"p{number}"
    if kind == "openai":
        body = {"model": "other", "input": text}
        return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/embeddings", "body": body}
    return {"id": f"r{number}", kind: text}


def read_result(kind: str, row: dict[str, Any]) -> tuple[str, str]:
    """Return the id of an output row and the prompt that it answers."""
    if kind == "prompt":
        return row["id"], row["text"].removesuffix("!")
    if kind == "input":
        return row["id"], f"p{row['embedding'][0]:.0f}"
    return row["custom_id"], f"p{row['response']['body']['data'][0]['embedding'][0]:.0f}"


async def kill_often(folder: Path, kind: str, order: str, kills: int, rows: int, seed: int) -> int:
    """Kill a batch a number of times, each time shortly after it has sent a request; return how
    many kills hit a running process.
    """
    dice = random.Random(seed)
    source = folder / "in.jsonl"
    out = folder / "out.jsonl"
    source.write_text("".join([json.dumps(row_of(kind, n)) + "\n" for n in range(rows)]))
    model = Counting(seed)
    killed = 0
    async with serve(model) as server:
        for _ in range(kills):
            process = await start(server, source, out, order)
            ended = asyncio.ensure_future(process.wait())
            arriving = asyncio.ensure_future(
                model.wait_for(
                    model.total + dice.randint(1, max(2, min(2 * rows // kills, rows // 2)))
                )
            )
            await arrival(
                asyncio.wait([ended, arriving], return_when=asyncio.FIRST_COMPLETED),
                "a request of the batch",
            )
            arriving.cancel()
            await asyncio.sleep(dice.random() * 0.03)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
                killed += 1
            await arrival(ended, "the end of the batch")
            model.acknowledged = {f"p{line - 1}" for line in acknowledged(out)}
            if len(model.acknowledged) == rows:
                break
        process = await start(server, source, out, order)
        printed, problems = await arrival(process.communicate(), "the end of the batch")
        assert process.returncode == 0, problems
    assert model.asked_again == []
    report = json.loads(printed)
    assert report["rows"] == rows
    assert report["failed"] == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(row["line"] for row in lines) == list(range(1, rows + 1))
    assert dict(read_result(kind, row) for row in lines) == {f"r{n}": f"p{n}" for n in range(rows)}
    if order == "input":
        assert [row["line"] for row in lines] == list(range(1, rows + 1))
    return killed


WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
# Each entry: the field of a row, the output order, the number of kills, the number of rows, and
# the seed.
RUNS = (
    [
        (kind, order, 12, 600, seed)
        for kind, seeds in (("prompt", 5), ("input", 2), ("openai", 1))
        for order in ("input", "completed")
        for seed in range(seeds)
    ]
    if WHOLE
    else [("prompt", "input", 2, 100, 5), ("openai", "input", 1, 100, 5)]
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "order", "kills", "rows", "seed"), RUNS)
async def test_batch_killed_at_random_points_can_be_resumed(
    tmp_path: Path,
    kind: str,
    order: str,
    kills: int,
    rows: int,
    seed: int,
    count: Callable[[str, int], None],
) -> None:
    count("kills of a batch", await kill_often(tmp_path, kind, order, kills, rows, seed))
