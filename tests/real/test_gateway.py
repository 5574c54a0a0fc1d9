"""Test vendor clients with a gateway in front of a real server."""

from pathlib import Path
from typing import Any

import anthropic
import openai

from dragoman import connect
from dragoman.gateway.app import create_app
from dragoman.local import LocalServer
from tests.gateway.serving import serving

HELLO: Any = [{"role": "user", "content": "Say hello."}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


async def ask_all(url: str, model: str) -> None:
    """Call the model on three wires, streamed, not streamed and with a schema."""
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as one,
        anthropic.AsyncAnthropic(base_url=url, api_key="x") as other,
    ):
        made = await one.chat.completions.create(model=model, messages=HELLO, max_tokens=4)
        assert made.usage is not None
        assert 0 < made.usage.completion_tokens <= 4
        chunks = await one.chat.completions.create(
            model=model, messages=HELLO, max_tokens=4, stream=True
        )
        assert [chunk.choices[0].finish_reason async for chunk in chunks][-1] in ("stop", "length")
        answer = await one.responses.create(model=model, input="Say hello.", max_output_tokens=4)
        assert answer.status in ("completed", "incomplete")
        async with other.messages.stream(model=model, max_tokens=4, messages=HELLO) as stream:
            message = await stream.get_final_message()
        assert message.stop_reason in ("end_turn", "max_tokens")
        assert message.usage.output_tokens <= 4
        form: Any = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
        }
        built = await one.chat.completions.create(
            model=model, messages=HELLO, max_tokens=300, response_format=form
        )
        assert '"ok"' in (built.choices[0].message.content or "")


async def check_count(url: str, model: str) -> None:
    """Check that counting tokens gives the number of input tokens that a real call reports."""
    message: Any = {"role": "user", "content": "Where does the Rhine begin?"}
    async with anthropic.AsyncAnthropic(base_url=url, api_key="x") as client:
        counted = await client.messages.count_tokens(model=model, messages=[message])
        made = await client.messages.create(model=model, messages=[message], max_tokens=2)
    assert counted.input_tokens == made.usage.input_tokens + (
        made.usage.cache_read_input_tokens or 0
    )


async def test_gateway_works_in_front_of_a_real_server(tiny: Path) -> None:
    server = LocalServer(tiny, alias="tiny", context=512)
    upstream = server.start()
    try:
        model = connect("tiny", base_url=upstream, api_key=server.key)
        counting = connect(
            "tiny", base_url=upstream, api_key=server.key, quirks={"any_model": True}
        )
        own = connect(f"local:{tiny}")  # its first call starts another server
        models = {"real": model, "counting": counting, "own": own}
        async with serving(create_app(models)) as url:
            await ask_all(url, "real")
            await ask_all(url, "own")
            await check_count(url, "counting")
    finally:
        server.stop()
