"""Test vendor clients with a gateway in front of the embedded model and of a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dragoman import connect
from dragoman.gateway.app import create_app
from dragoman.local import LocalServer, find_model
from tests.gateway.serving import serving

from .tiny import write_model

HELLO: Any = [{"role": "user", "content": "Say hello."}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


async def ask_both(url: str, model: str, *, structured: bool) -> None:
    """Call the model on three wires, streamed and not streamed; if ``structured``, also with a
    schema.
    """
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
        if not structured:
            return
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


async def test_gateway_works_in_front_of_a_real_server(tmp_path: Path) -> None:
    server = LocalServer(write_model(tmp_path / "tiny.gguf"), alias="tiny", context=512)
    upstream = server.start()
    try:
        model = connect("tiny", base_url=upstream, api_key=server.key)
        counting = connect(
            "tiny", base_url=upstream, api_key=server.key, quirks={"any_model": True}
        )
        async with serving(create_app({"real": model, "counting": counting})) as url:
            await ask_both(url, "real", structured=True)
            await check_count(url, "counting")
    finally:
        server.stop()


@pytest.mark.skipif(
    not find_model(None).path.exists(), reason="the embedded model's weights are not here"
)
async def test_gateway_works_in_front_of_the_embedded_model() -> None:
    async with serving(create_app({"small": connect("local")})) as url:
        await ask_both(url, "small", structured=False)  # structured output is slow on this model
