"""The fields by which the client of each API asks for tools, limits, formats and media."""

import base64
from collections.abc import Mapping
from typing import Any

from google.genai import types

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
PDF = base64.b64encode(b"%PDF-1.4\n1 0 obj<<>>endobj\ntrailer<<>>\n%%EOF\n").decode()


def declare(client: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that offer tools with these schemas."""
    if client == "anthropic":
        return {"tools": [{"name": name, "input_schema": each} for name, each in schemas.items()]}
    if client == "responses":
        tools = [{"type": "function", "name": n, "parameters": s} for n, s in schemas.items()]
        return {"tools": tools}
    if client == "gemini":
        declared = [
            types.FunctionDeclaration(name=name, parameters_json_schema=each)
            for name, each in schemas.items()
        ]
        return {"tools": [types.Tool(function_declarations=declared)]}
    if client == "bedrock":
        specs = [
            {"toolSpec": {"name": name, "inputSchema": {"json": each}}}
            for name, each in schemas.items()
        ]
        return {"toolConfig": {"tools": specs}}
    functions = [
        {"type": "function", "function": {"name": name, "parameters": each}}
        for name, each in schemas.items()
    ]
    return {"tools": functions}


def force(client: str, tools: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that force a call of one of these tools; Ollama's API has none."""
    calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
    forms: dict[str, dict[str, Any]] = {
        "anthropic": {"tool_choice": {"type": "any"}},
        "openai": {"tool_choice": "required"},
        "responses": {"tool_choice": "required"},
        "gemini": {"tool_config": types.ToolConfig(function_calling_config=calling)},
        "bedrock": {"toolConfig": {**tools.get("toolConfig", {}), "toolChoice": {"any": {}}}},
        "cohere": {"tool_choice": "REQUIRED"},
    }
    return {**tools, **forms[client]}


def stop_at(client: str, text: str) -> dict[str, Any]:
    """Return the settings that end the reply before a text; the Responses API has none."""
    forms: dict[str, dict[str, Any]] = {
        "anthropic": {"stop_sequences": [text]},
        "openai": {"stop": [text]},
        "gemini": {"stop_sequences": [text]},
        "bedrock": {"inferenceConfig": {"maxTokens": 9000, "stopSequences": [text]}},
        "ollama": {"options": {"stop": [text]}},
        "cohere": {"stop_sequences": [text]},
    }
    return forms[client]


def limit(client: str, tokens: int) -> dict[str, Any]:
    """Return the settings that limit the length of the reply."""
    forms: dict[str, dict[str, Any]] = {
        "anthropic": {"max_tokens": tokens},
        "openai": {"max_completion_tokens": tokens},
        "responses": {"max_output_tokens": tokens},
        "gemini": {"max_output_tokens": tokens},
        "bedrock": {"inferenceConfig": {"maxTokens": tokens}},
        "ollama": {"options": {"num_predict": tokens}},
        "cohere": {"max_tokens": tokens},
    }
    return forms[client]


def ask_for(client: str, schema: Any) -> dict[str, Any]:
    """Return the settings that ask for a reply of a schema."""
    named = {"name": "answer", "schema": schema, "strict": True}
    forms: dict[str, dict[str, Any]] = {
        "anthropic": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        "openai": {"response_format": {"type": "json_schema", "json_schema": named}},
        "responses": {"text": {"format": {"type": "json_schema", **named}}},
        "gemini": {"response_mime_type": "application/json", "response_json_schema": schema},
        "ollama": {"format": schema},
        "cohere": {"response_format": {"type": "json_object", "json_schema": schema}},
    }
    return forms[client]


def picture(client: str, text: str) -> Any:
    """Return a message of the user with an image, or its content where a client has a chat."""
    data = base64.b64decode(PNG)
    inline = {"url": f"data:image/png;base64,{PNG}"}
    if client == "gemini":
        return [types.Part(text=text), types.Part.from_bytes(data=data, mime_type="image/png")]
    if client == "ollama":
        return {"role": "user", "content": text, "images": [PNG]}
    forms: dict[str, list[Any]] = {
        "anthropic": [{"type": "text", "text": text}, *picture_result("anthropic")],
        "openai": [{"type": "text", "text": text}, {"type": "image_url", "image_url": inline}],
        "cohere": [{"type": "text", "text": text}, {"type": "image_url", "image_url": inline}],
        "responses": [{"type": "input_text", "text": text}, *picture_result("responses")],
        "bedrock": [{"text": text}, *picture_result("bedrock")],
    }
    return {"role": "user", "content": forms[client]}


def document(client: str, text: str) -> Any:
    """Return a message of the user with a PDF, or its content where a client has a chat."""
    data = base64.b64decode(PDF)
    url = f"data:application/pdf;base64,{PDF}"
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF}
    file = {"filename": "a.pdf", "file_data": url}
    if client == "gemini":
        part = types.Part.from_bytes(data=data, mime_type="application/pdf")
        return [types.Part(text=text), part]
    forms: dict[str, list[Any]] = {
        "anthropic": [{"type": "document", "source": source}, {"type": "text", "text": text}],
        "openai": [{"type": "text", "text": text}, {"type": "file", "file": file}],
        "responses": [{"type": "input_text", "text": text}, {"type": "input_file", **file}],
        "bedrock": [
            {"text": text},
            {"document": {"format": "pdf", "name": "a", "source": {"bytes": data}}},
        ],
    }
    return {"role": "user", "content": forms[client]}


def picture_result(client: str) -> Any:
    """Return the content of a tool's result that is an image."""
    data = base64.b64decode(PNG)
    url = f"data:image/png;base64,{PNG}"
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    inline = types.FunctionResponseBlob(mime_type="image/png", data=data)
    forms: dict[str, list[Any]] = {
        "anthropic": [{"type": "image", "source": source}],
        "openai": [{"type": "image_url", "image_url": {"url": url}}],
        "responses": [{"type": "input_image", "image_url": url}],
        "gemini": [types.FunctionResponsePart(inline_data=inline)],
        "bedrock": [{"image": {"format": "png", "source": {"bytes": data}}}],
    }
    return forms[client]
