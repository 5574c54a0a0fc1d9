"""Run tool loops with the vendors' own SDKs, which send each reply back as their users do.

A conversation belongs to one client. Each request may ask for another model, as a router or a user
who switches the model does.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import anthropic
import boto3
import botocore.config
import cohere
import google.genai
import httpx
import ollama
import openai
from google.genai import types

from dragoman.provider import Provider
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer
from tests.wire.vendor_turns import join_stream

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = "look"
ASKED = "Where is it?"


class Made(NamedTuple):
    """A reply as its client reads it."""

    text: str
    calls: list[tuple[str, str, Any]]  # the id, the name and the arguments of each call


class Conversation:
    """A conversation of a client: ``ask`` sends it, ``answer`` adds the results of the calls."""

    wire: ClassVar[str]

    def __init__(self, url: str, **settings: Any) -> None:
        self.settings = settings
        self.history: list[Any] = []
        self.open(url)
        self.tell(ASKED)

    def open(self, url: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""

    def tell(self, text: str) -> None:
        """Add a message of the user."""
        self.history.append({"role": "user", "content": text})

    def ask(self, model: str, stream: bool) -> Made:
        """Send the conversation, add the reply to it, and return the reply."""
        raise NotImplementedError

    def answer(self, made: Made, result: str = "there") -> None:
        """Add the results of the calls of a reply."""
        raise NotImplementedError


class AnthropicTurns(Conversation):
    wire = "anthropic"

    def open(self, url: str) -> None:
        self.sdk = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)

    def close(self) -> None:
        self.sdk.close()

    def ask(self, model: str, stream: bool) -> Made:
        given: Any = {
            "model": model,
            "max_tokens": 9000,
            "messages": self.history,
            "tools": [{"name": TOOL, "input_schema": SCHEMA}],
            "thinking": {"type": "enabled", "budget_tokens": 4000},
            **self.settings,
        }
        if stream:
            with self.sdk.messages.stream(**given) as events:
                message = events.get_final_message()
        else:
            message = self.sdk.messages.create(**given)
        self.history.append({"role": "assistant", "content": message.content})
        text = "".join([each.text for each in message.content if each.type == "text"])
        calls = [(e.id, e.name, e.input) for e in message.content if e.type == "tool_use"]
        return Made(text, calls)

    def answer(self, made: Made, result: str = "there") -> None:
        results = [
            {"type": "tool_result", "tool_use_id": name, "content": result}
            for name, _, _ in made.calls
        ]
        self.history.append({"role": "user", "content": results})


class OpenaiTurns(Conversation):
    wire = "openai"

    def open(self, url: str) -> None:
        self.sdk = openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0)

    def close(self) -> None:
        self.sdk.close()

    def keep(self, message: Any) -> Any:
        """Return the message of a reply as it is sent back."""
        return message

    def ask(self, model: str, stream: bool) -> Made:
        given: Any = {
            "model": model,
            "messages": self.history,
            "tools": [{"type": "function", "function": {"name": TOOL, "parameters": SCHEMA}}],
            "reasoning_effort": "high",
            **self.settings,
        }
        if stream:
            with self.sdk.chat.completions.stream(**given) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = self.sdk.chat.completions.create(**given).choices[0].message
        self.history.append(self.keep(message))
        calls = [
            (each.id, each.function.name, json.loads(each.function.arguments))
            for each in message.tool_calls or ()
        ]
        return Made(message.content or "", calls)

    def answer(self, made: Made, result: str = "there") -> None:
        self.history += [
            {"role": "tool", "tool_call_id": name, "content": result} for name, _, _ in made.calls
        ]


class PlainOpenaiTurns(OpenaiTurns):
    """A client that sends back only the fields that Chat Completions has."""

    def keep(self, message: Any) -> Any:
        calls = [
            {
                "id": each.id,
                "type": "function",
                "function": {"name": each.function.name, "arguments": each.function.arguments},
            }
            for each in message.tool_calls or ()
        ]
        kept: dict[str, Any] = {"role": "assistant", "content": message.content}
        return {**kept, "tool_calls": calls} if calls else kept


class ResponsesTurns(Conversation):
    wire = "responses"

    def open(self, url: str) -> None:
        self.sdk = openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0)

    def close(self) -> None:
        self.sdk.close()

    def ask(self, model: str, stream: bool) -> Made:
        given: Any = {
            "model": model,
            "input": self.history,
            "tools": [{"type": "function", "name": TOOL, "parameters": SCHEMA}],
            "reasoning": {"effort": "high", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "store": False,
            **self.settings,
        }
        if stream:
            events = [*self.sdk.responses.create(**given, stream=True)]
            # Codex keeps the items that are done.
            output = [each.item for each in events if each.type == "response.output_item.done"]
            text = "".join([e.delta for e in events if e.type == "response.output_text.delta"])
        else:
            response = self.sdk.responses.create(**given)
            output = response.output
            text = response.output_text
        self.history += [each.model_dump(exclude_none=True) for each in output]
        calls = [
            (each.call_id, each.name, json.loads(each.arguments))
            for each in output
            if each.type == "function_call"
        ]
        return Made(text, calls)

    def answer(self, made: Made, result: str = "there") -> None:
        self.history += [
            {"type": "function_call_output", "call_id": name, "output": result}
            for name, _, _ in made.calls
        ]


class GeminiTurns(Conversation):
    """A chat of Google's SDK, which keeps the history itself."""

    wire = "gemini"

    def open(self, url: str) -> None:
        self.sdk = google.genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url))
        declared = types.FunctionDeclaration(name=TOOL, parameters_json_schema=SCHEMA)
        self.config = types.GenerateContentConfig(
            tools=[types.Tool(function_declarations=[declared])],
            thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_budget=4000),
            **self.settings,
        )
        self.chat = self.sdk.chats.create(model="m", config=self.config)
        self.said: Any = None

    def close(self) -> None:
        self.sdk.close()

    def tell(self, text: str) -> None:
        self.said = text

    def ask(self, model: str, stream: bool) -> Made:
        self.chat._model = model  # noqa: SLF001 - a chat has no setter for its model
        if stream:
            read = [*self.chat.send_message_stream(self.said)]
        else:
            read = [self.chat.send_message(self.said)]
        parts = [
            part
            for each in read
            for part in ((each.candidates or [])[0].content.parts or ())  # type: ignore[union-attr]
        ]
        text = "".join([part.text for part in parts if part.text and not part.thought])
        calls = [part.function_call for part in parts if part.function_call]
        return Made(text, [(call.id or "", call.name or "", call.args) for call in calls])

    def answer(self, made: Made, result: str = "there") -> None:
        self.said = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=name or None, name=tool, response={"result": result}
                )
            )
            for name, tool, _ in made.calls
        ]


class BedrockTurns(Conversation):
    wire = "bedrock"

    def open(self, url: str) -> None:
        self.sdk = boto3.client(
            "bedrock-runtime",
            region_name="eu-west-1",
            endpoint_url=url,
            aws_access_key_id="k",
            aws_secret_access_key="k",
            config=botocore.config.Config(retries={"total_max_attempts": 1}),
        )

    def close(self) -> None:
        self.sdk.close()

    def tell(self, text: str) -> None:
        self.history.append({"role": "user", "content": [{"text": text}]})

    def ask(self, model: str, stream: bool) -> Made:
        tool = {"toolSpec": {"name": TOOL, "inputSchema": {"json": SCHEMA}}}
        thinking = {"thinking": {"type": "enabled", "budget_tokens": 4000}}
        given: Any = {
            "modelId": model,
            "messages": self.history,
            "toolConfig": {"tools": [tool]},
            "inferenceConfig": {"maxTokens": 9000},
            "additionalModelRequestFields": thinking,
            **self.settings,
        }
        if stream:
            message = join_stream([*self.sdk.converse_stream(**given)["stream"]])
        else:
            message = self.sdk.converse(**given)["output"]["message"]
        self.history.append(message)
        text = "".join([each["text"] for each in message["content"] if "text" in each])
        calls = [each["toolUse"] for each in message["content"] if "toolUse" in each]
        return Made(text, [(call["toolUseId"], call["name"], call["input"]) for call in calls])

    def answer(self, made: Made, result: str = "there") -> None:
        results = [
            {"toolResult": {"toolUseId": name, "content": [{"text": result}]}}
            for name, _, _ in made.calls
        ]
        self.history.append({"role": "user", "content": results})


class OllamaTurns(Conversation):
    wire = "ollama"

    def open(self, url: str) -> None:
        self.sdk = ollama.Client(host=url)

    def close(self) -> None:
        self.sdk._client.close()  # noqa: SLF001 - the client has no close() of its own

    def ask(self, model: str, stream: bool) -> Made:
        tool = {"type": "function", "function": {"name": TOOL, "parameters": SCHEMA}}
        given: Any = {"tools": [tool], "think": "high", **self.settings}
        if stream:
            parts = [*self.sdk.chat(model, self.history, stream=True, **given)]
            messages = [part.message for part in parts]
        else:
            messages = [self.sdk.chat(model, self.history, **given).message]
        calls = [call for each in messages for call in each.tool_calls or ()]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join([each.content or "" for each in messages]),
            "thinking": "".join([each.thinking or "" for each in messages]),
        }
        self.history.append({**message, "tool_calls": calls} if calls else message)
        read = [("", call.function.name, dict(call.function.arguments)) for call in calls]
        return Made(message["content"], read)

    def answer(self, made: Made, result: str = "there") -> None:
        self.history += [
            {"role": "tool", "content": result, "tool_name": tool} for _, tool, _ in made.calls
        ]


class CohereTurns(Conversation):
    wire = "cohere"

    def open(self, url: str) -> None:
        # A client of its own would never close its connections.
        self.connections = httpx.Client()
        self.sdk = cohere.ClientV2("k", base_url=url, httpx_client=self.connections)

    def close(self) -> None:
        self.connections.close()

    def ask(self, model: str, stream: bool) -> Made:
        given: Any = {
            "model": model,
            "messages": self.history,
            "tools": [{"type": "function", "function": {"name": TOOL, "parameters": SCHEMA}}],
            "thinking": {"type": "enabled", "token_budget": 4000},
            "request_options": {"max_retries": 0},
            **self.settings,
        }
        if stream:
            message = join_cohere([*self.sdk.chat_stream(**given)])
        else:
            message = self.sdk.chat(**given).message.model_dump(exclude_none=True)
        self.history.append(message)
        text = "".join([e["text"] for e in message.get("content") or () if e["type"] == "text"])
        calls = [
            (each["id"], each["function"]["name"], json.loads(each["function"]["arguments"]))
            for each in message.get("tool_calls") or ()
        ]
        return Made(text, calls)

    def answer(self, made: Made, result: str = "there") -> None:
        self.history += [
            {"role": "tool", "tool_call_id": name, "content": result} for name, _, _ in made.calls
        ]


def join_cohere(events: list[Any]) -> dict[str, Any]:
    """Return the message of a stream, as users of the vendor's SDK put it together."""
    plan = ""
    content: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.type == "message-end" and event.delta.finish_reason == "ERROR":
            raise ValueError(event.delta.error)
        if event.type == "content-start":
            content[event.index] = event.delta.message.content.model_dump(exclude_none=True)
        elif event.type == "content-delta":
            for name, piece in event.delta.message.content.model_dump(exclude_none=True).items():
                content[event.index][name] = content[event.index].get(name, "") + piece
        elif event.type == "tool-plan-delta":
            plan += event.delta.message.tool_plan
        elif event.type == "tool-call-start":
            calls[event.index] = event.delta.message.tool_calls.model_dump(exclude_none=True)
        elif event.type == "tool-call-delta":
            piece = event.delta.message.tool_calls.function.arguments
            calls[event.index]["function"]["arguments"] += piece
    message: dict[str, Any] = {"role": "assistant"}
    fields = {
        "content": [content[at] for at in sorted(content)],
        "tool_calls": [calls[at] for at in sorted(calls)],
        "tool_plan": plan,
    }
    return message | {name: value for name, value in fields.items() if value}


TURNS: Mapping[str, type[Conversation]] = {
    "anthropic": AnthropicTurns,
    "responses": ResponsesTurns,
    "gemini": GeminiTurns,
    "bedrock": BedrockTurns,
    "openai": OpenaiTurns,
    "openai, plain": PlainOpenaiTurns,
    "ollama": OllamaTurns,
    "cohere": CohereTurns,
}
"""The conversations by the name of their client; all but one name is the name of its wire."""


# --- the models ----------------------------------------------------------------------------------

# The vendor and the model that each wire's requests are sent to. Their rules are strict.
UPSTREAMS: Mapping[str, tuple[str | None, str]] = {
    "anthropic": ("anthropic", "claude-sonnet-4-5"),
    "bedrock": ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    "responses": ("openai", "gpt-6.1-sol"),
    "gemini": ("google", "gemini-3.7-flash"),
    "openai": ("deepseek", "deepseek-v4-pro"),
    "ollama": (None, "a-model"),
    "cohere": (None, "a-model"),
}
_CALLS = [Call(TOOL, {"at": "x"}), Call(TOOL, {})]
ANSWERS = (
    Answer(thinking="Hm.", text="Let me see.", tool_calls=_CALLS),
    Answer(thinking="So.", tool_calls=_CALLS[:1]),
    "Done.",
)


class StrictUpstream(SimServer):
    """A model that refuses what its vendor refuses, and records the bodies of its requests."""

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.vendor, self.model_name = UPSTREAMS[wire]
        super().__init__(ScriptedProvider(*ANSWERS, strict=True, vendor=self.vendor))
        self.bodies: list[Any] = []

    async def _answer_chat(self, codec: Any, request: Any) -> Any:
        self.bodies.append(json.loads(await request.body()))
        return await super()._answer_chat(codec, request)

    def open(self) -> Provider:
        """Return a provider that calls this model."""
        return self.connect(self.wire, self.model_name, vendor=self.vendor)

    @property
    def returned(self) -> list[int]:
        """The number of thoughts or signatures in each request, as the body has them."""
        return [_count_states(self.wire, body) for body in self.bodies]


def _count_states(wire: str, body: Any) -> int:
    """Return how many records in a body have the state of reasoning that the wire has."""
    if isinstance(body, list):
        return sum([_count_states(wire, each) for each in body])
    if not isinstance(body, dict):
        return 0
    inner = sum([_count_states(wire, each) for each in body.values()])
    name = _STATE_FIELDS[wire]
    token = body.get(name)
    is_placeholder = isinstance(token, str) and token.startswith("skip_")
    return inner + (bool(token) and isinstance(token, str) and not is_placeholder)


_STATE_FIELDS = {
    "anthropic": "signature",
    "bedrock": "signature",
    "responses": "encrypted_content",
    "gemini": "thoughtSignature",
    "openai": "reasoning_content",
    "ollama": "thinking",
    "cohere": "thinking",
}


def run_loop(url: str, client: str, stream: bool, models: str = "mmm") -> str:
    """Run a turn with tool calls, each request of it with a model; return the last text."""
    conversation = TURNS[client](url)
    try:
        for model in models:
            made = conversation.ask(model, stream)
            if made.calls:
                conversation.answer(made)
            else:
                conversation.tell("And then?")
        return made.text
    finally:
        conversation.close()
