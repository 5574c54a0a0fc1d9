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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

import dragoman as d
from dragoman.events import Assembler, Event
from dragoman.validate import Expectation
from dragoman.wire import CODECS, SERVER_CODECS, Asked

from .board import Board, judge
from .install import PYTHON_PACKAGES, install_python

TITLE = "BFCL"
PACKAGE = "bfcl-eval"
WIRES = ("openai", "responses", "anthropic", "gemini", "ollama", "cohere", "bedrock")
# The names of tools that each vendor accepts, as its errors or its documentation describe them.
WITH_IDS = ("openai", "responses", "anthropic", "cohere", "bedrock")
"""The wires whose calls and results have ids."""
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


def count_left_out(data: Path) -> Counter[str]:
    """Return how many rows have no functions of their own, by category."""
    found: Counter[str] = Counter()
    for path in sorted(data.glob("BFCL_v4_*.json")):
        for row in _lines(path):
            if not (row.get("function") and row.get("question")):
                found[path.stem.removeprefix("BFCL_v4_")] += 1
    return found


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text().split("\n"):
        if line.startswith("{") and line.endswith("}"):  # one file is a document without cases
            yield json.loads(line)


class Control(NamedTuple):
    """A damage, the kind of exchange that it is done to, and how many calls the case must have."""

    kind: str
    damage: Callable[[bytes], bytes]
    calls: int = 0


class Trip:
    """Send requests and replies through both sides of a wire."""

    def __init__(self, wire: str, control: Control | None = None) -> None:
        self.wire = wire
        self.control = control
        self.client = CODECS[wire].connect("m", "http://127.0.0.1:9", None, d.Capabilities())
        self.server = SERVER_CODECS[wire]

    def try_request(self, request: d.Request) -> str:
        """Return ``equal``, ``reported``, or how the request that arrives differs."""
        encoded = self.client.encode(request)
        path = unquote(urlsplit(encoded.http.url).path)
        kind = "conversations" if len(request.messages) > 1 else "requests"
        body = self._pass(kind, encoded.http.body)
        try:
            arrived = self.server.decode(body, path).request
        except d.ProviderError as error:
            return f"refused: {error}"[:300]
        names = self._names(request, arrived)
        if refused := [name for name in names if not re.fullmatch(LEGAL[self.wire], name)]:
            return f"the vendor refuses the names {refused}"[:300]
        parts: dict[str, tuple[object, object]] = {
            "tools": (len(request.tools), len(arrived.tools)),
            "messages": (_roles(request), _roles(arrived)),
            "config.max_tokens": (request.config.max_tokens, arrived.config.max_tokens),
            "config.temperature": (request.config.temperature, arrived.config.temperature),
        }
        for at, (mine, theirs) in enumerate(zip(request.tools, arrived.tools, strict=False)):
            # a name that the vendor accepts is sent unchanged; another one is replaced
            is_legal = re.fullmatch(LEGAL[self.wire], mine.name) is not None
            parts[f"tools[{at}].name"] = (mine.name, theirs.name if is_legal else mine.name)
            parts[f"tools[{at}].description"] = (mine.description, theirs.description)
            parts[f"tools[{at}].parameters"] = (_text(mine.parameters), _text(theirs.parameters))
        for at, (sent, got) in enumerate(zip(request.messages, arrived.messages, strict=False)):
            shown = _show(arrived, got, names, self.wire in WITH_IDS)
            parts[f"messages[{at}]"] = (_show(request, sent, {}, self.wire in WITH_IDS), shown)
        return judge(parts, [note.path for note in encoded.notes if note.loss])

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
        data = self._pass(
            "streams" if request.stream else "bodies", b"".join([*pieces, encoder.end()])
        )
        for at in range(0, len(data), 61):
            events += decoder.feed(data[at : at + 61])
        events += decoder.end()
        if decoder.error is not None:
            return f"{type(decoder.error).__name__}: {decoder.error}"[:300]
        got = [(each.name, _text(each.arguments)) for each in d.fold(events).message.tool_calls]
        sent = [(each.name, _text(each.arguments)) for each in calls]
        return "equal" if sent == got else f"sent {sent}, arrived {got}"[:300]

    def _pass(self, kind: str, data: bytes) -> bytes:
        """Return the bytes that arrive, which a control damages."""
        control = self.control
        return control.damage(data) if control is not None and control.kind == kind else data

    def _names(self, request: d.Request, arrived: d.Request) -> dict[str, str]:
        """Return the sent name of each name that arrives; the order of tools is that of the request."""
        pairs = zip(arrived.tools, request.tools, strict=False)
        return {theirs.name: mine.name for theirs, mine in pairs}


def _text(value: Any) -> str:
    return json.dumps(value)


def _roles(request: d.Request) -> list[str]:
    return [type(message).__name__ for message in request.messages]


def _show(request: d.Request, message: d.Message, names: dict[str, str], with_ids: bool) -> Any:
    """Return what a message says, as values that can be compared.

    Without ids, a result has the position of the call that it belongs to.
    """
    ids = [
        block.id
        for each in request.messages
        if isinstance(each, d.Assistant)
        for block in each.tool_calls
    ]
    if isinstance(message, d.Assistant):
        return message.text, [
            (
                names.get(call.name, call.name),
                _text(call.arguments),
                call.id if with_ids else ids.index(call.id),
            )
            for call in message.tool_calls
        ]
    if isinstance(message, d.ToolResult):
        name = message.tool_call_id
        return message.text, name if with_ids else ids.index(name) if name in ids else None
    return message.text


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
        config=d.RuntimeConfig(max_tokens=99, temperature=0.5),
        model="m",
        check_calls=False,
    )
    yield "requests", trip.try_request(request)
    if not case.has_calls:
        return
    results = [d.ToolResult(call.id, f"done {at} é") for at, call in enumerate(case.calls)]
    talk = [*request.messages, d.Assistant(case.calls), *results]
    yield "conversations", trip.try_request(replace(request, messages=talk))
    yield "bodies", trip.try_reply(request, case.calls)
    yield "streams", trip.try_reply(replace(request, stream=True), case.calls)


# --- negative controls: damage to the bytes of the openai wire that must be noticed -------------


def _damaged(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    """Return a function that changes the JSON of a request."""

    def damage(body: bytes) -> bytes:
        value = json.loads(body)
        change(value)
        return json.dumps(value, ensure_ascii=False).encode()

    return damage


def _each(body: Any, role: str) -> list[Any]:
    return [message for message in body["messages"] if message["role"] == role]


def _sent_calls(body: Any) -> list[Any]:
    return [call for message in _each(body, "assistant") for call in message.get("tool_calls", [])]


def _cut_description(body: Any) -> None:
    for tool in body["tools"]:
        tool["function"]["description"] = tool["function"].get("description", "")[:-1] + "|"


def _reverse_properties(body: Any) -> None:
    for tool in body["tools"]:
        parameters = tool["function"]["parameters"]
        parameters["properties"] = {"added": {}, **parameters.get("properties", {})}


def _rename_tools(body: Any) -> None:
    for tool in body["tools"]:
        tool["function"]["name"] = "f_" + tool["function"]["name"][:50]
    for call in _sent_calls(body):
        call["function"]["name"] = "f_" + call["function"]["name"][:50]


def _change_results(body: Any) -> None:
    for message in _each(body, "tool"):
        message["content"] = "another result"


def _drop_results(body: Any) -> None:
    body["messages"] = [message for message in body["messages"] if message["role"] != "tool"]


def _swap_results(body: Any) -> None:
    first, second, *_ = _each(body, "tool")
    first["content"], second["content"] = second["content"], first["content"]


def _change_ids(body: Any) -> None:
    for at, call in enumerate(_sent_calls(body)):
        call["id"] = f"zz{at}"
    for at, message in enumerate(_each(body, "tool")):
        message["tool_call_id"] = f"zz{at}"


def _change_arguments(body: Any) -> None:
    for call in _sent_calls(body):
        call["function"]["arguments"] = '{"other": 1}'


def _change_question(body: Any) -> None:
    _each(body, "user")[0]["content"] += " "


def _drop_settings(body: Any) -> None:
    for name in ("max_tokens", "max_completion_tokens", "temperature"):
        body.pop(name, None)


CONTROLS = {
    "description changed": Control("requests", _damaged(_cut_description)),
    "property added": Control("requests", _damaged(_reverse_properties)),
    "question changed": Control("requests", _damaged(_change_question)),
    "settings removed": Control("requests", _damaged(_drop_settings)),
    "tools renamed": Control("requests", _damaged(_rename_tools)),
    "results changed": Control("conversations", _damaged(_change_results), 1),
    "results removed": Control("conversations", _damaged(_drop_results), 1),
    "two results swapped": Control("conversations", _damaged(_swap_results), 2),
    "ids of calls changed": Control("conversations", _damaged(_change_ids), 1),
    "arguments changed": Control("conversations", _damaged(_change_arguments), 1),
    "name in the reply changed": Control(
        "bodies", lambda data: data.replace(b'"name":"', b'"name":"x_'), 1
    ),
    "arguments in the reply changed": Control(
        "streams", lambda data: re.sub(rb'("arguments":"\{)', rb'\1\\"added\\": 1, ', data), 1
    ),
}


def try_controls(cases: Sequence[Case]) -> dict[str, tuple[int, int]]:
    """Return how often each damage was noticed, and how often it was tried."""
    found = {}
    for name, control in CONTROLS.items():
        trip = Trip("openai", control)
        noticed = tried = 0
        for case in cases:
            is_legal = all(re.fullmatch(LEGAL["openai"], tool.name) for tool in case.tools)
            if len(case.calls if case.has_calls else ()) < control.calls or not is_legal:
                continue
            tried += 1
            for kind, outcome in try_case(trip, case):
                noticed += kind == control.kind and outcome != "equal"
        found[name] = (noticed, tried)
    return found


def try_wire(wire: str, cases: Sequence[Case]) -> tuple[Counter[tuple[str, str]], dict[str, str]]:
    """Return the outcomes of all cases on a wire, and the first change in each case."""
    trip = Trip(wire)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = dict.fromkeys([case.name for case in cases], "")
    for case in cases:
        for kind, outcome in try_case(trip, case):
            if outcome not in ("equal", "reported"):
                wrong[case.name] = wrong[case.name] or f"{kind}: {outcome}"
                outcome = "changed"
            counts[kind, outcome] += 1
    return counts, wrong


def find_package() -> Path:
    """Install the package without its dependencies; return its folder."""
    python = install_python(PACKAGE, alone=True)
    (home,) = Path(python).parent.parent.glob("lib/python*/site-packages/bfcl_eval")
    return home


def load() -> dict[str, list[Case]]:
    """Install the package and return its cases, by category."""
    home = find_package()
    types = runpy.run_path(str(home / "constants" / "type_mappings.py"))["GORILLA_TO_OPENAPI"]
    return read_cases(home / "data", types)


def run() -> Board:
    """Send the corpus through every wire."""
    cases = [case for each in load().values() for case in each]
    left_out = count_left_out(find_package() / "data")
    board = Board(
        "bfcl",
        TITLE,
        "The functions and the expected calls of the Berkeley Function-Calling Leaderboard as a corpus: it ranks models,\n"
        "so only its data is used. A request goes from the client side of a wire to its server side, first with the\n"
        "question alone and then with the expected calls and their results; the calls go back as a body and as a stream.\n"
        "Roles, texts, settings, names, descriptions, schemas, arguments, results and the calls that they belong to must be\n"
        "equal, with the order of keys, or a loss must be reported at the same place. Names with a dot, which most wires\n"
        "refuse, are sent in another form and restored. Both sides are Dragoman's own. A cell is a case on a wire.",
        versions={PACKAGE: PYTHON_PACKAGES[PACKAGE]},
    )
    counts: Counter[tuple[str, str, str]] = Counter()
    with ProcessPoolExecutor() as pool:
        found = pool.map(try_wire, WIRES, [cases] * len(WIRES))
        for wire, (counted, wrong) in zip(WIRES, found, strict=True):
            counts.update({(wire, *key): count for key, count in counted.items()})
            board.cells |= {(name, wire): outcome for name, outcome in wrong.items()}
    board.controls = try_controls(cases)
    dotted = sum("." in tool.name for case in cases for tool in case.tools)
    silent = sum(not case.has_calls for case in cases)
    missing = ", ".join([f"{name} ({count:,})" for name, count in left_out.items()])
    sums = (
        f"{len(cases):,} cases, {dotted:,} functions with a dot in the name. {silent:,} cases expect no call of an\n"
        "offered function, so only their question is sent. Left out, since the functions of these cases are not in\n"
        f"their rows: {missing}; and the folder `unused_datasets`."
    )
    head = "| wire | " + " | ".join([f"{kind}: equal, reported, changed" for kind in KINDS]) + " |"
    rows = [f"| {wire} | {' | '.join(_sums(counts, wire))} |" for wire in WIRES]
    board.counts = "\n".join([sums, "", head, "|---" * (len(KINDS) + 1) + "|", *rows])
    return board


def _sums(counts: Counter[tuple[str, str, str]], wire: str) -> list[str]:
    return [
        ", ".join([f"{counts[wire, kind, how]:,}" for how in ("equal", "reported", "changed")])
        for kind in KINDS
    ]
