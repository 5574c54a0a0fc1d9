"""Send 50 prompts, 8 at a time and 600 per minute, with retries: `python examples/batch.py
[MODEL]`.
"""

import asyncio
import sys

from dragoman import Provider, RateLimit, Retry, connect, gather


async def translate(model: Provider, count: int) -> tuple[int, int]:
    """Return how many prompts were answered, and how many tokens they used."""
    patient = Retry(RateLimit(model, requests_per_minute=600), max_retries=4)
    good = tokens = 0
    async for item in gather(
        patient, (f"The number {n} in French?" for n in range(count)), concurrency=8
    ):
        if item.response is None:
            print(item.prompt, item.error)
        else:
            good += 1
            tokens += item.response.usage.output_tokens or 0
    return good, tokens


async def main(name: str) -> None:
    async with connect(name) as model:
        print(await translate(model, 50))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["openai:gpt-6-sol"]))
