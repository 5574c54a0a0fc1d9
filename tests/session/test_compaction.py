"""Test a context policy that lets the provider compact the conversation itself."""

from typing import Any

import pytest

from dragoman import NativeCompaction, Opaque, Request, RuntimeConfig, Session
from dragoman.provider import connect
from dragoman.replay import describe
from dragoman.sim import Answer, Call, ScriptRule, serve
from dragoman.tools import tool

from .playing import ALL, of

WINDOW = 64_000
BLOCKS = {
    "anthropic": {"type": "compaction", "content": "Two pages were read."},
    "responses": {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAB"},
    "openai": None,
}


@tool(side_effect="read", output_limit=200_000)
def read_page(number: int) -> str:
    """Read a page of a book."""
    return f"page {number}: " + "the quick brown fox jumps over the lazy dog " * 2600


def reader(wire: str, turns: int = 5) -> ScriptRule:
    """Return a rule that reads a page per turn and compacts the conversation in the third."""
    asked = 0

    def answer(request: Request) -> Answer:
        nonlocal asked
        if not request.tools:
            return Answer("Pages about a fox.")
        asked += 1
        said: list[Any] = [Opaque(BLOCKS[wire])] if asked == 3 and BLOCKS[wire] else []
        if asked < turns:
            return Answer(content=[*said, Call("read_page", {"number": asked})])
        return Answer("A fox.")

    return ScriptRule(answer)


@pytest.mark.parametrize("wire", BLOCKS)
async def test_provider_compacts_where_it_can_and_the_session_summarises_elsewhere(
    wire: str,
) -> None:
    settings = {"max_context_tokens": WINDOW, "max_output_tokens": 500}
    with serve(reader(wire)) as server:
        async with server.connect(wire, capabilities=settings) as model:
            session = Session(model, [read_page], ALL, context=NativeCompaction())
            outcome = await session.run("Read all pages.")
        requests = server.requests
    assert outcome.text == "A fox."
    records = list(session.log.read(session.id))
    found = of(records, "context.summarised")
    if wire == "openai":
        assert [each.native for each in found] == [False] * len(found)
        assert len(of(records, "context.projected")) == len(found) > 0
        assert len(requests[-1].messages) < 9
        assert "context_management" not in requests[0].config.extras
        return
    assert not of(records, "context.projected")
    # the goal, and two calls with their results
    (summary,) = found
    assert summary.native is True
    assert summary.messages == 5
    replaced = [record for record in records if summary.first <= record.seq <= summary.last]
    assert len(of(replaced, "message.recorded")) == summary.messages
    (record,) = [record for record in records if record.type == "context.summarised"]
    headline = describe(record)
    assert headline.endswith("(5 messages): compacted by the provider")
    assert all("context_management" in each.config.extras for each in requests)
    # the provider gets everything, with its block; another model gets everything but the block
    assert len(requests[-1].messages) == 1 + 2 * 4
    blocks: Any = requests[-1].messages[5].content
    assert [each.data for each in blocks if isinstance(each, Opaque)] == [BLOCKS[wire]]
    other = connect("m", wire="openai", base_url="http://127.0.0.1:9")
    counts = [each.estimate_input_tokens(session.messages) for each in (model, other)]
    assert counts[0] < WINDOW < counts[1]
    plan = other.plan(session.messages)
    assert [item.rule for item in plan.losses] == ["compaction_unreadable"]
    assert plan.losses[0].path.startswith("messages[5].content[")


async def test_settings_of_the_caller_take_precedence_over_the_policy() -> None:
    own = {"context_management": [{"type": "compaction", "compact_threshold": 7}]}
    with serve("Hi.") as server:
        async with server.connect("responses") as model:
            config = RuntimeConfig(extras=own)
            await Session(model, config=config, context=NativeCompaction()).run("x")
            await Session(model, context=NativeCompaction()).run("x")
        first, second = [each.config.extras["context_management"] for each in server.requests]
    assert first == own["context_management"]
    assert second == [{"type": "compaction"}]
