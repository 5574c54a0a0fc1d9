"""Check every reply of a gateway under test against the vendors' own descriptions of their APIs.

``ReplyChecker`` wraps the gateway's application and reads what it sends. There are three checks:
the JSON Schemas in ``schemas`` made from the types of OpenAI's client (required fields, nulls,
values of enumerations), the component schemas of the OpenAPI documents of OpenAI and Anthropic
(bounds, lengths and patterns too), and the models of the vendors' Python clients in strict mode
for every wire (integers; for Gemini unknown fields too).
"""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import anthropic.types
import cohere
import google.genai.types
import jsonschema_rs
import ollama
import openai.types.chat
import openai.types.conversations
import openai.types.responses
import openai.types.responses.input_token_count_response
import openai.types.shared
import pydantic

from ..rows import read_table

_FOLDER = Path(__file__).parent / "schemas"
# At most this many bytes of a reply are checked; a longer one is cut at its last complete event.
_LIMIT = 4 * 1024 * 1024
_UNIONS: dict[str, Any] = {
    "ResponseStreamEvent": openai.types.responses.ResponseStreamEvent,
    "RawMessageStreamEvent": anthropic.types.RawMessageStreamEvent,
    "V2ChatStreamResponse": cohere.V2ChatStreamResponse,
}


class GeminiError(pydantic.BaseModel):
    code: int
    message: str
    status: str


class GeminiFailure(pydantic.BaseModel):
    error: GeminiError


class GeminiModels(pydantic.BaseModel):
    models: list[google.genai.types.Model]


class CohereFailure(pydantic.BaseModel):
    id: str
    message: str


class CohereModels(pydantic.BaseModel):
    models: list[cohere.GetModelResponse]


class OllamaFailure(pydantic.BaseModel):
    error: str


class OllamaVersion(pydantic.BaseModel):
    version: str


_PLACES: tuple[Any, ...] = (
    anthropic.types,
    openai.types.chat,
    openai.types.responses,
    openai.types.responses.input_token_count_response,
    openai.types.conversations,
    openai.types,
    google.genai.types,
    ollama,
    cohere,
)
"""The modules of the vendors' clients whose classes validate replies in strict mode. Two have
classes of the same name; the first one is meant."""


DOCUMENTED: dict[str, tuple[str, str]] = {
    name: (vendor, component) for name, vendor, component in read_table("documented_replies")
}
"""The vendor and the OpenAPI component that describe each kind of reply or event. Events of the
Responses API are not listed, because their components are named after the event's type."""


NOT_SENT: dict[str, frozenset[str]] = {
    "openai": frozenset(),
    "anthropic": frozenset(
        ("container", "inference_geo", "service_tier", "cache_creation", "caller")
    ),
}
"""Fields that a vendor's OpenAPI document requires, although recorded replies of the vendor omit
them."""


NULLED = frozenset(("usage", "safety_identifier"))
"""Fields that Open Responses requires in every response, null if unknown. OpenAI's replies contain
them as null too, although its document does not allow that."""


UNDOCUMENTED = re.compile(rb'"code":"(cyber_policy|context_length_exceeded|insufficient_quota)"')
"""Codes of failed responses that OpenAI sends and Codex acts on, although OpenAI's document does
not list them (openai/codex#43131; lidge-jun/opencodex#483; seen 2026-11-18)."""


class Form(NamedTuple):
    """Name the schemas of a route: for a complete reply, a stream event and an error."""

    whole: str
    event: str = ""
    failure: str = "Failure"


_ROUTES: list[tuple[str, str, Form]] = [
    ("POST", r"/v1/chat/completions", Form("ChatCompletion", "ChatCompletionChunk")),
    ("POST", r"/v1/responses/input_tokens", Form("InputTokenCountResponse")),
    ("GET", r"/v1/responses/[^/]+/input_items", Form("ResponseItemList")),
    ("POST|GET", r"/v1/responses(/[^/]+(/cancel)?)?", Form("Response", "ResponseStreamEvent")),
    ("POST|GET", r"/v1/conversations(/[^/]+)?", Form("Conversation")),
    ("POST", r"/v1/embeddings", Form("CreateEmbeddingResponse")),
    ("POST|GET", r"/v1/(completions|audio/.+|images/.+|moderations|files)", Form("")),
    ("GET", r"/v1/models", Form("Models", failure="")),
    ("POST", r"/v1/messages", Form("Message", "RawMessageStreamEvent", "ErrorResponse")),
    ("POST", r"/v1/messages/count_tokens", Form("MessageTokensCount", failure="ErrorResponse")),
    ("POST", r".*:(g|streamG)enerateContent",
     Form("GenerateContentResponse", "GenerateContentResponse", "GeminiFailure")),
    ("POST", r".*:countTokens", Form("CountTokensResponse", failure="GeminiFailure")),
    ("GET", r"/v1beta/models", Form("GeminiModels", failure="GeminiFailure")),
    ("POST", r"/v2/chat", Form("V2ChatResponse", "V2ChatStreamResponse", "CohereFailure")),
    ("POST", r"/api/chat", Form("ChatResponse", "ChatResponse", "OllamaFailure")),
    ("POST", r"/api/generate", Form("GenerateResponse", "GenerateResponse", "OllamaFailure")),
    ("POST", r"/api/embed", Form("EmbedResponse", failure="OllamaFailure")),
    ("POST", r"/api/show", Form("ShowResponse", failure="OllamaFailure")),
    ("GET", r"/api/tags", Form("ListResponse", failure="OllamaFailure")),
    ("GET", r"/api/ps", Form("ProcessResponse", failure="OllamaFailure")),
    ("GET", r"/api/version", Form("OllamaVersion", failure="OllamaFailure")),
]  # fmt: skip


class ReplyChecker:
    """An ASGI application that wraps another one and stores its replies until ``find_faults``
    checks them.

    The replies are checked after the server has stopped, because the first use of a validator is
    slow. It would delay other requests, and on a busy machine their connections would time out.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self._replies: list[tuple[Form, str, int, str, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        form = find_form(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if form is None:
            await self.app(scope, receive, send)
            return
        start: dict[str, Any] = {}
        pieces: list[bytes] = []

        async def watch(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif sum(map(len, pieces)) < _LIMIT:
                pieces.append(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            if start:
                kind = dict(start["headers"]).get(b"content-type", b"").decode()
                about = f"{scope['method']} {scope['path']}"
                self._replies.append((form, about, start["status"], kind, b"".join(pieces)))

    def find_faults(self) -> Iterator[str]:
        """Yield a description of each fault in the stored replies."""
        for form, about, status, kind, body in self._replies:
            for fault in check_reply(form, status, kind, body):
                yield f"{about} {status}: {fault}"


def find_form(method: str, path: str) -> Form | None:
    """Return the schemas of a route, or None if no vendor describes the route."""
    for methods, pattern, form in _ROUTES:
        if re.fullmatch(methods, method) and re.fullmatch(pattern, path):
            return form
    return None


def check_reply(form: Form, status: int, kind: str, body: bytes) -> Iterator[str]:
    """Yield a description of each fault in a reply."""
    if status >= 400 and form.failure and "json" in kind:
        yield from check(form.failure, body)
    elif status == 200 and kind.startswith("text/event-stream"):
        yield from check_events(form, body)
    elif status == 200 and kind.startswith("application/x-ndjson"):
        for line in body.splitlines(keepends=True):
            if line.endswith(b"\n"):  # the last line is incomplete if the client stopped reading
                yield from check(
                    form.failure if line.startswith(b'{"error"') else form.event, line
                )
    elif status == 200 and body.startswith(b"["):
        for item in json.loads(body) if body.endswith(b"]") else ():
            yield from check(
                form.failure if "error" in item else form.event, json.dumps(item).encode()
            )
    elif status == 200 and "json" in kind and body:
        whole = form.whole
        if whole == "Models" and b'"models"' in body:
            whole = "CohereModels" if b'"endpoints"' in body else "GeminiModels"
        yield from check(whole, body)


def check_events(form: Form, body: bytes) -> Iterator[str]:
    """Yield a description of each fault in the complete events of a stream."""
    for block in body.split(b"\n\n")[:-1]:
        lines = block.splitlines()
        data = b"\n".join([line[5:].strip() for line in lines if line.startswith(b"data:")])
        if data in (b"", b"[DONE]") or data == b'{"type":"ping"}':
            continue
        record = json.loads(data)
        named = [line[6:].strip().decode() for line in lines if line.startswith(b"event:")]
        if form.event in _UNIONS and named != [record.get("type")]:
            yield f"the event {named} holds {record.get('type')}"
        is_failure = form.event != "ResponseStreamEvent" and "error" in record
        yield from check(form.failure if is_failure else form.event, data, record.get("type"))


def check(name: str, data: bytes, kind: str | None = None) -> Iterator[str]:
    """Yield each way in which a JSON text violates the schema or the strict model with the given
    name.
    """
    if kind == "response.failed":
        data = UNDOCUMENTED.sub(b'"code":"server_error"', data)
    if name in _UNIONS:
        model = find_classes(name).get(str(kind))
        if model is None:
            yield f"no event of type {kind!r} is described"
            return
        validator = find_validator(model.__name__)
    else:
        if name == "CreateEmbeddingResponse" and b'"embedding":"' in data:
            return  # the clients decode base64 vectors before they validate a reply
        if name == "GeminiModels":  # the client renames this field before it validates a reply
            data = data.replace(b'"supportedGenerationMethods"', b'"supportedActions"')
        validator = find_validator(name)
        model = find_model(name)
    for each in (validator, find_component(str(kind) if name in _UNIONS else name)):
        for error in each.iter_errors(json.loads(data)) if each is not None else ():
            path = list(map(str, error.instance_path))
            if not (path and path[-1] in NULLED and error.instance is None):
                yield f"{name} at {'.'.join(path)}: {error.message[:300]}"
    if model is not None:
        try:
            read_strictly(model, data)
        except pydantic.ValidationError as error:
            yield f"{name}, strictly: {str(error)[:500]}"


@functools.cache
def find_model(name: str) -> Any:
    """Return the class of a client that validates a kind of reply, or None."""
    found = [getattr(place, name, None) for place in _PLACES]
    return globals().get(name) or next(filter(None, found), None)


@functools.cache
def find_validator(name: str) -> Any:
    """Return the validator of a client type, or None if the schemas do not contain the type."""
    return compile_schema(read_schemas("openai.json")["definitions"], name, "definitions")


@functools.cache
def find_component(name: str) -> Any:
    """Return the validator of an OpenAPI component, or None if no document contains it."""
    vendor, component = DOCUMENTED.get(name, ("openai", name))
    return compile_schema(read_components(vendor), component, "$defs")


def compile_schema(schemas: dict[str, Any], name: str, place: str) -> Any:
    """Return the validator of a definition, or None if the schemas do not contain it."""
    if name not in schemas:
        return None
    needed: dict[str, Any] = {}
    open_names = [name]
    # Include only needed definitions: compiling all of them takes ten times as long.
    while open_names:
        each = open_names.pop()
        if each not in needed:
            needed[each] = schemas[each]
            open_names += re.findall(rf'"#/{re.escape(place)}/([^"]+)"', json.dumps(schemas[each]))
    kind = (
        jsonschema_rs.Draft202012Validator if place == "$defs" else jsonschema_rs.Draft7Validator
    )
    return kind({"$ref": f"#/{place}/{name}", place: needed})


@functools.cache
def read_components(vendor: str) -> dict[str, Any]:
    """Return the components of a vendor's OpenAPI document; fields that the vendor's replies omit
    become optional.
    """

    def relax(schema: Any) -> Any:
        if isinstance(schema, list):
            return [relax(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        return {
            name: sorted(set(value) - NOT_SENT[vendor]) if name == "required" else relax(value)
            for name, value in schema.items()
        }

    found: dict[str, Any] = relax(read_schemas("openapi.json")[vendor])
    return found


@functools.cache
def read_schemas(file: str) -> dict[str, Any]:
    """Return the content of a schema file."""
    found: dict[str, Any] = json.loads((_FOLDER / file).read_text())
    return found


@functools.cache
def find_classes(name: str) -> dict[str, Any]:
    """Return the event classes of a union type by the value of their ``type`` field."""
    classes = get_args(get_args(_UNIONS[name])[0])
    return {str(get_args(each.model_fields["type"].annotation)[0]): each for each in classes}


def read_strictly(model: Any, data: bytes) -> None:
    """Parse a JSON text into a model in strict mode, without converting any value."""
    model.model_validate_json(data, strict=True)
