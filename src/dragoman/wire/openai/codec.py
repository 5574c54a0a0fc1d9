"""The codec: one model at one address."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from msgspec.structs import replace

from ...errors import InvalidModelError, InvalidResponseError, ModelNotLoadedError, ProviderError
from ...events import Assembler, read_json
from ...messages import Issuer, Message, Request, System, join_system
from ..codec import Encoded, Endpoint, HttpReply, HttpRequest, Notes
from ..errors import build_error, read_failure
from ..projection import join_url, root_of, to_bytes
from .errors import ROWS
from .quirks import Quirks
from .reply import OpenAIDecoder
from .request import (
    add_extras,
    calls_directive,
    calls_schema,
    is_strict,
    response_format,
    schema_directive,
    write_config,
    write_messages,
    write_tool,
    write_tool_choice,
)


class OpenAICodec(Endpoint[Quirks]):
    """The Chat Completions wire for one model at one base URL."""

    wire: ClassVar[str] = "openai"
    quirks_type = Quirks

    def __init__(self, model: str, base_url: str, quirks: Quirks | None = None, **settings: Any) -> None:
        super().__init__(model, base_url, quirks, **settings)
        self._url = join_url(base_url, "/chat/completions", default="/v1")

    def encode(self, request: Request) -> Encoded:
        """The request as a ``POST``; settings first and messages last, so that a longer turn extends the bytes."""
        notes = Notes()
        body: dict[str, Any] = {"model": request.model or self.model}
        path, messages = None, request.messages
        if request.tools or request.tool_choice is not None or request.response_schema is not None:
            path = self._write_structure(body, request)
            messages = self._prompt(request, path)
        write_config(body, request.config, self.quirks)
        if request.stream:
            body["stream"] = True
            if self.quirks.stream_usage:
                body["stream_options"] = {"include_usage": True}
        written = write_messages(messages, self.quirks, notes, home=self._home(request))
        if request.config.extras:
            body["messages"] = written  # compared with the caller's own, if the extras hold any
            add_extras(body, request)
            del body["messages"]
        body["messages"] = written
        return Encoded(
            HttpRequest("POST", self._url, dict(_JSON), to_bytes(body)),
            tuple(notes.items),
            notes.warnings,
            path,
        )

    def decoder(self, request: Request, out: Assembler) -> OpenAIDecoder:
        """A decoder for the reply, whole or streamed."""
        return OpenAIDecoder(request, out, self.quirks, coerced=self._coerces(request), keep_raw=self._keep_raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None) -> ProviderError:
        """What a refusal means."""
        return build_error(status, headers, read_failure(body), ROWS, now)

    def authorise(self, key: str) -> dict[str, str]:
        """The key as a bearer token."""
        return {"authorization": f"Bearer {key}"}

    def learn(self, error: ProviderError, request: Request) -> OpenAICodec | None:
        """Ask without ``response_format`` or ``stream_options`` once a 400 has named it."""
        said = f"{error.provider_message} {error.provider_code}"
        quirks = self.quirks
        if error.status not in (400, 404, 422, 500, 501):
            return None
        if request.stream and quirks.stream_usage and "stream_options" in said:
            quirks = replace(quirks, stream_usage=False)
        elif self._structured_path(request) == "native" and re.search(r"response_format|json_schema", said):
            quirks = replace(quirks, structured="prompt")
        else:
            return None
        return self.taught(quirks)

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Ask what this kind of server can answer; see ``Quirks.readiness``."""
        kind: str = self.quirks.readiness
        if kind == "health":
            yield from self._ask_health()
        entry = yield from self._ask_models()
        if kind == "auto":
            kind = _TELLING_OWNERS.get(str(entry.get("owned_by")), kind)
        if kind == "state":
            yield from self._ask_state()
        elif kind == "resident":
            yield from self._ask_resident()
        elif kind == "auto":
            yield from self._ask_health()

    # structure of the request

    def _structured_path(self, request: Request) -> Literal["native", "prompt"] | None:
        if request.response_schema is None:
            return None
        # A schema for calls takes the place of a schema for the text.
        return "prompt" if self.quirks.structured == "prompt" or self._coerces(request) else "native"

    def _coerces(self, request: Request) -> bool:
        return self.quirks.tools == "schema" and bool(request.tools) and request.tool_choice != "none"

    def _write_structure(self, body: dict[str, Any], request: Request) -> Literal["native", "prompt"] | None:
        path = self._structured_path(request)
        if self._coerces(request):
            body["response_format"] = response_format(calls_schema(request), strict=False)
        elif request.tools and self.quirks.tools == "native":
            body["tools"] = [write_tool(tool) for tool in request.tools]
            if request.tool_choice is not None:
                body["tool_choice"] = write_tool_choice(request.tool_choice)
        elif request.tool_choice is not None and self.quirks.tools == "native":
            body["tool_choice"] = write_tool_choice(request.tool_choice)
        if path == "native" and request.response_schema is not None:
            schema = request.response_schema
            body["response_format"] = response_format(schema, strict=is_strict(schema))
        return path

    def _home(self, request: Request) -> Issuer | None:
        """Whose state this request may carry back, where the server has a place for any."""
        if not self.quirks.reasoning_details:
            return None
        return Issuer(self.wire, self.issuer_vendor, request.model or self.model)

    def _prompt(self, request: Request, path: str | None) -> Sequence[Message]:
        """The messages, with directives added to a copy where the wire's own fields cannot be used."""
        directives = []
        if self._coerces(request):
            directives.append(calls_directive(request.tools))
        if path == "prompt" and request.response_schema is not None:
            directives.append(schema_directive(request.response_schema))
        if not directives:
            return request.messages
        system, rest = join_system(request.messages)
        return (System("\n\n".join([*([system] if system else []), *directives])), *rest)

    # questions of readiness

    def _get(self, url: str) -> HttpRequest:
        return HttpRequest("GET", url, {"accept": "application/json"})

    def _ask_models(self) -> Generator[HttpRequest, HttpReply, Mapping[str, Any]]:
        """Is the model listed? What the list says of it."""
        reply = yield self._get(join_url(self.base_url, "/models", default="/v1"))
        if reply.status == 404:
            raise InvalidModelError("the server has no model list, so it cannot confirm the model", status=404)
        self._refuse_failure(reply)
        try:
            data = read_json(reply.body) if reply.body.strip() else []  # mlx-lm, when it is offline
        except ValueError as error:
            raise InvalidResponseError("the server's model list is not JSON", status=reply.status) from error
        lists = [data.get("data"), data.get("models")] if isinstance(data, dict) else [data]
        entries = next((entries for entries in lists if isinstance(entries, list)), None)
        if entries is None:
            raise InvalidResponseError("the server's model list has an unknown form", status=reply.status)
        known = [entry for entry in entries if isinstance(entry, dict)]
        mine = next((entry for entry in known if _is_named(entry, self.model)), None)
        if mine is None and not self.quirks.any_model and not _serves_one_model(known):
            raise InvalidModelError(f"the server does not list the model {self.model!r}", status=reply.status)
        if mine is not None and _is_unloaded(mine):
            raise ModelNotLoadedError("the server lists the model as not loaded", status=reply.status)
        return mine or {}

    def _ask_health(self) -> Generator[HttpRequest, HttpReply, None]:
        reply = yield self._get(root_of(self.base_url) + "/health")
        if reply.status == 503:
            raise ModelNotLoadedError("the server is still loading the model", status=503)
        if reply.status in (401, 403) or reply.status >= 500:
            self._refuse_failure(reply)

    def _ask_state(self) -> Generator[HttpRequest, HttpReply, None]:
        reply = yield self._get(root_of(self.base_url) + "/api/v0/models")
        if reply.status == 200:
            entry = _find(reply.body, "data", self.model)
            if entry is not None and entry.get("state") != "loaded":
                raise ModelNotLoadedError("the server knows the model and has not loaded it", status=200)

    def _ask_resident(self) -> Generator[HttpRequest, HttpReply, None]:
        reply = yield self._get(root_of(self.base_url) + "/api/ps")
        if reply.status == 200 and _find(reply.body, "models", self.model) is None:
            raise ModelNotLoadedError("the server knows the model and has not loaded it", status=200)

    def _refuse_failure(self, reply: HttpReply) -> None:
        if reply.status >= 300:
            raise self.error(reply.status, reply.headers, reply.body)


# Whom a model list names as the owner tells two kinds of server that answer for what is in memory elsewhere:
# LM Studio and Ollama.
_TELLING_OWNERS = {"organization_owner": "state", "library": "resident"}

_JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def _find(body: bytes, key: str, model: str) -> dict[str, Any] | None:
    try:
        data = read_json(body)
    except ValueError:
        return None
    entries = data.get(key) if isinstance(data, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and _is_named(entry, model):
            return entry
    return None


def _is_named(entry: Mapping[str, Any], model: str) -> bool:
    names = (entry.get("id"), entry.get("name"), entry.get("model"))
    return model in names or f"{model}:latest" in names  # Ollama lists the tag that a bare name stands for


def _is_unloaded(entry: Mapping[str, Any]) -> bool:
    state = entry.get("state", entry.get("status"))
    state = state.get("value") if isinstance(state, Mapping) else state
    if isinstance(state, str):
        return state.lower().replace("_", "-") in ("not-loaded", "unloaded", "loading", "sleeping")
    return entry.get("loaded") is False


def _serves_one_model(entries: Sequence[Mapping[str, Any]]) -> bool:
    # llama.cpp lists its one model with the file's own facts and serves it under any name.
    return len(entries) == 1 and isinstance(entries[0].get("meta"), Mapping)
