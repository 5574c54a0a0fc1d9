"""Run turns that begin with one client or model and go on with another; write the documentation page.

``python -m tests.gateway.turn_pairs`` runs every combination and writes
``docs/reference/gateway-turns.md``; ``test_turn_pairs.py`` compares combinations with the page.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import dragoman as d
from dragoman.gateway import create_app
from dragoman.gateway.store import ResponseStore
from dragoman.sim import Answer, ScriptRule

from .serving import serving
from .strict_models import ANSWERS, UPSTREAMS, StrictUpstream
from .turns import ASKED, TURNS, Conversation, Made

PAGE = Path(__file__).parents[2] / "docs/reference/gateway-turns.md"
FOLLOW_UP = "And then?"
CLIENTS = tuple(TURNS)
# Another client sends texts and calls, so what a client of Chat Completions keeps is the same.
SECOND = tuple([name for name in TURNS if name != "openai, plain"])
MODELS = tuple(UPSTREAMS)
SAME = "the same"


def answer_turn(request: d.Request) -> Answer:
    """Return the model's answer: the next one after those that are in the conversation."""
    given = [each for each in request.messages if isinstance(each, d.Assistant)]
    answer = ANSWERS[min(len(given), len(ANSWERS) - 1)]
    return Answer(answer) if isinstance(answer, str) else answer


class Rig:
    """A strict model of each wire, for gateways that live for one turn."""

    def __init__(self, upstreams: Mapping[str, StrictUpstream]) -> None:
        self.upstreams = upstreams

    @contextlib.asynccontextmanager
    async def serve(self, *wires: str, keeps: bool) -> AsyncIterator[str]:
        """Serve the models of some wires, with a store or without one; yield the address."""
        models: dict[str, Any] = {}
        async with contextlib.AsyncExitStack() as opened:
            for wire in wires:
                upstream = self.upstreams[wire]
                upstream.bodies.clear()
                upstream.refused.clear()
                models[wire] = await opened.enter_async_context(upstream.open())
            store = None
            if keeps:
                folder = opened.enter_context(tempfile.TemporaryDirectory())
                store = ResponseStore(Path(folder) / "kept.db")
                opened.callback(store.close)
            yield await opened.enter_async_context(serving(create_app(models, store=store)))


@contextlib.contextmanager
def open_rig() -> Iterator[Rig]:
    """Start the models."""
    with contextlib.ExitStack() as opened:
        rule = ScriptRule(answer_turn)
        yield Rig({wire: opened.enter_context(StrictUpstream(wire, rule)) for wire in MODELS})


class Turn(NamedTuple):
    """A turn of a client with a model, in which each client may send the second request."""

    first: str
    model: str
    stream: bool
    is_kept: bool


async def run_turn(rig: Rig, turn: Turn) -> dict[str, bool]:
    """Return, for each client of the second request, whether the reasoning came back with it.

    Raise ``AssertionError`` if a text, a call, its arguments or a result did not reach the model.
    """
    async with rig.serve(turn.model, keeps=turn.is_kept) as url:
        return await asyncio.to_thread(_continue_turn, url, rig.upstreams[turn.model], turn)


def _continue_turn(url: str, upstream: StrictUpstream, turn: Turn) -> dict[str, bool]:
    found = {}
    with contextlib.ExitStack() as opened:
        talk = open_talk(opened, turn.first, url)
        made = talk.ask(turn.model, turn.stream)
        for second in SECOND:
            if second == turn.first:
                continue
            other = open_talk(opened, second, url)
            named = name_calls(made)
            other.repeat(named)
            other.answer(named)
            assert other.ask(turn.model, turn.stream).calls
            assert list_facts(upstream.requests[-1]) == EXPECTED[:4], (turn, second)
            found[second] = upstream.returned[-1] == 1
        # The client itself ends the turn, and begins the next one.
        talk.answer(made)
        talk.answer(talk.ask(turn.model, turn.stream))
        found[SAME] = upstream.returned[-1] == 1
        assert talk.ask(turn.model, turn.stream).text == "Done."
        talk.tell(FOLLOW_UP)
        talk.ask(turn.model, turn.stream)
        assert list_facts(upstream.requests[-1]) == EXPECTED, turn
    assert upstream.refused == [], turn
    return found


def open_talk(opened: contextlib.ExitStack, client: str, url: str) -> Conversation:
    """Open a conversation of a client."""
    talk = TURNS[client](url)
    opened.callback(talk.close)
    return talk


def name_calls(made: Made) -> Made:
    """Return a reply whose calls have ids, which some SDKs drop."""
    calls = [
        (name or f"call_{at}", tool, given) for at, (name, tool, given) in enumerate(made.calls)
    ]
    return made._replace(calls=calls)


def list_facts(request: d.Request) -> list[Any]:
    """Return what a model receives in a request, without reasoning, ids and empty texts."""
    facts: list[Any] = []
    for message in request.messages:
        if isinstance(message, d.Assistant):
            calls = [(call.name, call.arguments) for call in message.tool_calls]
            facts.append(("assistant", message.text, calls))
        elif isinstance(message, d.ToolResult):
            facts.append(("result", message.text))
        elif isinstance(message, d.User):
            facts.append(("user", message.text))
    return facts


def _list_expected() -> Iterator[Any]:
    yield ("user", ASKED)
    for answer in ANSWERS:
        text = answer if isinstance(answer, str) else answer.text
        calls = () if isinstance(answer, str) else answer.tool_calls
        yield ("assistant", text, [(call.name, call.arguments) for call in calls])
        yield from [("result", "there")] * len(calls)
    yield ("user", FOLLOW_UP)


EXPECTED = [*_list_expected()]


# --- the page ------------------------------------------------------------------------------------

Found = dict[Turn, dict[str, bool]]
HEAD = """# Turns that change clients

What reaches a model if one client sends the first request of a turn, and the same or another client sends the next one. The
clients are the vendors' own SDKs. The models are [strict simulators](../howto/simulate.md#strict-rules): they refuse what the
vendor refuses, and bind each signature to its text. A run of the tests writes this page.

The texts, the calls with their arguments and the results reached the model unchanged in all COUNT combinations of client, model,
next client and form (complete or streamed). The tables show whether the reasoning before the calls came back, too:

- **yes**: without a store, because the client returns it;
- **store**: with [`dragoman serve --store`](gateway-reasoning.md#clients-without-a-place), which knows the calls;
- **no**: not at all.

A client that continues the turn of another one sends its texts and calls, without its reasoning. "openai, plain" returns only the
fields that Chat Completions has. Complete and streamed replies have the same outcome, unless a cell says otherwise.

"""


def outcome(found: Found, first: str, model: str, second: str) -> str:
    """Return the cell of a turn: what brings the reasoning back."""
    words = [_name(found, first, model, second, stream) for stream in (False, True)]
    return words[0] if words[0] == words[1] else f"{words[0]}; streamed: {words[1]}"


def _name(found: Found, first: str, model: str, second: str, stream: bool) -> str:
    given = SAME if second == first else second
    for word, is_kept in (("yes", False), ("store", True)):
        if found[Turn(first, model, stream, is_kept)][given]:
            return word
    return "no"


def write_page(found: Found) -> str:
    """Return the page: a table for each model, a row for each client, a column for the next one."""
    count = sum([len(each) for turn, each in found.items() if not turn.is_kept])
    parts = [HEAD.replace("COUNT", f"{count:,}")]
    for model in MODELS:
        vendor, name = UPSTREAMS[model]
        head = ["client", *[f"then {each}" for each in SECOND]]
        lines = [head, ["---"] * len(head)]
        for first in CLIENTS:
            second = [
                first if each == "openai" and first == "openai, plain" else each for each in SECOND
            ]
            lines.append([first, *[outcome(found, first, model, each) for each in second]])
        parts.append(f"## {model}\n\nThe model `{vendor or 'any'}:{name}`.\n\n")
        parts.append("\n".join(["| " + " | ".join(line) + " |" for line in lines]) + "\n\n")
    return "".join(parts).rstrip() + "\n"


def read_page(page: str) -> dict[tuple[str, str, str], str]:
    """Return the cells of a page by model, client and the client of the next request."""
    cells = {}
    for section in page.split("\n## ")[1:]:
        model, *lines = section.splitlines()
        for line in lines:
            if line.startswith("| ") and not line.startswith(("| client", "| ---")):
                first, *words = [each.strip() for each in line.strip("|").split("|")]
                cells |= {
                    (model, first, second): word
                    for second, word in zip(SECOND, words, strict=True)
                }
    return cells


async def main() -> None:
    with open_rig() as rig:
        found = {
            turn: await run_turn(rig, turn)
            for turn in map(Turn._make, product(CLIENTS, MODELS, (False, True), (False, True)))
        }
    PAGE.write_text(write_page(found))


if __name__ == "__main__":
    asyncio.run(main())
