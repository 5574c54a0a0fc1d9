"""Requests and replies with too many or too deeply nested values are rejected before they cost
time or memory.
"""

import contextlib
import json
import os
import threading
from typing import Any

import pytest

import dragoman
from dragoman import ProviderError, Tool
from dragoman.gateway import exchange
from dragoman.gateway.access import Bounds
from dragoman.gateway.app import create_app
from dragoman.sim import ScriptedProvider
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS

from .. import cpu
from ..gateway.upstream import BODIES
from .gateway_app import PATHS, post

APP = create_app({"fast": ScriptedProvider("Hello.")})
HI: dict[str, Any] = {"role": "user", "content": "hi"}


def bodies(**fields: Any) -> dict[str, bytes]:
    """Return one request for each wire; all requests have the same invalid field."""
    made = {wire: {**BODIES[wire], "model": "fast"} for wire in PATHS}
    del made["gemini"]["model"]
    return {wire: json.dumps({**body, **fields}).encode() for wire, body in made.items()}


def nested(levels: int, start: str = "[", end: str = "]") -> str:
    return start * levels + end * levels


@pytest.mark.parametrize("wire", PATHS)
@pytest.mark.parametrize("levels", [129, 300, 900, 20_000])
async def test_deeply_nested_body_is_rejected(wire: str, levels: int) -> None:
    body = bodies(x="@")[wire].replace(b'"@"', nested(levels).encode())
    answer = await post(APP, wire, body)
    assert answer.status == 400
    assert b"nested" in answer.body


SMALL = Bounds(body_bytes=10_000_000, containers=2_000, messages=10, blocks=20, tools=5)
CROWDED = {
    "messages": {"messages": [HI] * 11},
    "blocks": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 21}]},
    "tools": {"tools": [{"type": "function", "function": {"name": f"t{n}"}} for n in range(6)]},
    "objects and lists": {"metadata": [{}] * 2_001},
}


@pytest.mark.parametrize("name", CROWDED)
async def test_lengths_of_lists_in_a_request_are_limited(name: str) -> None:
    app = create_app({"fast": ScriptedProvider("Hello.")}, bounds=SMALL)
    answer = await post(app, "openai", bodies(**CROWDED[name])["openai"])
    assert answer.status == 413
    assert name.encode() in answer.body
    assert (await post(app, "openai", bodies()["openai"])).status == 200


@pytest.mark.parametrize("url", ["https://x/a.png", "file:///etc/passwd", "http://10.0.0.1/a.png"])
async def test_media_urls_are_rejected_when_the_operator_forbids_them(url: str) -> None:
    closed = create_app({"fast": ScriptedProvider("Hello.")}, bounds=Bounds(media_urls=False))
    image, inline = (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": each}}]}]
        for each in (url, "data:image/png;base64,AAAA")
    )
    audio = [{"role": "user", "parts": [{"fileData": {"mimeType": "audio/mp3", "fileUri": url}}]}]
    assert (await post(APP, "openai", bodies(messages=image)["openai"])).status == 200
    refused = await post(closed, "openai", bodies(messages=image)["openai"])
    assert refused.status == 400
    assert b"messages[0].content[0]: this gateway accepts media inline" in refused.body
    assert (await post(closed, "openai", bodies(messages=inline)["openai"])).status == 200
    assert (await post(closed, "gemini", bodies(contents=audio)["gemini"])).status == 400


async def test_large_request_does_not_block_the_event_loop() -> None:
    text = "word, Word! 12 " * 60_000
    body = json.dumps(
        {"model": "fast", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
    ).encode()
    with cpu.spending() as held:
        answer = await post(APP, "anthropic", body, "/count_tokens")
    assert answer.status == 200
    assert json.loads(answer.body)["input_tokens"] > 100_000
    assert held.units < cpu.QUARTER_SECOND, "CPU time of the thread that runs the loop"


@pytest.mark.parametrize("size", [1_000, 400_000])
async def test_large_request_is_read_in_a_thread(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def watch(name: str) -> None:
        original = getattr(exchange, name)

        def run(*args: Any, **settings: Any) -> Any:
            threads.append(threading.current_thread())
            return original(*args, **settings)

        monkeypatch.setattr(exchange, name, run)

    for name in ("parse_body", "decode_request", "translate_for", "check_translated"):
        watch(name)
    answer = await post(
        APP, "openai", bodies(messages=[HI, {**HI, "content": "a" * size}])["openai"]
    )
    assert answer.status == 200
    assert len(threads) == 4
    assert {each is threading.current_thread() for each in threads} == {size < 256 * 1024}


# --- replies with many blocks ------------------------------------------------------------------

WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
ONLY_WHOLE = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not WHOLE, reason="more sizes and statuses: make test-exhaustive"),
]
MANY = b"{}," * 600_000 + b"{}"
FEW = b"{}," * 30_000 + b"{}"
SHAPES = {
    "field": b'{"x":[%s]}',
    "error": b'{"error":[%s]}',
    "choices": b'{"choices":[%s]}',
    "content": b'{"type":"message","role":"assistant","content":[%s]}',
    "output": b'{"object":"response","status":"completed","output":[%s]}',
    "parts": b'{"candidates":[{"content":{"parts":[%s]}}]}',
    "calls": b'{"choices":[{"message":{"tool_calls":[%s]},"finish_reason":"stop"}]}',
    "event": b'data: {"choices":[%s]}\n\n',
    "line": b'{"message":{"content":"a","tool_calls":[%s]},"done":true}\n',
}


# In a short run, each wire receives a third of the shapes.
PLACES = [
    pytest.param(wire, shape, id=f"{wire}-{shape}", marks=ONLY_WHOLE if (row + at) % 3 else [])
    for row, wire in enumerate(sorted(CODECS))
    for at, shape in enumerate(SHAPES)
]


@pytest.mark.parametrize(
    ("status", "items"),
    [
        pytest.param(200, MANY, id="200-many"),
        pytest.param(200, FEW, id="200-few", marks=ONLY_WHOLE),
        pytest.param(400, MANY, id="400-many", marks=ONLY_WHOLE),
        pytest.param(400, FEW, id="400-few", marks=ONLY_WHOLE),
    ],
)
@pytest.mark.parametrize(("wire", "shape"), PLACES)
async def test_reply_with_many_blocks_is_processed_quickly(
    wire: str, shape: str, items: bytes, status: int
) -> None:
    reply = SHAPES[shape].replace(b"%s", items)
    transport = FixtureTransport(*[(status, {}, [reply])] * 6)
    provider = dragoman.connect("m", wire=wire, base_url="http://127.0.0.1:9", transport=transport)
    units: list[float] = []
    # Take the best of three measurements.
    while len(units) < 3 and min(units, default=cpu.QUARTER_SECOND) >= cpu.QUARTER_SECOND:
        with cpu.spending() as spent, contextlib.suppress(ProviderError):
            await provider.complete(
                "Hi", [Tool("t", "", parameters={"type": "object"})], {"max_tokens": 5}
            )
        units.append(spent.units)
    assert min(units) < cpu.QUARTER_SECOND
