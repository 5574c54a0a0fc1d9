"""How servers that speak this wire differ, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ...events import FinishReason
from ...reasoning import ReasoningStyle
from ..ids import IdRule


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server that speaks this wire differs from the rest. The defaults suit most of them.

    Each field names who needs it, and often a case that exercises it.
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Hosted OpenAI reasoning models refuse ``max_tokens``; local servers ignore the new name (transformers serve)."""

    system_role: Literal["system", "developer"] = "system"
    """Hosted OpenAI prefers ``developer``; llama-cpp-python answers it with a 500."""

    stream_usage: bool = True
    """Ask for usage at the end of a stream. Old servers answer 400 to ``stream_options``; then this is learned."""

    structured: Literal["native", "prompt"] = "native"
    """Whether ``response_format`` with a JSON Schema works. llama-cpp-python answers 500, mlx-lm ignores it."""

    strict_schemas: bool = True
    """Mark a response schema as strict where it meets the rules of strict decoding. A 400 about a schema turns it off
    for that schema."""

    result_media: Literal["after", "omit"] | None = None
    """Where images and documents of a tool's result go, which takes only text here: ``after`` the results, as a
    message of the user, or nowhere (``omit``), with a text in their place. By default ``after`` for models known
    to see images, else ``omit``."""

    tools: Literal["native", "schema"] = "native"
    """``schema``: ask for calls through a JSON Schema, for models whose chat template ignores tools (SmolLM2)."""

    send_reasoning: Literal["reasoning_content", "reasoning"] | None = None
    """The field that takes an earlier turn's thinking back. DeepSeek refuses it in general; most ignore it."""

    reasoning_details: bool = False
    """Keep the list of signed and encrypted reasoning that comes beside a reply, and send it back with the turn it
    belongs to.
    OpenRouter, for the models of others (case: openai/quirk-reasoning-details)."""

    usage_path: str | None = None
    """A vendor's own place for usage, dotted. Groq streams have it in ``x_groq.usage``
    (case: openai/usage-in-a-field-of-its-own)."""

    finish_words: dict[str, FinishReason] = field(default_factory=dict)
    """Finish reasons of a server's own. Together says ``eos`` for stop (case: openai/finish-word-by-quirk)."""

    id_rule: IdRule | None = None
    """Which tool-call ids are taken; by default all, as their server made them (vLLM's have 46 characters). Hosted
    OpenAI: at most 40 characters, whichever; Mistral: nine letters or digits."""

    readiness: Literal["auto", "models", "key", "health", "state", "resident"] = "auto"
    """Which question tells that the model is served. ``health``: llama.cpp, vLLM, SGLang; ``state``: LM Studio's own
    model list; ``resident``: Ollama's list of models in memory; ``models``: hosted; ``key``:
    hosted, with a model list that needs no key: the key is asked about by itself (OpenRouter); ``auto``: models,
    then health."""

    any_model: bool = False
    """The server has one model and serves it under every name (llama.cpp)."""

    reasoning: ReasoningStyle | None = None
    """How the endpoint takes ``config.reasoning``; by default ``catalog/reasoning.json`` knows it by the model's
    name."""

    cache_key: bool = False
    """``cache="auto"`` sends the id of the session as ``prompt_cache_key``, which routes its calls to one cache. Hosted
    OpenAI; others may refuse the field."""

    cache_control: bool = False
    """Marks for the prompt cache are sent, as ``cache_control`` of a part. OpenRouter passes them on to models whose
    cache is not automatic."""

    parallel_tools: bool = True
    """Whether the model may make several calls in one turn. ``False`` sends the switch of this wire with every request
    that has tools; ``supports_parallel_tool_calls: false`` sets it."""
