"""The OpenAPI document of the gateway."""

from __future__ import annotations

from typing import Any

_STATUSES = {
    "400": "The request is wrong; the body names the field.",
    "401": "No key, or one that is not known.",
    "402": "The key's budget, or the provider's account, is used up.",
    "403": "Not from here.",
    "404": "No model of this name.",
    "408": "The body did not arrive in time.",
    "413": "The body is too long.",
    "415": "The body is not declared as JSON.",
    "429": "Too many requests; see retry-after.",
    "500": "The provider failed.",
    "502": "The provider cannot be reached, or its reply cannot be read.",
    "503": "The provider is overloaded or loading, or the gateway is shutting down.",
    "504": "The provider took too long.",
    "529": "The provider is overloaded.",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "object", "required": ["message", "type"]}},
}
_SENTENCE = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_EVENTS = "text/event-stream"
_NOTE = {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
_DENIED = ("400", "401", "403")
_TEXT_OR_PARTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"type": "string"},
        "content": {"anyOf": [*_TEXT_OR_PARTS["anyOf"], {"type": "null"}]},
    },
}
_COMMON: dict[str, Any] = {
    "model": {"type": "string", "description": "The name of a model as this gateway serves it."},
    "stream": {"type": "boolean"},
    "temperature": {"type": "number"},
    "top_p": {"type": "number"},
    "tools": {"type": "array", "items": {"type": "object"}},
}


_TEXT = {"type": "string"}
_FREE = {"type": "object"}
_MESSAGES = {"type": "array", "items": _MESSAGE}
_COUNT = {"type": "integer"}
_WORD_OR_OBJECT = {"anyOf": [_TEXT, _FREE]}


def _request(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of a body that names a model."""
    properties = {"model": _COMMON["model"], **properties}
    return {"type": "object", "required": ["model", *required], "properties": properties}


_CHAT = _request(
    "messages",
    **_COMMON,
    messages=_MESSAGES,
    max_tokens=_COUNT,
    max_completion_tokens=_COUNT,
    stop=_TEXT,
    response_format=_FREE,
    tool_choice=_WORD_OR_OBJECT,
)
_ANTHROPIC = _request(
    "messages",
    "max_tokens",
    **_COMMON,
    messages=_MESSAGES,
    max_tokens=_COUNT,
    system=_TEXT_OR_PARTS,
    stop_sequences={"type": "array", "items": _TEXT},
    tool_choice=_FREE,
)
_RESPONSES = _request(
    "input", **_COMMON, input=_TEXT_OR_PARTS, instructions=_TEXT, max_output_tokens=_COUNT
)
_OLLAMA = _request(
    "messages",
    stream={"type": "boolean", "default": True},
    messages=_MESSAGES,
    tools=_COMMON["tools"],
    options=_FREE,
    format=_WORD_OR_OBJECT,
    think={"anyOf": [{"type": "boolean"}, _TEXT]},
    keep_alive={"anyOf": [_TEXT, {"type": "number"}]},
)
_COHERE = _request("messages", **_COMMON, messages=_MESSAGES)
_CONVERSE = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "messages": _MESSAGES,
        "system": {"type": "array", "items": _FREE},
        "inferenceConfig": _FREE,
        "toolConfig": _FREE,
    },
}
_GEMINI = {
    "type": "object",
    "required": ["contents"],
    "properties": {
        "contents": {"type": "array", "items": _FREE},
        "systemInstruction": _FREE,
        "generationConfig": _FREE,
        "tools": _COMMON["tools"],
    },
}
_EMBED = _request(input=_TEXT_OR_PARTS)
_RERANK = _request(query=_TEXT, documents={"type": "array"})
_GENERATE = _request(prompt=_TEXT, stream={"type": "boolean"})


def _post(
    summary: str,
    schema: dict[str, Any],
    *,
    streams: str | None = None,
    error: dict[str, Any] = _ERROR,
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _FREE}}
    if streams is not None:
        content[streams] = {"schema": _TEXT}
    return {
        "post": {
            "summary": summary,
            "security": [{"bearer": []}, {"x-api-key": []}, {}],
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {
                "200": {"description": "The reply.", "content": content},
                **_refusals(error=error),
            },
        }
    }


def _refusals(*statuses: str, error: dict[str, Any] = _ERROR) -> dict[str, Any]:
    content = {"application/json": {"schema": error}}
    return {
        status: {"description": _STATUSES[status], "content": content}
        for status in statuses or _STATUSES
    }


def _get(
    summary: str, *refusals: str, kind: str = "application/json", error: dict[str, Any] = _ERROR
) -> dict[str, Any]:
    content = {kind: {"schema": _FREE if kind == "application/json" else _TEXT}}
    found: dict[str, Any] = {"200": {"description": summary, "content": content}}
    denied = _refusals(*refusals, error=error) if refusals else {}
    return {"get": {"summary": summary, "responses": {**found, **denied}}}


def _named(*operations: dict[str, Any]) -> dict[str, Any]:
    """Return the operations of a path that contains a name or an id, with that path parameter."""
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    found: dict[str, Any] = {"parameters": [name]}
    for operation in operations:
        found |= operation
    return found


def _delete(summary: str) -> dict[str, Any]:
    return {"delete": _get(summary, *_DENIED, "404")["get"]}


def _gemini_paths() -> dict[str, Any]:
    """Return the operations for clients of the Gemini wire, for both versions of its API."""
    found: dict[str, Any] = {}
    for root in ("/v1beta/models", "/v1/models"):
        found |= {
            f"{root}/{{name}}:generateContent": _named(_post("Gemini.", _GEMINI)),
            f"{root}/{{name}}:streamGenerateContent": _named(
                _post("Gemini, streamed.", _GEMINI, streams=_EVENTS)
            ),
            f"{root}/{{name}}:countTokens": _named(_post("How many tokens it is.", _GEMINI)),
            f"{root}/{{name}}:embedContent": _named(_post("The vector of a text.", _FREE)),
            f"{root}/{{name}}:batchEmbedContents": _named(_post("The vectors of texts.", _FREE)),
        }
    return found


def _kept_paths() -> dict[str, Any]:
    """Return the operations on stored responses; a gateway without a store rejects them."""
    response, conversation = "/v1/responses/{name}", "/v1/conversations/{name}"
    denied = (*_DENIED, "404")
    return {
        response: _named(_get("A kept response.", *denied), _delete("Forget a response.")),
        f"{response}/input_items": _named(_get("The input of a kept response.", *denied)),
        f"{response}/cancel": _named(_post("Stop a response in the background.", _FREE)),
        "/v1/conversations": _post("Begin a conversation.", _FREE),
        conversation: _named(_get("A conversation.", *denied), _delete("Forget a conversation.")),
        f"{conversation}/items": _named(
            _get("The items of a conversation.", *denied), _post("Add items.", _FREE)
        ),
    }


def _retrieval_paths() -> dict[str, Any]:
    embedding = dict.fromkeys(
        ("/v1/embeddings", "/v2/embed"), _post("The vectors of texts.", _EMBED)
    )
    ranking = dict.fromkeys(
        ("/v1/rerank", "/v2/rerank", "/rerank"), _post("Ranked texts.", _RERANK)
    )
    ollama = _post("The vectors of texts, for Ollama's clients.", _EMBED, error=_SENTENCE)
    return {**embedding, **ranking, "/api/embed": ollama, "/api/embeddings": ollama}


def _cloud_paths() -> dict[str, Any]:
    """Return the operations for clients of Cohere and of Bedrock."""
    model = "/model/{name}"
    frames = "application/vnd.amazon.eventstream"
    return {
        "/v2/chat": _post("Cohere.", _COHERE, streams=_EVENTS, error=_NOTE),
        f"{model}/converse": _named(_post("Converse.", _CONVERSE, error=_NOTE)),
        f"{model}/converse-stream": _named(
            _post("Converse, streamed.", _CONVERSE, streams=frames, error=_NOTE)
        ),
    }


def _ollama_paths() -> dict[str, Any]:
    lines = "application/x-ndjson"
    return {
        "/api/chat": _post("Ollama.", _OLLAMA, streams=lines, error=_SENTENCE),
        "/api/generate": _post("Ollama, one prompt.", _GENERATE, streams=lines, error=_SENTENCE),
        "/api/show": _post("One model, for Ollama's clients.", _request(), error=_SENTENCE),
        "/api/tags": _get(
            "The models this key may use, for Ollama's clients.", *_DENIED, error=_SENTENCE
        ),
        "/api/ps": _get("The models in memory, for Ollama's clients.", *_DENIED, error=_SENTENCE),
        "/api/version": _get(
            "The gateway's version, for Ollama's clients.", *_DENIED, error=_SENTENCE
        ),
    }


def _pages() -> dict[str, Any]:
    ready = _get("Whether calls can be expected to succeed.", *_DENIED)
    content = {"application/json": {"schema": _FREE}}
    ready["get"]["responses"]["503"] = {"description": "Not ready.", "content": content}
    found = {
        "/health": _get("The process is alive."),
        "/ready": ready,
        "/metrics": _get("Counters of all workers.", *_DENIED, kind="text/plain"),
    }
    for root in ("/v1/models", "/v1beta/models"):
        found[root] = _get("The models this key may use.", *_DENIED)
        found[f"{root}/{{name}}"] = _named(_get("One model.", *_DENIED, "404"))
    return found


def document() -> dict[str, Any]:
    """Return the OpenAPI document of a gateway."""
    counted = {**_ANTHROPIC, "required": ["model", "messages"]}
    vertex = _named(_post("Gemini, by the paths of Vertex AI.", _GEMINI, streams=_EVENTS))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dragoman gateway", "version": "1"},
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
        "paths": {
            "/v1/chat/completions": _post("Chat Completions.", _CHAT, streams=_EVENTS),
            "/v1/messages": _post("Messages.", _ANTHROPIC, streams=_EVENTS),
            "/v1/messages/count_tokens": _post("How many tokens it is.", counted),
            "/v1/responses": _post("Responses.", _RESPONSES, streams=_EVENTS),
            "/v1/responses/input_tokens": _post("How many tokens it is.", _RESPONSES),
            **_kept_paths(),
            **_gemini_paths(),
            "/v1/projects/{name}": vertex,
            "/v1beta1/{name}": vertex,
            **_ollama_paths(),
            **_cloud_paths(),
            **_retrieval_paths(),
            **_pages(),
        },
    }
