"""Measure the CPU time of single parts of a call, without a socket, and the CPU time that msgspec
needs for the same bytes.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dragoman import Assistant, Request, User, fold
from dragoman.events import Assembler
from dragoman.log import SqliteLog
from dragoman.validate import Expectation
from dragoman.wire import CODECS

from .floors import AnthropicBody, Body, Chunk
from .log import append
from .ours import WEATHER
from .server import anthropic_body, body, stream_frames

ROUNDS = 5


def cpu(work: Callable[[], Any], seconds: float = 0.1) -> float:
    """Return the CPU seconds of one call of a function, as the median of several rounds."""
    began = time.process_time()
    work()
    times = max(1, int(seconds / max(time.process_time() - began, 1e-7)))
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            work()
        taken.append((time.process_time() - began) / times)
    return sorted(taken)[ROUNDS // 2]


def wire_parts(
    wire: str, whole: Callable[[bool], bytes], shape: type
) -> dict[str, tuple[float, float | None]]:
    codec = CODECS[wire]("bench-1", "http://127.0.0.1:1/v1")  # type: ignore[call-arg]
    request = Request((User("Hi"),), tools=(WEATHER,), model="bench-1")
    if wire == "anthropic":
        request = msgspec.structs.replace(
            request, config=msgspec.structs.replace(request.config, max_tokens=1000)
        )
    plain = {
        "model": "bench-1",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [WEATHER],
    }
    reply = whole(True)
    decoder = msgspec.json.Decoder(shape)

    def decode() -> Any:
        reading = codec.decoder(request, Assembler(expected=Expectation(request)))
        return [*reading.feed(reply), *reading.end()]

    events = decode()
    return {
        f"{wire}: encode a request with a tool": (
            cpu(lambda: codec.encode(request)),
            cpu(lambda: msgspec.json.encode(plain)),
        ),
        f"{wire}: decode a reply with a call": (cpu(decode), cpu(lambda: decoder.decode(reply))),
        f"{wire}: fold its events": (cpu(lambda: fold(events)), None),
    }


def stream_parts() -> dict[str, tuple[float, float | None]]:
    """Measure the CPU time of decoding one chunk of a stream, of encoding one message of a long
    history, and of checking one tool call.
    """
    codec = CODECS["openai"]("bench-1", "http://127.0.0.1:1/v1")  # type: ignore[call-arg]
    frames = b"".join(stream_frames())
    chunks = msgspec.json.Decoder(Chunk)
    request = Request((User("Hi"),), model="bench-1", stream=True)
    long = Request(
        tuple([Assistant("x" * 500) if at % 2 else User("x" * 500) for at in range(1001)]),
        model="b",
    )
    plain = [{"role": "user", "content": "x" * 500} for _ in range(1001)]

    def decode() -> None:
        codec.decoder(request, Assembler()).feed(frames)

    def decode_by_hand() -> None:
        for line in frames.split(b"\n"):
            if line.startswith(b"data: {"):
                chunks.decode(line[6:])

    def encode_anew() -> None:
        CODECS["openai"]("bench-1", "http://127.0.0.1:1/v1").encode(long)  # type: ignore[call-arg]

    parts = {
        "openai: decode a chunk": (cpu(decode) / 500, cpu(decode_by_hand) / 500),
        "openai: encode a message of a history": (
            cpu(encode_anew) / 1001,
            cpu(lambda: msgspec.json.encode(plain)) / 1001,
        ),
        "openai: encode it again": (cpu(lambda: codec.encode(long)) / 1001, None),
    }
    expectation = Expectation(Request((User("Hi"),), tools=(WEATHER,)))
    arguments = {"city": "Oslo", "days": 3}
    parts["validate a call's arguments"] = (
        cpu(lambda: expectation.tool_problem("weather", arguments)),
        None,
    )
    return parts


def log_append(events: int = 5000) -> float:
    with tempfile.TemporaryDirectory() as folder, SqliteLog(Path(folder) / "log.db") as log:
        began = time.process_time()
        asyncio.run(append(log, 32, events, 10))
        return (time.process_time() - began) / events


def measure() -> dict[str, dict[str, float | None]]:
    parts = {
        **wire_parts("openai", body, Body),
        **wire_parts("anthropic", anthropic_body, AnthropicBody),
        **stream_parts(),
        "append an event to the log": (log_append(), None),
    }
    return {
        name: {"us": ours * 1e6, "msgspec_us": floor * 1e6 if floor is not None else None}
        for name, (ours, floor) in parts.items()
    }


if __name__ == "__main__":
    for name, row in measure().items():
        print(
            f"{name:<44}{row['us']:>9.2f}"
            + (f"{row['msgspec_us']:>9.2f}" if row["msgspec_us"] else "")
        )
