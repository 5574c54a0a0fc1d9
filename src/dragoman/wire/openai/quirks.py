"""Quirks: how servers of this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ...events import FinishReason
from ...reasoning import ReasoningStyle
from ..ids import IdRule


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server of this wire differs from the others. The defaults suit most of them.

    The documentation of each field names the servers that need it, and often a case that exercises
    it.
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name of the field for the output limit. Reasoning models of hosted OpenAI reject
    ``max_tokens``; some local servers ignore the newer name (transformers serve)."""

    system_role: Literal["system", "developer"] = "system"
    """The role of the system prompt. Hosted OpenAI prefers ``developer``, which llama-cpp-python
    answers with a 500."""

    stream_usage: bool = True
    """Request usage at the end of a stream. Old servers answer 400 to ``stream_options``; then it
    is no longer sent.
    """

    structured: Literal["native", "prompt"] = "native"
    """Whether ``response_format`` with a JSON Schema works. llama-cpp-python answers 500, mlx-lm
    ignores it.
    """

    strict_schemas: bool = True
    """Mark a response schema as strict where it meets the rules of strict decoding. A 400 about a
    schema turns it off for that schema.
    """

    result_media: Literal["after", "omit"] | None = None
    """Where images and documents of a tool result are sent; the result itself can only be text on
    this wire. ``after``: in a user message after the results. ``omit``: nowhere, with a text in
    their place. The default is ``after`` for models that are known to accept images, else
    ``omit``."""

    tools: Literal["native", "schema"] = "native"
    """How tools are offered. ``schema``: calls are requested through a JSON Schema, for models
    whose chat template ignores tools (SmolLM2)."""

    send_reasoning: Literal["reasoning_content", "reasoning"] | None = None
    """The field for the thinking of an earlier turn. DeepSeek rejects it in general; most servers
    ignore it.
    """

    reasoning_details: bool = False
    """Keep the list ``reasoning_details`` (signed and encrypted reasoning) of a reply, and send it
    back with its turn. OpenRouter sends it for models of other vendors (case:
    openai/quirk-reasoning-details).
    """

    usage_path: str | None = None
    """A vendor's own field for usage, as a dotted path. Groq streams have it in ``x_groq.usage``
    (case: openai/usage-in-a-field-of-its-own)."""

    finish_words: dict[str, FinishReason] = field(default_factory=dict)
    """Finish reasons that only this server has, and what they mean. Together sends ``eos`` for
    stop (case: openai/finish-word-by-quirk).
    """

    id_rule: IdRule | None = None
    """Which tool-call ids the server accepts; by default any (ids of vLLM have 46 characters).
    Hosted OpenAI: at most 40 characters; Mistral: nine letters or digits.
    """

    readiness: Literal["auto", "models", "key", "health", "state", "resident"] = "auto"
    """How readiness is checked. ``health``: llama.cpp, vLLM, SGLang; ``state``: LM Studio's own
    model list; ``resident``: Ollama's list of models in memory; ``models``: hosted; ``key``:
    hosted, with a model list that needs no key, so that the key is checked separately
    (OpenRouter); ``auto``: models, then health.
    """

    any_model: bool = False
    """The server has one model and serves it under every name (llama.cpp)."""

    reasoning: ReasoningStyle | None = None
    """How ``config.reasoning`` is sent; by default ``catalog/reasoning.json`` decides by the
    model's name.
    """

    cache_key: bool = False
    """Send the session id as ``prompt_cache_key`` with ``cache="auto"``, which routes the
    session's calls to one cache. Hosted OpenAI has the field; other servers may reject it.
    """

    cache_control: bool = False
    """Send marks for the prompt cache, as ``cache_control`` of a part. OpenRouter forwards them to
    models whose cache is not automatic.
    """

    parallel_tools: bool = True
    """Whether the model may make several calls in one turn. ``False`` sends this wire's field that
    turns parallel calls off, with every request that has tools. The capability
    ``supports_parallel_tool_calls: false`` sets it."""
