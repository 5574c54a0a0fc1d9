"""Run tool loops with the vendors' own SDKs, which send each reply back as their users do.

A conversation belongs to one client. Each request may ask for another model, as a router or a user
who switches the model does.
"""

import contextlib
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

from tests.wire.vendor_turns import join_stream

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = "look"
ASKED = "Where is it?"


class Made(NamedTuple):
    """A reply as its client reads it."""

    text: str
    calls: list[tuple[str, str, Any]]  # the id, the name and the arguments of each call
    finish: Any = None  # how this API names the end of the reply


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

    def answer(self, made: Made, *results: Any) -> None:
        """Add the results of the calls of a reply: one for each, or the same for all.

        A result is a text, or content in the form of this client's API.
        """
        raise NotImplementedError

    def repeat(self, made: Made) -> None:
        """Add a reply that another client got: its text and its calls, without its thinking."""
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
        return Made(text, calls, message.stop_reason)

    def answer(self, made: Made, *results: Any) -> None:
        blocks = [
            {"type": "tool_result", "tool_use_id": name, "content": result}
            for name, _, result in pair_results(made, results)
        ]
        self.history.append({"role": "user", "content": blocks})

    def repeat(self, made: Made) -> None:
        text = [{"type": "text", "text": made.text}] if made.text else []
        calls = [
            {"type": "tool_use", "id": name, "name": tool, "input": given}
            for name, tool, given in made.calls
        ]
        self.history.append({"role": "assistant", "content": [*text, *calls]})


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
                try:
                    choice: Any = events.get_final_completion().choices[0]
                except openai.LengthFinishReasonError as error:
                    choice = error.completion.choices[0]
                except openai.ContentFilterFinishReasonError:
                    return Made("", [], "content_filter")
        else:
            choice = self.sdk.chat.completions.create(**given).choices[0]
        message = choice.message
        self.history.append(self.keep(message))
        calls = [
            (each.id, each.function.name, json.loads(each.function.arguments))
            for each in message.tool_calls or ()
        ]
        return Made(message.content or "", calls, choice.finish_reason)

    def answer(self, made: Made, *results: Any) -> None:
        self.history += [
            {"role": "tool", "tool_call_id": name, "content": result}
            for name, _, result in pair_results(made, results)
        ]

    def repeat(self, made: Made) -> None:
        calls = [
            {"id": name, "type": "function", "function": {"name": tool, "arguments": given}}
            for name, tool, given in _with_json(made)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": made.text or None}
        self.history.append({**message, "tool_calls": calls} if calls else message)


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
            with self.sdk.responses.create(**given, stream=True) as opened:
                events = [*opened]
            # Codex keeps the items that are done.
            output = [each.item for each in events if each.type == "response.output_item.done"]
            text = "".join([e.delta for e in events if e.type == "response.output_text.delta"])
            response: Any = getattr(events[-1], "response", None)
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
        cut = getattr(response, "incomplete_details", None)
        return Made(text, calls, cut.reason if cut else getattr(response, "status", None))

    def answer(self, made: Made, *results: Any) -> None:
        self.history += [
            {"type": "function_call_output", "call_id": name, "output": result}
            for name, _, result in pair_results(made, results)
        ]

    def repeat(self, made: Made) -> None:
        if made.text:
            self.history.append({"role": "assistant", "content": made.text})
        self.history += [
            {"type": "function_call", "call_id": name, "name": tool, "arguments": given}
            for name, tool, given in _with_json(made)
        ]


class GeminiTurns(Conversation):
    """A chat of Google's SDK, which keeps the history itself."""

    wire = "gemini"

    def open(self, url: str) -> None:
        self.sdk = google.genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url))
        declared = types.FunctionDeclaration(name=TOOL, parameters_json_schema=SCHEMA)
        thinking = types.ThinkingConfig(include_thoughts=True, thinking_budget=4000)
        given: dict[str, Any] = {
            "tools": [types.Tool(function_declarations=[declared])],
            "thinking_config": thinking,
            **self.settings,
        }
        self.config = types.GenerateContentConfig(**given)
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
        ends = [each.candidates[0].finish_reason for each in read if each.candidates]
        return Made(
            text,
            [(call.id or "", call.name or "", call.args) for call in calls],
            ends[-1] and ends[-1].value if ends else None,
        )

    def answer(self, made: Made, *results: Any) -> None:
        self.said = []
        for name, tool, result in pair_results(made, results):
            parts = None if isinstance(result, str) else result
            given = types.FunctionResponse(
                id=name or None,
                name=tool,
                response={} if parts else {"result": result},
                parts=parts,
            )
            self.said.append(types.Part(function_response=given))

    def repeat(self, made: Made) -> None:
        asked = self.said if isinstance(self.said, list) else [types.Part(text=self.said)]
        parts = [types.Part(text=made.text)] if made.text else []
        parts += [
            types.Part(function_call=types.FunctionCall(id=name, name=tool, args=given))
            for name, tool, given in made.calls
        ]
        self.chat._curated_history += [  # noqa: SLF001 - a chat has no method to add to its history
            types.Content(role="user", parts=asked),
            types.Content(role="model", parts=parts),
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
            with contextlib.closing(self.sdk.converse_stream(**given)["stream"]) as opened:
                events = [*opened]
            message = join_stream(events)
            ends = [each["messageStop"] for each in events if "messageStop" in each]
        else:
            reply = self.sdk.converse(**given)
            message = reply["output"]["message"]
            ends = [reply]
        self.history.append(message)
        text = "".join([each["text"] for each in message["content"] if "text" in each])
        calls = [each["toolUse"] for each in message["content"] if "toolUse" in each]
        return Made(
            text,
            [(call["toolUseId"], call["name"], call["input"]) for call in calls],
            ends[0]["stopReason"] if ends else None,
        )

    def answer(self, made: Made, *results: Any) -> None:
        blocks = []
        for name, _, result in pair_results(made, results):
            content = [{"text": result}] if isinstance(result, str) else result
            blocks.append({"toolResult": {"toolUseId": name, "content": content}})
        self.history.append({"role": "user", "content": blocks})

    def repeat(self, made: Made) -> None:
        text = [{"text": made.text}] if made.text else []
        calls = [
            {"toolUse": {"toolUseId": name, "name": tool, "input": given}}
            for name, tool, given in made.calls
        ]
        self.history.append({"role": "assistant", "content": [*text, *calls]})


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
        else:
            parts = [self.sdk.chat(model, self.history, **given)]
        messages = [part.message for part in parts]
        calls = [call for each in messages for call in each.tool_calls or ()]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join([each.content or "" for each in messages]),
            "thinking": "".join([each.thinking or "" for each in messages]),
        }
        self.history.append({**message, "tool_calls": calls} if calls else message)
        read = [("", call.function.name, dict(call.function.arguments)) for call in calls]
        return Made(message["content"], read, parts[-1].done_reason)

    def answer(self, made: Made, *results: Any) -> None:
        self.history += [
            {"role": "tool", "content": result, "tool_name": tool}
            for _, tool, result in pair_results(made, results)
        ]

    def repeat(self, made: Made) -> None:
        calls = [{"function": {"name": tool, "arguments": given}} for _, tool, given in made.calls]
        message: dict[str, Any] = {"role": "assistant", "content": made.text}
        self.history.append({**message, "tool_calls": calls} if calls else message)


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
            events = [*self.sdk.chat_stream(**given)]
            message = join_cohere(events)
            finish = events[-1].delta.finish_reason
        else:
            reply = self.sdk.chat(**given)
            message = reply.message.model_dump(exclude_none=True)
            finish = reply.finish_reason
        self.history.append(message)
        text = "".join([e["text"] for e in message.get("content") or () if e["type"] == "text"])
        calls = [
            (each["id"], each["function"]["name"], json.loads(each["function"]["arguments"]))
            for each in message.get("tool_calls") or ()
        ]
        return Made(text, calls, finish)

    def answer(self, made: Made, *results: Any) -> None:
        self.history += [
            {"role": "tool", "tool_call_id": name, "content": result}
            for name, _, result in pair_results(made, results)
        ]

    def repeat(self, made: Made) -> None:
        calls = [
            {"id": name, "type": "function", "function": {"name": tool, "arguments": given}}
            for name, tool, given in _with_json(made)
        ]
        text = [{"type": "text", "text": made.text}] if made.text else []
        self.history.append(
            {"role": "assistant"}
            | ({"content": text} if text else {})
            | ({"tool_calls": calls} if calls else {})
        )


def pair_results(made: Made, results: tuple[Any, ...]) -> list[tuple[str, str, Any]]:
    """Return the id, the name and the result of each call of a reply."""
    given = results if len(results) > 1 else (*results, "there")[:1] * len(made.calls)
    return [
        (name, tool, result) for (name, tool, _), result in zip(made.calls, given, strict=True)
    ]


def _with_json(made: Made) -> list[tuple[str, str, str]]:
    """Return the calls of a reply with their arguments as JSON."""
    return [(name, tool, json.dumps(given)) for name, tool, given in made.calls]


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
