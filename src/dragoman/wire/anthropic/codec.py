"""The codec: one model at one address."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Literal
from urllib.parse import quote, urlsplit

from msgspec.structs import replace

from ...capabilities import Capabilities
from ...errors import InvalidModelError, InvalidResponseError, ProviderError
from ...events import Assembler, read_json
from ...messages import Issuer, Request, join_system
from ..codec import Encoded, Endpoint, HttpReply, HttpRequest, Notes, read_quirks
from ..errors import build_error, read_failure
from ..projection import join_url, schema_name, sorted_json, to_bytes
from .conversation import write_turns
from .errors import ROWS
from .quirks import Quirks
from .reply import AnthropicDecoder
from .request import (
    add_extras,
    answer_tool,
    schema_directive,
    thinks,
    write_config,
    write_reasoning,
    write_system,
    write_tools,
)
from .schema import fits_format, project_format

_Path = Literal["native", "tool", "prompt"]


class AnthropicCodec(Endpoint[Quirks]):
    """The Messages wire for one model at one base URL.

    ``max_output_tokens`` is sent as ``max_tokens`` when the caller sets none: the wire requires one.
    """

    wire: ClassVar[str] = "anthropic"
    quirks_type = Quirks

    def __init__(
        self,
        model: str,
        base_url: str,
        quirks: Quirks | None = None,
        *,
        max_output_tokens: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, base_url, quirks, **settings)
        self._max_output_tokens = max_output_tokens
        self._url = _address(base_url, "/messages")

    @classmethod
    def connect(
        cls, model: str, base_url: str, quirks: Any, capabilities: Capabilities, **settings: Any
    ) -> AnthropicCodec:
        """A codec for an endpoint: its quirks, and what is known of the model."""
        adapted = cls.adapt(read_quirks(quirks, Quirks), capabilities)
        limit = capabilities.known("max_output_tokens")
        return cls(model, base_url, adapted, max_output_tokens=limit, **settings)

    @classmethod
    def adapt(cls, quirks: Quirks, capabilities: Capabilities) -> Quirks:
        """Where there is no structured output, tools serve for it; without tools, words."""
        if capabilities.known("supports_structured_output") is not False or quirks.structured != "native":
            return quirks
        return replace(quirks, structured="prompt" if capabilities.known("supports_tools") is False else "tool")

    def taught(self, quirks: Quirks) -> AnthropicCodec:
        """The same codec with other quirks."""
        codec = super().taught(quirks)
        codec._max_output_tokens = self._max_output_tokens
        return codec

    def encode(self, request: Request) -> Encoded:
        """The request as a ``POST``; settings first and messages last, so that a longer turn extends the bytes."""
        notes = Notes()
        path = self._structured_path(request)
        model = request.model or self.model
        body: dict[str, Any] = {"model": model}
        write_config(body, request.config, self._max_output_tokens)
        write_reasoning(body, request.config, self.quirks)
        system, rest = join_system(request.messages)
        system = self._write_structure(body, request, path, system, notes)
        write_system(body, system, self.quirks)
        if request.stream:
            body["stream"] = True
        first = len(request.messages) - len(rest)
        home = Issuer(self.wire, self.issuer_vendor, model)
        body["messages"] = write_turns(rest, first, home, self.quirks.id_rule, notes)
        add_extras(body, request)
        body["messages"] = body.pop("messages")
        return Encoded(
            HttpRequest("POST", self._url, dict(_JSON), to_bytes(body)),
            tuple(notes.items),
            notes.warnings,
            path,
        )

    def decoder(self, request: Request, out: Assembler) -> AnthropicDecoder:
        """A decoder for the reply, whole or streamed."""
        answer = None
        if self._structured_path(request) == "tool" and request.response_schema is not None:
            answer = schema_name(request.response_schema)
        return AnthropicDecoder(request, out, answer=answer, keep_raw=self._keep_raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None) -> ProviderError:
        """What a refusal means."""
        return build_error(status, headers, read_failure(body), ROWS, now)

    def authorise(self, key: str) -> dict[str, str]:
        """The key, in this wire's own header."""
        return {"x-api-key": key}

    def learn(self, error: ProviderError, request: Request) -> AnthropicCodec | None:
        """Ask for structure another way once a 400 has named this one: native, then tool, then prompt."""
        if error.status not in (400, 404, 422, 500, 501):
            return None
        path = self._structured_path(request)
        said = f"{error.provider_message} {error.provider_code}"
        if path == "native" and _NAMES_FORMAT.search(said):
            quirks = replace(self.quirks, structured="tool")
        elif path == "tool" and _NAMES_TOOL.search(said):
            quirks = replace(self.quirks, structured="prompt")
        else:
            return None
        return self.taught(quirks)

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        """Ask for the model by its name; where there is no such question, look for it in the list.

        A 404 that names the model is the answer. Any other 404 means that the server has no such route
        (llama.cpp, vLLM), and its list decides; without a list either, the model cannot be confirmed.
        """
        reply = yield self._get(f"/models/{quote(self.model, safe='')}")
        if reply.status == 404 and self.model not in read_failure(reply.body).message:
            reply = yield self._get("/models")
            if reply.status == 404:
                raise InvalidModelError("the server has no model list, so it cannot confirm the model", status=404)
            self._refuse_failure(reply)
            _find_model(_read(reply), self.model)
            return
        self._refuse_failure(reply)
        _read(reply)

    # inside

    def _structured_path(self, request: Request) -> _Path | None:
        schema = request.response_schema
        if schema is None:
            return None
        if self.quirks.structured == "native" and fits_format(schema):
            return "native"
        tools = bool(request.tools) or "tools" in request.config.extras
        if self.quirks.structured == "prompt" or tools or thinks(request.config, self.quirks):
            return "prompt"
        return "tool"

    def _write_structure(
        self, body: dict[str, Any], request: Request, path: _Path | None, system: str | None, notes: Notes
    ) -> str | None:
        """Tools and the wanted structure; returns the system prompt, extended where words must do."""
        schema = request.response_schema
        if schema is not None and path == "native":
            form = {"type": "json_schema", "schema": sorted_json(project_format(schema, notes))}
            body["output_config"] = {**body.get("output_config", {}), "format": form}
        if schema is not None and path == "tool":
            answer_tool(body, schema, self.quirks, notes)
            return system
        write_tools(body, request, self.quirks, notes)
        if schema is not None and path == "prompt":
            return "\n\n".join([*([system] if system else []), schema_directive(schema)])
        return system

    def _get(self, path: str) -> HttpRequest:
        return HttpRequest("GET", _address(self.base_url, path), {"accept": "application/json", **_VERSION})

    def _refuse_failure(self, reply: HttpReply) -> None:
        if reply.status >= 300:
            raise self.error(reply.status, reply.headers, reply.body)


_VERSION = {"anthropic-version": "2023-06-01"}
_JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream", **_VERSION}
_NAMES_FORMAT = re.compile(r"output_config|output[_ ]format|json_schema|structured output", re.IGNORECASE)
_NAMES_TOOL = re.compile(r"\btools?\b|tool_choice|input_schema", re.IGNORECASE)


def _address(base_url: str, path: str) -> str:
    """A path of the API under a base URL, which may or may not end with the version itself."""
    versioned = re.search(r"/v\d\w*/?$", urlsplit(base_url).path)
    return join_url(base_url, path if versioned else f"/v1{path}")


def _read(reply: HttpReply) -> dict[str, Any]:
    try:
        data = read_json(reply.body)
    except ValueError as error:
        raise InvalidResponseError("the server's answer about its models is not JSON", status=reply.status) from error
    if not isinstance(data, dict):
        raise InvalidResponseError("the server's answer about its models has an unknown form", status=reply.status)
    return data


def _find_model(data: Mapping[str, Any], model: str) -> None:
    entries = data.get("data")
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    if not any(entry.get("id") == model for entry in known) and not _serves_one_model(known):
        raise InvalidModelError(f"the server does not list the model {model!r}", status=200)


def _serves_one_model(entries: Sequence[Mapping[str, Any]]) -> bool:
    # llama.cpp lists its one model with the file's own facts and serves it under any name.
    return len(entries) == 1 and isinstance(entries[0].get("meta"), Mapping)
