"""The agent with telemetry from docs/recipes/opentelemetry.md; ``opentelemetry-instrument``
configures the exporter.
"""

import asyncio

from dragoman import Observe, Session
from dragoman.events import Usage
from dragoman.middleware import OpenTelemetry
from dragoman.session import SessionTelemetry
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool


@tool(side_effect="none")
def look(place: str) -> str:
    """Describe a place."""
    return f"{place} is green"


async def main() -> None:
    telemetry = OpenTelemetry()
    used = Usage(20, 7, cached_input_tokens=12)
    script = ScriptedProvider(
        Answer(tool_calls=[Call("look", {"place": "here"})], usage=used),
        Answer("It is green.", usage=used),
    )
    async with Observe(script, telemetry, include_content=True) as model:
        watch = SessionTelemetry(telemetry, agent="guide", include_content=True)
        session = Session(model, [look], system="Be brief.", on_record=watch)
        await session.run("Look here.")


asyncio.run(main())
