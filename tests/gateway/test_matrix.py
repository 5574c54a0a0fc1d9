"""Test vendor clients with models of every wire, and compare the working features with the table
in the docs.

``python -m tests.gateway.test_matrix`` writes the page from a run.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anthropic
import google.genai
import google.genai.errors
import google.genai.types
import httpx2
import ollama
import openai
import pydantic
import pytest

from dragoman.events import Usage
from dragoman.gateway.app import create_app
from dragoman.provider import Provider, connect
from dragoman.sim import Answer, Call, Fault, RequestMatch, ScriptedProvider, ScriptRule, SimServer
from tests.pages import ROOT
from tests.waiting import arrival

from .serving import serving
from .upstream import EXHAUSTIVE, WIRES

PAGE = ROOT / "docs/reference/gateway-clients.md"
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PNG = "iVBORw0KGgo="
PARIS, ROME = Call("weather", {"city": "Paris"}), Call("weather", {"city": "Rome"})
TEXT, RIVER = "Hello there", '{"name": "Rhine", "km": 1233}'
STATUSES = (400, 401, 403, 404, 429, 500, 503)


class River(pydantic.BaseModel):
    name: str
    km: int


def script() -> ScriptedProvider:
    """Return a model that does what the prompt asks for."""
    answers = {
        "CALL": Answer(tool_calls=[PARIS]),
        "BOTH": Answer(tool_calls=[PARIS, ROME]),
        "RIVER": Answer(text=RIVER),
        "THINK": Answer(thinking="Hm.", text="Yes."),
        "USAGE": Answer(text=TEXT, usage=Usage(7, 5)),
        "SLOW": Answer(text="on and " * 1000, pace=0.05),
    }
    rules = [
        ScriptRule(answer, RequestMatch(pattern=f"^{word}")) for word, answer in answers.items()
    ]
    faults = [
        ScriptRule(TEXT, RequestMatch(pattern=f"^E{code}"), Fault(status=code))
        for code in STATUSES
    ]
    return ScriptedProvider(*rules, *faults, ScriptRule(TEXT))


Cell = Callable[[Any, str], Awaitable[Any]]


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def check_errors(
    ask: Callable[[str], Awaitable[Any]], error: type[Exception], status: Callable[[Any], int]
) -> None:
    for code in STATUSES:
        with pytest.raises(error) as caught:
            await ask(f"E{code}")
        assert status(caught.value) == code, (code, caught.value)


async def end_generators(closed: Any) -> None:
    """Read a closed stream: the error that it raises ends the generators of the client.

    Closing a stream leaves them suspended, ``aiter_raw`` of httpx among them. The garbage
    collector would end them at any later time, even while the event loop is being closed.
    """
    with pytest.raises((openai.APIConnectionError, httpx2.ReadError)):
        async for _ in closed:
            pass


def find_status(error: Any) -> int:
    return int(error.status_code)


class OpenaiChat:
    """Use each feature through the openai client and the Chat Completions API."""

    name = "openai, chat"

    @staticmethod
    def client(url: str) -> Any:
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)

    @staticmethod
    async def ask(client: Any, model: str, text: str = "Hi", **more: Any) -> Any:
        return await client.chat.completions.create(model=model, messages=user(text), **more)

    async def lists(self, client: Any, model: str) -> None:
        assert model in [each.id async for each in client.models.list()]

    async def completes(self, client: Any, model: str) -> None:
        made = await self.ask(client, model)
        assert (made.choices[0].message.content, made.usage.prompt_tokens > 0) == (TEXT, True)

    async def streams(self, client: Any, model: str) -> None:
        chunks = [
            each
            async for each in await self.ask(
                client, model, stream=True, stream_options={"include_usage": True}
            )
        ]
        assert (
            "".join([each.choices[0].delta.content or "" for each in chunks if each.choices])
            == TEXT
        )
        assert chunks[-1].usage.completion_tokens > 0

    async def calls(self, client: Any, model: str, word: str = "CALL", **more: Any) -> list[str]:
        tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
        made = await self.ask(client, model, word, tools=tools, **more)
        return [call.function.arguments for call in made.choices[0].message.tool_calls]

    async def tools(self, client: Any, model: str) -> None:
        assert list(map(json.loads, await self.calls(client, model))) == [{"city": "Paris"}]

    async def parallel(self, client: Any, model: str) -> None:
        assert len(await self.calls(client, model, "BOTH", parallel_tool_calls=True)) == 2

    async def structured(self, client: Any, model: str) -> None:
        made = await client.chat.completions.parse(
            model=model, messages=user("RIVER"), response_format=River
        )
        assert made.choices[0].message.parsed == River(name="Rhine", km=1233)

    async def json_mode(self, client: Any, model: str) -> None:
        made = await self.ask(
            client, model, "RIVER as JSON", response_format={"type": "json_object"}
        )
        assert json.loads(made.choices[0].message.content)["km"] == 1233

    async def thinking(self, client: Any, model: str) -> None:
        made = await self.ask(client, model, "THINK", reasoning_effort="low")
        assert made.choices[0].message.content == "Yes."

    async def image(self, client: Any, model: str) -> None:
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
        content = [{"type": "text", "text": "What?"}, picture]
        made = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": content}]
        )
        assert made.choices[0].message.content == TEXT

    async def errors(self, client: Any, model: str) -> None:
        await check_errors(
            lambda text: self.ask(client, model, text), openai.APIStatusError, find_status
        )

    async def abort(self, client: Any, model: str) -> None:
        stream = await self.ask(client, model, "SLOW", stream=True)
        await anext(aiter(stream))
        await stream.close()
        await end_generators(stream)

    async def usage(self, client: Any, model: str) -> None:
        whole = (await self.ask(client, model, "USAGE")).usage
        asked = await self.ask(
            client, model, "USAGE", stream=True, stream_options={"include_usage": True}
        )
        streamed = [each async for each in asked][-1].usage
        assert {
            (each.prompt_tokens, each.completion_tokens, each.total_tokens)
            for each in (whole, streamed)
        } == {(7, 5, 12)}


class OpenaiResponses(OpenaiChat):
    """Use each feature through the openai client and the Responses API."""

    name = "openai, responses"

    @staticmethod
    async def ask(client: Any, model: str, prompt: Any = "Hi", **more: Any) -> Any:
        return await client.responses.create(model=model, input=prompt, **more)

    async def completes(self, client: Any, model: str) -> None:
        made = await self.ask(client, model)
        assert (made.output_text, made.usage.input_tokens > 0) == (TEXT, True)

    async def streams(self, client: Any, model: str) -> None:
        events = [each async for each in await self.ask(client, model, stream=True)]
        assert (
            "".join([each.delta for each in events if each.type == "response.output_text.delta"])
            == TEXT
        )
        assert events[-1].response.usage.output_tokens > 0

    async def calls(self, client: Any, model: str, word: str = "CALL", **more: Any) -> list[str]:
        made = await self.ask(
            client,
            model,
            word,
            tools=[{"type": "function", "name": "weather", "parameters": CITY}],
            **more,
        )
        return [item.arguments for item in made.output if item.type == "function_call"]

    async def structured(self, client: Any, model: str) -> None:
        made = await client.responses.parse(model=model, input="RIVER", text_format=River)
        assert made.output_parsed == River(name="Rhine", km=1233)

    async def json_mode(self, client: Any, model: str) -> None:
        made = await self.ask(
            client, model, "RIVER as JSON", text={"format": {"type": "json_object"}}
        )
        assert json.loads(made.output_text)["km"] == 1233

    async def thinking(self, client: Any, model: str) -> None:
        made = await self.ask(
            client, model, "THINK", reasoning={"effort": "low", "summary": "auto"}
        )
        assert made.output_text == "Yes."

    async def image(self, client: Any, model: str) -> None:
        parts = [
            {"type": "input_text", "text": "What?"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
        ]
        made = await self.ask(client, model, [{"role": "user", "content": parts}])
        assert made.output_text == TEXT

    async def usage(self, client: Any, model: str) -> None:
        whole = (await self.ask(client, model, "USAGE")).usage
        streamed = [each async for each in await self.ask(client, model, "USAGE", stream=True)][
            -1
        ].response.usage
        assert {
            (each.input_tokens, each.output_tokens, each.total_tokens)
            for each in (whole, streamed)
        } == {(7, 5, 12)}


class Anthropic:
    """Use each feature through the anthropic client."""

    name = "anthropic"

    @staticmethod
    def client(url: str) -> Any:
        return anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0)

    @staticmethod
    async def ask(client: Any, model: str, text: Any = "Hi", **more: Any) -> Any:
        return await client.messages.create(
            model=model, messages=user(text), max_tokens=2000, **more
        )

    async def lists(self, client: Any, model: str) -> None:
        assert model in [each.id async for each in client.models.list()]

    async def completes(self, client: Any, model: str) -> None:
        made = await self.ask(client, model)
        assert (made.content[0].text, made.usage.input_tokens > 0) == (TEXT, True)

    async def streams(self, client: Any, model: str) -> None:
        async with client.messages.stream(
            model=model, messages=user("Hi"), max_tokens=99
        ) as stream:
            assert await stream.get_final_text() == TEXT
            assert (await stream.get_final_message()).usage.output_tokens > 0

    async def calls(self, client: Any, model: str, word: str = "CALL", **more: Any) -> list[Any]:
        made = await self.ask(
            client, model, word, tools=[{"name": "weather", "input_schema": CITY}], **more
        )
        return [block.input for block in made.content if block.type == "tool_use"]

    async def tools(self, client: Any, model: str) -> None:
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        assert await self.calls(client, model, tool_choice=choice) == [{"city": "Paris"}]

    async def parallel(self, client: Any, model: str) -> None:
        assert len(await self.calls(client, model, "BOTH")) == 2

    async def structured(self, client: Any, model: str) -> None:
        made = await client.messages.parse(
            model=model, messages=user("RIVER"), max_tokens=99, output_format=River
        )
        assert made.parsed_output == River(name="Rhine", km=1233)

    async def thinking(self, client: Any, model: str) -> None:
        for asked in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
            made = await self.ask(client, model, "THINK", thinking=asked)
            assert made.content[-1].text == "Yes."

    async def image(self, client: Any, model: str) -> None:
        source = {"type": "base64", "media_type": "image/png", "data": PNG}
        made = await self.ask(
            client, model, [{"type": "text", "text": "What?"}, {"type": "image", "source": source}]
        )
        assert made.content[0].text == TEXT

    async def errors(self, client: Any, model: str) -> None:
        await check_errors(
            lambda text: self.ask(client, model, text), anthropic.APIStatusError, find_status
        )

    async def abort(self, client: Any, model: str) -> None:
        async with client.messages.stream(
            model=model, messages=user("SLOW"), max_tokens=99
        ) as stream:
            await anext(aiter(stream.text_stream))
        await end_generators(stream.text_stream)

    async def usage(self, client: Any, model: str) -> None:
        whole = (await self.ask(client, model, "USAGE")).usage
        async with client.messages.stream(
            model=model, messages=user("USAGE"), max_tokens=99
        ) as stream:
            streamed = (await stream.get_final_message()).usage
        assert {(each.input_tokens, each.output_tokens) for each in (whole, streamed)} == {(7, 5)}


class Gemini:
    """Use each feature through the google-genai client."""

    name = "google-genai"

    @staticmethod
    def client(url: str) -> Any:
        return google.genai.Client(api_key="x", http_options={"base_url": url})

    @staticmethod
    async def ask(client: Any, model: str, text: Any = "Hi", **config: Any) -> Any:
        return await client.aio.models.generate_content(model=model, contents=text, config=config)

    async def lists(self, client: Any, model: str) -> None:
        assert f"models/{model}" in [each.name async for each in await client.aio.models.list()]

    async def completes(self, client: Any, model: str) -> None:
        made = await self.ask(client, model, candidate_count=1)
        assert (made.text, made.usage_metadata.prompt_token_count > 0) == (TEXT, True)

    async def streams(self, client: Any, model: str) -> None:
        stream = await client.aio.models.generate_content_stream(model=model, contents="Hi")
        chunks = [each async for each in stream]
        assert "".join([each.text or "" for each in chunks]) == TEXT
        assert chunks[-1].usage_metadata.candidates_token_count > 0

    async def calls(self, client: Any, model: str, word: str = "CALL") -> list[Any]:
        declared = {"name": "weather", "parameters_json_schema": CITY}
        made = await self.ask(client, model, word, tools=[{"function_declarations": [declared]}])
        return [call.args for call in made.function_calls]

    async def tools(self, client: Any, model: str) -> None:
        assert await self.calls(client, model) == [{"city": "Paris"}]

    async def parallel(self, client: Any, model: str) -> None:
        assert len(await self.calls(client, model, "BOTH")) == 2

    async def structured(self, client: Any, model: str) -> None:
        made = await self.ask(
            client, model, "RIVER", response_mime_type="application/json", response_schema=River
        )
        assert made.parsed == River(name="Rhine", km=1233)

    async def json_mode(self, client: Any, model: str) -> None:
        made = await self.ask(
            client, model, "RIVER as JSON", response_mime_type="application/json"
        )
        assert json.loads(made.text)["km"] == 1233

    async def thinking(self, client: Any, model: str) -> None:
        made = await self.ask(
            client,
            model,
            "THINK",
            thinking_config={"include_thoughts": True, "thinking_budget": 1024},
        )
        assert made.text == "Yes."

    async def image(self, client: Any, model: str) -> None:
        picture = google.genai.types.Part.from_bytes(
            data=base64.b64decode(PNG), mime_type="image/png"
        )
        assert (await self.ask(client, model, ["What?", picture])).text == TEXT

    async def errors(self, client: Any, model: str) -> None:
        await check_errors(
            lambda text: self.ask(client, model, text),
            google.genai.errors.APIError,
            lambda error: int(error.code),
        )

    async def abort(self, client: Any, model: str) -> None:
        began = asyncio.Event()

        # Google-genai keeps the socket open when a stream is closed; cancelling the read closes
        # it.
        async def read() -> None:
            async for _ in await client.aio.models.generate_content_stream(
                model=model, contents="SLOW"
            ):
                began.set()

        reading = asyncio.ensure_future(read())
        await began.wait()
        reading.cancel()
        await asyncio.wait([reading])

    async def usage(self, client: Any, model: str) -> None:
        whole = (await self.ask(client, model, "USAGE")).usage_metadata
        stream = await client.aio.models.generate_content_stream(model=model, contents="USAGE")
        streamed = [each async for each in stream][-1].usage_metadata
        assert {
            (each.prompt_token_count, each.candidates_token_count) for each in (whole, streamed)
        } == {(7, 5)}


class Ollama:
    """Use each feature through the ollama client."""

    name = "ollama"

    @staticmethod
    def client(url: str) -> Any:
        return ollama.AsyncClient(host=url)

    @staticmethod
    async def ask(client: Any, model: str, text: str = "Hi", **more: Any) -> Any:
        return await client.chat(model, user(text), **more)

    async def lists(self, client: Any, model: str) -> None:
        assert model in [each.model for each in (await client.list()).models]

    async def completes(self, client: Any, model: str) -> None:
        made = await self.ask(client, model)
        assert (made.message.content, made.eval_count > 0) == (TEXT, True)
        assert (await client.generate(model, "Hi")).response == TEXT

    async def streams(self, client: Any, model: str) -> None:
        pieces = [
            piece.message.content async for piece in await self.ask(client, model, stream=True)
        ]
        assert "".join(pieces) == TEXT

    async def calls(self, client: Any, model: str, word: str = "CALL") -> list[Any]:
        tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
        made = await self.ask(client, model, word, tools=tools)
        return [call.function.arguments for call in made.message.tool_calls]

    async def tools(self, client: Any, model: str) -> None:
        assert await self.calls(client, model) == [{"city": "Paris"}]

    async def parallel(self, client: Any, model: str) -> None:
        assert len(await self.calls(client, model, "BOTH")) == 2

    async def structured(self, client: Any, model: str) -> None:
        made = await self.ask(client, model, "RIVER", format=River.model_json_schema())
        assert River.model_validate_json(made.message.content).km == 1233

    async def json_mode(self, client: Any, model: str) -> None:
        made = await self.ask(client, model, "RIVER as JSON", format="json")
        assert json.loads(made.message.content)["km"] == 1233

    async def thinking(self, client: Any, model: str) -> None:
        made = await self.ask(client, model, "THINK", think=True)
        assert made.message.content == "Yes."

    async def image(self, client: Any, model: str) -> None:
        made = await client.chat(model, [{"role": "user", "content": "What?", "images": [PNG]}])
        assert made.message.content == TEXT

    async def errors(self, client: Any, model: str) -> None:
        await check_errors(
            lambda text: self.ask(client, model, text), ollama.ResponseError, find_status
        )

    async def abort(self, client: Any, model: str) -> None:
        stream = await self.ask(client, model, "SLOW", stream=True)
        await anext(stream)
        await stream.aclose()

    async def usage(self, client: Any, model: str) -> None:
        whole = await self.ask(client, model, "USAGE")
        streamed = [each async for each in await self.ask(client, model, "USAGE", stream=True)][-1]
        assert {(each.prompt_eval_count, each.eval_count) for each in (whole, streamed)} == {
            (7, 5)
        }


CLIENTS: tuple[Any, ...] = (OpenaiChat(), OpenaiResponses(), Anthropic(), Gemini(), Ollama())
UPSTREAMS = (*WIRES, "cohere", "bedrock")
"""The wires of the models; no client is tested for the last two."""
FEATURES = (
    *(
        "lists",
        "completes",
        "streams",
        "tools",
        "parallel",
        "structured",
        "json_mode",
        "thinking",
        "image",
        "errors",
    ),
    *("abort", "usage"),
)


class Relay:
    """Forward bytes to a server, and record when the client closes its latest connection."""

    def __init__(self, port: int) -> None:
        self.closed = asyncio.Event()
        self._port = port
        self._tasks: set[asyncio.Task[Any] | None] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in self._tasks:
                assert task is not None
                task.cancel()
            await asyncio.sleep(0)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        closed = asyncio.Event()
        self._tasks.add(asyncio.current_task())
        above, below = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.ensure_future(pump(above, writer))
        try:
            while data := await reader.read(65536):
                self.closed = closed
                below.write(data)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            closed.set()
            below.close()
            writer.close()
            back.cancel()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


class Bench(NamedTuple):
    """Hold the URL of a gateway, and for each wire a relay in front of the model's server."""

    url: str
    relays: dict[str, Relay]


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[Bench]:
    with SimServer(script(), models=("sim",)) as upstream:
        async with contextlib.AsyncExitStack() as stack:
            models: dict[str, Provider] = {}
            relays: dict[str, Relay] = {}
            for wire in UPSTREAMS:
                address = urlsplit(upstream.base_urls[wire])
                relays[wire] = Relay(address.port or 0)
                port = await stack.enter_async_context(relays[wire].serving())
                base_url = f"http://127.0.0.1:{port}{address.path}"
                models[wire] = connect("sim", wire=wire, base_url=base_url, api_key="k" * 12)
            yield Bench(await stack.enter_async_context(serving(create_app(models))), relays)


async def close(client: Any) -> None:
    if isinstance(client, google.genai.Client):
        await client.aio.aclose()
        client.close()
    elif isinstance(client, ollama.AsyncClient):
        await client._client.aclose()  # noqa: SLF001 - the client has no close() of its own
    else:
        await client.close()


async def run(bench: Bench, each: Any, wires: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """Return the outcome of each feature of a client, by feature and wire."""
    client, found = each.client(bench.url), {}
    try:
        for feature in FEATURES:
            cell = getattr(each, feature, None)
            for wire in wires:
                if cell is None:
                    found[feature, wire] = "–"
                    continue
                try:
                    await cell(client, wire)
                    if feature == "abort":
                        await arrival(bench.relays[wire].closed.wait(), "the end of the call")
                    found[feature, wire] = "yes"
                except Exception as error:
                    found[feature, wire] = f"no: {type(error).__name__}: {str(error)[:300]}"
    finally:
        await close(client)
    return found


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
@pytest.mark.parametrize("each", CLIENTS, ids=lambda each: each.name)
async def test_every_supported_combination_of_client_and_upstream_wire_works(each: Any) -> None:
    at = CLIENTS.index(each)
    wires = UPSTREAMS if EXHAUSTIVE else (WIRES[at], UPSTREAMS[(at + 2) % len(UPSTREAMS)])
    async with gateway() as bench:
        found = await run(bench, each, wires)
    assert {key: value for key, value in found.items() if value not in ("yes", "–")} == {}
    page = PAGE.read_text()
    for feature in FEATURES:
        shown = "yes" if getattr(each, feature, None) else "–"
        assert (
            f"| {each.name} | {feature.replace('_', ' ')} | "
            f"{' | '.join([shown] * len(UPSTREAMS))} |" in page
        )


_HEAD = """# Clients over the gateway

This page shows how the vendors' own clients, unchanged, work with the gateway and models of every wire. A test checks
each cell of the table over real sockets; `–` marks a feature that a client cannot request.
`python -m tests.gateway.test_matrix` writes this page.

"""


def write_page(cells: dict[str, dict[tuple[str, str], str]]) -> str:
    """Return the documentation page that shows the outcomes of a run as a table."""
    lines = [
        f"| client | feature | {' | '.join(UPSTREAMS)} |",
        "|---|---|" + "---|" * len(UPSTREAMS),
    ]
    for name, found in cells.items():
        for feature in FEATURES:
            shown = [found[feature, wire].partition(":")[0] for wire in UPSTREAMS]
            lines.append(f"| {name} | {feature.replace('_', ' ')} | {' | '.join(shown)} |")
    return _HEAD + "\n".join(lines) + "\n"


async def main() -> None:
    async with gateway() as bench:
        cells = {each.name: await run(bench, each, UPSTREAMS) for each in CLIENTS}
    for name, found in cells.items():
        for key, value in found.items():
            if value.startswith("no"):
                print(name, key, value)
    # Keep the second part of the page, which tests.clients.results writes.
    _, title, programs = PAGE.read_text().partition("\n## ")
    PAGE.write_text(write_page(cells) + title + programs)


if __name__ == "__main__":
    asyncio.run(main())
