"""Test that with a prompt cache, an agent that runs for 20 turns pays for its history only once."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from dragoman import RuntimeConfig, Session, Usage, connect
from dragoman.cli import main
from dragoman.log import SqliteLog
from dragoman.prices import cost
from dragoman.tools import tool
from dragoman.transport import FixtureTransport, HttpStream, Secret, Timeouts
from dragoman.wire import HttpRequest

from .playing import ALL, of

MODEL = "claude-sonnet-4-5"
TURNS = 20
# Number of blocks before a breakpoint in which the server searches for a cache entry.
LOOKBACK = 20
LEAST = 1024  # a shorter prefix is not cached; the server counts each character as one token


class CachingServer(FixtureTransport):
    """Answer as a server with a prompt cache: read and write cache entries at breakpoints, and
    report token counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: set[str] = set()
        self.prompts: list[int] = []

    @asynccontextmanager
    async def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> AsyncIterator[HttpStream]:
        body = json.loads(request.body)
        usage = self.count(body)
        number = len(self.prompts)
        text = {"type": "text", "text": f"Step {number}. " + "I look. " * 40}
        call = {"type": "tool_use", "id": f"t{number}", "name": "look", "input": {"at": number}}
        reply = {
            "type": "message", "model": body["model"], "usage": usage,
            "content": [text, call] if number < TURNS else [text],
            "stop_reason": "tool_use" if number < TURNS else "end_turn",
        }  # fmt: skip
        self._replies.append(
            (200, {"content-type": "application/json"}, [json.dumps(reply).encode()])
        )
        async with super().send(request, credentials, timeouts, stream=stream) as answer:
            yield answer

    def count(self, body: dict[str, Any]) -> dict[str, int]:
        blocks = list(body["tools"])
        ends = []
        for part in (body["system"], *[turn["content"] for turn in body["messages"]]):
            blocks += part if isinstance(part, list) else [{"type": "text", "text": part}]
        prefix = ""
        prefixes = []
        for at, block in enumerate(blocks):
            marked = block.pop("cache_control", None) is not None
            prefix += json.dumps(block)
            prefixes.append(prefix)
            if marked:
                ends.append(at)
        assert len(ends) <= 4
        self.prompts.append(len(prefix))
        found = [prefixes[at] for end in ends for at in range(max(0, end - LOOKBACK), end + 1)]
        read = max((len(entry) for entry in found if entry in self.entries), default=0)
        kept = [prefixes[end] for end in ends if len(prefixes[end]) >= LEAST]
        self.entries.update(kept)
        written = max(0, max(map(len, kept), default=0) - read)
        return {
            "input_tokens": len(prefix) - read - written, "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written, "output_tokens": 100,
        }  # fmt: skip


@tool(side_effect="read")
def look(at: int) -> str:
    """Describe a place."""
    return f"Place {at}: " + "a hill, a river; " * 30


class Bill(NamedTuple):
    prompts: list[int]  # the length of the prompt of each turn
    usages: list[Usage]
    report: dict[str, Any]  # the row of ``dragoman log cost``


async def run(place: Path, cache: Any) -> Bill:
    server = CachingServer()
    url = "https://api.anthropic.com"
    model = connect(MODEL, base_url=url, wire="anthropic", api_key="k", transport=server)
    config = RuntimeConfig(max_tokens=1000, cache=cache)
    with SqliteLog(place) as log:
        system = "You look at places. " * 60
        session = Session(model, [look], ALL, log, system=system, config=config)
        outcome = await session.run("Look at twenty places.")
        assert outcome.spent.turns == TURNS
        calls = of(list(log.read(session.id)), "llm.call_completed")
    result = CliRunner().invoke(main, ["log", "cost", "--log", str(place), "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.output)["models"]
    return Bill(server.prompts, [call.usage for call in calls], row)


@pytest.fixture(scope="module")
def bills(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bill, Bill]:
    """Return what an agent pays with the prompt cache, and without it."""
    folder = tmp_path_factory.mktemp("bills")
    cached, plain = [asyncio.run(run(folder / f"{cache}.db", cache)) for cache in ("auto", None)]
    return cached, plain


def test_agent_pays_for_each_token_of_its_history_once_with_the_prompt_cache(bills: Any) -> None:
    prompts, usages, _ = bills[0]
    assert [usage.input_tokens for usage in usages] == prompts
    paid = sum(usage.input_tokens - usage.cached_input_tokens for usage in usages)
    assert paid == prompts[-1]  # every token of the longest prompt is paid for once
    for before, usage in pairwise(usages):
        assert usage.cached_input_tokens == before.input_tokens


def test_agent_pays_for_its_history_in_every_turn_without_the_prompt_cache(bills: Any) -> None:
    prompts, usages, _ = bills[1]
    assert sum(usage.cached_input_tokens for usage in usages) == 0
    assert sum(usage.input_tokens for usage in usages) == sum(prompts) > 8 * prompts[-1]


def test_prompt_cache_reduces_the_reported_cost(bills: Any) -> None:
    costs = [
        sum(cost(usage, f"anthropic:{MODEL}").total or 0 for usage in bill.usages)
        for bill in bills
    ]
    assert costs[0] * 3 < costs[1]


def test_log_cost_command_shows_the_share_of_cached_tokens(bills: Any) -> None:
    for _, usages, row in bills:
        cached = sum(usage.cached_input_tokens for usage in usages)
        share = cached / sum(usage.input_tokens for usage in usages)
        assert row["cached_share"] == round(share, 4)
    assert bills[0].report["cached_share"] > 0.8
