"""The client codec of the openai wire, for one model at one base URL."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from msgspec.structs import replace

from ...capabilities import Capabilities
from ...errors import (
    InvalidModelError,
    InvalidResponseError,
    ModelNotLoadedError,
    UnsupportedFeatureError,
)
from ...events import Assembler, read_json
from ...messages import Request
from ..caching import key_of, read_cache
from ..codec import HttpReply, HttpRequest, Notes
from ..described import Description
from ..endpoint import LATE_SYSTEM, Endpoint, Place, Refusal, StructuredPath, may_relax
from ..json import dig, entries_of
from ..lessons import is_about_field
from ..readiness import check_call, get_json, refuse_failure, serves_one_model
from ..reasoning import ReasoningStyle
from ..rules import CONCEPTS, HostedTools
from ..urls import join_url
from .counting import ask_count
from .described import describe_entry
from .errors import ROWS
from .quirks import Quirks
from .reply import OpenAIDecoder
from .request import SETTINGS, ChatWriter, coerces, has_result_image, structured_path

ORGANISATION = {"organization": "OpenAI-Organization", "project": "OpenAI-Project"}
_NAMES_FORMAT = re.compile("response_format|json_schema")
# Servers name the field (``unknown variant `image_url```), the lack ("image input is not
# supported", "is not a multimodal model"), or the message: Mistral's models on Scaleway answer
# "Unexpected role 'user' after role 'tool'" (LibreChat-AI/agents#344, 2026-07-28).
_REFUSES_IMAGES = re.compile(
    r"image|multi-?modal|vision|mmproj|user\W{1,3}after role\W{1,3}tool", re.IGNORECASE
)
# DeepSeek and Xiaomi: "The reasoning_content in the thinking mode must be passed back to the API."
# Moonshot: "thinking is enabled but reasoning_content is missing in assistant tool call message".
_NEEDS_REASONING = re.compile(
    r"reasoning_content.{0,60}(?:must be passed back|is missing)", re.IGNORECASE | re.DOTALL
)
# Groq: "property 'reasoning_content' is unsupported". Mistral: "extra_forbidden", with the path.
_REFUSES_REASONING = re.compile(
    r"reasoning_content.{0,60}(?:unsupported|not (?:supported|permitted|allowed)|forbidden)"
    r"|(?:extra|forbidden|unknown|unrecogni[sz]ed|unexpected|not permitted)"
    r".{0,80}reasoning_content",
    re.IGNORECASE | re.DOTALL,
)
# DeepSeek: "Thinking mode does not support this tool_choice". Moonshot: "tool_choice 'specified'
# is incompatible with thinking enabled".
_REFUSES_FORCE = re.compile(
    r"thinking mode does not support .{0,20}tool_choice"
    r"|tool_choice.{0,30}incompatible with thinking",
    re.IGNORECASE,
)
_REFUSES_UNARY = re.compile(r"enable_thinking.{0,40}non-streaming", re.IGNORECASE)
# Groq: "json mode cannot be combined with tool/function calling".
_NOT_WITH_TOOLS = re.compile(
    r"json mode.{0,40}(?:tool|function)|structured outputs?.{0,60}\btool use", re.IGNORECASE
)
# Groq: "`response_format` does not support streaming".
_NOT_STREAMED = re.compile(
    r"(?:json mode|structured outputs?|response_format).{0,40}\bstreaming"
    r"|\bstreaming\b.{0,80}(?:json mode|structured outputs?|response_format)",
    re.IGNORECASE,
)


class OpenAICodec(Endpoint[Quirks]):
    """The Chat Completions wire for one model at one base URL."""

    wire: ClassVar[str] = "openai"
    end_marks = (b"[DONE]",)
    route: ClassVar[str] = "/chat/completions"
    version: ClassVar[str] = "/v1"
    setting_paths: ClassVar[Mapping[str, str]] = SETTINGS
    usual_reasoning = ReasoningStyle(effort="reasoning_effort", off={"reasoning_effort": "none"})
    concepts: ClassVar[Mapping[str, Place]] = {
        **{name: name for name in CONCEPTS},
        "json_mode": ("response_format", lambda _: {"type": "json_object"}),
        "verbosity": "verbosity",
    }
    # Search is a property of the model, and a server without search ignores the field.
    hosted = HostedTools({"web_search_options": "web_search"}, depend_on_model=True)
    ask_count = staticmethod(ask_count)
    header_options = ORGANISATION
    quirks_type = Quirks
    write_request = ChatWriter.write
    error_rows = ROWS
    refusals = (
        *LATE_SYSTEM,
        Refusal(
            re.compile("stream_options"),
            {"stream_usage": False},
            detail="the endpoint refused stream_options: no usage in streams",
            applies=lambda request, quirks, reason: request.stream,
        ),
        Refusal(
            _REFUSES_IMAGES,
            {"result_media": "omit"},
            detail="the endpoint refused an image of a tool's result: a text replaces it",
            applies=lambda request, quirks, reason: has_result_image(request.messages),
        ),
        Refusal(
            re.compile(r"prompt_cache_(breakpoint|options)"),
            {"cache_form": "retention"},
            detail="the endpoint refused breakpoints of the prompt cache: none is sent",
        ),
        Refusal(
            re.compile(r"function tools with reasoning_effort", re.IGNORECASE),
            {"tools_while_reasoning": False, "reasons_unasked": True},
            detail="the endpoint refused tools while the model reasons: it does not reason",
            applies=lambda request, quirks, reason: bool(request.tools),
        ),
        Refusal(
            re.compile(r"max_completion_tokens['\"` ]+instead", re.IGNORECASE),
            {"max_tokens_field": "max_completion_tokens"},
            detail="the endpoint refused max_tokens: max_completion_tokens is sent",
        ),
        Refusal(
            re.compile(r"max_completion_tokens", re.IGNORECASE),
            {"max_tokens_field": "max_tokens"},
            detail="the endpoint refused max_completion_tokens: max_tokens is sent",
            applies=lambda request, quirks, reason: (
                request.config.max_tokens is not None and is_about_field(reason)
            ),
        ),
        Refusal(
            # llama.cpp with gpt-oss (ggml-org/llama.cpp#17040)
            re.compile(r"both content and thinking", re.IGNORECASE),
            {"reasoning_beside_text": False},
            detail="the endpoint takes no thinking next to text and calls: it is not sent",
        ),
        Refusal(
            _NEEDS_REASONING,
            {"send_reasoning": "reasoning_content", "reasoning_required": True},
            detail="the endpoint demands the thinking of earlier turns: it is sent",
            applies=lambda request, quirks, reason: (
                not quirks.reasoning_required or quirks.send_reasoning in ("reasoning", "content")
            ),
        ),
        Refusal(
            _REFUSES_REASONING,
            {"send_reasoning": None},
            detail="the endpoint refused the thinking of earlier turns: it is not sent",
        ),
        Refusal(
            _REFUSES_FORCE,
            {"forced_tools": "not_reasoning", "reasons_unasked": True},
            detail="the endpoint forces no tool while the model reasons",
            applies=lambda request, quirks, reason: (
                request.tool_choice not in (None, "auto", "none")
            ),
        ),
        Refusal(
            _REFUSES_UNARY,
            {"unary_reasoning": False, "reasons_unasked": True},
            detail="the model reasons in streams only: reasoning is off in other replies",
            applies=lambda request, quirks, reason: not request.stream,
        ),
        Refusal(
            _NOT_WITH_TOOLS,
            {"structured_with_tools": "prompt"},
            "native",
            "the endpoint rejected structured output with tools: structured_with_tools='prompt'",
            lambda request, quirks, reason: bool(request.tools),
        ),
        Refusal(
            _NOT_STREAMED,
            {"structured_streamed": "prompt"},
            "native",
            "the endpoint does not stream structured output: structured_streamed='prompt'",
            lambda request, quirks, reason: request.stream,
        ),
        Refusal(_NAMES_FORMAT, {"strict_schemas": False}, "native", applies=may_relax),
        Refusal(_NAMES_FORMAT, {"structured": "prompt"}, "native"),
    )

    @classmethod
    def adapt(cls, quirks: Quirks, capabilities: Capabilities) -> Quirks:
        """Return the quirks, adapted to the known capabilities of a model.

        Documents in tool results are sent to models that are known to accept images.
        """
        if quirks.result_media is None and capabilities.known("supports_images"):
            quirks = replace(quirks, result_media="after")
        return super().adapt(quirks, capabilities)

    def prepare(self, request: Request, quirks: Quirks, notes: Notes) -> Request:
        """Return a request that does not reason if it has tools and the server refuses both."""
        request = super().prepare(request, quirks, notes)
        if (
            quirks.tools_while_reasoning
            or quirks.tools != "native"
            or not (request.tools or request.config.extras.get("tools"))
            or not self.reasons(request, quirks)
        ):
            return request
        if quirks.reasoning is not None and quirks.reasoning.off is None:
            raise UnsupportedFeatureError(
                f"tools: {self.home(request).model!r} always reasons, and its server accepts no "
                'tools from such a model on this wire; connect it with wire="responses"'
            )
        why = (
            "the server accepts no tools on this wire while the model reasons, so it does not "
            'reason; wire="responses" does both'
        )
        notes.rewrite("config.reasoning", "reasoning_off", why, loss=True)
        return replace(request, config=replace(request.config, reasoning="off"))

    def headers_for(self, request: Request) -> dict[str, str]:
        """Return the headers of a request; some servers take the cache key in a header."""
        name = self.quirks.cache_header
        if name is None or request.config.cache is None:
            return super().headers_for(request)
        key = key_of(read_cache(request), request, auto_key=True)
        # A key may have characters that a header may not.
        more = {} if key is None else {name: quote(key)}
        return {**super().headers_for(request), **more}

    def may_choose(self, body: Mapping[str, Any]) -> bool:
        return bool(body.get("tools"))

    def structured_path(self, request: Request, quirks: Quirks) -> StructuredPath:
        return structured_path(request, quirks)

    def make_decoder(self, request: Request, out: Assembler) -> OpenAIDecoder:
        quirks = self.quirks_for(request)
        return OpenAIDecoder(
            request,
            out,
            quirks,
            coerced=coerces(request, quirks),
            keep_raw=self._keep_raw,
        )

    def ready(self) -> Generator[HttpRequest, HttpReply, Description]:
        """Check readiness by the method that ``Quirks.readiness`` names."""
        entry = yield from self.check_ready(self)
        return describe_entry(entry, self.quirks.reasoning)

    def check_ready(
        self, endpoint: Endpoint[Any]
    ) -> Generator[HttpRequest, HttpReply, Mapping[str, Any]]:
        """Check readiness; ``endpoint`` has the route of the calls, also of another wire.

        Return the model's entry in the model list.
        """
        kind: str = self.quirks.readiness
        if kind == "health":
            yield from self._ask_health()
        elif kind == "key":
            yield from self._ask_key()
        entry = yield from self._ask_models()
        if kind == "auto":
            kind = _TELLING_OWNERS.get(str(entry.get("owned_by")), kind)
        if kind in ("state", "resident"):
            yield from self._ask_loaded(kind)
        elif kind == "auto":
            yield from self._ask_health()
            yield from check_call(endpoint)
        return entry

    # --- checking the readiness of a server

    def _ask_models(self) -> Generator[HttpRequest, HttpReply, Mapping[str, Any]]:
        """Check that the model is in the model list and that its state allows calls."""
        reply = yield get_json(join_url(self.base_url, "/models", default="/v1"))
        if reply.status == 404:
            raise InvalidModelError(
                "the server has no model list, so it cannot confirm the model", status=404
            )
        refuse_failure(self, reply)
        try:
            # mlx-lm sends an empty body in offline mode
            data = read_json(reply.body) if reply.body.strip() else []
        except ValueError as error:
            raise InvalidResponseError(
                "the server's model list is not JSON", status=reply.status
            ) from error
        lists = [data.get("data"), data.get("models")] if isinstance(data, dict) else [data]
        entries = next((entries for entries in lists if isinstance(entries, list)), None)
        if entries is None:
            raise InvalidResponseError(
                "the server's model list has an unknown form", status=reply.status
            )
        known = entries_of(entries)
        mine = next((entry for entry in known if _is_named(entry, self.model)), None)
        if mine is None and not self.quirks.any_model and not serves_one_model(known):
            raise InvalidModelError(
                f"the server does not list the model {self.model!r}", status=reply.status
            )
        if mine is not None and (state := _unready_state(mine)) is not None:
            raise ModelNotLoadedError(
                f"the server lists the model as {state}", status=reply.status
            )
        return mine or {}

    def _ask_key(self) -> Generator[HttpRequest, HttpReply, None]:
        """Check the key at a separate endpoint: OpenRouter serves its model list without a key."""
        reply = yield get_json(join_url(self.base_url, "/key", default="/v1"))
        if reply.status != 404:
            refuse_failure(self, reply)

    def _ask_health(self) -> Generator[HttpRequest, HttpReply, None]:
        reply = yield get_json(self.root + "/health")
        if reply.status == 503:
            raise ModelNotLoadedError("the server is still loading the model", status=503)
        if reply.status in (401, 403) or reply.status >= 500:
            refuse_failure(self, reply)

    def _ask_loaded(self, kind: str) -> Generator[HttpRequest, HttpReply, None]:
        """Check that the model is loaded: LM Studio lists its state, Ollama the loaded models."""
        path, key = _LOADED_LISTS[kind]
        reply = yield get_json(self.root + path)
        if reply.status != 200:
            return
        entry = _find(reply.body, key, self.model)
        if kind == "resident":
            is_loaded = entry is not None
        else:
            is_loaded = entry is None or entry.get("state") == "loaded"
        if not is_loaded:
            raise ModelNotLoadedError(
                "the server knows the model and has not loaded it", status=200
            )


# LM Studio and Ollama are recognised by ``owned_by`` in the model list. Each has its own endpoint
# that reports which models are loaded.
_TELLING_OWNERS = {"organization_owner": "state", "library": "resident"}
_LOADED_LISTS = {"state": ("/api/v0/models", "data"), "resident": ("/api/ps", "models")}


def _find(body: bytes, key: str, model: str) -> dict[str, Any] | None:
    try:
        data = read_json(body)
    except ValueError:
        return None
    entries = entries_of(dig(data, key))
    return next((entry for entry in entries if _is_named(entry, model)), None)


def _is_named(entry: Mapping[str, Any], model: str) -> bool:
    names = (entry.get("id"), entry.get("name"), entry.get("model"))
    # Ollama lists a model without a tag as "name:latest"
    return model in names or f"{model}:latest" in names


# States in a model list that mean that the model cannot answer now: it is not in memory, or it
# failed to load.
_UNREADY = frozenset(
    {
        "crashed", "error", "exited", "failed", "loading", "not loaded", "offline", "sleeping",
        "starting", "stopped", "unavailable", "unloaded",
    }
)  # fmt: skip


def _unready_state(entry: Mapping[str, Any]) -> str | None:
    """Return a model's state from the model list, if the model cannot answer in that state."""
    state: Any = entry.get("state", entry.get("status"))
    if isinstance(state, Mapping):
        # llama.cpp sends {"value": "unloaded", "failed": true} if the model's process ended while
        # it was loading.
        state = "failed" if state.get("failed") is True else state.get("value")
    if isinstance(state, str):
        state = state.lower().replace("-", " ").replace("_", " ")
        if state in _UNREADY:
            return str(state)
    if entry.get("failed") is True:
        return "failed"
    if entry.get("ready") is False:
        return "not ready"
    return "not loaded" if entry.get("loaded") is False and not isinstance(state, str) else None
