"""AWS: event streams and signatures against botocore's vectors and its own signer."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from dragoman.provider.auth import AccessKeys, sign_v4
from dragoman.wire.codec import HttpRequest
from dragoman.wire.eventstream import EventStreamDecoder, EventStreamError

from .board import Board
from .install import PYTHON_PACKAGES, install_python, install_source

TITLE = "AWS"
PACKAGE = "botocore"
HERE = Path(__file__).parent
PIECES = {"byte by byte": 1, "in threes": 3, "complete": 1 << 30}
SIGNED = "signatures"
NOW = 1440938160  # 30 August 2015, 12:36, the time of AWS's suite
_KEYS = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
_PATHS = "a path with `..`, `.` or empty parts, which no endpoint has, is signed as it is sent"
EXPECTED = {
    ("normalize-path/get-relative*", SIGNED): _PATHS,
    ("normalize-path/get-slash", SIGNED): _PATHS,
    ("normalize-path/get-slash-*", SIGNED): _PATHS,
    ("normalize-path/get-slashes", SIGNED): _PATHS,
    ("get-vanilla-utf8-query", SIGNED): "a URL has no letters outside ASCII when it is signed",
}


def decode(data: bytes, size: int) -> list[bytes]:
    """Return the frames of a stream that arrives in pieces of this size."""
    decoder = EventStreamDecoder()
    frames = []
    for at in range(0, len(data), size):
        frames += decoder.feed(data[at : at + size])
    return [frame.data for frame in [*frames, *decoder.end()]]


def try_stream(vector: dict[str, Any], data: bytes, size: int) -> str:
    """Return an empty text if a message is read, or refused, as by botocore."""
    try:
        frames = decode(data, size)
    except EventStreamError as error:
        return "" if "error" in vector else str(error)
    if "error" in vector:
        # a message whose stated length never arrives is no message
        return "" if not frames else f"accepted, not {vector['error']}"
    payload = base64.b64decode(vector["payload"])
    wanted = b":" + (payload or b"{}") + b"}"
    is_error = ":error-code" in vector["headers"]  # its text is in the headers
    if len(frames) == 1 and (is_error or frames[0].endswith(wanted)):
        return ""
    return f"read as {frames!r}"[:200]


def sign(request: dict[str, Any], body: str) -> str:
    """Return the signature of a request with this body."""
    made = HttpRequest(request["method"], request["url"], request["headers"], body.encode())
    keys = AccessKeys(*_KEYS, request["token"])
    return find_signature(sign_v4(made, keys, "us-east-1", "service", NOW)["authorization"])


def find_signature(header: str) -> str:
    """Return the signature in an Authorization header."""
    found = re.search(r"Signature=([0-9a-f]{64})$", header)
    assert found is not None, header
    return found[1]


def run() -> Board:
    """Compare each message and each signature."""
    python = install_python(PACKAGE)
    source = install_source(PACKAGE)
    printed = subprocess.run(
        [python, str(HERE / "aws_vectors.py"), str(source), str(NOW)],
        check=True,
        capture_output=True,
    ).stdout
    vectors = json.loads(printed)
    board = Board(
        "aws",
        TITLE,
        "The binary event streams of botocore's unit tests, in pieces of one byte, of three, and complete; and the requests\n"
        "of AWS's suite of signatures (version 4), signed by Dragoman and by botocore, with the headers that Dragoman signs.",
        versions={PACKAGE: PYTHON_PACKAGES[PACKAGE]},
        expected=EXPECTED,
    )
    flipped = []
    for at, vector in enumerate(vectors["streams"]):
        data = base64.b64decode(vector["data"])
        kind = vector.get("error", "message")
        for column, size in PIECES.items():
            board.cells[f"{kind} {at + 1}", column] = try_stream(vector, data, size)
        if "error" not in vector:
            damaged = data[:-1] + bytes([data[-1] ^ 1])
            flipped.append(try_stream(vector, damaged, len(data)))
    board.controls["a bit of a message changed"] = (sum(map(bool, flipped)), len(flipped))
    moved = []
    for request in vectors["requests"]:
        wanted = find_signature(request["authorization"])
        got = sign(request, request["body"])
        board.cells[request["name"], SIGNED] = "" if got == wanted else "another signature"
        moved.append(sign(request, request["body"] + " ") != wanted)
    board.controls["a space added to the body"] = (sum(moved), len(moved))
    return board
