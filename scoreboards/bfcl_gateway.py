"""BFCL through the gateway: a client of one wire, the gateway, and a simulated model of another.

Each case with expected calls makes the way once, by turns with a complete and with a streamed
reply, and with the next pair of wires, so that all pairs of a client's and a model's wire are used.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from msgspec.structs import replace

import dragoman as d
from dragoman.gateway.app import create_app
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer
from dragoman.transport.serving import serving

from .bfcl import LEGAL, PACKAGE, WIRES, Case, load
from .board import Board, judge
from .install import PYTHON_PACKAGES

TITLE = "BFCL through the gateway"
PATHS = {"openai": "/v1", "responses": "/v1", "gemini": "/v1beta"}
OUTCOMES = ("equal", "reported", "changed")


class Journey:
    """Send cases through a gateway, one at a time."""

    url = ""  # of the gateway
    damage: Callable[[Answer], Answer] = staticmethod(lambda answer: answer)
    """Change what the model answers, for a negative control."""

    def __init__(self) -> None:
        self._case: Case | None = None
        self._arrived: d.Request | None = None
        self._clients: dict[tuple[str, str], d.Provider] = {}

    def answer(self, request: d.Request) -> Answer:
        """Return the expected calls, by the names that arrive; the model's wire may change them."""
        self._arrived = request
        assert self._case is not None
        pairs = zip(self._case.tools, request.tools, strict=False)
        names = {mine.name: theirs.name for mine, theirs in pairs}
        calls = [
            Call(names.get(each.name, each.name), each.arguments) for each in self._case.calls
        ]
        return self.damage(Answer(tool_calls=calls))

    async def send(self, case: Case, front: str, model: str, *, streamed: bool) -> str:
        """Return ``equal``, ``reported``, or how a tool or a call that arrives differs."""
        self._case = case
        self._arrived = None
        request = d.Request(
            [d.User(case.question)],
            tools=case.tools,
            config=d.RuntimeConfig(max_tokens=99),
            model=model,
            stream=streamed,
            check_calls=False,
        )
        try:
            reply = d.fold(
                [each async for each in self._find_client(front, model).events(request)]
            )
        except d.ProviderError as error:
            return f"{type(error).__name__}: {error}"[:300]
        if self._arrived is None:
            return "no request arrived"
        return judge(
            self._compare(case, self._arrived, reply, front, model),
            [warning.path for warning in reply.warnings],
        )

    def _compare(
        self, case: Case, arrived: d.Request, reply: d.Response, front: str, model: str
    ) -> dict[str, tuple[object, object]]:
        """Return what was sent and what arrived, by path, in both directions."""
        parts: dict[str, tuple[object, object]] = {
            "messages": (case.question, "".join([each.text for each in arrived.messages])),
            "config.max_tokens": (99, arrived.config.max_tokens),
            "tools": (len(case.tools), len(arrived.tools)),
        }
        for at, (mine, theirs) in enumerate(zip(case.tools, arrived.tools, strict=False)):
            is_legal = all(re.fullmatch(LEGAL[wire], mine.name) for wire in (front, model))
            parts[f"tools[{at}].name"] = (mine.name, theirs.name if is_legal else mine.name)
            parts[f"tools[{at}].description"] = (mine.description, theirs.description)
            parts[f"tools[{at}].parameters"] = (str(mine.parameters), str(theirs.parameters))
        wanted = [(each.name, str(each.arguments)) for each in case.calls]
        read = [(each.name, str(each.arguments)) for each in reply.message.tool_calls]
        parts["tool_calls"] = (wanted, read)
        parts["ids"] = (len(wanted), len({each.id for each in reply.message.tool_calls}))
        return parts

    def _find_client(self, front: str, model: str) -> d.Provider:
        if (front, model) not in self._clients:
            address = self.url + PATHS.get(front, "")
            self._clients[front, model] = d.connect(
                model, wire=front, base_url=address, api_key="k" * 12, retries=0
            )
        return self._clients[front, model]

    async def close(self) -> None:
        """Close the clients."""
        for client in self._clients.values():
            await client.close()


def plan(cases: Sequence[Case]) -> Iterator[tuple[Case, str, str, bool]]:
    """Yield each case with the wires of the client and of the model, and whether it streams."""
    pairs = list(product(WIRES, WIRES))
    for at, case in enumerate(cases):
        yield case, *pairs[at % len(pairs)], at % 2 == 1


async def send_all(
    cases: Sequence[Case], damage: Callable[[Answer], Answer] | None = None
) -> tuple[Counter[Any], dict[tuple[str, str], str]]:
    """Return the outcomes by the client's wire, kind and result, and what changed in each case."""
    counts: Counter[Any] = Counter()
    wrong: dict[tuple[str, str], str] = {}
    journey = Journey()
    if damage is not None:
        journey.damage = damage  # type: ignore[method-assign]
    with SimServer(ScriptedProvider(ScriptRule(journey.answer)), models=("sim",)) as upstream:
        models = {
            wire: d.connect(
                "sim", wire=wire, base_url=upstream.base_urls[wire], api_key="k" * 12, retries=0
            )
            for wire in WIRES
        }
        async with serving(create_app(models)) as journey.url:
            for case, front, model, streamed in plan(cases):
                outcome = await journey.send(case, front, model, streamed=streamed)
                is_changed = outcome not in OUTCOMES
                wrong[case.name, front] = f"to {model}: {outcome}" if is_changed else ""
                if is_changed:
                    outcome = "changed"
                counts[front, streamed, outcome] += 1
            await journey.close()
    return counts, wrong


def _rename(answer: Answer) -> Answer:
    calls = [replace(call, name=f"{call.name}x") for call in answer.tool_calls]
    return replace(answer, tool_calls=calls)


def _add_argument(answer: Answer) -> Answer:
    calls = [
        replace(call, arguments={**call.arguments, "added": 1})  # type: ignore[dict-item]
        for call in answer.tool_calls
    ]
    return replace(answer, tool_calls=calls)


CONTROLLED = 49  # cases of each negative control: one for each pair of wires
CONTROLS: dict[str, Callable[[Answer], Answer]] = {
    "calls renamed": _rename,
    "an argument added": _add_argument,
    "calls removed": lambda answer: Answer("No."),
}


def run() -> Board:
    """Send every case with expected calls through a gateway."""
    cases = [case for each in load().values() for case in each if case.has_calls]
    board = Board(
        "bfcl_gateway",
        TITLE,
        "The cases above that expect calls, from a client of each wire over HTTP through the gateway to a simulated model of\n"
        "each wire. The question, the limit and the tools that arrive there and the calls that come back must be equal, or a\n"
        "loss must be reported at the same place. Each case makes the way once, so each of the 49 pairs of wires has some.",
        versions={PACKAGE: PYTHON_PACKAGES[PACKAGE]},
    )
    counts, board.cells = asyncio.run(send_all(cases))
    for name, damage in CONTROLS.items():
        found, _ = asyncio.run(send_all(cases[:CONTROLLED], damage))
        noticed = sum(count for key, count in found.items() if key[2] == "changed")
        board.controls[name] = (noticed, found.total())
    lines = ["| client | bodies: equal/reported/changed | streams: equal/reported/changed |"]
    lines.append("|---|---|---|")
    for wire in WIRES:
        found = [
            "/".join([f"{counts[wire, streamed, each]:,}" for each in OUTCOMES])
            for streamed in (False, True)
        ]
        lines.append(f"| {wire} | {' | '.join(found)} |")
    board.counts = "\n".join(lines)
    return board
