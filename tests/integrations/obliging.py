"""Provide a scripted model that does what the tests of a framework expect from a real model.

It calls the tool it is offered, with arguments made from the tool's schema and from numbers in the
prompt. It answers with JSON if a schema is requested, and with text otherwise.
"""

import base64
import json
import re
from typing import Any

from pydantic import BaseModel

from dragoman import Request, ToolResult, Usage, User
from dragoman.messages import ForceTool
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule

WIRES = ["openai", "anthropic", "responses", "gemini", "ollama"]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
USAGE = Usage(20, 10, cached_input_tokens=5, cache_creation_input_tokens=2, reasoning_tokens=3)


class City(BaseModel):
    name: str
    people: int


def example_of(schema: dict[str, Any], root: dict[str, Any], numbers: list[int], text: str) -> Any:
    """Return a value that matches a JSON Schema."""
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return example_of(target, root, numbers, text)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return example_of(schema[name][0], root, numbers, text)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: example_of(each, root, numbers, text) for name, each in properties.items()}
    if kind == "array":
        return [example_of(schema.get("items", {}), root, numbers, text)]
    if kind in ("integer", "number"):
        return numbers.pop(0) if numbers else 3
    return {"boolean": True, "null": None}.get(kind, text)


def answer(request: Request) -> Answer:
    last = request.messages[-1]
    prompt = "".join(message.text for message in request.messages if isinstance(message, User))
    numbers = [int(number) for number in re.findall(r"\d+", prompt)]
    wants_call = not isinstance(last, ToolResult) or request.tool_choice not in (None, "auto")
    if request.tools and wants_call and request.tool_choice != "none":
        tool = request.tools[0]
        if isinstance(request.tool_choice, ForceTool):
            tool = next(each for each in request.tools if each.name == request.tool_choice.name)
        arguments = example_of(tool.parameters, tool.parameters, numbers, _quoted(prompt))
        return Answer(tool_calls=[Call(tool.name, arguments)], usage=USAGE)
    if request.response_schema is not None:
        value = example_of(request.response_schema, request.response_schema, numbers, "Because.")
        return Answer(text=json.dumps(value), usage=USAGE)
    stop = request.config.stop_sequences or ()
    text = "Hello from the scripted model: one, two, three."
    for each in stop:
        text = text.partition(each)[0]
    return Answer(text=text, thinking="Let me see.", usage=USAGE)


def _quoted(prompt: str) -> str:
    """Return the quoted text in a prompt, or a default word if nothing is quoted."""
    found = re.search(r"[\"']([^\"']+)[\"']", prompt)
    return found[1] if found else "Basel"


def obliging(model: str = "sim-1") -> ScriptedProvider:
    return ScriptedProvider(ScriptRule(answer), model=model)
