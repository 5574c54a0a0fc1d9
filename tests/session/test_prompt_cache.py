"""Test that with a prompt cache, an agent that runs for 20 turns pays for its history only once."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman import Policy, Rule, RuntimeConfig, Session, connect
from dragoman.cli import main
from dragoman.log import SqliteLog
from dragoman.prices import cost
from dragoman.tools import tool
from dragoman.transport import FixtureTransport, HttpStream, Secret, Timeouts
from dragoman.wire import HttpRequest

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
        content: list[dict[str, Any]] = [
            {"type": "text", "text": f"Step {number}. " + "I look. " * 40}
        ]
        if number < TURNS:
            content.append(
                {
                    "type": "tool_use",
                    "id": f"toolu_{number}",
                    "name": "look",
                    "input": {"at": number},
                }
            )
        stop = "tool_use" if number < TURNS else "end_turn"
        reply = {
            "type": "message",
            "model": body["model"],
            "content": content,
            "stop_reason": stop,
            "usage": usage,
        }
        self._replies.append(
            (200, {"content-type": "application/json"}, [json.dumps(reply).encode()])
        )
        async with super().send(request, credentials, timeouts, stream=stream) as answer:
            yield answer

    def count(self, body: dict[str, Any]) -> dict[str, int]:
        blocks, ends = list(body["tools"]), []
        for part in (body["system"], *[turn["content"] for turn in body["messages"]]):
            blocks += part if isinstance(part, list) else [{"type": "text", "text": part}]
        prefix, prefixes = "", []
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
            "input_tokens": len(prefix) - read - written,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": 100,
        }


@tool(side_effect="read")
def look(at: int) -> str:
    """Describe a place."""
    return f"Place {at}: " + "a hill, a river; " * 30


async def run(log: SqliteLog, cache: Any) -> tuple[CachingServer, list[Any]]:
    server = CachingServer()
    model = connect(
        "claude-sonnet-4-5",
        base_url="https://api.anthropic.com",
        wire="anthropic",
        api_key="k",
        transport=server,
    )
    config = RuntimeConfig(max_tokens=1000, cache=cache)
    system = "You look at places. " * 60
    session = Session(model, [look], Policy([Rule("allow")]), log, system=system, config=config)
    outcome = await session.run("Look at twenty places.")
    assert outcome.spent.turns == TURNS
    calls = [
        record.payload for record in log.read(session.id) if record.type == "llm.call_completed"
    ]
    return server, [call.usage for call in calls]  # type: ignore[union-attr]


async def test_agent_pays_for_each_token_of_its_history_once_with_the_prompt_cache(
    log: SqliteLog,
) -> None:
    server, usages = await run(log, "auto")
    assert len(usages) == TURNS
    assert [usage.input_tokens for usage in usages] == server.prompts
    paid = sum(usage.input_tokens - usage.cached_input_tokens for usage in usages)
    assert paid == server.prompts[-1]  # every token of the longest prompt is paid for once
    for before, usage in pairwise(usages):
        assert usage.cached_input_tokens == before.input_tokens


async def test_agent_pays_for_its_history_in_every_turn_without_the_prompt_cache(
    log: SqliteLog,
) -> None:
    server, usages = await run(log, None)
    assert sum(usage.cached_input_tokens for usage in usages) == 0
    assert (
        sum(usage.input_tokens for usage in usages) == sum(server.prompts) > 8 * server.prompts[-1]
    )


async def test_prompt_cache_reduces_the_reported_cost(log: SqliteLog, tmp_path: Any) -> None:
    _, cached = await run(log, "auto")
    _, plain = await run(log, None)
    bills = [sum((cost(usage,
                       "anthropic:claude-sonnet-4-5").total or Decimal(0)) for usage in usages)
             for usages in (cached, plain)]  # fmt: skip
    assert bills[0] * 3 < bills[1]


@pytest.mark.parametrize("cache", ["auto", None])
async def test_log_cost_command_shows_the_share_of_cached_tokens(
    log: SqliteLog, cache: Any
) -> None:
    _, usages = await run(log, cache)
    result = CliRunner().invoke(main, ["log", "cost", "--log", str(log.path), "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.output)["models"]
    expected = sum(usage.cached_input_tokens for usage in usages) / sum(
        usage.input_tokens for usage in usages
    )
    assert row["cached_share"] == round(expected, 4)
    assert (row["cached_share"] > 0.8) == (cache == "auto")
