"""The vendors' own clients, with one interface: each feature is used in the same steps."""

import asyncio
import base64
import contextlib
import json
import os
from typing import Any, ClassVar

import anthropic
import botocore.exceptions
import cohere
import cohere.core.api_error
import google.genai
import google.genai.errors
import google.genai.types
import httpx
import httpx2
import ollama
import openai
import pydantic
import pytest

from dragoman.events import Usage
from dragoman.sim import Answer, ScriptedProvider
from tests.clients import scripted
from tests.clients.scripted import STATUSES, TEXT

CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PNG = "iVBORw0KGgo="
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


class River(pydantic.BaseModel):
    name: str
    km: int


def script(sleep: scripted.Sleep = asyncio.sleep) -> ScriptedProvider:
    """Return a model that does what the prompt asks for."""
    usage = Answer(text=TEXT, usage=Usage(7, 5))
    return scripted.script(sleep, USAGE=usage, SLOW=Answer(text="on and " * 1000, pace=0.05))


def user(content: Any) -> Any:
    return [{"role": "user", "content": content}]


async def end_generators(closed: Any) -> None:
    """Read a closed stream: the error that it raises ends the generators of the client.

    Closing a stream leaves them suspended, ``aiter_raw`` of httpx among them. The garbage
    collector would end them at any later time, even while the event loop is being closed.
    """
    with pytest.raises((openai.APIConnectionError, httpx2.ReadError)):
        async for _ in closed:
            pass


class VendorClient:
    """Use each feature through a client. Its class defines how it asks and reads:

    - ``open`` returns a client of the gateway at an address;
    - ``ask`` returns the complete reply to a user message;
    - ``hear`` appends each text of a streamed reply to a list, and returns what has the usage;
    - ``parse`` returns the river that the model names in structured output;
    - ``abort`` ends a stream after its first event;
    - ``resume`` sends a reply with tool calls back, and the result "rain" of each call;
    - ``text`` and ``calls`` return the text and the arguments of the tool calls of a reply;
    - ``tokens`` returns the input tokens, the output tokens and their sum.
    """

    name: str
    error: type[Exception]
    picture: Any
    """The content of a message with an image."""
    with_tool: ClassVar[dict[str, Any]] = {}
    """The arguments that offer a tool; the other arguments are named alike."""
    for_one_call: ClassVar[dict[str, Any]] = {}
    for_many_calls: ClassVar[dict[str, Any]] = {}
    with_json: ClassVar[dict[str, Any]] = {}
    with_thinking: ClassVar[tuple[dict[str, Any], ...]] = ()

    async def close(self, client: Any) -> None:
        await client.close()

    async def assemble(self, client: Any, model: str) -> Any:
        """Return a streamed reply with tool calls, as the client puts it together.

        Some clients leave that to their users, who get the calls in events.
        """
        return await self.ask(client, model, **self.with_tool)

    def status(self, error: Any) -> int:
        return int(error.status_code)

    def headers(self, error: Any) -> Any:
        """Return the headers of a reply with an error status; ``None`` if the client hides them."""
        return getattr(getattr(error, "response", None), "headers", None)

    async def names(self, client: Any) -> list[str]:
        """Return the names of the models."""
        return [each.id async for each in client.models.list()]

    # the features, as the page lists them

    async def lists(self, client: Any, model: str) -> None:
        assert model in await self.names(client)

    async def completes(self, client: Any, model: str) -> None:
        made = await self.ask(client, model)
        assert self.text(made) == TEXT
        assert self.tokens(made)[0] > 0

    async def streams(self, client: Any, model: str) -> None:
        heard: list[str] = []
        made = await self.hear(client, model, "Hi", heard)
        assert "".join(heard) == TEXT
        assert self.tokens(made)[1] > 0

    async def tools(self, client: Any, model: str) -> None:
        made = await self.ask(client, model, "CALL", **self.with_tool, **self.for_one_call)
        assert self.calls(made) == [{"city": "Paris"}]

    async def parallel(self, client: Any, model: str) -> None:
        made = await self.ask(client, model, "BOTH", **self.with_tool, **self.for_many_calls)
        assert self.calls(made) == [{"city": "Paris"}, {"city": "Rome"}]

    async def structured(self, client: Any, model: str) -> None:
        assert await self.parse(client, model) == River(name="Rhine", km=1233)

    async def json_mode(self, client: Any, model: str) -> None:
        made = await self.ask(client, model, "RIVER as JSON", **self.with_json)
        assert json.loads(self.text(made))["km"] == 1233

    async def thinking(self, client: Any, model: str) -> None:
        for asked in self.with_thinking:
            assert self.text(await self.ask(client, model, "THINK", **asked)) == "Yes."

    async def image(self, client: Any, model: str) -> None:
        assert self.text(await self.ask(client, model, self.picture)) == TEXT

    async def errors(self, client: Any, model: str) -> None:
        for code in STATUSES:
            with pytest.raises(self.error) as caught:
                await self.ask(client, model, f"E{code}")
            assert self.status(caught.value) == code, (code, caught.value)

    async def usage(self, client: Any, model: str) -> None:
        whole = await self.ask(client, model, "USAGE")
        streamed = await self.hear(client, model, "USAGE", [])
        assert {self.tokens(whole), self.tokens(streamed)} == {(7, 5, 12)}


class OpenaiChat(VendorClient):
    name = "openai, chat"
    error = openai.APIStatusError
    picture: Any = (
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    )
    with_tool: ClassVar = {"tools": [FUNCTION]}
    for_many_calls: ClassVar = {"parallel_tool_calls": True}
    with_json: ClassVar = {"response_format": {"type": "json_object"}}
    with_thinking = ({"reasoning_effort": "low"},)

    def open(self, url: str, retries: int = 0) -> Any:
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=retries)

    async def ask(self, client: Any, model: str, content: Any = "Hi", **more: Any) -> Any:
        return await client.chat.completions.create(model=model, messages=user(content), **more)

    async def hear(self, client: Any, model: str, content: Any, heard: list[str]) -> Any:
        counted = {"include_usage": True}
        async for chunk in await self.ask(
            client, model, content, stream=True, stream_options=counted
        ):
            heard += [choice.delta.content or "" for choice in chunk.choices]
        return chunk

    async def parse(self, client: Any, model: str) -> Any:
        made = await client.chat.completions.parse(
            model=model, messages=user("RIVER"), response_format=River
        )
        return made.choices[0].message.parsed

    async def abort(self, client: Any, model: str) -> None:
        stream = await self.ask(client, model, "SLOW", stream=True)
        await anext(aiter(stream))
        await stream.close()
        await end_generators(stream)

    async def assemble(self, client: Any, model: str) -> Any:
        async with client.chat.completions.stream(
            model=model, messages=user("Hi"), **self.with_tool
        ) as stream:
            return await stream.get_final_completion()

    async def resume(self, client: Any, model: str, made: Any) -> Any:
        said = made.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})
        for call in said["tool_calls"]:
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
            for call in said["tool_calls"]
        ]
        return await client.chat.completions.create(
            model=model, messages=[*user("Hi"), said, *results], **self.with_tool
        )

    def text(self, made: Any) -> Any:
        return made.choices[0].message.content

    def calls(self, made: Any) -> list[Any]:
        return [json.loads(call.function.arguments) for call in made.choices[0].message.tool_calls]

    def tokens(self, made: Any) -> tuple[int, int, int]:
        used = made.usage
        return used.prompt_tokens, used.completion_tokens, used.total_tokens


class OpenaiResponses(OpenaiChat):
    name = "openai, responses"
    picture: Any = (
        {"type": "input_text", "text": "What?"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
    )
    with_tool: ClassVar = {"tools": [{"type": "function", "name": "weather", "parameters": CITY}]}
    with_json: ClassVar = {"text": {"format": {"type": "json_object"}}}
    with_thinking = ({"reasoning": {"effort": "low", "summary": "auto"}},)

    async def ask(self, client: Any, model: str, content: Any = "Hi", **more: Any) -> Any:
        return await client.responses.create(model=model, input=user(content), **more)

    async def hear(self, client: Any, model: str, content: Any, heard: list[str]) -> Any:
        async for event in await self.ask(client, model, content, stream=True):
            if event.type == "response.output_text.delta":
                heard.append(event.delta)
        return event.response

    async def parse(self, client: Any, model: str) -> Any:
        made = await client.responses.parse(model=model, input="RIVER", text_format=River)
        return made.output_parsed

    async def assemble(self, client: Any, model: str) -> Any:
        async with client.responses.stream(model=model, input="Hi", **self.with_tool) as stream:
            return await stream.get_final_response()

    async def resume(self, client: Any, model: str, made: Any) -> Any:
        said = [
            item.model_dump(exclude_none=True, exclude={"parsed_arguments"})
            for item in made.output
        ]
        for item in said:
            for part in item.get("content", ()):
                part.pop("parsed", None)
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
            for item in said
            if item["type"] == "function_call"
        ]
        return await client.responses.create(
            model=model, input=[*user("Hi"), *said, *results], **self.with_tool
        )

    def text(self, made: Any) -> Any:
        return made.output_text

    def calls(self, made: Any) -> list[Any]:
        return [json.loads(item.arguments) for item in made.output if item.type == "function_call"]

    def tokens(self, made: Any) -> tuple[int, int, int]:
        return made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens


class Anthropic(VendorClient):
    name = "anthropic"
    error = anthropic.APIStatusError
    picture: Any = (
        {"type": "text", "text": "What?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    )
    with_tool: ClassVar = {"tools": [{"name": "weather", "input_schema": CITY}]}
    for_one_call: ClassVar = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    json_mode = None  # type: ignore[assignment]
    with_thinking = (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive"}},
    )

    def open(self, url: str, retries: int = 0) -> Any:
        return anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=retries)

    async def ask(self, client: Any, model: str, content: Any = "Hi", **more: Any) -> Any:
        return await client.messages.create(
            model=model, messages=user(content), max_tokens=2000, **more
        )

    async def hear(self, client: Any, model: str, content: Any, heard: list[str]) -> Any:
        async with client.messages.stream(
            model=model, messages=user(content), max_tokens=99
        ) as stream:
            async for text in stream.text_stream:
                heard.append(text)
            return await stream.get_final_message()

    async def parse(self, client: Any, model: str) -> Any:
        made = await client.messages.parse(
            model=model, messages=user("RIVER"), max_tokens=99, output_format=River
        )
        return made.parsed_output

    async def abort(self, client: Any, model: str) -> None:
        async with client.messages.stream(
            model=model, messages=user("SLOW"), max_tokens=99
        ) as stream:
            await anext(aiter(stream.text_stream))
        await end_generators(stream.text_stream)

    async def assemble(self, client: Any, model: str) -> Any:
        async with client.messages.stream(
            model=model, messages=user("Hi"), max_tokens=99, **self.with_tool
        ) as stream:
            return await stream.get_final_message()

    async def resume(self, client: Any, model: str, made: Any) -> Any:
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
            for block in made.content
            if block.type == "tool_use"
        ]
        turns = [*user("Hi"), {"role": "assistant", "content": made.content}, *user(results)]
        return await client.messages.create(
            model=model, messages=turns, max_tokens=99, **self.with_tool
        )

    def text(self, made: Any) -> Any:
        return made.content[-1].text

    def calls(self, made: Any) -> list[Any]:
        return [block.input for block in made.content if block.type == "tool_use"]

    def tokens(self, made: Any) -> tuple[int, int, int]:
        read = made.usage.input_tokens
        written = made.usage.output_tokens
        return read, written, read + written


class AnthropicBedrock(Anthropic):
    """Anthropic's client of ``InvokeModel``."""

    name = "anthropic, InvokeModel"
    lists = None  # type: ignore[assignment]

    def open(self, url: str, retries: int = 0) -> Any:
        return anthropic.AsyncAnthropicBedrock(
            base_url=url,
            aws_access_key="k",
            aws_secret_key="k",
            aws_region="us-east-1",
            max_retries=retries,
        )


class Gemini(VendorClient):
    name = "google-genai"
    error = google.genai.errors.APIError
    picture: Any = (
        "What?",
        google.genai.types.Part.from_bytes(data=base64.b64decode(PNG), mime_type="image/png"),
    )
    with_tool: ClassVar = {
        "tools": [{"function_declarations": [{"name": "weather", "parameters_json_schema": CITY}]}]
    }
    with_json: ClassVar = {"response_mime_type": "application/json"}
    with_thinking = ({"thinking_config": {"include_thoughts": True, "thinking_budget": 1024}},)

    def open(self, url: str, retries: int = 0) -> Any:
        return google.genai.Client(api_key="x", http_options={"base_url": url})

    async def close(self, client: Any) -> None:
        await client.aio.aclose()
        client.close()

    async def ask(self, client: Any, model: str, content: Any = "Hi", **config: Any) -> Any:
        config = {"candidate_count": 1, **config}
        asked = list(content) if isinstance(content, tuple) else content
        return await client.aio.models.generate_content(model=model, contents=asked, config=config)

    async def hear(self, client: Any, model: str, content: Any, heard: list[str]) -> Any:
        stream = await client.aio.models.generate_content_stream(model=model, contents=content)
        async for chunk in stream:
            heard.append(chunk.text or "")
        return chunk

    async def parse(self, client: Any, model: str) -> Any:
        made = await self.ask(
            client, model, "RIVER", response_mime_type="application/json", response_schema=River
        )
        return made.parsed

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

    async def resume(self, client: Any, model: str, made: Any) -> Any:
        results = [
            google.genai.types.Part.from_function_response(
                name=call.name, response={"result": "rain"}
            )
            for call in made.function_calls
        ]
        turns = ["Hi", made.candidates[0].content, results]
        return await self.ask(client, model, turns, **self.with_tool)

    async def names(self, client: Any) -> list[str]:
        models = await client.aio.models.list()
        return [each.name.removeprefix("models/") async for each in models]

    def text(self, made: Any) -> Any:
        return made.text

    def calls(self, made: Any) -> list[Any]:
        return [call.args for call in made.function_calls]

    def tokens(self, made: Any) -> tuple[int, int, int]:
        used = made.usage_metadata
        read = used.prompt_token_count
        written = used.candidates_token_count
        return read, written, read + written

    def status(self, error: Any) -> int:
        return int(error.code)


class Ollama(VendorClient):
    name = "ollama"
    error = ollama.ResponseError
    picture = "What?"
    with_tool: ClassVar = {"tools": [FUNCTION]}
    with_json: ClassVar = {"format": "json"}
    with_thinking = ({"think": True},)

    def open(self, url: str, retries: int = 0) -> Any:
        return ollama.AsyncClient(host=url)

    async def close(self, client: Any) -> None:
        await client._client.aclose()  # noqa: SLF001 - the client has no close() of its own

    async def ask(self, client: Any, model: str, content: Any = "Hi", **more: Any) -> Any:
        pictures = {"images": [PNG]} if content is self.picture else {}
        return await client.chat(model, [{**user(content)[0], **pictures}], **more)

    async def hear(self, client: Any, model: str, content: Any, heard: list[str]) -> Any:
        async for part in await self.ask(client, model, content, stream=True):
            heard.append(part.message.content or "")
        return part

    async def completes(self, client: Any, model: str) -> None:
        await super().completes(client, model)
        assert (await client.generate(model, "Hi")).response == TEXT

    async def parse(self, client: Any, model: str) -> Any:
        made = await self.ask(client, model, "RIVER", format=River.model_json_schema())
        return River.model_validate_json(made.message.content)

    async def abort(self, client: Any, model: str) -> None:
        stream = await self.ask(client, model, "SLOW", stream=True)
        await anext(stream)
        await stream.aclose()

    async def assemble(self, client: Any, model: str) -> Any:
        parts = [
            part async for part in await self.ask(client, model, stream=True, **self.with_tool)
        ]
        parts[-1].message.tool_calls = [
            call for part in parts for call in part.message.tool_calls or ()
        ]
        return parts[-1]

    async def resume(self, client: Any, model: str, made: Any) -> Any:
        said = {"role": "assistant", "content": "", "tool_calls": made.message.tool_calls}
        results = [
            {"role": "tool", "content": "rain", "tool_name": call.function.name}
            for call in made.message.tool_calls
        ]
        return await client.chat(model, [*user("Hi"), said, *results], **self.with_tool)

    async def names(self, client: Any) -> list[str]:
        return [each.model for each in (await client.list()).models]

    def text(self, made: Any) -> Any:
        return made.message.content

    def calls(self, made: Any) -> list[Any]:
        return [call.function.arguments for call in made.message.tool_calls]

    def tokens(self, made: Any) -> tuple[int, int, int]:
        read = made.prompt_eval_count
        written = made.eval_count
        return read, written, read + written


class Cohere(VendorClient):
    name = "cohere"
    error = cohere.core.api_error.ApiError
    picture: Any = OpenaiChat.picture
    with_tool: ClassVar = {"tools": [FUNCTION]}
    with_json: ClassVar = {"response_format": {"type": "json_object"}}
    with_thinking = ({"thinking": {"type": "enabled", "token_budget": 1024}},)

    def open(self, url: str, retries: int = 0) -> Any:
        # A client of its own would never close its connections.
        connections = httpx.AsyncClient()
        return cohere.AsyncClientV2(
            "x", base_url=url, max_retries=retries, httpx_client=connections
        ), connections

    async def close(self, client: Any) -> None:
        await client[1].aclose()

    async def ask(self, client: Any, model: str, content: Any = "Hi", **more: Any) -> Any:
        asked = list(content) if isinstance(content, tuple) else content
        return await client[0].chat(model=model, messages=user(asked), **more)

    async def hear(self, client: Any, model: str, content: Any, heard: list[str]) -> Any:
        async for event in client[0].chat_stream(model=model, messages=user(content)):
            if event.type == "content-delta":
                heard.append(event.delta.message.content.text)
            if event.type == "message-end" and event.delta.finish_reason == "ERROR":
                raise ValueError(event.delta.error)
        return event.delta

    async def parse(self, client: Any, model: str) -> Any:
        form = {"type": "json_object", "json_schema": River.model_json_schema()}
        made = await self.ask(client, model, "RIVER", response_format=form)
        return River.model_validate_json(self.text(made))

    def headers(self, error: Any) -> Any:
        return error.headers

    async def abort(self, client: Any, model: str) -> None:
        stream = client[0].chat_stream(model=model, messages=user("SLOW"))
        await anext(stream)
        await stream.aclose()

    async def resume(self, client: Any, model: str, made: Any) -> Any:
        said = {"role": "assistant", "tool_calls": made.message.tool_calls}
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "rain"}
            for call in made.message.tool_calls
        ]
        talk = [*user("Hi"), said, *results]
        return await client[0].chat(model=model, messages=talk, **self.with_tool)

    async def names(self, client: Any) -> list[str]:
        return [each.name for each in (await client[0].models.list()).models]

    def text(self, made: Any) -> Any:
        return made.message.content[-1].text

    def calls(self, made: Any) -> list[Any]:
        return [json.loads(call.function.arguments) for call in made.message.tool_calls]

    def tokens(self, made: Any) -> tuple[int, int, int]:
        used = made.usage.tokens
        read = int(used.input_tokens)
        written = int(used.output_tokens)
        return read, written, read + written


class Boto3(VendorClient):
    """Use boto3, which has no asyncio interface, in threads."""

    name = "boto3"
    error = botocore.exceptions.ClientError
    lists = None  # type: ignore[assignment]
    json_mode = None  # type: ignore[assignment]
    picture: Any = (
        {"text": "What?"},
        {"image": {"format": "png", "source": {"bytes": base64.b64decode(PNG)}}},
    )
    with_tool: ClassVar = {
        "toolConfig": {"tools": [{"toolSpec": {"name": "weather", "inputSchema": {"json": CITY}}}]}
    }
    with_thinking = (
        {
            "additionalModelRequestFields": {
                "thinking": {"type": "enabled", "budget_tokens": 1024}
            },
            "inferenceConfig": {"maxTokens": 2000},
        },
    )

    def open(self, url: str, retries: int = 0) -> Any:
        import boto3  # takes half a second
        import botocore.config

        how = botocore.config.Config(retries={"total_max_attempts": 1 + retries})
        # With keys of its own, the client signs its requests and ignores the token.
        is_signed = "AWS_BEARER_TOKEN_BEDROCK" not in os.environ
        keys = ("AKID", "secret") if is_signed else (None, None)
        return boto3.client(
            "bedrock-runtime", "us-east-1", None, True, None, url, *keys, config=how
        )

    async def close(self, client: Any) -> None:
        client.close()

    def _fields(self, model: str, content: Any, more: dict[str, Any]) -> dict[str, Any]:
        blocks = [{"text": content}] if isinstance(content, str) else list(content)
        return {"modelId": model, "messages": user(blocks), **more}

    async def ask(self, client: Any, model: str, content: Any = "Hi", **more: Any) -> Any:
        return await asyncio.to_thread(client.converse, **self._fields(model, content, more))

    async def hear(self, client: Any, model: str, content: Any, heard: list[str]) -> Any:
        def read() -> Any:
            stream = client.converse_stream(**self._fields(model, content, {}))["stream"]
            with contextlib.closing(stream):
                for event in stream:
                    if "contentBlockDelta" in event:
                        heard.append(event["contentBlockDelta"]["delta"].get("text", ""))
            return event["metadata"]

        return await asyncio.to_thread(read)

    async def parse(self, client: Any, model: str) -> Any:
        schema = {"schema": json.dumps(River.model_json_schema()), "name": "River"}
        form = {"type": "json_schema", "structure": {"jsonSchema": schema}}
        made = await self.ask(client, model, "RIVER", outputConfig={"textFormat": form})
        return River.model_validate_json(self.text(made))

    async def abort(self, client: Any, model: str) -> None:
        def read() -> None:
            stream = client.converse_stream(**self._fields(model, "SLOW", {}))["stream"]
            next(iter(stream))
            stream.close()

        await asyncio.to_thread(read)

    async def resume(self, client: Any, model: str, made: Any) -> Any:
        said = made["output"]["message"]
        results = [
            {
                "toolResult": {
                    "toolUseId": block["toolUse"]["toolUseId"],
                    "content": [{"text": "rain"}],
                }
            }
            for block in said["content"]
            if "toolUse" in block
        ]
        talk = [*user([{"text": "Hi"}]), said, *user(results)]
        return await asyncio.to_thread(
            client.converse, modelId=model, messages=talk, **self.with_tool
        )

    def text(self, made: Any) -> Any:
        return made["output"]["message"]["content"][-1]["text"]

    def calls(self, made: Any) -> list[Any]:
        blocks = made["output"]["message"]["content"]
        return [block["toolUse"]["input"] for block in blocks if "toolUse" in block]

    def tokens(self, made: Any) -> tuple[int, int, int]:
        used = made["usage"]
        return used["inputTokens"], used["outputTokens"], used["totalTokens"]

    def status(self, error: Any) -> int:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"])

    def headers(self, error: Any) -> Any:
        return error.response["ResponseMetadata"]["HTTPHeaders"]


CLIENTS = (
    OpenaiChat(), OpenaiResponses(), Anthropic(), Gemini(), Ollama(), Cohere(), Boto3(),
    AnthropicBedrock(),
)  # fmt: skip
FEATURES = (
    "lists", "completes", "streams", "tools", "parallel", "structured", "json_mode", "thinking",
    "image", "errors", "abort", "usage",
)  # fmt: skip
