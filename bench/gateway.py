"""Measure the gateway: CPU per request and chunk, compared with a raw byte relay and LiteLLM's
proxy; memory per stream.

    python -m bench.gateway [--rounds N] [--streams N] [--litellm PYTHON] [--out FILE]

Each server is a separate process in front of the same upstream; its CPU time is measured,
including kernel time. The gateway runs with the HTTP protocol and the settings of ``dragoman
serve``, the relay with uvicorn's own protocol. Every round measures all servers in a random order; a ratio is the median
over the rounds of the ratios within a round. ``--litellm`` is the interpreter of an environment
that has ``litellm[proxy]``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil

from . import server
from .server import CHUNKS, HEAD, _framed, stream_frames

ROOT = Path(__file__).parents[1]
# a key that is valid only for the servers of this benchmark
KEY = "sk-bench-0123456789abcdef0123456789abcdef"
ASKED = {"model": "text", "messages": [{"role": "user", "content": "Hi"}]}
# For each case, the reply of the upstream server and the number of requests at a time.
CASES = {
    "complete": ("text", 4),
    "complete, 32 at a time": ("text", 32),
    "stream, coalesced": ("burst", 4),
    "stream, a chunk at a time": ("paced", 4),
}


# --- the measured servers, each in a child process ---------------------------------------------


def serve_relay(base: str, port: int) -> None:
    """Run the baseline: a relay that copies bytes without parsing them."""
    import aiohttp
    import uvicorn

    session: aiohttp.ClientSession | None = None

    async def relay(scope: Any, receive: Any, send: Any) -> None:
        nonlocal session
        if scope["type"] != "http":
            return
        session = session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        kind = json.loads(body)["model"] if body else "text"
        async with session.post(f"{base}/{kind}/v1/chat/completions", data=body) as reply:
            kept = [(b"content-type", reply.headers["content-type"].encode())]
            await send({"type": "http.response.start", "status": reply.status, "headers": kept})
            while chunk := await reply.content.readany():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    uvicorn.run(relay, port=port, log_level="error", access_log=False, lifespan="off", ws="none")


def serve_ours(base: str, port: int) -> None:
    import uvicorn

    from dragoman import connect
    from dragoman.gateway.app import create_app
    from dragoman.gateway.http_protocol import BoundedHttpProtocol
    from dragoman.gateway.keys import Key, KeyRing, hash_key
    from dragoman.gateway.supervisor import tune_collector

    kinds = ("text", "burst", "paced", "held")
    models = {
        kind: connect("bench-1", base_url=f"{base}/{kind}/v1", keep_raw=False) for kind in kinds
    }
    app = create_app(models, keys=KeyRing([Key("bench", hash_key(KEY))]))
    tune_collector()
    uvicorn.run(
        app,
        port=port,
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        http=BoundedHttpProtocol,
        backlog=4096,
    )


def start_proxy(python: str, base: str, port: int) -> subprocess.Popen[bytes]:
    """Start LiteLLM's proxy with one worker, like the other servers, and without a database,
    callbacks and logging.
    """
    entries = [
        {
            "model_name": kind,
            "litellm_params": {
                "model": "openai/bench-1",
                "api_base": f"{base}/{kind}/v1",
                "api_key": "x",
            },
        }
        for kind in ("text", "burst", "paced")
    ]
    settings = {
        "model_list": entries,
        "litellm_settings": {"telemetry": False, "set_verbose": False},
    }
    file = Path(tempfile.mkdtemp()) / "config.yaml"
    file.write_text(json.dumps(settings))
    command = [
        str(Path(python).parent / "litellm"),
        "--config",
        str(file),
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
    ]
    quiet = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": KEY,
    }
    # The upstream repeats one token. LiteLLM would treat this as a failure, so raise its limit.
    quiet["REPEATED_STREAMING_CHUNK_LIMIT"] = "1000000"
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**environment(), **quiet},
    )


def environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def serving(
    name: str, base: str, python: str | None = None
) -> Iterator[tuple[str, psutil.Process]]:
    def start(port: int) -> subprocess.Popen[bytes]:
        if python is not None:
            return start_proxy(python, base, port)
        command = [sys.executable, "-m", "bench.gateway", "--child", name, base, str(port)]
        return subprocess.Popen(command, cwd=ROOT, env=environment())

    with started(start) as served:
        yield served


@contextlib.contextmanager
def started(
    start: Callable[[int], subprocess.Popen[bytes]],
) -> Iterator[tuple[str, psutil.Process]]:
    """Start a server at a free port; stop it at the end."""
    port = _free_port()
    child = start(port)
    try:
        _wait_for(port, child)
        yield f"http://127.0.0.1:{port}", psutil.Process(child.pid)
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait_for(port: int, child: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 180
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if child.poll() is not None:
            raise RuntimeError(f"the server ended with {child.returncode}")
        time.sleep(0.1)
    raise RuntimeError("the server did not start")


# --- sending load and measuring it -------------------------------------------------------------


async def ask(url: str, kind: str, path: str = "/v1/chat/completions") -> bytes:
    """Send one request on a new connection, by default to the path of Chat Completions; return the
    complete reply.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps(
        {**ASKED, "model": kind, **({"stream": True} if kind != "text" else {})}
    ).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += (
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + body)
    # The upstream ignores "connection: close", so its reply is read up to the end of the body.
    said = await reader.read() if path.startswith("/v1") else await reader.readuntil(b"fp_0")
    writer.close()
    assert said.startswith(b"HTTP/1.1 200"), said[:300]
    assert kind == "text" or b"[DONE]" in said, (url, kind, len(said), said[-300:])
    return said


def cpu_of(process: psutil.Process) -> float:
    family = [process, *process.children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in family)


async def measure(
    url: str, process: psutil.Process, case: str, seconds: float
) -> tuple[float, float]:
    """Return the CPU seconds and wall-clock seconds of one request, or of one chunk if the case
    streams.
    """
    kind, at_a_time = CASES[case]
    await ask(url, kind)
    began = time.perf_counter()
    used = cpu_of(process)
    count = 0
    while time.perf_counter() - began < seconds:
        await asyncio.gather(*[ask(url, kind) for _ in range(at_a_time)])
        count += at_a_time
    cpu = cpu_of(process) - used
    wall = time.perf_counter() - began
    units = count * (1 if kind == "text" else CHUNKS)
    return cpu / units, wall / units


async def wait_for_replies(url: str, path: str, count: int = 200) -> float:
    """Send requests one after the other; return the median time to a reply, in seconds."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await ask(url, "text", path)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def compare(rounds: int, seconds: float, litellm: str | None) -> dict[str, Any]:
    names = ["relay", "gateway", *(["litellm"] if litellm else [])]
    found: dict[str, dict[str, list[float]]] = {
        case: {name: [] for name in names} for case in CASES
    }
    with server.running() as base, contextlib.ExitStack() as stack:
        started = {
            name: stack.enter_context(serving(name, base, litellm if name == "litellm" else None))
            for name in names
        }
        for _ in range(rounds):
            for case in CASES:
                for name in random.sample(names, len(names)):
                    cost, _ = asyncio.run(measure(*started[name], case, seconds))
                    found[case][name].append(cost)
        direct = asyncio.run(wait_for_replies(base, "/text/v1/chat/completions"))
        through = {
            name: asyncio.run(wait_for_replies(started[name][0], "/v1/chat/completions"))
            for name in names
        }
    added = {f"{name}, ms": round((wait - direct) * 1000, 2) for name, wait in through.items()}
    waits = {"waiting, beyond a direct call": {"direct, ms": round(direct * 1000, 2), **added}}
    return {case: _summary(costs) for case, costs in found.items()} | waits


def _summary(costs: dict[str, list[float]]) -> dict[str, Any]:
    told: dict[str, Any] = {
        f"{name}, µs": round(statistics.median(each) * 1e6, 1) for name, each in costs.items()
    }
    for name, each in costs.items():
        if name != "gateway":
            ratios = [ours / theirs for ours, theirs in zip(costs["gateway"], each, strict=True)]
            told[f"gateway / {name}"] = round(statistics.median(ratios), 4)
    return told


# --- holding many streams open at once ---------------------------------------------------------


class _Holding(asyncio.Protocol):
    """Serve an upstream that sends two chunks and then waits for a signal to continue."""

    held: ClassVar[set[_Holding]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /release"):
            for each in list(self.held):
                each.transport.write(b"".join(_framed(stream_frames(2))[2:]))
                each.transport.close()
            self.held.clear()
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        elif b"\r\n\r\n" in data and self not in self.held:
            self.held.add(self)
            self.transport.write(HEAD + b"".join(_framed(stream_frames(2))[:2]))

    def connection_lost(self, error: Exception | None) -> None:
        self.held.discard(self)


async def hold(port: int) -> None:
    listener = await asyncio.get_running_loop().create_server(
        _Holding, "127.0.0.1", port, backlog=4096
    )
    await listener.serve_forever()


async def hold_directly(base: str, streams: int) -> None:
    """Hold as many streams open with the client library alone as the benchmark holds through the
    gateway; print the memory per stream.
    """
    from dragoman import connect

    model = connect("bench-1", base_url=f"{base}/held/v1", keep_raw=False)
    process = psutil.Process()
    first = model.stream("Hi")
    await anext(first)
    before = process.memory_info().rss
    held = [model.stream("Hi") for _ in range(streams)]
    for at in range(0, streams, 100):
        await asyncio.gather(*[anext(stream) for stream in held[at : at + 100]])
    print(json.dumps((process.memory_info().rss - before) / streams / 1024), flush=True)
    os._exit(0)


async def open_stream(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps({**ASKED, "model": "held", "stream": True}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: "
        "application/json\r\n"
    )
    reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
    writer.write(
        f"{head}authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )
    await reader.readuntil(b"word")
    return reader, writer


async def crowd(url: str, upstream: str, process: psutil.Process, streams: int) -> dict[str, Any]:
    opened = [await open_stream(url)]
    before = process.memory_info().rss
    for _ in range(0, streams, 100):
        opened += await asyncio.gather(*[open_stream(url) for _ in range(100)])
    held = (process.memory_info().rss - before) / (len(opened) - 1) / 1024
    host, _, port = upstream.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    began = time.perf_counter()
    writer.write(b"GET /release HTTP/1.1\r\n\r\n")
    ends = await asyncio.gather(
        *[reader.readuntil(b"0\r\n\r\n") for reader, _ in opened], return_exceptions=True
    )
    whole = sum(isinstance(end, bytes) and b"[DONE]" in end for end in ends)
    for _, each in opened:
        each.close()
    return {
        "streams at once": len(opened) - 1,
        "failed": len(opened) - whole,
        "KiB a stream, gateway": round(held, 1),
        "seconds to end them all": round(time.perf_counter() - began, 2),
    }


def hold_many(streams: int) -> dict[str, Any]:
    port = _free_port()
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.gateway", "--child", "hold", "", str(port)], cwd=ROOT
    )
    upstream = f"http://127.0.0.1:{port}"
    try:
        _wait_for(port, child)
        command = [
            sys.executable,
            "-m",
            "bench.gateway",
            "--child",
            "direct",
            upstream,
            str(streams),
        ]
        direct = json.loads(
            subprocess.run(
                command, cwd=ROOT, env=environment(), capture_output=True, check=True
            ).stdout
        )
        with serving("gateway", upstream) as (url, process):
            told = asyncio.run(crowd(url, upstream, process, streams))
    finally:
        child.kill()
        child.wait()
    beyond = round(told["KiB a stream, gateway"] - direct, 1)
    return {
        **told,
        "KiB a stream, client library alone": round(direct, 1),
        "KiB a stream beyond it": beyond,
    }


# --- the command line of the benchmark ---------------------------------------------------------


def run_child(name: str, base: str, number: int) -> None:
    if name == "relay":
        serve_relay(base, number)
    elif name == "gateway":
        serve_ours(base, number)
    elif name == "hold":
        asyncio.run(hold(number))
    else:
        asyncio.run(hold_directly(base, number))


def main() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--litellm", metavar="PYTHON")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    told: dict[str, Any] = {}
    if given.rounds:
        told |= compare(given.rounds, given.seconds, given.litellm)
    if given.streams:
        told["many streams"] = hold_many(given.streams)
    text = json.dumps(told, indent=2, ensure_ascii=False)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
