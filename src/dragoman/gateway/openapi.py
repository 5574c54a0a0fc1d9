"""The OpenAPI document of the gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from ..errors import InvalidRequestError
from ..retrieval.wire.server import RETRIEVAL_SERVERS, RetrievalServer
from ..wire import SERVER_CODECS, ServerCodec
from .unknown_paths import find_codec

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
_DENIED = ("400", "401", "403")
_MISSING = (*_DENIED, "404")
_SAMPLE = InvalidRequestError("the request is wrong")
_EVENTS = "text/event-stream"
_LINES = "application/x-ndjson"
_FRAMES = "application/vnd.amazon.eventstream"
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


_COUNTED = {**_ANTHROPIC, "required": ["model", "messages"]}
_ROOTS = ("/v1beta/models", "/v1/models")  # for both versions of Gemini's API
_RESPONSE = "/v1/responses/{name}"
_CONVERSATION = "/v1/conversations/{name}"

_Server: TypeAlias = ServerCodec | RetrievalServer
# The path, the summary, the body, and the media type of a stream if there may be one. A gateway
# without a store rejects requests about stored responses and conversations.
_Post: TypeAlias = tuple[str, str, dict[str, Any], str | None]
_METHODS: list[_Post] = [
    ("generateContent", "Gemini.", _GEMINI, None),
    ("streamGenerateContent", "Gemini, streamed.", _GEMINI, _EVENTS),
    ("countTokens", "How many tokens it is.", _GEMINI, None),
    ("embedContent", "The vector of a text.", _FREE, None),
    ("batchEmbedContents", "The vectors of texts.", _FREE, None),
]
_POSTS: list[_Post] = [
    ("/v1/chat/completions", "Chat Completions.", _CHAT, _EVENTS),
    ("/v1/messages", "Messages.", _ANTHROPIC, _EVENTS),
    ("/v1/messages/count_tokens", "How many tokens it is.", _COUNTED, None),
    ("/v1/responses", "Responses.", _RESPONSES, _EVENTS),
    ("/v1/responses/input_tokens", "How many tokens it is.", _RESPONSES, None),
    (f"{_RESPONSE}/cancel", "Stop a response in the background.", _FREE, None),
    ("/v1/conversations", "Begin a conversation.", _FREE, None),
    (f"{_CONVERSATION}/items", "Add items.", _FREE, None),
    *[
        (f"{root}/{{name}}:{method}", summary, body, stream)
        for method, summary, body, stream in _METHODS
        for root in _ROOTS
    ],
    ("/v1/projects/{name}", "Gemini, by the paths of Vertex AI.", _GEMINI, _EVENTS),
    ("/v1beta1/{name}", "Gemini, by the paths of Vertex AI.", _GEMINI, _EVENTS),
    ("/api/chat", "Ollama.", _OLLAMA, _LINES),
    ("/api/generate", "Ollama, one prompt.", _GENERATE, _LINES),
    ("/api/show", "One model, for Ollama's clients.", _request(), None),
    ("/api/embed", "The vectors of texts, for Ollama's clients.", _EMBED, None),
    ("/api/embeddings", "The vectors of texts, for Ollama's clients.", _EMBED, None),
    ("/model/{name}/converse", "Converse.", _CONVERSE, None),
    ("/model/{name}/converse-stream", "Converse, streamed.", _CONVERSE, _FRAMES),
    ("/v1/embeddings", "The vectors of texts.", _EMBED, None),
    ("/v2/embed", "The vectors of texts.", _EMBED, None),
    *[(path, "Ranked texts.", _RERANK, None) for path in ("/v1/rerank", "/v2/rerank", "/rerank")],
]
# The method, the path, the summary, and the statuses of rejected requests.
_OTHERS: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("get", _RESPONSE, "A kept response.", _MISSING),
    ("delete", _RESPONSE, "Forget a response.", _MISSING),
    ("get", f"{_RESPONSE}/input_items", "The input of a kept response.", _MISSING),
    ("get", _CONVERSATION, "A conversation.", _MISSING),
    ("delete", _CONVERSATION, "Forget a conversation.", _MISSING),
    ("get", f"{_CONVERSATION}/items", "The items of a conversation.", _MISSING),
    ("get", "/api/tags", "The models this key may use, for Ollama's clients.", _DENIED),
    ("get", "/api/ps", "The models in memory, for Ollama's clients.", _DENIED),
    ("get", "/api/version", "The gateway's version, for Ollama's clients.", _DENIED),
    ("get", "/health", "The process is alive.", ()),
    ("get", "/ready", "Whether calls can be expected to succeed.", _DENIED),
    ("get", "/metrics", "Counters of all workers.", _DENIED),
    ("get", "/v1/spend", "The bill of a period.", _MISSING),
    *[("get", root, "The models this key may use.", _DENIED) for root in _ROOTS],
    *[("get", f"{root}/{{name}}", "One model.", _MISSING) for root in _ROOTS],
]


def document() -> dict[str, Any]:
    """Return the OpenAPI document of a gateway."""
    paths: dict[str, Any] = {}
    listed = {path for path, *_ in _POSTS}
    others = [
        (path, f"The wire {codec.wire}.", _describe_body(codec), codec.stream_type.content_type)
        for codec in SERVER_CODECS.values()
        for path in codec.paths
        if path not in listed and "{" not in path
    ]
    for path, summary, schema, stream in [*_POSTS, *others]:
        content: dict[str, Any] = {"application/json": {"schema": _FREE}}
        if stream is not None:
            content[stream] = {"schema": _TEXT}
        _open(paths, path)["post"] = {
            "summary": summary,
            "security": [{"bearer": []}, {"x-api-key": []}, {}],
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {
                "200": {"description": "The reply.", "content": content},
                **_refusals(_STATUSES, [_find_codec(path)]),
            },
        }
    for method, path, summary, statuses in _OTHERS:
        shown: dict[str, Any] = {"application/json": {"schema": _FREE}}
        if path == "/metrics":
            shown = {"text/plain": {"schema": _TEXT}}
        found = {"200": {"description": summary, "content": shown}}
        responses = {**found, **_refusals(statuses, _find_codecs(path))}
        _open(paths, path)[method] = {"summary": summary, "responses": responses}
    unready = {"description": "Not ready.", "content": {"application/json": {"schema": _FREE}}}
    paths["/ready"]["get"]["responses"]["503"] = unready
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dragoman gateway", "version": "1"},
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
        "paths": paths,
    }


def _open(paths: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the operations of a path, with the parameter that the path may contain."""
    name = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
    found: dict[str, Any] = paths.setdefault(path, {"parameters": [name]} if "{" in path else {})
    return found


def _describe_body(codec: ServerCodec) -> dict[str, Any]:
    """Return the schema of a wire's request: the fields that it shares with other wires."""
    known = {**_COMMON, "messages": _MESSAGES}
    fields = {name: schema for name, schema in known.items() if name in codec.table.rules}
    return {"type": "object", "required": list(codec.required), "properties": fields}


def _refusals(statuses: Iterable[str], codecs: Iterable[_Server]) -> dict[str, Any]:
    forms: list[dict[str, Any]] = []
    for codec in codecs:
        if (form := _describe(json.loads(codec.error(_SAMPLE).body))) not in forms:
            forms.append(form)
    content = {"application/json": {"schema": forms[0] if len(forms) == 1 else {"anyOf": forms}}}
    return {status: {"description": _STATUSES[status], "content": content} for status in statuses}


def _find_codec(path: str) -> _Server:
    """Return the codec that writes the errors of a path for POST requests."""
    servers: list[tuple[str, _Server]] = [*RETRIEVAL_SERVERS.items()]
    for codec in SERVER_CODECS.values():
        servers += [(each, codec) for each in (*codec.paths, *codec.other_paths)]
    for pattern, server in servers:
        if re.fullmatch(re.escape(pattern).replace(r"\{call:path\}", ".+"), path):
            return server
    return find_codec(path, {})


def _find_codecs(path: str) -> list[_Server]:
    """Return the codecs that write the errors of a page: on some, the one of the client's headers."""
    found = find_codec(path, {})
    if any(mark in path for mark in found.path_marks):
        return [found]
    return [found, *[codec for codec in SERVER_CODECS.values() if codec.header_marks]]


def _describe(sample: Any) -> dict[str, Any]:
    """Return a schema of values that have the form of a sample."""
    if isinstance(sample, dict):
        properties = {name: _describe(each) for name, each in sample.items()}
        return {"type": "object", "required": [*sample], "properties": properties}
    types = {str: "string", int: "integer", list: "array"}
    return {"type": types[type(sample)]} if type(sample) in types else {}
