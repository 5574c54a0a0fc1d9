"""Test deferred tools in a session: the provider or the session itself searches them, a tool that
was found stays offered, and the log is enough to continue.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Fallback, ForceTool, Policy, Request, Rule, Session, Tool
from dragoman.log import MemoryLog
from dragoman.provider import connect
from dragoman.replay import ReplayProvider, recorded_tools
from dragoman.sim import Answer, Call, ScriptedProvider, serve
from dragoman.tokens import estimate_input_tokens
from dragoman.tools import ExecutableTool, Observation, tool
from dragoman.tools.search import ToolIndex

from .playing import ALL, check_evidence, of

VERBS = ("open", "close", "list", "count", "merge", "split", "archive", "rename", "audit", "sign")
THINGS = (
    "invoice", "order", "customer", "ticket", "parcel", "refund", "report", "meeting", "contract",
    "badge",
)  # fmt: skip
PARAMETERS = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The number of the record in the ledger."},
        "comment": {"type": "string", "description": "What the audit trail shows about it."},
    },
    "required": ["id"],
}


class Office(ExecutableTool):
    """A tool of a large company."""

    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        return Observation(f"{self.name}: {arguments['id']} is done.")


def office(regions: int = 10) -> list[Office]:
    """Return 100 deferred tools for each region."""
    tools = []
    for region, verb, thing in product(range(regions), VERBS, THINGS):
        does = f"{verb.title()} a {thing} of the branch in region {region} and log who did it."
        described = Tool(f"{verb}_{thing}_{region}", does, parameters=PARAMETERS, deferred=True)
        tools.append(Office(described, side_effect="read"))
    return tools


@tool(side_effect="read")
def clock() -> str:
    """Return the time."""
    return "noon"


def sums(requests: list[Request]) -> int:
    return sum(estimate_input_tokens(each.messages, each.tools) for each in requests)


SEARCH = Answer(tool_calls=[Call("search_tools", {"query": "refunds of region 7: archiving"})])
USE = Answer(tool_calls=[Call("archive_refund_7", {"id": "R-9"})])
TASK = "Archive the refund R-9 of region 7."


def names(request: Request) -> list[str]:
    return [each.name for each in request.tools]


async def test_task_with_1000_tools_ends_in_a_window_of_16k_tokens_with_a_tenth_of_them() -> None:
    tools = office()
    assert len(tools) == 1000
    model = ScriptedProvider(SEARCH, USE, "Done.", capabilities={"max_context_tokens": 16_000})
    session = Session(model, [clock, *tools], ALL)
    outcome = await session.run(TASK)
    assert outcome.outcome == "completed"
    assert outcome.text == "Done."
    described = [each.description for each in tools]
    everything = sum(estimate_input_tokens(each.messages, described) for each in model.requests)
    assert everything > 3 * 16_000
    assert sums(model.requests) * 10 <= everything
    first, second, third = map(names, model.requests)
    assert first == ["clock", "search_tools"]
    assert second[:2] == first
    assert second[2] == "archive_refund_7"
    assert third == second, "what was found stays, and the list begins with the same tools"
    assert not any(each.deferred for each in model.requests[1].tools)
    records = list(session.log.read(session.id))
    steps = check_evidence(records)
    assert [kinds[-1] for kinds in steps.values()] == ["tool.observed"] * 2
    assert of(records, "tool_intent.proposed")[0].tool_name == "search_tools"


async def test_found_tools_stay_offered_after_resume_fork_and_replay() -> None:
    tools = office(1)
    log = MemoryLog()
    query = Answer(tool_calls=[Call("search_tools", {"query": "merge tickets"})])
    session = Session(ScriptedProvider(query, "Which?"), tools, ALL, log)
    await session.run("Merge the tickets.")
    found = names(session.provider.requests[-1])[1:]  # type: ignore[attr-defined]
    assert found[0] == "merge_ticket_0"
    for make in (Session.resume, Session.fork):
        model = ScriptedProvider("Merged.")
        again = await make(model, tools, ALL, log, session.id)
        await again.run("T-1 and T-2.")
        assert names(model.requests[0]) == ["search_tools", *found]
    repeated = ReplayProvider(log, session.id)
    copy = Session(repeated, recorded_tools(log, session.id), ALL)
    await copy.run("Merge the tickets.")
    assert (await copy.run("T-1 and T-2.")).text == "Merged."
    assert repeated.remaining == 0


async def test_search_needs_no_approval_but_a_rule_may_deny_it() -> None:
    session = Session(ScriptedProvider(SEARCH, "Done."), office(1), Policy([]))
    await session.run(TASK)
    granted = of(list(session.log.read(session.id)), "permission.granted")
    assert [(each.tool_name, each.by) for each in granted] == [("search_tools", "policy")]
    denying = Policy([Rule("deny", tool="search_tools")])
    outcome = await Session(ScriptedProvider(SEARCH, "Done."), office(1), denying).run(TASK)
    assert [each.tool_name for each in outcome.denied] == ["search_tools"]
    model = ScriptedProvider("Done.")
    await Session(model, office(1), tool_choice=ForceTool("audit_badge_0")).run(TASK)
    assert names(model.requests[0]) == ["search_tools", "audit_badge_0"]
    own = Office(replace(clock.description, name="search_tools"))
    with pytest.raises(ValueError, match="'search_tools' is the session's own"):
        Session(ScriptedProvider("x"), [*office(1), own])


@pytest.mark.parametrize("wire", ["anthropic", "responses", "openai"])
async def test_provider_with_a_tool_search_gets_every_tool_and_counts_few_tokens(
    wire: str,
) -> None:
    script = [USE, "Done."] if wire != "openai" else [SEARCH, USE, "Done."]
    with serve(*script) as server:
        window = {"capabilities": {"max_context_tokens": 16_000, "max_output_tokens": 500}}
        async with server.connect(wire, **window) as model:
            assert model.searches_tools == (wire != "openai")
            session = Session(model, [clock, *office()], ALL)
            outcome = await session.run(TASK)
            assert outcome.text == "Done."
        offered = server.requests[0].tools
    assert sum(each.deferred for each in offered) == (1000 if model.searches_tools else 0)
    assert ("search_tools" in [each.name for each in offered]) == (wire == "openai")
    assert outcome.spent.tokens < 3_000


async def test_group_searches_tools_only_if_all_its_models_do() -> None:
    base = {"base_url": "http://127.0.0.1:9"}
    claude, gpt, chat = [
        connect("m", wire=wire, name=wire, **base) for wire in ("anthropic", "responses", "openai")
    ]
    assert Fallback([claude, gpt]).searches_tools
    assert not Fallback([claude, chat]).searches_tools
    reply = await ScriptedProvider("Hi.").complete("x", [Tool("f", deferred=True)])
    assert [each.code for each in reply.warnings] == ["deferral_dropped"]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("exporting meetings", "exportMeeting"),
        ("weather forecast", "wetter"),
        ("IBAN", "check_iban"),
        ("send_mail", "send_mail"),
        ("Größe", "größe"),
        ("quantum", None),
        ("", None),
    ],
)
def test_tools_are_found_by_words_of_names_and_descriptions(query: str, best: str | None) -> None:
    index = ToolIndex(
        [
            Tool("exportMeeting", "Write the minutes to a file."),
            Tool("wetter", "Return the weather of tomorrow, a forecast."),
            Tool("check_iban", "Validate a bank account, such as before you send money."),
            Tool("send_mail", "Deliver a message."),
            Tool("größe", "", parameters={"type": "object"}),
        ]
    )
    assert next((each.name for each in index.search(query)), None) == best
    assert ToolIndex([]).search(query) == []
