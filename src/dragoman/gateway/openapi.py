"""The OpenAPI document of the gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from ..errors import InvalidRequestError
from ..registry.passing import METHODS
from ..retrieval.wire.server import RETRIEVAL_SERVERS, RetrievalServer
from ..wire import OTHER_SERVER_CODECS, SERVER_CODECS, ServerCodec
from ..wire.request_schema import FREE, TEXT, TEXT_OR_PARTS, body_with_model
from .open_pass import PATH
from .operations import OPERATIONS, ROOT, Operation
from .unknown_paths import find_codec

_STATUSES = {
    "400": "The request is wrong; the body names the field.",
    "401": "No key, or one that is not known.",
    "402": "The key's budget, or the provider's account, is used up.",
    "403": "The gateway has no keys and does not answer other machines or web pages.",
    "404": "There is no model of this name.",
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
_SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"x-api-key": []}, {}]
_DENIED = ("400", "401", "403")
_MISSING = (*_DENIED, "404")
_ADMIN = (*_MISSING, "413", "415")
_COMPONENTS = "#/components/schemas/{name}"
_SAMPLE = InvalidRequestError("the request is wrong")
_EMBED = body_with_model(input=TEXT_OR_PARTS)
_RERANK = body_with_model(query=TEXT, documents={"type": "array"})
_ROOTS = ("/v1beta/models", "/v1/models")  # for both versions of Gemini's API
_RESPONSE = "/v1/responses/{name}"
_PASSED = PATH + "{name}/{path}"
_CONVERSATION = "/v1/conversations/{name}"

_Server: TypeAlias = ServerCodec | RetrievalServer
# The path, the summary, the body, and the media type of a stream if there may be one. A gateway
# without a store rejects requests about stored responses and conversations.
_Post: TypeAlias = tuple[str, str, Mapping[str, Any], str | None]
_STORED: list[_Post] = [
    (f"{_RESPONSE}/cancel", "Cancel a response that is made in the background.", FREE, None),
    ("/v1/conversations", "Create a conversation.", FREE, None),
    (f"{_CONVERSATION}/items", "Add items to a conversation.", FREE, None),
]
# The method, the path, the summary, and the statuses of rejected requests.
_OTHERS: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("get", _RESPONSE, "A stored response.", _MISSING),
    ("delete", _RESPONSE, "Delete a stored response.", _MISSING),
    ("get", f"{_RESPONSE}/input_items", "The input of a stored response.", _MISSING),
    ("get", _CONVERSATION, "A conversation.", _MISSING),
    ("delete", _CONVERSATION, "Delete a conversation.", _MISSING),
    ("get", f"{_CONVERSATION}/items", "The items of a conversation.", _MISSING),
    ("get", "/health", "The process is alive.", ()),
    ("get", "/ready", "Whether calls can be expected to succeed.", _DENIED),
    ("get", "/metrics", "Counters of all workers.", _DENIED),
    ("get", "/v1/spend", "The bill of a period.", _MISSING),
    *[("get", root, "The models this key may use.", _DENIED) for root in _ROOTS],
    *[
        (each.lower(), _PASSED, "A request that is passed on.", (*_MISSING, "413", "415"))
        for each in METHODS
    ],
    *[("get", f"{root}/{{name}}", "One model.", _MISSING) for root in _ROOTS],
]


def document(others: Sequence[Operation] = ()) -> dict[str, Any]:
    """Return the OpenAPI document of a gateway; ``others`` are operations that it has besides."""
    operations = [*[replace(each, path=ROOT + each.path) for each in OPERATIONS], *others]
    bodies = [each.body for each in operations if each.body is not None]
    paths: dict[str, Any] = {}
    for path, summary, schema, stream in [*_list_chats(), *_STORED, *_list_retrieval()]:
        content: dict[str, Any] = {"application/json": {"schema": FREE}}
        if stream is not None:
            content[stream] = {"schema": TEXT}
        _open(paths, path)["post"] = {
            "summary": summary,
            "security": _SECURITY,
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {
                "200": {"description": "The reply.", "content": content},
                **_refusals(_STATUSES, [_find_codec(path)]),
            },
        }
    pages = [
        ("get", path, f"A page for clients of the wire {codec.wire}.", _DENIED)
        for codec in SERVER_CODECS.values()
        for path in codec.pages
    ]
    for operation in operations:
        _open(paths, operation.path)[operation.method.lower()] = _describe_operation(operation)
    for method, path, summary, statuses in [*_OTHERS, *pages]:
        shown: dict[str, Any] = {"application/json": {"schema": FREE}}
        if path == "/metrics":
            shown = {"text/plain": {"schema": TEXT}}
        found = {"200": {"description": summary, "content": shown}}
        responses = {**found, **_refusals(statuses, _find_codecs(path))}
        _open(paths, path)[method] = {"summary": summary, "responses": responses}
    unready = {"description": "Not ready.", "content": {"application/json": {"schema": FREE}}}
    paths["/ready"]["get"]["responses"]["503"] = unready
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dragoman gateway", "version": "1"},
        "components": {
            "schemas": msgspec.json.schema_components(bodies, ref_template=_COMPONENTS)[1],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "paths": paths,
    }


def _describe_operation(operation: Operation) -> dict[str, Any]:
    """Return the description of an operation."""
    path = operation.path
    is_json = operation.media_type == "application/json"
    shown = {operation.media_type: {"schema": FREE if is_json else TEXT}}
    done = {"description": operation.summary, "content": shown}
    if operation.status == 204:
        done = {"description": operation.summary}
    found: dict[str, Any] = {
        "summary": operation.summary,
        "security": [{"bearer": []}] if path.startswith(ROOT) else _SECURITY,
        "responses": {str(operation.status): done, **_refusals(_ADMIN, _find_codecs(path))},
    }
    if operation.also is not None:
        found["responses"][str(operation.also)] = done
    if operation.body is not None:
        at = {"schema": {"$ref": f"#/components/schemas/{operation.body.__name__}"}}
        found["requestBody"] = {"required": True, "content": {"application/json": at}}
    if operation.query:
        found["parameters"] = [
            {"name": name, "in": "query", "schema": TEXT} for name in operation.query
        ]
    return found


def _open(paths: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the operations of a path, with the parameters that the path may contain."""
    names = [
        {"name": name, "in": "path", "required": True, "schema": TEXT}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    found: dict[str, Any] = paths.setdefault(path, {"parameters": names} if names else {})
    return found


def _list_chats() -> Iterator[_Post]:
    """Yield the paths of the chat wires, as each wire describes them."""
    for codec in (*SERVER_CODECS.values(), *OTHER_SERVER_CODECS.values()):
        stream = codec.stream_type.content_type
        for pattern in codec.paths:
            path = pattern.replace("{call:path}", "{name}")
            if path.endswith("/models/{name}"):
                for method in codec.schema.methods:
                    summary = f"The wire {codec.wire}: {method}."
                    streamed = stream if method.startswith("stream") else None
                    yield f"{path}:{method}", summary, codec.schema.body, streamed
            else:
                yield path, f"The wire {codec.wire}.", codec.schema.body, stream
        for path in codec.other_paths:
            body = codec.schema.others.get(path, FREE)
            yield path, f"A question on the wire {codec.wire}.", body, None


def _list_retrieval() -> Iterator[_Post]:
    """Yield the paths of embedding and reranking."""
    for pattern, server in RETRIEVAL_SERVERS.items():
        path = pattern.replace("{call:path}", "{name}")
        if server.operation == "rerank":
            yield path, "Ranked texts.", _RERANK, None
        else:
            yield path, "The vectors of texts.", FREE if "{" in path else _EMBED, None


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
