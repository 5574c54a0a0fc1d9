"""Damaged logs, and forged logs with valid hashes, raise log errors and never crash.

Exports that are damaged without new hashes are in ``test_fuzz.py``.
"""

import asyncio
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dragoman as d
from dragoman import log as logs
from dragoman.cli import main
from dragoman.cli.errors import EXIT_CODES
from dragoman.replay import ReplayMismatch, compare_runs, count_totals, read_steps
from dragoman.session import reduce_records
from dragoman.trace.queries import Reader

from ..log.samples import WRITABLE
from ..story import tell
from .mutations import mutate_value

EXHAUSTIVE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
Count = Callable[[str, int], None]
ALLOWED = {0, 2, EXIT_CODES["log_unusable"], EXIT_CODES["log_broken"]}


def write_log(path: Path) -> None:
    with logs.SqliteLog(path) as log:
        tell(log)
        for payload in WRITABLE:
            log.append_sync("all", payload)
        for number in range(40):
            log.append_sync(
                "long", logs.MessageRecorded(message=d.User("Grüße, 世界! " * (number * 7 % 60)))
            )


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "log.db"
    write_log(path)
    return path


@pytest.fixture(scope="module")
def lines(sound: Path) -> list[Any]:
    """Return the records of an intact log as lines of an export."""
    target = sound.with_suffix(".jsonl")
    with logs.open_log(sound, readonly=True) as log:
        log.export(target)
    return [json.loads(line) for line in target.read_bytes().splitlines()]


# --- bytes flipped in the log file -------------------------------------------------------------


@pytest.mark.exhaustive
def test_log_commands_do_not_crash_on_flipped_bytes(
    sound: Path, tmp_path: Path, count: Count
) -> None:
    draw = random.Random(8)
    codes = Counter[int]()
    data = sound.read_bytes()
    path = tmp_path / "x.db"
    commands = [
        ["log", "list"], ["log", "list", "--json"], ["log", "show", "long"],
        ["log", "show", "all", "--json"],
        ["log", "export", "-o", str(tmp_path / "o.jsonl")], ["log", "verify"], ["log", "cost"],
        ["replay", "fix"],
    ]  # fmt: skip
    for _ in range(300 if EXHAUSTIVE else 6):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 4, 30])):
            damaged[draw.randrange(100, len(damaged))] = draw.randrange(256)
        for ending in ("-wal", "-shm", ".lock"):
            Path(f"{path}{ending}").unlink(missing_ok=True)
        path.write_bytes(damaged)
        for words in commands:
            result = CliRunner().invoke(main, [*words, "--log", str(path)])
            assert result.exit_code in ALLOWED, f"{words}: {result.exception!r}"
            codes[result.exit_code] += 1
    count("commands run on damaged files", codes.total())
    assert codes[EXIT_CODES["log_unusable"]] > 0
    assert codes[0] > 0


# --- exports written by an attacker ------------------------------------------------------------


def nest(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


def mutate(payload: Any, draw: random.Random) -> Any:
    """Return a changed payload: JSON, and rarely anything but an object."""
    changed = mutate_value(payload, draw)
    try:
        json.dumps(changed, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return payload
    return changed if isinstance(changed, dict) or draw.random() < 0.05 else payload


def write_line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def relink(records: list[Any], draw: random.Random) -> bytes:
    """Mutate payloads and types, then recompute all hashes so that the chain is intact."""
    types = sorted({record["type"] for record in records})
    heads: dict[str, tuple[int, str]] = {}
    out = []
    for record in records:
        if draw.random() < 0.02:
            record["payload"]["x"] = nest(draw.choice([40, 240, 400]))
        elif draw.random() < 0.15:
            record["payload"] = mutate(record["payload"], draw)
        if draw.random() < 0.03:
            record["type"] = draw.choice([*types, "x.y"])
        name = record["session"]
        first = (0, hashlib.sha256(f"dragoman.log/1 {name}".encode()).hexdigest())
        seq, record["previous"] = heads.get(name, first)
        record["seq"] = seq + 1
        del record["hash"]
        record["hash"] = hashlib.sha256(write_line(record)).hexdigest()
        heads[name] = seq + 1, record["hash"]
        out.append(write_line(record))
    return b"\n".join(out) + b"\n"


def read_everything(log: logs.EventLog, session: str) -> None:
    """Read a session with every function that reads logs."""
    count_totals(log, session)
    queries = Reader(log)
    queries.read_page(session)
    queries.read_record(session, 1)
    queries.read_exchange(session, "r1")
    queries.list_sessions()
    reduce_records(log.read(session))
    list(d.reprice(logs.read_uses(log, session)))
    compare_runs(read_steps(log, session), read_steps(log, session))


async def replay(log: logs.EventLog, session: str) -> None:
    provider = d.ReplayProvider(log, session)
    # Offer every recorded tool, so that every recorded call can be replayed.
    started = provider._started  # noqa: SLF001
    names = started.tools if started is not None else ()
    tools = [d.Tool(name, "", parameters={"type": "object"}) for name in names]
    for call in list(provider._recorded):  # noqa: SLF001 - every recorded call is replayed, whichever it is
        await provider.complete(call.complete, tools)


@pytest.mark.exhaustive
def test_forged_log_exports_raise_only_log_errors(
    lines: list[Any], tmp_path: Path, count: Count
) -> None:
    draw = random.Random(4)
    seen = Counter[str]()
    path = tmp_path / "x.jsonl"
    text = json.dumps(lines)
    exports = 4000 if EXHAUSTIVE else 16
    for _ in range(exports):
        path.write_bytes(relink(json.loads(text), draw))
        try:
            with logs.open_log(path, readonly=True) as log:
                seen["whole" if log.verify().ok else "broken"] += 1
                for entry in log.sessions():
                    try:
                        read_everything(log, entry.session)
                        seen["read"] += 1
                        asyncio.run(replay(log, entry.session))
                    except (logs.LogError, d.ProviderError, ReplayMismatch) as error:
                        seen[type(error).__name__] += 1
        except logs.LogError as error:
            seen[type(error).__name__] += 1
    count("hostile exports read", exports)
    assert seen["whole"] > 3
    assert seen["read"] > 3
    assert seen["broken"] > 0, seen


@pytest.mark.parametrize("payload", [b"5", b'"x"', b"[]", b"null", b'{"a":\n1}'])
def test_log_verification_finds_a_payload_that_is_not_an_object(
    payload: bytes, lines: list[Any], tmp_path: Path
) -> None:
    record = {
        **lines[0],
        "payload": 0,
        "previous": hashlib.sha256(b"dragoman.log/1 all").hexdigest(),
        "seq": 1,
    }
    del record["hash"]
    body = write_line(record).replace(b'"payload":0', b'"payload":' + payload)
    line = body.replace(
        b',"id":', b',"hash":"' + hashlib.sha256(body).hexdigest().encode() + b'","id":', 1
    )
    path = tmp_path / "x.jsonl"
    path.write_bytes(line.replace(b"\n", b"") + b"\n")
    with logs.open_log(path, readonly=True) as log:
        report = log.verify()
        assert not report.ok
        # The payload with a line break is an object: only its hash is wrong.
        if b"\n" in payload:
            assert report.first is not None
            return
        assert report.first is None
        assert report.records == 1
        [unreadable] = report.unreadable
        assert "not a JSON object" in unreadable.detail
        [found] = log.read(lines[0]["session"])
        assert found.payload == found.data == {"unreadable": unreadable.detail}
        with pytest.raises(logs.LogCorruptError, match="not a JSON object"):
            assert found.line
