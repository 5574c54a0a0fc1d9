"""Batches on a real local Ray cluster give the same output as locally, even if a worker, the
driver or the head is killed.

Starting Ray takes many seconds, so only the part files are tested in the default run.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman import batch
from dragoman.batches import BatchError, OutputError
from dragoman.batches.cluster import Asker, _take, read_spooled, write_spooled
from dragoman.batches.job import Job
from dragoman.batches.parts import FinishedLines, hold, list_parts, merge, parts_of
from dragoman.batches.results import Result
from dragoman.batches.rows import BadRow, NamedRow
from dragoman.batches.spending import SharedBudget, Spent
from dragoman.events import Usage
from tests.listed import Listed

from ..databases import redis_url as redis_url
from ..server import Connection, Server, completion, serve
from ..waiting import arrival, patience, poll, until

WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
ROWS = 1_500


# --- merging part files ------------------------------------------------------------------------


def line_of(number: int, text: str = "x") -> str:
    return json.dumps({"line": number, "text": text}) + "\n"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    parts_of(tmp_path / "out.jsonl").mkdir()
    return tmp_path / "out.jsonl"


def test_part_files_are_merged_by_line_number_and_removed(out: Path) -> None:
    out.write_text(line_of(4, "out"))
    (parts_of(out) / "part-1-a.jsonl").write_text(line_of(3) + line_of(1) + '{"line": 9, "te')
    (parts_of(out) / "part-2-b.jsonl").write_text(line_of(2) + line_of(4, "again"))
    merge(out, ordered=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["line"], row["text"]) for row in rows] == [
        (1, "x"),
        (2, "x"),
        (3, "x"),
        (4, "out"),
    ]
    assert not parts_of(out).exists()


def test_part_files_are_merged_in_order_of_completion(out: Path) -> None:
    (parts_of(out) / "part-1-a.jsonl").write_text(line_of(3) + line_of(1))
    merge(out, ordered=False)
    assert [json.loads(line)["line"] for line in out.read_text().splitlines()] == [3, 1]


def test_worker_skips_rows_that_other_workers_finished(out: Path) -> None:
    part = parts_of(out) / "part-1-a.jsonl"
    part.write_text(line_of(1) + '{"line": 2')
    finished = FinishedLines(parts_of(out))
    assert [number in finished.refresh() for number in (1, 2)] == [True, False]
    with part.open("a") as file:
        file.write("}\n" + line_of(3))
    assert [number in finished.refresh() for number in (1, 2, 3, 4)] == [True, True, True, False]


async def test_local_run_continues_an_unfinished_cluster_run(out: Path) -> None:
    model = Listed("x", repeat=True)
    rows = [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}]
    await batch(rows, out, model, budget="rows=1")
    parts_of(out).mkdir(exist_ok=True)
    (parts_of(out) / "part-1-a.jsonl").write_text(line_of(3))
    report = await batch(rows, out, model)
    assert report.rows == 3
    assert report.resumed == 2
    assert len(model.requests) == 2
    assert not parts_of(out).exists()


async def test_part_files_in_use_are_not_merged(out: Path) -> None:
    (parts_of(out) / "part-1-a.jsonl").write_text(line_of(3))
    with hold(out), pytest.raises(OutputError, match="another process"):
        merge(out, ordered=True)
    assert len(list_parts(parts_of(out))) == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"on": "moon"}, "must be local or ray"),
    ({"via": "provider"}, "needs no cluster"),
    ({"requests_per_minute": 5}, "limits_redis"),
    ({"workers": 0}, "workers"),
    ({}, "needs the name of a model"),
]


@pytest.mark.parametrize(("settings", "text"), WRONG)
async def test_settings_that_a_cluster_does_not_support_are_rejected(
    tmp_path: Path, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        await batch(
            [{"prompt": "a"}], tmp_path / "out.jsonl", Listed("x"), **{"on": "ray", **settings}
        )


class TaskError(Exception):
    """Act as an error of Ray, whose text begins with the traceback of a worker."""


class BrokenRay:
    """Act as Ray and Ray Data: starting them fails, or a task on them."""

    exceptions = SimpleNamespace(RayError=TaskError)

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_initialized = self.shutdown = lambda: False
        self.DataContext = SimpleNamespace(get_current=self.fail)

    def init(self, **settings: Any) -> None:
        if not isinstance(self.error, TaskError):
            self.fail()

    def fail(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Exception("The node\ntimed out: sk-abcdefghijklmnopqrstuvwxyz"), "started: timed out: "),
        (ConnectionError(), "Ray cannot be started: ConnectionError"),
        (TaskError("Traceback ...\nOSError: the disk is full"), "failed: OSError: the disk is"),
    ],
)
async def test_failure_of_ray_is_reported_without_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    ray = BrokenRay(error)
    monkeypatch.setattr("dragoman.batches.cluster._load_ray", lambda: (ray, ray))
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with pytest.raises(BatchError, match=said) as caught:
        await batch([{"prompt": "a"}], tmp_path / "out.jsonl", "openai:m", on="ray")
    assert "Traceback" not in str(caught.value)
    assert "sk-abc" not in str(caught.value)


# --- the rows that the driver writes for the workers -------------------------------------------


def nested(depth: int) -> Any:
    found: Any = "x"
    for _ in range(depth):
        found = [found]
    return found


def test_row_for_the_workers_is_one_line_whatever_it_contains() -> None:
    ends = "a\x85b\u2028c\u2029d\r\ne\x00\x0b\x0c\x1c\x1d\x1e\U0001f98a"
    row = NamedRow(7, f'"\\{ends}', "own", {"prompt": ends, ends: [ends]})
    (line,) = write_spooled(row).decode().splitlines()
    assert read_spooled(line) == row


def test_rows_nested_too_deeply_for_the_workers_are_bad_rows() -> None:
    bad: list[Result] = []
    rows = [NamedRow(line, "x", "own", {"a": nested(line)}) for line in (3, 5_000, 4)]
    assert len(_take(iter(rows), 10, bad)) == 2
    assert [json.loads(each.data)["error"]["message"] for each in bad] == [
        "line 5000: is nested too deeply"
    ]
    text = '[7,"a\\",{","own",{"a":' + "[" * 5_000 + "]" * 5_000 + "}]"
    assert read_spooled(text) == BadRow(7, 'a",{', "own", "is nested too deeply")


# --- one budget for several workers ------------------------------------------------------------


def spent_by(line: int, cost: str = "1") -> Result:
    return Result(line, b"", usage=Usage(3, 4), cost=Decimal(cost))


async def test_workers_share_a_budget_and_the_first_call_runs_alone() -> None:
    shared = SharedBudget({"usd": Decimal(3)}, Spent())
    assert await shared.admit("a")
    others = [asyncio.create_task(shared.admit(name)) for name in ("a", "b", "b")]
    await asyncio.sleep(0)
    assert not any(task.done() for task in others)
    await shared.settle("a", spent_by(1))
    await asyncio.sleep(0)
    # two of the three are covered, each at the cost of the first
    assert sorted(task.done() for task in others) == [False, True, True]
    await shared.settle("a", spent_by(2))
    await shared.settle("b", spent_by(3))
    assert sorted(await asyncio.gather(*others)) == [False, True, True]
    assert await shared.is_over()
    assert not await shared.admit("c")


async def test_calls_of_a_dead_worker_do_not_hold_the_budget() -> None:
    shared = SharedBudget({"rows": Decimal(2)}, Spent())
    assert await shared.admit("a")
    assert await shared.admit("a")
    waiting = asyncio.create_task(shared.admit("b"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await shared.begin("a")
    assert await waiting
    await shared.settle("a", spent_by(1))  # a late message of the process that died
    await shared.settle("b", spent_by(2))
    assert not await shared.admit("a")


# --- a batch on a real cluster -----------------------------------------------------------------


class Counting:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.acknowledged: set[str] = set()
        self.asked_again: list[str] = []

    def note(self, connection: Connection) -> str:
        """Record a request and return its prompt."""
        prompt = str(connection.seen.json["messages"][-1]["content"])
        self.asked.append(prompt)
        if prompt in self.acknowledged:
            self.asked_again.append(prompt)
        return prompt

    async def __call__(self, connection: Connection) -> None:
        prompt = self.note(connection)
        await asyncio.sleep(0.02)
        connection.reply(200, completion(f"{prompt}!"))


@pytest.mark.parametrize("concurrency", [1, 2, 16])
async def test_worker_processes_one_block_after_another(concurrency: int, tmp_path: Path) -> None:
    model = Counting()
    blocks = [[1, 2], [3], [], [4, 5, 6]]
    async with serve(model) as server, patience("the answers to all blocks"):
        worker = Asker(
            Job(model="m", connection={"base_url": server.base_url}, concurrency=concurrency),
            str(tmp_path),
        )
        worker.begin()
        for lines in blocks:
            rows = [NamedRow(line, None, "own", {"prompt": f"p{line}"}) for line in lines]
            results = await worker.answer_all([*rows])
            assert sorted([result.line for result in results]) == lines
        await worker.close()
    assert sorted(model.asked) == [f"p{line}" for lines in blocks for line in lines]


def write_rows(folder: Path) -> Path:
    rows = [json.dumps({"id": f"r{number}", "prompt": f"p{number}"}) for number in range(ROWS)]
    rows[7] = "not json"
    rows[8] = '{"id": "r1", "prompt": "again"}'
    (folder / "in.jsonl").write_text("\n".join(rows) + "\n")
    return folder / "in.jsonl"


async def start(
    server: Server, source: Path, out: Path, *words: str, **more: str
) -> asyncio.subprocess.Process:
    command = [
        "batch",
        str(source),
        str(out),
        "--model",
        "m",
        "--base-url",
        server.base_url,
        "--json",
        *words,
    ]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman", *command, "--concurrency", "4",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **more},
    )  # fmt: skip


def finished(out: Path) -> dict[str, set[int]]:
    """Return the line numbers of the rows in the part files, grouped by the id of the process that
    wrote them.
    """
    found: dict[str, set[int]] = {}
    for path in list_parts(parts_of(out)):
        with contextlib.suppress(FileNotFoundError):
            data = path.read_bytes().rpartition(b"\n")[0].splitlines()
            found.setdefault(path.name.split("-")[1], set()).update(
                json.loads(line)["line"] for line in data
            )
    return found


async def wait_for_workers(
    process: asyncio.subprocess.Process, out: Path, workers: int
) -> list[int]:
    """Wait until ``workers`` worker processes have written results to disk; return their process
    ids.
    """
    busy: list[int] = []

    def is_ready() -> bool:
        busy[:] = [int(pid) for pid, lines in finished(out).items() if pid.isdecimal() and lines]
        return len(busy) >= workers or process.returncode is not None

    await until(is_ready, f"{workers} workers")
    if process.returncode is not None:
        raise AssertionError(await process.communicate())
    return busy


def compare(out: Path, local: Path) -> None:
    """Assert that both outputs are equal row by row, except for the durations of calls."""

    def read(path: Path) -> list[Any]:
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        return [
            {name: value for name, value in row.items() if name != "latency_ms"} for row in rows
        ]

    assert read(out) == read(local)


async def wait_for_end(process: asyncio.subprocess.Process, workers: Iterable[int | str]) -> None:
    """Wait until a killed driver and its workers, which exit soon after it, have ended."""
    await arrival(process.wait(), "the end of the driver")
    for pid in workers:
        await until(lambda pid=pid: not Path(f"/proc/{pid}/exe").exists(), "the end of a worker")


async def end(process: asyncio.subprocess.Process) -> dict[str, Any]:
    printed, problems = await process.communicate()
    assert process.returncode == 0, (printed, problems)
    return dict(json.loads(printed))


SECRET = "sk-canary0123456789"


def test_job_is_shown_without_its_secrets() -> None:
    connection = {"base_url": "http://x", "api_key": SECRET, "headers": {"x": SECRET}}
    url = f"redis://:{SECRET}@localhost"
    job = Job(model="m", connection=connection, limits_redis=url, cache=url)
    assert repr(job) == str(job) == "Job('m')"


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE, reason="starting Ray takes half a minute")
async def test_key_is_in_no_file_that_ray_writes(tmp_path: Path) -> None:
    source = write_rows(tmp_path)
    model = Short()
    # the names of sockets in this folder must be short
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        settings = {"RAY_TMPDIR": folder, "RAY_enable_export_api_write": "1"}
        async with serve(model) as server:
            await end(
                await start(
                    server, source, tmp_path / "out.jsonl", "--on", "ray",
                    **settings, DRAGOMAN_API_KEY=SECRET,
                )
            )  # fmt: skip
            assert {seen.headers["authorization"] for seen in server.requests} == {
                f"Bearer {SECRET}"
            }
        written = {path.name: path.read_bytes() for path in Path(folder).rglob("*.log")}
    assert b"Job('m')" in written["event_EXPORT_DATASET_METADATA.log"]
    assert [name for name, data in written.items() if SECRET.encode() in data] == []


def find_head(driver: int) -> list[int]:
    """Return the process ids of the head that a driver started: its GCS and its raylet."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            if name in ("gcs_server", "raylet") and int(rest.split()[1]) == driver:
                found.append(int(stat.parent.name))
    return found


async def strike(process: asyncio.subprocess.Process, out: Path, victim: str) -> None:
    """Kill a worker, the driver or the head; wait for the end of the run unless Ray goes on."""
    workers = await find_workers(process, out)
    if victim == "worker":
        await kill(workers[0])
        return
    head = find_head(process.pid)
    assert len(head) == 2
    for pid in head if victim == "head" else [process.pid]:
        os.kill(pid, signal.SIGKILL)
    await wait_for_end(process, [*workers, *head])
    assert process.returncode != 0


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE, reason="starting Ray takes half a minute")
@pytest.mark.parametrize("victim", ["nobody", "worker", "driver", "head"])
async def test_batch_runs_on_ray(tmp_path: Path, victim: str) -> None:
    source = write_rows(tmp_path)
    out = tmp_path / "out.jsonl"
    model = Priced()
    priced = ("--priced-as", "openai:gpt-5-mini")
    options = (*priced, "--on", "ray", "--workers", "2")
    model.both.set()
    async with serve(model) as server:
        local = await end(await start(server, source, tmp_path / "local.jsonl", *priced))
        model.asked.clear()
        process = await start(server, source, out, *options)
        await wait_for_workers(process, out, 2)
        if victim != "nobody":
            await strike(process, out, victim)
            model.acknowledged = read_prompts(out)
        if victim in ("driver", "head"):
            process = await start(server, source, out, *options)
        report = await end(process)
    assert model.asked_again == []
    assert report["rows"] == ROWS
    assert report["failed"] == 2
    assert report["bad"] == 2
    assert set(model.asked) == {f"p{number}" for number in range(ROWS)} - {"p7", "p8"}
    assert Decimal(report["cost_usd"]) == Decimal(local["cost_usd"]) > 0
    compare(out, tmp_path / "local.jsonl")
    assert not parts_of(out).exists()


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE, reason="starting Ray takes half a minute")
async def test_workers_on_ray_share_a_rate_limit_over_redis(
    tmp_path: Path, redis_url: str
) -> None:
    source = write_rows(tmp_path)
    out = tmp_path / "out.jsonl"
    model = Counting()
    async with serve(model) as server:
        process = await start(
            server, source, out, "--on", "ray", "--workers", "2", "--rpm", "60",
            "--limits-redis", redis_url,
        )  # fmt: skip
        await until(lambda: model.asked or process.returncode is not None, "the first request")
        began = time.monotonic()
        workers: set[str] = set()

        def is_ready() -> bool:
            workers.update(path.name.split("-")[1] for path in list_parts(parts_of(out)))
            workers.discard("driver")
            # The limit allows 60 requests at once, and then one per second.
            is_late = len(workers) >= 2 and len(model.asked) > 65
            return is_late or process.returncode is not None

        await until(is_ready, "two workers and their requests")
        assert process.returncode is None, await process.communicate()
        asked = len(model.asked)
        seconds = time.monotonic() - began
        process.kill()
        await wait_for_end(process, workers)
    # If each of the two workers had its own rate limit, twice as many requests would be sent.
    assert asked <= 60 + seconds + 2, (asked, seconds)


class Short(Counting):
    """Replies with the length of the prompt and its first characters."""

    async def __call__(self, connection: Connection) -> None:
        prompt = connection.seen.json["messages"][-1]["content"]
        connection.reply(200, completion(f"{len(prompt)} {prompt[:20]}"))


HOSTILE: list[tuple[bytes, str | None]] = [
    (b'{"id": "x", "prompt": "first"}', None),
    (b"not json", "is not JSON"),
    (b'{"prompt": "\x00"}', "is not JSON"),
    (b"\x00\x00\x00", "is not JSON"),
    (b'{"prompt": "\xff\xfe"}', "is not JSON"),
    (b'["prompt"]', "must be a JSON object"),
    (b'{"prompt": 5}', "prompt must be a string"),
    (b'{"promt": "wrong field"}', "'promt' is not a field"),
    (b'{"id": "x", "prompt": "again"}', "id 'x' is already used in line 1"),
    (b'{"custom_id": "c", "method": "POST", "url": "/no", "body": {}}', "url must be one of"),
    (b'{"prompt": "' + b"x" * 10_000_000 + b'"}', None),
    (b'{"prompt": "' + b"x" * 12_000_000 + b'"}', "has more than 11,000,000 bytes"),
    (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is not JSON"),
    ('{"prompt": "a\u2028b\x85c\u2029d"}'.encode(), None),
    (b'{"prompt": "nul \\u0000 and \\r\\n"}', None),
    (b'{"prompt": "x", "max_tokens": 123456789012345678901234567890}', None),
    (b'{"prompt": "last"}', None),
]


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE, reason="starting Ray takes half a minute")
async def test_bad_rows_on_ray_are_reported_as_in_a_local_run(tmp_path: Path) -> None:
    source, out, local = [tmp_path / name for name in ("in.jsonl", "out.jsonl", "local.jsonl")]
    # nested as deeply as JSON can be decoded, or nearly so
    deep = [b'{"other": ' + b"[" * depth + b"]" * depth + b"}" for depth in range(900, 1000, 3)]
    source.write_bytes(b"\n".join([*[line for line, _ in HOSTILE], *deep]) + b"\n")
    options = ("--max-row-bytes", "11000000")
    async with serve(Short()) as server:
        first = await end(await start(server, source, local, *options))
        report = await end(await start(server, source, out, *options, "--on", "ray"))
    bad = sum(problem is not None for _, problem in HOSTILE) + len(deep)
    for each in (first, report):
        assert each["rows"] == len(HOSTILE) + len(deep)
        assert each["failed"] == bad
        assert each["bad"] == bad
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["line"] for row in rows] == list(range(1, len(rows) + 1))
    for row, (_, problem) in zip(rows, HOSTILE, strict=False):
        told = row.get("error", {}).get("message", "")
        assert told.startswith(f"line {row['line']}: ") == (problem is not None)
        assert (problem or "") in told
    assert all(row["error"]["category"] == "batch_invalid_row" for row in rows[len(HOSTILE) :])
    for path in (out, local):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: len(HOSTILE)]))
    compare(out, local)
    lines = [f"line {line}" for line, (_, problem) in enumerate(HOSTILE, 1) if problem is not None]
    for each in (first, report):
        told = [problem.partition(":")[0] for problem in each["problems"]]
        assert told[: len(lines)] == lines


class Priced(Counting):
    """Replies with 1,000 to 5,000 output tokens, so that rows have different costs.

    After some replies, it waits for ``both``: both workers have begun.
    """

    def __init__(self) -> None:
        super().__init__()
        self.both = asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        prompt = self.note(connection)
        if len(self.asked) > 20:
            await self.both.wait()
        await asyncio.sleep(0.02)
        tokens = 1_000 * (1 + int(prompt[1:]) % 5)
        used = {"prompt_tokens": 0, "completion_tokens": tokens, "total_tokens": tokens}
        connection.reply(200, completion(f"{prompt}!", usage=used))


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE, reason="starting Ray takes half a minute")
@pytest.mark.parametrize("victim", ["nobody", "worker"])
@pytest.mark.parametrize(("kind", "limit"), [("rows", "300"), ("usd", "1.5")])
async def test_budget_stops_all_workers_on_ray(
    tmp_path: Path, kind: str, limit: str, victim: str
) -> None:
    source = write_rows(tmp_path)
    out = tmp_path / "out.jsonl"
    model = Priced()
    options = ("--on", "ray", "--workers", "2", "--priced-as", "openai:gpt-5-mini", "--budget")
    async with serve(model) as server:
        process = await start(server, source, out, *options, f"{kind}={limit}")
        workers = await poll(
            lambda: find_workers(process, out), lambda workers: len(workers) >= 2, "two workers"
        )
        if victim == "worker":  # with calls in flight
            await kill(workers[0])
        model.both.set()
        printed, problems = await process.communicate()
        assert process.returncode == 23, (printed, problems)
        first = json.loads(printed)
        assert first["stopped"] == "budget"
        most = Decimal(5_000) * 2 / 1_000_000  # the most expensive row
        used = Decimal(first["rows"] if kind == "rows" else first["cost_usd"])
        one = 1 if kind == "rows" else most
        # results of the killed worker may have been counted without being on disk
        lost = 12 if victim == "worker" else 0
        assert Decimal(limit) - (lost + 1) * one < used <= Decimal(limit)
        assert len(model.asked) - len(set(model.asked)) <= lost
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(rows) == first["rows"] < ROWS
        assert not parts_of(out).exists()
        model.acknowledged = {f"p{row['line'] - 1}" for row in rows}
        report = await end(await start(server, source, out, *options, f"{kind}=1000000"))
    assert model.asked_again == []
    assert report["rows"] == ROWS
    assert report["failed"] == 2
    assert report["bad"] == 2
    assert report["stopped"] is None
    assert len(model.asked) - len(set(model.asked)) <= lost


# --- workers killed by SIGKILL at random points ------------------------------------------------


class Gate(Counting):
    """Answers as many requests as the test allows, so that a process can be killed at a chosen
    point of the batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answered = 0
        self.allowed: float = 0
        self.changed = asyncio.Condition()

    async def __call__(self, connection: Connection) -> None:
        prompt = self.note(connection)
        async with self.changed:
            await self.changed.wait_for(lambda: self.answered < self.allowed)
            self.answered += 1
            self.changed.notify_all()
        connection.reply(200, completion(f"{prompt}!"))

    async def allow(self, more: float) -> None:
        """Allow the server to send ``more`` further answers, and wait until it has sent them."""
        async with self.changed:
            self.allowed = self.answered + more
            self.changed.notify_all()
            if self.allowed < float("inf"):
                await self.changed.wait_for(lambda: self.answered >= self.allowed)


async def find_workers(process: asyncio.subprocess.Process, out: Path) -> list[int]:
    """Wait for the first worker; return the process ids of all live workers that have begun a part
    file.
    """
    alive: list[int] = []

    def is_ready() -> bool:
        pids = {path.name.split("-")[1] for path in list_parts(parts_of(out))} - {"driver"}
        alive[:] = [int(pid) for pid in pids if Path(f"/proc/{pid}").exists()]
        return bool(alive) or process.returncode is not None

    await until(is_ready, "a worker")
    if not alive:
        raise AssertionError(await process.communicate())
    return alive


async def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}/exe").exists(), "the end of the worker")


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE, reason="starting Ray takes half a minute")
@pytest.mark.parametrize("seed", range(10))
async def test_batch_on_ray_killed_at_random_points_loses_no_row(
    tmp_path: Path, seed: int, count: Callable[[str, int], None]
) -> None:
    """Kill nine workers and then the driver or the head, each at a random point, and resume."""
    dice = random.Random(seed)
    source = write_rows(tmp_path)
    out = tmp_path / "o.jsonl"
    model = Gate()
    options = ("--on", "ray", "--workers", "2")
    async with serve(model) as server:
        process = await start(server, source, out, *options)
        for _ in range(9):
            await find_workers(process, out)
            await model.allow(dice.randint(1, 60))
            await asyncio.sleep(dice.random() * 0.05)
            await kill(dice.choice(await find_workers(process, out)))
            model.acknowledged |= read_prompts(out)
        await find_workers(process, out)
        await model.allow(dice.randint(1, 60))
        await strike(process, out, "head" if seed % 2 else "driver")
        model.acknowledged |= read_prompts(out)
        count("kills of a batch on Ray", 10)
        await model.allow(float("inf"))
        report = await end(await start(server, source, out, *options))
    assert model.acknowledged
    assert model.asked_again == []
    assert report["rows"] == ROWS
    assert report["failed"] == 2
    assert report["bad"] == 2
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["line"] for row in rows] == list(range(1, ROWS + 1))
    good = [row for row in rows if row["line"] not in (8, 9)]
    assert all(row["text"] == f"p{row['line'] - 1}!" for row in good)
    assert not parts_of(out).exists()


def read_prompts(out: Path) -> set[str]:
    """Return the prompts whose results are on disk."""
    return {f"p{line - 1}" for lines in finished(out).values() for line in lines}
