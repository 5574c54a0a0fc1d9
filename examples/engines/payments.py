"""The agent that the programs of this folder run: it pays invoices, and asks before it closes.

`LOG` is the `postgresql://` URL of the log, `BANK` the address of the bank, and `MODEL` the model.
"""

import os
from functools import cache
from urllib.request import Request, urlopen

from dragoman import Budget, Policy, Rule, Session, connect
from dragoman.log import EventLog, open_log
from dragoman.tools import ToolContext, tool

POLICY = Policy([Rule("allow", tool="pay"), Rule("ask", tool="close_account")])
PAUSE = float(os.environ.get("PAUSE", "30"))
"""Seconds after which a session that waits for a person is looked at again."""


@tool(side_effect="network", on_resume="run")
def pay(invoice: int, context: ToolContext[None]) -> str:
    """Pay an invoice."""
    return _post(f"invoices/{invoice}", context.intent_id)


@tool(side_effect="network", on_resume="run")
def close_account(customer: str, context: ToolContext[None]) -> str:
    """Close the account of a customer."""
    return _post(f"closed/{customer}", context.intent_id)


def _post(path: str, key: str) -> str:
    """Ask the bank to do something; it does nothing twice for the same key."""
    headers = {"Idempotency-Key": key}
    request = Request(f"{os.environ['BANK']}/{path}", b"", headers, method="POST")
    with urlopen(request, timeout=30) as reply:
        return str(reply.read().decode())


@cache
def shared_log() -> EventLog:
    """Return the log, which the sessions of this process share."""
    return open_log(os.environ["LOG"])


async def advance(name: str, goal: str) -> dict[str, str]:
    """Take one step of a session; return the outcome if it has ended or waits.

    An engine can store what this returns, which is JSON.
    """
    async with connect(os.environ["MODEL"]) as model:
        session = await Session.open(
            model, [pay, close_account], POLICY, shared_log(), name,
            approve="wait", budget=Budget(steps=50),
        )  # fmt: skip
        outcome = (await session.step(goal, key="goal")).outcome
    return {"outcome": outcome.outcome, "text": outcome.text} if outcome else {}
