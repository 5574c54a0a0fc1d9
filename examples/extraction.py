"""Structured extraction with a Pydantic model: `python examples/extraction.py [MODEL]`."""

import asyncio
import sys

from pydantic import BaseModel, Field

from dragoman import Provider, connect


class Invoice(BaseModel):
    vendor: str
    total: float = Field(ge=0)
    items: list[str]


async def extract(model: Provider, text: str) -> Invoice:
    reply = await model.complete(
        text, system="Extract the invoice.", response_schema=Invoice, temperature=0
    )
    return reply.parsed


async def main(name: str) -> None:
    async with connect(name) as model:
        print(await extract(model, "ACME Corp: 3 anvils, 1 rocket. Total due 129.50 USD."))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["openai:gpt-6-sol"]))
