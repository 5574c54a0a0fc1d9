"""An agent with a tool: `python examples/agent.py [MODEL]`."""

import asyncio
import sys
from datetime import date

from dragoman import Provider, Session, connect
from dragoman.tools import tool


@tool(side_effect="none")
def days_until(day: date) -> int:
    """Return the number of days from today until a given day."""
    return (day - date.today()).days


async def run(model: Provider, goal: str) -> str:
    return (await Session(model, [days_until]).run(goal)).text


async def main(name: str) -> None:
    async with connect(name) as model:
        print(await run(model, "How many days is it until 2030-01-01?"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["openai:gpt-6-sol"]))
