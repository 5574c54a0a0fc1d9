"""BFCL as a corpus: every function schema and every expected call through all seven wires.

A request is encoded by the client side of a wire and read by its server side; the expected calls
are written by the server side, as a body and as a stream, and read by the client side. What arrives
must equal what was sent, or the client must have reported the loss.
"""

from __future__ import annotations

import json
import re
import runpy
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

import dragoman as d
from dragoman.events import Assembler, Event
from dragoman.validate import Expectation
from dragoman.wire import CODECS, SERVER_CODECS, Asked

from .board import Board
from .install import PYTHON_PACKAGES, install_python

TITLE = "BFCL"
PACKAGE = "bfcl-eval"
WIRES = ("openai", "responses", "anthropic", "gemini", "ollama", "cohere", "bedrock")
# The names of tools that each vendor accepts, as its errors or its documentation describe them.
LEGAL = {
    "openai": r"[a-zA-Z0-9_-]{1,64}",
    "responses": r"[a-zA-Z0-9_-]{1,64}",
    "anthropic": r"[a-zA-Z0-9_-]{1,128}",
    "gemini": r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}",
    "ollama": r".+",
    "cohere": r"[a-zA-Z_][a-zA-Z0-9_]*",
    "bedrock": r"[a-zA-Z0-9_-]{1,64}",
}
KINDS = ("requests", "conversations", "bodies", "streams")


class Case(NamedTuple):
    """One case of the corpus: a question, the tools, and the expected calls."""

    name: str
    question: str
    tools: list[d.Tool]
    calls: list[d.ToolCall]

    @property
    def has_calls(self) -> bool:
        """Whether calls are expected, and of the tools that are offered."""
        offered = {tool.name for tool in self.tools}
        return bool(self.calls) and all(call.name in offered for call in self.calls)


def convert(schema: Any, types: dict[str, str]) -> Any:
    """Return a schema of the corpus as JSON Schema: its types have the names of Python and Java."""
    if not isinstance(schema, dict):
        return schema
    made = {}
    for name, value in schema.items():
        if name == "properties":
            made[name] = {key: convert(each, types) for key, each in value.items()}
        elif name == "type" and isinstance(value, str):
            made[name] = types.get(value, "string")
        elif name in ("items", "additionalProperties"):
            made[name] = convert(value, types)
        else:
            made[name] = value
    return made


def read_calls(expected: list[Any]) -> list[d.ToolCall]:
    """Return the expected calls, each with the first value that is accepted."""
    made = []
    for at, call in enumerate(expected):
        ((name, values),) = call.items()
        given = {key: found[0] for key, found in values.items() if found and found[0] != ""}
        made.append(d.ToolCall(f"call_{at}", name, given))
    return made


def read_cases(data: Path, types: dict[str, str]) -> dict[str, list[Case]]:
    """Return the cases with functions, by category."""
    found: dict[str, list[Case]] = {}
    for path in sorted(data.glob("BFCL_v4_*.json")):
        golden = data / "possible_answer" / path.name
        answers = {
            row["id"]: row["ground_truth"]
            for row in (_lines(golden) if golden.exists() else ())
            if all(isinstance(each, dict) for each in row["ground_truth"])
        }
        cases = [
            Case(
                row["id"],
                "\n".join([turn["content"] for turn in row["question"][0]]),
                [
                    d.Tool(
                        each["name"],
                        each.get("description", ""),
                        parameters=convert({**each["parameters"], "type": "dict"}, types),
                    )
                    for each in row["function"]
                ],
                read_calls(answers.get(row["id"], [])),
            )
            for row in _lines(path)
            if row.get("function") and row.get("question")
        ]
        if cases:
            found[path.stem.removeprefix("BFCL_v4_")] = cases
    return found


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text().split("\n"):
        if line.startswith("{") and line.endswith("}"):  # one file is a document without cases
            yield json.loads(line)


class Trip:
    """Send requests and replies through both sides of a wire."""

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.client = CODECS[wire].connect("m", "http://127.0.0.1:9", None, d.Capabilities())
        self.server = SERVER_CODECS[wire]

    def try_request(self, request: d.Request) -> str:
        """Return ``equal``, ``reported``, or how the request that arrives differs."""
        encoded = self.client.encode(request)
        path = unquote(urlsplit(encoded.http.url).path)
        arrived = self.server.decode(encoded.http.body, path).request
        names = self._names(request, arrived)
        if refused := [name for name in names if not re.fullmatch(LEGAL[self.wire], name)]:
            return f"the vendor refuses the names {refused}"[:300]
        sent = [(tool.name, tool.description, _text(tool.parameters)) for tool in request.tools]
        got = [
            (names.get(tool.name), tool.description, _text(tool.parameters))
            for tool in arrived.tools
        ]
        calls = [(call.name, _text(call.arguments)) for call in _calls(request)]
        read = [(names.get(call.name), _text(call.arguments)) for call in _calls(arrived)]
        if sent == got and calls == read and _said(request) == _said(arrived):
            return "equal"
        if any(note.loss for note in encoded.notes):
            return "reported"
        return f"sent {sent} {calls}, arrived {got} {read}"[:300]

    def try_reply(self, request: d.Request, calls: list[d.ToolCall]) -> str:
        """Return ``equal``, or how the calls that arrive differ."""
        encoded = self.client.encode(request)
        path = unquote(urlsplit(encoded.http.url).path)
        asked = self.server.decode(encoded.http.body, path)
        asked = Asked(request=replace(asked.request, stream=request.stream))
        names = {mine: sent for sent, mine in self._names(request, asked.request).items()}
        encoder = self.server.encoder(asked, created=1)
        pieces = [encoder.feed(event) for event in _speak(calls, names)]
        out = Assembler(expected=Expectation(request))
        decoder = self.client.decoder(request, out)
        events: list[Event] = []
        for piece in [*pieces, encoder.end()]:
            for at in range(0, len(piece), 61):
                events += decoder.feed(piece[at : at + 61])
        events += decoder.end()
        if decoder.error is not None:
            return f"{type(decoder.error).__name__}: {decoder.error}"[:300]
        got = [(each.name, _text(each.arguments)) for each in d.fold(events).message.tool_calls]
        sent = [(each.name, _text(each.arguments)) for each in calls]
        return "equal" if sent == got else f"sent {sent}, arrived {got}"[:300]

    def _names(self, request: d.Request, arrived: d.Request) -> dict[str, str]:
        pairs = zip(arrived.tools, request.tools, strict=True)
        return {theirs.name: mine.name for theirs, mine in pairs}


def _text(value: Any) -> str:
    return json.dumps(value)


def _calls(request: d.Request) -> list[d.ToolCall]:
    return [
        block
        for message in request.messages
        if isinstance(message, d.Assistant)
        for block in message.tool_calls
    ]


def _said(request: d.Request) -> list[str]:
    return [message.text for message in request.messages if isinstance(message, d.User)]


def _speak(calls: list[d.ToolCall], names: dict[str, str]) -> list[Event]:
    """Return the events of a reply that makes the calls, by the names that the server knows."""
    out = Assembler(model="m")
    out.start("m")
    for at, call in enumerate(calls):
        out.tool_start(at, call.id, names.get(call.name, call.name))
        text = _text(call.arguments)
        for start in range(0, len(text), 7):
            out.tool_input(at, text[start : start + 7])
        out.block_end(at)
    out.finish("tool_calls", None)
    return out.take()


def try_case(trip: Trip, case: Case) -> Iterator[tuple[str, str]]:
    """Yield each kind of exchange of a case, and its outcome."""
    request = d.Request(
        [d.User(case.question)],
        tools=case.tools,
        config=d.RuntimeConfig(max_tokens=99),
        model="m",
        check_calls=False,
    )
    yield "requests", trip.try_request(request)
    if not case.has_calls:
        return
    results = [d.ToolResult(call.id, "done") for call in case.calls]
    talk = [*request.messages, d.Assistant(case.calls), *results]
    yield "conversations", trip.try_request(replace(request, messages=talk))
    yield "bodies", trip.try_reply(request, case.calls)
    yield "streams", trip.try_reply(replace(request, stream=True), case.calls)


def try_wire(
    wire: str, categories: dict[str, list[Case]]
) -> tuple[Counter[tuple[str, str]], dict[str, str]]:
    """Return the outcomes of all cases on a wire, and the first change in each category."""
    trip = Trip(wire)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = dict.fromkeys(categories, "")
    for category, cases in categories.items():
        for case in cases:
            for kind, outcome in try_case(trip, case):
                if outcome not in ("equal", "reported"):
                    wrong[category] = wrong[category] or f"{case.name}, {kind}: {outcome}"
                    outcome = "changed"
                counts[kind, outcome] += 1
    return counts, wrong


def load() -> dict[str, list[Case]]:
    """Install the package and return its cases, by category."""
    python = install_python(PACKAGE, alone=True)
    (home,) = Path(python).parent.parent.glob("lib/python*/site-packages/bfcl_eval")
    types = runpy.run_path(str(home / "constants" / "type_mappings.py"))["GORILLA_TO_OPENAPI"]
    return read_cases(home / "data", types)


def run() -> Board:
    """Send the corpus through every wire."""
    categories = load()
    board = Board(
        "bfcl",
        TITLE,
        "The functions and the expected calls of the Berkeley Function-Calling Leaderboard as a corpus: it ranks models,\n"
        "so only its data is used. A request goes from the client side of a wire to its server side, first with the\n"
        "question alone and then with the expected calls and their results; the calls go back as a body and as a stream.\n"
        "Names, descriptions, schemas and arguments must be equal, with the order of keys, or a loss is reported. Names\n"
        "with a dot, which most wires refuse, are sent in another form and restored. Both sides are Dragoman's own.",
        versions={PACKAGE: PYTHON_PACKAGES[PACKAGE]},
    )
    counts: Counter[tuple[str, str, str]] = Counter()
    with ProcessPoolExecutor(len(WIRES)) as pool:
        for wire, (counted, wrong) in zip(
            WIRES, pool.map(try_wire, WIRES, [categories] * len(WIRES)), strict=True
        ):
            counts.update({(wire, *key): count for key, count in counted.items()})
            board.cells |= {(category, wire): wrong[category] for category in categories}
    dotted = sum(
        "." in tool.name for cases in categories.values() for c in cases for tool in c.tools
    )
    sums = f"{sum(map(len, categories.values())):,} cases, {dotted:,} functions with a dot in the name."
    head = "| wire | " + " | ".join([f"{kind}: equal, reported, changed" for kind in KINDS]) + " |"
    rows = [
        f"| {wire} | "
        + " | ".join(
            [
                ", ".join(
                    [f"{counts[wire, kind, how]:,}" for how in ("equal", "reported", "changed")]
                )
                for kind in KINDS
            ]
        )
        + " |"
        for wire in WIRES
    ]
    board.counts = "\n".join([sums, "", head, "|---" * (len(KINDS) + 1) + "|", *rows])
    return board
