"""Print the cost of a run for each model: `python examples/cost.py [MODEL ...]`."""

import asyncio
import sys
from collections import Counter
from decimal import Decimal

from dragoman import Provider, connect, cost


async def spend(models: list[Provider], prompt: str) -> tuple[dict[str, Decimal], Counter[str]]:
    """Call every model; return the cost of each in US dollars, and how many calls have no known
    price.
    """
    spent: dict[str, Decimal] = {}
    unknown: Counter[str] = Counter()
    for model in models:
        bill = cost(await model.complete(prompt))
        if bill:
            spent[model.model] = spent.get(model.model, Decimal(0)) + bill.total
        else:
            unknown[bill.reason] += 1
    return spent, unknown


async def main(*names: str) -> None:
    print(*await spend([connect(name) for name in names], "Hello?"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["openai:gpt-6-sol"]))
