"""Quirks: settings for the differences between servers of the openai wire."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from ...events import FinishReason
from ..ids import IdRule, NameRule
from ..quirks import WireQuirks


class Quirks(WireQuirks, frozen=True):
    """How a server of the openai wire differs from the others. The defaults suit most of them."""

    name_rule: NameRule | None = NameRule(64)
    """Which tool names the server accepts. Hosted OpenAI and most servers of this wire accept 64
    letters, digits, underscores and dashes; llama.cpp accepts any name.
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name of the field for the output limit. Reasoning models of hosted OpenAI reject
    ``max_tokens``; some local servers ignore the newer name (transformers serve)."""

    key_header: str | None = None
    """The header for the API key, instead of a bearer token. Portkey reads ``x-portkey-api-key``."""

    chat_path: str = "/chat/completions"
    """The path of the requests below the base URL. Writer's is ``/chat``."""

    seed_field: Literal["seed", "random_seed"] = "seed"
    """The name of the field for the seed. Mistral has ``random_seed`` and rejects ``seed``."""

    system_role: Literal["system", "developer"] = "system"
    """The role of the system prompt. Hosted OpenAI prefers ``developer``, which llama-cpp-python
    answers with a 500."""

    stream_usage: bool = True
    """Whether usage at the end of a stream is requested. Old servers answer 400 to
    ``stream_options``; then the field is no longer sent.
    """

    structured: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is requested: in the field ``response_format``, or in the prompt.
    llama-cpp-python answers 500 to this field, and mlx-lm ignores it.
    """

    strict_schemas: bool = True
    """Whether strict decoding is requested for response schemas that meet its rules. A 400 about a
    schema turns strict decoding off for that schema.
    """

    result_media: Literal["after", "omit"] | None = None
    """Where images and documents of a tool result are sent. The result itself can only be text on
    this wire. ``after``: in a user message after the results. ``omit``: they are not sent; a text
    replaces them. By default models that are known to accept images get both, models that are
    known not to accept them get neither, and other models get images. A 400 about an image turns
    this off.
    """

    tools: Literal["native", "schema"] = "native"
    """How tools are offered. ``native``: in the field ``tools``. ``schema``: through a response
    schema that describes the calls, for models whose chat template ignores tools (SmolLM2).
    """

    structured_with_tools: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is requested in calls with tools. Groq rejects tools together with
    ``response_format``; then the quirk changes automatically.
    """

    structured_streamed: Literal["native", "prompt"] = "native"
    """How a ``response_schema`` is requested in calls that stream. Groq's structured outputs do not
    stream.
    """

    send_reasoning: Literal["reasoning_content", "reasoning", "content"] | None = None
    """Where the thinking of earlier turns is sent; by default it is not sent.
    ``reasoning_content`` is the field that DeepSeek, Moonshot, Xiaomi, Z.ai, SGLang and llama.cpp
    read, and ``reasoning`` that of vLLM since 0.16. ``content`` sends thinking as parts of the
    content, as Mistral expects. Groq, Cerebras and Mistral reject either field. Both refusals, of
    a field and of a history without it, change the quirk automatically.
    """

    reasoning_required: bool = False
    """Whether every turn of the model must have the field of ``send_reasoning`` while the model
    reasons. A turn without thinking, such as that of another model, has a space there: Moonshot
    and OpenRouter treat an empty field as missing (llmgateway#2093, pi#4179, litellm#27439, seen
    2026-11-18), and DeepSeek accepts any text.
    """

    reasoning_beside_text: bool = True
    """Whether a turn with calls may have both thinking and text. The template of gpt-oss, which
    llama.cpp renders, raises "Cannot pass both content and thinking in an assistant message with
    tool calls" (ggml-org/llama.cpp#17040, 2025-11; seen 2026-11-19); such an error changes the
    quirk. With ``False``, the thinking of such a turn is not sent.
    """

    unary_reasoning: bool = True
    """Whether the model may reason in a reply that does not stream. If not, such requests turn
    reasoning off. Alibaba rejects other requests for open Qwen models ("enable_thinking must be
    set to false for non-streaming calls"); such an error changes the quirk automatically.
    """

    call_placeholder: dict[str, Any] | None = None
    """The ``extra_content`` of the first call of a turn, if none of its calls has any. Gemini 3
    demands a signature there, also for calls that another model made, and Google documents a
    placeholder for them.
    """

    body: dict[str, Any] = field(default_factory=dict)
    """Fields that are added to every request unless the request sets them. MiniMax sends thinking
    inside of the text unless ``reasoning_split`` is set.
    """

    reasoning_details: bool = False
    """Whether the field ``reasoning_details`` of a reply (signed and encrypted reasoning) is
    stored and sent back with its turn. OpenRouter sends this field (case:
    openai/quirk-reasoning-details).
    """

    usage_path: str | None = None
    """The dotted path of a vendor-specific field for usage. Groq streams usage in ``x_groq.usage``
    (case: openai/usage-in-a-field-of-its-own).
    """

    finish_words: dict[str, FinishReason] = field(default_factory=dict)
    """A mapping from vendor-specific finish reasons to standard ones. Together sends ``eos`` for
    ``stop`` (case: openai/finish-word-by-quirk).
    """

    id_rule: IdRule | None = None
    """Which tool-call ids the server accepts; by default any id. Hosted OpenAI accepts at most 40
    characters, and Mistral exactly nine letters or digits. vLLM's ids have 46 characters.
    """

    readiness: Literal["auto", "models", "key", "health", "state", "resident"] = "auto"
    """How readiness is checked. Every method looks for the model in the model list. ``key`` also
    checks the key, for a server whose list needs no key (OpenRouter). ``health`` also requests
    ``/health`` (llama.cpp, vLLM, SGLang). ``state`` also reads the states of models in LM Studio.
    ``resident`` also reads Ollama's list of models in memory. ``auto`` chooses ``state``,
    ``resident`` or ``health`` by the owner in the model list.
    """

    any_model: bool = False
    """Whether the server has one model and serves it under every name (llama.cpp)."""

    cache_key: bool = False
    """Whether calls with ``cache="auto"`` send the session id as ``prompt_cache_key``, so that all
    calls of a session use the same cache. Hosted OpenAI has this field; other servers may reject
    it.
    """

    cache_form: Literal["retention", "breakpoints", "key", "none"] = "retention"
    """How the prompt cache is controlled. ``retention``: the cache is automatic, and
    ``prompt_cache_retention`` sets how long it is kept. ``breakpoints``: cache marks are sent as
    ``prompt_cache_breakpoint``, and ``prompt_cache_options`` has the settings, which hosted OpenAI
    accepts from GPT-5.6 on instead of the retention (ax-llm/ax#573, earendil-works/pi#6528).
    ``key``: only ``prompt_cache_key`` is sent, as to Mistral. ``none``: no field is sent, as to
    Groq, which rejects all of them.
    """

    cache_header: str | None = None
    """The header that takes the cache key, instead of the field ``prompt_cache_key``; calls with
    ``cache="auto"`` send the session id. xAI sends all requests with one ``x-grok-conv-id`` to the
    same server, and each of its servers has its own cache.
    """

    cache_control: bool = False
    """Whether prompt-cache marks are sent, in the field ``cache_control`` of a part. OpenRouter
    forwards these marks to models that do not cache automatically.
    """

    tools_while_reasoning: bool = True
    """Whether the model accepts tools while it reasons. Hosted OpenAI answers "Function tools with
    reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions" from GPT-5.4 on. With
    ``False``, a request with tools turns reasoning off, which is reported; a model that always
    reasons needs the Responses wire.
    """

    parallel_tools: bool = True
    """Whether the model may make several calls in one turn. With ``False``, every request with
    tools also has the field that turns parallel calls off. The capability
    ``supports_parallel_tool_calls: false`` sets this quirk to ``False``.
    """
