"""BFCL through the gateway: a client of one wire, the gateway, and a simulated model of another.

Each case with expected calls makes the way once, by turns with a complete and with a streamed
reply, and with the next pair of wires, so that all pairs of a client's and a model's wire are used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import dragoman as d
from dragoman.gateway.app import create_app
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer
from dragoman.transport.serving import serving

from .bfcl import PACKAGE, WIRES, Case, load
from .board import Board
from .install import PYTHON_PACKAGES

TITLE = "BFCL through the gateway"
PATHS = {"openai": "/v1", "responses": "/v1", "gemini": "/v1beta"}
OUTCOMES = ("equal", "reported", "changed")


class Journey:
    """Send cases through a gateway, one at a time."""

    url = ""  # of the gateway

    def __init__(self) -> None:
        self._case: Case | None = None
        self._arrived: d.Request | None = None
        self._clients: dict[tuple[str, str], d.Provider] = {}

    def answer(self, request: d.Request) -> Answer:
        """Return the expected calls, by the names that arrive; the model's wire may change them."""
        self._arrived = request
        assert self._case is not None
        pairs = zip(self._case.tools, request.tools, strict=True)
        names = {mine.name: theirs.name for mine, theirs in pairs}
        return Answer(
            tool_calls=[Call(names[each.name], each.arguments) for each in self._case.calls]
        )

    async def send(self, case: Case, front: str, model: str, *, streamed: bool) -> str:
        """Return ``equal``, ``reported``, or how a tool or a call that arrives differs."""
        self._case, self._arrived = case, None
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
        arrived = () if self._arrived is None else self._arrived.tools
        sent = [_write(each.description, each.parameters) for each in case.tools]
        got = [_write(each.description, each.parameters) for each in arrived]
        wanted = [_write(each.name, each.arguments) for each in case.calls]
        read = [_write(each.name, each.arguments) for each in reply.message.tool_calls]
        if (sent, wanted) == (got, read):
            return "equal"
        return (
            "reported" if reply.warnings else f"sent {sent} {wanted}, arrived {got} {read}"[:300]
        )

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


def _write(name: str, value: Any) -> str:
    return f"{name} {value}"


def plan(cases: Sequence[Case]) -> Iterator[tuple[Case, str, str, bool]]:
    """Yield each case with the wires of the client and of the model, and whether it streams."""
    pairs = list(product(WIRES, WIRES))
    for at, case in enumerate(cases):
        yield case, *pairs[at % len(pairs)], at % 2 == 1


async def send_all(cases: Sequence[Case]) -> tuple[Counter[Any], dict[str, str]]:
    """Return the outcomes by the client's wire, kind and result, and the first change on each."""
    counts: Counter[Any] = Counter()
    wrong = dict.fromkeys(WIRES, "")
    journey = Journey()
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
                if outcome not in OUTCOMES:
                    wrong[front] = wrong[front] or f"{case.name}, to {model}: {outcome}"
                    outcome = "changed"
                counts[front, streamed, outcome] += 1
            await journey.close()
    return counts, wrong


def run() -> Board:
    """Send every case with expected calls through a gateway."""
    cases = [case for each in load().values() for case in each if case.has_calls]
    board = Board(
        "bfcl_gateway",
        TITLE,
        "The cases above that expect calls, from a client of each wire over HTTP through the gateway to a simulated model of\n"
        "each wire. The tools that arrive there and the calls that come back must be equal, or a loss is reported.",
        versions={PACKAGE: PYTHON_PACKAGES[PACKAGE]},
    )
    counts, wrong = asyncio.run(send_all(cases))
    board.cells = {("all cases", wire): wrong[wire] for wire in WIRES}
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
