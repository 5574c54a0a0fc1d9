"""Server-sent events: the decoder against the format tests of WPT and another parser."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.wire.sse import BARE, SseDecoder

from .board import Board
from .install import HOME, install_node, node, node_version

TITLE = "Event streams"
PACKAGE = "eventsource-parser"
COUNT = 20_000
CONTROLLED = 500  # streams of each negative control
HERE = Path(__file__).parent
_LONG = "x" * 2048
# The streams of WPT's eventsource/format-*.any.js and the data of their events (2026-11). Its tests
# of reconnection and of the field id are left out, since replies of models have neither.
WPT: dict[str, tuple[str, list[str]]] = {
    "bom": ("\ufeffdata:1\n\n\ufeffdata:2\n\ndata:3\n\n", ["1", "3"]),
    "bom-2": ("\ufeff\ufeffdata:1\n\ndata:2\n\ndata:3\n\n", ["2", "3"]),
    "comments": (
        f"data:1\r:\0\n:\r\ndata:2\n:{_LONG}\rdata:3\n:data:fail\r:{_LONG}\ndata:4\n\n",
        ["1\n2\n3\n4"],
    ),
    "data-before-final-empty-line": ("retry:1000\ndata:test1\n\nid:test\ndata:test2", ["test1"]),
    "field-data": ("data:\n\ndata\ndata\n\ndata:test\n\n", ["", "\n", "test"]),
    "field-event-empty": ("event: \ndata:data\n\n", ["data"]),
    "field-parsing": (
        "data:\0\ndata:  2\rData:1\ndata\0:2\ndata:1\r\0data:4\nda-ta:3\rdata_5\ndata:3\rdata:\r\n"
        " data:32\ndata:4\n\n",
        ["\0\n 2\n1\n3\n\n4"],
    ),
    "field-retry": ("retry:3000\ndata:x\n\n", ["x"]),
    "field-retry-bogus": ("retry:3000\nretry:1000x\ndata:x\n\n", ["x"]),
    "field-retry-empty": ("retry\ndata:test\n\n", ["test"]),
    "field-unknown": (
        "data:test\n data\ndata\nfoobar:xxx\njustsomething\n:thisisacommentyay\n\n",
        ["test\n"],
    ),
    "leading-space": ("data:\ttest\rdata: \ndata:test\n\n", ["\ttest\n\ntest"]),
    "newlines": ("data:test\r\ndata\ndata:test\r\n\r\n", ["test\n\ntest"]),
    "null-character": ("data:\0\n\n\n\n", ["\0"]),
    "utf-8": ("data:ok\u2026\n\n", ["ok\u2026"]),
}
_PIECES = [
    "data", "data:", "data: ", "event:", "event: x", "id: 1", "id:\0", "retry: 5", "retry:5x", ":",
    ": c", "foo", "foo:bar", " data: x", "data : y", "Data: z", "\ufeff", "\u2028", "\x85", "\x0b",
    "\x0c", "\0", "é", "😀", "[DONE]", '{"a":1}', '{"a":"b\\n"}', "x" * 50, " ", "\t", "event",
    "event:\n", "id",
]  # fmt: skip
_ENDS = ["\n", "\n", "\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r", "", "\n\r\n"]

Events = list[list[str]]


def read_events(data: bytes, rng: random.Random | None = None) -> Events:
    """Return the name and the data of each event; with ``rng``, feed the bytes in small pieces."""
    decoder = SseDecoder()
    frames = []
    at = 0
    while at < len(data):
        size = rng.randint(1, 7) if rng else len(data)
        frames += decoder.feed(data[at : at + size])
        at += size
    return [
        [frame.event.decode("utf-8", "replace"), frame.data.decode("utf-8", "replace")]
        for frame in frames
        if frame.event != BARE  # lines without a field name, which the standard ignores
    ]


def make_streams(count: int, seed: int = 7) -> list[str]:
    """Return random streams of fields, comments, other lines and all ends of lines."""
    rng = random.Random(seed)
    return [
        "".join([rng.choice(_PIECES) + rng.choice(_ENDS) for _ in range(rng.randint(1, 14))])
        + "\n\n"
        for _ in range(count)
    ]


def ask_other(streams: Sequence[str]) -> list[Events]:
    """Return the events that the package of npm reads from each stream."""
    home = HOME / "event-streams"
    home.mkdir(parents=True, exist_ok=True)
    given = home / "streams.json"
    found = home / "events.json"
    given.write_text(json.dumps(streams))
    command = [
        node(),
        str(HERE / "event_streams.mjs"),
        str(install_node()),
        str(given),
        str(found),
    ]
    subprocess.run(command, check=True)
    events: list[Events] = json.loads(found.read_text())
    return events


# Damage that the comparison must notice.
CONTROLS: dict[str, Callable[[Events], Events]] = {
    "data of an event cut": lambda events: [[name, data[:-1] + "|"] for name, data in events],
    "last event removed": lambda events: events[:-1],
    "name of an event changed": lambda events: [[f"{name}x", data] for name, data in events],
}


def run() -> Board:
    """Read every stream."""
    install_node()
    board = Board(
        "event_streams",
        TITLE,
        "The decoder of server-sent events against the format tests of the Web Platform Tests, complete and cut at random,\n"
        f"and against another parser: {COUNT:,} random streams of fields, comments, unknown lines and all ends of lines, cut\n"
        "at random, must give the same events. A row of ten thousands is one cell for each thousand streams. Reconnection\n"
        "and the field `id` are left out: replies of models have neither.",
        versions={PACKAGE: node_version(PACKAGE)},
    )
    rng = random.Random(3)
    for name, (text, wanted) in WPT.items():
        for column, cuts in (("complete", None), ("cut", rng)):
            got = [data for _, data in read_events(text.encode(), cuts)]
            board.cells[f"format-{name}", column] = "" if got == wanted else f"read {got}"[:200]
    streams = make_streams(COUNT)
    others = ask_other(streams)
    for start in range(0, COUNT, 1000):
        pairs = zip(streams[start : start + 1000], others[start : start + 1000], strict=True)
        wrong = [text for text, wanted in pairs if read_events(text.encode(), rng) != wanted]
        board.cells[f"streams {start:,} to {start + 999:,}", "the same events"] = (
            f"{len(wrong)} differ: {wrong[0]!r}"[:200] if wrong else ""
        )
    pairs = [
        (read_events(text.encode()), wanted)
        for text, wanted in zip(streams[:CONTROLLED], others[:CONTROLLED], strict=True)
        if wanted
    ]
    for name, damage in CONTROLS.items():
        noticed = sum(damage(events) != wanted for events, wanted in pairs)
        board.controls[name] = (noticed, len(pairs))
    return board
