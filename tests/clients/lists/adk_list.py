"""The list of features that are tested with the Agent Development Kit of Google."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.anthropic_llm import AnthropicLlm
from google.adk.models.google_llm import Gemini
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from listing import add_cases, main
from pydantic import BaseModel

URL, SIDE, MODEL = sys.argv[1:4]
os.environ |= {"GOOGLE_API_KEY": "x", "ANTHROPIC_API_KEY": "x", "ANTHROPIC_BASE_URL": URL}
STATUSES = {"AuthenticationError": 401, "NotFoundError": 404, "RateLimitError": 429}
"""The statuses of the names of errors, which ADK shows instead if it uses LiteLLM."""


class River(BaseModel):
    name: str
    km: int


def model() -> Any:
    if SIDE == "anthropic":
        return AnthropicLlm(model=MODEL)
    if SIDE == "litellm":
        return LiteLlm(f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="x", max_retries=0)
    return Gemini(model=MODEL, base_url=URL)


async def run(*parts: Any, mode: Any = StreamingMode.NONE, **more: Any) -> Any:
    """Yield the texts of the events of a new agent that gets one message."""
    runner = InMemoryRunner(LlmAgent(name="ann", model=model(), **more))
    session = await runner.session_service.create_session(app_name=runner.app_name, user_id="u")
    async for event in runner.run_async(
        user_id="u",
        session_id=session.id,
        new_message=types.Content(role="user", parts=list(parts)),
        run_config=RunConfig(streaming_mode=mode),
    ):
        if event.error_code:
            status = STATUSES.get(event.error_code, event.error_code)
            raise RuntimeError(f"{status}: {event.error_message}")
        texts = [part.text for part in (event.content.parts if event.content else ())]
        if any(texts):
            yield event.partial, "".join(filter(None, texts))


async def finish(*parts: Any, **more: Any) -> str:
    return [text async for _, text in run(*parts, **more)][-1]


async def ask(text: str, image: str = "") -> str:
    data = base64.b64decode(image)
    picture = [types.Part.from_bytes(data=data, mime_type="image/png")] if image else []
    return await finish(types.Part(text=text), *picture)


async def stream(text: str) -> Any:
    async for is_partial, piece in run(types.Part(text=text), mode=StreamingMode.SSE):
        if is_partial:
            yield piece


async def use_tool(text: str, places: list[str]) -> str:
    def weather(city: str) -> str:
        """Return the weather in a city."""
        places.append(city)
        return "rain"

    return await finish(types.Part(text=text), tools=[weather])


async def structure(text: str) -> Any:
    return json.loads(await finish(types.Part(text=text), output_schema=River))


add_cases(ask, stream, use_tool, structure)
main()
